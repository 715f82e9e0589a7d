"""The keys of ``--json``, with their types and meanings: docs/reference/json.md is printed from them.

Tests compare them with what the commands print. Keys may be added; none changes its meaning without a new
version.
"""

from typing import NamedTuple


class JsonKey(NamedTuple):
    """One key: its path in the document, its type, and what it means."""

    path: str
    type: str
    meaning: str


# Raised when a key changes its meaning, its type, or goes; not when one is added. Every document has it.
JSON_VERSION = 1

JSON_KEYS: dict[str, tuple[JsonKey, ...]] = {
    "to-sqlite": (
        JsonKey("reports", "array", "one object per report, in the order of devices"),
        JsonKey("reports[].device", "integer", "ordinal of the device; -1: pinned host memory"),
        JsonKey("reports[].kind", "string", "`cuda`, or `host` for pinned host memory"),
        JsonKey("reports[].output", "string", "the report's file"),
        JsonKey("reports[].peak_usage_bytes", "integer", "the peak of allocated bytes, as in the report"),
        JsonKey(
            "reports[].moments",
            "object",
            (
                "`start_`, `peak_` and `end_` of `requested`, `allocated`, `active`, `reserved`; "
                "and `peak_activations`"
            ),
        ),
        JsonKey("reports[].moments.*.event", "integer or null", "its event; null: before the first event"),
        JsonKey(
            "reports[].moments.*.time_us",
            "integer or null",
            "when; null: before the first event, or the file has no times",
        ),
        JsonKey(
            "reports[].moments.*.size_bytes",
            "integer",
            "the bytes of that curve, or of all activations, at that moment",
        ),
        JsonKey(
            "reports[].categories_at_peak", "object", "one key per category, also those that hold nothing"
        ),
        JsonKey(
            "reports[].categories_at_peak.*.n_allocations",
            "integer",
            "allocations in use at the peak of allocated bytes",
        ),
        JsonKey(
            "reports[].categories_at_peak.*.requested_bytes", "integer", "the size that the program requested"
        ),
        JsonKey(
            "reports[].categories_at_peak.*.block_bytes",
            "integer",
            "what the allocator set aside; these sum to `peak_usage_bytes`",
        ),
        JsonKey(
            "reports[].breakdown",
            "array",
            (
                "the reserved bytes at the peak, in parts: see "
                "[`snapconv_breakdown`](schema.md#snapconv_breakdown)"
            ),
        ),
        JsonKey("reports[].breakdown[].name", "string", "name of the part"),
        JsonKey(
            "reports[].breakdown[].parent",
            "string or null",
            "the part that it belongs to; rows with null sum to the reserved bytes",
        ),
        JsonKey("reports[].breakdown[].size_bytes", "integer", "size of the part"),
        JsonKey("reports[].project_root", "string or null", "folder that the paths below are relative to"),
        JsonKey(
            "reports[].project_includes",
            "array of strings",
            "the libraries that counted as part of the project and have frames",
        ),
        JsonKey("reports[].oom_events", "array", "allocations that failed, in order"),
        JsonKey("reports[].oom_events[].event", "integer", "number of the event"),
        JsonKey(
            "reports[].oom_events[].requested_bytes", "integer", "the requested size, as torch rounds it"
        ),
        JsonKey("reports[].oom_events[].device_free_bytes", "integer", "what the driver had free"),
        JsonKey("reports[].oom_events[].allocated_bytes", "integer", "what was allocated then"),
        JsonKey("reports[].oom_events[].reserved_bytes", "integer", "what torch held then"),
        JsonKey(
            "reports[].after_oom",
            "object or null",
            (
                "where the program went on after that: `free_bytes`, reserved and not in use at "
                "the dump, `returnable_bytes` of it in free segments"
            ),
        ),
        JsonKey(
            "reports[].annotations",
            "array",
            "the names that the program gave to spans of the trace, the one with the highest peak first",
        ),
        JsonKey("reports[].annotations[].name", "string", "the name"),
        JsonKey("reports[].annotations[].kind", "string", "`record_function` or `user_metadata`"),
        JsonKey("reports[].annotations[].n_spans", "integer", "number of its spans"),
        JsonKey(
            "reports[].annotations[].peak_bytes", "integer", "the most that was allocated in one of them"
        ),
        JsonKey(
            "reports[].annotations[].change_bytes",
            "integer",
            "what they left behind together; may be negative",
        ),
        JsonKey(
            "reports[].oom_events[].lines",
            "array of strings",
            "the project's lines, the one that requested it first, then its callers",
        ),
        JsonKey(
            "reports[].lines_at_peak",
            "array",
            "all lines of the project that hold memory at the peak, most bytes first",
        ),
        JsonKey("reports[].lines_at_peak[].file", "string", "relative to the project root"),
        JsonKey("reports[].lines_at_peak[].line", "integer", "line in that file; 0: not known"),
        JsonKey("reports[].lines_at_peak[].function", "string", "function that the line is in"),
        JsonKey("reports[].lines_at_peak[].n_allocations", "integer", "number of allocations"),
        JsonKey("reports[].lines_at_peak[].block_bytes", "integer", "what the allocator set aside for them"),
        JsonKey(
            "reports[].modules_at_peak", "array", "all modules that hold memory at the peak, most bytes first"
        ),
        JsonKey(
            "reports[].modules_at_peak[].module",
            "string",
            (
                "its path, or the lines that call it, innermost first: see "
                "[`snapconv_modules`](schema.md#snapconv_modules)"
            ),
        ),
        JsonKey("reports[].modules_at_peak[].evidence", "string", "`metadata`: a path; `frames`: lines"),
        JsonKey("reports[].modules_at_peak[].n_allocations", "integer", "number of allocations"),
        JsonKey(
            "reports[].modules_at_peak[].block_bytes", "integer", "what the allocator set aside for them"
        ),
        JsonKey(
            "reports[].growth",
            "array",
            "stacks that hold more memory from iteration to iteration: see [growth](../guide/growth.md)",
        ),
        JsonKey(
            "reports[].growth[].file",
            "string or null",
            "of its innermost line of the project; null: it has none",
        ),
        JsonKey("reports[].growth[].line", "integer or null", "line in that file; 0: not known"),
        JsonKey("reports[].growth[].function", "string or null", "function that the line is in"),
        JsonKey("reports[].growth[].fate", "string", "`never freed`, `replaced by larger` or `freed late`"),
        JsonKey(
            "reports[].growth[].confidence",
            "string",
            "`weak`, `fair` or `strong`, by the number of iterations",
        ),
        JsonKey("reports[].growth[].first_iteration", "integer", "the first in which it grew"),
        JsonKey("reports[].growth[].last_iteration", "integer", "the last"),
        JsonKey("reports[].growth[].n_iterations", "integer", "in how many it grew"),
        JsonKey("reports[].growth[].n_allocations", "integer", "number of allocations that were left behind"),
        JsonKey(
            "reports[].growth[].block_bytes",
            "integer",
            "what the allocator set aside for them; `freed late`: for those that were freed at once",
        ),
        JsonKey("reports[].growth[].bytes_per_iteration", "integer", "what an iteration adds"),
        JsonKey(
            "reports[].history", "object", "whether the trace is whole: see [replay](../design/replay.md)"
        ),
        JsonKey(
            "reports[].history.verdict", "string", "`complete`, `started late`, `truncated` or `no trace`"
        ),
        JsonKey("reports[].history.reason", "string", "a sentence for a person"),
        JsonKey(
            "reports[].weight_naming",
            "object or null",
            (
                "how far `--params` named the weights: see [better "
                "names](../guide/better-names.md); null: not given"
            ),
        ),
        JsonKey("reports[].weight_naming.file_name", "string", "the list's file"),
        JsonKey("reports[].weight_naming.n_weights", "integer", "weights at the peak"),
        JsonKey("reports[].weight_naming.n_named", "integer", "those with a name of the list"),
        JsonKey("reports[].weight_naming.weight_bytes", "integer", "requested bytes of the weights"),
        JsonKey("reports[].weight_naming.named_bytes", "integer", "those of weights with a name of the list"),
        JsonKey(
            "reports[].weight_naming.certain_bytes",
            "integer",
            "those whose size and order leave no other name",
        ),
        JsonKey("reports[].weight_naming.n_listed", "integer", "tensors of the list, tied names not counted"),
        JsonKey("reports[].weight_naming.n_without_memory", "integer", "those that are none of the weights"),
        JsonKey("reports[].n_weights", "integer", "rows of `weight_entries`"),
        JsonKey("reports[].n_activations", "integer", "rows of `activation_entries`"),
        JsonKey("reports[].notes", "array", "the notes, also those that went to stderr"),
        JsonKey("reports[].notes[].slug", "string", "see [notes](notes.md)"),
        JsonKey("reports[].notes[].message", "string", "a sentence for a person"),
        JsonKey(
            "reports[].notes[].device", "integer or null", "the device that it is about; null: the whole file"
        ),
        JsonKey(
            "time",
            "object or null",
            "the run time report; null: the input has no times, or not of the requested device",
        ),
        JsonKey("time.device", "integer", "ordinal of the device"),
        JsonKey("time.output", "string", "the report's file"),
        JsonKey("time.clock", "string", "`cuda` or `cpu`: see [timing](../design/timing.md)"),
        JsonKey("time.is_simulated", "boolean", "whether it was recorded without a GPU"),
        JsonKey("time.iteration", "integer", "the iteration that the report and the totals below are about"),
        JsonKey("time.iterations", "array", "all timed iterations"),
        JsonKey("time.iterations[].iteration", "integer", "its number in the recorded run"),
        JsonKey(
            "time.iterations[].forward_ms",
            "number or null",
            "what was measured around the phase; null: there was none",
        ),
        JsonKey("time.iterations[].backward_ms", "number or null", "the same"),
        JsonKey("time.iterations[].optimizer_ms", "number or null", "the same"),
        JsonKey(
            "time.iterations[].forward_coverage",
            "number or null",
            "the part of it that rows account for, at most 1",
        ),
        JsonKey("time.iterations[].backward_coverage", "number or null", "the same"),
        JsonKey("time.operations", "array", "the operations, the longest first"),
        JsonKey("time.operations[].name", "string", "name of the function, or of the node that no call made"),
        JsonKey("time.operations[].n_calls", "integer", "number of calls"),
        JsonKey("time.operations[].forward_ms", "number", "their forward time"),
        JsonKey("time.operations[].backward_ms", "number", "their backward time"),
        JsonKey("time.project_root", "string or null", "folder that the paths below are relative to"),
        JsonKey(
            "time.project_includes",
            "array of strings",
            "the libraries that counted as part of the project and have frames",
        ),
        JsonKey(
            "time.lines",
            "array",
            "the lines of the project, the longest first, by the innermost frame of each entry",
        ),
        JsonKey("time.lines[].file", "string", "relative to the project root"),
        JsonKey("time.lines[].line", "integer", "line in that file"),
        JsonKey("time.lines[].function", "string", "function that the line is in"),
        JsonKey("time.lines[].n_calls", "integer", "number of calls"),
        JsonKey("time.lines[].forward_ms", "number", "their forward time"),
        JsonKey("time.lines[].backward_ms", "number", "their backward time"),
        JsonKey("time.n_entries", "integer", "rows of `run_time_entries`"),
        JsonKey("time.notes", "array", "the notes on the times"),
        JsonKey("time.notes[].slug", "string", "see [notes](notes.md)"),
        JsonKey("time.notes[].message", "string", "a sentence for a person"),
        JsonKey(
            "time.notes[].device", "integer or null", "the device that it is about; null: the whole capture"
        ),
    ),
    "info": (
        JsonKey("path", "string", "the file, as given"),
        JsonKey("format", "string", "`pickle`, `json` or `html`, with ` in gzip` where it is"),
        JsonKey("n_bytes", "integer", "size of the file"),
        JsonKey("pickle_protocol", "integer or null", "null: no pickle"),
        JsonKey(
            "written_by",
            "string",
            "the releases of torch that can have written it, judged by what the file has",
        ),
        JsonKey("n_visible_devices", "integer", "CUDA devices that the file has a trace list for"),
        JsonKey("devices", "array", "the devices with memory or events"),
        JsonKey("devices[].device", "integer", "ordinal of the device; -1: pinned host memory"),
        JsonKey("devices[].kind", "string", "`cuda`, or `host` for pinned host memory"),
        JsonKey("devices[].n_events", "integer", "length of its trace"),
        JsonKey(
            "devices[].duration_us", "integer or null", "from the first event to the last; null: no times"
        ),
        JsonKey("devices[].actions", "object", "how many events of each action"),
        JsonKey("devices[].n_segments", "integer", "segments at the dump"),
        JsonKey("devices[].n_blocks", "integer", "blocks in them, free ones too"),
        JsonKey("devices[].n_live_blocks", "integer", "blocks that are in use or waiting for a stream"),
        JsonKey("devices[].n_pools", "integer", "memory pools"),
        JsonKey("devices[].n_streams", "integer", "streams that own segments"),
        JsonKey("devices[].reserved_bytes", "integer", "bytes of all segments at the dump"),
        JsonKey("devices[].active_bytes", "integer", "block bytes of the live blocks at the dump"),
        JsonKey(
            "devices[].n_checked_sizes",
            "integer",
            (
                "blocks of the trace that are live at the dump, whose derived size was compared "
                "with the one there"
            ),
        ),
        JsonKey(
            "devices[].n_different_sizes",
            "integer",
            "those of them that differ: see [replay](../design/replay.md#every-file-checks-itself)",
        ),
        JsonKey("devices[].history", "string", "`complete`, `started late`, `truncated` or `no trace`"),
        JsonKey("devices[].history_reason", "string", "a sentence for a person"),
        JsonKey("n_stacks", "integer", "distinct stacks"),
        JsonKey("n_frames", "integer", "distinct frames in them"),
        JsonKey("settings", "object", "the allocator's settings as text; empty before torch 2.3"),
        JsonKey(
            "recorder",
            "object",
            "what the recorder of a capture wrote about the run, as text; empty without one",
        ),
        JsonKey(
            "times",
            "object or null",
            (
                "of a capture with times: `n_calls`, `iterations` (their numbers), `device`, "
                "`device_name`, `clock`"
            ),
        ),
        JsonKey("annotations", "object", "names of the annotated ranges and how often each begins"),
        JsonKey("notes", "array", "the notes about the file and its replay"),
        JsonKey("notes[].slug", "string", "see [notes](notes.md)"),
        JsonKey("notes[].message", "string", "a sentence for a person"),
        JsonKey("notes[].device", "integer or null", "the device that it is about; null: the whole file"),
    ),
    "growth": (
        JsonKey("devices", "array", "one object per device"),
        JsonKey("devices[].device", "integer", "its ordinal; -1: pinned host memory"),
        JsonKey("devices[].kind", "string", "`cuda` or `host`"),
        JsonKey(
            "devices[].unknown", "string or null", "why growth cannot be seen in this file; null: it can"
        ),
        JsonKey("devices[].iteration_end_bytes", "array", "the bytes allocated when each iteration ended"),
        JsonKey(
            "devices[].bytes_per_iteration", "integer", "what an iteration adds up to the end of the trace"
        ),
        JsonKey(
            "devices[].lines",
            "array",
            "the lines that grow, most bytes first, those that were freed late last",
        ),
        JsonKey(
            "devices[].lines[].frames",
            "array",
            "the line, and the lines of the project that called it; empty: no line of the project",
        ),
        JsonKey("devices[].lines[].frames[].file", "string", "relative to the project's folder"),
        JsonKey("devices[].lines[].frames[].line", "integer", "line in that file; 0: not known"),
        JsonKey("devices[].lines[].frames[].function", "string", "function that the line is in"),
        JsonKey("devices[].lines[].fate", "string", "`never freed`, `replaced by larger` or `freed late`"),
        JsonKey(
            "devices[].lines[].confidence",
            "string",
            "`weak`, `fair` or `strong`, by the number of iterations",
        ),
        JsonKey("devices[].lines[].first_iteration", "integer", "the first in which it grew"),
        JsonKey("devices[].lines[].last_iteration", "integer", "the last"),
        JsonKey("devices[].lines[].n_iterations", "integer", "in how many it grew"),
        JsonKey("devices[].lines[].n_allocations", "integer", "number of allocations that were left behind"),
        JsonKey(
            "devices[].lines[].block_bytes",
            "integer",
            "what the allocator set aside for them; `freed late`: for those that were freed at once",
        ),
        JsonKey("devices[].lines[].bytes_per_iteration", "integer", "what an iteration adds"),
    ),
    "diff": (
        JsonKey("old", "string", "the file to compare with"),
        JsonKey("new", "string", "the file that is judged"),
        JsonKey("devices", "array", "one object per pair of devices"),
        JsonKey("devices[].old_device", "integer", "ordinal in the old file; -1: pinned host memory"),
        JsonKey("devices[].new_device", "integer", "ordinal in the new one"),
        JsonKey("devices[].kind", "string", "`cuda` or `host`"),
        JsonKey("devices[].peak_allocated", "object", "the peaks of allocated bytes"),
        JsonKey("devices[].peak_allocated.old_bytes", "integer", "of the old file"),
        JsonKey("devices[].peak_allocated.new_bytes", "integer", "of the new one"),
        JsonKey("devices[].peak_allocated.change_bytes", "integer", "what the new one has more"),
        JsonKey("devices[].peak_reserved", "object", "the most that was reserved, with the same keys"),
        JsonKey("devices[].peak_reserved.old_bytes", "integer", "of the old file"),
        JsonKey("devices[].peak_reserved.new_bytes", "integer", "of the new one"),
        JsonKey("devices[].peak_reserved.change_bytes", "integer", "what the new one has more"),
        JsonKey("devices[].old_iteration_peaks", "array", "the peak of every iteration of the old file"),
        JsonKey("devices[].new_iteration_peaks", "array", "of the new one"),
        JsonKey(
            "devices[].categories",
            "array",
            "what each category has at the peaks, those first that changed most",
        ),
        JsonKey("devices[].categories[].name", "string", "the category"),
        JsonKey(
            "devices[].categories[].difference", "string", "`appeared`, `gone`, `grew`, `shrank` or `same`"
        ),
        JsonKey("devices[].categories[].old_bytes", "integer", "at the peak of the old file"),
        JsonKey("devices[].categories[].new_bytes", "integer", "at that of the new one"),
        JsonKey("devices[].categories[].change_bytes", "integer", "what the new one has more"),
        JsonKey("devices[].categories[].n_old", "integer", "number of allocations there"),
        JsonKey("devices[].categories[].n_new", "integer", "and here"),
        JsonKey("devices[].lines", "array", "the same for the lines of the project"),
        JsonKey(
            "devices[].lines[].old",
            "object or null",
            "the line in the old file; null: not there. Both null: no line of the project",
        ),
        JsonKey("devices[].lines[].old.file", "string", "relative to the project's folder"),
        JsonKey("devices[].lines[].old.line", "integer", "line in that file; 0: not known"),
        JsonKey("devices[].lines[].old.function", "string", "function that the line is in"),
        JsonKey("devices[].lines[].new", "object or null", "the same of the new one"),
        JsonKey("devices[].lines[].new.file", "string", "relative to the project's folder"),
        JsonKey("devices[].lines[].new.line", "integer", "line in that file; 0: not known"),
        JsonKey("devices[].lines[].new.function", "string", "function that the line is in"),
        JsonKey("devices[].lines[].difference", "string", "`appeared`, `gone`, `grew`, `shrank` or `same`"),
        JsonKey("devices[].lines[].old_bytes", "integer", "at the peak of the old file"),
        JsonKey("devices[].lines[].new_bytes", "integer", "at that of the new one"),
        JsonKey("devices[].lines[].change_bytes", "integer", "what the new one has more"),
        JsonKey("devices[].lines[].n_old", "integer", "number of allocations there"),
        JsonKey("devices[].lines[].n_new", "integer", "and here"),
        JsonKey("devices[].modules", "array", "the same for the modules whose paths were recorded"),
        JsonKey("devices[].operations", "array", "the same for the operations"),
        JsonKey("devices[].operations[].name", "string", "the operation"),
        JsonKey(
            "devices[].operations[].difference", "string", "`appeared`, `gone`, `grew`, `shrank` or `same`"
        ),
        JsonKey("devices[].operations[].old_bytes", "integer", "at the peak of the old file"),
        JsonKey("devices[].operations[].new_bytes", "integer", "at that of the new one"),
        JsonKey("devices[].operations[].change_bytes", "integer", "what the new one has more"),
        JsonKey("devices[].operations[].n_old", "integer", "number of allocations there"),
        JsonKey("devices[].operations[].n_new", "integer", "and here"),
        JsonKey("only_old", "array", "devices that only the old file has"),
        JsonKey("only_new", "array", "devices that only the new one has"),
        JsonKey(
            "settings", "array", "settings of the allocator that differ, and the torch that wrote the files"
        ),
        JsonKey("settings[].name", "string", "the setting"),
        JsonKey("settings[].old", "string or null", "of the old file; null: not there"),
        JsonKey("settings[].new", "string or null", "of the new one"),
    ),
    "check": (
        JsonKey("file", "string", "the file that was checked"),
        JsonKey("holds", "boolean", "whether all limits hold"),
        JsonKey("checks", "array", "one object per limit and device"),
        JsonKey("checks[].what", "string", "what has the limit"),
        JsonKey("checks[].device", "integer", "the device"),
        JsonKey("checks[].holds", "boolean", "whether it holds"),
        JsonKey("checks[].limit_bytes", "integer", "the limit"),
        JsonKey("checks[].actual_bytes", "integer or null", "what there is; null: it is not known"),
        JsonKey("checks[].unknown", "string or null", "why that is so"),
        JsonKey("checks[].remark", "string or null", "what the figure leaves out"),
    ),
    "what-if": (
        JsonKey("devices", "array", "one object per device"),
        JsonKey("devices[].device", "integer", "its ordinal; -1: pinned host memory"),
        JsonKey("devices[].kind", "string", "`cuda` or `host`"),
        JsonKey("devices[].unknown", "string or null", "why nothing was tried; then no other key follows"),
        JsonKey("devices[].n_events", "integer", "length of its trace"),
        JsonKey(
            "devices[].capacity_bytes", "integer or null", "what torch can have; null: as much as it likes"
        ),
        JsonKey(
            "devices[].capacity_from",
            "string",
            "where that is from, as the text has it; empty: as given, or none",
        ),
        JsonKey("devices[].batch_scale", "number", "batch sizes that were tried, in those of the file"),
        JsonKey("devices[].recorded", "object", "what the file itself shows"),
        JsonKey("devices[].recorded.peak_reserved", "integer", "its peak of reserved bytes"),
        JsonKey("devices[].recorded.peak_allocated", "integer", "its peak of allocated bytes"),
        JsonKey("devices[].recorded.n_segment_allocs", "integer", "`segment_alloc` events"),
        JsonKey("devices[].recorded.n_segment_maps", "integer", "`segment_map` events"),
        JsonKey("devices[].recorded.n_ooms", "integer", "failed requests"),
        JsonKey("devices[].model_is_exact", "boolean", "whether the model gives the file's own segments"),
        JsonKey("devices[].estimated", "array", "why the figures are estimates; empty: they are not"),
        JsonKey("devices[].tried", "array", "the trials, in the order of the table"),
        JsonKey("devices[].tried[].setting", "string", "as given"),
        JsonKey("devices[].tried[].settings", "object", "what the model went by"),
        JsonKey("devices[].tried[].fits", "boolean", "whether memory sufficed"),
        JsonKey(
            "devices[].tried[].peak_reserved_bytes", "integer", "up to the failed request, if there is one"
        ),
        JsonKey(
            "devices[].tried[].peak_reserved_event",
            "integer",
            "where it was first reached; -1: before the first event",
        ),
        JsonKey("devices[].tried[].peak_allocated_bytes", "integer", "the same of allocated bytes"),
        JsonKey("devices[].tried[].end_reserved_bytes", "integer", "reserved at the end"),
        JsonKey("devices[].tried[].n_segment_allocs", "integer", "segments got from the device"),
        JsonKey("devices[].tried[].n_segment_maps", "integer", "ranges mapped into expandable segments"),
        JsonKey("devices[].tried[].n_segment_frees", "integer", "how often memory was given back"),
        JsonKey(
            "devices[].tried[].served_events",
            "array",
            "requests that failed in the trace and were served here, by event",
        ),
        JsonKey("devices[].tried[].out_of_memory", "object or null", "the first request that failed"),
        JsonKey(
            "devices[].tried[].out_of_memory.event",
            "integer",
            "-1: what was live before the trace does not fit",
        ),
        JsonKey(
            "devices[].tried[].out_of_memory.line", "string or null", "line of the project that requested"
        ),
        JsonKey("devices[].tried[].out_of_memory.requested_bytes", "integer", "what was requested"),
        JsonKey("devices[].tried[].out_of_memory.rounded_bytes", "integer", "the block that it needs"),
        JsonKey("devices[].tried[].out_of_memory.segment_bytes", "integer", "the segment that it needs"),
        JsonKey("devices[].tried[].out_of_memory.stream", "integer", "its stream"),
        JsonKey("devices[].tried[].out_of_memory.pool", "array", "its pool, two numbers; 0, 0: the default"),
        JsonKey(
            "devices[].tried[].out_of_memory.device_free_bytes",
            "integer",
            "what torch could still have had of the device",
        ),
        JsonKey("devices[].tried[].out_of_memory.pool_free_bytes", "integer", "free in its pool and stream"),
        JsonKey("devices[].tried[].out_of_memory.pool_largest_bytes", "integer", "the largest piece of that"),
        JsonKey("devices[].tried[].out_of_memory.n_pool_free", "integer", "in how many pieces"),
        JsonKey("devices[].tried[].out_of_memory.reserved_bytes", "integer", "reserved then"),
        JsonKey("devices[].tried[].out_of_memory.allocated_bytes", "integer", "allocated then"),
        JsonKey(
            "devices[].tried[].out_of_memory.active_bytes", "integer", "and with what waits for a stream"
        ),
        JsonKey(
            "devices[].tried[].out_of_memory.releasable_bytes",
            "integer",
            "what `empty_cache()` would still release",
        ),
        JsonKey(
            "devices[].tried[].out_of_memory.largest_free_bytes",
            "integer",
            "the largest free piece of all pools",
        ),
        JsonKey("devices[].tried[].out_of_memory.n_free_blocks", "integer", "free pieces of all pools"),
    ),
}
