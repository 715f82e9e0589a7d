"""The tables that ``--extended`` adds to a run time report, beside those of a memory report.

TIME_SCHEMA_VERSION rises as SCHEMA_VERSION of a memory report does.
"""

from dataclasses import replace

from snapconv.answers.times import TimeReport
from snapconv.snapshot.recorded.timing_file import PHASES
from snapconv.writers.sqlite.extended_memory import (
    FRAMES,
    N_FRAMES,
    NOTES,
    SOURCE,
    STACK_FRAMES,
    frame_arrays,
    report_table,
)
from snapconv.writers.sqlite.tables import (
    Arrays,
    Row,
    Rows,
    Table,
    integer,
    key,
    milliseconds,
    picked,
    row_of,
    table,
    text,
)

TIME_SCHEMA_VERSION = 2

_NO_PHASE = "the iteration has no such phase"
_NO_CALL = "no call made the node"
_ITERATION = "INTEGER REFERENCES snapconv_iterations (iteration)"
_IS_OF_MODULE = integer(
    "is_of_module", "1: its variable `self` is an `nn.Module`; 0: it is not"
)


def _facts(report: TimeReport) -> Row:
    timing = report.timing
    iteration = report.reported.measured.iteration
    return timing.device, timing.clock, timing.is_simulated, iteration, report.project.root


def _iteration_rows(report: TimeReport) -> Rows:
    for iteration in report.iterations:
        measured = iteration.measured
        yield (
            measured.iteration,
            iteration is report.reported,
            measured.forward_ms,
            measured.backward_ms,
            measured.optimizer_ms,
            iteration.forward_rows_ms,
            iteration.backward_rows_ms,
        )


def _frame_arrays(report: TimeReport) -> Arrays:
    stacks = report.stacks
    assert stacks.is_of_module is not None  # a report of times has it
    return [*frame_arrays(report), stacks.is_of_module[stacks.frame_id]]


def _call_arrays(report: TimeReport) -> Arrays:
    texts = report.timing.texts
    calls = report.timing.calls
    return (
        range(len(calls)),
        calls.iteration,
        picked(texts, calls.name_id),
        [PHASES[phase] for phase in calls.phase.tolist()],
        picked(texts, calls.module_id),
        calls.stack_id,
        report.entry_id,
        calls.forward_ms,
        calls.backward_ms,
        calls.host_ms,
    )


_FRAMES = replace(FRAMES, columns=(*FRAMES.columns, _IS_OF_MODULE), arrays=_frame_arrays)

EXTENDED_TIME_TABLES: tuple[Table, ...] = (
    report_table(
        TIME_SCHEMA_VERSION,
        integer("device", "ordinal of the device that the report is about"),
        text("clock", "`cuda`: CUDA events; `cpu`: the processor's clock"),
        integer(
            "is_simulated",
            "1: the capture was made without a GPU; 0: it was not",
        ),
        integer(
            "iteration",
            "the iteration that `run_time_entries` is about",
        ),
        facts=_facts,
    ),
    SOURCE,
    NOTES,
    table(
        "snapconv_iterations",
        "Every timed iteration: what was measured around its phases, and what its calls add up to.",
        key("number of the iteration in the recorded run", "iteration"),
        integer(
            "is_reported",
            "1: `run_time_entries` is about it, as its total is the median; 0: no",
        ),
        milliseconds(
            "forward_ms",
            "from the first to the end of the last forward call, with what is between them",
            _NO_PHASE,
        ),
        milliseconds("backward_ms", "the runs of autograd's engine", _NO_PHASE),
        milliseconds("optimizer_ms", "the steps of the optimizers", _NO_PHASE),
        milliseconds(
            "forward_rows_ms",
            "sum of `forward_ms` over its calls of phase `forward`",
        ),
        milliseconds("backward_rows_ms", "sum of `backward_ms` over its calls"),
        rows=_iteration_rows,
    ),
    _FRAMES,
    table(
        "snapconv_stacks",
        "The distinct stacks.",
        key(path="stacks.stack_id"),
        N_FRAMES,
    ),
    STACK_FRAMES,
    table(
        "snapconv_calls",
        "Every outermost call of a torch function in every timed iteration, in order; after an "
        "iteration's calls come the nodes of autograd's graph that no call had made.",
        key(),
        integer("iteration", "the iteration", sql_type=_ITERATION),
        text(
            "operation",
            "the function that was called; of phase `backward`, the node",
        ),
        text(
            "phase",
            "`forward`, `backward`, `optimizer` or `other`, see docs/design/timing.md",
        ),
        text(
            "module",
            "path of the innermost module being called; empty: the model itself",
            null="none",
        ),
        row_of("snapconv_stacks", "stack_id", _NO_CALL),
        row_of("run_time_entries", "entry_id", "it has none there"),
        milliseconds(
            "forward_ms",
            "from before the call to after it, on the device",
            _NO_CALL,
        ),
        milliseconds(
            "backward_ms",
            "its nodes, each up to the beginning of the next node",
            "nothing of it ran in backward",
        ),
        milliseconds("host_ms", "what the call took on the host"),
        arrays=_call_arrays,
    ),
)
