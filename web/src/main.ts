// The page: its parts in order, what keys and buttons do, and when which data is read.

import { AllocationsPart } from "./allocations.ts";
import { App, type Part, isFramed } from "./app.ts";
import type { AxisKind } from "./axis.ts";
import { colorOf, css } from "./colors.ts";
import { ComparePart } from "./compare.ts";
import { DetailPanel } from "./detail.ts";
import { button, choice, clear, el, swatch } from "./dom.ts";
import { formatCount } from "./format.ts";
import { EventsPart } from "./events.ts";
import { fileDetails, fileLine, headOf } from "./head.ts";
import { openHelp, openText } from "./help.ts";
import { LivePart } from "./live.ts";
import { MapPart } from "./map.ts";
import { Device, type Page as PageData, firstMoment, readPage } from "./model.ts";
import { Overview } from "./overview.ts";
import { RangePart } from "./range.ts";
import { type State, type Tab, fromHash } from "./state.ts";
import { Svg, savePng, saveSvg } from "./svg.ts";
import { choiceText, panelText } from "./text.ts";
import { forgetTheme, setTheme, theme } from "./theme.ts";
import { Timeline, mostBytes } from "./timeline.ts";
import { nextRangeAround, rangeBeside } from "./spans.ts";
import { SourcePart } from "./source.ts";
import { TimesPart } from "./times.ts";

const TAB_NAMES: Record<Tab, string> = {
  compare: "Compare",
  live: "Live memory",
  allocations: "Allocations",
  map: "Allocator map",
  range: "Range",
  events: "Events",
  times: "Times",
  source: "Source",
};

const AGES = ["Old", "New"];

async function start(): Promise<void> {
  theme();
  const page = await readPage();
  const devices = page.devices.map((facts, i) => new Device(i, facts, page.files[facts.file], page.categories));
  const state = firstState(devices, page);
  const app = new App(page, devices, state);
  await Promise.all((page.is_comparison ? devices : [app.device]).map((device) => device.readFirst()));
  const ui = new Page(app);
  ui.build(document.getElementById("app") as HTMLElement);
  performance.mark("first-picture");
  document.documentElement.dataset["state"] = "drawn";
  await loaded();
  await new Promise((done) => setTimeout(done, 0)); // let the picture reach the screen first
  for (const device of devices) {
    if (!device.level) await device.readFirst();
    await device.readAll();
    app.changed("data");
  }
  performance.mark("all-read");
  document.documentElement.dataset["state"] = "ready";
}

function loaded(): Promise<void> {
  if (document.readyState !== "loading") return Promise.resolve();
  return new Promise((done) => document.addEventListener("DOMContentLoaded", () => done(), { once: true }));
}

function firstState(devices: Device[], { is_comparison: isComparison, has_source: hasSource }: PageData): State {
  const linked = fromHash(location.hash);
  const device = linked.device !== undefined && linked.device < devices.length ? linked.device : isComparison ? devices.length - 1 : mostUrgent(devices);
  const { facts, file } = devices[device];
  let tab: Tab = linked.tab ?? (isComparison ? "compare" : "live");
  if ((tab === "compare" && !isComparison) || (tab === "times" && !file.times) || (tab === "source" && !hasSource)) tab = "live";
  const moment = Math.min(linked.moment ?? firstMoment(facts), facts.n_events - 1);
  const axis = isComparison ? "iteration" : "event";
  if (linked.range && linked.range[1] >= facts.n_events) delete linked.range;
  return {
    axis: axis as AxisKind,
    from: 0,
    to: 0,
    grouping: "line",
    frames: "project",
    query: "",
    focus: [],
    row: -1,
    hidden: [],
    coloring: "category",
    range: [],
    source: "",
    ...linked,
    device,
    tab,
    moment,
  };
}

/** The device that ran out of memory, or else the one with the highest peak. */
function mostUrgent(devices: readonly Device[]): number {
  const failed = devices.findIndex((device) => device.facts.oom.length > 0);
  const most = Math.max(...devices.map((device) => device.facts.peak_bytes));
  return failed >= 0 ? failed : devices.findIndex((device) => device.facts.peak_bytes === most);
}

class Page {
  /** One; or of two files each, the older first. */
  private readonly timelines: readonly Timeline[];
  private readonly live: LivePart;
  private readonly allocations: AllocationsPart;
  private readonly map: MapPart;
  private readonly head = el("div");
  private readonly fileBox = el("div", { class: "file" });
  private readonly tabs = el("div", { class: "tabs", attrs: { role: "tablist" } });
  private readonly panels = new Map<Tab, HTMLElement>();
  private readonly moment = el("input", { class: "moment", attrs: { type: "number", placeholder: "start", "aria-label": "Event" } });
  private readonly columns = el("div", { class: "columns" });
  private readonly lines = el("div", { class: "lines" });

  constructor(private readonly app: App) {
    const most = () => Math.max(...app.devices.map((device) => mostBytes(device, app.state)));
    this.timelines = app.page.is_comparison ? app.devices.map((device) => new Timeline(app, device, most)) : [new Timeline(app)];
    this.live = new LivePart(app, () => this.timeline);
    this.allocations = new AllocationsPart(app);
    this.map = new MapPart(app);
  }

  /** That of the chosen device. */
  private get timeline(): Timeline {
    return this.timelines.find((timeline) => timeline.device === this.app.device) ?? this.timelines[0];
  }

  build(root: HTMLElement): void {
    const { app } = this;
    const times = new TimesPart(app);
    const parts: [Tab, Part][] = [
      ["live", this.live],
      ["allocations", this.allocations],
      ["map", this.map],
      ["range", new RangePart(app)],
      ["events", new EventsPart(app)],
    ];
    if (app.devices.some((device) => device.file.times)) parts.push(["times", times]);
    if (app.page.has_source) parts.push(["source", new SourcePart(app)]);
    if (app.page.is_comparison) parts.unshift(["compare", new ComparePart(app)]);
    for (const [tab, part] of parts) {
      const choose = button(TAB_NAMES[tab], "", () => app.update({ tab }), "tab");
      choose.setAttribute("role", "tab");
      choose.dataset["tab"] = tab;
      this.tabs.append(choose);
      this.panels.set(tab, el("div", { class: "panel", attrs: { role: "tabpanel" } }, part.element));
    }
    const detail = new DetailPanel(app);
    const overview = new Overview(app);
    const card = el("section", { class: "card" }, this.toolbar(), this.lines, ...this.charts(), overview.element);
    const lower = el(
      "section",
      { class: "card" },
      el("div", { class: "bar" }, this.tabs, el("div", { class: "spacer" }), this.momentBox(), button("Copy as text", "The moment, the filter and the table, for a message (C)", () => this.copyText(), "link"), this.saveBox("this picture", () => this.pictureOfTab(), () => app.state.tab)),
      ...this.panels.values(),
    );
    clear(this.columns, el("div", { class: "main-column" }, card, lower), detail.element);
    clear(root, this.header(), this.head, this.columns, this.footer());
    app.parts.push({ element: root, update: (changed) => this.update(changed) }, ...this.timelines, overview, ...parts.map(([, part]) => part), detail);
    this.update(new Set(["device", "tab", "moment", "theme"]));
    for (const part of app.parts.slice(1)) part.update(new Set(["device", "tab", "data"]));
    this.listen();
  }

  private charts(): HTMLElement[] {
    if (!this.app.page.is_comparison) return [this.timeline.element];
    return this.timelines.map((timeline, i) => {
      const { file, facts } = timeline.device;
      const box = el("div", { class: "compared" }, el("h4", { text: `${AGES[i]}: ${file.name} · ${facts.name}` }), timeline.element);
      this.app.parts.push({ element: box, update: () => box.classList.toggle("chosen", timeline.device === this.app.device) });
      return box;
    });
  }

  private header(): HTMLElement {
    const { app } = this;
    const { is_comparison, files } = app.page;
    const title = is_comparison
      ? el("h1", { class: "two" }, ...files.map((file, i) => el("div", {}, el("span", { class: "which", text: AGES[i] }), file.name)))
      : el("h1", { text: files[0].name });
    const devices = app.devices.map((device, i) => [String(i), is_comparison ? AGES[i] : device.facts.name] as const);
    const chooser = choice("Device", devices, () => String(app.state.device), (value) => this.chooseDevice(Number(value)));
    app.parts.push({ element: chooser.element, update: () => chooser.update() });
    return el(
      "header",
      {},
      el("div", { class: "titles" }, title, this.fileBox),
      el(
        "div",
        { class: "buttons" },
        app.devices.length > 1 ? chooser.element : null,
        isFramed ? null : button("Copy link", "A link to what is chosen now", () => this.copyLink()),
        button("Theme", "Light, dark (T)", () => this.switchTheme()),
        button("?", "Keys and mouse (?)", () => openHelp()),
      ),
    );
  }

  private chooseDevice(device: number): void {
    const { app } = this;
    const { facts } = app.devices[device];
    app.update({ device, moment: firstMoment(facts), focus: [], row: -1, range: [], source: "", ...(app.page.is_comparison ? {} : { from: 0, to: 0 }) });
  }

  private toolbar(): HTMLElement {
    const { app } = this;
    const options: [AxisKind, string][] = [["event", "Events"]];
    if (app.devices.some((device) => device.facts.has_times)) options.push(["time", "Time"]);
    // Two files are aligned by it, be it one iteration each.
    if (app.page.is_comparison || app.devices.some((device) => device.spans?.iterationFirst.length > 1)) options.push(["iteration", "Iterations"]);
    const axis = choice<AxisKind>("Axis", options, () => app.axis().kind, (kind) => this.changeAxis(kind));
    app.parts.push({ element: axis.element, update: () => axis.update() });
    const plot = () => this.timeline.plot;
    return el(
      "div",
      { class: "bar" },
      el("h2", { text: "Timeline" }),
      el("div", { class: "spacer" }),
      options.length > 1 ? axis.element : null,
      el(
        "div",
        { class: "choice" },
        button("−", "Zoom out (−)", () => plot().zoom(2), "segment"),
        button("+", "Zoom in (+)", () => plot().zoom(0.5), "segment"),
        button("All", "Show everything (0)", () => app.update({ from: 0, to: 0 }), "segment"),
        button("Peak", "Choose the peak (P)", () => this.toPeak(), "segment"),
      ),
      this.saveBox("the timeline", () => this.pictureOfTimelines(), () => "timeline"),
    );
  }

  /** Keep the visible events when the axis changes. */
  private changeAxis(kind: AxisKind): void {
    const { app } = this;
    const before = app.axis();
    const { from, to, low, high } = app.view;
    const isAll = from <= low && to >= high;
    const events = [before.eventAt(from), before.eventAt(to)];
    app.state = { ...app.state, axis: kind };
    const axis = app.axis();
    const view = isAll ? [0, 0] : events.map((event) => axis.place(Math.max(0, event)));
    app.state = { ...app.state, from: view[0], to: view[1] };
    app.changed("axis", "from", "to");
  }

  private toPeak(): void {
    const { app } = this;
    app.show(app.device.facts.peak_event);
  }

  private momentBox(): HTMLElement {
    const { app } = this;
    this.moment.addEventListener("change", () => {
      const event = Number(this.moment.value) - app.device.facts.first_event;
      if (Number.isInteger(event)) app.show(event);
    });
    return el(
      "div",
      { class: "moment-box" },
      el("span", { text: "after event" }),
      button("‹", "One event earlier ([)", () => app.setMoment(app.state.moment - 1), "segment"),
      this.moment,
      button("›", "One event later (])", () => app.setMoment(app.state.moment + 1), "segment"),
    );
  }

  private saveBox(what: string, picture: () => Svg | null, name: () => string): HTMLElement {
    const fileName = () => `${this.app.device.file.name.replace(/[^\w.-]+/g, "_").slice(0, 80)}.${name()}`;
    const save = (act: (name: string, svg: Svg) => unknown) => {
      const svg = picture();
      if (svg) act(fileName(), svg);
    };
    return el(
      "div",
      { class: "choice" },
      button("SVG", `Save ${what} as SVG`, () => save(saveSvg), "segment"),
      button("PNG", `Save ${what} as PNG`, () => save(savePng), "segment"),
    );
  }

  private pictureOfTab(): Svg | null {
    const { tab } = this.app.state;
    if (tab === "live") return this.live.toSvg();
    if (tab === "allocations") return this.allocations.toSvg();
    if (tab === "map") return this.map.toSvg();
    return this.pictureOfTimelines();
  }

  private pictureOfTimelines(): Svg {
    const pictures = this.timelines.map((timeline) => timeline.toSvg());
    if (pictures.length === 1) return pictures[0];
    const height = pictures.reduce((sum, picture) => sum + picture.height, 0);
    const svg = new Svg(pictures[0].width, height, css(theme().background));
    svg.append(pictures);
    return svg;
  }

  private update(changed: ReadonlySet<keyof State | "data" | "theme">): void {
    const { app } = this;
    // What leads to the source is known when that is read.
    if (changed.has("device") || changed.has("theme") || (changed.has("data") && app.page.has_source)) {
      clear(this.head, headOf(app, app.device));
      clear(this.fileBox, el("p", { text: fileLine(app.device) }), fileDetails(app.device));
      this.drawLines();
    }
    if (changed.has("hidden")) this.drawLines();
    for (const [tab, panel] of this.panels) panel.hidden = tab !== app.state.tab;
    for (const tab of this.tabs.children) tab.setAttribute("aria-selected", String((tab as HTMLElement).dataset["tab"] === app.state.tab));
    this.columns.classList.toggle("has-detail", app.state.row >= 0);
    const { first_event, n_events, n_file_events } = app.device.facts;
    this.moment.value = app.state.moment < 0 ? "" : String(first_event + app.state.moment);
    [this.moment.min, this.moment.max] = [first_event - 1, first_event + n_events - 1].map(String);
    this.moment.title = `of ${formatCount(n_file_events)}`;
  }

  /** The legend of the timeline; the lines can be left out. */
  private drawLines(): void {
    const { app } = this;
    const devices = app.page.is_comparison ? app.devices : [app.device];
    const isIn = (device: Device, i: number) => device.level.atMax[i].some((bytes) => bytes > 0) || device.facts.start_categories[i] > 0;
    const shown = app.order.filter((i) => devices.some((device) => isIn(device, i)));
    const items = shown.map((i) => el("span", { class: "key" }, swatch(css(colorOf(app.page.categories[i]))), app.page.categories[i]));
    const names = ["reserved", "active", ...(app.page.is_comparison ? ["other"] : [])];
    const toggles = names.map((name) => {
      const isShown = !app.state.hidden.includes(name);
      const text = name === "other" ? "allocated in the other file" : name;
      const toggle = button(text, `Show or hide ${name === "other" ? "the other file's curve" : `${name} bytes`}`, () => {
        const hidden = app.state.hidden.filter((other) => other !== name);
        app.update({ hidden: isShown ? [...hidden, name] : hidden });
      }, `key line ${name}`);
      toggle.setAttribute("aria-pressed", String(isShown));
      return toggle;
    });
    clear(this.lines, ...items, ...toggles);
  }

  private async copyLink(): Promise<void> {
    const { app } = this;
    app.changed("moment");
    await new Promise((done) => setTimeout(done, 300));
    try {
      await navigator.clipboard.writeText(location.href);
      this.say("Link copied");
    } catch {
      this.say("The link is in the address bar");
    }
  }

  private async copyText(): Promise<void> {
    const { app } = this;
    const panel = this.panels.get(app.state.tab) as HTMLElement;
    const text = [...choiceText(app), ...panelText(panel), ""].join("\n");
    try {
      await navigator.clipboard.writeText(text);
      this.say("Copied as text");
    } catch {
      openText(text);
    }
  }

  private say(text: string): void {
    const note = el("div", { class: "toast", text, attrs: { role: "status" } });
    document.body.append(note);
    setTimeout(() => note.remove(), 2000);
  }

  private switchTheme(): void {
    const isDark = getComputedStyle(document.documentElement).getPropertyValue("--is-dark").trim() === "1";
    setTheme(isDark ? "light" : "dark");
    this.app.changed("theme");
  }

  private listen(): void {
    const { app } = this;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
      forgetTheme();
      app.changed("theme");
    });
    window.addEventListener("hashchange", () => {
      const linked = fromHash(location.hash);
      if (linked.device !== undefined && linked.device >= app.devices.length) delete linked.device;
      if (linked.tab && !this.panels.has(linked.tab)) delete linked.tab;
      app.update(linked);
    });
    document.addEventListener("keydown", (event) => this.key(event));
  }

  private key(event: KeyboardEvent): void {
    const { app } = this;
    const target = event.target as HTMLElement;
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (/^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName)) {
      if (event.key === "Escape") target.blur();
      return;
    }
    const { plot } = this.timeline;
    const step = event.shiftKey ? 0.5 : 0.1;
    const acts: Record<string, () => void> = {
      ArrowLeft: () => plot.pan(-step),
      ArrowRight: () => plot.pan(step),
      a: () => plot.pan(-step),
      d: () => plot.pan(step),
      w: () => plot.zoom(0.5, plot.pointed),
      s: () => plot.zoom(2, plot.pointed),
      "+": () => plot.zoom(0.5, app.axis().place(app.state.moment)),
      "=": () => plot.zoom(0.5, app.axis().place(app.state.moment)),
      "-": () => plot.zoom(2),
      "0": () => app.update({ from: 0, to: 0 }),
      p: () => this.toPeak(),
      r: () => app.update({ tab: "range" }),
      i: () => app.update({ range: nextRangeAround(app.device, app.state.moment, app.state.range), tab: "range" }),
      ",": () => this.toRangeBeside(-1),
      ".": () => this.toRangeBeside(1),
      f: () => app.showFailure(),
      "[": () => app.setMoment(app.state.moment - 1),
      "]": () => app.setMoment(app.state.moment + 1),
      t: () => this.switchTheme(),
      c: () => void this.copyText(),
      "?": () => openHelp(),
      "/": () => {
        app.update({ tab: "live" });
        requestAnimationFrame(() => requestAnimationFrame(() => this.live.focusSearch()));
      },
      Escape: () => this.close(),
    };
    [...this.panels.keys()].forEach((tab, i) => (acts[String(i + 1)] = () => app.update({ tab })));
    const act = acts[event.key] ?? acts[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** Close what is chosen last; the focus goes from the details back to their row. */
  private close(): void {
    const { app } = this;
    const isWithin = this.columns.querySelector(".detail")?.contains(document.activeElement);
    const row = isWithin ? document.querySelector<HTMLElement>(".panel:not([hidden]) tr.chosen") : null;
    app.update(app.state.row >= 0 ? { row: -1 } : app.state.range.length ? { range: [] } : app.state.tab === "source" ? { source: "" } : { focus: [], query: "" });
    row?.focus();
  }

  private toRangeBeside(step: 1 | -1): void {
    const { app } = this;
    const range = rangeBeside(app.device, app.state.moment, app.state.range, step);
    if (!range) return;
    app.reveal(...range);
    app.update({ range, moment: range[0], focus: [], tab: "range" });
  }

  private footer(): HTMLElement {
    const versions = [...new Set(this.app.page.files.map((file) => file.snapconv))].join(", ");
    return el("footer", { text: `Written by snapconv ${versions}. This page is whole: it needs no network.` });
  }
}

start().catch((error: unknown) => {
  document.documentElement.dataset["state"] = "failed";
  const text = error instanceof Error ? error.message : String(error);
  document.getElementById("app")?.append(el("p", { class: "failed", text: `This page cannot be shown: ${text}. It may be cut off, or the browser too old (Chrome 103, Firefox 113, Safari 16.4 and newer read it).` }));
  throw error;
});
