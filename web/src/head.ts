// The head: what filled the memory, before any click.

import type { App } from "./app.ts";
import { colorOf, css } from "./colors.ts";
import { button, el, swatch } from "./dom.ts";
import { counted, formatBytes, formatShare } from "./format.ts";
import type { Device } from "./model.ts";
import { sourceLink } from "./source.ts";
import { eventsOfPage, momentOfAll, momentText } from "./numbers.ts";

const VERDICTS: Record<string, string> = {
  complete: "History complete",
  "started late": "Recording started late",
  truncated: "History truncated",
  "no trace": "No events",
};

export function headOf(app: App, device: Device): HTMLElement {
  const { facts } = device;
  const where = momentOfAll(facts, facts.peak_event);
  return el(
    "section",
    { class: "head", attrs: { "aria-label": "Peak" } },
    el(
      "div",
      { class: "figures" },
      figure("Peak allocated", formatBytes(facts.peak_bytes), where, "main"),
      changeFigure(app),
      figure("Peak reserved", formatBytes(facts.reserved_peak_bytes), `${formatBytes(facts.reserved_at_peak_bytes)} at the peak`),
      figure("Peak active", formatBytes(facts.active_peak_bytes), "includes freed blocks that a stream still uses"),
      oomFigure(app, device),
      historyFigure(device),
    ),
    bar(device),
    legend(device),
    verdict(app, device),
    advice(app, device),
    notes(device),
  );
}

function figure(name: string, value: string, more: string, kind = ""): HTMLElement {
  return el(
    "div",
    { class: `figure ${kind}` },
    el("div", { class: "figure-name", text: name }),
    el("div", { class: "figure-value", text: value }),
    el("div", { class: "figure-more", text: more }),
  );
}

/** The failed request, which leads to its moment. */
function oomFigure(app: App, device: Device): HTMLElement | null {
  const oom = device.facts.oom[0];
  if (!oom) return null;
  const more = `${momentText(device.facts, oom.event)}, ${formatBytes(oom.free)} free on the device`;
  const others = device.facts.oom.length - 1;
  const shown = figure("Out of memory", `${formatBytes(oom.requested)} requested`, others ? `${more}; ${others} more` : more, "alarm");
  const lead = button("", "Show what was live when the request failed (F)", () => app.showFailure(), "leads");
  lead.append(shown);
  return lead;
}

/** Of two files, how the peak has changed. */
function changeFigure(app: App): HTMLElement | null {
  if (!app.page.is_comparison) return null;
  const [old, now] = app.devices.map((device) => device.facts.peak_bytes);
  const sign = now > old ? "+" : now < old ? "−" : "";
  return figure("Change of the peak", `${sign}${formatBytes(Math.abs(now - old))}`, `from ${formatBytes(old)} to ${formatBytes(now)}`);
}

/** Show allocations in the table, which may be below the window. */
function showAllocations(app: App, query: string): void {
  app.update({ tab: "live", focus: [], query });
  document.querySelector('[role="tablist"]')?.scrollIntoView({ block: "start" });
}

/** What matters most, and the lines that hold most; a click on one shows its allocations. */
function verdict(app: App, device: Device): HTMLElement | null {
  const { about, sentence, moment, causes } = device.facts.verdict;
  if (!causes.length && about === "peak") return null;
  const rows = causes.map(([bytes, category, line, purpose]) => {
    const place = /^(.*:\d+) in /.exec(line)?.[1] ?? "";
    const show = () => showAllocations(app, `${place} ${category}`.trim());
    return el("li", {}, el("span", { class: "cause-bytes", text: formatBytes(bytes) }), swatch(css(colorOf(category))), button(`${purpose}, ${line}`, "Show its allocations", show, "link"), sourceLink(app, line, "source"));
  });
  return el(
    "div",
    { class: "verdict" },
    about === "peak" ? null : el("p", { class: `sentence ${about}`, text: sentence }),
    rows.length ? el("p", { class: "figure-name", text: `The largest causes ${moment}` }) : null,
    el("ul", {}, ...rows),
  );
}

/** What to change in the program: each opens to what it saves, how, and when it would be wrong. */
function advice(app: App, device: Device): HTMLElement | null {
  const found = device.facts.advice.map(({ what, bytes, line, rows }) => {
    const show = () => showAllocations(app, line);
    return el(
      "details",
      {},
      el("summary", {}, el("span", { class: "cause-bytes", text: `−${formatBytes(bytes)}` }), what),
      el("table", {}, ...rows.map(([title, text]) => el("tr", {}, el("th", { text: title }), el("td", { text })))),
      line ? button(`Allocated by ${line}`, "Show its allocations", show, "link") : null,
      line ? sourceLink(app, line, "source") : null,
    );
  });
  return found.length ? el("div", { class: "advice" }, el("p", { class: "figure-name", text: "What to change, with the bytes it saves at the peak" }), ...found) : null;
}

function historyFigure(device: Device): HTMLElement {
  const { history, history_reason } = device.facts;
  return el(
    "div",
    { class: `figure history ${history === "complete" ? "good" : "warning"}` },
    el("div", { class: "figure-name", text: `${VERDICTS[history] ?? history}` }),
    el("div", { class: "figure-text", text: history_reason }),
  );
}

/** The categories at the peak, most bytes first. */
function shares(device: Device): { name: string; bytes: number; count: number; certainty: string }[] {
  return device.facts.peak_categories
    .map(([name, bytes, count, certainty]) => ({ name, bytes, count, certainty }))
    .sort((a, b) => b.bytes - a.bytes);
}

function bar(device: Device): HTMLElement {
  const whole = device.facts.peak_bytes;
  const parts = shares(device).map(({ name, bytes }) =>
    el("div", {
      class: "share",
      title: `${name}: ${formatBytes(bytes)}, ${formatShare(bytes, whole)}`,
      style: { "background-color": css(colorOf(name)), "flex-grow": String(bytes / Math.max(1, whole)) },
    }),
  );
  return el("div", { class: "shares", attrs: { "aria-hidden": "true" } }, ...parts);
}

function legend(device: Device): HTMLElement {
  const whole = device.facts.peak_bytes;
  const rows = shares(device).map(({ name, bytes, count, certainty }) =>
    el(
      "li",
      { attrs: { "data-category": name, "data-bytes": String(bytes) }, title: counted(count, "allocation") },
      swatch(css(colorOf(name))),
      el("span", { class: "legend-name", text: certainty ? `${name}, ${certainty}` : name }),
      el("span", { class: "legend-bytes", text: formatBytes(bytes) }),
      el("span", { class: "legend-share", text: formatShare(bytes, whole) }),
    ),
  );
  return el("ul", { class: "legend", attrs: { "aria-label": "Categories at the peak" } }, ...rows);
}

function notes(device: Device): HTMLElement | null {
  const all = [...device.facts.notes, ...(device.file.times?.notes ?? []), ...left(device)];
  if (!all.length) return null;
  const seen = new Map(all.map(([slug, text]) => [`${slug}: ${text}`, [slug, text] as const]));
  const items = [...seen.values()].map(([slug, text]) => el("li", {}, el("b", { text: slug }), ` ${text}`));
  return el("details", { class: "notes" }, el("summary", { text: counted(items.length, "note") }), el("ul", {}, ...items));
}

/** What the file has and this page has not. */
function left({ facts }: Device): [string, string][] {
  const found: [string, string][] = [];
  const step = facts.time_step;
  if (step > 1) found.push(["times", `of one event in ${step}; those between are spread evenly, which keeps the page small`]);
  if (facts.n_spans_left_out) found.push(["spans", `${counted(facts.n_spans_left_out, "shorter one")} left out, which keeps the page small`]);
  return found;
}

export function fileLine(device: Device): string {
  const { file, facts } = device;
  const protocol = file.protocol === null ? "" : `, protocol ${file.protocol}`;
  return (
    `${file.format}${protocol}, ${formatBytes(file.bytes)}, written by ${file.written_by} · ` +
    `${facts.name}: ${eventsOfPage(facts)}, ${counted(facts.n_allocations, "allocation")}`
  );
}

export function fileDetails(device: Device): HTMLElement | null {
  const { file } = device;
  const rows: [string, string][] = [];
  if (file.command) rows.push(["recorded", file.command]);
  if (file.project_root) rows.push(["project", file.project_root]);
  for (const [key, value] of Object.entries(file.settings)) rows.push([key, value]);
  if (!rows.length) return null;
  const items = rows.map(([key, value]) => el("tr", {}, el("th", { text: key }), el("td", { text: value })));
  return el("details", { class: "file-details" }, el("summary", { text: "About the file" }), el("table", {}, ...items));
}
