// The live allocations as a table: alike ones in one row, sorted by any column.

import type { App } from "./app.ts";
import { colorOf, css } from "./colors.ts";
import { button, clear, el, onEnter, swatch } from "./dom.ts";
import { counted, formatBytes, formatCount, formatShare } from "./format.ts";
import type { Live } from "./rows.ts";
import { sourceLink } from "./source.ts";
import { hasCallPaths, placeOf, withoutFolders } from "./tree.ts";

interface Line {
  kind: number;
  row: number;
  bytes: number;
  count: number;
  category: string;
  where: string;
  operation: string;
  module: string;
  tensor: string;
}

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
  private lines: Line[] = [];
  private whole = 0;
  private key: Key = "bytes";
  private isDown = true;
  private shown = STEP;

  constructor(private readonly app: App) {}

  show(live: Live, kinds: readonly number[], whole: number): void {
    this.lines = this.linesOf(live, kinds);
    this.whole = whole;
    this.shown = STEP;
    this.draw();
  }

  mark(): void {
    const { row } = this.app.state;
    const kind = row >= 0 ? this.app.device.rows?.kindOf[row] : -1;
    for (const line of this.element.querySelectorAll<HTMLElement>("tbody tr")) {
      line.classList.toggle("chosen", line.dataset["kind"] === String(kind));
    }
  }

  private linesOf(live: Live, kinds: readonly number[]): Line[] {
    const { app } = this;
    const { rows, detail } = app.device;
    if (!rows || !detail) return [];
    const wanted = new Set(kinds);
    const first = new Map<number, number>();
    const names = new Map<number, string[]>();
    for (const row of live.rows) {
      const kind = rows.kindOf[row];
      if (!wanted.has(kind)) continue;
      if (!first.has(kind)) first.set(kind, row);
      const name = rows.nameOf.get(row);
      if (!name) continue;
      const before = names.get(kind);
      if (before) before.push(name);
      else names.set(kind, [name]);
    }
    return [...first].map(([kind, row]) => {
      const tensors = names.get(kind) ?? [];
      return {
        kind,
        row,
        count: live.count[kind],
        bytes: live.count[kind] * rows.kinds.bytes[kind],
        category: app.page.categories[rows.kinds.category[kind]],
        where: placeOf(rows, detail, rows.kinds.stack[kind]),
        operation: detail.operations[rows.kinds.operation[kind] - 1] ?? "",
        module: rows.kinds.module[kind] ? detail.modules[rows.kinds.module[kind] - 1] : "",
        tensor: tensors.length > 1 ? `${tensors[0]} and ${formatCount(tensors.length - 1)} more` : (tensors[0] ?? ""),
      };
    });
  }

  private draw(): void {
    const { key } = this;
    const sign = this.isDown ? -1 : 1;
    this.lines.sort((a, b) => {
      const [p, q] = [a[key], b[key]];
      const order = typeof p === "number" ? p - (q as number) : p < (q as string) ? -1 : p > (q as string) ? 1 : 0;
      return sign * order || b.bytes - a.bytes || a.kind - b.kind;
    });
    const isEmpty = (name: Key) => !this.lines.some((line) => line[name]);
    for (const name of ["operation", "module", "tensor"] as const) this.element.classList.toggle(`no-${name}`, isEmpty(name));
    // Without recorded modules, the lines that call each other stand in their place.
    const isCallPath = hasCallPaths(this.app.device.detail);
    const head = COLUMNS.map(([name, title]) => {
      const text = name === "module" && isCallPath ? "Call path" : title;
      const mark = name === key ? (this.isDown ? " ↓" : " ↑") : "";
      const cell = el("th", { class: `c-${name}`, attrs: { scope: "col", "aria-sort": name !== key ? "none" : this.isDown ? "descending" : "ascending" } });
      cell.append(button(text + mark, `Sort by ${text.toLowerCase()}`, () => this.sortBy(name), "sort"));
      return cell;
    });
    const body = this.lines.slice(0, this.shown).map((line) => this.rowOf(line));
    const table = el("table", { class: "live-table" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body));
    const left = this.lines.length - body.length;
    const rest = this.lines.slice(this.shown).reduce((sum, line) => sum + line.bytes, 0);
    const more = left
      ? button(`${counted(left, "more row")}, ${formatBytes(rest)}`, "Show more", () => {
          this.shown += 4 * STEP;
          this.draw();
        }, "more")
      : null;
    const empty = this.lines.length ? null : el("p", { class: "empty", text: "Nothing is live here that fits the filter." });
    clear(this.element, table, more, empty);
    this.mark();
  }

  private sortBy(key: Key): void {
    this.isDown = key === this.key ? !this.isDown : key === "bytes" || key === "count";
    this.key = key;
    this.draw();
  }

  private rowOf(line: Line): HTMLElement {
    const { app } = this;
    const choose = () => app.update({ row: line.row });
    const cells = [
      el("td", { class: "c-bytes", title: formatShare(line.bytes, this.whole), text: formatBytes(line.bytes) }),
      el("td", { class: "c-count", text: formatCount(line.count) }),
      el("td", { class: "c-category" }, swatch(css(colorOf(line.category))), line.category),
      el("td", { class: "c-where", title: line.where }, sourceLink(app, line.where, withoutFolders(line.where)) ?? withoutFolders(line.where)),
      el("td", { class: "c-operation", title: line.operation, text: line.operation }),
      el("td", { class: "c-module", title: line.module, text: line.module }),
      el("td", { class: "c-tensor", title: line.tensor, text: line.tensor }),
    ];
    return el(
      "tr",
      {
        attrs: { tabindex: "0", "data-kind": String(line.kind), "data-bytes": String(line.bytes) },
        on: {
          click: choose,
          keydown: onEnter(choose),
        },
      },
      ...cells,
    );
  }
}
