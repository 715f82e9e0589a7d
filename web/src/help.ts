// What keys and the mouse do.

import { button, el } from "./dom.ts";

const KEYS: readonly (readonly [string, string])[] = [
  ["click", "on the timeline: choose the moment; on an allocation: its stack"],
  ["drag, ← →, A D", "move along the timeline"],
  ["wheel, + −, W S", "zoom: the wheel on a picture that was clicked, or with Ctrl; double click too, and two fingers"],
  ["Shift + drag", "zoom to what is brushed; so does the small timeline"],
  ["0", "show everything"],
  ["click, R", "on an iteration, a phase or a named range: its totals; R: those of what is visible"],
  ["I", "the iteration, phase or named range around the moment, one after the other: its totals"],
  [", .", "the range of that kind before and after it"],
  ["P", "choose the peak"],
  ["F", "choose the request that failed, then the next one that did"],
  ["[ ]", "one event earlier, later"],
  ["1 2 3 …", "the tabs"],
  ["/", "filter what is live"],
  ["arrows, Enter", "within the live memory: to what a line contains, and choose it"],
  ["Enter", "on a row: choose it; on the chosen row: into its details, from which Esc leads back"],
  ["↑ ↓", "on the allocations: the one above or below at the moment"],
  ["arrows", "on the allocator map: the block before or after, in the segment before or after"],
  ["C", "copy the shown tab as text"],
  ["T", "light, dark"],
  ["Esc", "close what is chosen, show all again"],
];

export function openHelp(): void {
  const rows = KEYS.map(([key, text]) => el("tr", {}, el("th", { text: key }), el("td", { text })));
  open(el("h2", { text: "Keys and mouse" }), el("table", {}, ...rows));
}

/** Where the browser gives no clipboard: a text, marked, so that it can be copied. */
export function openText(text: string): void {
  const box = el("textarea", { attrs: { readonly: "", rows: "16", "aria-label": "Text" } });
  box.value = text;
  open(el("h2", { text: "Copy this text" }), box);
  box.select();
}

function open(...content: HTMLElement[]): void {
  const dialog = el("dialog", { class: "help" }, ...content);
  dialog.append(button("Close", "Esc", () => dialog.close()));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
