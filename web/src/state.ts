// What the person who looks has chosen. A part of it is the link to a selection. Events count from the page's first.

import type { AxisKind } from "./axis.ts";
import type { Frames, Grouping } from "./tree.ts";

/** What the colours of allocations stand for. */
export type Coloring = "category" | "line" | "stack";
export type Tab = "live" | "allocations" | "map" | "range" | "events" | "times" | "source" | "compare";

export interface State {
  device: number;
  axis: AxisKind;
  /** The visible part, in places of the axis; from === to: all of it. */
  from: number;
  to: number;
  moment: number;
  tab: Tab;
  grouping: Grouping;
  frames: Frames;
  query: string;
  /** The node of the icicle: ranks of children, by bytes. */
  focus: readonly number[];
  /** The chosen allocation; -1: none. */
  row: number;
  hidden: readonly string[];
  coloring: Coloring;
  /** The first and the last event of the chosen range; empty: none. */
  range: readonly number[];
  /** The file of the source that is shown, or a line of it; empty: those that count of all. */
  source: string;
}

const TABS: readonly string[] = ["live", "allocations", "map", "range", "events", "times", "source", "compare"];

export function toHash(state: State): string {
  const parts: [string, string][] = [
    ["d", String(state.device)],
    ["e", String(state.moment)],
    ["t", state.tab],
  ];
  if (state.axis !== "event") parts.push(["x", state.axis]);
  if (state.to > state.from) parts.push(["v", `${round(state.from)},${round(state.to)}`]);
  if (state.grouping !== "line") parts.push(["g", state.grouping]);
  if (state.frames !== "project") parts.push(["f", state.frames]);
  if (state.query) parts.push(["q", encodeURIComponent(state.query)]);
  if (state.focus.length) parts.push(["p", state.focus.join(".")]);
  if (state.row >= 0) parts.push(["r", String(state.row)]);
  if (state.hidden.length) parts.push(["h", state.hidden.join(",")]);
  if (state.coloring !== "category") parts.push(["c", state.coloring]);
  if (state.range.length) parts.push(["s", state.range.join("-")]);
  if (state.source) parts.push(["l", encodeURIComponent(state.source)]);
  return "#" + parts.map(([key, value]) => `${key}=${value}`).join("&");
}

function round(place: number): string {
  return String(Number(place.toPrecision(10)));
}

/** The choices that a link contains; one that is missing or wrong is left out. */
export function fromHash(hash: string): Partial<State> {
  const values = new Map(hash.replace(/^#/, "").split("&").map((part) => part.split("=", 2) as [string, string]));
  const found: { -readonly [K in keyof State]?: State[K] } = {};
  const whole = (key: string): number | null => {
    const text = values.get(key);
    return text !== undefined && /^-?\d{1,15}$/.test(text) ? Number(text) : null;
  };
  const device = whole("d");
  if (device !== null && device >= 0) found.device = device;
  const moment = whole("e");
  if (moment !== null && moment >= -1) found.moment = moment;
  const row = whole("r");
  if (row !== null && row >= 0) found.row = row;
  const tab = values.get("t");
  if (tab && TABS.includes(tab)) found.tab = tab as Tab;
  const axis = values.get("x");
  if (axis === "event" || axis === "time" || axis === "iteration") found.axis = axis;
  const view = values.get("v")?.split(",").map(Number);
  if (view && view.length === 2 && view.every(Number.isFinite) && view[0] < view[1]) [found.from, found.to] = view;
  const grouping = values.get("g");
  if (grouping === "module" || grouping === "operation") found.grouping = grouping;
  const frames = values.get("f");
  if (frames === "python" || frames === "all") found.frames = frames;
  const focus = values.get("p");
  if (focus && /^\d{1,6}(\.\d{1,6})*$/.test(focus)) found.focus = focus.split(".").map(Number);
  const hidden = values.get("h");
  if (hidden) found.hidden = hidden.split(",").filter((name) => name === "active" || name === "reserved" || name === "other");
  const coloring = values.get("c");
  if (coloring === "line" || coloring === "stack") found.coloring = coloring;
  const range = /^(\d{1,15})-(\d{1,15})$/.exec(values.get("s") ?? "");
  if (range && Number(range[1]) <= Number(range[2])) found.range = [Number(range[1]), Number(range[2])];
  const text = (key: string) => {
    try {
      return decodeURIComponent(values.get(key) ?? "");
    } catch {
      return ""; // not a text that was ever encoded
    }
  };
  if (text("q")) found.query = text("q");
  if (text("l")) found.source = text("l");
  return found;
}
