// The allocator's map at the chosen moment: segments by pool and stream, blocks and holes to scale.

import type { App, Part } from "./app.ts";
import { colorOf, css, mix, pixel } from "./colors.ts";
import { clear, el, swatch } from "./dom.ts";
import { addressText } from "./detail.ts";
import { counted, formatBytes, formatShare } from "./format.ts";
import { momentText } from "./numbers.ts";
import { type Segment, type SegmentGroup, groupSegments, segmentsAt } from "./segments.ts";
import type { State } from "./state.ts";
import { Svg } from "./svg.ts";
import { theme } from "./theme.ts";
import { placeOf } from "./tree.ts";

const LINE = 18;
const GAP = 5;
const LINES = 18;

/** A stretch of a segment on one line of the map. */
interface Piece {
  segment: Segment;
  /** Bytes of the segment from and to. */
  from: number;
  to: number;
  x: number;
  y: number;
  isStart: boolean;
  isEnd: boolean;
}

/** The canvas of one group of segments, and what lies where on it. */
interface Picture {
  canvas: HTMLCanvasElement;
  segments: readonly Segment[];
  pieces: Piece[];
  bytesPerPixel: number;
  height: number;
  name: string;
}

export class MapPart implements Part {
  readonly element: HTMLElement;
  private readonly title = el("h3");
  private readonly groups = el("div", { class: "map-groups" });
  private readonly tip = el("div", { class: "tip" });
  private pictures: Picture[] = [];
  private width = 0;

  constructor(private readonly app: App) {
    this.tip.hidden = true;
    this.element = el(
      "div",
      { class: "map" },
      this.title,
      el("p", { class: "hint", text: "To scale: a block as wide as its bytes, segments one after the other, long ones over several lines. Grey is free." }),
      el("div", { class: "timeline" }, this.groups, this.tip),
    );
    new ResizeObserver(() => {
      if (this.groups.clientWidth !== this.width) this.draw();
    }).observe(this.groups);
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    if (this.app.state.tab !== "map") return;
    if (["device", "moment", "data", "theme", "tab"].some((key) => changed.has(key as keyof State))) this.draw();
    else if (changed.has("row")) this.pictures.forEach((picture) => this.paint(picture));
  }

  private draw(): void {
    const { app } = this;
    const { rows, segments, facts } = app.device;
    this.width = this.groups.clientWidth;
    if (app.state.tab !== "map" || !this.width) return;
    if (!rows || !segments) {
      this.title.textContent = "Reading the segments …";
      return;
    }
    const all = segmentsAt(segments, rows, app.state.moment);
    const groups = groupSegments(all, rows);
    const reserved = all.reduce((sum, segment) => sum + segment.bytes, 0);
    const used = all.reduce((sum, segment) => sum + segment.used, 0);
    const at = momentText(facts, app.state.moment);
    const peak = app.state.moment === facts.peak_event ? ", the peak" : "";
    this.title.textContent = `${formatBytes(reserved)} in ${counted(all.length, "segment")} ${at}${peak}; ${formatBytes(reserved - used)} of it free`;
    const longest = Math.max(1, reserved);
    const bytesPerPixel = Math.max(1, longest / (this.width * LINES));
    const focused = this.pictures.findIndex(({ canvas }) => canvas === document.activeElement);
    this.pictures = [];
    clear(this.groups, ...groups.map((group) => this.group(group, bytesPerPixel)));
    this.pictures[focused]?.canvas.focus(); // it was drawn anew, as for the room that details take
    if (!groups.length) clear(this.groups, el("p", { class: "empty", text: "The allocator holds no segment at this moment." }));
  }

  private name(group: SegmentGroup): string {
    const { detail } = this.app.device;
    const pool = detail?.pools[group.pool - 1];
    const parts = [pool ? `pool ${pool}` : "pool unknown", `stream ${detail?.streams[group.stream] ?? "unknown"}`];
    parts.push(group.isExpandable ? "expandable" : group.isSmall ? "small blocks" : "large blocks");
    return parts.join(", ");
  }

  private group(group: SegmentGroup, bytesPerPixel: number): HTMLElement {
    const canvas = el("canvas", { attrs: { role: "img", "aria-label": this.name(group) } });
    const pieces = flow(group.segments, this.width, bytesPerPixel);
    const height = pieces.reduce((most, piece) => Math.max(most, piece.y + LINE), 0);
    const picture = { canvas, segments: group.segments, pieces, bytesPerPixel, height, name: this.name(group) };
    canvas.tabIndex = 0;
    canvas.addEventListener("keydown", (event) => this.walk(event, picture));
    this.pictures.push(picture);
    this.paint(picture);
    canvas.addEventListener("pointermove", (event) => this.hover(event, picture));
    canvas.addEventListener("pointerleave", () => (this.tip.hidden = true));
    canvas.addEventListener("click", (event) => {
      const row = this.under(event, picture)?.row ?? -1;
      if (row >= 0) this.app.update({ row });
    });
    const facts = `${formatBytes(group.bytes)} in ${counted(group.segments.length, "segment")}, ${formatShare(group.used, group.bytes)} used, largest hole ${formatBytes(group.largestHole)}`;
    return el("div", { class: "map-group" }, el("div", { class: "map-name" }, el("b", { text: this.name(group) }), ` ${facts}`), canvas);
  }

  /** Arrows lead from block to block, and from segment to segment. */
  private walk(event: KeyboardEvent, { segments }: Picture): void {
    const steps: Record<string, number> = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -1, ArrowDown: 1 };
    const step = steps[event.key];
    const filled = segments.filter((segment) => segment.blocks.length);
    if (!step || !filled.length) return;
    event.preventDefault();
    event.stopPropagation();
    const { row } = this.app.state;
    const isAcross = event.key === "ArrowLeft" || event.key === "ArrowRight";
    const stops = filled.flatMap((segment) => (isAcross ? segment.blocks : segment.blocks.slice(0, 1)));
    const from = isAcross ? row : (filled.find((segment) => segment.blocks.includes(row))?.blocks[0] ?? -1);
    const at = stops.indexOf(from);
    const next = at >= 0 ? at + step : step > 0 ? 0 : stops.length - 1;
    this.app.update({ row: stops[Math.max(0, Math.min(stops.length - 1, next))] });
  }

  private paint({ canvas, pieces, bytesPerPixel, height }: Picture): void {
    const { rows } = this.app.device;
    if (!rows) return;
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    const [w, h] = [Math.max(1, Math.round(this.width * ratio)), Math.max(1, Math.round(height * ratio))];
    [canvas.width, canvas.height] = [w, h];
    canvas.style.width = `${this.width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d") as CanvasRenderingContext2D;
    const colors = theme();
    const image = new ImageData(w, h);
    const pixels = new Uint32Array(image.data.buffer);
    const free = pixel(colors.isDark ? mix([255, 255, 255], colors.background, 0.1) : mix([0, 0, 0], colors.background, 0.07));
    const category = this.app.page.categories.map((name) => pixel(colorOf(name)));
    const edge = this.app.page.categories.map((name) => pixel(mix(colorOf(name), colors.background, 0.55)));
    const chosen = pixel(colors.isDark ? [255, 255, 255] : [0, 0, 0]);
    const fill = (x0: number, x1: number, y: number, color: number) => {
      const [a, b] = [Math.max(0, Math.round(x0 * ratio)), Math.min(w, Math.round(x1 * ratio))];
      const [top, bottom] = [Math.round(y * ratio), Math.round((y + LINE) * ratio)];
      for (let row = top; row < bottom; row++) pixels.fill(color, row * w + a, row * w + b);
    };
    for (const piece of pieces) {
      const end = piece.x + (piece.to - piece.from) / bytesPerPixel;
      fill(piece.x, Math.max(end, piece.x + 1 / ratio), piece.y, free);
      for (const row of blocksBetween(piece, rows.addr, (row) => rows.kinds.bytes[rows.kindOf[row]])) {
        const offset = rows.addr[row] - piece.segment.addr;
        const bytes = rows.kinds.bytes[rows.kindOf[row]];
        const a = piece.x + (Math.max(offset, piece.from) - piece.from) / bytesPerPixel;
        const b = piece.x + (Math.min(offset + bytes, piece.to) - piece.from) / bytesPerPixel;
        const i = rows.kinds.category[rows.kindOf[row]];
        fill(a, b, piece.y, row === this.app.state.row ? chosen : category[i]);
        if (b - a > 3) fill(b - 1, b, piece.y, edge[i]);
      }
    }
    context.putImageData(image, 0, 0);
  }

  private under(event: MouseEvent, { canvas, pieces, bytesPerPixel }: Picture): { piece: Piece; row: number; hole: [number, number] | null } | null {
    const { rows } = this.app.device;
    if (!rows) return null;
    const box = canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    const piece = pieces.find((one) => y >= one.y && y < one.y + LINE && x >= one.x && x < one.x + Math.max(2, (one.to - one.from) / bytesPerPixel));
    if (!piece) return null;
    const offset = piece.from + (x - piece.x) * bytesPerPixel;
    let before = 0;
    for (const row of piece.segment.blocks) {
      const from = rows.addr[row] - piece.segment.addr;
      const to = from + rows.kinds.bytes[rows.kindOf[row]];
      if (offset < from) return { piece, row: -1, hole: [before, from] };
      if (offset < to) return { piece, row, hole: null };
      before = to;
    }
    return { piece, row: -1, hole: [before, piece.segment.bytes] };
  }

  private hover(event: PointerEvent, picture: Picture): void {
    const found = this.under(event, picture);
    const { rows, detail } = this.app.device;
    this.tip.hidden = !found;
    if (!found || !rows || !detail) return;
    const { segment } = found.piece;
    const place = `segment ${addressText(this.app.device, segment.addr)}, ${formatBytes(segment.bytes)}, ${formatShare(segment.used, segment.bytes)} used`;
    if (found.row >= 0) {
      const kind = rows.kindOf[found.row];
      const category = this.app.page.categories[rows.kinds.category[kind]];
      const isPending = rows.freed[found.row] <= this.app.state.moment;
      const name = rows.nameOf.get(found.row);
      clear(
        this.tip,
        el("div", { class: "tip-head" }, swatch(css(colorOf(category))), `${formatBytes(rows.kinds.bytes[kind])} ${category}${isPending ? ", freed but not yet free" : ""}`),
        name ? el("div", { text: name }) : null,
        el("div", { text: placeOf(rows, detail, rows.kinds.stack[kind]) }),
        el("div", { class: "muted", text: place }),
      );
    } else if (found.hole) {
      clear(this.tip, el("div", { class: "tip-head", text: `${formatBytes(found.hole[1] - found.hole[0])} free` }), el("div", { class: "muted", text: place }));
    }
    const box = (this.groups.parentElement as HTMLElement).getBoundingClientRect();
    const x = event.clientX - box.left;
    const width = this.tip.offsetWidth;
    this.tip.style.left = `${Math.max(0, Math.min(x + 14, this.width - width))}px`;
    this.tip.style.top = `${event.clientY - box.top + 16}px`;
  }

  toSvg(): Svg {
    const colors = theme();
    const { rows } = this.app.device;
    const height = this.pictures.reduce((sum, picture) => sum + picture.height + 30, 0);
    const svg = new Svg(this.width, Math.max(20, height), css(colors.background));
    let top = 0;
    for (const { pieces, bytesPerPixel, height, name } of this.pictures) {
      svg.text(0, top + 14, name, colors.text);
      for (const piece of pieces) {
        svg.rect(piece.x, top + 20 + piece.y, (piece.to - piece.from) / bytesPerPixel, LINE, css(colors.isDark ? mix([255, 255, 255], colors.background, 0.1) : mix([0, 0, 0], colors.background, 0.07)));
        if (!rows) continue;
        for (const row of blocksBetween(piece, rows.addr, (row) => rows.kinds.bytes[rows.kindOf[row]])) {
          const offset = rows.addr[row] - piece.segment.addr;
          const a = Math.max(offset, piece.from);
          const b = Math.min(offset + rows.kinds.bytes[rows.kindOf[row]], piece.to);
          const category = this.app.page.categories[rows.kinds.category[rows.kindOf[row]]];
          svg.rect(piece.x + (a - piece.from) / bytesPerPixel, top + 20 + piece.y, (b - a) / bytesPerPixel, LINE, css(colorOf(category)));
        }
      }
      top += height + 30;
    }
    return svg;
  }
}

function blocksBetween(piece: Piece, addr: Float64Array, bytesOf: (row: number) => number): number[] {
  return piece.segment.blocks.filter((row) => {
    const offset = addr[row] - piece.segment.addr;
    return offset < piece.to && offset + bytesOf(row) > piece.from;
  });
}

/** Segments one after the other on lines, as text flows. */
export function flow(segments: readonly Segment[], width: number, bytesPerPixel: number): Piece[] {
  const pieces: Piece[] = [];
  let x = 0;
  let y = 0;
  for (const segment of segments) {
    let from = 0;
    // A segment that would be cut for the sake of a few pixels begins a line of its own.
    if (x > 0 && x + segment.bytes / bytesPerPixel > width && (segment.bytes / bytesPerPixel < width / 3 || x > width - 20)) {
      x = 0;
      y += LINE + GAP;
    }
    while (from < segment.bytes) {
      const room = Math.max(1, width - x) * bytesPerPixel;
      const to = Math.min(segment.bytes, from + room);
      pieces.push({ segment, from, to, x, y, isStart: from === 0, isEnd: to === segment.bytes });
      x += (to - from) / bytesPerPixel + 2;
      from = to;
      if (x >= width - 2) {
        x = 0;
        y += LINE + GAP;
      }
    }
  }
  return pieces;
}
