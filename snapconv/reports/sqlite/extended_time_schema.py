"""The tables and views that ``--extended`` adds to a time report, as data.

Their names begin with ``snapconv_``, as in a memory report; the two reports are two files. Whoever
changes a table here raises TIME_SCHEMA_VERSION and runs ``scripts/make_docs.py``.
"""

from snapconv.reports.sqlite.table_schema import Column, Table, View, define_table

TIME_SCHEMA_VERSION = 1

_MS = "ms"
_NOT_THERE = "the iteration has no such phase"
_KEY = Column("id", "INTEGER PRIMARY KEY", "0, 1, 2, …")


def _ms(name: str, meaning: str, null: str | None = None) -> Column:
    return Column(name, "REAL", meaning, _MS, null=null)


def _id(name: str, target: str, null: str) -> Column:
    return Column(
        name, f"INTEGER REFERENCES {target} (id)", f"row of `{target}`", null=null, stands_for_null=-1
    )


TIME_REPORT = define_table(
    "snapconv_report",
    "What this report is; always one row.",
    Column(
        "schema_version",
        "INTEGER",
        f"version of the `snapconv_` tables; this page describes {TIME_SCHEMA_VERSION}",
    ),
    Column("device", "INTEGER", "ordinal of the device that the report is about"),
    Column("clock", "TEXT", "`cuda`: CUDA events; `cpu`: the processor's clock"),
    Column("is_simulated", "INTEGER", "1: the capture was made without a GPU; 0: it was not"),
    Column("iteration", "INTEGER", "the iteration that `run_time_entries` is about"),
    Column("project_root", "TEXT", "folder that paths of the project are relative to", null="none was found"),
)

TIME_SOURCE = define_table(
    "snapconv_source",
    "Where the numbers come from.",
    Column("key", "TEXT", "what is said"),
    Column("value", "TEXT", "what it says"),
)

TIME_NOTES = define_table(
    "snapconv_notes",
    "What the reader of the times should know.",
    Column("slug", "TEXT", "stable short name of the note"),
    Column("message", "TEXT", "a sentence for a person"),
    Column("device", "INTEGER", "ordinal of the device that it is about", null="the whole capture"),
)

TIMED_ITERATIONS = define_table(
    "snapconv_iterations",
    "Every timed iteration: what was measured around its phases, and what its calls add up to.",
    Column("iteration", "INTEGER PRIMARY KEY", "number of the iteration in the recorded run"),
    Column("is_reported", "INTEGER", "1: `run_time_entries` is about it, as its total is the median; 0: no"),
    _ms(
        "forward_ms",
        "from the first to the end of the last forward call, with what is between them",
        _NOT_THERE,
    ),
    _ms("backward_ms", "the runs of autograd's engine", _NOT_THERE),
    _ms("optimizer_ms", "the steps of the optimizers", _NOT_THERE),
    _ms("forward_rows_ms", "sum of `forward_ms` over its calls of phase `forward`"),
    _ms("backward_rows_ms", "sum of `backward_ms` over its calls"),
    _ms("bookkeeping_ms", "the timer's own time in `forward_ms`, on the host; in no call", "not recorded"),
)

CALLS = define_table(
    "snapconv_calls",
    "Every outermost call of a torch function in every timed iteration, in order; after an iteration's calls "
    "come the nodes of autograd's graph that no call had made.",
    _KEY,
    Column("iteration", "INTEGER REFERENCES snapconv_iterations (iteration)", "the iteration"),
    Column("operation", "TEXT", "the function that was called; of phase `backward`, the node"),
    Column("phase", "TEXT", "`forward`, `backward`, `optimizer` or `other`, see docs/timing.md"),
    Column(
        "module", "TEXT", "path of the innermost module being called; empty: the model itself", null="none"
    ),
    _id("stack_id", "snapconv_stacks", "no call made the node"),
    Column(
        "entry_id",
        "INTEGER REFERENCES run_time_entries (id)",
        "row of `run_time_entries`",
        null="it has none there",
        stands_for_null=-1,
    ),
    _ms("forward_ms", "from before the call to after it, on the device", "no call made the node"),
    _ms(
        "backward_ms", "its nodes, each up to the beginning of the next node", "nothing of it ran in backward"
    ),
    _ms("backward_strict_ms", "its nodes alone", "nothing of it ran in backward"),
    _ms("host_ms", "what the call took on the host"),
)

LAUNCHES = define_table(
    "snapconv_launches",
    "Whether the device waited for the host, over all timed iterations. No rows on the processor's clock.",
    Column("phase", "TEXT", "`forward` or `backward`"),
    Column("n_calls", "INTEGER", "calls in forward; nodes in backward"),
    Column(
        "n_waited_for",
        "INTEGER",
        "those to which the device came before all of their work was queued: their times hold waiting",
    ),
    _ms("device_ms", "what they took on the device: calls in forward, the engine's runs in backward"),
    _ms("host_ms", "the same on the host"),
)

LINES = define_table(
    "snapconv_lines",
    "What every line of the project took in the reported iteration, by the innermost frame of each entry.",
    Column("file_path", "TEXT", "relative to the project root"),
    Column("line_number", "INTEGER", "line in that file, from 1"),
    Column("function", "TEXT", "function that the line is in"),
    Column("n_calls", "INTEGER", "number of calls"),
    _ms("forward_ms", "sum over them"),
    _ms("backward_ms", "sum over them"),
)

TIME_FRAMES = define_table(
    "snapconv_frames",
    "The distinct frames.",
    _KEY,
    Column("function", "TEXT", "function, as recorded"),
    Column("file", "TEXT", "file, as recorded"),
    Column("line", "INTEGER", "line in that file", null="not known", stands_for_null=0),
    Column("is_project", "INTEGER", "1: the file is the project's; 0: it is not"),
    Column("is_of_module", "INTEGER", "1: its variable `self` is an `nn.Module`; 0: it is not"),
)

TIME_STACKS = define_table(
    "snapconv_stacks",
    "The distinct stacks.",
    _KEY,
    Column("n_frames", "INTEGER", "number of frames"),
)

TIME_STACK_FRAMES_ALL = define_table(
    "snapconv_stack_frames",
    "The Python frames of every stack.",
    Column("stack_id", "INTEGER REFERENCES snapconv_stacks (id)", "row of `snapconv_stacks`"),
    Column("ordering", "INTEGER", "0, 1, 2, …; 0 is the innermost frame"),
    Column("frame_id", "INTEGER REFERENCES snapconv_frames (id)", "row of `snapconv_frames`"),
    primary_key="stack_id, ordering",
)

EXTENDED_TIME_TABLES: tuple[Table, ...] = (
    TIME_REPORT,
    TIME_SOURCE,
    TIME_NOTES,
    TIMED_ITERATIONS,
    LAUNCHES,
    LINES,
    TIME_FRAMES,
    TIME_STACKS,
    TIME_STACK_FRAMES_ALL,
    CALLS,
)

MODULE_TIMES = View(
    "snapconv_module_times",
    "What the calls directly in every module took, per iteration; those of its submodules are theirs.",
    (
        Column("iteration", "INTEGER", "the iteration"),
        Column("module", "TEXT", "path of the module; empty: the model itself", null="outside of any module"),
        Column("n_calls", "INTEGER", "number of calls"),
        _ms("forward_ms", "sum over them"),
        _ms("backward_ms", "sum over them"),
    ),
    """\
CREATE VIEW snapconv_module_times AS
SELECT iteration, module, count(*) AS n_calls, total(forward_ms) AS forward_ms,
       total(backward_ms) AS backward_ms
FROM snapconv_calls
WHERE phase IN ('forward', 'backward')
GROUP BY iteration, module""",
)

EXTENDED_TIME_VIEWS: tuple[View, ...] = (MODULE_TIMES,)
