// The allocator's segments at a moment, with their blocks and holes.

import type { Segments } from "./model.ts";
import { NEVER, type Rows } from "./rows.ts";

export interface Segment {
  addr: number;
  bytes: number;
  pool: number;
  stream: number;
  isSmall: boolean;
  isExpandable: boolean;
  /** Rows by address; what is freed and not yet free is among them. */
  blocks: number[];
  used: number;
}

export interface SegmentGroup {
  pool: number;
  stream: number;
  isSmall: boolean;
  isExpandable: boolean;
  segments: Segment[];
  bytes: number;
  used: number;
  largestHole: number;
}

/** Reserved bytes by event: where they change, and what they are from then on. */
export function reservedCurve(segments: Segments): { events: Int32Array; bytes: Float64Array } {
  const changes: [number, number][] = [];
  for (let i = 0; i < segments.addr.length; i++) {
    changes.push([segments.begin[i] - 1, segments.bytes[i]]);
    if (segments.end[i]) changes.push([segments.end[i] - 1, -segments.bytes[i]]);
  }
  changes.sort((a, b) => a[0] - b[0]);
  let sum = 0;
  const bytes = Float64Array.from(changes, ([, change]) => (sum += change));
  return { events: Int32Array.from(changes, ([event]) => event), bytes };
}

export function segmentsAt(segments: Segments, rows: Rows, event: number): Segment[] {
  const found: Segment[] = [];
  for (let i = 0; i < segments.addr.length; i++) {
    const begin = segments.begin[i] - 1;
    const end = segments.end[i] ? segments.end[i] - 1 : NEVER;
    if (begin > event || end <= event) continue;
    const before = found[found.length - 1];
    const isExpandable = segments.isExpandable[i] > 0;
    if (
      before?.isExpandable &&
      isExpandable &&
      before.addr + before.bytes === segments.addr[i] &&
      before.stream === segments.stream[i]
    ) {
      before.bytes += segments.bytes[i];
      continue;
    }
    found.push({
      addr: segments.addr[i],
      bytes: segments.bytes[i],
      pool: segments.pool[i],
      stream: segments.stream[i],
      isSmall: segments.isSmall[i] > 0,
      isExpandable,
      blocks: [],
      used: 0,
    });
  }
  found.sort((a, b) => a.addr - b.addr);
  placeBlocks(found, rows, event);
  return found;
}

function placeBlocks(segments: Segment[], rows: Rows, event: number): void {
  const live: number[] = [];
  for (let row = 0; row < rows.n; row++) if (rows.alloc[row] <= event && rows.end[row] > event) live.push(row);
  live.sort((a, b) => rows.addr[a] - rows.addr[b]);
  let at = 0;
  for (const row of live) {
    while (at < segments.length && segments[at].addr + segments[at].bytes <= rows.addr[row]) at++;
    if (at === segments.length) break;
    if (rows.addr[row] < segments[at].addr) continue; // outside of any: the file contradicts itself
    segments[at].blocks.push(row);
    segments[at].used += rows.kinds.bytes[rows.kindOf[row]];
  }
}

/** By pool, stream and size class, most bytes first. */
export function groupSegments(segments: Segment[], rows: Rows): SegmentGroup[] {
  const groups = new Map<string, SegmentGroup>();
  for (const segment of segments) {
    const { pool, stream, isSmall, isExpandable } = segment;
    const key = `${pool} ${stream} ${isSmall} ${isExpandable}`;
    let group = groups.get(key);
    if (!group) {
      group = { pool, stream, isSmall, isExpandable, segments: [], bytes: 0, used: 0, largestHole: 0 };
      groups.set(key, group);
    }
    group.segments.push(segment);
    group.bytes += segment.bytes;
    group.used += segment.used;
    for (const [from, to] of holes(segment, rows)) group.largestHole = Math.max(group.largestHole, to - from);
  }
  return [...groups.values()].sort((a, b) => b.bytes - a.bytes);
}

/** The free stretches of a segment, as offsets from its start. */
export function holes(segment: Segment, rows: Rows): [number, number][] {
  const found: [number, number][] = [];
  let at = 0;
  for (const row of segment.blocks) {
    const from = rows.addr[row] - segment.addr;
    if (from > at) found.push([at, from]);
    at = Math.max(at, from + rows.kinds.bytes[rows.kindOf[row]]);
  }
  if (at < segment.bytes) found.push([at, segment.bytes]);
  return found;
}
