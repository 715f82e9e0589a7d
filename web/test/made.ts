// Allocations made for tests, and the slow, plain way to count them.

import type { CurveSource } from "../src/curves.ts";
import { type Rows, NEVER, eventsOf } from "../src/rows.ts";

export interface Made {
  alloc: number;
  freed: number;
  end: number;
  bytes: number;
  category: number;
}

export function bytesAfter(allocations: readonly Made[], event: number, category = -1): number {
  return allocations
    .filter((a) => a.alloc <= event && a.freed > event && (category < 0 || a.category === category))
    .reduce((sum, a) => sum + a.bytes, 0);
}

/** A lawful trace: an allocation, a free or a completed free per event; some were there before. */
export function randomAllocations(n: number, seed: number): Made[] {
  let state = seed;
  const random = (below: number) => (state = (state * 1103515245 + 12345) % 2147483648) % below;
  const found: Made[] = [];
  const live: Made[] = [];
  for (let event = -20; event < n; event++) {
    if (event >= 0 && live.length && random(5) < 2 && event + 1 < n) {
      const [one] = live.splice(random(live.length), 1);
      one.freed = event;
      one.end = ++event;
    } else {
      const made = { alloc: Math.max(-1, event), freed: NEVER, end: NEVER, bytes: 512 * (1 + random(9)), category: random(3) };
      found.push(made);
      live.push(made);
    }
  }
  return found;
}

export function madeOf(allocations: readonly Made[], nEvents = 400): Rows {
  const key = (a: Made) => `${a.category} ${a.bytes}`;
  const kindNames = [...new Set(allocations.map(key))];
  const sorted = [...allocations].sort((a, b) => kindNames.indexOf(key(a)) - kindNames.indexOf(key(b)) || a.alloc - b.alloc);
  const first = new Int32Array(kindNames.length + 1);
  sorted.forEach((a) => first[kindNames.indexOf(key(a)) + 1]++);
  for (let k = 0; k < kindNames.length; k++) first[k + 1] += first[k];
  const zeros = new Int32Array(kindNames.length);
  const ints = (of: (a: Made) => number) => Int32Array.from(sorted, of);
  const [alloc, freed, end] = [ints((a) => a.alloc), ints((a) => a.freed), ints((a) => a.end)];
  const [byEvent, alsoFreed, endsAt, alsoEnds] = eventsOf(alloc, freed, end, nEvents);
  return {
    n: sorted.length,
    kinds: {
      n: kindNames.length,
      first,
      stack: zeros,
      evidence: zeros,
      certainty: zeros,
      probability: zeros,
      reason: zeros,
      operation: zeros,
      module: zeros,
      pool: zeros,
      stream: zeros,
      exact: zeros,
      category: Int32Array.from(kindNames, (name) => Number(name.split(" ")[0])),
      bytes: Float64Array.from(kindNames, (name) => Number(name.split(" ")[1])),
      requested: Float64Array.from(kindNames, (name) => Number(name.split(" ")[1])),
    },
    kindOf: ints((a) => kindNames.indexOf(key(a))),
    alloc,
    freed,
    end,
    addr: Float64Array.from(sorted, (_, i) => i * 8192),
    byEvent,
    alsoFreed,
    endsAt,
    alsoEnds,
    nameOf: new Map(),
    stackFirst: Int32Array.of(0, 0),
    stackFrame: new Int32Array(0),
  };
}

/** As Python makes the level of detail: the first extremes of every bin. */
export function sourceOf(allocations: readonly Made[], bin: number, nEvents = 400): CurveSource {
  const n = Math.ceil(nEvents / bin);
  const maxEvent = new Int32Array(n);
  const minEvent = new Int32Array(n);
  for (let b = 0; b < n; b++) {
    maxEvent[b] = minEvent[b] = b * bin;
    for (let event = b * bin; event < Math.min(nEvents, (b + 1) * bin); event++) {
      const bytes = bytesAfter(allocations, event);
      if (bytes > bytesAfter(allocations, maxEvent[b])) maxEvent[b] = event;
      if (bytes < bytesAfter(allocations, minEvent[b])) minEvent[b] = event;
    }
  }
  const at = (events: Int32Array) => [0, 1, 2].map((category) => Float64Array.from(events, (event) => bytesAfter(allocations, event, category)));
  const zeros = new Float64Array(n);
  return {
    nEvents,
    nCategories: 3,
    start: [0, 1, 2].map((category) => bytesAfter(allocations, -1, category)),
    activeStart: bytesAfter(allocations, -1),
    level: { bin, n, maxEvent, minEvent, atMax: at(maxEvent), atMin: at(minEvent), activeMax: zeros, reservedMax: zeros },
    rows: madeOf(allocations, nEvents),
    reserved: null,
  };
}
