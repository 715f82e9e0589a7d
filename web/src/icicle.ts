// A tree as rows of cells, each as wide as its bytes, that the mouse and the arrows lead through.

import { clear, el } from "./dom.ts";
import { type Placed, type Sized, layOut } from "./tree.ts";

export const ROW = 23;
/** Pixels of the narrowest cell, of which one is the gap: narrower ones would be a thousand without a text. */
const LEAST = 4;

/** What cells of one kind of tree show, and what a click on one does. */
export interface Look<T> {
  text(node: T): string;
  title(node: T): string;
  background(node: T): string;
  choose(node: T): void;
}

export class Icicle<T extends Sized<T>> {
  readonly element: HTMLElement;
  placed: Placed<T>[] = [];
  private focus: T | null = null;
  private width = 0;

  constructor(
    name: string,
    private readonly look: Look<T>,
  ) {
    this.element = el("div", { class: "icicle", attrs: { role: "tree", "aria-label": name } });
    // One listener for all cells, of which there may be a thousand.
    this.element.addEventListener("click", (event) => {
      const place = this.placeOf(event);
      if (place) this.look.choose(place.node);
    });
    this.element.addEventListener("keydown", (event) => {
      const place = this.placeOf(event);
      if (place) this.walk(event, place);
    });
    // Its height follows from the cells: only another width needs others.
    new ResizeObserver(([entry]) => {
      const width = Math.round(entry.contentRect.width);
      if (width === this.width) return;
      this.width = width;
      this.draw();
    }).observe(this.element);
  }

  show(focus: T): void {
    this.focus = focus;
    this.draw();
  }

  get height(): number {
    return (this.placed.reduce((most, { depth }) => Math.max(most, depth), 0) + 1) * ROW;
  }

  private draw(): void {
    const { element, focus, width } = this;
    if (!width || !focus) return;
    this.placed = layOut(focus, LEAST / width);
    const box = el("div", { class: "icicle-rows", style: { height: `${this.height}px` } });
    const hadFocus = element.contains(document.activeElement);
    box.append(...this.placed.map((place) => this.cell(place, width, focus)));
    clear(element, box);
    if (hadFocus) element.querySelector<HTMLElement>("[tabindex='0']")?.focus();
  }

  private placeOf({ target }: Event): Placed<T> | undefined {
    const cell = (target as HTMLElement).closest(".cell");
    return cell ? this.placed[[...(this.element.firstElementChild as HTMLElement).children].indexOf(cell)] : undefined;
  }

  /** Arrows lead from a node to what it contains, to what contains it, and to its neighbours. */
  private walk(event: KeyboardEvent, place: Placed<T>): void {
    const { node, depth } = place;
    const siblings = this.placed.filter((other) => other.depth === depth);
    const at = siblings.indexOf(place);
    const next: Record<string, Placed<T> | undefined> = {
      ArrowDown: this.placed.find((other) => other.node.parent === node),
      ArrowUp: this.placed.find((other) => other.node === node.parent),
      ArrowLeft: siblings[at - 1],
      ArrowRight: siblings[at + 1],
    };
    if (!(event.key in next)) return;
    event.preventDefault();
    event.stopPropagation();
    const target = next[event.key];
    const box = this.element.firstElementChild;
    if (target) (box?.children[this.placed.indexOf(target)] as HTMLElement | undefined)?.focus();
  }

  private cell({ node, from, to, depth }: Placed<T>, width: number, focus: T): HTMLElement {
    const { look } = this;
    return el("button", {
      class: depth < focus.depth ? "cell above" : "cell",
      text: (to - from) * width > 28 ? look.text(node) : "",
      title: look.title(node),
      attrs: { type: "button", role: "treeitem", "data-bytes": String(node.bytes), tabindex: node === focus ? "0" : "-1" },
      style: {
        left: `${from * 100}%`,
        width: `calc(${(to - from) * 100}% - 1px)`,
        top: `${depth * ROW}px`,
        background: look.background(node),
      },
    });
  }
}
