// Where an event is on the horizontal axis: by its number, by its time, or by its iteration.

import { lastAtMost } from "./rows.ts";

export type AxisKind = "event" | "time" | "iteration";

/** What follows event i lasts from its place to that of event i + 1. */
export interface Axis {
  kind: AxisKind;
  low: number;
  high: number;
  /** Added to a place, it gives the file's number of the event or of the iteration there. */
  first: number;
  place(event: number): number;
  /** The last event at a place or before it; -1 before the first. */
  eventAt(place: number): number;
}

export function eventAxis(nEvents: number, first = 0): Axis {
  return {
    kind: "event",
    low: 0,
    high: Math.max(1, nEvents),
    first,
    place: (event) => event,
    eventAt: (place) => Math.max(-1, Math.min(nEvents - 1, Math.floor(place))),
  };
}

export function timeAxis(time: Float64Array): Axis {
  const low = time.length ? time[0] : 0;
  const last = time.length ? time[time.length - 1] : 0;
  const high = last + (last - low) * 0.001 + 1;
  return {
    kind: "time",
    low,
    high,
    first: 0,
    place: (event) => (event < 0 ? low : event < time.length ? time[event] : high),
    eventAt: (place) => lastAtMost(time, place),
  };
}

/** Iteration k, whatever it took, is as wide as any other: two runs are compared iteration by iteration. */
export function iterationAxis(begins: Int32Array, nEvents: number, first = 0): Axis {
  const bounds = Float64Array.from(begins.length ? [...begins, nEvents] : [0, Math.max(1, nEvents)]);
  const place = (event: number): number => {
    const k = Math.max(0, Math.min(bounds.length - 2, lastAtMost(bounds, event)));
    return k + (event - bounds[k]) / Math.max(1, bounds[k + 1] - bounds[k]);
  };
  return {
    kind: "iteration",
    low: 0,
    high: bounds.length - 1,
    first,
    place,
    eventAt: (at) => {
      const k = Math.max(0, Math.min(bounds.length - 2, Math.floor(at)));
      const event = Math.floor(bounds[k] + (at - k) * (bounds[k + 1] - bounds[k]) + 1e-9);
      return Math.max(-1, Math.min(nEvents - 1, event));
    },
  };
}
