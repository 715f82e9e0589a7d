// The whole timeline in small, with the visible part as a window that can be moved, stretched and drawn anew.

import type { App, Part } from "./app.ts";
import { pixelColumns } from "./curves.ts";
import { el } from "./dom.ts";
import { LEFT, RIGHT } from "./plot.ts";
import type { State } from "./state.ts";
import { theme } from "./theme.ts";

const HEIGHT = 34;
const GRIP = 7;

export class Overview implements Part {
  readonly canvas = el("canvas", { attrs: { "aria-hidden": "true" } });
  readonly element = el("div", { class: "overview" }, this.canvas);
  private readonly whole = document.createElement("canvas");
  private key = "";
  private width = 0;
  private pressed: { kind: "move" | "from" | "to" | "new"; x: number; from: number; to: number } | null = null;

  constructor(private readonly app: App) {
    new ResizeObserver(() => {
      if (this.element.clientWidth !== this.width) this.draw();
    }).observe(this.element);
    this.canvas.addEventListener("pointerdown", (event) => this.press(event));
    this.canvas.addEventListener("pointermove", (event) => this.move(event));
    this.canvas.addEventListener("pointerup", () => (this.pressed = null));
    this.canvas.addEventListener("pointercancel", () => (this.pressed = null));
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    if (["device", "axis", "from", "to", "data", "theme"].some((key) => changed.has(key as keyof State))) this.draw();
  }

  private placeAt(x: number): number {
    const { low, high } = this.app.view;
    return low + ((x - LEFT) / (this.width - LEFT - RIGHT)) * (high - low);
  }

  private xOf(place: number): number {
    const { low, high } = this.app.view;
    return LEFT + ((place - low) / (high - low)) * (this.width - LEFT - RIGHT);
  }

  private draw(): void {
    this.width = this.element.clientWidth;
    if (!this.width) return;
    const { app, canvas, width } = this;
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(HEIGHT * ratio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${HEIGHT}px`;
    const context = canvas.getContext("2d") as CanvasRenderingContext2D;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const colors = theme();
    const { low, high, from, to } = app.view;
    const key = `${app.state.device} ${app.axis().kind} ${low} ${high} ${width} ${colors.muted}`;
    if (key !== this.key) this.paint(width, low, high, colors.muted);
    this.key = key;
    context.drawImage(this.whole, 0, 0);
    const [a, b] = [this.xOf(from), this.xOf(to)];
    context.globalAlpha = 0.16;
    context.fillStyle = colors.accent;
    context.fillRect(a, 0, b - a, HEIGHT);
    context.globalAlpha = 1;
    context.fillRect(a - 1, 0, 2, HEIGHT);
    context.fillRect(b - 1, 0, 2, HEIGHT);
    context.fillRect(a - 3, HEIGHT / 2 - 7, 6, 14);
    context.fillRect(b - 3, HEIGHT / 2 - 7, 6, 14);
  }

  /** The curve itself, which stays the same while the window moves. */
  private paint(width: number, low: number, high: number, color: string): void {
    const { app, whole } = this;
    [whole.width, whole.height] = [width, HEIGHT];
    const context = whole.getContext("2d") as CanvasRenderingContext2D;
    const n = Math.max(1, Math.round(width - LEFT - RIGHT));
    const columns = pixelColumns({ ...app.source(), rows: null }, app.axis(), low, high, n);
    const most = Math.max(1, app.device.facts.peak_bytes) * 1.05;
    context.fillStyle = color;
    for (const [values, alpha] of [[columns.maxTotal, 0.35], [columns.minTotal, 0.45]] as const) {
      context.globalAlpha = alpha;
      for (let c = 0; c < n; c++) {
        const height = (values[c] / most) * (HEIGHT - 4);
        context.fillRect(LEFT + c, HEIGHT - 2 - height, 1, height);
      }
    }
  }

  private xOfPointer(event: PointerEvent): number {
    return event.clientX - this.canvas.getBoundingClientRect().left;
  }

  private press(event: PointerEvent): void {
    const x = this.xOfPointer(event);
    const { from, to, low, high } = this.app.view;
    const [a, b] = [this.xOf(from), this.xOf(to)];
    const isAll = to - from >= (high - low) * 0.999;
    const kind = Math.abs(x - a) < GRIP ? "from" : Math.abs(x - b) < GRIP ? "to" : x > a && x < b && !isAll ? "move" : "new";
    this.canvas.setPointerCapture(event.pointerId);
    this.pressed = { kind, x, from, to };
  }

  private move(event: PointerEvent): void {
    const x = this.xOfPointer(event);
    const { pressed } = this;
    const { low, high, least } = this.app.view;
    if (!pressed) return;
    const clamp = (place: number) => Math.max(low, Math.min(high, place));
    let { from, to } = pressed;
    if (pressed.kind === "move") {
      const shift = Math.max(low - from, Math.min(high - to, this.placeAt(x) - this.placeAt(pressed.x)));
      from += shift;
      to += shift;
    } else if (pressed.kind === "from") from = Math.min(to - least, clamp(this.placeAt(x)));
    else if (pressed.kind === "to") to = Math.max(from + least, clamp(this.placeAt(x)));
    else [from, to] = [clamp(this.placeAt(Math.min(x, pressed.x))), clamp(this.placeAt(Math.max(x, pressed.x)))];
    if (to - from >= least) this.app.update({ from, to });
  }
}
