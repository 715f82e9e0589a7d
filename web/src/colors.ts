// The colours of categories: the same in every picture, distinct for every kind of colour vision
// (web/test/pictures.test.ts has the distances), and in the order in which they are stacked.

export type Rgb = readonly [number, number, number];

/** Bottom to top: what lives long lies low. */
export const STACKED = [
  "weight",
  "optimizer_state",
  "gradient",
  "kv_cache",
  "input",
  "gathered_weight",
  "unreduced_gradient",
  "communication",
  "workspace",
  "activation",
  "temporary",
  "unknown",
] as const;

const COLORS: Record<string, Rgb> = {
  weight: [0x16, 0x48, 0x84],
  optimizer_state: [0x69, 0xb8, 0xe2],
  gradient: [0xec, 0xad, 0x28],
  kv_cache: [0x3a, 0x9b, 0x6c],
  input: [0xd8, 0xdf, 0x8a],
  gathered_weight: [0x50, 0x0a, 0xf0],
  unreduced_gradient: [0xc3, 0xf5, 0xc3],
  communication: [0x5a, 0x3d, 0x28],
  workspace: [0x8f, 0x62, 0xb8],
  activation: [0xcb, 0x58, 0x39],
  temporary: [0xed, 0xb0, 0xc8],
  unknown: [0x89, 0x8e, 0x95],
};

/** Those that are too dark on a dark page. */
const ON_DARK: Record<string, Rgb> = {
  weight: [0x3a, 0x6c, 0xe8],
  communication: [0x70, 0x4c, 0x3c],
};

export function colorOf(category: string, isDark = onDark): Rgb {
  return (isDark ? ON_DARK[category] : undefined) ?? COLORS[category] ?? COLORS["unknown"];
}

let onDark = false;

/** Choose the colours for a dark page, or for a light one. */
export function setDark(isDark: boolean): void {
  onDark = isDark;
}

/** A colour for a number, unlike those of its neighbours: for lines and stacks, of which there are many. */
export function colorOfNumber(number: number): Rgb {
  const hue = (number * 137.508) % 360;
  const light = 0.42 + 0.07 * (number % 4);
  const saturation = 0.55 * Math.min(light, 1 - light);
  const channel = (shift: number) => {
    const k = (shift + hue / 30) % 12;
    return Math.round(255 * (light - saturation * Math.max(-1, Math.min(k - 3, 9 - k, 1))));
  };
  return [channel(0), channel(8), channel(4)];
}

export function css([r, g, b]: Rgb): string {
  return `rgb(${Math.round(r)},${Math.round(g)},${Math.round(b)})`;
}

/** A colour over another one, as if it let `1 - share` of it through. */
export function mix(color: Rgb, under: Rgb, share: number): Rgb {
  return [0, 1, 2].map((i) => color[i] * share + under[i] * (1 - share)) as unknown as Rgb;
}

/** The colour of a category behind text: as strong as the contrast of the text allows. */
export function tintOf(category: string, background: Rgb, isDark: boolean): Rgb {
  return mix(colorOf(category, isDark), background, isDark ? 0.37 : 0.42);
}

/** As a pixel of ImageData on a little-endian machine. */
export function pixel([r, g, b]: Rgb): number {
  return ((255 << 24) | (Math.round(b) << 16) | (Math.round(g) << 8) | Math.round(r)) >>> 0;
}
