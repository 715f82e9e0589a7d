// The events around the chosen moment, one a row; a click chooses the event and its allocation.

import type { App, Part } from "./app.ts";
import { colorOf, css } from "./colors.ts";
import { button, clear, el, onEnter, swatch } from "./dom.ts";
import { formatBytes, formatCount, formatMicroseconds } from "./format.ts";
import type { Device } from "./model.ts";
import { eventText } from "./numbers.ts";
import type { Rows } from "./rows.ts";
import type { State } from "./state.ts";
import { composition } from "./timeline.ts";
import { operationOf, placeOf, withoutFolders } from "./tree.ts";

const PAGE = 50;

/** One effect of an event; `row` is -1 where it is about no allocation. */
export interface Effect {
  action: "alloc" | "free" | "reusable" | "segment" | "segment free" | "out of memory" | "other";
  bytes: number;
  row: number;
}

/** The effects of one event: of an allocation, of a segment, or that a request failed. */
export function effectsOf(device: Device, rows: Rows, event: number): Effect[] {
  const found: Effect[] = [];
  const add = (action: Effect["action"], row: number) => found.push({ action, bytes: rows.kinds.bytes[rows.kindOf[row]], row });
  const entry = rows.byEvent[event];
  if (entry > 0) add("alloc", entry - 1);
  const freed = [...(entry < 0 ? [-entry - 1] : []), ...(rows.alsoFreed.get(event) ?? [])];
  for (const row of freed) add("free", row);
  const ended = [...(rows.endsAt[event] ? [rows.endsAt[event] - 1] : []), ...(rows.alsoEnds.get(event) ?? [])];
  for (const row of ended) if (!freed.includes(row)) add("reusable", row);
  for (const oom of device.facts.oom) if (oom.event === event) found.push({ action: "out of memory", bytes: oom.requested, row: -1 });
  found.push(...segmentEffects(device).get(event) ?? []);
  return found.length ? found : [{ action: "other", bytes: 0, row: -1 }];
}

const SEGMENT_EFFECTS = new WeakMap<object, Map<number, Effect[]>>();

/** What happens to segments, by event. */
function segmentEffects({ segments }: Device): Map<number, Effect[]> {
  if (!segments) return new Map();
  let known = SEGMENT_EFFECTS.get(segments);
  if (known) return known;
  known = new Map();
  SEGMENT_EFFECTS.set(segments, known);
  for (let i = 0; i < segments.addr.length; i++) {
    for (const [after, action] of [[segments.begin[i], "segment"], [segments.end[i], "segment free"]] as const) {
      if (after) known.set(after - 1, [...(known.get(after - 1) ?? []), { action, bytes: segments.bytes[i], row: -1 }]);
    }
  }
  return known;
}

export class EventsPart implements Part {
  readonly element: HTMLElement;
  private readonly title = el("h3");
  private readonly box = el("div", { class: "table-box" });

  constructor(private readonly app: App) {
    const move = (step: number) => () => this.app.show(Math.max(0, Math.max(0, this.app.state.moment) + step));
    const pages = el("div", { class: "choice" }, button("Earlier", `${PAGE} events earlier`, move(-PAGE), "segment"), button("Later", `${PAGE} events later`, move(PAGE), "segment"));
    this.element = el("div", { class: "events" }, el("div", { class: "bar" }, this.title, el("div", { class: "spacer" }), pages), this.box);
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    if (this.app.state.tab !== "events") return;
    if (["device", "moment", "data", "tab", "theme", "row"].some((key) => changed.has(key as keyof State))) this.draw();
  }

  private draw(): void {
    const { app, box } = this;
    const { device } = app;
    const { rows } = device;
    if (!rows || !device.facts.n_events) {
      this.title.textContent = rows ? "The file has no events." : "Reading the events …";
      clear(box);
      return;
    }
    const first = Math.floor(Math.max(0, app.state.moment) / PAGE) * PAGE;
    const last = Math.min(device.facts.n_events, first + PAGE) - 1;
    this.title.textContent = `Events ${eventText(device.facts, first)} to ${eventText(device.facts, last)} of ${formatCount(device.facts.n_file_events)}`;
    const hadFocus = box.contains(document.activeElement);
    const body: HTMLElement[] = [];
    let allocated = composition(app, device, first - 1).total;
    for (let event = first; event <= last; event++) {
      const effects = effectsOf(device, rows, event);
      for (const { action, bytes } of effects) allocated += action === "alloc" ? bytes : action === "free" ? -bytes : 0;
      effects.forEach((effect, i) => body.push(this.rowOf(device, rows, event, effect, i ? null : allocated)));
    }
    const heads = [["n", "Event"], ["action", "Action"], ["bytes", "Bytes"], ["bytes c-level", "Allocated"], ["category", "Category"], ["where", "Line"], ["operation", "Operation"]];
    const head = heads.map(([name, text]) => el("th", { class: `c-${name}`, text, attrs: { scope: "col" } }));
    clear(box, el("table", { class: "live-table" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...body)));
    if (hadFocus) box.querySelector<HTMLElement>("tr.chosen")?.focus();
  }

  private rowOf(device: Device, rows: Rows, event: number, { action, bytes, row }: Effect, allocated: number | null): HTMLElement {
    const { app } = this;
    const { detail } = device;
    const kind = row < 0 ? -1 : rows.kindOf[row];
    const category = kind < 0 ? "" : app.page.categories[rows.kinds.category[kind]];
    const where = kind < 0 || !detail ? "" : placeOf(rows, detail, rows.kinds.stack[kind]);
    const choose = () => {
      app.reveal(event, event);
      app.update({ moment: event, focus: [], row });
    };
    const time = device.time ? formatMicroseconds(device.time[event]) : "";
    return el(
      "tr",
      {
        class: event === app.state.moment ? "chosen" : "",
        attrs: { tabindex: "0", "data-event": String(device.facts.first_event + event), "data-bytes": String(bytes) },
        on: { click: choose, keydown: onEnter(choose) },
      },
      el("td", { class: "c-n", title: time, text: allocated === null ? "" : eventText(device.facts, event) }),
      el("td", { class: action === "out of memory" ? "c-action alarm" : "c-action", text: action }),
      el("td", { class: "c-bytes", text: action === "other" ? "" : formatBytes(bytes) }),
      el("td", { class: "c-bytes c-level", text: allocated === null ? "" : formatBytes(allocated) }),
      el("td", { class: "c-category" }, category ? swatch(css(colorOf(category))) : null, category),
      el("td", { class: "c-where", title: where, text: withoutFolders(where) }),
      el("td", { class: "c-operation", text: kind < 0 || !detail ? "" : operationOf(rows, detail, kind) }),
    );
  }
}
