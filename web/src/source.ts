// The project's source with the bytes of its lines in a margin: the rows of `snapconv annotate`, or all of one file.

import type { App, Part } from "./app.ts";
import { button, clear, el } from "./dom.ts";
import { formatBytes } from "./format.ts";
import type { Detail, SourceFile, SourceRow } from "./model.ts";
import type { State } from "./state.ts";

const PLACES = new WeakMap<Detail, Set<string>>();

/** The recorded lines of the page's source, such as `net/model.py:35`. */
function placesOf(detail: Detail): Set<string> {
  let places = PLACES.get(detail);
  if (!places) {
    const files = detail.source?.files ?? [];
    places = new Set(files.flatMap(({ path, all }) => all.flatMap((row) => row[3].map((line) => `${path}:${line}`))));
    PLACES.set(detail, places);
  }
  return places;
}

/** The line that a text such as `net/model.py:35 in forward` begins with; empty where the page has no source of it. */
export function sourcePlace(detail: Detail, text: string): string {
  const place = /^(.*:\d+)( in |$)/.exec(text)?.[1] ?? "";
  return placesOf(detail).has(place) ? place : "";
}

/** A text that leads to its line in the source, where the page has that. */
export function sourceLink(app: App, text: string, shown = text): HTMLElement | null {
  const { detail } = app.device;
  const place = detail && sourcePlace(detail, text);
  if (!place) return null;
  const link = button(shown, `Show ${place} in its source`, () => app.update({ tab: "source", source: place }), "link");
  link.addEventListener("click", (event) => event.stopPropagation());
  link.addEventListener("keydown", (event) => event.stopPropagation());
  return link;
}

export class SourcePart implements Part {
  readonly element: HTMLElement;
  private readonly title = el("h3");
  private readonly box = el("div");

  constructor(private readonly app: App) {
    this.element = el("div", { class: "source" }, el("div", { class: "bar" }, this.title), this.box);
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    if (this.app.state.tab !== "source") return;
    if ((["device", "source", "data", "tab"] as const).some((key) => changed.has(key))) this.draw();
  }

  private draw(): void {
    const { app } = this;
    const { detail } = app.device;
    if (!detail?.source) {
      this.title.textContent = "Reading the source …";
      clear(this.box);
      return;
    }
    const { head, files } = detail.source;
    this.title.textContent = head[0];
    const [path, line] = partsOf(app.state.source);
    const file = files.find((other) => other.path === path);
    clear(this.box, ...(file ? this.wholeFile(file, line) : this.overview()));
    this.box.querySelector(".chosen")?.scrollIntoView({ block: "center" });
  }

  /** What the terminal shows, and links to the files that have more. */
  private overview(): HTMLElement[] {
    const { head, hidden, files } = (this.app.device.detail as Detail).source!;
    const shown = files.filter(({ counting }) => counting.length);
    const others = files.filter(({ counting }) => !counting.length);
    return [
      ...head.slice(1).map((text) => el("p", { class: "hint", text })),
      ...shown.flatMap((file) => [el("h4", {}, this.fileLink(file)), this.table(file, file.counting, -1)]),
      el("p", { class: "hint", text: hidden }),
      el("ul", { class: "files" }, ...others.map((file) => el("li", {}, this.fileLink(file)))),
    ];
  }

  private wholeFile(file: SourceFile, line: number): HTMLElement[] {
    const back = button("all files", "Esc", () => this.app.update({ source: "" }), "link");
    return [el("h4", {}, back, ` / ${file.title}`), this.table(file, file.all, line)];
  }

  private fileLink(file: SourceFile): HTMLElement {
    return button(file.title, "Show all of its lines that allocate or call what does", () => this.app.update({ source: file.path }), "link");
  }

  private table(file: SourceFile, rows: readonly SourceRow[], chosen: number): HTMLElement {
    const { columns } = (this.app.device.detail as Detail).source!;
    const head = [...columns, "line"].map((text, i) => el("th", { class: sizeClass(i, columns.length), text, attrs: { scope: "col" } }));
    const body = rows.map((row) => this.rowOf(file, row, columns.length, chosen));
    const table = el("table", { class: "source-table" }, el("thead", {}, el("tr", {}, ...head, el("th"))), el("tbody", {}, ...body));
    return el("div", { class: "table-box" }, table);
  }

  private rowOf(file: SourceFile, [number, text, sizes, lines]: SourceRow, nColumns: number, chosen: number): HTMLElement {
    const cells = sizes.length ? sizes.map((bytes, i) => this.sizeCell(`${file.path}:${lines[0]}`, bytes, i)) : Array.from({ length: nColumns }, (_, i) => el("td", { class: sizeClass(i, nColumns) }));
    const kind = lines.includes(chosen) ? "chosen" : number ? "" : "mark";
    return el("tr", { class: kind, attrs: { "data-lines": lines.join(" ") } }, ...cells, el("td", { class: "s-number", text: number }), el("td", { class: "s-text", text }));
  }

  /** Bytes; those that are live at the peak lead to their allocations. */
  private sizeCell(place: string, bytes: number, column: number): HTMLElement {
    const { app } = this;
    const show = () => app.update({ tab: "live", moment: app.device.facts.peak_event, focus: [], query: place });
    const text = bytes ? formatBytes(bytes) : "";
    const content = text && column === 0 ? button(text, "Show its allocations at the peak", show, "link") : text;
    return el("td", { class: column ? "s-bytes s-more" : "s-bytes", attrs: { "data-bytes": String(bytes) } }, content);
  }
}

/** A narrow screen has room for the first figure. */
function sizeClass(column: number, nColumns: number): string {
  return column && column < nColumns ? "s-more" : "";
}

/** A path and a line of it, -1 where none is chosen. */
function partsOf(source: string): [string, number] {
  const match = /^(.*):(\d+)$/.exec(source);
  return match ? [match[1], Number(match[2])] : [source, -1];
}
