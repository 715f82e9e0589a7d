// Elements with text: nothing here ever takes markup, so that a name in a file is a name and no more.

type Child = Node | string | null | undefined | false;

interface Props {
  class?: string;
  text?: string;
  title?: string;
  attrs?: Record<string, string>;
  style?: Record<string, string>;
  on?: Record<string, (event: never) => void>;
}

export function el<K extends keyof HTMLElementTagNameMap>(tag: K, props: Props = {}, ...children: Child[]): HTMLElementTagNameMap[K] {
  const element = document.createElement(tag);
  if (props.class) element.className = props.class;
  if (props.text !== undefined) element.textContent = props.text;
  if (props.title) element.title = props.title;
  for (const [name, value] of Object.entries(props.attrs ?? {})) element.setAttribute(name, value);
  if (props.style) element.style.cssText = Object.entries(props.style).map(([name, value]) => `${name}:${value}`).join(";");
  for (const [name, listener] of Object.entries(props.on ?? {})) element.addEventListener(name, listener as EventListener);
  for (const child of children) if (child) element.append(child);
  return element;
}

export function button(text: string, title: string, act: () => void, name = "button"): HTMLButtonElement {
  return el("button", { class: name, text, title, attrs: { type: "button" }, on: { click: act } });
}

/** Enter and the space bar act on a row as a click does; on the chosen row they lead into its details. */
export function onEnter(act: () => void): (event: KeyboardEvent) => void {
  return (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    const isChosen = (event.currentTarget as HTMLElement).classList.contains("chosen");
    act();
    if (isChosen) document.querySelector<HTMLElement>(".detail button")?.focus();
  };
}

/** A row of buttons of which one is chosen. */
export function choice<T extends string>(
  label: string,
  options: readonly (readonly [T, string])[],
  chosen: () => T,
  choose: (value: T) => void,
): { element: HTMLElement; update: () => void; rename: (value: T, text: string) => void } {
  const buttons = options.map(([value, text]) => ({ value, button: button(text, "", () => choose(value), "segment") }));
  const element = el("div", { class: "choice", attrs: { role: "group", "aria-label": label } });
  buttons.forEach(({ button }) => element.append(button));
  const update = () => {
    for (const { value, button } of buttons) button.setAttribute("aria-pressed", String(value === chosen()));
  };
  update();
  const rename = (value: T, text: string) => {
    for (const item of buttons) if (item.value === value) item.button.textContent = text;
  };
  return { element, update, rename };
}

/** Replace what an element contains; the focus stays where it was, on what has taken that place. */
export function clear(element: Element, ...children: Child[]): void {
  const held = (element.contains(document.activeElement) ? document.activeElement : element) as HTMLElement;
  const alike = () => [...element.querySelectorAll<HTMLElement>(held.tagName)].filter(({ title }) => title === held.title);
  const at = held === element ? -1 : alike().indexOf(held);
  element.replaceChildren(...children.filter((child): child is Node | string => Boolean(child)));
  if (at >= 0) alike()[at]?.focus({ preventScroll: true });
}

export function swatch(color: string): HTMLElement {
  return el("span", { class: "swatch", style: { "background-color": color } });
}
