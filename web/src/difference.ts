// Two trees as one: every node with its bytes in the old file and in the new one, as wide as the larger of both.

import type { App } from "./app.ts";
import type { Device, Moved } from "./model.ts";
import type { Live, Rows } from "./rows.ts";
import { type Sized, framesOf, functionText, moduleOf, modulePath, operationOf, placeOf } from "./tree.ts";

export type By = "category" | "line" | "module" | "operation";

export interface DifferenceNode extends Sized<DifferenceNode> {
  label: string;
  old: number;
  now: number;
}

/** A path from the root, and the bytes at its end. */
export type Path = readonly [labels: readonly string[], bytes: number];

function newNode(label: string, parent: DifferenceNode | null): DifferenceNode {
  return { label, parent, depth: parent ? parent.depth + 1 : 0, bytes: 0, old: 0, now: 0, children: new Map() };
}

export function buildDifference(old: Iterable<Path>, now: Iterable<Path>): DifferenceNode {
  const root = newNode("", null);
  for (const [side, paths] of [["old", old], ["now", now]] as const) {
    for (const [labels, bytes] of paths) {
      let node = root;
      node[side] += bytes;
      for (const label of labels) {
        let child = node.children.get(label);
        if (!child) node.children.set(label, (child = newNode(label, node)));
        node = child;
        node[side] += bytes;
      }
    }
  }
  widen(root);
  return root;
}

/** The width of a node: that of its children, and the larger of what both sides have of its own. */
function widen(node: DifferenceNode): void {
  let [old, now] = [node.old, node.now];
  node.bytes = 0;
  for (const child of node.children.values()) {
    widen(child);
    node.bytes += child.bytes;
    old -= child.old;
    now -= child.now;
  }
  node.bytes += Math.max(old, now);
}

/** The paths of what is live at the peak: functions from the outermost on, and the line that allocates. */
export function peakPaths(app: App, device: Device, by: By, moved: Moved | null): Path[] {
  const { rows, detail } = device;
  const live: Live | null = app.live(device, device.facts.peak_event);
  if (!rows || !detail || !live) return [];
  const found: Path[] = [];
  for (let kind = 0; kind < rows.kinds.n; kind++) {
    if (live.count[kind]) found.push([labelsOf(app, device, rows, kind, by, moved), live.count[kind] * rows.kinds.bytes[kind]]);
  }
  return found;
}

function labelsOf(app: App, { detail }: Device, rows: Rows, kind: number, by: By, moved: Moved | null): string[] {
  if (!detail) return [];
  const stack = rows.kinds.stack[kind];
  const line = placeOf(rows, detail, stack);
  // Lines move when something is inserted above them: the callers are functions, and the line is matched.
  const callers = framesOf(rows, detail, stack, 2).map((frame) => functionText(detail, frame, moved?.files));
  const path = [...callers, moved?.lines[line] ?? line];
  if (by === "category") return [app.page.categories[rows.kinds.category[kind]], ...path];
  if (by === "module") return modulePath(moduleOf(rows, detail, kind));
  return by === "operation" ? [operationOf(rows, detail, kind), ...path.reverse()] : path;
}
