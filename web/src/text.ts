// What the page shows as plain text, for a message or an issue: the moment and the filter in words, then the table.

import type { App } from "./app.ts";
import { iterationText, momentOfAll } from "./numbers.ts";
import { rangeText } from "./range.ts";

/** What is chosen, in words. */
export function choiceText(app: App): string[] {
  const { device, state } = app;
  const { facts, file } = device;
  const isFailure = facts.oom.some(({ event }) => event === state.moment);
  const marks = [isFailure ? "when the request failed" : state.moment === facts.peak_event ? "the peak" : ""];
  const iteration = app.iterationOf(device, state.moment);
  if (device.spans.iterationFirst.length > 1 && iteration >= 0) marks.push(iterationText(facts, iteration));
  const moment = momentOfAll(facts, state.moment);
  const found = [[file.name, facts.name, moment, ...marks.filter(Boolean)].join(", ")];
  if (state.tab === "range") found.push(`range: ${rangeText(app)}`);
  if (state.tab === "live" && state.query) found.push(`filter: only what has the words ${state.query.trim().split(/\s+/).join(" and ")}`);
  return found;
}

/** A tab as text: its title without buttons, and its table in columns. */
export function panelText(panel: HTMLElement): string[] {
  const title = panel.querySelector("h3")?.cloneNode(true) as HTMLElement | undefined;
  for (const link of title?.querySelectorAll("button") ?? []) link.remove();
  const isShown = (cell: Element) => (cell as HTMLElement).offsetParent !== null;
  // The title of a cell has what there was no room for.
  const textOf = (cell: Element) => ((cell.matches("td.c-where, td.c-module, td.c-tensor, td.t-name") && (cell as HTMLElement).title) || cell.textContent || "").replace(/ [↓↑]$/, "");
  const trimmed = (cell: Element) => (cell.matches(".s-text") ? textOf(cell) : textOf(cell).trim());
  const items = [...panel.querySelectorAll(".source h4, table tr")];
  const rows = items.map((item) => (item.matches("h4") ? [] : [...item.children].filter(isShown).map(trimmed)));
  const widths: number[] = [];
  for (const row of rows) row.forEach((text, i) => (widths[i] = Math.max(widths[i] ?? 0, text.length)));
  const line = (row: string[]) => row.map((text, i) => text.padEnd(widths[i])).join("  ").trimEnd();
  const table = rows.map((row, i) => (row.length ? line(row) : (items[i].textContent ?? "")));
  const more = [...panel.querySelectorAll(".more")].map((button) => button.textContent ?? "");
  return [title?.textContent?.trim() ?? "", ...table, ...more].filter(Boolean);
}
