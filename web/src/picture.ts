// What pictures with a horizontal axis share: axes, marks, and stacks written as pixels.

import type { Axis } from "./axis.ts";
import type { PixelColumns } from "./curves.ts";
import { byteTicks, formatCount, formatMicroseconds, formatTick, ticks } from "./format.ts";
import { LEFT, type Plot, RIGHT } from "./plot.ts";
import { theme } from "./theme.ts";

export interface Frame {
  top: number;
  bottom: number;
  /** Bytes at the top. */
  most: number;
}

export function yOf(frame: Frame, bytes: number): number {
  return frame.bottom - (bytes / frame.most) * (frame.bottom - frame.top);
}

export function bytesAt(frame: Frame, y: number): number {
  return ((frame.bottom - y) / (frame.bottom - frame.top)) * frame.most;
}

/** Write stacks into the plot's pixels: what is always reached within a pixel full, up to the most light. */
export function paintStacks(
  plot: Plot,
  frame: Frame,
  columns: PixelColumns,
  order: readonly number[],
  colors: { full: Uint32Array; light: Uint32Array },
): void {
  const { ratio } = plot;
  const height = Math.max(1, Math.round((frame.bottom - frame.top) * ratio));
  const image = new ImageData(columns.n, height);
  const pixels = new Uint32Array(image.data.buffer);
  const scale = height / frame.most;
  const k = columns.nCategories;
  const fill = (values: Float64Array, palette: Uint32Array) => {
    for (let c = 0; c < columns.n; c++) {
      let sum = 0;
      let from = height;
      for (const i of order) {
        const value = values[c * k + i];
        if (value <= 0) continue;
        sum += value;
        const to = Math.max(0, Math.round(height - sum * scale));
        for (let y = from - 1, at = (from - 1) * columns.n + c; y >= to; y--, at -= columns.n) pixels[at] = palette[i];
        from = to;
      }
    }
  };
  fill(columns.atMax, colors.light);
  fill(columns.atMin, colors.full);
  plot.base.getContext("2d")?.putImageData(image, Math.round(LEFT * ratio), Math.round(frame.top * ratio));
}

export function drawByteAxis(context: CanvasRenderingContext2D, plot: Plot, frame: Frame): void {
  const colors = theme();
  context.textAlign = "right";
  context.textBaseline = "middle";
  const most = Math.max(2, Math.floor((frame.bottom - frame.top) / 44));
  for (const value of byteTicks(frame.most, most)) {
    const y = Math.round(yOf(frame, value)) + 0.5;
    context.strokeStyle = colors.overlay;
    context.beginPath();
    context.moveTo(LEFT, y);
    context.lineTo(plot.width - RIGHT, y);
    context.stroke();
    context.fillStyle = colors.muted;
    context.fillText(formatTick(value), LEFT - 6, y);
  }
}

export function drawPlaceAxis(context: CanvasRenderingContext2D, plot: Plot, axis: Axis, y: number, from: number, to: number): void {
  const colors = theme();
  context.fillStyle = colors.muted;
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const [x, text] of placeTicks(plot, axis, from, to)) {
    context.fillRect(Math.round(x), y, 1, 4);
    context.fillText(text, x, y + 6);
  }
}

export function placeTicks(plot: Plot, axis: Axis, from: number, to: number): [number, string][] {
  const most = Math.max(2, Math.floor(plot.plotWidth / 110));
  const found: [number, string][] = [];
  for (const value of ticks(axis.first + from, axis.first + to, most)) {
    const x = plot.xOf(value - axis.first);
    if (x < LEFT || x > plot.width - RIGHT - 16) continue;
    if (axis.kind === "time") found.push([x, formatMicroseconds(value)]);
    else if (axis.kind === "iteration") found.push([x, Number.isInteger(value) ? `iteration ${value}` : String(Number(value.toFixed(4)))]);
    else if (Number.isInteger(value)) found.push([x, formatCount(value)]);
  }
  return found;
}

/** A line over the columns that goes up and down in steps; with gaps where a value is NaN. */
export function drawSteps(context: CanvasRenderingContext2D, frame: Frame, values: Float64Array, ratio: number): void {
  context.beginPath();
  let last = NaN;
  for (let c = 0; c < values.length; c++) {
    const y = yOf(frame, values[c]);
    if (y === last) continue;
    const x = LEFT + c / ratio;
    if (!Number.isNaN(last)) context.lineTo(x, last);
    if (!Number.isNaN(y)) {
      if (Number.isNaN(last)) context.moveTo(x, y);
      else context.lineTo(x, y);
    }
    last = y;
  }
  if (!Number.isNaN(last)) context.lineTo(LEFT + values.length / ratio, last);
  context.stroke();
}

/** Active bytes where they are seen apart from the allocated ones, by some pixels each way; NaN elsewhere. */
export function activeApart(frame: Frame, columns: PixelColumns, ratio: number): Float64Array {
  const least = (3 * frame.most) / (frame.bottom - frame.top);
  const found = columns.active.map((bytes, c) => (bytes - columns.maxTotal[c] >= least ? bytes : NaN));
  for (let c = 0, from = 0; c <= found.length; c++) {
    if (c < found.length && !Number.isNaN(found[c])) continue;
    if (c - from < 4 * ratio) found.fill(NaN, from, c);
    from = c + 1;
  }
  return found;
}
