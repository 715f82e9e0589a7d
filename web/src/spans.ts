// The strip above a timeline: iterations, phases, annotated ranges, each where it has events.

import type { App } from "./app.ts";
import type { Device } from "./model.ts";
import { iterationText } from "./numbers.ts";
import { LEFT, type Plot, RIGHT } from "./plot.ts";
import { theme } from "./theme.ts";

const ITERATION = 17;
const PHASE = 15;
const LANE = 15;
const MOST_LANES = 3;

export function stripHeight(device: Device): number {
  const { spans } = device;
  let height = 4;
  if (spans.iterationFirst.length > 1) height += ITERATION;
  if (hasPhases(device)) height += PHASE;
  return height + lanes(device) * LANE;
}

function hasPhases(device: Device): boolean {
  return knownPhases(device).length > 0;
}

const FOUND = new WeakMap<object, unknown>();

/** What is found once for a column of spans. */
function once<T>(key: object, find: () => T): T {
  if (!FOUND.has(key)) FOUND.set(key, find());
  return FOUND.get(key) as T;
}

function knownPhases({ spans: { phase } }: Device): number[] {
  return once(phase, () => [...phase.keys()].filter((i) => phase[i] > 0 && phase[i] < 4));
}

/** The spans of the upper lanes, lane by lane. */
function lanesOf({ spans: { spanDepth } }: Device): number[][] {
  return once(spanDepth, () => {
    const found: number[][] = [];
    spanDepth.forEach((lane, i) => lane < MOST_LANES && (found[lane] ??= []).push(i));
    return found;
  });
}

function spansOfLane(device: Device, lane: number): number[] {
  return lanesOf(device)[lane];
}

function lanes(device: Device): number {
  return lanesOf(device).length;
}

export interface Bar {
  x: number;
  width: number;
  y: number;
  height: number;
  text: string;
  shade: number;
  /** Its events: from the first to the last. */
  range: [number, number];
}

export type Range = [number, number];

/** The ranges of the strip, row by row: their first and last events. */
function rangeRows(device: Device): Range[][] {
  const { spans, facts } = device;
  return once(spans, () => {
    const until = (firsts: ArrayLike<number>, i: number) => (firsts[i + 1] ?? facts.n_events) - 1;
    const iterations = spans.iterationFirst.length > 1 ? [...spans.iterationFirst.keys()] : [];
    const rows = [
      iterations.map((i): Range => [spans.iterationFirst[i], until(spans.iterationFirst, i)]),
      knownPhases(device).map((i): Range => [spans.phaseFirst[i], until(spans.phaseFirst, i)]),
      ...lanesOf(device).map((lane) => lane.map((i): Range => [spans.spanFirst[i], spans.spanFirst[i] + spans.spanLength[i]])),
    ];
    return rows.filter((row) => row.length);
  });
}

/** The ranges around an event, in the order of the rows. */
function rangesAround(device: Device, event: number): Range[] {
  const around = rangeRows(device).map((row) => row.find(([first, last]) => first <= event && event <= last));
  return around.filter((range) => range !== undefined);
}

function isSame([first, last]: Range, chosen: readonly number[]): boolean {
  return first === chosen[0] && last === chosen[1];
}

/** The range around an event that follows the chosen one, row by row; none after the last. */
export function nextRangeAround(device: Device, event: number, chosen: readonly number[]): Range | [] {
  const around = rangesAround(device, event);
  return around[around.findIndex((range) => isSame(range, chosen)) + 1] ?? [];
}

/** The range before or after the chosen one in its row; without one, the nearest of the first row. */
export function rangeBeside(device: Device, event: number, chosen: readonly number[], step: 1 | -1): Range | undefined {
  const rows = rangeRows(device);
  const row = rows.find((row) => row.some((range) => isSame(range, chosen)));
  if (!row) return rangesAround(device, event)[0] ?? rows[0]?.[0];
  const at = row.findIndex((range) => isSame(range, chosen)) + step;
  return row[Math.max(0, Math.min(row.length - 1, at))];
}

/** The bars of the visible part; neighbours too narrow to be seen apart become one. */
export function bars(app: App, plot: Plot, device: Device): Bar[] {
  const { spans, facts } = device;
  const axis = app.axis(device);
  const found: Bar[] = [];
  const end = plot.width - RIGHT;
  const edge = (event: number) => Math.max(LEFT, Math.min(end, plot.xOf(axis.place(event))));
  const row = (y: number, height: number, n: number, first: (i: number) => number, after: (i: number) => number, text: (i: number) => string, shade: (i: number) => number) => {
    let covered = -1;
    for (let i = 0; i < n; i++) {
      const a = edge(first(i));
      const b = edge(after(i));
      if (b <= LEFT || a >= end || b - a <= 0 || (b < covered + 1 && b - a < 1)) continue;
      found.push({ x: a, width: Math.max(1, b - a), y, height: height - 2, text: text(i), shade: shade(i), range: [first(i), after(i) - 1] });
      covered = b;
    }
  };
  let y = 0;
  const { iterationFirst: its, phaseFirst, phase } = spans;
  if (its.length > 1) {
    const name = (i: number) => iterationText(facts, i);
    row(y, ITERATION, its.length, (i) => its[i], (i) => its[i + 1] ?? facts.n_events, name, (i) => i % 2);
    y += ITERATION;
  }
  if (hasPhases(device)) {
    const known = knownPhases(device);
    const at = (i: number) => known[i];
    row(y, PHASE, known.length, (i) => phaseFirst[at(i)], (i) => phaseFirst[at(i) + 1] ?? facts.n_events, (i) => facts.phases[phase[at(i)]], (i) => phase[at(i)] + 1);
    y += PHASE;
  }
  for (let lane = 0; lane < lanes(device); lane++) {
    const mine = spansOfLane(device, lane);
    const text = (i: number) => facts.span_names[spans.spanName[mine[i]]];
    row(y, LANE, mine.length, (i) => spans.spanFirst[mine[i]], (i) => spans.spanFirst[mine[i]] + spans.spanLength[mine[i]] + 1, text, () => 5);
    y += LANE;
  }
  return found;
}

const SHADES = [0.1, 0.2, 0.13, 0.3, 0.22, 0.16];

export function drawBars(context: CanvasRenderingContext2D, found: readonly Bar[]): void {
  const colors = theme();
  context.textAlign = "left";
  context.textBaseline = "middle";
  for (const bar of found) {
    context.globalAlpha = SHADES[bar.shade];
    context.fillStyle = colors.strong;
    context.fillRect(bar.x, bar.y, Math.max(1, bar.width - (bar.width > 3 ? 1 : 0)), bar.height);
    context.globalAlpha = 1;
    const text = fit(context, bar.text, bar.width - 8);
    if (!text) continue;
    context.fillStyle = colors.text;
    context.fillText(text, bar.x + 4, bar.y + bar.height / 2 + 0.5);
  }
}

/** As much of a text as has room; nothing where that would be a letter or two. */
export function fit(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (width < 12) return "";
  if (text.length < 200 && context.measureText(text).width <= width) return text;
  let n = Math.min(text.length, Math.floor(width / 4));
  while (n > 2 && context.measureText(`${text.slice(0, n)}…`).width > width) n--;
  return n > 2 ? `${text.slice(0, n)}…` : "";
}
