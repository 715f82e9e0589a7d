// Totals of a range of events: what was allocated, freed and kept in it, by category, line, operation or module.

import type { App, Part } from "./app.ts";
import { colorOf, css } from "./colors.ts";
import { button, choice, clear, el, swatch } from "./dom.ts";
import { counted, formatBytes } from "./format.ts";
import type { Detail, Device } from "./model.ts";
import { eventText, iterationText } from "./numbers.ts";
import type { Rows } from "./rows.ts";
import type { State } from "./state.ts";
import { hasCallPaths, moduleOf, moduleTitle, operationOf, placeOf } from "./tree.ts";

type By = "category" | "line" | "operation" | "module";
type Figure = "allocated" | "freed" | "kept";

/** Bytes that were allocated in the range, freed in it, and allocated in it and live after it. */
export interface Totals {
  allocated: number;
  freed: number;
  kept: number;
  nAllocated: number;
  nFreed: number;
  nKept: number;
}

const NAMES: readonly (readonly [By, string])[] = [
  ["category", "Categories"],
  ["line", "Lines"],
  ["operation", "Operations"],
  ["module", "Modules"],
];
const FIGURES: readonly (readonly [Figure, string, string])[] = [
  ["allocated", "Allocated", "Allocated in the range"],
  ["freed", "Freed", "Freed in the range, whenever it was allocated"],
  ["kept", "Kept", "Allocated in the range and live after it"],
];
const FIRST = 60;

export function noTotals(): Totals {
  return { allocated: 0, freed: 0, kept: 0, nAllocated: 0, nFreed: 0, nKept: 0 };
}

/** The totals of every kind that the range changes, by the number of the kind; both events are in it. */
export function rangeTotals(rows: Rows, first: number, last: number): Map<number, Totals> {
  const found = new Map<number, Totals>();
  const { alloc, freed, kinds } = rows;
  for (let kind = 0; kind < kinds.n; kind++) {
    const bytes = kinds.bytes[kind];
    const totals = noTotals();
    for (let row = kinds.first[kind]; row < kinds.first[kind + 1]; row++) {
      const isFreed = freed[row] >= first && freed[row] <= last;
      if (isFreed) totals.nFreed++;
      if (alloc[row] < first || alloc[row] > last) continue;
      totals.nAllocated++;
      if (!isFreed) totals.nKept++;
    }
    if (!totals.nAllocated && !totals.nFreed) continue;
    [totals.allocated, totals.freed, totals.kept] = [totals.nAllocated * bytes, totals.nFreed * bytes, totals.nKept * bytes];
    found.set(kind, totals);
  }
  return found;
}

export function addTotals(sum: Totals, more: Totals): void {
  for (const key of Object.keys(sum) as (keyof Totals)[]) sum[key] += more[key];
}

/** The events of the chosen range, or else of the visible part. */
export function chosenRange(app: App): [number, number] {
  const { range } = app.state;
  if (range.length) return [range[0], range[1]];
  const axis = app.axis();
  const { from, to } = app.view;
  const last = app.device.facts.n_events - 1;
  return [Math.max(0, axis.eventAt(from)), Math.min(last, Math.max(0, axis.eventAt(to - (to - from) * 1e-9)))];
}

/** The name of a range that the file has: an iteration, or an annotated range. */
function nameOf({ facts, spans }: Device, first: number, last: number): string {
  const its = spans.iterationFirst;
  const iteration = its.indexOf(first);
  if (its.length > 1 && iteration >= 0 && (its[iteration + 1] ?? facts.n_events) === last + 1) return iterationText(facts, iteration);
  const span = spans.spanFirst.findIndex((event, i) => event === first && event + spans.spanLength[i] === last);
  return span >= 0 ? facts.span_names[spans.spanName[span]] : "";
}

export function rangeText(app: App): string {
  const [first, last] = chosenRange(app);
  const name = app.state.range.length ? nameOf(app.device, first, last) : "the visible part";
  const { facts } = app.device;
  return `${name ? `${name}, ` : ""}events ${eventText(facts, first)} to ${eventText(facts, last)}`;
}

export class RangePart implements Part {
  readonly element: HTMLElement;
  private readonly title = el("h3");
  private readonly hint = el("p", { class: "hint" });
  private readonly box = el("div", { class: "table-box" });
  private by: By = "line";
  private key: Figure = "allocated";
  private readonly chooser;
  private whole = noTotals();
  private lines: [string, Totals][] = [];

  constructor(private readonly app: App) {
    this.chooser = choice<By>("By", NAMES, () => this.by, (by) => {
      this.by = by;
      this.draw();
    });
    this.element = el("div", { class: "range" }, el("div", { class: "bar" }, this.title, el("div", { class: "spacer" }), this.chooser.element), this.hint, this.box);
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    if (this.app.state.tab !== "range") return;
    const keys = ["device", "range", "from", "to", "axis", "data", "tab", "theme"] as const;
    if (keys.some((key) => changed.has(key))) this.draw();
  }

  private draw(): void {
    const { app } = this;
    const { rows, detail } = app.device;
    this.chooser.update();
    if (!rows || !detail) {
      this.title.textContent = "Reading the allocations …";
      return;
    }
    this.chooser.rename("module", hasCallPaths(detail) ? "Call paths" : "Modules");
    this.sumUp(rows, detail);
    const { whole } = this;
    const figures = FIGURES.map(([key, name]) => `${formatBytes(whole[key])} ${name.toLowerCase()}`);
    this.title.textContent = `${rangeText(app)}: ${figures.join(", ")}`.replace(/^./, (letter) => letter.toUpperCase());
    const isChosen = app.state.range.length > 0;
    const zoom = () => app.reveal(...chosenRange(app), true);
    clear(
      this.hint,
      isChosen ? null : "A click on an iteration, a phase or a named range above the timeline chooses it, and so do the keys I, comma and full stop. ",
      isChosen ? button("zoom to it", "", zoom, "link") : null,
      isChosen ? " · " : null,
      isChosen ? button("the visible part instead", "Esc", () => app.update({ range: [] }), "link") : null,
    );
    clear(this.box, ...this.table());
  }

  private sumUp(rows: Rows, detail: Detail): void {
    const sums = new Map<string, Totals>();
    this.whole = noTotals();
    for (const [kind, totals] of rangeTotals(rows, ...chosenRange(this.app))) {
      const name = this.nameOfKind(rows, detail, kind);
      let sum = sums.get(name);
      if (!sum) sums.set(name, (sum = noTotals()));
      addTotals(sum, totals);
      addTotals(this.whole, totals);
    }
    this.lines = [...sums].sort(([a, x], [b, y]) => y[this.key] - x[this.key] || y.allocated - x.allocated || (a < b ? -1 : 1));
  }

  private nameOfKind(rows: Rows, detail: Detail, kind: number): string {
    if (this.by === "category") return this.app.page.categories[rows.kinds.category[kind]];
    if (this.by === "operation") return operationOf(rows, detail, kind);
    if (this.by === "module") return moduleOf(rows, detail, kind);
    return placeOf(rows, detail, rows.kinds.stack[kind]);
  }

  private byText(): string {
    if (this.by === "module") return moduleTitle(this.app.device.detail);
    return this.by.replace(/^./, (letter) => letter.toUpperCase());
  }

  private table(): (HTMLElement | null)[] {
    const head = FIGURES.map(([key, name, title]) => {
      const isKey = key === this.key;
      const sort = button(`${name}${isKey ? " ↓" : ""}`, title, () => {
        this.key = key;
        this.draw();
      }, "sort");
      return el("th", { class: "t-calls", attrs: { scope: "col", "aria-sort": isKey ? "descending" : "none" } }, sort);
    });
    const name = el("th", { class: "t-name", text: this.byText(), attrs: { scope: "col" } });
    const body = this.lines.slice(0, FIRST).map((line) => this.rowOf(...line));
    const left = this.lines.length - body.length;
    return [
      el("table", { class: "times-table" }, el("thead", {}, el("tr", {}, name, ...head)), el("tbody", {}, ...body)),
      left > 0 ? el("p", { class: "hint", text: counted(left, "more row") }) : null,
      body.length ? null : el("p", { class: "empty", text: "Nothing is allocated or freed here." }),
    ];
  }

  /** A row; its name leads to what of it is live at the range's end. */
  private rowOf(name: string, totals: Totals): HTMLElement {
    const { app } = this;
    const query = /^(.*:\d+)( in |$)/.exec(name)?.[1] ?? name;
    const show = () => app.update({ tab: "live", moment: chosenRange(app)[1], focus: [], query });
    const counts = { allocated: totals.nAllocated, freed: totals.nFreed, kept: totals.nKept };
    return el(
      "tr",
      { attrs: { "data-name": name } },
      el("td", { class: "t-name", title: name }, this.by === "category" ? swatch(css(colorOf(name))) : null, button(name, "Show what of it is live at the range's end", show, "link")),
      ...FIGURES.map(([key]) => el("td", { class: "t-calls", title: counted(counts[key], "allocation"), text: formatBytes(totals[key]), attrs: { "data-bytes": String(totals[key]) } })),
    );
  }
}
