import { deepEqual, equal, ok } from "node:assert/strict";
import { test } from "node:test";
import { eventAxis, iterationAxis, timeAxis } from "../src/axis.ts";
import { type CurveSource, Walk, pixelColumns } from "../src/curves.ts";
import { largest, lifetimes, rowAt } from "../src/lifetimes.ts";
import { NEVER, curveOf, liveAt } from "../src/rows.ts";
import { addTotals, noTotals, rangeTotals } from "../src/range.ts";
import { type Made, madeOf, randomAllocations, sourceOf, bytesAfter } from "./made.ts";

const SOURCES = [1, 2, 3].map((seed) => {
  const allocations = randomAllocations(400, seed);
  return { allocations, rows: madeOf(allocations), source: sourceOf(allocations, 16) };
});

test("every pixel has the most and the least of the moments within it", () => {
  for (const { allocations, source } of SOURCES) {
    const axis = eventAxis(source.nEvents);
    for (const [from, to, n] of [[0, source.nEvents, 37], [100, 180, 500], [3, 4, 7]] as const) {
      const columns = pixelColumns(source, axis, from, to, n);
      ok(columns.isExact);
      for (let c = 0; c < n; c++) {
        const width = (to - from) / n;
        const first = Math.floor(from + c * width);
        const last = Math.max(first, Math.min(source.nEvents - 1, Math.ceil(from + (c + 1) * width - width * 1e-6) - 1));
        const totals = [];
        for (let event = first; event <= last; event++) totals.push(bytesAfter(allocations, event));
        equal(columns.maxTotal[c], Math.max(...totals));
        equal(columns.minTotal[c], Math.min(...totals));
        equal(bytesAfter(allocations, columns.maxEvent[c]), columns.maxTotal[c]);
      }
    }
  }
});

test("after the end of a shorter file nothing is drawn", () => {
  const { source } = SOURCES[0];
  const columns = pixelColumns(source, eventAxis(source.nEvents), 0, 2 * source.nEvents, 100);
  ok(columns.maxTotal[49] > 0);
  deepEqual([columns.maxTotal[50], columns.maxTotal[99], columns.reserved[60]], [0, 0, NaN]);
  const found = lifetimes(source.rows as NonNullable<typeof source.rows>, columns, 1000);
  deepEqual([found.end[49] > found.begin[49], found.end[50] - found.begin[50], found.rest[70]], [true, 0, 0]);
});

test("from the level of detail no spike is lost", () => {
  for (const { allocations, source } of SOURCES) {
    const far: CurveSource = { ...source, rows: null };
    for (const n of [5, 23, 400]) {
      const columns = pixelColumns(far, eventAxis(source.nEvents), 0, source.nEvents, n);
      const events = [...Array(source.nEvents).keys()];
      equal(Math.max(...columns.maxTotal), Math.max(...events.map((event) => bytesAfter(allocations, event))));
      for (let c = 0; c < n; c++) {
        const sum = (values: Float64Array) => values[c * 3] + values[c * 3 + 1] + values[c * 3 + 2];
        equal(sum(columns.atMax), columns.maxTotal[c]);
        equal(sum(columns.atMin), columns.minTotal[c]);
      }
    }
  }
});

test("a walk from anywhere comes to the composition that counting gives", () => {
  for (const { allocations, source } of SOURCES) {
    for (const event of [-1, 0, 17, 100, source.nEvents - 1]) {
      const walk = new Walk(source, event);
      equal(walk.total, bytesAfter(allocations, event));
      [0, 1, 2].forEach((category) => equal(walk.bytes[category], bytesAfter(allocations, event, category)));
    }
  }
});

test("what is live at an event is what was allocated and not yet freed", () => {
  for (const { allocations, rows, source } of SOURCES) {
    for (const event of [-1, 5, 200, source.nEvents - 1]) {
      const live = liveAt(rows, event);
      equal(live.bytes, bytesAfter(allocations, event));
      equal(live.rows.length, allocations.filter((a) => a.alloc <= event && a.freed > event).length);
      equal(live.count.reduce((a, b) => a + b, 0), live.rows.length);
    }
  }
});

test("the curve of all kinds is the curve of the device", () => {
  for (const { allocations, rows, source } of SOURCES) {
    const curve = curveOf(rows, [...Array(rows.kinds.n).keys()], new Float64Array(source.nEvents + 1).fill(7));
    curve.forEach((bytes, i) => equal(bytes, bytesAfter(allocations, i - 1)));
  }
});

test("active bytes last until memory may be used again", () => {
  const allocations = [
    { alloc: 0, freed: 1, end: 3, bytes: 8, category: 0 },
    { alloc: 2, freed: NEVER, end: NEVER, bytes: 4, category: 1 },
  ];
  const columns = pixelColumns(sourceOf(allocations, 16, 5), eventAxis(5), 0, 5, 5);
  deepEqual([...columns.maxTotal], [8, 0, 4, 4, 4]);
  deepEqual([...columns.active], [8, 8, 12, 4, 4]);
  const whole = pixelColumns(sourceOf(allocations, 16, 5), eventAxis(5), 0, 5, 1);
  deepEqual([...whole.active], [12]);
});

test("drawn allocations and the rest are together what is allocated", () => {
  for (const { rows, source } of SOURCES) {
    const columns = pixelColumns(source, eventAxis(source.nEvents), 0, source.nEvents, 60);
    for (const most of [3, 10_000]) {
      const found = lifetimes(rows, columns, most);
      ok(found.rows.length <= most);
      for (let c = 0; c < columns.n; c++) {
        let sum = found.rest[c];
        for (let i = found.begin[c]; i < found.end[c]; i++) {
          const row = found.rows[found.live[i]];
          ok(rows.alloc[row] <= columns.maxEvent[c] && rows.freed[row] > columns.maxEvent[c]);
          equal(rowAt(rows, found, c, sum), row);
          sum += rows.kinds.bytes[rows.kindOf[row]];
        }
        equal(sum, columns.maxTotal[c]);
        if (most > 1000) equal(found.rest[c], 0);
      }
    }
  }
});

test("the largest in view are found, in the order of their events", () => {
  for (const { rows, source } of SOURCES) {
    for (const [from, to] of [[0, source.nEvents], [3, 20], [-1, 0]]) {
      const inView = Array.from({ length: rows.n }, (_, row) => row).filter((row) => rows.alloc[row] <= to && rows.freed[row] > from);
      const size = (row: number) => rows.kinds.bytes[rows.kindOf[row]];
      const sizes = inView.map(size).sort((a, b) => b - a);
      for (const most of [3, 10_000]) {
        const found = largest(rows, from, to, most);
        deepEqual([...found.rows].map(size).sort((a, b) => b - a), sizes.slice(0, most));
        equal(found.rows.length + found.nLeftOut, inView.length);
        deepEqual([...found.rows], [...found.rows].sort((a, b) => rows.alloc[a] - rows.alloc[b] || a - b));
      }
    }
  }
});

test("a range has what was allocated, freed and kept in it", () => {
  for (const { allocations, rows } of SOURCES) {
    for (const [first, last] of [[0, 399], [0, 0], [17, 230], [230, 231]]) {
      const isIn = (event: number) => event >= first && event <= last;
      const sum = (isWanted: (a: Made) => boolean) => allocations.filter(isWanted).reduce((bytes, a) => bytes + a.bytes, 0);
      const whole = noTotals();
      for (const totals of rangeTotals(rows, first, last).values()) addTotals(whole, totals);
      equal(whole.allocated, sum((a) => isIn(a.alloc)));
      equal(whole.freed, sum((a) => isIn(a.freed)));
      equal(whole.kept, sum((a) => isIn(a.alloc) && a.freed > last));
      equal(whole.nKept, allocations.filter((a) => isIn(a.alloc) && a.freed > last).length);
      equal(bytesAfter(allocations, first - 1) + whole.allocated - whole.freed, bytesAfter(allocations, last));
    }
  }
});

test("an axis leads from an event to its place and back", () => {
  const time = Float64Array.from({ length: 50 }, (_, i) => i * i * 10);
  const iterations = iterationAxis(Int32Array.of(0, 7, 30), 50);
  for (const axis of [eventAxis(50), timeAxis(time), iterations]) {
    for (let event = 0; event < 50; event++) equal(axis.eventAt(axis.place(event)), event, axis.kind);
  }
  equal(iterations.place(7), 1);
  equal(iterations.high, 3);
});
