import { deepEqual, equal, ok } from "node:assert/strict";
import { test } from "node:test";
import { STACKED, type Rgb, colorOf, mix, tintOf } from "../src/colors.ts";
import { fillColumn } from "../src/columns.ts";
import { byteTicks, formatBytes, formatCount, formatShare, ticks } from "../src/format.ts";
import { flow } from "../src/map.ts";
import { groupSegments, holes, reservedCurve, segmentsAt } from "../src/segments.ts";
import { type State, fromHash, toHash } from "../src/state.ts";
import { buildDifference } from "../src/difference.ts";
import { Svg, escape } from "../src/svg.ts";
import { firstOf } from "../src/table.ts";
import { type Node, buildTree, isPlumbing, layOut, pathOf, withoutFolders } from "../src/tree.ts";
import { type Detail, spread } from "../src/model.ts";
import { liveAt, NEVER } from "../src/rows.ts";
import { madeOf } from "./made.ts";

const CATEGORIES = STACKED;

// Machado, Oliveira and Fernandes (2009), severity 1, for linear light.
const VISION: Record<string, number[][]> = {
  usual: [[1, 0, 0], [0, 1, 0], [0, 0, 1]],
  protanopia: [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
  deuteranopia: [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.01182, 0.04294, 0.968881]],
  tritanopia: [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.3039]],
};

function lab(color: Rgb, matrix: number[][]): number[] {
  const linear = color.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  const [r, g, b] = matrix.map((row) => Math.max(0, Math.min(1, row[0] * linear[0] + row[1] * linear[1] + row[2] * linear[2])));
  const xyz = [
    (0.4124 * r + 0.3576 * g + 0.1805 * b) / 0.9505,
    0.2126 * r + 0.7152 * g + 0.0722 * b,
    (0.0193 * r + 0.1192 * g + 0.9505 * b) / 1.089,
  ].map((v) => (v > 0.008856 ? Math.cbrt(v) : 7.787 * v + 16 / 116));
  return [116 * xyz[1] - 16, 500 * (xyz[0] - xyz[1]), 200 * (xyz[1] - xyz[2])];
}

for (const isDark of [false, true]) {
  test(`any two categories are distinct for every kind of colour vision on a ${isDark ? "dark" : "light"} page`, () => {
    deepEqual(tooNear((name) => colorOf(name, isDark)), []);
  });
}

test("every category stands out from a dark page", () => {
  const light = (color: Rgb) => lab(color, VISION["usual"])[0];
  const page = light([0x16, 0x1b, 0x22]);
  deepEqual(CATEGORIES.filter((name) => light(colorOf(name, true)) - page < 24), []);
});

function tooNear(colorOf: (name: string) => Rgb): string[] {
  const near: string[] = [];
  for (const [vision, matrix] of Object.entries(VISION)) {
    CATEGORIES.forEach((a, i) => {
      for (const b of CATEGORIES.slice(i + 1)) {
        const [p, q] = [lab(colorOf(a), matrix), lab(colorOf(b), matrix)];
        const distance = Math.hypot(...p.map((v, k) => v - q[k]));
        if (distance < 16) near.push(`${vision}: ${a}, ${b} ${distance.toFixed(1)}`);
      }
    });
  }
  return near;
}

test("a cell shows a line and its function, and no folder before them", () => {
  const texts = ["net/blocks/model.py:35 in forward", "C:\\me\\a.py:7 in f", "ipython cell.py:3", "library code only", "a/b"];
  deepEqual(texts.map(withoutFolders), ["model.py:35 in forward", "a.py:7 in f", "ipython cell.py:3", "library code only", "a/b"]);
});

test("frames between two lines that a person wrote are folded, and never one of the project", () => {
  const names = ["inner", "forward", "decorate_context", "main"];
  const files = ["/x/torch/nn/modules/module.py", "/x/torch/nn/modules/linear.py", "/x/torch/utils/_contextlib.py", "hooks.py"];
  const four = [0, 1, 2, 3];
  const detail = { frames: { names, files, name: four, file: four, line: four, origin: [1, 1, 1, 2] } } as unknown as Detail;
  deepEqual(four.map((frame) => isPlumbing(detail, frame)), [true, false, true, false]);
});

test("a mixed colour lies between the two", () => {
  deepEqual(mix([200, 100, 0], [0, 100, 100], 0.25), [50, 100, 75]);
});

test("times that the page has not are spread evenly between those that it has", () => {
  deepEqual([...spread(Float64Array.of(0, 5, 9), 1, 3)], [0, 5, 9]);
  deepEqual([...spread(Float64Array.of(0, 40, 60), 4, 7)], [0, 10, 20, 30, 40, 50, 60]);
  deepEqual([...spread(Float64Array.of(0, 40, 41), 4, 6)], [0, 10, 20, 30, 40, 41]);
});

test("a column is read as it was written, differences with their sign", () => {
  deepEqual([...fillColumn(Uint8Array.of(1, 2, 0, 1), [2, 2, 0], new Int32Array(2))], [1, 258]);
  // 5, 3, 3 as differences 5, -2, 0, and these as 10, 3, 0.
  deepEqual([...fillColumn(Uint8Array.of(10, 3, 0), [3, 1, 1], new Int32Array(3))], [5, 3, 3]);
  deepEqual([...fillColumn(Uint8Array.of(10, 5), [2, 1, 1], new Float64Array(2))], [5, 2]);
  deepEqual([...fillColumn(Uint8Array.of(10, 5), [2, 1, 2], new Float64Array(2))], [5, -3]);
  const planes = Uint8Array.of(1, 0, 0, 0, 2, 0, 0, 0);
  deepEqual([...fillColumn(planes, [1, 8, 0], new Float64Array(1))], [2 * 2 ** 32 + 1]);
});

test("of two trees a node is as wide as the larger of what both have at its leaves", () => {
  const root = buildDifference([[["f", "a"], 10], [["f", "b"], 4], [["g"], 3]], [[["f", "a"], 2], [["f", "b"], 9], [["h"], 1], [["h"], 1]]);
  const child = (...labels: string[]) => labels.reduce((node, label) => node.children.get(label) as typeof root, root);
  const figures = (node: typeof root) => [node.old, node.now, node.bytes];
  deepEqual(figures(child("f", "a")), [10, 2, 10]);
  deepEqual(figures(child("f")), [14, 11, 19]);
  deepEqual(figures(child("g")), [3, 0, 3]);
  deepEqual(figures(root), [17, 13, 24]);
});

test("bytes are written as on the terminal", () => {
  deepEqual([0, 512, 1536, 67450880].map(formatBytes), ["0 B", "512 B", "1.50 KiB", "64.33 MiB"]);
  deepEqual([0, 1, 5, 10_000].map((part) => formatShare(part, 10_000)), ["0.0 %", "< 0.1 %", "0.1 %", "100.0 %"]);
  deepEqual([1, 999, 1000, 1234567].map(formatCount), ["1", "999", "1,000", "1,234,567"]);
  deepEqual(ticks(0, 1, 3), [0, 0.5, 1]);
  const mib = 1024 ** 2;
  deepEqual(byteTicks(67 * mib, 5), [0, 20 * mib, 40 * mib, 60 * mib]);
  deepEqual(byteTicks(1.2 * 1024 * mib, 4), [0, 0.5 * 1024 * mib, 1024 * mib]);
});

const STATE: State = {
  device: 1, axis: "time", from: 12.5, to: 80, moment: 42, tab: "map", grouping: "module", frames: "all",
  query: "a b#&=é", focus: [0, 3], row: 7, hidden: ["active"], coloring: "line", range: [3, 9], source: "net/my model.py:35",
};

test("a link leads back to what was chosen", () => {
  deepEqual(fromHash(toHash(STATE)), STATE);
});

test("of a link everything that is wrong is left out", () => {
  deepEqual(fromHash("#d=-1&e=x&t=<b>&x=q&v=9,1&p=1..2&r=-4&q=%E0%A4&h=nothing&f=&g=constructor&s=9-3"), { hidden: [] });
  deepEqual(fromHash(""), {});
});

test("a name in a saved picture is text, and what XML cannot have is replaced", () => {
  equal(escape(`<script>"&'`), "&#60;script&#62;&#34;&#38;&#39;");
  equal(escape("a\u0000\ud800b"), "a\ufffd\ufffdb");
  const svg = new Svg(10, 10, "white");
  svg.text(0, 0, "</text><script>", "black");
  ok(!svg.toString().includes("<script"));
});

function detail(frames: [string, number][], modules: string[] = []) {
  return {
    frames: { names: frames.map(([name]) => name), files: ["f.py"], name: frames.map((_, i) => i), file: frames.map(() => 0), line: frames.map((_, i) => i + 1), origin: frames.map(([, origin]) => origin) },
    operations: ["linear"], modules, reasons: [], pools: [], streams: [], tensor_names: [],
  } as never;
}

test("a tree sums what is below each node, and its children fill it from the largest on", () => {
  const rows = madeOf([
    { alloc: 0, freed: NEVER, end: NEVER, bytes: 100, category: 0 },
    { alloc: 1, freed: NEVER, end: NEVER, bytes: 300, category: 1 },
  ]);
  rows.kinds.stack.set([0, 1]);
  rows.stackFirst = Int32Array.of(0, 2, 4);
  rows.stackFrame = Int32Array.of(0, 1, 0, 2);
  const found = detail([["main", 2], ["f", 2], ["g", 2]]);
  const root = buildTree(rows, found, liveAt(rows, 5), "line", "project", 2, () => true);
  const main = [...root.children.values()][0] as Node;
  deepEqual([root.bytes, main.label, main.bytes, main.children.size], [400, "f.py:1 in main", 400, 2]);
  deepEqual([...main.categories], [100, 300]);
  const placed = layOut(root, 0).map(({ node, from, to, depth }) => [node.label, from, to, depth]);
  deepEqual(placed, [["", 0, 1, 0], ["f.py:1 in main", 0, 1, 1], ["f.py:3 in g", 0, 0.75, 2], ["f.py:2 in f", 0.75, 1, 2]]);
  deepEqual(layOut([...main.children.values()][0], 0).map(({ node, to }) => [node.label, to]), [["", 1], ["f.py:1 in main", 1], ["f.py:2 in f", 1]]);
});

test("frames of libraries count only where they are wanted", () => {
  const rows = madeOf([{ alloc: 0, freed: NEVER, end: NEVER, bytes: 1, category: 0 }]);
  rows.stackFirst = Int32Array.of(0, 3);
  rows.stackFrame = Int32Array.of(0, 1, 2);
  const found = detail([["mine", 2], ["lib", 1], ["native", 0]], ["blocks.0.mlp", "b.py:2 < a.py:1"]);
  const path = (frames: "project" | "python" | "all") => pathOf(rows, found, 0, "line", frames).length;
  deepEqual([path("project"), path("python"), path("all")], [1, 2, 3]);
  rows.kinds.module[0] = 1;
  deepEqual(pathOf(rows, found, 0, "module", "all"), ["blocks", "blocks.0", "blocks.0.mlp"]);
  rows.kinds.module[0] = 2;
  deepEqual(pathOf(rows, found, 0, "module", "all"), ["a.py:1", "b.py:2"]);
});

const SEGMENTS = {
  addr: Float64Array.of(0, 1000, 2000), bytes: Float64Array.of(1000, 1000, 500), stream: new Int32Array(3), pool: Int32Array.of(1, 1, 1),
  isSmall: new Int32Array(3), isExpandable: Int32Array.of(1, 1, 0), begin: Int32Array.of(0, 3, 2), end: Int32Array.of(0, 6, 0),
};

test("pieces of a segment that grows are one segment while they touch", () => {
  const rows = madeOf([
    { alloc: 2, freed: 4, end: 4, bytes: 200, category: 0 },
    { alloc: 2, freed: NEVER, end: NEVER, bytes: 100, category: 0 },
  ]);
  rows.addr.set([300, 900]);
  const sizes = (event: number) => segmentsAt(SEGMENTS, rows, event).map((segment) => segment.bytes);
  deepEqual([sizes(0), sizes(2), sizes(5)], [[1000], [2000, 500], [1000, 500]]);
  const [group] = groupSegments(segmentsAt(SEGMENTS, rows, 3), rows);
  deepEqual([group.bytes, group.used, group.largestHole], [2000, 300, 1000]);
  deepEqual(holes(group.segments[0], rows), [[0, 300], [500, 900], [1000, 2000]]);
  const curve = reservedCurve(SEGMENTS);
  deepEqual([[...curve.events], [...curve.bytes]], [[-1, 1, 2, 5], [1000, 1500, 2500, 1500]]);
});

test("pieces of a segment that do not touch are two", () => {
  const apart = { ...SEGMENTS, addr: Float64Array.of(0, 1500, 4000) };
  deepEqual(segmentsAt(apart, madeOf([]), 3).map((segment) => segment.bytes), [1000, 1000, 500]);
});

test("a map shows every byte of a segment once, and no line is wider than the page", () => {
  const rows = madeOf([]);
  for (const width of [50, 333]) {
    const pieces = flow(segmentsAt(SEGMENTS, rows, 3), width, 3);
    const shown = pieces.reduce((sum, piece) => sum + piece.to - piece.from, 0);
    equal(shown, 2500);
    for (const piece of pieces) ok(piece.x + (piece.to - piece.from) / 3 <= width + 1e-9);
  }
});

test("the first of many are those that sorting gives, in their order", () => {
  let seed = 7;
  const random = () => (seed = (seed * 48271) % 2147483647);
  const items = Array.from({ length: 500 }, () => random() % 90);
  const order = (a: number, b: number) => b - a;
  for (const n of [1, 25, 499, 500, 900]) deepEqual(firstOf(items, n, order), [...items].sort(order).slice(0, n));
  deepEqual(firstOf([], 25, order), []);
});

/** The contrast of two colours by WCAG 2.2. */
function contrast(one: Rgb, other: Rgb): number {
  const linear = (v: number) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const [low, high] = [one, other].map(([r, g, b]) => 0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)).sort((p, q) => p - q);
  return (high + 0.05) / (low + 0.05);
}

test("text on the colour of a category has the contrast that WCAG asks for, on a light and on a dark page", () => {
  const pages: [boolean, Rgb, Rgb][] = [[false, [0xff, 0xff, 0xff], [0x1c, 0x21, 0x28]], [true, [0x16, 0x1b, 0x22], [0xe6, 0xea, 0xf0]]];
  for (const [isDark, background, text] of pages) {
    for (const category of CATEGORIES) ok(contrast(text, tintOf(category, background, isDark)) >= 4.5, `${category}, dark: ${isDark}`);
  }
});
