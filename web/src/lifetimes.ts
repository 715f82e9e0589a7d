// The largest allocations as lifetimes x bytes: for each pixel column which of them are live, stacked in the
// order in which they were allocated, and the bytes of all others.

import type { PixelColumns } from "./curves.ts";
import { NEVER, type Rows } from "./rows.ts";

export interface Lifetimes {
  /** The rows that are drawn, in the order in which they are stacked. */
  rows: Int32Array;
  /** Of column c: positions in `rows`, from live[begin[c]] to before live[end[c]], bottom first. */
  begin: Int32Array;
  end: Int32Array;
  live: Int32Array;
  /** Bytes of all that is not drawn, by column. */
  rest: Float64Array;
  nLeftOut: number;
}

/** The `most` largest allocations that are live somewhere between two events. */
export function largest(rows: Rows, from: number, to: number, most: number): { rows: Int32Array; nLeftOut: number } {
  const { row, alloc, freed } = bySize(rows);
  const found: number[] = [];
  let n = 0;
  for (let i = 0; i < alloc.length; i++) {
    if (alloc[i] <= to && freed[i] > from && n++ < most) found.push(row[i]);
  }
  const chosen = Int32Array.from(found);
  chosen.sort((a, b) => rows.alloc[a] - rows.alloc[b] || a - b);
  return { rows: chosen, nLeftOut: n - chosen.length };
}

/** All rows, the largest first, and their events in that order: every frame of a pan goes through them. */
interface BySize {
  row: Int32Array;
  alloc: Int32Array;
  freed: Int32Array;
}

const BY_SIZE = new WeakMap<Rows, BySize>();

function bySize(rows: Rows): BySize {
  let sorted = BY_SIZE.get(rows);
  if (!sorted) {
    const { kinds, kindOf } = rows;
    const sizes = Float64Array.from(new Set(kinds.bytes)).sort().reverse();
    const rankOf = new Map(Array.from(sizes, (bytes, rank) => [bytes, rank]));
    const rank = Int32Array.from(kinds.bytes, (bytes) => rankOf.get(bytes) as number);
    // Counted, not compared: millions of rows have few sizes.
    const next = new Int32Array(sizes.length + 1);
    for (let i = 0; i < rows.n; i++) next[rank[kindOf[i]] + 1]++;
    for (let i = 0; i < sizes.length; i++) next[i + 1] += next[i];
    const row = new Int32Array(rows.n);
    for (let i = 0; i < rows.n; i++) row[next[rank[kindOf[i]]]++] = i;
    sorted = { row, alloc: row.map((i) => rows.alloc[i]), freed: row.map((i) => rows.freed[i]) };
    BY_SIZE.set(rows, sorted);
  }
  return sorted;
}

export function lifetimes(rows: Rows, columns: PixelColumns, most: number): Lifetimes {
  const events = columns.maxEvent;
  let from = NEVER;
  let to = -1;
  for (let c = 0; c < columns.n; c++) {
    from = Math.min(from, events[c]);
    to = Math.max(to, events[c]);
  }
  const chosen = largest(rows, from, to, most);
  const begin = new Int32Array(columns.n);
  const end = new Int32Array(columns.n);
  const rest = new Float64Array(columns.n);
  const current = new Int32Array(chosen.rows.length);
  const freed = Int32Array.from(chosen.rows, (row) => rows.freed[row]);
  const alloc = Int32Array.from(chosen.rows, (row) => rows.alloc[row]);
  const bytes = Float64Array.from(chosen.rows, (row) => rows.kinds.bytes[rows.kindOf[row]]);
  let live = new Int32Array(1 << 16);
  let nLive = 0;
  let nCurrent = 0;
  let next = 0;
  for (let c = 0; c < columns.n; c++) {
    const event = events[c];
    if (c > 0 && event === events[c - 1]) {
      [begin[c], end[c], rest[c]] = [begin[c - 1], end[c - 1], rest[c - 1]];
      continue;
    }
    begin[c] = end[c] = nLive;
    if (columns.maxTotal[c] <= 0) continue; // nothing is live, or the file has ended
    while (next < alloc.length && alloc[next] <= event) current[nCurrent++] = next++;
    if (nLive + nCurrent > live.length) {
      const more = new Int32Array(2 * live.length + nCurrent);
      more.set(live);
      live = more;
    }
    let drawn = 0;
    let kept = 0;
    for (let k = 0; k < nCurrent; k++) {
      const i = current[k];
      if (freed[i] <= event) continue;
      current[kept++] = live[nLive++] = i;
      drawn += bytes[i];
    }
    nCurrent = kept;
    end[c] = nLive;
    rest[c] = Math.max(0, columns.maxTotal[c] - drawn);
  }
  return { rows: chosen.rows, begin, end, live, rest, nLeftOut: chosen.nLeftOut };
}

/** The row that is drawn at a height of a column; -1: none, or the rest. */
export function rowAt(rows: Rows, found: Lifetimes, column: number, bytes: number): number {
  let below = found.rest[column];
  if (bytes < below) return -1;
  for (let i = found.begin[column]; i < found.end[column]; i++) {
    const row = found.rows[found.live[i]];
    below += rows.kinds.bytes[rows.kindOf[row]];
    if (bytes < below) return row;
  }
  return -1;
}
