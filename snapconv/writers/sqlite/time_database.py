"""A TimeReport -> an SQLite file in the schema of ``skyline time`` (skyline-cli 0.5.0), and tables of ours.

DeepView.Profile 0.14.5 uses the same schema. docs/reference/time-schema.md explains the rows. The names of
our tables begin with ``snapconv_``, as in a memory report. TIME_SCHEMA_VERSION rises as SCHEMA_VERSION does.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from snapconv.answers.times import TimeReport
from snapconv.snapshot.recorded.timing_file import PHASES
from snapconv.writers.sqlite.shared_tables import (
    ENTRY_KEY,
    FRAME_OF_ENTRY,
    FRAMES,
    NOTES,
    SOURCE,
    STACK_FRAMES,
    USER_VERSION,
    EntryFrames,
    report_table,
)
from snapconv.writers.sqlite.tables import Column, Database, integer, key, milliseconds, row_of, table, text

TIME_SCHEMA_VERSION = 2

_NO_PHASE = "the iteration has no such phase"
_NO_CALL = "no call made the node"
_NO_BACKWARD = "nothing of it ran in backward"
_FORWARD_MS = "from before the call to after it, on the device"

TIME_TABLES = (
    table(
        "run_time_entries",
        "One row per outermost call of a torch function in the forward pass of the reported iteration, in "
        "the order of the calls.",
        ENTRY_KEY,
        text("operation_name", "the function that was called", "1.operation_name"),
        milliseconds("forward_ms", _FORWARD_MS, at="1.forward_ms"),
        milliseconds(
            "backward_ms",
            "what autograd ran for it in backward, on the device",
            _NO_BACKWARD,
            "1.backward_ms",
        ),
        records=lambda report: enumerate(report.entries, 1),
        is_skylines=True,
    ),
    table(
        "stack_frames",
        "The frames of the project that led to the call; every entry has at least one.",
        *FRAME_OF_ENTRY,
        integer("entry_id", "row of `run_time_entries`", "0"),
        records=lambda report: EntryFrames(report.entries),
        constraint="PRIMARY KEY (entry_id, ordering)",
        is_skylines=True,
    ),
)


def _texts(report: TimeReport, ids: Sequence[int]) -> list[str | None]:
    """Look up texts by id; None for -1."""
    return [None if i < 0 else report.timing.texts[i] for i in ids]


_CALLS = table(
    "snapconv_calls",
    "Every outermost call of a torch function in every timed iteration, in order; after an iteration's calls "
    "come the nodes of autograd's graph that no call had made.",
    key(lambda report: range(len(report.timing.calls))),
    Column(
        "iteration",
        "INTEGER REFERENCES snapconv_iterations (iteration)",
        "the iteration",
        at="timing.calls.iteration",
    ),
    text(
        "operation",
        "the function that was called; of phase `backward`, the node",
        lambda report: _texts(report, report.timing.calls.name_id.tolist()),
    ),
    text(
        "phase",
        "`forward`, `backward`, `optimizer` or `other`, see docs/design/timing.md",
        lambda report: [PHASES[phase] for phase in report.timing.calls.phase.tolist()],
    ),
    text(
        "module",
        "path of the innermost module being called; empty: the model itself",
        lambda report: _texts(report, report.timing.calls.module_id.tolist()),
        null="none",
    ),
    row_of("snapconv_stacks", "stack_id", _NO_CALL, "timing.calls.stack_id"),
    row_of("run_time_entries", "entry_id", "it has none there"),
    milliseconds("forward_ms", _FORWARD_MS, _NO_CALL, "timing.calls.forward_ms"),
    milliseconds(
        "backward_ms",
        "its nodes, each up to the beginning of the next node",
        _NO_BACKWARD,
        "timing.calls.backward_ms",
    ),
    milliseconds("host_ms", "what the call took on the host", at="timing.calls.host_ms"),
    arrays=lambda report: report,
)

EXTENDED_TIME_TABLES = (
    report_table(
        TIME_SCHEMA_VERSION,
        integer("device", "ordinal of the device that the report is about", "timing.device"),
        text("clock", "`cuda`: CUDA events; `cpu`: the processor's clock", "timing.clock"),
        integer(
            "is_simulated", "1: the capture was made without a GPU; 0: it was not", "timing.is_simulated"
        ),
        integer("iteration", "the iteration that `run_time_entries` is about", "reported.measured.iteration"),
        root="project.root",
    ),
    SOURCE,
    NOTES,
    table(
        "snapconv_iterations",
        "Every timed iteration: what was measured around its phases, and what its calls add up to.",
        Column(
            "iteration",
            "INTEGER PRIMARY KEY",
            "number of the iteration in the recorded run",
            at="measured.iteration",
        ),
        integer("is_reported", "1: `run_time_entries` is about it, as its total is the median; 0: no"),
        milliseconds(
            "forward_ms",
            "from the first to the end of the last forward call, with what is between them",
            _NO_PHASE,
            "measured.forward_ms",
        ),
        milliseconds("backward_ms", "the runs of autograd's engine", _NO_PHASE, "measured.backward_ms"),
        milliseconds("optimizer_ms", "the steps of the optimizers", _NO_PHASE, "measured.optimizer_ms"),
        milliseconds("forward_rows_ms", "sum of `forward_ms` over its calls of phase `forward`"),
        milliseconds("backward_rows_ms", "sum of `backward_ms` over its calls"),
        records=lambda report: report.iterations,
    ),
    replace(
        FRAMES,
        columns=(
            *FRAMES.columns,
            integer(
                "is_of_module",
                "1: its variable `self` is an `nn.Module`; 0: it is not",
                lambda stacks: stacks.is_of_module[stacks.frame_id],
            ),
        ),
    ),
    table(
        "snapconv_stacks",
        "The distinct stacks.",
        key("stack_id"),
        integer("n_frames", "number of frames"),
        arrays=lambda report: report.stacks,
    ),
    STACK_FRAMES,
    _CALLS,
)


def time_database(path: Path, report: TimeReport, *, extended: bool) -> Database:
    """Arrange the file of a time report; ``write_databases`` writes it."""
    tables = (*TIME_TABLES, *EXTENDED_TIME_TABLES) if extended else TIME_TABLES
    return Database(path, USER_VERSION, report, tables)
