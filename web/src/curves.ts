// What each pixel column of a timeline shows: the most and the least that was allocated within it, and what
// both consisted of. Far away from the level of detail that Python computed, near by from every event.

import type { Axis } from "./axis.ts";
import type { Level } from "./model.ts";
import { type Rows, lastAtMost } from "./rows.ts";

export interface PixelColumns {
  n: number;
  nCategories: number;
  maxEvent: Int32Array;
  maxTotal: Float64Array;
  minTotal: Float64Array;
  /** Column by column, in the order of categories. */
  atMax: Float64Array;
  atMin: Float64Array;
  active: Float64Array;
  reserved: Float64Array;
  isExact: boolean;
}

export interface CurveSource {
  nEvents: number;
  nCategories: number;
  start: readonly number[];
  activeStart: number;
  level: Level;
  rows: Rows | null;
  reserved: { events: Int32Array; bytes: Float64Array } | null;
}

export function pixelColumns(source: CurveSource, axis: Axis, from: number, to: number, n: number): PixelColumns {
  const first = new Int32Array(n);
  const last = new Int32Array(n);
  const width = (to - from) / n;
  for (let c = 0; c < n; c++) {
    first[c] = axis.eventAt(from + c * width);
    last[c] = Math.max(first[c], axis.eventAt(from + (c + 1) * width - width * 1e-6));
  }
  const k = source.nCategories;
  const columns: PixelColumns = {
    n,
    nCategories: k,
    maxEvent: new Int32Array(n),
    maxTotal: new Float64Array(n),
    minTotal: new Float64Array(n),
    atMax: new Float64Array(n * k),
    atMin: new Float64Array(n * k),
    active: new Float64Array(n),
    reserved: new Float64Array(n),
    isExact: source.rows !== null && last[n - 1] - first[0] <= Math.max(4096, source.level.bin * n),
  };
  if (columns.isExact) fillFromEvents(source, columns, first, last);
  else fillFromLevel(source, columns, first, last);
  // Of two files one may be shorter: nothing is drawn after its end.
  const end = Math.ceil((axis.high - from) / width);
  if (end < n) blank(columns, Math.max(0, end), source.nEvents);
  return columns;
}

function blank(columns: PixelColumns, from: number, nEvents: number): void {
  columns.maxEvent.fill(nEvents, from);
  for (const values of [columns.maxTotal, columns.minTotal]) values.fill(0, from);
  for (const values of [columns.atMax, columns.atMin]) values.fill(0, from * columns.nCategories);
  for (const values of [columns.active, columns.reserved]) values.fill(NaN, from);
}

function fillFromLevel(source: CurveSource, columns: PixelColumns, first: Int32Array, last: Int32Array): void {
  const { level, nCategories: k } = source;
  const totals = levelTotals(level);
  for (let c = 0; c < columns.n; c++) {
    const low = Math.max(0, Math.floor(Math.max(0, first[c]) / level.bin));
    const high = Math.min(level.n - 1, Math.floor(Math.max(0, last[c]) / level.bin));
    if (level.n === 0 || last[c] < 0) {
      fillStart(source, columns, c);
      continue;
    }
    let most = low;
    let least = low;
    for (let b = low; b <= high; b++) {
      if (totals.max[b] > totals.max[most]) most = b;
      if (totals.min[b] < totals.min[least]) least = b;
      columns.active[c] = Math.max(columns.active[c], level.activeMax[b]);
      columns.reserved[c] = Math.max(columns.reserved[c], level.reservedMax[b]);
    }
    columns.maxEvent[c] = level.maxEvent[most];
    columns.maxTotal[c] = totals.max[most];
    columns.minTotal[c] = totals.min[least];
    for (let i = 0; i < k; i++) {
      columns.atMax[c * k + i] = level.atMax[i][most];
      columns.atMin[c * k + i] = level.atMin[i][least];
    }
  }
}

function fillStart(source: CurveSource, columns: PixelColumns, c: number): void {
  const total = source.start.reduce((a, b) => a + b, 0);
  columns.maxEvent[c] = -1;
  columns.maxTotal[c] = columns.minTotal[c] = total;
  columns.active[c] = source.activeStart;
  columns.reserved[c] = source.reserved ? reservedAt(source.reserved, -1) : 0;
  columns.atMax.set(source.start, c * source.nCategories);
  columns.atMin.set(source.start, c * source.nCategories);
}

const TOTALS = new WeakMap<Level, { max: Float64Array; min: Float64Array }>();

/** Allocated bytes at the extremes of each bin. */
export function levelTotals(level: Level): { max: Float64Array; min: Float64Array } {
  let found = TOTALS.get(level);
  if (!found) {
    const sum = (columns: Float64Array[]) =>
      Float64Array.from({ length: level.n }, (_, b) => columns.reduce((total, column) => total + column[b], 0));
    found = { max: sum(level.atMax), min: sum(level.atMin) };
    TOTALS.set(level, found);
  }
  return found;
}

/** Walks over events and keeps the bytes of every category after each. */
export class Walk {
  event: number;
  total = 0;
  readonly bytes: Float64Array;

  constructor(
    private readonly source: CurveSource,
    event: number,
  ) {
    const { level } = source;
    this.bytes = Float64Array.from(source.start);
    this.event = -1;
    // The nearest moment before the event at which everything is known.
    const b = Math.min(level.n - 1, Math.floor(event / level.bin) - 1);
    if (b >= 0) {
      const isMaxLater = level.maxEvent[b] > level.minEvent[b];
      this.event = isMaxLater ? level.maxEvent[b] : level.minEvent[b];
      (isMaxLater ? level.atMax : level.atMin).forEach((column, i) => (this.bytes[i] = column[b]));
    }
    this.total = this.bytes.reduce((a, c) => a + c, 0);
    this.advance(event);
  }

  advance(event: number): void {
    const rows = this.source.rows as Rows;
    const { kinds, kindOf, byEvent, alsoFreed } = rows;
    const hasMore = alsoFreed.size > 0;
    while (this.event < event) {
      const entry = byEvent[++this.event];
      if (entry !== 0) {
        const kind = kindOf[(entry > 0 ? entry : -entry) - 1];
        const change = entry > 0 ? kinds.bytes[kind] : -kinds.bytes[kind];
        this.bytes[kinds.category[kind]] += change;
        this.total += change;
      }
      if (!hasMore) continue;
      for (const row of alsoFreed.get(this.event) ?? []) {
        this.bytes[kinds.category[kindOf[row]]] -= kinds.bytes[kindOf[row]];
        this.total -= kinds.bytes[kindOf[row]];
      }
    }
  }
}

function fillFromEvents(source: CurveSource, columns: PixelColumns, first: Int32Array, last: Int32Array): void {
  const k = source.nCategories;
  const walk = new Walk(source, first[0]);
  const { maxTotal, minTotal, atMax, atMin, maxEvent } = columns;
  const rows = source.rows as Rows;
  let pending = pendingAt(rows, walk.event);
  for (let c = 0; c < columns.n; c++) {
    const step = () => {
      if (walk.event < last[c]) {
        walk.advance(walk.event + 1);
        pending += pendingChange(rows, walk.event);
        return true;
      }
      return false;
    };
    while (walk.event < first[c]) {
      walk.advance(walk.event + 1);
      pending += pendingChange(rows, walk.event);
    }
    maxTotal[c] = minTotal[c] = walk.total;
    maxEvent[c] = walk.event;
    columns.active[c] = walk.total + pending;
    for (let i = 0; i < k; i++) atMax[c * k + i] = atMin[c * k + i] = walk.bytes[i];
    while (step()) {
      columns.active[c] = Math.max(columns.active[c], walk.total + pending);
      if (walk.total > maxTotal[c]) {
        maxTotal[c] = walk.total;
        maxEvent[c] = walk.event;
        for (let i = 0; i < k; i++) atMax[c * k + i] = walk.bytes[i];
      } else if (walk.total < minTotal[c]) {
        minTotal[c] = walk.total;
        for (let i = 0; i < k; i++) atMin[c * k + i] = walk.bytes[i];
      }
    }
    if (source.reserved) columns.reserved[c] = mostReserved(source.reserved, first[c], last[c]);
  }
}

const STRIDE = 4096;
const PENDING = new WeakMap<Rows, Float64Array>();

/** What was freed and may not be used again yet: the difference of active and allocated bytes. */
function pendingAt(rows: Rows, event: number): number {
  let known = PENDING.get(rows);
  if (!known) {
    known = new Float64Array(Math.ceil(rows.byEvent.length / STRIDE) + 1);
    let bytes = 0;
    for (let row = 0; row < rows.n; row++) if (rows.freed[row] < 0) bytes += rows.kinds.bytes[rows.kindOf[row]];
    for (let at = 0; at < rows.byEvent.length; at++) {
      if (at % STRIDE === 0) known[at / STRIDE] = bytes; // before this event
      bytes += pendingChange(rows, at);
    }
    PENDING.set(rows, known);
  }
  if (event < 0) return known[0];
  const from = Math.floor(event / STRIDE);
  let bytes = known[from];
  for (let at = from * STRIDE; at <= event; at++) bytes += pendingChange(rows, at);
  return bytes;
}

function pendingChange(rows: Rows, event: number): number {
  let change = 0;
  const entry = rows.byEvent[event];
  if (entry < 0) change += rows.kinds.bytes[rows.kindOf[-entry - 1]];
  if (rows.alsoFreed.size) {
    for (const row of rows.alsoFreed.get(event) ?? []) change += rows.kinds.bytes[rows.kindOf[row]];
  }
  const ends = rows.endsAt[event];
  if (ends) change -= rows.kinds.bytes[rows.kindOf[ends - 1]];
  if (rows.alsoEnds.size) {
    for (const row of rows.alsoEnds.get(event) ?? []) change -= rows.kinds.bytes[rows.kindOf[row]];
  }
  return change;
}

export function reservedAt(curve: { events: Int32Array; bytes: Float64Array }, event: number): number {
  const i = lastAtMost(curve.events, event);
  return i < 0 ? 0 : curve.bytes[i];
}

function mostReserved(curve: { events: Int32Array; bytes: Float64Array }, first: number, last: number): number {
  let i = Math.max(0, lastAtMost(curve.events, first));
  let most = reservedAt(curve, first);
  for (; i < curve.events.length && curve.events[i] <= last; i++) {
    if (curve.events[i] >= first) most = Math.max(most, curve.bytes[i]);
  }
  return most;
}
