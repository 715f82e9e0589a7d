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

// Of more than so many, looking through the kinds, the largest first, is faster than sorting.
const MANY = 50_000;

/** The `most` largest allocations that are live somewhere between two events. */
export function largest(rows: Rows, from: number, to: number, most: number, many = MANY): { rows: Int32Array; nLeftOut: number } {
  const { alloc, freed, kindOf, kinds } = rows;
  const ranks = ranksBySize(rows);
  const isIn = (row: number) => alloc[row] <= to && freed[row] > from;
  // The rank of its kind, then its row, in one number: numbers are sorted many times as fast as rows.
  const keys: number[] = [];
  let n = 0;
  for (let row = 0; row < rows.n; row++) {
    if (isIn(row) && ++n <= many) keys.push(ranks.of[kindOf[row]] * rows.n + row);
  }
  let found: number[] = [];
  if (n <= many) found = [...(n > most ? Float64Array.from(keys).sort() : keys)].slice(0, most).map((key) => key % rows.n);
  for (let rank = 0; n > many && rank < kinds.n && found.length < most; rank++) {
    const kind = ranks.order[rank];
    for (let row = kinds.first[kind]; row < kinds.first[kind + 1] && found.length < most; row++) {
      if (isIn(row)) found.push(row);
    }
  }
  const chosen = Int32Array.from(found);
  chosen.sort((a, b) => alloc[a] - alloc[b] || a - b);
  return { rows: chosen, nLeftOut: n - chosen.length };
}

interface Ranks {
  /** The kinds, the largest first. */
  order: Int32Array;
  /** The place of every kind among them. */
  of: Int32Array;
}

const RANKS = new WeakMap<Rows, Ranks>();

function ranksBySize(rows: Rows): Ranks {
  let ranks = RANKS.get(rows);
  if (!ranks) {
    const order = Int32Array.from({ length: rows.kinds.n }, (_, kind) => kind);
    order.sort((a, b) => rows.kinds.bytes[b] - rows.kinds.bytes[a] || a - b);
    ranks = { order, of: new Int32Array(rows.kinds.n) };
    for (let rank = 0; rank < order.length; rank++) ranks.of[order[rank]] = rank;
    RANKS.set(rows, ranks);
  }
  return ranks;
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
