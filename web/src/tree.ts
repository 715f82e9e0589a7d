// What is live at a moment as a tree: by the lines of stacks, by modules or by operations, sizes inclusive.

import type { Detail } from "./model.ts";
import type { Live, Rows } from "./rows.ts";

export type Grouping = "line" | "module" | "operation";
/** Which frames of a stack count: the project's, all of Python, all. Python writes 2, 1 and 0. */
export type Frames = "project" | "python" | "all";

/** A node of any tree that is drawn as wide as its bytes. */
export interface Sized<T> {
  bytes: number;
  children: Map<string, T>;
  parent: T | null;
  depth: number;
}

export interface Node extends Sized<Node> {
  label: string;
  count: number;
  /** Bytes by category. */
  categories: number[];
  /** Those that end here, none of its children. */
  kinds: number[];
}

export const NO_LINE = "library code only";
export const NO_STACK = "no stack recorded";

export function leastOrigin(frames: Frames): number {
  return frames === "project" ? 2 : frames === "python" ? 1 : 0;
}

/** Texts and paths that are made once, as every click on the timeline needs those of thousands of stacks. */
interface Known {
  frames: string[];
  places: string[];
  /** By the least origin of frames, then by stack: root first, and innermost first. */
  paths: string[][][];
  callers: string[][][];
}

const KNOWN = new WeakMap<Detail, Known>();

function knownOf(detail: Detail): Known {
  let known = KNOWN.get(detail);
  if (!known) KNOWN.set(detail, (known = { frames: [], places: [], paths: [[], [], []], callers: [[], [], []] }));
  return known;
}

export function frameText(detail: Detail, frame: number): string {
  return (knownOf(detail).frames[frame] ??= newFrameText(detail, frame));
}

function newFrameText(detail: Detail, frame: number): string {
  const { files, file, line, names, name } = detail.frames;
  const place = line[frame] ? `${files[file[frame]]}:${line[frame]}` : files[file[frame]];
  return names[name[frame]] ? `${place} in ${names[name[frame]]}` : place;
}

/** The function of a frame, whatever its line; `files` has new names of some. */
export function functionText({ frames }: Detail, frame: number, files: Record<string, string> = {}): string {
  const path = frames.files[frames.file[frame]];
  return `${files[path] ?? path} in ${frames.names[frames.name[frame]]}`;
}

/** A place without its folders: what a cell has room for. The whole text belongs into the tooltip. */
export function withoutFolders(text: string): string {
  return text.replace(/^.*[\\/](?=[^\\/]*(:\d+$| in ))/, "");
}

/** Frames between two lines that a person wrote: of hooks, decorators, notebooks and the interpreter. */
const PLUMBING = [
  /[\\/]nn[\\/]modules[\\/](module|container)\.py$/,
  /(^|[\\/])(ipykernel|IPython|traitlets|tornado|asyncio|concurrent)[\\/]/,
  /(^|[\\/])(runpy|threading|contextlib|functools|ipykernel_launcher|_contextlib|_hooks|hooks|eval_frame|external_utils)\.py$/,
  /^<frozen /,
];

const FOLDED = new WeakMap<Detail, Uint8Array>();

/** Whether a frame is of no interest to who reads a stack. */
export function isPlumbing(detail: Detail, frame: number): boolean {
  let known = FOLDED.get(detail);
  if (!known) {
    const { names, files, name, file, origin } = detail.frames;
    const matches = (text: string) => PLUMBING.some((pattern) => pattern.test(text));
    const [byName, byFile] = [names.map(matches), files.map(matches)];
    known = Uint8Array.from(origin, (kind, i) => Number(kind < 2 && (byName[name[i]] || byFile[file[i]])));
    FOLDED.set(detail, known);
  }
  return known[frame] === 1;
}

/** The frames of a stack that count, root first: of Python, without those that only call others. */
export function framesOf(rows: Rows, detail: Detail, stack: number, least: number): number[] {
  const found = [];
  for (let i = rows.stackFirst[stack]; i < rows.stackFirst[stack + 1]; i++) {
    const frame = rows.stackFrame[i];
    if (detail.frames.origin[frame] >= least && !(least === 1 && isPlumbing(detail, frame))) found.push(frame);
  }
  return found;
}

/** The innermost line of the project, or else of Python; empty where a stack has neither. */
export function innermost(rows: Rows, detail: Detail, stack: number): string {
  for (const least of [2, 1]) {
    const found = framesOf(rows, detail, stack, least);
    if (found.length) return frameText(detail, found[found.length - 1]);
  }
  return "";
}

/** The innermost line, or why there is none. */
export function placeOf(rows: Rows, detail: Detail, stack: number): string {
  return (knownOf(detail).places[stack] ??= innermost(rows, detail, stack) || (isEmpty(rows, stack) ? NO_STACK : NO_LINE));
}

function isEmpty(rows: Rows, stack: number): boolean {
  return rows.stackFirst[stack] === rows.stackFirst[stack + 1];
}

/** The lines of a stack, root first, or why there is none. */
function linePath(rows: Rows, detail: Detail, stack: number, least: number): string[] {
  const paths = knownOf(detail).paths[least];
  let path = paths[stack];
  if (!path) {
    path = framesOf(rows, detail, stack, least).map((frame) => frameText(detail, frame));
    if (!path.length) path.push(isEmpty(rows, stack) ? NO_STACK : NO_LINE);
    paths[stack] = path;
  }
  return path;
}

export const NO_MODULE = "no module known";
export const NO_OPERATION = "unknown";

export function operationOf({ kinds }: Rows, detail: Detail, kind: number): string {
  return detail.operations[kinds.operation[kind] - 1] || NO_OPERATION;
}

export function moduleOf({ kinds }: Rows, detail: Detail, kind: number): string {
  return (kinds.module[kind] && detail.modules[kinds.module[kind] - 1]) || NO_MODULE;
}

/** Tell the lines of calls, which have numbers, from a recorded path of modules. */
export function isCallPath(module: string): boolean {
  return module.includes(":");
}

/** Whether the lines of calls stand for all modules, as no paths were recorded. */
export function hasCallPaths(detail: Detail | null): boolean {
  return Boolean(detail?.modules.length && detail.modules.every(isCallPath));
}

/** The column of modules by what stands in it: recorded paths, lines of calls where there is none, or both. */
export function moduleTitle(detail: Detail | null): string {
  if (hasCallPaths(detail)) return "Call path";
  return detail?.modules.some(isCallPath) ? "Module or call path" : "Module";
}

/** The path that equal modules have in common, such as `blocks.*.mlp`, and how many they are. */
export interface EqualModules {
  path: string;
  n: number;
}

/** Modules whose paths differ in numbers alone and that hold the same, by the number of the module. */
export function equalModules({ kinds }: Rows, detail: Detail, live: Live): Map<number, EqualModules> {
  const [counts, bytes] = [new Map<number, number>(), new Map<number, number>()];
  for (let kind = 0; kind < kinds.n; kind++) {
    const module = kinds.module[kind];
    if (!module || !live.count[kind]) continue;
    counts.set(module, (counts.get(module) ?? 0) + live.count[kind]);
    bytes.set(module, (bytes.get(module) ?? 0) + live.count[kind] * kinds.bytes[kind]);
  }
  const groups = new Map<string, number[]>();
  for (const module of counts.keys()) {
    const name = detail.modules[module - 1];
    if (isCallPath(name)) continue;
    const key = `${name.replace(/(?<![^.])\d+(?![^.])/g, "*")} ${counts.get(module)} ${bytes.get(module)}`;
    groups.set(key, [...(groups.get(key) ?? []), module]);
  }
  const found = new Map<number, EqualModules>();
  for (const modules of groups.values()) {
    if (modules.length === 1) continue;
    const [first, ...others] = modules.map((module) => detail.modules[module - 1].split("."));
    const path = first.map((part, i) => (others.every((other) => other[i] === part) ? part : "*")).join(".");
    for (const module of modules) found.set(module, { path, n: modules.length });
  }
  return found;
}

/** From the largest group to the allocation itself; `equal` are modules that share a node. */
export function pathOf(rows: Rows, detail: Detail, kind: number, grouping: Grouping, frames: Frames, equal?: Map<number, EqualModules>): string[] {
  const { kinds } = rows;
  if (grouping !== "module") {
    const [stack, least] = [kinds.stack[kind], leastOrigin(frames)];
    const lines = linePath(rows, detail, stack, least);
    if (grouping === "line") return lines;
    // From what allocates to those that call it: what one operation takes, wherever it is called.
    const callers = (knownOf(detail).callers[least][stack] ??= [...lines].reverse());
    return [operationOf(rows, detail, kind), ...callers];
  }
  const module = moduleOf(rows, detail, kind);
  if (module === NO_MODULE) return [module];
  const group = equal?.get(kinds.module[kind]);
  if (!group) return modulePath(module);
  return [...modulePath(group.path).slice(0, -1), `${group.path}, ${group.n} modules`, module];
}

/** `blocks.3.attn` has three names; `model.py:53 < train.py:21` are the lines of calls, innermost first. */
export function modulePath(module: string): string[] {
  if (isCallPath(module) || module === NO_MODULE) return module.split(" < ").reverse();
  const parts = module.split(".");
  return parts.map((_, i) => parts.slice(0, i + 1).join("."));
}

export function buildTree(
  rows: Rows,
  detail: Detail,
  live: Live,
  grouping: Grouping,
  frames: Frames,
  nCategories: number,
  isWanted: (kind: number) => boolean,
): Node {
  const root = newNode("", null, nCategories);
  const equal = grouping === "module" ? equalModules(rows, detail, live) : undefined;
  for (let kind = 0; kind < rows.kinds.n; kind++) {
    const count = live.count[kind];
    if (!count || !isWanted(kind)) continue;
    const bytes = count * rows.kinds.bytes[kind];
    const category = rows.kinds.category[kind];
    let node = root;
    grow(node, bytes, count, category);
    for (const label of pathOf(rows, detail, kind, grouping, frames, equal)) {
      let child = node.children.get(label);
      if (!child) node.children.set(label, (child = newNode(label, node, nCategories)));
      node = child;
      grow(node, bytes, count, category);
    }
    node.kinds.push(kind);
  }
  return root;
}

function newNode(label: string, parent: Node | null, nCategories: number): Node {
  const depth = parent ? parent.depth + 1 : 0;
  return { label, bytes: 0, count: 0, categories: new Array<number>(nCategories).fill(0), children: new Map(), kinds: [], parent, depth };
}

function grow(node: Node, bytes: number, count: number, category: number): void {
  node.bytes += bytes;
  node.count += count;
  node.categories[category] += bytes;
}

/** The kinds of a node and of all below it. */
export function kindsOf(node: Node): number[] {
  const kinds: number[] = [];
  const visit = ({ kinds: own, children }: Node) => {
    for (const kind of own) kinds.push(kind);
    children.forEach(visit);
  };
  visit(node);
  return kinds;
}

/** Where the nodes are drawn: from 0 to 1 across, one row per depth; narrower ones are left out. */
export interface Placed<T> {
  node: T;
  from: number;
  to: number;
  depth: number;
}

export function layOut<T extends Sized<T>>(focus: T, least: number): Placed<T>[] {
  const placed: Placed<T>[] = [];
  const ancestors: T[] = [];
  for (let node = focus.parent; node; node = node.parent) ancestors.unshift(node);
  ancestors.forEach((node, depth) => placed.push({ node, from: 0, to: 1, depth }));
  const visit = (node: T, from: number, to: number) => {
    placed.push({ node, from, to, depth: node.depth });
    const children = [...node.children.values()].sort((a, b) => b.bytes - a.bytes);
    let at = from;
    for (const child of children) {
      const width = node.bytes ? ((to - from) * child.bytes) / node.bytes : 0;
      if (width >= least) visit(child, at, at + width);
      at += width;
    }
  };
  visit(focus, 0, 1);
  return placed;
}
