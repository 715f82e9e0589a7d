// Light and dark: the style sheet has the colours, pictures on a canvas read them from there.

import { type Rgb, colorOf, mix, pixel, setDark } from "./colors.ts";

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
  setDark(current.isDark);
  return current;
}

let dark: CSSMediaRule | undefined;

/** Light or dark, whatever the system is: the style sheet has the dark colours in one rule, with its condition. */
export function setTheme(name: "light" | "dark"): void {
  const rules = [...document.styleSheets].flatMap((sheet) => [...sheet.cssRules]);
  dark ??= rules.find((rule) => rule instanceof CSSMediaRule && rule.media.mediaText.includes("dark")) as CSSMediaRule | undefined;
  if (dark) dark.media.mediaText = name === "dark" ? "all" : "not all";
  forgetTheme();
}

export function forgetTheme(): void {
  current = null;
  theme();
}

/** Pixels of categories: full, and light for what is reached only somewhere within a pixel. */
export function categoryPixels(categories: readonly string[]): { full: Uint32Array; light: Uint32Array } {
  const { background, isDark } = theme();
  return {
    full: Uint32Array.from(categories, (name) => pixel(colorOf(name))),
    light: Uint32Array.from(categories, (name) => pixel(mix(colorOf(name), background, isDark ? 0.5 : 0.45))),
  };
}
