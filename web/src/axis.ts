// Where an event is on the horizontal axis: by its number, by its time, or by its iteration.

import { lastAtMost } from "./rows.ts";

export type AxisKind = "event" | "time" | "iteration";

/** What follows event i lasts from its place to that of event i + 1. */
export interface Axis {
  kind: AxisKind;
  low: number;
  high: number;
  place(event: number): number;
  /** The last event at a place or before it; -1 before the first. */
  eventAt(place: number): number;
}

export function eventAxis(nEvents: number): Axis {
  return {
    kind: "event",
    low: 0,
    high: Math.max(1, nEvents),
    place: (event) => event,
    eventAt: (place) => Math.max(-1, Math.min(nEvents - 1, Math.floor(place))),
  };
}

export function timeAxis(time: Float64Array): Axis {
  const last = time.length ? time[time.length - 1] : 0;
  const high = last * 1.001 + 1;
  return {
    kind: "time",
    low: 0,
    high,
    place: (event) => (event < 0 ? 0 : event < time.length ? time[event] : high),
    eventAt: (place) => lastAtMost(time, place),
  };
}

/** Iteration k, whatever it took, is as wide as any other: two runs are compared iteration by iteration. */
export function iterationAxis(first: Int32Array, nEvents: number): Axis {
  const bounds = Float64Array.from(first.length ? [...first, nEvents] : [0, Math.max(1, nEvents)]);
  const place = (event: number): number => {
    const k = Math.max(0, Math.min(bounds.length - 2, lastAtMost(bounds, event)));
    return k + (event - bounds[k]) / Math.max(1, bounds[k + 1] - bounds[k]);
  };
  return {
    kind: "iteration",
    low: 0,
    high: bounds.length - 1,
    place,
    eventAt: (at) => {
      const k = Math.max(0, Math.min(bounds.length - 2, Math.floor(at)));
      const event = Math.floor(bounds[k] + (at - k) * (bounds[k + 1] - bounds[k]) + 1e-9);
      return Math.max(-1, Math.min(nEvents - 1, event));
    },
  };
}
