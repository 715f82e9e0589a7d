// What differs between two files: categories, lines and modules at the peak of each.

import type { App, Part } from "./app.ts";
import { colorOf, css } from "./colors.ts";
import { button, choice, clear, el, swatch } from "./dom.ts";
import { formatBytes } from "./format.ts";
import type { Device } from "./model.ts";
import { liveAt } from "./rows.ts";
import type { State } from "./state.ts";
import { NO_PYTHON, innermost } from "./tree.ts";

type By = "category" | "line" | "module";

interface Line {
  name: string;
  old: number;
  now: number;
}

export class ComparePart implements Part {
  readonly element: HTMLElement;
  private readonly pair: readonly [Device, Device];
  private readonly title = el("h3");
  private readonly box = el("div", { class: "table-box" });
  private readonly chooser;
  private by: By = "category";
  private shown = 60;

  constructor(private readonly app: App) {
    this.pair = [app.devices[0], app.devices[1]];
    this.chooser = choice<By>(
      "By",
      [["category", "Categories"], ["line", "Lines"], ["module", "Modules"]],
      () => this.by,
      (by) => {
        this.by = by;
        this.shown = 60;
        this.drawTable();
      },
    );
    this.element = el("div", { class: "compare" }, el("div", { class: "bar" }, this.title, el("div", { class: "spacer" }), this.chooser.element), this.box);
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    if (this.app.state.tab !== "compare") return;
    if (changed.has("data") || changed.has("tab")) this.drawTable();
  }

  private drawTable(): void {
    this.chooser.update();
    const [old, now] = this.pair;
    const change = now.facts.peak_bytes - old.facts.peak_bytes;
    this.title.textContent = `Peak ${formatBytes(old.facts.peak_bytes)} → ${formatBytes(now.facts.peak_bytes)} (${signed(change)})`;
    const lines = this.lines().sort((a, b) => Math.abs(b.now - b.old) - Math.abs(a.now - a.old) || b.now - a.now);
    const most = lines.reduce((largest, line) => Math.max(largest, Math.abs(line.now - line.old)), 1);
    const head = ["", "Old", "New", "Change"].map((text, i) => el("th", { class: ["t-name", "t-calls t-old", "t-calls", "t-change"][i], text: text || this.by.replace(/^./, (c) => c.toUpperCase()), attrs: { scope: "col" } }));
    const body = lines.slice(0, this.shown).map((line) => {
      const more = line.now - line.old;
      const width = (Math.abs(more) / most) * 50;
      const bar = el("span", { class: "change" }, el("span", { class: more > 0 ? "grown" : "shrunk", style: { width: `${width}%`, left: more > 0 ? "50%" : `${50 - width}%` } }));
      return el("tr", { attrs: { "data-name": line.name, "data-change": String(more) } }, el("td", { class: "t-name", title: line.name }, this.by === "category" ? swatch(css(colorOf(line.name))) : null, line.name), el("td", { class: "t-calls t-old", text: formatBytes(line.old) }), el("td", { class: "t-calls", text: formatBytes(line.now) }), el("td", { class: "t-change" }, bar, signed(more)));
    });
    const left = lines.length - body.length;
    const showMore = left > 0 ? button(`${left} more rows`, "Show more", () => {
      this.shown += 200;
      this.drawTable();
    }, "more") : null;
    clear(this.box, el("table", { class: "times-table" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)), showMore);
  }

  private lines(): Line[] {
    const [old, now] = this.pair.map((device) => this.held(device));
    return [...new Set([...old.keys(), ...now.keys()])].map((name) => ({ name, old: old.get(name) ?? 0, now: now.get(name) ?? 0 }));
  }

  /** Bytes at the peak of a device. */
  private held(device: Device): Map<string, number> {
    const { categories } = this.app.page;
    const found = new Map<string, number>();
    if (this.by === "category") {
      device.facts.peak_categories.forEach(([bytes], i) => bytes && found.set(categories[i], bytes));
      return found;
    }
    const { rows, detail } = device;
    if (!rows || !detail) return found;
    const live = liveAt(rows, device.facts.peak_event);
    for (let kind = 0; kind < rows.kinds.n; kind++) {
      if (!live.count[kind]) continue;
      const module = rows.kinds.module[kind] ? detail.modules[rows.kinds.module[kind] - 1] : "outside of modules";
      const name = this.by === "module" ? module : innermost(rows, detail, rows.kinds.stack[kind]) || NO_PYTHON;
      found.set(name, (found.get(name) ?? 0) + live.count[kind] * rows.kinds.bytes[kind]);
    }
    return found;
  }
}

function signed(bytes: number): string {
  return bytes === 0 ? "the same" : `${bytes > 0 ? "+" : "−"}${formatBytes(Math.abs(bytes))}`;
}
