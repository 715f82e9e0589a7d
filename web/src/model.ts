// The page's data: what is there at once (facts, a level of detail), and what is read after the first picture.

import { type Entry, fillColumn, inflate, inflateValues } from "./columns.ts";
import { type Rows, makeRows } from "./rows.ts";

export interface TotalTime {
  name: string;
  n_calls: number;
  forward_ms: number;
  backward_ms: number;
}

export interface Times {
  device: number;
  is_simulated: boolean;
  iteration: number;
  forward_ms: number | null;
  backward_ms: number | null;
  optimizer_ms: number | null;
  notes: [string, string][];
  operations: TotalTime[];
  modules: { module: string; n_calls: number; forward_ms: number; backward_ms: number }[];
  lines: { file: string; line: number; function: string; n_calls: number; forward_ms: number; backward_ms: number }[];
}

export interface FileFacts {
  name: string;
  bytes: number;
  format: string;
  protocol: number | null;
  written_by: string;
  snapconv: string;
  project_root: string;
  command: string;
  settings: Record<string, string>;
  times?: Times;
}

export interface DeviceFacts {
  file: number;
  name: string;
  argument: string;
  n_events: number;
  /** The file's number of the page's first event, how many events the file has, the number of the first iteration. */
  first_event: number;
  n_file_events: number;
  first_iteration: number;
  n_allocations: number;
  has_times: boolean;
  /** The time of the page's first event, from that of the file's. */
  first_us: number;
  peak_event: number;
  peak_bytes: number;
  /** The rows of a summary; `certainty` says how much of one is likely. */
  peak_categories: [name: string, bytes: number, count: number, certainty: string][];
  start_bytes: number;
  start_categories: number[];
  active_start_bytes: number;
  reserved_peak_bytes: number;
  reserved_at_peak_bytes: number;
  active_peak_bytes: number;
  /** What matters most about the device, as `snapconv FILE` says it. */
  verdict: { about: string; sentence: string; moment: string; causes: [bytes: number, category: string, line: string, purpose: string][] };
  history: string;
  history_reason: string;
  /** What to change in the program, as `snapconv advise` says it. */
  advice: { what: string; bytes: number; line: string; rows: [title: string, text: string][] }[];
  notes: [string, string][];
  phases: string[];
  oom: { event: number; requested: number; free: number; allocated: number; reserved: number }[];
  span_names: string[];
  n_spans_left_out: number;
  level_bin: number;
  /** The page has the times of every so many events, and of the last. */
  time_step: number;
  addr_base: string;
  columns: Record<string, Entry>;
}

/** A name, its bytes at the peak of the old file and of the new one, and what became of it. */
export type ComparedRow = [name: string, old: number, now: number, difference: string];

/** The lines and files of the old version that have another name in the new one. */
export interface Moved {
  lines: Record<string, string>;
  files: Record<string, string>;
}

export interface Comparison {
  moved: Moved;
  category: ComparedRow[];
  line: ComparedRow[];
  module: ComparedRow[];
  operation: ComparedRow[];
  settings: [name: string, old: string, now: string][];
}

export interface Page {
  categories: string[];
  evidence: string[];
  certainties: string[];
  is_comparison: boolean;
  has_source: boolean;
  /** Of two files; null where their devices are of different kinds. */
  comparison?: Comparison | null;
  files: FileFacts[];
  devices: DeviceFacts[];
}

/** A line's number, its text, the bytes of the margin's columns, and the recorded numbers of the lines that these are of. */
export type SourceRow = readonly [number: string, text: string, sizes: number[], lines: number[]];

export interface SourceFile {
  path: string;
  title: string;
  /** The rows around the lines that count, and around all that allocate or call what does. */
  counting: SourceRow[];
  all: SourceRow[];
}

/** The project's files as `snapconv annotate` shows them, the hottest first. */
export interface Source {
  head: string[];
  columns: string[];
  hidden: string;
  files: SourceFile[];
}

export interface Detail {
  frames: { names: string[]; files: string[]; name: number[]; file: number[]; line: number[]; origin: number[]; sources: string[]; source: number[] };
  operations: string[];
  modules: string[];
  reasons: [string, string][];
  pools: string[];
  streams: string[];
  tensor_names: string[];
  /** Null where no source was asked for. */
  source: Source | null;
}

/** The level of detail of the first picture: bins of events with their extremes. */
export interface Level {
  bin: number;
  n: number;
  maxEvent: Int32Array;
  minEvent: Int32Array;
  /** By category, then by bin. */
  atMax: Float64Array[];
  atMin: Float64Array[];
  activeMax: Float64Array;
  reservedMax: Float64Array;
}

export interface Spans {
  iterationFirst: Int32Array;
  iterationPeak: Float64Array;
  phaseFirst: Int32Array;
  phase: Int32Array;
  spanName: Int32Array;
  spanFirst: Int32Array;
  spanLength: Int32Array;
  spanDepth: Int32Array;
}

export interface Segments {
  addr: Float64Array;
  bytes: Float64Array;
  stream: Int32Array;
  pool: Int32Array;
  isSmall: Int32Array;
  isExpandable: Int32Array;
  begin: Int32Array;
  end: Int32Array;
}

/** What to look at first: the request that failed, or else the peak. */
export function firstMoment({ oom, peak_event }: DeviceFacts): number {
  return oom.length ? oom[0].event : peak_event;
}

function textOf(id: string): string {
  const element = document.getElementById(id);
  if (!element) throw new Error(`the page is cut off: it has no ${id}`);
  const text = element.textContent ?? "";
  element.remove(); // its text is as large as the data
  return text;
}

/** The times of all events from those of every `step`th and the last: those between are spread evenly. */
export function spread(sinceFirst: Float64Array, step: number, n: number, firstUs = 0): Float64Array {
  const kept = sinceFirst.map((us) => firstUs + us);
  if (step === 1) return kept;
  const times = new Float64Array(n);
  for (let k = 0; k + 1 < kept.length; k++) {
    const first = k * step;
    const length = Math.min(step, n - 1 - first);
    for (let i = 0; i < length; i++) times[first + i] = Math.round(kept[k] + ((kept[k + 1] - kept[k]) * i) / length);
  }
  times[n - 1] = kept[kept.length - 1];
  return times;
}

export async function readPage(): Promise<Page> {
  return (await inflateValues(textOf("page"))) as Page;
}

/** One device of the page. `level` and `spans` are there first, `rows` and the rest after `readAll`. */
export class Device {
  level!: Level;
  spans!: Spans;
  rows: Rows | null = null;
  segments: Segments | null = null;
  detail: Detail | null = null;
  time: Float64Array | null = null;

  constructor(
    readonly number: number,
    readonly facts: DeviceFacts,
    readonly file: FileFacts,
    readonly categories: string[],
  ) {}

  async readFirst(): Promise<void> {
    const n = this.categories.length;
    const each = (name: string) => Promise.all([...Array(n).keys()].map((i) => this.floats(`level_${name}_${i}`)));
    const [maxEvent, activeMax, reservedMax, atMax] = await Promise.all([
      this.ints("level_max_event"),
      this.floats("level_active_max"),
      this.floats("level_reserved_max"),
      each("max"),
    ]);
    const hasLeast = this.facts.level_bin > 1; // of one event the most is the least
    const [minEvent, atMin] = hasLeast ? await Promise.all([this.ints("level_min_event"), each("min")]) : [maxEvent, atMax];
    this.level = { bin: this.facts.level_bin, n: maxEvent.length, maxEvent, minEvent, atMax, atMin, activeMax, reservedMax };
    const [iterationFirst, iterationPeak, phaseFirst, phase, spanName, spanFirst, spanLength, spanDepth] =
      await Promise.all([
        this.ints("iteration_first"),
        this.floats("iteration_peak"),
        this.ints("phase_first"),
        this.ints("phase"),
        this.ints("span_name"),
        this.ints("span_first"),
        this.ints("span_length"),
        this.ints("span_depth"),
      ]);
    this.spans = { iterationFirst, iterationPeak, phaseFirst, phase, spanName, spanFirst, spanLength, spanDepth };
  }

  async readAll(): Promise<void> {
    if (this.rows) return;
    this.detail = (await inflateValues(textOf(`${this.number}.detail`))) as Detail;
    if (this.facts.has_times) this.time = spread(await this.floats("time"), this.facts.time_step, this.facts.n_events, this.facts.first_us);
    const [addr, bytes, stream, pool, isSmall, isExpandable, begin, end] = await Promise.all([
      this.floats("segment_addr"),
      this.floats("segment_bytes"),
      this.ints("segment_stream"),
      this.ints("segment_pool"),
      this.ints("segment_small"),
      this.ints("segment_expandable"),
      this.ints("segment_begin"),
      this.ints("segment_end"),
    ]);
    this.segments = { addr, bytes, stream, pool, isSmall, isExpandable, begin, end };
    this.rows = await makeRows({
      ints: (name) => this.ints(name),
      floats: (name) => this.floats(name),
      nEvents: this.facts.n_events,
      tensorNames: this.detail.tensor_names,
    });
  }

  async ints(name: string): Promise<Int32Array> {
    return this.column(name, (n) => new Int32Array(n));
  }

  async floats(name: string): Promise<Float64Array> {
    return this.column(name, (n) => new Float64Array(n));
  }

  private async column<T extends Int32Array | Float64Array>(name: string, make: (n: number) => T): Promise<T> {
    const entry = this.facts.columns[name];
    if (!entry) throw new Error(`the page has no column ${name}`);
    return fillColumn(await inflate(textOf(`${this.number}.${name}`)), entry, make(entry[0]));
  }
}
