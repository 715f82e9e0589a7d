// Numbers as a person reads them; the same words as snapconv/units.py.

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];

export function formatBytes(bytes: number): string {
  let power = 0;
  for (let scale = Math.abs(bytes); scale >= 1024 && power < UNITS.length - 1; scale /= 1024) power++;
  return power === 0 ? `${Math.round(bytes)} B` : `${(bytes / 1024 ** power).toFixed(2)} ${UNITS[power]}`;
}

/** A byte count for an axis: as few digits as it needs. */
export function formatTick(bytes: number): string {
  let power = 0;
  for (let scale = Math.abs(bytes); scale >= 1024 && power < UNITS.length - 1; scale /= 1024) power++;
  return `${Number((bytes / 1024 ** power).toPrecision(4))} ${UNITS[power]}`;
}

export function formatCount(n: number): string {
  return String(Math.round(n)).replace(/\B(?=(\d{3})+$)/g, ",");
}

export function counted(n: number, noun: string): string {
  return `${formatCount(n)} ${noun}${n === 1 ? "" : "s"}`;
}

export function formatShare(part: number, whole: number): string {
  const share = (whole ? (100 * part) / whole : 0).toFixed(1);
  return part && share === "0.0" ? "< 0.1 %" : `${share} %`;
}

export function formatMicroseconds(us: number): string {
  const size = Math.abs(us);
  if (size < 1e3) return `${Math.round(us)} µs`;
  if (size < 1e6) return `${Number((us / 1e3).toPrecision(4))} ms`;
  if (size < 120e6) return `${Number((us / 1e6).toPrecision(4))} s`;
  return `${Number((us / 60e6).toPrecision(4))} min`;
}

export function formatMilliseconds(ms: number): string {
  return ms >= 100 ? `${ms.toFixed(0)} ms` : `${ms.toFixed(ms >= 10 ? 1 : 2)} ms`;
}

/** Round steps for an axis: at most about `most` of them. */
export function ticks(low: number, high: number, most: number): number[] {
  const rough = (high - low) / Math.max(1, most);
  if (!(rough > 0)) return [];
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((k) => k * power).find((s) => s >= rough) ?? rough;
  const found = [];
  for (let k = Math.ceil(low / step); k * step <= high; k++) found.push(k * step);
  return found;
}

/** Steps that are round in the unit of the largest: 10 GiB, 20 GiB. */
export function byteTicks(high: number, most: number): number[] {
  let unit = 1;
  while (high / unit >= 1024) unit *= 1024;
  return ticks(0, high / unit, most).map((value) => value * unit);
}
