// What is live at the chosen moment: an icicle and a table, of the same allocations.

import type { App, Part } from "./app.ts";
import { css, tintOf } from "./colors.ts";
import { button, choice, clear, el } from "./dom.ts";
import { counted, formatBytes, formatShare } from "./format.ts";
import { Icicle, type Look, ROW } from "./icicle.ts";
import type { Detail } from "./model.ts";
import { momentText } from "./numbers.ts";
import { type Live, isLive } from "./rows.ts";
import { sourceLink } from "./source.ts";
import type { State } from "./state.ts";
import { Svg, cut } from "./svg.ts";
import { LiveTable } from "./table.ts";
import { theme } from "./theme.ts";
import type { Timeline } from "./timeline.ts";
import { type Frames, type Grouping, type Node, buildTree, hasCallPaths, kindsOf, moduleOf, operationOf, placeOf, withoutFolders } from "./tree.ts";

/** What a filter looks for by kind: made once, as every letter that is typed searches all of it. */
const TEXTS = new WeakMap<Detail, string[]>();

export class LivePart implements Part {
  readonly element: HTMLElement;
  private readonly icicle = new Icicle<Node>("Live memory", this.look());
  private readonly table: LiveTable;
  private readonly title = el("h3");
  private readonly search = el("input", { attrs: { type: "search", placeholder: "Filter: a file, function, module, operation, category, tensor", "aria-label": "Filter" } });
  private readonly groupings;
  private readonly frames;
  private root: Node | null = null;
  /** The last tree, which another part of it in focus does not change. */
  private tree: { live: Live; choice: string; root: Node } | null = null;
  private tints: string[] = [];

  constructor(
    private readonly app: App,
    private readonly timeline: () => Timeline,
  ) {
    this.groupings = choice<Grouping>(
      "Group by",
      [["line", "Lines"], ["module", "Modules"], ["operation", "Operations"]],
      () => app.state.grouping,
      (grouping) => app.update({ grouping, focus: [] }),
    );
    this.frames = choice<Frames>(
      "Frames",
      [["project", "Project"], ["python", "Python"], ["all", "All frames"]],
      () => app.state.frames,
      (frames) => app.update({ frames, focus: [] }),
    );
    this.search.addEventListener("input", () => app.update({ query: this.search.value, focus: [] }));
    this.table = new LiveTable(app);
    this.element = el(
      "div",
      { class: "live" },
      el("div", { class: "bar" }, this.title, el("div", { class: "spacer" }), this.groupings.element, this.frames.element),
      this.search,
      this.icicle.element,
      this.table.element,
    );
  }

  focusSearch(): void {
    this.search.focus();
    this.search.select();
  }

  update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    const { app } = this;
    if (app.state.tab !== "live") {
      if (changed.has("tab") || changed.has("device")) this.timeline().select(null);
      return;
    }
    const keys = ["device", "moment", "grouping", "frames", "query", "focus", "data", "theme", "tab"] as const;
    if (!keys.some((key) => changed.has(key))) {
      if (changed.has("row")) this.table.mark();
      return;
    }
    this.groupings.update();
    this.groupings.rename("module", hasCallPaths(app.device.detail) ? "Call paths" : "Modules");
    this.frames.update();
    this.frames.element.hidden = app.state.grouping === "module";
    if (this.search.value !== app.state.query) this.search.value = app.state.query;
    const live = app.live();
    if (!live) {
      this.title.textContent = "Reading the allocations …";
      return;
    }
    const { rows, detail } = app.device;
    if (!rows || !detail) return;
    const { grouping, frames, query } = app.state;
    const choice = `${grouping} ${frames} ${query}`;
    if (this.tree?.live !== live || this.tree.choice !== choice) {
      const root = buildTree(rows, detail, live, grouping, frames, app.page.categories.length, this.filter(live));
      this.tree = { live, choice, root };
    }
    this.root = this.tree.root;
    const focus = this.focusNode();
    this.tints = this.tintsOf();
    this.setTitle(live, focus);
    this.icicle.show(focus);
    const kinds = kindsOf(focus);
    this.table.show(live, kinds, focus.bytes);
    this.timeline().select(focus === this.root && !app.state.query ? null : kinds);
  }

  private setTitle(live: Live, focus: Node): void {
    const { app } = this;
    const { facts } = app.device;
    const at = momentText(facts, live.event);
    const isFailure = facts.oom.some(({ event }) => event === live.event);
    const peak = isFailure ? ", when the request failed" : live.event === facts.peak_event ? ", the peak" : "";
    const whole = `${formatBytes(live.bytes)} in ${counted(live.rows.length, "allocation")} ${at}${peak}`;
    const isPart = focus.bytes !== live.bytes || focus.count !== live.rows.length;
    const place = focus === this.root ? "fit the filter" : `in ${focus.label}`;
    clear(
      this.title,
      isPart ? `${formatBytes(focus.bytes)} (${formatShare(focus.bytes, live.bytes)}) ${place}, of ${whole}` : whole,
    );
    if (isPart) {
      const reset = () => app.update({ focus: [], query: "" });
      this.title.append(" ", button("show all", "Esc", reset, "link"));
      const link = sourceLink(app, focus.label, "show source");
      if (link) this.title.append(" · ", link);
    }
  }

  /** Which kinds the words of the filter leave; all words must occur. */
  private filter(live: Live): (kind: number) => boolean {
    const { app } = this;
    const words = app.state.query.toLowerCase().split(/\s+/).filter(Boolean);
    const { rows, detail } = app.device;
    if (!words.length || !rows || !detail) return () => true;
    const names = new Map<number, string>();
    for (const [row, name] of rows.nameOf) {
      if (isLive(rows, row, live.event)) names.set(rows.kindOf[row], `${names.get(rows.kindOf[row]) ?? ""} ${name}`);
    }
    const { kinds } = rows;
    const texts = TEXTS.get(detail) ?? [];
    TEXTS.set(detail, texts);
    const textOf = (kind: number): string => {
      const text = placeOf(rows, detail, kinds.stack[kind]);
      const category = app.page.categories[kinds.category[kind]];
      return `${text} ${moduleOf(rows, detail, kind)} ${operationOf(rows, detail, kind)} ${category}`.toLowerCase();
    };
    return (kind) => {
      const text = (texts[kind] ??= textOf(kind));
      const name = names.get(kind)?.toLowerCase() ?? "";
      return words.every((word) => hasWord(text, word) || name.includes(word));
    };
  }

  private focusNode(): Node {
    let node = this.root as Node;
    for (const rank of this.app.state.focus) {
      const child = [...node.children.values()].sort((a, b) => b.bytes - a.bytes)[rank];
      if (!child) break;
      node = child;
    }
    return node;
  }

  private textOf(node: Node): string {
    return node.parent ? node.label : "all that is live";
  }

  private look(): Look<Node> {
    return {
      text: (node) => `${withoutFolders(this.textOf(node))} · ${formatBytes(node.bytes)}`,
      title: (node) => `${this.textOf(node)}\n${formatBytes(node.bytes)}, ${formatShare(node.bytes, (this.root as Node).bytes)}, ${counted(node.count, "allocation")}`,
      background: (node) => this.background(node),
      choose: (node) => this.app.update({ focus: ranksOf(node) }),
    };
  }

  /** The categories of a node, side by side by their bytes. */
  private background(node: Node): string {
    const { tints } = this;
    const stops: string[] = [];
    let at = 0;
    for (const i of this.app.order) {
      if (!node.categories[i]) continue;
      if (node.categories[i] === node.bytes) return tints[i];
      const to = at + (node.categories[i] / Math.max(1, node.bytes)) * 100;
      stops.push(`${tints[i]} ${at.toFixed(2)}% ${to.toFixed(2)}%`);
      at = to;
    }
    return `linear-gradient(90deg, ${stops.join(", ")})`;
  }

  /** The colours of categories behind text. */
  private tintsOf(): string[] {
    const { background, isDark } = theme();
    return this.app.page.categories.map((name) => css(tintOf(name, background, isDark)));
  }

  toSvg(): Svg {
    const { placed, height, element } = this.icicle;
    const width = element.clientWidth;
    const { background, text } = theme();
    const svg = new Svg(width, height, css(background));
    for (const { node, from, to, depth } of placed) {
      let x = from * width;
      const whole = (to - from) * width - 1;
      for (const i of this.app.order) {
        const part = (whole * node.categories[i]) / Math.max(1, node.bytes);
        if (!part) continue;
        svg.rect(x, depth * ROW, part, ROW - 1, this.tints[i]);
        x += part;
      }
      if (whole > 28) svg.text(from * width + 5, depth * ROW + 15, cut(this.look().text(node), whole - 8), text);
    }
    return svg;
  }
}

/** Whether a text has a word of the filter; `a.py:3` is no part of `a.py:35`. */
function hasWord(text: string, word: string): boolean {
  if (!/:\d+$/.test(word)) return text.includes(word);
  for (let at = text.indexOf(word); at >= 0; at = text.indexOf(word, at + 1)) if (!/\d/.test(text[at + word.length] ?? "")) return true;
  return false;
}

function ranksOf(node: Node): number[] {
  const ranks: number[] = [];
  for (let at = node; at.parent; at = at.parent) {
    ranks.unshift([...at.parent.children.values()].sort((a, b) => b.bytes - a.bytes).indexOf(at));
  }
  return ranks;
}
