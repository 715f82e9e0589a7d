"""The tables that ``--extended`` adds to a run time report, beside those of a memory report.

TIME_SCHEMA_VERSION rises as SCHEMA_VERSION of a memory report does.
"""

from dataclasses import replace

from snapconv.answers.times import IterationTimes, TimeReport
from snapconv.snapshot.recorded.timing_file import PHASES
from snapconv.writers.sqlite.extended_memory import (
    FRAMES,
    NOTES,
    SOURCE,
    STACK_FRAMES,
    report_table,
)
from snapconv.writers.sqlite.tables import (
    Table,
    integer,
    key,
    milliseconds,
    numbers_of,
    row_of,
    table,
    text,
)

TIME_SCHEMA_VERSION = 2

_NO_PHASE = "the iteration has no such phase"
_NO_CALL = "no call made the node"
_ITERATION = "INTEGER REFERENCES snapconv_iterations (iteration)"
_IS_OF_MODULE = integer("is_of_module", "1: its variable `self` is an `nn.Module`; 0: it is not")


def _iterations(report: TimeReport) -> list[tuple[IterationTimes, bool]]:
    """Return the iterations, and of each whether it is the reported one."""
    return [(iteration, iteration is report.reported) for iteration in report.iterations]


def _phases(report: TimeReport) -> list[str]:
    return [PHASES[phase] for phase in report.timing.calls.phase.tolist()]


_FRAMES = replace(FRAMES, columns=(*FRAMES.columns, _IS_OF_MODULE))

EXTENDED_TIME_TABLES: tuple[Table, ...] = (
    report_table(
        TIME_SCHEMA_VERSION,
        integer("device", "ordinal of the device that the report is about", "timing.device"),
        text("clock", "`cuda`: CUDA events; `cpu`: the processor's clock", "timing.clock"),
        integer(
            "is_simulated",
            "1: the capture was made without a GPU; 0: it was not",
            "timing.is_simulated",
        ),
        integer(
            "iteration",
            "the iteration that `run_time_entries` is about",
            "reported.measured.iteration",
        ),
        root="project.root",
    ),
    SOURCE,
    NOTES,
    table(
        "snapconv_iterations",
        "Every timed iteration: what was measured around its phases, and what its calls add up to.",
        key("0.measured.iteration", "number of the iteration in the recorded run", "iteration"),
        integer(
            "is_reported",
            "1: `run_time_entries` is about it, as its total is the median; 0: no",
            "1",
        ),
        milliseconds(
            "forward_ms",
            "from the first to the end of the last forward call, with what is between them",
            "0.measured.forward_ms",
            _NO_PHASE,
        ),
        milliseconds(
            "backward_ms", "the runs of autograd's engine", "0.measured.backward_ms", _NO_PHASE
        ),
        milliseconds(
            "optimizer_ms", "the steps of the optimizers", "0.measured.optimizer_ms", _NO_PHASE
        ),
        milliseconds(
            "forward_rows_ms",
            "sum of `forward_ms` over its calls of phase `forward`",
            "0.forward_rows_ms",
        ),
        milliseconds(
            "backward_rows_ms", "sum of `backward_ms` over its calls", "0.backward_rows_ms"
        ),
        records=_iterations,
    ),
    _FRAMES,
    table(
        "snapconv_stacks",
        "The distinct stacks.",
        key("stack_id"),
        integer("n_frames", "number of frames"),
        arrays="stacks",
    ),
    STACK_FRAMES,
    table(
        "snapconv_calls",
        "Every outermost call of a torch function in every timed iteration, in order; after an "
        "iteration's calls come the nodes of autograd's graph that no call had made.",
        key(numbers_of("timing.calls")),
        integer("iteration", "the iteration", "timing.calls.iteration", sql_type=_ITERATION),
        text(
            "operation",
            "the function that was called; of phase `backward`, the node",
            "timing.texts",
            rows="timing.calls.name_id",
        ),
        text(
            "phase",
            "`forward`, `backward`, `optimizer` or `other`, see docs/design/timing.md",
            _phases,
        ),
        text(
            "module",
            "path of the innermost module being called; empty: the model itself",
            "timing.texts",
            null="none",
            rows="timing.calls.module_id",
        ),
        row_of("snapconv_stacks", "stack_id", _NO_CALL, "timing.calls.stack_id"),
        row_of("run_time_entries", "entry_id", "it has none there"),
        milliseconds(
            "forward_ms",
            "from before the call to after it, on the device",
            "timing.calls.forward_ms",
            _NO_CALL,
        ),
        milliseconds(
            "backward_ms",
            "its nodes, each up to the beginning of the next node",
            "timing.calls.backward_ms",
            "nothing of it ran in backward",
        ),
        milliseconds("host_ms", "what the call took on the host", "timing.calls.host_ms"),
    ),
)
