// The timeline: allocated bytes stacked by category, active and reserved bytes as lines, spans above.

import type { App, Part } from "./app.ts";
import { colorOf, css, mix } from "./colors.ts";
import { type PixelColumns, Walk, levelTotals, reservedAt } from "./curves.ts";
import { el, swatch } from "./dom.ts";
import { byteTicks, formatBytes, formatMicroseconds, formatTick } from "./format.ts";
import type { Device } from "./model.ts";
import { iterationText, momentText } from "./numbers.ts";
import { type Frame, activeApart, drawByteAxis, drawPlaceAxis, drawSteps, paintStacks, placeTicks, yOf } from "./picture.ts";
import { LEFT, type Place, Plot, RIGHT } from "./plot.ts";
import { curveOf } from "./rows.ts";
import { type Bar, bars, drawBars, stripHeight } from "./spans.ts";
import type { State } from "./state.ts";
import { Svg, cut, n } from "./svg.ts";
import { categoryPixels, theme } from "./theme.ts";

const BODY = 250;
const AXIS = 22;
// For the marks of the peak and of out-of-memory events.
const MARKS = 16;

export class Timeline implements Part {
  readonly element: HTMLElement;
  readonly plot: Plot;
  columns: PixelColumns | null = null;
  private hovered: Place | null = null;
  /** Bytes of the chosen kinds before the first event and after each. */
  private selected: Float64Array | null = null;
  private curve: Float64Array | null = null;
  private readonly tip = el("div", { class: "tip", attrs: { role: "status" } });

  constructor(
    private readonly app: App,
    /** The device that is shown; without one, the chosen one. */
    private readonly fixed: Device | null = null,
    private readonly most: (() => number) | null = null,
  ) {
    const name = fixed ? `Timeline of ${fixed.file.name}` : "Timeline of allocated bytes";
    this.plot = new Plot(
      name,
      this.height,
      () => app.view,
      {
        view: (from, to) => app.update({ from, to }),
        hover: (place) => this.hover(place),
        click: (place) => this.click(place),
      },
      () => this.draw(),
    );
    this.tip.hidden = true;
    this.element = el("div", { class: "timeline" }, this.plot.element, this.tip);
  }

  get device(): Device {
    return this.fixed ?? this.app.device;
  }

  private get height(): number {
    return stripHeight(this.device) + MARKS + BODY + AXIS;
  }

  get frame(): Frame {
    const top = stripHeight(this.device) + MARKS;
    return { top, bottom: this.plot.height - AXIS, most: (this.most ? this.most() : mostBytes(this.device, this.app.state)) * 1.04 };
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    const redraws = ["device", "axis", "from", "to", "hidden", "data", "theme"] as const;
    this.plot.setHeight(this.height);
    if (changed.has("device")) this.selected = null;
    if (redraws.some((key) => changed.has(key))) this.draw();
    else if (["moment", "row", "range"].some((key) => changed.has(key as keyof State))) this.drawOverlay();
  }

  /** Draw the bytes of some kinds of allocations as a line of their own. */
  select(kinds: readonly number[] | null): void {
    const { rows, facts } = this.device;
    if (!kinds && !this.selected) return;
    if (kinds) this.curve ??= new Float64Array(facts.n_events + 1);
    this.selected = kinds && rows && this.curve && curveOf(rows, kinds, this.curve);
    this.drawOverlay();
  }

  draw(): void {
    const { plot, app, device, frame } = this;
    if (!plot.width) return;
    const { from, to } = app.view;
    const axis = app.axis(device);
    this.columns = app.columns(device, Math.round(plot.plotWidth * plot.ratio));
    const context = plot.context(plot.base);
    const colors = theme();
    paintStacks(plot, frame, this.columns, app.order, categoryPixels(app.page.categories));
    drawByteAxis(context, plot, frame);
    drawPlaceAxis(context, plot, axis, frame.bottom, from, to);
    drawBars(context, bars(app, plot, device));
    context.lineWidth = 1.5;
    if (this.isShown("reserved")) {
      context.strokeStyle = colors.strong;
      drawSteps(context, frame, this.columns.reserved, plot.ratio);
    }
    if (this.isShown("active")) {
      context.strokeStyle = colors.strong;
      context.setLineDash([3, 3]);
      drawSteps(context, frame, activeApart(frame, this.columns, plot.ratio), plot.ratio);
      context.setLineDash([]);
    }
    this.drawOther(context);
    this.drawMarks(context);
    this.drawOverlay();
  }

  /** Of two files, the allocated bytes of the other one. */
  private otherCurve(): Float64Array | null {
    const { app, plot } = this;
    const other = this.fixed && app.devices.find((device) => device !== this.fixed);
    return other && this.isShown("other") ? app.columns(other, Math.round(plot.plotWidth * plot.ratio)).maxTotal : null;
  }

  private drawOther(context: CanvasRenderingContext2D): void {
    const { plot } = this;
    const curve = this.otherCurve();
    if (!curve) return;
    for (const [width, color, dash] of [[4, css(theme().background), []], [2, theme().accent, [6, 4]]] as const) {
      context.lineWidth = width;
      context.strokeStyle = color;
      context.setLineDash([...dash]);
      drawSteps(context, this.frame, curve, plot.ratio);
    }
    context.setLineDash([]);
    context.lineWidth = 1.5;
  }

  private isShown(name: string): boolean {
    return !this.app.state.hidden.includes(name);
  }

  private marks(): Mark[] {
    const { device, plot, app } = this;
    const axis = app.axis(device);
    const found = device.facts.oom.map((oom) => ({
      x: plot.xOf(axis.place(oom.event)),
      text: `out of memory: ${formatBytes(oom.requested)}`,
      isAlarm: true,
    }));
    const peak = plot.xOf(axis.place(Math.max(0, device.facts.peak_event)));
    found.push({ x: peak, text: `peak ${formatBytes(device.facts.peak_bytes)}`, isAlarm: false });
    return placeLabels(found.filter(({ x }) => x >= LEFT - 1 && x <= plot.width - RIGHT + 1), plot.width - RIGHT);
  }

  private drawMarks(context: CanvasRenderingContext2D): void {
    const { frame } = this;
    const colors = theme();
    context.textBaseline = "middle";
    for (const { x, text, isAlarm, isLeft } of this.marks()) {
      context.fillStyle = context.strokeStyle = isAlarm ? colors.alarm : colors.text;
      context.beginPath();
      context.moveTo(x, frame.top - 1);
      context.lineTo(x - 5, frame.top - 10);
      context.lineTo(x + 5, frame.top - 10);
      context.fill();
      if (isAlarm) context.fillRect(Math.round(x), frame.top, 1, frame.bottom - frame.top);
      context.textAlign = isLeft ? "right" : "left";
      const at = x + (isLeft ? -8 : 8);
      context.fillText(text, at, frame.top - 7);
    }
    context.lineWidth = 1;
  }

  drawOverlay(): void {
    const { plot, frame, app, columns } = this;
    if (!plot.width || !columns) return;
    const context = plot.context(plot.overlay);
    const colors = theme();
    if (this.selected) {
      const { selected } = this;
      const values = Float64Array.from(columns.maxEvent, (event) => selected[event + 1]);
      context.lineWidth = 4;
      context.strokeStyle = css(colors.background);
      drawSteps(context, frame, values, plot.ratio);
      context.lineWidth = 2;
      context.strokeStyle = colors.accent;
      drawSteps(context, frame, values, plot.ratio);
    }
    const line = (x: number, color: string, width: number, dash: number[]) => {
      if (x < LEFT - 1 || x > plot.width - RIGHT + 1) return;
      context.strokeStyle = color;
      context.lineWidth = width;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(x, frame.top - 4);
      context.lineTo(x, frame.bottom);
      context.stroke();
      context.setLineDash([]);
    };
    if (app.device === this.device) {
      this.drawRange(context);
      line(this.momentX, colors.accent, 2, []);
      this.drawLife(context);
    }
    if (this.hovered) line(this.hovered.x, colors.text, 1, [2, 2]);
    const brush = plot.brushed;
    if (brush) {
      context.fillStyle = colors.accent;
      context.globalAlpha = 0.2;
      context.fillRect(Math.min(...brush), frame.top, Math.abs(brush[1] - brush[0]), frame.bottom - frame.top);
      context.globalAlpha = 1;
    }
  }

  private drawRange(context: CanvasRenderingContext2D): void {
    const { app, plot, frame } = this;
    const { range } = app.state;
    if (!range.length) return;
    const axis = app.axis(this.device);
    const [from, to] = [range[0], range[1] + 1].map((event) => Math.max(LEFT, Math.min(plot.width - RIGHT, plot.xOf(axis.place(event)))));
    context.fillStyle = theme().accent;
    context.globalAlpha = 0.12;
    context.fillRect(from, 0, to - from, frame.bottom);
    context.globalAlpha = 1;
  }

  /** The lifetime of the chosen allocation, as a bar above the axis. */
  private drawLife(context: CanvasRenderingContext2D): void {
    const { app, plot, frame, device } = this;
    const { row } = app.state;
    if (row < 0 || !device.rows || row >= device.rows.n) return;
    const axis = app.axis(device);
    const edge = (event: number) => Math.max(LEFT, Math.min(plot.width - RIGHT, plot.xOf(axis.place(event))));
    const from = edge(Math.max(0, device.rows.alloc[row]));
    const to = edge(Math.min(device.facts.n_events, device.rows.freed[row]));
    if (to <= LEFT || from >= plot.width - RIGHT) return;
    context.fillStyle = theme().text;
    context.fillRect(from, frame.bottom - 5, Math.max(2, to - from), 4);
    context.fillRect(from, frame.bottom - 9, 1.5, 9);
    context.fillRect(to - 1.5, frame.bottom - 9, 1.5, 9);
  }

  private get momentX(): number {
    const axis = this.app.axis(this.device);
    const { moment } = this.app.state;
    const a = this.plot.xOf(axis.place(moment));
    const b = this.plot.xOf(axis.place(moment + 1));
    return b - a > 3 ? (a + b) / 2 : a;
  }

  /** The event that a pixel stands for: the highest moment within it. */
  private eventAt(x: number): number {
    const columns = this.columns as PixelColumns;
    const c = Math.max(0, Math.min(columns.n - 1, Math.floor((x - LEFT) * this.plot.ratio)));
    return columns.maxEvent[c];
  }

  /** The iteration, phase or named range above the curves. */
  private barAt(place: Place): Bar | undefined {
    if (place.y >= this.frame.top) return undefined;
    return bars(this.app, this.plot, this.device).find((bar) => isIn(bar, place));
  }

  private click(place: Place): void {
    if (!this.columns || place.x < LEFT) return;
    const { app, device } = this;
    const chosen = this.barAt(place);
    if (chosen) {
      app.update({ device: device.number, range: chosen.range, tab: "range", ...(app.device === device ? {} : { focus: [], row: -1 }) });
      return;
    }
    if (app.device === device) app.setMoment(this.eventAt(place.x));
    else app.update({ device: device.number, moment: this.eventAt(place.x), focus: [], row: -1 });
  }

  private hover(place: Place | null): void {
    const { plot, frame } = this;
    const isOn = place && this.columns && place.x >= LEFT && place.x <= plot.width - RIGHT && place.y <= frame.bottom;
    this.hovered = isOn ? place : null;
    this.drawOverlay();
    this.tip.hidden = !isOn;
    if (!isOn || !place) return;
    this.tip.replaceChildren(...this.tipContent(this.eventAt(place.x), this.barAt(place)?.text));
    const width = this.tip.offsetWidth;
    const left = place.x + 16 + width > plot.width ? place.x - width - 16 : place.x + 16;
    this.tip.style.left = `${Math.max(0, Math.min(left, plot.width - width))}px`;
    this.tip.style.top = `${frame.top + 8}px`;
  }

  private tipContent(event: number, span: string | undefined): Node[] {
    const { app, device } = this;
    const found = composition(app, device, event);
    const iteration = app.iterationOf(device, event);
    const where = [momentText(device.facts, event)];
    if (device.time && event >= 0) {
      const isKept = event % device.facts.time_step === 0 || event === device.time.length - 1;
      where.push(`${isKept ? "" : "about "}${formatMicroseconds(device.time[event])}`);
    }
    if (device.spans.iterationFirst.length > 1 && iteration >= 0) where.push(iterationText(device.facts, iteration));
    const table = el("table");
    const add = (name: string, bytes: number, color: string | null) =>
      table.append(el("tr", {}, el("td", {}, color ? swatch(color) : null, name), el("td", { text: formatBytes(bytes) })));
    add("allocated", found.total, null);
    for (const i of [...app.order].reverse()) {
      const name = app.page.categories[i];
      if (found.bytes[i] > 0) add(name, found.bytes[i], css(colorOf(name)));
    }
    const source = app.source(device);
    if (source.reserved) add("reserved", reservedAt(source.reserved, event), null);
    const nodes: Node[] = [el("div", { class: "tip-head", text: where.join(" · ") }), table];
    if (span) nodes.unshift(el("div", { class: "tip-span", text: span }));
    return nodes;
  }

  toSvg(): Svg {
    const { plot, frame, app, device, columns } = this;
    const colors = theme();
    const svg = new Svg(plot.width, plot.height, css(colors.background));
    if (!columns) return svg;
    const { from, to } = app.view;
    for (const [values, share] of [[columns.atMax, colors.isDark ? 0.5 : 0.45], [columns.atMin, 1]] as const) {
      const sums = new Float64Array(columns.n);
      for (const i of app.order) {
        const path = bandPath(columns, values, sums, i, frame, plot.ratio);
        if (path) svg.path(path, css(mix(colorOf(app.page.categories[i]), colors.background, share)));
      }
    }
    const most = Math.max(2, Math.floor((frame.bottom - frame.top) / 44));
    for (const value of byteTicks(frame.most, most)) {
      svg.rect(LEFT, yOf(frame, value), plot.plotWidth, 0.5, colors.grid);
      svg.text(LEFT - 6, yOf(frame, value) + 4, formatTick(value), colors.muted, 11, "end");
    }
    for (const [x, text] of placeTicks(plot, app.axis(device), from, to)) svg.text(x, frame.bottom + 15, text, colors.muted, 11, "middle");
    for (const bar of bars(app, plot, device)) {
      svg.rect(bar.x, bar.y, Math.max(1, bar.width - 1), bar.height, colors.strong, ` fill-opacity="0.2"`);
      if (bar.width > 24) svg.text(bar.x + 4, bar.y + 11, cut(bar.text, bar.width - 8), colors.text);
    }
    const lines = [["reserved", columns.reserved, ""], ["active", activeApart(frame, columns, plot.ratio), ` stroke-dasharray="3 3"`]] as const;
    for (const [name, values, dash] of lines) {
      if (this.isShown(name)) svg.path(stepPath(values, frame, plot.ratio), "none", colors.strong, dash);
    }
    const other = this.otherCurve();
    if (other) svg.path(stepPath(other, frame, plot.ratio), "none", colors.accent, ` stroke-dasharray="6 4"`);
    for (const { x, text, isAlarm, isLeft } of this.marks()) {
      const color = isAlarm ? colors.alarm : colors.text;
      svg.path(`M${n(x)} ${n(frame.top - 1)}l-5 -9h10z`, color);
      svg.text(x + (isLeft ? -8 : 8), frame.top - 3, text, color, 11, isLeft ? "end" : "start");
    }
    return svg;
  }
}

interface Mark {
  x: number;
  text: string;
  isAlarm: boolean;
  isLeft: boolean;
}

/** Labels to the right of their marks, or to the left where there is no room; where there is none, no label. */
function placeLabels(marks: { x: number; text: string; isAlarm: boolean }[], right: number): Mark[] {
  const taken: [number, number][] = [];
  // The peak comes first, then out-of-memory events as they happened.
  const ordered = [...marks].sort((a, b) => Number(a.isAlarm) - Number(b.isAlarm) || a.x - b.x);
  return ordered.map(({ x, text, isAlarm }) => {
    const width = text.length * 6.4 + 12;
    const isNear = (other: { x: number }) => other.x > x && other.x < x + width;
    const sides = marks.some(isNear) ? [true, false] : [false, true];
    for (const isLeft of sides) {
      const [from, to] = isLeft ? [x - width, x] : [x, x + width];
      if (from < 0 || to > right || taken.some(([a, b]) => a < to && b > from)) continue;
      taken.push([from, to]);
      return { x, text, isAlarm, isLeft };
    }
    return { x, text: "", isAlarm, isLeft: false };
  });
}

function isIn(bar: { x: number; y: number; width: number; height: number }, place: Place): boolean {
  return place.x >= bar.x && place.x <= bar.x + bar.width && place.y >= bar.y && place.y <= bar.y + bar.height + 2;
}

/** The height of a timeline: all that it shows. */
export function mostBytes(device: Device, state: State): number {
  const { facts } = device;
  let most = Math.max(1, facts.peak_bytes);
  if (!state.hidden.includes("active")) most = Math.max(most, facts.active_peak_bytes);
  if (!state.hidden.includes("reserved")) most = Math.max(most, facts.reserved_peak_bytes);
  return most;
}

/** Bytes by category after an event: exactly, or until the rows are there at the nearest known moment. */
export function composition(app: App, device: Device, event: number): { bytes: Float64Array; total: number } {
  const source = app.source(device);
  if (source.rows) {
    const walk = new Walk(source, event);
    return { bytes: walk.bytes, total: walk.total };
  }
  const { level } = device;
  const b = Math.floor(event / level.bin);
  if (event < 0 || b >= level.n) return { bytes: Float64Array.from(source.start), total: device.facts.start_bytes };
  return { bytes: Float64Array.from(level.atMax, (column) => column[b]), total: levelTotals(level).max[b] };
}

function bandPath(columns: PixelColumns, values: Float64Array, sums: Float64Array, category: number, frame: Frame, ratio: number): string {
  const k = columns.nCategories;
  const upper: string[] = [];
  const lower: string[] = [];
  let isEmpty = true;
  let before = "";
  for (let c = 0; c < columns.n; c++) {
    const value = Math.max(0, values[c * k + category]);
    const [low, high] = [yOf(frame, sums[c]), yOf(frame, sums[c] + value)];
    sums[c] += value;
    if (value > 0) isEmpty = false;
    const now = `${n(low)} ${n(high)}`;
    if (now === before && c < columns.n - 1) continue;
    const x = LEFT + c / ratio;
    const [lastLow, lastHigh] = before ? before.split(" ") : [n(low), n(high)];
    upper.push(`${n(x)} ${lastHigh}`, `${n(x)} ${n(high)}`);
    lower.push(`${n(x)} ${lastLow}`, `${n(x)} ${n(low)}`);
    before = now;
  }
  if (isEmpty) return "";
  const end = n(LEFT + columns.n / ratio);
  const [low, high] = before.split(" ");
  return `M${upper.join("L")}L${end} ${high}L${end} ${low}L${lower.reverse().join("L")}Z`;
}

function stepPath(values: Float64Array, frame: Frame, ratio: number): string {
  const parts: string[] = [];
  let last = "NaN";
  values.forEach((value, c) => {
    const y = n(yOf(frame, value));
    const x = n(LEFT + c / ratio);
    if (y === last) return;
    if (last !== "NaN") parts.push(`H${x}`);
    if (y !== "NaN") parts.push(last === "NaN" ? `M${x} ${y}` : `V${y}`);
    last = y;
  });
  return last === "NaN" ? parts.join("") : `${parts.join("")}H${n(LEFT + values.length / ratio)}`;
}

