// The largest allocations of the visible part as lifetimes x bytes; all others at the bottom, by category.

import type { App, Part } from "./app.ts";
import { type Rgb, colorOf, colorOfNumber, css, mix, pixel } from "./colors.ts";
import { type PixelColumns } from "./curves.ts";
import { choice, clear, el } from "./dom.ts";
import { counted, formatBytes, formatCount } from "./format.ts";
import { type Lifetimes, lifetimes, rowAt } from "./lifetimes.ts";
import { lifeText } from "./numbers.ts";
import { type Frame, bytesAt, drawByteAxis, drawPlaceAxis, placeTicks, yOf } from "./picture.ts";
import { LEFT, type Place, Plot, RIGHT } from "./plot.ts";
import { type Rows } from "./rows.ts";
import type { Coloring, State } from "./state.ts";
import { Svg } from "./svg.ts";
import { theme } from "./theme.ts";
import { innermost, placeOf, withoutFolders } from "./tree.ts";

const HEIGHT = 420;
const AXIS = 22;
const MOST = 1500;

export class AllocationsPart implements Part {
  readonly element: HTMLElement;
  private readonly plot: Plot;
  private readonly title = el("h3");
  private readonly hint = el("p", { class: "hint" });
  private readonly tip = el("div", { class: "tip" });
  private columns: PixelColumns | null = null;
  private found: Lifetimes | null = null;
  private most = 1;
  private readonly colorings;
  private numbers: { rows: Rows; coloring: Coloring; ofKind: Int32Array } | null = null;

  constructor(private readonly app: App) {
    this.plot = new Plot(
      "Lifetimes of the largest allocations",
      HEIGHT,
      () => app.view,
      {
        view: (from, to) => app.update({ from, to }),
        hover: (place) => this.hover(place),
        click: (place) => this.click(place),
      },
      () => this.draw(),
    );
    this.plot.overlay.addEventListener("keydown", (event) => this.walk(event));
    this.tip.hidden = true;
    const box = el("div", { class: "timeline" }, this.plot.element, this.tip);
    this.colorings = choice<Coloring>(
      "Colour by",
      [["category", "Category"], ["line", "Line"], ["stack", "Stack"]],
      () => app.state.coloring,
      (coloring) => app.update({ coloring }),
    );
    const bar = el("div", { class: "bar" }, this.title, el("div", { class: "spacer" }), el("span", { class: "muted", text: "colour by" }), this.colorings.element);
    this.element = el("div", { class: "allocations" }, bar, this.hint, box);
  }

  private get frame(): Frame {
    return { top: 6, bottom: HEIGHT - AXIS, most: this.most };
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    if (this.app.state.tab !== "allocations") return;
    this.colorings.update();
    const redraws = ["device", "axis", "from", "to", "data", "theme", "tab", "coloring"] as const;
    if (redraws.some((key) => changed.has(key))) this.draw();
    else if (changed.has("moment") || changed.has("row")) this.drawOverlay();
  }

  private draw(): void {
    const { app, plot } = this;
    const { rows } = app.device;
    if (!plot.width || app.state.tab !== "allocations") return;
    const context = plot.context(plot.base);
    if (!rows) {
      this.title.textContent = "Reading the allocations …";
      return;
    }
    const { from, to } = app.view;
    const columns = app.columns(app.device, Math.round(plot.plotWidth * plot.ratio));
    this.columns = columns;
    this.found = lifetimes(rows, columns, MOST);
    this.most = Math.max(1, columns.maxTotal.reduce((a, b) => Math.max(a, b), 0)) * 1.03;
    this.paint(rows, columns, this.found);
    drawByteAxis(context, plot, this.frame);
    drawPlaceAxis(context, plot, app.axis(), this.frame.bottom, from, to);
    this.describe(this.found);
    this.drawOverlay();
  }

  private describe(found: Lifetimes): void {
    const drawn = counted(found.rows.length, "allocation");
    const title = found.nLeftOut
      ? `The ${formatCount(found.rows.length)} largest of ${formatCount(found.rows.length + found.nLeftOut)} allocations in view`
      : `All ${drawn} in view`;
    if (title === this.title.textContent) return;
    this.title.textContent = title;
    const rest = `Pale, at the bottom: ${counted(found.nLeftOut, "smaller allocation")} by category; zoom in to see them.`;
    clear(this.hint, `Width is lifetime, height is bytes. ${found.nLeftOut ? rest : ""} Click one for its stack, or go up and down with the arrow keys.`);
  }

  /** The colour of an allocation; neighbours of one kind differ a little. */
  private colorOf(rows: Rows, row: number): Rgb {
    const { app } = this;
    const kind = rows.kindOf[row];
    const number = app.state.coloring === "category" ? -1 : this.numberOf(rows, kind);
    const color = number < 0 ? colorOf(app.page.categories[rows.kinds.category[kind]]) : colorOfNumber(number);
    return mix(color, theme().background, [1, 0.86, 0.93, 0.79][(row + (row >> 2)) & 3]);
  }

  /** The number of the line or stack of a kind of allocations, by first appearance. */
  private numberOf(rows: Rows, kind: number): number {
    const { coloring } = this.app.state;
    const { detail } = this.app.device;
    if (this.numbers?.rows !== rows || this.numbers.coloring !== coloring) {
      const known = new Map<string | number, number>();
      const ofStack = new Map<number, number>();
      const ofKind = Int32Array.from({ length: rows.kinds.n }, (_, i) => {
        const stack = rows.kinds.stack[i];
        let number = ofStack.get(stack);
        if (number === undefined) {
          const key = coloring === "stack" || !detail ? stack : innermost(rows, detail, stack);
          number = known.get(key) ?? known.size;
          known.set(key, number);
          ofStack.set(stack, number);
        }
        return number;
      });
      this.numbers = { rows, coloring, ofKind };
    }
    return this.numbers.ofKind[kind];
  }

  /** One pixel column after the other, bottom to top. */
  private paint(rows: Rows, columns: PixelColumns, found: Lifetimes): void {
    const { plot, frame, app } = this;
    const height = Math.round((frame.bottom - frame.top) * plot.ratio);
    const image = new ImageData(columns.n, height);
    const pixels = new Uint32Array(image.data.buffer);
    const scale = height / frame.most;
    const colors = theme();
    const { live, begin, end } = found;
    const bytes = Float64Array.from(found.rows, (row) => rows.kinds.bytes[rows.kindOf[row]] * scale);
    const rgb = Array.from(found.rows, (row) => this.colorOf(rows, row));
    const color = Uint32Array.from(rgb, pixel);
    const edge = Uint32Array.from(rgb, (one) => pixel(mix(one, colors.background, 0.5)));
    const categories = Int32Array.from(found.rows, (row) => rows.kinds.category[rows.kindOf[row]]);
    const pale = app.page.categories.map((name) => pixel(mix(colorOf(name), colors.background, 0.4)));
    const left = new Float64Array(pale.length);
    for (let c = 0; c < columns.n; c++) {
      if (c > 0 && columns.maxEvent[c] === columns.maxEvent[c - 1]) {
        for (let at = c; at < pixels.length; at += columns.n) pixels[at] = pixels[at - 1];
        continue;
      }
      let top = height;
      let from = height;
      let to = height;
      for (let i = 0; i < left.length; i++) left[i] = columns.atMax[c * left.length + i] * scale;
      for (let k = begin[c]; k < end[c]; k++) left[categories[live[k]]] -= bytes[live[k]];
      for (const category of app.order) {
        top -= Math.max(0, left[category]);
        to = top > 0 ? Math.round(top) : 0;
        for (let y = from - 1, at = y * columns.n + c; y >= to; y--, at -= columns.n) pixels[at] = pale[category];
        from = to;
      }
      top = height - found.rest[c] * scale;
      for (let k = begin[c]; k < end[c]; k++) {
        const i = live[k];
        top -= bytes[i];
        to = top > 0 ? Math.round(top) : 0;
        if (to === from) continue;
        for (let y = from - 1, at = y * columns.n + c; y >= to; y--, at -= columns.n) pixels[at] = color[i];
        if (from - to > 3) pixels[to * columns.n + c] = edge[i];
        from = to;
      }
    }
    plot.base.getContext("2d")?.putImageData(image, Math.round(LEFT * plot.ratio), Math.round(frame.top * plot.ratio));
  }

  private drawOverlay(): void {
    const { plot, app, columns, found, frame } = this;
    const { rows } = app.device;
    if (!plot.width || !columns || !found || !rows) return;
    const context = plot.context(plot.overlay);
    const colors = theme();
    const x = plot.xOf(app.axis().place(app.state.moment + 0.5));
    if (x >= LEFT && x <= plot.width - RIGHT) {
      context.fillStyle = colors.accent;
      context.fillRect(x - 1, 0, 2, frame.bottom);
    }
    const brush = plot.brushed;
    if (brush) {
      context.fillStyle = colors.accent;
      context.globalAlpha = 0.2;
      context.fillRect(Math.min(...brush), frame.top, Math.abs(brush[1] - brush[0]), frame.bottom - frame.top);
      context.globalAlpha = 1;
    }
    if (app.state.row >= 0) this.outline(context, rows, columns, found, app.state.row);
  }

  /** The edge of the chosen allocation. */
  private outline(context: CanvasRenderingContext2D, rows: Rows, columns: PixelColumns, found: Lifetimes, row: number): void {
    const { frame, plot } = this;
    const bytes = rows.kinds.bytes[rows.kindOf[row]];
    const points: [number, number][] = [];
    for (let c = 0; c < columns.n; c++) {
      let below = found.rest[c];
      for (let i = found.begin[c]; i < found.end[c]; i++) {
        const one = found.rows[found.live[i]];
        if (one === row) {
          points.push([LEFT + c / plot.ratio, below]);
          break;
        }
        below += rows.kinds.bytes[rows.kindOf[one]];
      }
    }
    if (!points.length) return;
    const step = 1 / plot.ratio;
    context.fillStyle = theme().text;
    context.globalAlpha = 0.25;
    for (const [x, below] of points) context.fillRect(x, yOf(frame, below + bytes), step, Math.max(1, yOf(frame, below) - yOf(frame, below + bytes)));
    context.globalAlpha = 1;
    for (const [x, below] of points) {
      context.fillRect(x, yOf(frame, below) - 1, step, 1.5);
      context.fillRect(x, yOf(frame, below + bytes), step, 1.5);
    }
  }

  private rowUnder(place: Place): number {
    const { columns, found, plot, app } = this;
    const { rows } = app.device;
    if (!columns || !found || !rows || place.x < LEFT || place.y > this.frame.bottom) return -1;
    const c = Math.max(0, Math.min(columns.n - 1, Math.floor((place.x - LEFT) * plot.ratio)));
    return rowAt(rows, found, c, bytesAt(this.frame, place.y));
  }

  private click(place: Place): void {
    const { columns, plot, app } = this;
    const row = this.rowUnder(place);
    if (row >= 0) app.update({ row });
    else if (columns && place.x >= LEFT) {
      const c = Math.max(0, Math.min(columns.n - 1, Math.floor((place.x - LEFT) * plot.ratio)));
      app.setMoment(columns.maxEvent[c]);
    }
  }

  /** Up and down choose the allocation above and below, where the chosen moment is, or else in the middle. */
  private walk(event: KeyboardEvent): void {
    const { columns, found, plot, app } = this;
    const step = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!step || !columns || !found) return;
    event.preventDefault();
    event.stopPropagation();
    const x = plot.xOf(app.axis().place(app.state.moment + 0.5));
    const isVisible = x >= LEFT && x <= plot.width - RIGHT;
    const c = isVisible ? Math.min(columns.n - 1, Math.floor((x - LEFT) * plot.ratio)) : columns.n >> 1;
    const stack = Array.from(found.live.subarray(found.begin[c], found.end[c]), (position) => found.rows[position]);
    if (!stack.length) return;
    const at = stack.indexOf(app.state.row);
    const next = at >= 0 ? at + step : step > 0 ? 0 : stack.length - 1;
    app.update({ row: stack[Math.max(0, Math.min(stack.length - 1, next))] });
  }

  private hover(place: Place | null): void {
    const { app, plot, tip } = this;
    this.drawOverlay();
    const row = place ? this.rowUnder(place) : -1;
    const { rows, detail } = app.device;
    tip.hidden = row < 0;
    if (row < 0 || !rows || !detail || !place) return;
    const kind = rows.kindOf[row];
    const name = rows.nameOf.get(row);
    const freed = rows.freed[row];
    clear(
      tip,
      el("div", { class: "tip-head", text: `${formatBytes(rows.kinds.bytes[kind])} ${app.page.categories[rows.kinds.category[kind]]}` }),
      name ? el("div", { text: name }) : null,
      el("div", { text: withoutFolders(placeOf(rows, detail, rows.kinds.stack[kind])) }),
      el("div", { class: "muted", text: lifeText(app.device.facts, rows.alloc[row], freed) }),
    );
    const width = tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(place.x + 16 + width > plot.width ? place.x - width - 16 : place.x + 16, plot.width - width))}px`;
    tip.style.top = `${Math.min(place.y + 12, HEIGHT - tip.offsetHeight - 4)}px`;
  }

  toSvg(): Svg {
    const { plot, frame, app, columns, found } = this;
    const { rows } = app.device;
    const colors = theme();
    const svg = new Svg(plot.width, HEIGHT, css(colors.background));
    if (!columns || !found || !rows) return svg;
    const step = 1 / plot.ratio;
    // Neighbouring columns in which an allocation lies at one height are one rectangle.
    const open = new Map<number, { from: number; below: number; until: number }>();
    const close = (position: number) => {
      const piece = open.get(position);
      if (!piece) return;
      open.delete(position);
      const row = position < 0 ? -1 : found.rows[position];
      const kind = row < 0 ? -1 : rows.kindOf[row];
      const bytes = row < 0 ? piece.below : rows.kinds.bytes[kind];
      const base = row < 0 ? 0 : piece.below;
      const color = row < 0 ? mix(colorOf("unknown"), colors.background, 0.4) : this.colorOf(rows, row);
      svg.rect(LEFT + piece.from * step, yOf(frame, base + bytes), (piece.until - piece.from) * step, yOf(frame, base) - yOf(frame, base + bytes), css(color));
    };
    const place = (position: number, below: number, c: number) => {
      const piece = open.get(position);
      if (piece && piece.below === below && piece.until === c) piece.until = c + 1;
      else {
        close(position);
        open.set(position, { from: c, below, until: c + 1 });
      }
    };
    for (let c = 0; c < columns.n; c++) {
      let below = found.rest[c];
      if (below > 0) place(-1, below, c);
      for (let i = found.begin[c]; i < found.end[c]; i++) {
        place(found.live[i], below, c);
        below += rows.kinds.bytes[rows.kindOf[found.rows[found.live[i]]]];
      }
    }
    for (const position of [...open.keys()]) close(position);
    for (const [x, text] of placeTicks(plot, app.axis(), app.view.from, app.view.to)) svg.text(x, frame.bottom + 15, text, colors.muted, 11, "middle");
    svg.text(LEFT, 12, this.title.textContent ?? "", colors.muted);
    return svg;
  }
}
