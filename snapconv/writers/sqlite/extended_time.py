"""The tables and views that ``--extended`` adds to a time report, as data, with where their values come from.

Their names begin with ``snapconv_``, as in a memory report; the two reports are two files. Whoever
changes a table here raises TIME_SCHEMA_VERSION and runs ``scripts/make_docs.py``.
"""

from collections.abc import Callable
from operator import attrgetter
from typing import Any

from snapconv.answers.times import CallColumns, TimeReport
from snapconv.snapshot.recorded.timing_file import PHASES
from snapconv.writers.sqlite.shared_tables import (
    FILE_PATH,
    FRAME_FILE,
    FRAME_FUNCTION,
    FRAME_LINE,
    IS_PROJECT,
    LINE_FUNCTION,
    LINE_NUMBER,
    NOTES,
    SOURCE,
    STACK_FRAMES,
    id_column,
    key_column,
    report_table,
    stack_frame_rows,
)
from snapconv.writers.sqlite.tables import Column, Table, TableRows, View, define_table, table_rows

TIME_SCHEMA_VERSION = 1

_NOT_THERE = "the iteration has no such phase"


def _ms(
    name: str, meaning: str, null: str | None = None, value: Callable[[Any], Any] | None = None
) -> Column:
    return Column(name, "REAL", meaning, "ms", null=null, value=value)


def _texts(calls: CallColumns, ids: list[int]) -> list[str | None]:
    """Get the texts of a column of their positions; None where it is -1."""
    return [None if i < 0 else calls.texts[i] for i in ids]


TIME_REPORT = report_table(
    TIME_SCHEMA_VERSION,
    Column("device", "INTEGER", "ordinal of the device that the report is about"),
    Column("clock", "TEXT", "`cuda`: CUDA events; `cpu`: the processor's clock"),
    Column("is_simulated", "INTEGER", "1: the capture was made without a GPU; 0: it was not"),
    Column(
        "iteration",
        "INTEGER",
        "the iteration that `run_time_entries` is about",
        value=attrgetter("reported.iteration"),
    ),
    root=lambda report: report.project_root,
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
    records=lambda report: report.iterations,
)

CALLS = define_table(
    "snapconv_calls",
    "Every outermost call of a torch function in every timed iteration, in order; after an iteration's calls "
    "come the nodes of autograd's graph that no call had made.",
    key_column(lambda calls: range(len(calls.table))),
    Column(
        "iteration",
        "INTEGER REFERENCES snapconv_iterations (iteration)",
        "the iteration",
        value=attrgetter("table.iteration"),
    ),
    Column(
        "operation",
        "TEXT",
        "the function that was called; of phase `backward`, the node",
        value=lambda calls: _texts(calls, calls.table.name_id.tolist()),
    ),
    Column(
        "phase",
        "TEXT",
        "`forward`, `backward`, `optimizer` or `other`, see docs/design/timing.md",
        value=lambda calls: [PHASES[phase] for phase in calls.table.phase.tolist()],
    ),
    Column(
        "module",
        "TEXT",
        "path of the innermost module being called; empty: the model itself",
        null="none",
        value=lambda calls: _texts(calls, calls.table.module_id.tolist()),
    ),
    id_column("stack_id", "snapconv_stacks", "no call made the node", attrgetter("table.stack_id")),
    id_column("entry_id", "run_time_entries", "it has none there"),
    # SQLite stores the NaN of a time that is not there as NULL.
    _ms(
        "forward_ms",
        "from before the call to after it, on the device",
        "no call made the node",
        attrgetter("table.forward_ms"),
    ),
    _ms(
        "backward_ms",
        "its nodes, each up to the beginning of the next node",
        "nothing of it ran in backward",
        attrgetter("table.backward_ms"),
    ),
    _ms(
        "backward_strict_ms",
        "its nodes alone",
        "nothing of it ran in backward",
        attrgetter("table.backward_strict_ms"),
    ),
    _ms("host_ms", "what the call took on the host", value=attrgetter("table.host_ms")),
    arrays=lambda report: report.calls,
)

LAUNCHES = define_table(
    "snapconv_launches",
    "Whether the device waited for the host, over all timed iterations. No rows on the processor's clock.",
    Column("phase", "TEXT", "`forward` or `backward`"),
    Column("n_calls", "INTEGER", "calls in forward; nodes in backward"),
    Column(
        "n_waited_for",
        "INTEGER",
        "those to which the device came before all of their work was queued: their times include waiting",
    ),
    _ms("device_ms", "what they took on the device: calls in forward, the engine's runs in backward"),
    _ms("host_ms", "the same on the host"),
    records=lambda report: report.launches,
)

LINES = define_table(
    "snapconv_lines",
    "What every line of the project took in the reported iteration, by the innermost frame of each entry.",
    FILE_PATH,
    LINE_NUMBER,
    LINE_FUNCTION,
    Column("n_calls", "INTEGER", "number of calls"),
    _ms("forward_ms", "sum over them"),
    _ms("backward_ms", "sum over them"),
    records=lambda report: report.lines,
)

TIME_FRAMES = define_table(
    "snapconv_frames",
    "The distinct frames.",
    key_column(attrgetter("frame_id")),
    FRAME_FUNCTION,
    FRAME_FILE,
    FRAME_LINE,
    IS_PROJECT,
    Column(
        "is_of_module",
        "INTEGER",
        "1: its variable `self` is an `nn.Module`; 0: it is not",
        value=lambda s: s.is_of_module[s.frame_id],
    ),
    arrays=lambda report: report.stacks,
)

TIME_STACKS = define_table(
    "snapconv_stacks",
    "The distinct stacks.",
    key_column(attrgetter("stack_id")),
    Column("n_frames", "INTEGER", "number of frames"),
    arrays=lambda report: report.stacks,
)

EXTENDED_TIME_TABLES: tuple[Table, ...] = (
    TIME_REPORT,
    SOURCE,
    NOTES,
    TIMED_ITERATIONS,
    LAUNCHES,
    LINES,
    TIME_FRAMES,
    TIME_STACKS,
    STACK_FRAMES,
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


def extended_time_rows(report: TimeReport) -> list[TableRows]:
    """Arrange the rows of every extended table of a time report."""
    return [
        stack_frame_rows(report.stacks) if table is STACK_FRAMES else table_rows(table, report)
        for table in EXTENDED_TIME_TABLES
    ]
