"""What a capture's two files hold, key by key: docs/reference/capture.md is printed from it.

Tests compare the keys with those that the recorder writes. Imports nothing.
"""

# Key -> meaning, of what the recorder adds to the snapshot under its own key.
METADATA_KEYS: dict[str, str] = {
    "`version`": "1",
    "`snapconv`, `torch`, `cuda`, `python`, `platform`": "versions",
    "`command`": "the command line of the program, a list",
    "`entry`": "`path` of the script and its `kind`: `script`, `module`, `providers` or `production`",
    "`project_root`, `project_root_given`": (
        "the folder of the project; whether it was named, so that nothing else counts"
    ),
    "`include`": "what `--include` named, a list: libraries that count as part of the project",
    "`allocator_conf`": "the environment's settings of the allocator",
    "`simulated`": "none, or how the simulation was set up, with `not_modelled`, a list of texts",
    "`ended`": (
        "`how` the program ended (`complete`, `finished`, `exception`, `interrupted`, "
        "`oom`, `exit`) and a `detail`"
    ),
    "`max_entries`, `overflowed`": "the length of the trace's ring, and whether events were lost",
    "`devices`": (
        "one per device: `device`, `name`, `total_bytes`, `max_memory_allocated`, "
        "`max_memory_reserved`, and torch's `memory_stats`"
    ),
    "`parameters`": "parameters and buffers, one per tensor, in the order of `named_parameters`",
    "`earlier_parameters`": (
        "where parameters and buffers lay before a program gave them other memory: `p.data = …`"
    ),
    "`gradients`": (
        "what `.grad` was: one per parameter and iteration, and a further one where it was made anew"
    ),
    "`optimizer_states`": "tensors of the optimizers' states",
    "`inputs`": "tensors that a model was called with",
    "`saved`": "tensors that autograd saved for backward",
    "`attributes`": "tensors that modules hold as plain attributes",
    "`copies`": "what `deepcopy` copied tensors to",
    "`phases`": "the phases, one after the other",
    "`iterations`": "the iterations",
    "`notes`": "what else was found while recording, and every report repeats: `slug` and `message`",
}
# Of every row that is about memory.
ROW_KEYS: dict[str, str] = {
    "`device`, `addr`": "the device, and the address at which the storage begins",
    "`bytes`": "what the tensor itself has: its elements times their size",
    "`storage_bytes`": "what the storage has that it views",
    "`noted_us`": "when that was so",
}
# And besides: the rows, their keys, the meaning.
ROW_KEYS_OF: tuple[tuple[str, str, str], ...] = (
    (
        "`parameters`",
        "`name`, `names`",
        "the first name, and all of them; empty where only the program holds it",
    ),
    ("`parameters`", "`kind`", "`parameter` or `buffer`"),
    (
        "`parameters`",
        "`module`, `module_class`",
        "the dotted name of the module that holds it, and its class",
    ),
    ("`parameters`", "`shape`, `dtype`, `requires_grad`", "as torch has them"),
    (
        "`parameters`",
        "`frames`",
        "the stack that registered it first, leaf first: `filename`, `line`, `name`",
    ),
    ("`earlier_parameters`", "`parameter`", "a position in `parameters`"),
    ("`gradients`", "`parameter`", "a position in `parameters`; none for what is no parameter"),
    ("`gradients`", "`iteration`", "in which iteration"),
    (
        "`optimizer_states`",
        "`parameter`",
        "a position in `parameters`; none if it belongs to no parameter of the model",
    ),
    (
        "`optimizer_states`",
        "`state`",
        "its name, such as `exp_avg`; with its place where it stands in a list: `old_dirs.0`",
    ),
    ("`inputs`", "`iteration`, `shape`, `dtype`", "as above"),
    (
        "`saved`",
        "`iteration`, `module`",
        "in which iteration, and the module that was running; none outside of all",
    ),
    ("`saved`", "`without_history`, `dtype`", "whether nothing that has a gradient made it, and its type"),
    (
        "`attributes`",
        "`module`, `name`, `written`",
        "the module, the attribute, and whether it was written to since it was made",
    ),
    ("`copies`", "`original`", "the address of what it was copied from, on the same device"),
    (
        "`phases`",
        "`phase`, `iteration`, `began_us`, `ended_us`",
        "`forward`, `backward` or `optimizer`; `ended_us` is none for one that lasts",
    ),
    ("`iterations`", "`iteration`, `kind`, `began_us`, `ended_us`", "`warm-up` or `memory`"),
)
# timing.json: path, type, meaning.
TIMING_KEYS: tuple[tuple[str, str, str], ...] = (
    ("version", "integer", "1"),
    ("snapconv", "string", "the version of snapconv that recorded it"),
    ("torch", "string", "the version of torch"),
    ("clock", "string", "`cuda`: CUDA events; `cpu`: the processor's clock"),
    ("simulated", "boolean", "whether it was recorded without a GPU"),
    ("device", "integer", "ordinal of the device"),
    ("device_name", "string", "what the driver calls it; `CPU` on the processor's clock"),
    (
        "warm_up",
        "boolean",
        "whether the iteration is the timer's warm-up, after which the program ended; missing: false",
    ),
    ("project_root", "string", "folder of the project when it was recorded"),
    ("iterations", "array", "the timed iterations"),
    ("iterations[].iteration", "integer", "its number in the recorded run"),
    (
        "iterations[].forward_ms",
        "number or null",
        "see [timing](../design/timing.md#what-the-times-are); null: there was none",
    ),
    (
        "iterations[].backward_ms",
        "number or null",
        "see [timing](../design/timing.md#what-the-times-are); null: there was none",
    ),
    (
        "iterations[].optimizer_ms",
        "number or null",
        "see [timing](../design/timing.md#what-the-times-are); null: there was none",
    ),
    ("iterations[].bookkeeping_ms", "number or null", "the timer's own time in `forward_ms`, on the host"),
    ("stacks", "array", "the distinct Python stacks, innermost frame first"),
    (
        "stacks[][]",
        "array",
        "a frame: file, line (0: not known), function, and whether its `self` is an `nn.Module`",
    ),
    ("calls", "object", "arrays of equal length, one place per row, in the order of calls"),
    ("calls.iteration", "array of integers", "number of the iteration"),
    ("calls.name", "array of strings", "name of the function; of phase `backward`, of the node"),
    ("calls.phase", "array of strings", "`forward`, `backward`, `optimizer` or `other`"),
    (
        "calls.module",
        "array of strings or nulls",
        "path of the innermost module being called, empty for the model itself; null: none",
    ),
    ("calls.stack", "array of integers", "place in `stacks`; -1: of phase `backward`"),
    (
        "calls.forward_ms",
        "array of numbers or nulls",
        "see [timing](../design/timing.md#what-the-times-are); null: of phase `backward`",
    ),
    (
        "calls.backward_ms",
        "array of numbers or nulls",
        "see [timing](../design/timing.md#what-the-times-are); null: nothing of it ran in backward",
    ),
    (
        "calls.backward_strict_ms",
        "array of numbers or nulls",
        "see [timing](../design/timing.md#what-the-times-are); null with `backward_ms`",
    ),
    ("calls.host_ms", "array of numbers", "see [timing](../design/timing.md#what-the-times-are)"),
    (
        "launch_bound",
        "object or null",
        "`forward` and `backward`, over all timed iterations; null on the processor's clock",
    ),
    ("launch_bound.*.n", "integer", "calls of phase `forward`; nodes that ran"),
    (
        "launch_bound.*.n_waited_for",
        "integer",
        "those that the device reached before all of their work was queued",
    ),
    ("launch_bound.*.device_ms", "number", "what the calls, or the passes, took on the device"),
    ("launch_bound.*.host_ms", "number", "the same on the host"),
    ("empty_pair_ms", "number or null", "what two marks with nothing between them are apart"),
    ("overflowed", "boolean", "whether calls are missing because there were too many"),
)
