// One allocation: what it is, how that is known, how long it lives, and its stack.

import type { App, Part } from "./app.ts";
import { colorOf, css } from "./colors.ts";
import { button, clear, el, swatch } from "./dom.ts";
import { formatBytes, formatCount, formatMicroseconds } from "./format.ts";
import type { Detail, Device } from "./model.ts";
import { lifeText } from "./numbers.ts";
import { NEVER, type Rows } from "./rows.ts";
import { sourceLink } from "./source.ts";
import type { State } from "./state.ts";
import { NO_LINE, NO_STACK, frameText, isCallPath, isPlumbing } from "./tree.ts";

export class DetailPanel implements Part {
  readonly element = el("aside", { class: "detail", attrs: { "aria-label": "Chosen allocation" } });
  private showsAll = false;

  constructor(private readonly app: App) {
    this.element.hidden = true;
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    if (!changed.has("row") && !changed.has("data") && !changed.has("device")) return;
    const { app } = this;
    const { rows, detail } = app.device;
    const { row } = app.state;
    this.element.hidden = !rows || !detail || row < 0 || row >= (rows?.n ?? 0);
    if (!this.element.hidden && rows && detail) clear(this.element, ...this.content(app.device, rows, detail, row));
  }

  private content(device: Device, rows: Rows, detail: Detail, row: number): Node[] {
    const { app } = this;
    const { kinds } = rows;
    const kind = rows.kindOf[row];
    const category = app.page.categories[kinds.category[kind]];
    const [reason, reasonText] = detail.reasons[kinds.reason[kind]] ?? ["", ""];
    const name = rows.nameOf.get(row);
    const facts: [string, string][] = [
      ["category", `${category}${certaintyText(app, rows, kind)} · evidence: ${app.page.evidence[kinds.evidence[kind]]}`],
      ["because", reasonText || reason],
    ];
    if (name) facts.unshift(["tensor", name]);
    const module = kinds.module[kind] ? detail.modules[kinds.module[kind] - 1] : "";
    if (module) facts.push([isCallPath(module) ? "call path" : "module", module]);
    const operation = detail.operations[kinds.operation[kind] - 1];
    if (operation) facts.push(["operation", operation]);
    facts.push(
      ["requested", `${formatBytes(kinds.requested[kind])} (${formatCount(kinds.requested[kind])} bytes)`],
      ["block", `${formatBytes(kinds.bytes[kind])}${kinds.exact[kind] ? "" : ", at least"} at ${addressText(device, rows.addr[row])}`],
      ["lives", lifeText(device.facts, rows.alloc[row], rows.freed[row]) + lastingText(device, rows, row)],
      ["pool, stream", `${detail.pools[kinds.pool[kind] - 1] ?? "unknown"}, ${detail.streams[kinds.stream[kind]]}`],
    );
    const alike = rows.kinds.first[kind + 1] - rows.kinds.first[kind];
    if (alike > 1) facts.push(["alike", `${formatCount(alike)} allocations of this stack, size and category`]);
    return [
      el(
        "div",
        { class: "detail-head" },
        swatch(css(colorOf(category))),
        el("b", { text: `${formatBytes(kinds.bytes[kind])} ${category}` }),
        button("×", "Close (Esc)", () => app.update({ row: -1 }), "close"),
      ),
      el("table", {}, ...facts.map(([key, value]) => el("tr", {}, el("th", { text: key }), el("td", { text: value })))),
      this.jumps(rows, row),
      this.stack(rows, detail, kinds.stack[kind]),
      el("div", { class: "command", title: "The evidence for and against its category" }, this.command(device, rows, row)),
    ];
  }

  private jumps(rows: Rows, row: number): HTMLElement {
    const { app } = this;
    const freed = rows.freed[row];
    return el(
      "div",
      { class: "buttons" },
      button("Allocated here", "Show the moment just after it was allocated", () => app.show(rows.alloc[row])),
      freed === NEVER ? null : button("Freed here", "Show the moment just after it was freed", () => app.show(freed)),
      button("Show its life", "Zoom to its lifetime", () => {
        const axis = app.axis();
        const a = axis.place(Math.max(0, rows.alloc[row]));
        const b = freed === NEVER ? axis.high : axis.place(freed);
        const margin = Math.max(app.view.least, (b - a) * 0.1);
        app.update({ from: Math.max(axis.low, a - margin), to: Math.min(axis.high, b + margin) });
      }),
    );
  }

  private stack(rows: Rows, detail: Detail, stack: number): HTMLElement {
    const { app } = this;
    const all = [...rows.stackFrame.subarray(rows.stackFirst[stack], rows.stackFirst[stack + 1])].reverse();
    const shown = this.showsAll ? all : all.filter((frame) => detail.frames.origin[frame] > 0 && !isPlumbing(detail, frame));
    const items = shown.map((frame) => {
      const origin = ["native", "python", "project"][detail.frames.origin[frame]];
      const source = detail.frames.sources[detail.frames.source[frame]];
      const place = frameText(detail, frame);
      return el("li", { class: origin }, sourceLink(app, place) ?? place, source ? `: ${source}` : "");
    });
    const box = el("div", { class: "stack" }, el("div", { class: "stack-head", text: "stack, innermost first" }));
    if (all.length !== shown.length || this.showsAll) {
      const toggle = button(this.showsAll ? "fewer frames" : `all ${all.length} frames`, "", () => {
        this.showsAll = !this.showsAll;
        this.update(new Set(["row"]));
      }, "link");
      box.firstElementChild?.append(" ", toggle);
    }
    box.append(items.length ? el("ol", {}, ...items) : el("p", { class: "empty", text: all.length ? NO_LINE : NO_STACK }));
    return box;
  }

  private command(device: Device, rows: Rows, row: number): HTMLElement {
    const [alloc, freed] = [rows.alloc[row], rows.freed[row]];
    // The first event of a range stands for the free of what was freed before it.
    const event = alloc < 0 && freed > 0 && freed !== NEVER ? freed : alloc;
    const what = event >= 0 ? `'#${device.facts.first_event + event}'` : addressText(device, rows.addr[row]);
    const several = this.app.devices.length > 1 ? ` --device ${device.facts.argument}` : "";
    return el("code", { text: `snapconv explain ${device.file.name} ${what}${several}` });
  }
}

export function addressText(device: Device, offset: number): string {
  const addr = BigInt(device.facts.addr_base) + BigInt(Math.round(offset));
  return `0x${(addr < 0n ? addr + (1n << 64n) : addr).toString(16)}`;
}

/** How sure the category is, with the probability of what is likely. */
function certaintyText(app: App, { kinds }: Rows, kind: number): string {
  const certainty = app.page.certainties[kinds.certainty[kind]];
  if (certainty === "unknown") return "";
  return certainty === "likely" ? `, likely, ${kinds.probability[kind]} %` : `, ${certainty}`;
}

function lastingText({ time }: Device, rows: Rows, row: number): string {
  const [alloc, freed] = [rows.alloc[row], rows.freed[row]];
  return time && alloc >= 0 && freed !== NEVER ? `, ${formatMicroseconds(time[freed] - time[alloc])}` : "";
}
