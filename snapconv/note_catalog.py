"""What each note means, what it affects, and what to do: the page docs/reference/notes.md is printed from it.

A test compares the slugs with those that the program makes. Imports nothing from snapconv.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class NoteMeaning:
    """A note's slug, and three texts for a person; ``touches_peak``: the peak may be wrong by it."""

    slug: str
    section: str
    means: str
    affects: str
    do: str
    touches_peak: bool = False


NOTE_MEANINGS: tuple[NoteMeaning, ...] = (
    NoteMeaning(
        "truncated-history",
        "The history",
        means=(
            "the oldest events are lost, because the ring buffer was full. "
            "[replay](../design/replay.md) explains how that is decided; the sentence gives the "
            "reason."
        ),
        affects=(
            "the peak is that of the events that are left. The true peak may be before them. What is "
            "live at any event that is left is known, even if it is pre-existing."
        ),
        do="record with a larger `max_entries`, or begin to record later.",
        touches_peak=True,
    ),
    NoteMeaning(
        "skipped-actions",
        "The history",
        means="a kind of event is missing, because recording was set to skip it (`skip_actions`).",
        affects=(
            "without `free_completed`, memory counts as free as soon as the free is requested: active"
            " bytes are too low while a stream still used a block. Without `alloc`, only what was "
            "live at the two ends is known, and the peak is of little use."
        ),
        do="record without `skip_actions`.",
        touches_peak=True,
    ),
    NoteMeaning(
        "reordered-ring",
        "The history",
        means=(
            "the events were out of order, because `max_entries` was changed while recording was on. "
            "They were sorted by time."
        ),
        affects=(
            "events of the same microsecond may be swapped, so a curve may be off for that microsecond."
        ),
        do="set `max_entries` once, or clear the history when you change it.",
    ),
    NoteMeaning(
        "no-timestamps",
        "The history",
        means="the events have no times: torch before 2.2, or torch_npu.",
        affects=(
            "durations and annotations. The order of events is known, so no figure in bytes is "
            "touched. Optimizer steps cannot be found by their annotation, only by their frames."
        ),
        do="nothing, or record with torch 2.2 or newer.",
    ),
    NoteMeaning(
        "inexact-window",
        "The history",
        means=(
            "`snapconv export --format snapshot` has written a part of a trace, and read it again: "
            "some blocks were live before it and freed within it, and without the events before it "
            "their sizes are not certain."
        ),
        affects=(
            "allocated and active bytes of the new file, by up to what the sentence says. Those of "
            "the whole file are as they were."
        ),
        do="nothing, or begin the window earlier.",
    ),
    NoteMeaning(
        "empty-snapshot",
        "The history",
        means=(
            "the file has neither memory nor events. The process had not used the device, or it had "
            "no driver: torch writes such a file without complaint."
        ),
        affects="everything is 0.",
        do=(
            "check that `torch.cuda.is_available()` in the job, and that it dumps after it has used the GPU."
        ),
    ),
    NoteMeaning(
        "left-out",
        "The history",
        means=(
            "the file shows one thing very many times, such as a stack of thousands of frames for "
            "every allocation; what would be many times the size of the file is left out, and the "
            "sentence says what. No file that a job wrote is known to need it, but deep recursion "
            "may."
        ),
        affects="frames, names and lines. No figure in bytes.",
        do="nothing.",
    ),
    NoteMeaning(
        "read-in-python",
        "The history",
        means=(
            "the file, of 16 MiB or more, is written in a way that the compiled core does not expect,"
            " although it is a valid pickle. It was read in Python, as by an installation without the"
            " core."
        ),
        affects="time and memory, several times as much. No figure.",
        do=(
            "nothing. If you write such files by a program of your own: the pickler of Python and "
            "that of torch are expected, with protocol 2 to 5."
        ),
    ),
    NoteMeaning(
        "inexact-block-sizes",
        "Block sizes",
        means=(
            "blocks were allocated before the first event and freed in the trace. The requested size "
            "is known; the block may be larger."
        ),
        affects=(
            "allocated and active bytes, and so the peak, while these blocks were live. Each counts "
            "with its rounded request. The note gives how much the true figure may be higher: it is "
            "an upper limit."
        ),
        do="record from the start of the program.",
        touches_peak=True,
    ),
    NoteMeaning(
        "trace-contradicts-segments",
        "Block sizes",
        means=(
            "events do not fit the memory map at the end: blocks overlap, or are outside every "
            "segment. The file was made by hand, or the trace lacks events."
        ),
        affects=(
            "the block sizes of those events, and so allocated and active bytes: they are rounded requests."
        ),
        do="dump again. If torch wrote the file, report it.",
        touches_peak=True,
    ),
    NoteMeaning(
        "block-size-mismatch",
        "Block sizes",
        means=(
            "blocks that were allocated in the trace and are live at the dump have another size there"
            " than the allocator's rules give for their requests: "
            "[replay.md](../design/replay.md#every-file-checks-itself). The settings were changed "
            "while the program ran, the rules of this torch are others, or torch did not write the "
            "file."
        ),
        affects=(
            "these blocks count as in the dump, so the bytes at the end are right. Allocated and "
            "active bytes before, and so the peak, may be off by as much per block as blocks of that "
            "size are. Requested and reserved bytes are not touched."
        ),
        do="look at the other notes for the reason. If torch wrote the file, report it.",
        touches_peak=True,
    ),
    NoteMeaning(
        "other-split-rule",
        "Block sizes",
        means=(
            "the blocks that are live at the dump have the sizes of expandable segments, though the "
            "file's settings (or, where it has none, its segments and events) say that they are "
            "ordinary, or the other way round. Programs that change `expandable_segments` while they "
            "run leave such files."
        ),
        affects=(
            "the rule that fits the live blocks is taken for the whole trace. Allocated and active "
            "bytes are approximate for the time in which the other rule held: a large block may have "
            "up to 1 MiB more, or less."
        ),
        do="nothing; or set `expandable_segments` once, before the program starts.",
        touches_peak=True,
    ),
    NoteMeaning(
        "checkpoint-mismatch",
        "Block sizes",
        means=(
            "torch wrote its own count of active bytes into the trace whenever a snapshot was taken. "
            "The replay differs from it."
        ),
        affects="active and allocated bytes, by about as much as the note gives.",
        do="look at the other notes for the reason. Without another note, report the file.",
        touches_peak=True,
    ),
    NoteMeaning(
        "negative-bytes",
        "Block sizes",
        means="a curve falls below zero, which no allocator does: events are missing.",
        affects="all four curves are too low.",
        do="dump again.",
        touches_peak=True,
    ),
    NoteMeaning(
        "no-requested-size",
        "Block sizes",
        means="blocks have no requested size (torch 1.x).",
        affects="requested bytes are block bytes, so rounding shows as 0.",
        do="record with torch 2.0 or newer.",
    ),
    NoteMeaning(
        "orphan-free",
        "Allocations and frees that do not match",
        means=("a free has no alloc, although its address was used before: events are lost or were skipped."),
        affects="it is left out. Curves may be too high before it and too low after it.",
        do="record with a larger `max_entries` and without `skip_actions`.",
        touches_peak=True,
    ),
    NoteMeaning(
        "implicit-free",
        "Allocations and frees that do not match",
        means="an allocation has no free, but its address is allocated again.",
        affects="it is taken as freed just then. Curves may be too high before.",
        do="as for `orphan-free`.",
        touches_peak=True,
    ),
    NoteMeaning(
        "missing-from-segments",
        "Allocations and frees that do not match",
        means=(
            "an allocation is live when the trace ends, but not in the memory map. torch copies the "
            "trace first and the map second: it was freed between the two. Or the dump covers one "
            "memory pool only."
        ),
        affects="it counts as live to the end.",
        do="dump while no other thread allocates.",
        touches_peak=True,
    ),
    NoteMeaning(
        "pending-free",
        "Allocations and frees that do not match",
        means=(
            "blocks were freed by the program while a stream still used them: still at the dump, or "
            "from before the first event until the free completes in the trace."
        ),
        affects=(
            "they count as active. Those whose free was requested before the first event count as "
            "allocated too, so allocated bytes may be too high by them."
        ),
        do="nothing; or `torch.cuda.synchronize()` before the dump, or before recording begins.",
        touches_peak=True,
    ),
    NoteMeaning(
        "cuda-graph-pools",
        "Allocations and frees that do not match",
        means=(
            'CUDA graph trees were used (`torch.compile(mode="reduce-overhead")`). Restoring a pool '
            "shows as bursts of frees and allocs that never happened. Replaying a graph leaves no "
            "events at all."
        ),
        affects="a peak inside such a burst is too high. What happens inside a graph is not seen.",
        do="look at which event the peak is. For a clear picture, record without CUDA graphs.",
        touches_peak=True,
    ),
    NoteMeaning(
        "no-pinned-memory",
        "Allocations and frees that do not match",
        means="`snapconv record --pinned` ran with a torch that cannot record pinned host memory.",
        affects="the capture has no device `host`. All else is as without `--pinned`.",
        do="record with torch 2.14 or newer.",
    ),
    NoteMeaning(
        "host-sizes",
        "Allocations and frees that do not match",
        means=(
            "the report is about pinned host memory, of which torch records the sizes of blocks and "
            "not what was requested. Most are powers of two."
        ),
        affects="requested bytes, which are block bytes. Allocated, active and reserved bytes are exact.",
        do="nothing; a block of 2.00 MiB may hold anything above 1.00 MiB.",
    ),
    NoteMeaning(
        "no-stacks",
        "Stacks and the project",
        means="no allocation has a stack.",
        affects="categories are inferred from sizes only, operations are `unknown`, no line has memory.",
        do=(
            'record with `context="all"`. Dump before recording is switched off: `enabled=None` '
            "clears the trace."
        ),
    ),
    NoteMeaning(
        "no-project-frames",
        "Stacks and the project",
        means=(
            "there are stacks, but no frame is in the project: the folder that was given is not one "
            "of the file's, or all Python frames are those of installed packages."
        ),
        affects="`stack_frames` and the lines at the peak are empty. No figure in bytes.",
        do=(
            "name the project's folder as the file has it: `--project-root /where/it/was`, or a "
            "package that is to count as the project: `--include PACKAGE`. To see the paths: `SELECT "
            "DISTINCT file FROM snapconv_frames WHERE file LIKE '%.py'` in an `--extended` report."
        ),
    ),
    NoteMeaning(
        "dominant-lines",
        "Stacks and the project",
        means=(
            "more than half of the peak is on one or two lines of the project, such as "
            "`trainer.train()`, since what allocates is a library that they call. The lines of the "
            "package that the note names would split at least an eighth of the peak."
        ),
        affects=(
            "nothing. The lines at the peak, and the frames of Skyline's tables, are less detailed "
            "than they could be."
        ),
        do=(
            "convert again with `--include PACKAGE`, as the note suggests, or record with it: [which "
            "lines are yours](../guide/read-a-file.md#which-lines-are-yours)."
        ),
    ),
    NoteMeaning(
        "unused-include",
        "Stacks and the project",
        means="`--include`, here or when it was recorded, names something that no frame is in.",
        affects="nothing.",
        do=(
            "name a package as it is imported (`timm.models`), or a folder as the file has it. To see"
            " the paths: `SELECT DISTINCT file FROM snapconv_frames WHERE file LIKE '%.py'` in an "
            "`--extended` report."
        ),
    ),
    NoteMeaning(
        "no-sources",
        "Stacks and the project",
        means=(
            "folders were given with `--source`, and none of the files is there whose lines requested memory."
        ),
        affects="the names of operations: they are those without source.",
        do=(
            "give the folder that holds the project, or its root as the file has it "
            "(`--project-root`); [better "
            "names](../guide/better-names.md#operations-by-their-source) has what to give."
        ),
    ),
    NoteMeaning(
        "other-sources",
        "Stacks and the project",
        means=(
            "files below `--source` cannot be what was recorded: a function is not there, or does not"
            " have the line that a frame names. Or the Python that runs snapconv could not parse "
            "them."
        ),
        affects=(
            "these files are left out, so operations on their lines have the names that they have "
            "without source."
        ),
        do="give the program as it was then, such as a checkout of its commit.",
    ),
    NoteMeaning(
        "unused-rule",
        "Categories",
        means=(
            "a rule of your own has no effect. Either no frame of the file matches its patterns, or "
            "it is about frees and the file has no stacks of frees."
        ),
        affects="nothing: the categories are those without this rule.",
        do=(
            "compare the rule's `function` and `file` with the stacks that `snapconv explain --stack`"
            " shows; [rules-file](rules-file.md) explains how they are searched."
        ),
    ),
    NoteMeaning(
        "much-unknown",
        "Categories",
        means="more than a twentieth of the peak has no category.",
        affects=(
            "the split by category, and `weight_entries` and `activation_entries`, which hold only "
            "what has one."
        ),
        do=(
            "record it with `snapconv record`, which records what memory is for; otherwise from the "
            'start of the program with `context="all"` and `stacks="all"`, or name the code with '
            "`--rules`."
        ),
    ),
    NoteMeaning(
        "unmatched-gradients",
        "Categories",
        means="gradients are live at the peak whose size is that of no remaining weight.",
        affects="the sum of `grad_size_bytes` is less than the gradients at the peak.",
        do=("nothing. Typical reasons: gradient buckets of DDP, gradients of another type than the weight."),
    ),
    NoteMeaning(
        "growth",
        "Growth",
        means=(
            "the same stack adds memory in iteration after iteration, three at least, that is not "
            "freed to the end of the trace. Growth that would take more than 100,000 iterations to "
            "double the peak, such as that of a list of losses, is in the tables, and in no note."
        ),
        affects=(
            "nothing. The note gives how much an iteration adds, the summary which lines it was "
            "allocated on, and `snapconv_growth` has every stack."
        ),
        do="`snapconv growth FILE`; [growth](../guide/growth.md) has the usual reasons.",
    ),
    NoteMeaning(
        "simulated-times",
        "The times of a capture",
        means=(
            "the capture was recorded without a GPU, and its times are those of the processor that computed."
        ),
        affects=(
            "every time of the run time report. Which calls there are, how often and from where, is right."
        ),
        do="nothing; for a GPU's times, record on one.",
    ),
    NoteMeaning(
        "cpu-times",
        "The times of a capture",
        means="the operations were timed on the processor's clock, without a simulation.",
        affects="every time: it is what the processor took.",
        do="nothing, if that is where they run.",
    ),
    NoteMeaning(
        "warm-up-times",
        "The times of a capture",
        means=(
            "the program ended with the iteration in which the timer warms up, and its times are used"
            " as there are no others. `snapconv record` prints it too."
        ),
        affects=(
            "every time may include what happens only once: creating events, and compiling what "
            "`torch.compile` compiles again for the timer."
        ),
        do="let the program run one more iteration: four instead of three, by default.",
    ),
    NoteMeaning(
        "launch-bound",
        "The times of a capture",
        means=(
            "the device came to most operations of a phase before the host had launched all of their work."
        ),
        affects=(
            "their times include waiting for the host, so they are too long, small operations the most."
        ),
        do=("read [timing](../design/timing.md#small-operations-on-a-gpu); record with a larger batch."),
    ),
    NoteMeaning(
        "too-many-calls",
        "The times of a capture",
        means="an iteration called more torch functions than are recorded.",
        affects=(
            "the later calls of that iteration have no rows; the times measured around the phases are whole."
        ),
        do="look for a loop over single elements; it is slow in any case.",
    ),
    NoteMeaning(
        "no-timed-lines",
        "The times of a capture",
        means="no timed call came from a file of the project.",
        affects="`run_time_entries` is empty; the tables of `--extended` have all calls.",
        do="name the project's folder as recorded: `--project-root /where/it/was`.",
    ),
    NoteMeaning(
        "unknown-timing-version",
        "The times of a capture",
        means="the capture's `timing.json` was written by a newer snapconv.",
        affects="there is no run time report. The memory report is whole.",
        do="convert it with that version.",
    ),
    NoteMeaning(
        "ended-early",
        "While recording",
        means=(
            "the recorded program ended before everything was recorded: it came to its end, raised an"
            " exception, was interrupted, called `sys.exit` or ran out of memory. The note names "
            "which."
        ),
        affects=(
            "iterations and times that would have come later are not there. What is there is whole: "
            "at an OOM, the state in which the allocator gave up; otherwise the state at the end."
        ),
        do=(
            "nothing, if the end is what you wanted to see. Otherwise let the script make as many "
            "steps as the recording needs, or record fewer with `--warm-up` and `--iterations`. Three"
            " iterations are enough for both reports: the third has times, with the note "
            "[`warm-up-times`](#warm-up-times)."
        ),
    ),
    NoteMeaning(
        "no-timing",
        "While recording",
        means=(
            "the capture has no times of operations: with `--no-compute` there is nothing to time, or"
            " the timed iterations ran no operation."
        ),
        affects="there will be no run time report. The memory report is whole.",
        do=(
            "record without `--no-compute`, best on a GPU. (A program that ends before its times are "
            "due has the note [`ended-early`](#ended-early).)"
        ),
    ),
    NoteMeaning(
        "capture-elsewhere",
        "While recording",
        means="while the script ran, the place of the capture was removed, taken, or closed to writing.",
        affects="nothing but where the capture is: beside that place, under another name.",
        do="use the path that the note names.",
    ),
    NoteMeaning(
        "late-environment",
        "While recording",
        means=(
            "the script set `OMP_NUM_THREADS` or `MKL_NUM_THREADS`, which torch reads when it is "
            "imported. With `--simulate` that happens before the script's first line: it had no "
            "effect."
        ),
        affects="how many threads compute, and so the times. All figures are those of what really ran.",
        do="set the variable in the shell, before `snapconv record`.",
    ),
    NoteMeaning(
        "history-off",
        "While recording",
        means=(
            "the script called `_record_memory_history(enabled=None)` or the like before the memory "
            "part was done. torch has one history, and deletes its events when it is switched off."
        ),
        affects=(
            "events are missing, in the worst case all. What was live when the snapshot was taken is there."
        ),
        do="take the script's own calls of `_record_memory_history` out.",
    ),
    NoteMeaning(
        "other-device",
        "While recording",
        means="most of the memory is on another device than the one whose operations were timed.",
        affects=(
            "the run time report. Its times are those of a device that had little to do. The memory "
            "report is whole."
        ),
        do="name the device, as the note suggests: `snapconv record --device 1 …`.",
    ),
    NoteMeaning(
        "torch-changed",
        "While recording",
        means=(
            "a part of torch that the recorder builds on is not as it was in the supported versions. "
            "The sentence names the version of torch, what is not recorded or not simulated, and what"
            " differs. All else is recorded as usual."
        ),
        affects=(
            "what the sentence names. Allocations and bytes are untouched: where their part of torch "
            "has changed, nothing is recorded, and the error names it."
        ),
        do="look for a newer snapconv; if there is none, report the note, please.",
    ),
    NoteMeaning(
        "recorder-fault",
        "While recording",
        means=(
            "a fault of snapconv itself ended one part of the recording. The script did not notice. "
            "The note has the part, the error and its place."
        ),
        affects=(
            "that part, from then on: with `notes on what memory is for`, names of weights and "
            "categories with the evidence `metadata`; with `times of operations`, the run time "
            "report. Allocations and bytes are untouched, unless the part is one of a simulation: "
            "then what it was to simulate is missing."
        ),
        do="report the note, please.",
    ),
    NoteMeaning(
        "graphs-as-eager",
        "While recording",
        means=(
            "under `--simulate` the program made a CUDA graph. What it captured ran once, as it is "
            "written; a replay does nothing. What `make_graphed_callables` was given is called as it "
            "is."
        ),
        affects=(
            "a graph keeps a memory pool of its own on a GPU, which nothing else may use; it is "
            "missing. Steps that are replayed make no iterations, as on a GPU, and values stay those "
            "of the capture."
        ),
        do="nothing; record on a GPU to see the pool.",
    ),
    NoteMeaning(
        "values-not-computed",
        "While recording",
        means=(
            "under `--no-compute` the program read values that were not computed, at the lines named,"
            " and was given zeros. `bool()` decides a branch; `item()` may do no more than print a "
            "loss. `shape of …` is a result whose shape depends on values, such as `x[x > 0]`; it was"
            " taken as large as it can be."
        ),
        affects=(
            "what happens after a branch that depends on such a value, and all memory whose size "
            "does. Where values are only printed, nothing."
        ),
        do="look at the lines. If one matters, record without `--no-compute`.",
    ),
    NoteMeaning(
        "simulated-nccl",
        "While recording",
        means=(
            "the program made a process group (`torch.distributed`) under `--simulate`. It has this one rank."
        ),
        affects=(
            "what NCCL allocates for itself is missing. Buckets of gradients, and all else that torch"
            " allocates, are there."
        ),
        do="nothing; record on GPUs to see NCCL's own memory, and more ranks than one.",
    ),
    NoteMeaning(
        "random-weights",
        "While recording",
        means=(
            "the weights of a model are not at hand, and `--random-weights` built it from its configuration."
        ),
        affects=(
            "values only: losses, and what depends on them. Memory is that of the loaded model, "
            "unless its checkpoint has other element types than its configuration has."
        ),
        do="nothing, or put the weights where the program looks for them.",
    ),
    NoteMeaning(
        "compiled-as-eager",
        "While recording",
        means=(
            "the program called what it had `torch.compile` compile, under `--simulate` with values "
            "computed, or with a build of torch for CUDA. It ran eagerly: no kernel for a GPU could "
            "run here."
        ),
        affects=(
            "activations and temporary memory. They are those of eager mode, as a rule more than "
            "compiled code has."
        ),
        do=(
            "record with `--no-compute` and a CPU build of torch, which compiles and has the memory "
            "of compiled code (where torch can: seen with 2.13)."
        ),
    ),
    NoteMeaning(
        "parameters-elsewhere",
        "While recording",
        means=(
            "some parameters of a model are on no device, while its others are: they were left on the"
            " CPU, are on the meta device, or are tensors of a kind that cannot be looked into. The "
            "note names them and where they are."
        ),
        affects="the weights. Those parameters, their gradients and states are not in the report.",
        do=(
            "look for a module that is made after `model.cuda()`, or a plain tensor where a parameter"
            " should be. If it is meant (offloading to the CPU), nothing."
        ),
    ),
    NoteMeaning(
        "simulated",
        "Captures",
        means=(
            "the capture was recorded without a GPU (`snapconv record --simulate`). Allocations went "
            "through a model of torch's allocator. If the program met something that is not modelled,"
            " the sentence names it; [simulate](../guide/simulate.md#what-is-not-modelled) has the "
            "whole list."
        ),
        affects=(
            "everything. The sizes and lifetimes of tensors are those of a GPU; what kernels and "
            "libraries take for themselves is missing."
        ),
        do="add what is missing for your own model, or record on a GPU.",
    ),
    NoteMeaning(
        "metadata-left-out",
        "Captures",
        means=(
            "what the recorder wrote into the snapshot is of another version, or a value in it cannot"
            " be right. The sentence names the place."
        ),
        affects=(
            "names, exact gradients and the evidence `metadata` are missing. The snapshot is read as "
            "if no recorder had been there."
        ),
        do="look for a newer snapconv; if there is none, report the file.",
    ),
    NoteMeaning(
        "unused-params",
        "Names of weights",
        means=(
            "`--params` was given with a capture, which has the names already: the recorder read them"
            " from the model itself. The note gives how many of them the list has too."
        ),
        affects="nothing: the names are those that were recorded.",
        do="nothing. If the list has few of them, it is of another model.",
    ),
    NoteMeaning(
        "unnamed-weights",
        "Names of weights",
        means=(
            "some weights fit no name of the list that `--params` gave: another model, other sizes, "
            "or memory that was taken for a weight."
        ),
        affects=(
            "these weights are called by the line that allocated them, or by their number. No figure changes."
        ),
        do=(
            "see how many tensors of the list fit no weight; with many, the list is of another model."
            " Else nothing."
        ),
    ),
    NoteMeaning(
        "ambiguous-names",
        "Names of weights",
        means=("some weights have a name of their size, where another name of the list would fit as well."),
        affects="names may be swapped among weights of one size. No figure changes.",
        do=(
            "give a list in the model's order, as `snapconv params` writes it: [better "
            "names](../guide/better-names.md)."
        ),
    ),
    NoteMeaning(
        "unknown-action",
        "Unknown parts of the file",
        means="the trace has events of a kind that this version does not support. They were left out.",
        affects="unknown; usually nothing. The note names the actions.",
        do="look for a newer snapconv.",
    ),
    NoteMeaning(
        "unknown-keys",
        "Unknown parts of the file",
        means="the file has keys that this version does not support. They were left out.",
        affects="nothing that is reported.",
        do="nothing, or look for a newer snapconv.",
    ),
    NoteMeaning(
        "several-embedded",
        "Unknown parts of the file",
        means="an HTML page embeds several snapshots. The first one was read.",
        affects="the others are not in the report.",
        do="convert the pickles that the page was made from.",
    ),
)
