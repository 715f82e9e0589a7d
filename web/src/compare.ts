// What differs between two files: categories, lines, modules and operations at the peak of each.

import type { App, Part } from "./app.ts";
import { colorOf, css, mix } from "./colors.ts";
import { button, choice, clear, el, swatch } from "./dom.ts";
import { type By, type DifferenceNode, buildDifference, peakPaths } from "./difference.ts";
import { formatBytes } from "./format.ts";
import { Icicle } from "./icicle.ts";
import type { ComparedRow, Comparison } from "./model.ts";
import type { State } from "./state.ts";
import { theme } from "./theme.ts";
import { withoutFolders } from "./tree.ts";

const NAMES: readonly (readonly [By, string])[] = [
  ["category", "Categories"],
  ["line", "Lines"],
  ["module", "Modules"],
  ["operation", "Operations"],
];
const FIRST = 60;
const HINT = "As wide as the larger of both peaks; red is more in the new file, blue less, grey the same. The callers are functions, as lines move.";

export class ComparePart implements Part {
  readonly element: HTMLElement;
  private readonly title = el("h3");
  private readonly box = el("div", { class: "table-box" });
  private readonly chooser;
  private by: By = "category";
  private shown = FIRST;
  private readonly icicle = new Icicle<DifferenceNode>("Difference of the peaks", {
    text: (node) => `${withoutFolders(labelOf(node))} · ${signed(node.now - node.old)}`,
    title: (node) => `${labelOf(node)}\n${formatBytes(node.old)} → ${formatBytes(node.now)} (${signed(node.now - node.old)})`,
    background: (node) => changeColor(node),
    choose: (node) => this.icicle.show(node),
  });

  constructor(private readonly app: App) {
    const { comparison } = app.page;
    this.chooser = choice<By>(
      "By",
      NAMES.filter(([by]) => comparison?.[by].length),
      () => this.by,
      (by) => {
        this.by = by;
        this.shown = FIRST;
        this.draw();
      },
    );
    this.element = el("div", { class: "compare" }, el("div", { class: "bar" }, this.title, el("div", { class: "spacer" }), this.chooser.element), el("p", { class: "hint", text: HINT }), this.icicle.element, this.box);
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    if (this.app.state.tab !== "compare") return;
    if (changed.has("data") || changed.has("tab") || changed.has("theme")) this.draw();
  }

  private draw(): void {
    const [old, now] = this.app.devices.map((device) => device.facts.peak_bytes);
    this.title.textContent = `Peak ${formatBytes(old)} → ${formatBytes(now)} (${signed(now - old)})`;
    const { comparison } = this.app.page;
    this.chooser.update();
    if (!comparison) clear(this.box, el("p", { class: "empty", text: "The two devices are of different kinds: nothing of them can be compared." }));
    else clear(this.box, ...this.table(comparison[this.by]), this.settings(comparison));
    this.drawDifference(comparison);
  }

  /** Both peaks as one tree, when all of both files is read. */
  private drawDifference(comparison: Comparison | null | undefined): void {
    const { app } = this;
    const [old, now] = app.devices;
    if (!comparison || !old.rows || !now.rows) return;
    const paths = [peakPaths(app, old, this.by, comparison.moved), peakPaths(app, now, this.by, null)] as const;
    this.icicle.show(buildDifference(...paths));
  }

  private table(rows: readonly ComparedRow[]): (HTMLElement | null)[] {
    const most = rows.reduce((largest, [, old, now]) => Math.max(largest, Math.abs(now - old)), 1);
    const head = ["", "Old", "New", "Change"].map((text, i) => el("th", { class: ["t-name", "t-calls t-old", "t-calls", "t-change"][i], text: text || this.by.replace(/^./, (c) => c.toUpperCase()), attrs: { scope: "col" } }));
    const body = rows.slice(0, this.shown).map((row) => this.rowOf(row, most));
    const left = rows.length - body.length;
    const showMore = left > 0 ? button(`${left} more rows`, "Show more", () => {
      this.shown += 200;
      this.draw();
    }, "more") : null;
    return [el("table", { class: "times-table" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)), showMore];
  }

  private rowOf([name, old, now, difference]: ComparedRow, most: number): HTMLElement {
    const more = now - old;
    const width = (Math.abs(more) / most) * 50;
    const bar = el("span", { class: "change" }, el("span", { class: more > 0 ? "grown" : "shrunk", style: { width: `${width}%`, left: more > 0 ? "50%" : `${50 - width}%` } }));
    const isOneSided = difference === "appeared" || difference === "gone";
    return el(
      "tr",
      { attrs: { "data-name": name, "data-change": String(more) } },
      el("td", { class: "t-name", title: name }, this.by === "category" ? swatch(css(colorOf(name))) : null, name, isOneSided ? el("span", { class: "became", text: difference }) : null),
      el("td", { class: "t-calls t-old", text: formatBytes(old) }),
      el("td", { class: "t-calls", text: formatBytes(now) }),
      el("td", { class: "t-change" }, bar, signed(more)),
    );
  }

  private settings({ settings }: Comparison): HTMLElement | null {
    if (!settings.length) return null;
    const text = (value: string) => value || "not recorded";
    const items = settings.map(([name, old, now]) => el("tr", {}, el("th", { text: name }), el("td", { text: `${text(old)} → ${text(now)}` })));
    return el("div", { class: "differing" }, el("h4", { text: "Settings that differ" }), el("table", {}, ...items));
  }
}

function labelOf(node: DifferenceNode): string {
  return node.parent ? node.label : "all that is live at the peak";
}

const [GROWN, SHRUNK, SAME] = [[212, 96, 63], [47, 127, 191], [128, 128, 128]] as const;

/** The more of a node has changed, the stronger its colour. */
function changeColor(node: DifferenceNode): string {
  const { background, isDark } = theme();
  const share = (node.now - node.old) / Math.max(1, node.bytes);
  if (!share) return css(mix(SAME, background, 0.25));
  return css(mix(share > 0 ? GROWN : SHRUNK, background, (0.2 + 0.5 * Math.abs(share)) * (isDark ? 1 : 0.85)));
}

function signed(bytes: number): string {
  return bytes === 0 ? "the same" : `${bytes > 0 ? "+" : "−"}${formatBytes(Math.abs(bytes))}`;
}
