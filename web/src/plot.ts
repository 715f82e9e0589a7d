// A canvas with a horizontal axis that can be panned and zoomed, and a second one above it for what follows
// the pointer, so that the picture below is drawn only when it changes.

import { el } from "./dom.ts";

export interface Place {
  x: number;
  y: number;
}

export interface Listener {
  /** The visible part has changed: places of the axis. */
  view(from: number, to: number): void;
  hover(place: Place | null): void;
  click(place: Place): void;
}

export interface Range {
  from: number;
  to: number;
  low: number;
  high: number;
  /** The narrowest part that can be looked at. */
  least: number;
}

export const LEFT = 58;
export const RIGHT = 8;
const MOVED = 4;

export class Plot {
  readonly element: HTMLElement;
  readonly base = el("canvas");
  readonly overlay = el("canvas", { class: "overlay" });
  width = 0;
  height: number;
  ratio = 1;
  private pointers = new Map<number, Place>();
  private pressed: { place: Place; range: Range; isBrush: boolean; hasMoved: boolean } | null = null;
  private brush: [number, number] | null = null;
  private pointer: Place | null = null;

  constructor(
    label: string,
    height: number,
    private readonly range: () => Range,
    private readonly listener: Listener,
    private readonly redraw: () => void,
  ) {
    this.height = height;
    this.element = el("div", { class: "plot" }, this.base, this.overlay);
    this.overlay.tabIndex = 0;
    this.overlay.setAttribute("role", "img");
    this.overlay.setAttribute("aria-label", label);
    new ResizeObserver(() => this.resize()).observe(this.element);
    this.listen();
  }

  get plotWidth(): number {
    return Math.max(1, this.width - LEFT - RIGHT);
  }

  setHeight(height: number): void {
    if (height !== this.height) {
      this.height = height;
      this.width = 0;
      this.resize();
    }
  }

  private resize(): void {
    const width = this.element.clientWidth;
    const ratio = Math.min(2, window.devicePixelRatio || 1);
    if (!width || (width === this.width && ratio === this.ratio)) return;
    [this.width, this.ratio] = [width, ratio];
    this.element.style.height = `${this.height}px`;
    for (const canvas of [this.base, this.overlay]) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(this.height * ratio);
      canvas.style.width = `${width}px`;
      canvas.style.height = `${this.height}px`;
    }
    this.redraw();
  }

  context(canvas: HTMLCanvasElement): CanvasRenderingContext2D {
    const context = canvas.getContext("2d") as CanvasRenderingContext2D;
    context.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    context.clearRect(0, 0, this.width, this.height);
    if (canvas === this.base) context.font = "11px system-ui, sans-serif"; // a search for a font takes longer than lines
    return context;
  }

  placeAt(x: number): number {
    const { from, to } = this.range();
    return from + ((x - LEFT) / this.plotWidth) * (to - from);
  }

  xOf(place: number): number {
    const { from, to } = this.range();
    return LEFT + ((place - from) / (to - from)) * this.plotWidth;
  }

  /** The brushed part in pixels, while it is being drawn. */
  get brushed(): [number, number] | null {
    return this.brush;
  }

  private listen(): void {
    const { overlay } = this;
    const placeOf = (event: PointerEvent | MouseEvent): Place => {
      const box = overlay.getBoundingClientRect();
      return { x: event.clientX - box.left, y: event.clientY - box.top };
    };
    overlay.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      overlay.setPointerCapture(event.pointerId);
      this.pointers.set(event.pointerId, placeOf(event));
      this.pressed = { place: placeOf(event), range: { ...this.range() }, isBrush: event.shiftKey, hasMoved: this.pointers.size > 1 };
    });
    overlay.addEventListener("pointermove", (event) => {
      const place = placeOf(event);
      this.pointer = place;
      const before = this.pointers.get(event.pointerId);
      if (!before || !this.pressed) {
        this.listener.hover(place);
        return;
      }
      if (this.pointers.size === 2) this.pinch(event.pointerId, place);
      else this.drag(place);
      this.pointers.set(event.pointerId, place);
    });
    const release = (event: PointerEvent) => {
      const pressed = this.pressed;
      this.pointers.delete(event.pointerId);
      if (this.pointers.size) return;
      this.pressed = null;
      if (!pressed || event.type === "pointercancel") return;
      if (this.brush) {
        const [a, b] = this.brush.map((x) => this.placeAt(x)).sort((p, q) => p - q);
        this.brush = null;
        this.show(a, b);
      } else if (!pressed.hasMoved) this.listener.click(placeOf(event));
    };
    overlay.addEventListener("pointerup", release);
    overlay.addEventListener("pointercancel", release);
    overlay.addEventListener("pointerleave", () => {
      this.pointer = null;
      this.listener.hover(null);
    });
    overlay.addEventListener("dblclick", (event) => this.zoom(0.4, this.placeAt(placeOf(event).x)));
    overlay.addEventListener("wheel", (event) => this.wheel(event, placeOf(event)), { passive: false });
  }

  /** The place of the axis under the pointer; undefined where it is elsewhere. */
  get pointed(): number | undefined {
    return this.pointer ? this.placeAt(this.pointer.x) : undefined;
  }

  /** The wheel zooms a picture that was clicked, and any with Ctrl; else the page scrolls. */
  private wheel(event: WheelEvent, place: Place): void {
    const isAcross = event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY);
    const isZoom = event.ctrlKey || event.metaKey || event.altKey || (!isAcross && document.activeElement === this.overlay);
    const across = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (!isZoom && Math.abs(across) <= Math.abs(event.deltaY) && !event.shiftKey) return; // the page scrolls
    event.preventDefault();
    const scale = event.deltaMode === 1 ? 16 : 1;
    if (isZoom) this.zoom(Math.exp(Math.max(-120, Math.min(120, event.deltaY * scale)) * 0.004), this.placeAt(place.x));
    else this.pan((across * scale) / this.plotWidth);
  }

  private drag(place: Place): void {
    const pressed = this.pressed;
    if (!pressed) return;
    if (Math.abs(place.x - pressed.place.x) > MOVED) pressed.hasMoved = true;
    if (!pressed.hasMoved) return;
    if (pressed.isBrush) {
      this.brush = [pressed.place.x, place.x];
      this.listener.hover(place);
      return;
    }
    const { from, to } = pressed.range;
    const shift = ((pressed.place.x - place.x) / this.plotWidth) * (to - from);
    this.show(from + shift, to + shift);
  }

  private pinch(pointer: number, place: Place): void {
    const other = [...this.pointers].find(([id]) => id !== pointer)?.[1];
    const before = this.pointers.get(pointer);
    if (!other || !before) return;
    const was = Math.max(20, Math.abs(before.x - other.x));
    const now = Math.max(20, Math.abs(place.x - other.x));
    this.zoom(was / now, this.placeAt((place.x + other.x) / 2));
  }

  /** Make the visible part `factor` times as wide, around a place. */
  zoom(factor: number, around = (this.range().from + this.range().to) / 2): void {
    const { from, to, least, high, low } = this.range();
    const width = Math.min(high - low, Math.max(least, (to - from) * factor));
    const share = (around - from) / (to - from);
    this.show(around - share * width, around + (1 - share) * width);
  }

  pan(share: number): void {
    const { from, to } = this.range();
    this.show(from + share * (to - from), to + share * (to - from));
  }

  show(from: number, to: number): void {
    const { low, high, least } = this.range();
    const width = Math.min(high - low, Math.max(least, to - from));
    const middle = (from + to) / 2;
    const start = Math.max(low, Math.min(high - width, to - from < least ? middle - width / 2 : from));
    this.listener.view(start, start + width);
  }
}

/** Where the pointer is on a picture that follows the visible part of another one. */
export function clampX(x: number, width: number): number {
  return Math.max(LEFT, Math.min(width - RIGHT, x));
}
