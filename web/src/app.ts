// What the parts of the page share: the data, the state, and the parts that are drawn again when it changes.

import { type Axis, type AxisKind, eventAxis, iterationAxis, timeAxis } from "./axis.ts";
import { STACKED } from "./colors.ts";
import { type CurveSource, type PixelColumns, pixelColumns } from "./curves.ts";
import type { Device, Page } from "./model.ts";
import { type Live, liveAt } from "./rows.ts";
import { reservedCurve } from "./segments.ts";
import { type State, toHash } from "./state.ts";

/** In the frame of a notebook: the page has no address of its own there. */
export const isFramed = location.protocol === "about:";

export interface Part {
  element: HTMLElement;
  /** Draw what depends on these keys of the state; `data`: more of the data is there. */
  update(changed: ReadonlySet<keyof State | "data" | "theme">): void;
}

export class App {
  readonly parts: Part[] = [];
  /** Positions of categories, bottom to top, of all pictures. */
  readonly order: number[];
  private readonly axes = new Map<string, Axis>();
  private readonly sources = new Map<Device, CurveSource>();
  private waiting: Set<keyof State | "data" | "theme"> | null = null;
  private readonly lastColumns = new Map<Device, { source: CurveSource; axis: Axis; from: number; to: number; columns: PixelColumns }>();
  private lastLive: { device: Device; live: Live } | null = null;

  constructor(
    readonly page: Page,
    readonly devices: Device[],
    public state: State,
  ) {
    const rank = (name: string) => (STACKED.indexOf(name as never) + STACKED.length + 1) % (STACKED.length + 1);
    this.order = [...page.categories.keys()].sort((a, b) => rank(page.categories[a]) - rank(page.categories[b]));
  }

  get device(): Device {
    return this.devices[this.state.device];
  }

  update(patch: Partial<State>): void {
    const changed = Object.keys(patch).filter(
      (key) => JSON.stringify(patch[key as keyof State]) !== JSON.stringify(this.state[key as keyof State]),
    ) as (keyof State)[];
    if (!changed.length) return;
    this.state = { ...this.state, ...patch };
    this.changed(...changed);
  }

  /** Redraw with the next frame, once, whatever has changed until then. */
  changed(...keys: (keyof State | "data" | "theme")[]): void {
    if (this.waiting) {
      keys.forEach((key) => this.waiting?.add(key));
      return;
    }
    this.waiting = new Set(keys);
    requestAnimationFrame(() => this.redraw());
  }

  private redraw(): void {
    const changed = this.waiting ?? new Set();
    this.waiting = null;
    for (const part of this.parts) part.update(changed);
    this.keepHash();
  }

  private hashTimer = 0;

  private keepHash(): void {
    clearTimeout(this.hashTimer);
    this.hashTimer = window.setTimeout(() => {
      const hash = toHash(this.state);
      if (hash !== location.hash && !isFramed) history.replaceState(null, "", hash);
    }, 250);
  }

  axis(device = this.device): Axis {
    const { facts } = device;
    let kind: AxisKind = this.state.axis;
    if (kind === "time" && !device.time) kind = "event";
    const key = `${device.number} ${kind}`;
    let axis = this.axes.get(key);
    if (!axis) {
      if (kind === "time") axis = timeAxis(device.time as Float64Array);
      else if (kind === "iteration") axis = iterationAxis(device.spans.iterationFirst, facts.n_events, facts.first_iteration);
      else axis = eventAxis(facts.n_events, facts.first_event);
      this.axes.set(key, axis);
    }
    return axis;
  }

  /** The visible part of the axis. */
  get view(): { from: number; to: number; low: number; high: number; least: number } {
    const axis = this.axis();
    let { low, high } = axis;
    if (this.page.is_comparison) {
      for (const device of this.devices) [low, high] = [Math.min(low, this.axis(device).low), Math.max(high, this.axis(device).high)];
    }
    const least = Math.min(high - low, axis.kind === "iteration" ? 1e-4 : axis.kind === "time" ? 4 : 4);
    const { from, to } = this.state;
    if (!(to > from) || from >= high || to <= low) return { from: low, to: high, low, high, least };
    return { from: Math.max(low, from), to: Math.min(high, to), low, high, least };
  }

  source(device = this.device): CurveSource {
    let source = this.sources.get(device);
    if (!source || (device.rows && !source.rows)) {
      const { facts } = device;
      source = {
        nEvents: facts.n_events,
        nCategories: this.page.categories.length,
        start: facts.start_categories,
        activeStart: facts.active_start_bytes,
        level: device.level,
        rows: device.rows,
        reserved: device.segments ? reservedCurve(device.segments) : null,
      };
      this.sources.set(device, source);
    }
    return source;
  }

  /** The columns of the visible part; timeline and allocations show the same ones. */
  columns(device: Device, n: number): PixelColumns {
    const { from, to } = this.view;
    const source = this.source(device);
    const axis = this.axis(device);
    const last = this.lastColumns.get(device);
    if (last && last.source === source && last.axis === axis && last.from === from && last.to === to && last.columns.n === n) {
      return last.columns;
    }
    const columns = pixelColumns(source, axis, from, to, n);
    this.lastColumns.set(device, { source, axis, from, to, columns });
    return columns;
  }

  /** What is live at the chosen moment; null until the rows are there. */
  live(device = this.device, event = this.state.moment): Live | null {
    if (!device.rows) return null;
    if (this.lastLive?.device !== device || this.lastLive.live.event !== event) {
      this.lastLive = { device, live: liveAt(device.rows, event) };
    }
    return this.lastLive.live;
  }

  iterationOf(device: Device, event: number): number {
    const first = device.spans.iterationFirst;
    let low = 0;
    let high = first.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (first[middle] <= event) low = middle + 1;
      else high = middle;
    }
    return low - 1;
  }

  /** Choose a moment, and move the view so that it is seen. */
  show(event: number): void {
    const moment = this.momentOf(event);
    this.reveal(moment, moment);
    this.setMoment(moment);
  }

  /** Choose the request that failed; from one of several, the one after it. */
  showFailure(): void {
    const events = this.device.facts.oom.map(({ event }) => event);
    if (!events.length) return;
    const at = events.indexOf(this.state.moment);
    this.show(events[(at + 1) % events.length]);
  }

  setMoment(event: number): void {
    this.update({ moment: this.momentOf(event), focus: [] });
  }

  /** The nearest moment that the page has. */
  private momentOf(event: number): number {
    return Math.max(-1, Math.min(this.device.facts.n_events - 1, event));
  }

  /** Move the view so that a range of events is in it, if it is not; `isExact`: that range alone. */
  reveal(first: number, last: number, isExact = false): void {
    const axis = this.axis();
    const { from, to, low, high } = this.view;
    const [a, b] = [axis.place(Math.max(0, first)), axis.place(last)];
    if (isExact) {
      this.update({ from: a, to: Math.max(axis.place(last + 1), a + this.view.least) });
      return;
    }
    if (a >= from && b <= to) return;
    const width = Math.max(to - from, (b - a) * 1.2);
    const start = Math.max(low, Math.min(high - width, (a + b) / 2 - width / 2));
    this.update({ from: start, to: Math.min(high, start + width) });
  }
}
