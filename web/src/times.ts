// The times of a capture: forward and backward by operation and module, beside what they hold in memory.

import type { App, Part } from "./app.ts";
import { button, choice, clear, el } from "./dom.ts";
import { formatBytes, formatCount, formatMilliseconds } from "./format.ts";
import type { Times } from "./model.ts";
import type { State } from "./state.ts";
import { NO_MODULE } from "./tree.ts";

type By = "operations" | "modules" | "lines";
type Key = "name" | "calls" | "forward" | "backward" | "total" | "bytes";

interface Line {
  name: string;
  calls: number;
  forward: number;
  backward: number;
  total: number;
  bytes: number | null;
}

const COLUMNS: readonly (readonly [Key, string])[] = [
  ["name", ""],
  ["calls", "Calls"],
  ["forward", "Forward"],
  ["backward", "Backward"],
  ["total", "Time"],
  ["bytes", "Live now"],
];

export class TimesPart implements Part {
  readonly element: HTMLElement;
  private readonly title = el("h3");
  private readonly box = el("div", { class: "table-box" });
  private by: By = "operations";
  private key: Key = "total";
  private readonly chooser;

  constructor(private readonly app: App) {
    this.chooser = choice<By>(
      "By",
      [["operations", "Operations"], ["modules", "Modules"], ["lines", "Lines"]],
      () => this.by,
      (by) => {
        this.by = by;
        this.draw();
      },
    );
    this.element = el("div", { class: "times" }, el("div", { class: "bar" }, this.title, el("div", { class: "spacer" }), this.chooser.element), this.box);
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    if (this.app.state.tab !== "times") return;
    if (["device", "moment", "data", "tab"].some((key) => changed.has(key as keyof State))) this.draw();
  }

  private draw(): void {
    const { times } = this.app.device.file;
    this.chooser.update();
    if (!times) {
      this.title.textContent = "This file has no times: snapconv record writes them.";
      clear(this.box);
      return;
    }
    const part = (name: string, ms: number | null) => (ms === null ? "" : `${name} ${formatMilliseconds(ms)}`);
    const parts = [part("forward", times.forward_ms), part("backward", times.backward_ms), part("optimizer", times.optimizer_ms)].filter(Boolean);
    this.title.textContent = `Iteration ${times.iteration}: ${parts.join(", ")}${times.is_simulated ? "; simulated: times of a processor" : ""}`;
    this.drawTable(this.linesOf(times));
  }

  private linesOf(times: Times): Line[] {
    const line = (name: string, row: { n_calls: number; forward_ms: number; backward_ms: number }, bytes: number | null): Line => ({
      name,
      calls: row.n_calls,
      forward: row.forward_ms,
      backward: row.backward_ms,
      total: row.forward_ms + row.backward_ms,
      bytes,
    });
    if (this.by === "lines") {
      return times.lines.map((row) => line(`${row.file}:${row.line} in ${row.function}`, row, null));
    }
    const held = this.held(this.by);
    if (this.by === "modules") {
      return times.modules.map((row) => line(row.module || NO_MODULE, row, held.get(row.module) ?? 0));
    }
    return times.operations.map((row) => line(row.name, row, held.get(row.name) ?? 0));
  }

  /** Bytes that are live at the chosen moment, by operation or by module. */
  private held(by: "operations" | "modules"): Map<string, number> {
    const live = this.app.live();
    const { rows, detail } = this.app.device;
    const found = new Map<string, number>();
    if (!live || !rows || !detail) return found;
    for (let kind = 0; kind < rows.kinds.n; kind++) {
      if (!live.count[kind]) continue;
      const id = by === "modules" ? rows.kinds.module[kind] : rows.kinds.operation[kind];
      const name = id ? (by === "modules" ? detail.modules : detail.operations)[id - 1] : "";
      found.set(name, (found.get(name) ?? 0) + live.count[kind] * rows.kinds.bytes[kind]);
    }
    return found;
  }

  private drawTable(lines: Line[]): void {
    const { key } = this;
    lines.sort((a, b) => (key === "name" ? (a.name < b.name ? -1 : 1) : (b[key] ?? 0) - (a[key] ?? 0)));
    const most = lines.reduce((largest, line) => Math.max(largest, line.total), 1e-9);
    const held = lines.reduce((largest, line) => Math.max(largest, line.bytes ?? 0), 1);
    const head = COLUMNS.map(([name, text]) =>
      el("th", { class: `t-${name}`, attrs: { scope: "col", "aria-sort": name === key ? (name === "name" ? "ascending" : "descending") : "none" } }, button((text || this.by.replace(/s$/, "").replace(/^./, (c) => c.toUpperCase())) + (name === key ? " ↓" : ""), "Sort", () => {
        this.key = name;
        this.draw();
      }, "sort")),
    );
    const body = lines.slice(0, 400).map((line) =>
      el(
        "tr",
        {},
        el("td", { class: "t-name", title: line.name, text: line.name }),
        el("td", { class: "t-calls", text: formatCount(line.calls) }),
        el("td", { class: "t-forward", text: formatMilliseconds(line.forward) }),
        el("td", { class: "t-backward", text: formatMilliseconds(line.backward) }),
        el("td", { class: "t-total" }, meter([[line.forward / most, "forward"], [line.backward / most, "backward"]]), formatMilliseconds(line.total)),
        el("td", { class: "t-bytes" }, line.bytes === null ? null : meter([[line.bytes / held, "bytes"]]), line.bytes === null ? "" : formatBytes(line.bytes)),
      ),
    );
    clear(this.box, el("table", { class: "times-table" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
  }
}

function meter(parts: [number, string][]): HTMLElement {
  return el("span", { class: "meter", attrs: { "aria-hidden": "true" } }, ...parts.map(([share, name]) => el("span", { class: `meter-${name}`, style: { width: `${share * 100}%` } })));
}
