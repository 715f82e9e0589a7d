"""The TimeReport: all that a writer needs of a capture's times, nothing left for it to compute."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from snapconv.columns import BoolColumn, Int32Column
from snapconv.notes import Note
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.project_lines import SourceLine

if TYPE_CHECKING:  # it reads JSON, which few files need
    from snapconv.snapshot.recorded.timing_file import CallTable, LaunchCounts


@dataclass(frozen=True, slots=True)
class RunTimeEntry:
    """One call of the reported iteration that a line of the project led to; frames innermost first.

    ``backward_ms`` is None where nothing of it ran in backward.
    """

    operation_name: str
    forward_ms: float
    backward_ms: float | None
    frames: tuple[SourceLine, ...]
    call_id: int


@dataclass(frozen=True, slots=True)
class IterationTimes:
    """One iteration: what was measured around its phases, and what its rows add up to.

    None: the phase did not happen. ``bookkeeping_ms`` is what the timer itself took between the marks
    of the calls, on the host; it is a part of ``forward_ms`` and of no row.
    """

    iteration: int
    forward_ms: float | None
    backward_ms: float | None
    optimizer_ms: float | None
    forward_rows_ms: float
    backward_rows_ms: float
    bookkeeping_ms: float | None

    @property
    def total_ms(self) -> float:
        """Forward, backward and optimizer together."""
        return sum(part or 0.0 for part in (self.forward_ms, self.backward_ms, self.optimizer_ms))

    @property
    def forward_coverage(self) -> float | None:
        """The part of the forward time that rows account for; None without one."""
        return self.forward_rows_ms / self.forward_ms if self.forward_ms else None

    @property
    def backward_coverage(self) -> float | None:
        """The part of the backward time that rows account for; None without one."""
        return self.backward_rows_ms / self.backward_ms if self.backward_ms else None


@dataclass(frozen=True, slots=True)
class TimeTotal:
    """What the calls of one operation, or of one line, took in the reported iteration."""

    name: str
    n_calls: int
    forward_ms: float
    backward_ms: float

    @property
    def total_ms(self) -> float:
        """Forward and backward together."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True, slots=True)
class LineTime:
    """What the calls from one line of the project took in the reported iteration."""

    line: SourceLine
    n_calls: int
    forward_ms: float
    backward_ms: float

    @property
    def total_ms(self) -> float:
        """Forward and backward together."""
        return self.forward_ms + self.backward_ms


@dataclass(frozen=True, slots=True)
class CallColumns:
    """Every call of every iteration, with its row among the entries; -1: it has none there.

    The names and modules of ``table`` are positions in ``texts``.
    """

    table: "CallTable"
    entry_id: Int32Column
    texts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimeReport:
    """Everything known about the times of one device, ready to be written.

    ``reported`` is the iteration whose total is the median, the lower one of two. ``is_project`` and
    ``is_of_module`` have one entry per frame of ``stacks``.
    """

    device: int
    clock: str
    is_simulated: bool
    reported: IterationTimes
    entries: tuple[RunTimeEntry, ...]
    iterations: tuple[IterationTimes, ...]
    operations: tuple[TimeTotal, ...]
    lines: tuple[LineTime, ...]
    launches: "tuple[LaunchCounts, ...]"
    source: tuple[tuple[str, str], ...]
    project_root: str | None
    notes: tuple[Note, ...]
    calls: CallColumns
    stacks: StackTable
    is_project: BoolColumn
    is_of_module: BoolColumn
    project_includes: tuple[str, ...] = ()
