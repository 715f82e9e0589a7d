// The live allocations as a table: alike ones in one row, sorted by any column.

import type { App } from "./app.ts";
import { colorOf, css } from "./colors.ts";
import { button, clear, el, onEnter, swatch } from "./dom.ts";
import { counted, formatBytes, formatCount, formatShare } from "./format.ts";
import { type Live, isLive } from "./rows.ts";
import { sourceLink } from "./source.ts";
import { moduleTitle, placeOf, withoutFolders } from "./tree.ts";

type Key = "bytes" | "count" | "category" | "where" | "operation" | "module" | "tensor";

const COLUMNS: readonly (readonly [Key, string])[] = [
  ["bytes", "Bytes"],
  ["count", "Count"],
  ["category", "Category"],
  ["where", "Line"],
  ["operation", "Operation"],
  ["module", "Module"],
  ["tensor", "Tensor"],
];
const STEP = 25;

export class LiveTable {
  readonly element = el("div", { class: "table-box" });
  private live: Live | null = null;
  private kinds: readonly number[] = [];
  private names = new Map<number, string>();
  private whole = 0;
  private key: Key = "bytes";
  private isDown = true;
  private shown = STEP;

  constructor(private readonly app: App) {}

  show(live: Live, kinds: readonly number[], whole: number): void {
    this.live = live;
    this.kinds = kinds;
    this.whole = whole;
    this.shown = STEP;
    this.names = this.namesOf(live);
    this.draw();
  }

  mark(): void {
    const { row } = this.app.state;
    const kind = row >= 0 ? this.app.device.rows?.kindOf[row] : -1;
    for (const line of this.element.querySelectorAll<HTMLElement>("tbody tr")) {
      line.classList.toggle("chosen", line.dataset["kind"] === String(kind));
    }
  }

  /** The names of live tensors by their kinds. */
  private namesOf({ event }: Live): Map<number, string> {
    const { rows } = this.app.device;
    const all = new Map<number, string[]>();
    for (const [row, name] of rows?.nameOf ?? []) {
      if (!rows || !isLive(rows, row, event)) continue;
      const names = all.get(rows.kindOf[row]);
      if (names) names.push(name);
      else all.set(rows.kindOf[row], [name]);
    }
    return new Map([...all].map(([kind, names]) => [kind, names.length > 1 ? `${names[0]} and ${formatCount(names.length - 1)} more` : names[0]]));
  }

  /** What a column has of a kind: its number where that sorts, or its text. */
  private column(key: Key): (kind: number) => number | string {
    const { app, live, names } = this;
    const { rows, detail } = app.device;
    if (!rows || !detail || !live) return () => "";
    const { bytes, category, operation, module, stack } = rows.kinds;
    const { count } = live;
    if (key === "bytes") return (kind) => count[kind] * bytes[kind];
    if (key === "count") return (kind) => count[kind];
    if (key === "category") return (kind) => app.page.categories[category[kind]];
    if (key === "where") return (kind) => placeOf(rows, detail, stack[kind]);
    if (key === "operation") return (kind) => detail.operations[operation[kind] - 1] ?? "";
    if (key === "module") return (kind) => detail.modules[module[kind] - 1] ?? "";
    return (kind) => names.get(kind) ?? "";
  }

  private bytesOf(kind: number): number {
    return this.column("bytes")(kind) as number;
  }

  /** The first kinds in the chosen order: no more are sorted than are shown. */
  private firstKinds(): number[] {
    const sign = this.isDown ? -1 : 1;
    const [value, bytes] = [this.column(this.key), this.column("bytes") as (kind: number) => number];
    return firstOf(this.kinds, this.shown, (a, b) => {
      const [p, q] = [value(a), value(b)];
      return sign * (p < q ? -1 : p > q ? 1 : 0) || bytes(b) - bytes(a) || a - b;
    });
  }

  private draw(): void {
    const { key } = this;
    for (const name of ["operation", "module", "tensor"] as const) this.element.classList.toggle(`no-${name}`, !this.kinds.some(this.column(name)));
    const head = COLUMNS.map(([name, title]) => {
      const text = name === "module" ? moduleTitle(this.app.device.detail) : title;
      const mark = name === key ? (this.isDown ? " ↓" : " ↑") : "";
      const cell = el("th", { class: `c-${name}`, attrs: { scope: "col", "aria-sort": name !== key ? "none" : this.isDown ? "descending" : "ascending" } });
      cell.append(button(text + mark, `Sort by ${text.toLowerCase()}`, () => this.sortBy(name), "sort"));
      return cell;
    });
    const first = this.firstKinds();
    const body = first.map((kind) => this.rowOf(kind));
    const table = el("table", { class: "live-table" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
    const left = this.kinds.length - first.length;
    const rest = this.whole - first.reduce((sum, kind) => sum + this.bytesOf(kind), 0);
    const more = left
      ? button(`${counted(left, "more row")}, ${formatBytes(rest)}`, "Show more", () => {
          this.shown += 4 * STEP;
          this.draw();
        }, "more")
      : null;
    const empty = this.kinds.length ? null : el("p", { class: "empty", text: "Nothing is live here that fits the filter." });
    clear(this.element, table, more, empty);
    this.mark();
  }

  private sortBy(key: Key): void {
    this.isDown = key === this.key ? !this.isDown : key === "bytes" || key === "count";
    this.key = key;
    this.draw();
  }

  private rowOf(kind: number): HTMLElement {
    const { app } = this;
    const choose = () => app.update({ row: (this.live as Live).first[kind] });
    const bytes = this.bytesOf(kind);
    const [category, where, operation, module, tensor] = (["category", "where", "operation", "module", "tensor"] as const).map((key) => String(this.column(key)(kind)));
    const cells = [
      el("td", { class: "c-bytes", title: formatShare(bytes, this.whole), text: formatBytes(bytes) }),
      el("td", { class: "c-count", text: formatCount((this.live as Live).count[kind]) }),
      el("td", { class: "c-category" }, swatch(css(colorOf(category))), category),
      el("td", { class: "c-where", title: where }, sourceLink(app, where, withoutFolders(where)) ?? withoutFolders(where)),
      el("td", { class: "c-operation", title: operation, text: operation }),
      el("td", { class: "c-module", title: module, text: module }),
      el("td", { class: "c-tensor", title: tensor, text: tensor }),
    ];
    return el(
      "tr",
      {
        attrs: { tabindex: "0", "data-kind": String(kind), "data-bytes": String(bytes) },
        on: {
          click: choose,
          keydown: onEnter(choose),
        },
      },
      ...cells,
    );
  }
}

/** The first `n` of the items in an order, sorted: for few of many this is faster than to sort them all. */
export function firstOf(items: readonly number[], n: number, order: (a: number, b: number) => number): number[] {
  const first: number[] = [];
  for (const item of items) {
    if (first.length === n && order(item, first[n - 1]) >= 0) continue;
    let low = 0;
    for (let high = first.length; low < high; ) {
      const middle = (low + high) >> 1;
      if (order(first[middle], item) < 0) low = middle + 1;
      else high = middle;
    }
    first.splice(low, 0, item);
    if (first.length > n) first.pop();
  }
  return first;
}
