// Every allocation of a device, and what was live after any event.

/** The columns of a device by their names, and two facts beside them. */
export interface RowSource {
  ints(name: string): Promise<Int32Array>;
  floats(name: string): Promise<Float64Array>;
  nEvents: number;
  tensorNames: string[];
}

/** What allocations of one kind have in common; ids are 0 where there is none. */
export interface Kinds {
  n: number;
  /** Kind k has the rows from first[k] to first[k + 1]. */
  first: Int32Array;
  stack: Int32Array;
  category: Int32Array;
  evidence: Int32Array;
  certainty: Int32Array;
  /** In percent; 0 for what is unknown. */
  probability: Int32Array;
  reason: Int32Array;
  operation: Int32Array;
  module: Int32Array;
  pool: Int32Array;
  stream: Int32Array;
  exact: Int32Array;
  requested: Float64Array;
  bytes: Float64Array;
}

/** Rows are sorted by kind, then by event. An event is -1 for what was there before the first. */
export interface Rows {
  n: number;
  kinds: Kinds;
  kindOf: Int32Array;
  alloc: Int32Array;
  /** The event that freed it; NEVER where it is live at the end. */
  freed: Int32Array;
  /** The event after which its memory may be used again; NEVER where there is none. */
  end: Int32Array;
  addr: Float64Array;
  /** Per event: row + 1 of what it allocates, -(row + 1) of what it frees, 0 for neither. */
  byEvent: Int32Array;
  /** Frees that happen at the event of another row. */
  alsoFreed: Map<number, number[]>;
  /** Per event: row + 1 of what may be used again after it. */
  endsAt: Int32Array;
  alsoEnds: Map<number, number[]>;
  nameOf: Map<number, string>;
  stackFirst: Int32Array;
  stackFrame: Int32Array;
}

export const NEVER = 0x7fffffff;

export async function makeRows(source: RowSource): Promise<Rows> {
  const int = (name: string) => source.ints(name);
  const [trait, count] = await Promise.all([int("kind_trait"), int("kind_count")]);
  const [stack, category, evidence, certainty, probability, reason, operation, module, pool, stream, exact] = await Promise.all(
    ["stack", "category", "evidence", "certainty", "probability", "reason", "operation", "module", "pool", "stream", "exact"].map(async (name) => {
      const ofTrait = await int(`trait_${name}`);
      return trait.map((id) => ofTrait[id]);
    }),
  );
  const [rounding, bytes, addrs] = await Promise.all(
    ["kind_rounding", "kind_block", "addrs"].map((name) => source.floats(name)),
  );
  const requested = bytes.map((n, kind) => n - rounding[kind]);
  const first = starts(count);
  const kinds = { n: count.length, first, stack, category, evidence, certainty, probability, reason, operation, module, pool, stream, exact, requested, bytes };
  const [alloc, freed, pending, addrId] = await Promise.all([int("alloc"), int("life"), int("pending"), int("addr")]);
  const n = alloc.length;
  const kindOf = new Int32Array(n);
  const end = new Int32Array(n);
  const addr = new Float64Array(n);
  for (let kind = 0; kind < kinds.n; kind++) kindOf.fill(kind, first[kind], first[kind + 1]);
  for (let row = 0; row < n; row++) {
    freed[row] = freed[row] ? alloc[row] + freed[row] : NEVER;
    end[row] = pending[row] ? freed[row] + pending[row] - 1 : NEVER;
    addr[row] = addrs[addrId[row]];
  }
  const [byEvent, alsoFreed, endsAt, alsoEnds] = eventsOf(alloc, freed, end, source.nEvents);
  const namedRow = await int("named_row");
  const nameOf = new Map<number, string>();
  namedRow.forEach((row, i) => nameOf.set(row, source.tensorNames[i]));
  const stackFirst = starts(await int("stack_length"));
  const stackFrame = await int("stack_frame");
  return { n, kinds, kindOf, alloc, freed, end, addr, byEvent, alsoFreed, endsAt, alsoEnds, nameOf, stackFirst, stackFrame };
}

export function starts(counts: Int32Array): Int32Array {
  const first = new Int32Array(counts.length + 1);
  for (let i = 0; i < counts.length; i++) first[i + 1] = first[i] + counts[i];
  return first;
}

export function eventsOf(
  alloc: Int32Array,
  freed: Int32Array,
  end: Int32Array,
  nEvents: number,
): [Int32Array, Map<number, number[]>, Int32Array, Map<number, number[]>] {
  const byEvent = new Int32Array(nEvents);
  const endsAt = new Int32Array(nEvents);
  const alsoFreed = new Map<number, number[]>();
  const alsoEnds = new Map<number, number[]>();
  for (let row = 0; row < alloc.length; row++) if (alloc[row] >= 0) byEvent[alloc[row]] = row + 1;
  for (let row = 0; row < alloc.length; row++) {
    const event = freed[row];
    if (event !== NEVER) {
      if (byEvent[event] === 0) byEvent[event] = -(row + 1);
      else push(alsoFreed, event, row);
    }
    if (end[row] !== NEVER) {
      if (endsAt[end[row]] === 0) endsAt[end[row]] = row + 1;
      else push(alsoEnds, end[row], row);
    }
  }
  return [byEvent, alsoFreed, endsAt, alsoEnds];
}

function push(map: Map<number, number[]>, key: number, value: number): void {
  const list = map.get(key);
  if (list) list.push(value);
  else map.set(key, [value]);
}

/** What is live after an event: of each kind how many and the first row, of all the rows in order. */
export interface Live {
  event: number;
  count: Int32Array;
  first: Int32Array;
  rows: Int32Array;
  bytes: number;
}

export function isLive({ alloc, freed }: Rows, row: number, event: number): boolean {
  return alloc[row] <= event && freed[row] > event;
}

export function liveAt(rows: Rows, event: number): Live {
  const { alloc, freed, kinds } = rows;
  const count = new Int32Array(kinds.n);
  const first = new Int32Array(kinds.n);
  const live = new Int32Array(rows.n);
  let n = 0;
  let bytes = 0;
  for (let kind = 0; kind < kinds.n; kind++) {
    const before = n;
    const end = kinds.first[kind + 1];
    for (let row = kinds.first[kind]; row < end; row++) if (alloc[row] <= event && freed[row] > event) live[n++] = row;
    if (n === before) continue;
    count[kind] = n - before;
    first[kind] = live[before];
    bytes += count[kind] * kinds.bytes[kind];
  }
  return { event, count, first, rows: live.subarray(0, n), bytes };
}

/** Write the bytes of some kinds before the first event, and after each: that after event e stands at e + 1. */
export function curveOf(rows: Rows, kinds: Iterable<number>, after: Float64Array): Float64Array {
  const { alloc, freed } = rows;
  after.fill(0);
  for (const kind of kinds) {
    const bytes = rows.kinds.bytes[kind];
    const end = rows.kinds.first[kind + 1];
    for (let row = rows.kinds.first[kind]; row < end; row++) {
      after[alloc[row] + 1] += bytes;
      if (freed[row] !== NEVER) after[freed[row] + 1] -= bytes;
    }
  }
  for (let i = 1; i < after.length; i++) after[i] += after[i - 1];
  return after;
}

/** The position of the last number that is no greater than `value`; -1 where all are. */
export function lastAtMost(sorted: Int32Array | Float64Array, value: number): number {
  let low = 0;
  let high = sorted.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (sorted[middle] <= value) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
