// Light and dark: the style sheet has the colours, pictures on a canvas read them from there.

import { type Rgb, colorOf, mix, pixel } from "./colors.ts";

export interface Theme {
  isDark: boolean;
  background: Rgb;
  text: string;
  muted: string;
  grid: string;
  overlay: string;
  accent: string;
  alarm: string;
  band: string;
  strong: string;
}

let current: Theme | null = null;

export function theme(): Theme {
  if (current) return current;
  const style = getComputedStyle(document.documentElement);
  const value = (name: string) => style.getPropertyValue(name).trim();
  const hex = value("--surface");
  current = {
    isDark: value("--is-dark") === "1",
    background: [1, 3, 5].map((i) => parseInt(hex.slice(i, i + 2), 16)) as unknown as Rgb,
    text: value("--text"),
    muted: value("--muted"),
    grid: value("--grid"),
    overlay: value("--overlay-grid"),
    accent: value("--accent"),
    alarm: value("--alarm"),
    band: value("--band"),
    strong: value("--strong"),
  };
  return current;
}

export function setTheme(name: "light" | "dark" | "auto"): void {
  if (name === "auto") document.documentElement.removeAttribute("data-theme");
  else document.documentElement.setAttribute("data-theme", name);
  current = null;
}

export function forgetTheme(): void {
  current = null;
}

/** Pixels of categories: full, and light for what is reached only somewhere within a pixel. */
export function categoryPixels(categories: readonly string[]): { full: Uint32Array; light: Uint32Array } {
  const { background, isDark } = theme();
  return {
    full: Uint32Array.from(categories, (name) => pixel(colorOf(name))),
    light: Uint32Array.from(categories, (name) => pixel(mix(colorOf(name), background, isDark ? 0.5 : 0.45))),
  };
}
