"""The Report: all that a writer needs for one device, nothing left for it to compute.

Plain tuples where a report has tens of rows, NumPy columns where it has millions. Writers never
look anything up anywhere else.
"""

from dataclasses import dataclass

from snapconv.answers.annotation_totals import AnnotatedSpans, AnnotationTotal
from snapconv.answers.fragmentation import FreeMemory
from snapconv.answers.growth import Growth
from snapconv.answers.live_totals import CategoryTotal, LineTotal, ModuleTotal
from snapconv.answers.oom.failed_allocation import FailedAllocation
from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column
from snapconv.notes import Note
from snapconv.replay.device_replay import AllocationTable, Curve
from snapconv.replay.memory_layout import MemoryLayout
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.project_lines import SourceLine

# The Moments that every report has: start, peak and end of every curve, and one more.
CURVES = ("requested", "allocated", "active", "reserved")
START, PEAK, END = "start", "peak", "end"


def moment_name(which: str, curve: str) -> str:
    """Name the START, PEAK or END of one of the CURVES."""
    return f"{which}_{curve}"


# What weights, categories, breakdown and lines are about.
PEAK_ALLOCATED = moment_name(PEAK, "allocated")
END_ALLOCATED = moment_name(END, "allocated")
PEAK_RESERVED = moment_name(PEAK, "reserved")
# What the activations are about: their own high-water mark.
PEAK_ACTIVATIONS = moment_name(PEAK, "activations")


@dataclass(frozen=True, slots=True)
class WeightEntry:
    """A weight live at the report's moment, with the bytes of its gradient (0: none)."""

    name: str
    size_bytes: int
    grad_size_bytes: int
    frames: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class ActivationEntry:
    """An activation live at the activation high-water mark; frames innermost first."""

    operation_name: str
    size_bytes: int
    frames: tuple[SourceLine, ...]


@dataclass(frozen=True, slots=True)
class BreakdownRow:
    """A row of the breakdown of reserved bytes at the peak.

    Rows without a parent sum to the reserved bytes; rows with a parent sum to that parent.
    """

    name: str
    parent: str | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Moment:
    """A named event of the trace, such as a peak; ``event`` is -1 for before the first event."""

    name: str
    event: int
    time_us: int | None
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Timeline:
    """The four curves. ``time_us`` may be absent."""

    time_us: Int64Column | None
    requested: Curve
    allocated: Curve
    active: Curve
    reserved: Curve


@dataclass(frozen=True, slots=True)
class AllocationColumns:
    """Every allocation of the device, one row per lifetime; -1 where an id or a phase is missing.

    ``phase`` is that of its ``alloc_event``, in codes of Phase. Rule 0 is that none decided, operation 0
    that it is unknown. ``modules`` are names, each with its evidence.
    """

    table: AllocationTable
    category: Int8Column
    evidence: Int8Column
    rule_id: Int32Column
    operation_id: Int32Column
    iteration: Int32Column
    phase: Int8Column
    pools: tuple[str, ...]
    rules: tuple[str, ...]
    operations: tuple[str, ...]
    module_id: Int32Column
    modules: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class MomentLayout:
    """Where everything lay at one of the Moments."""

    moment: str
    layout: MemoryLayout


@dataclass(frozen=True, slots=True)
class AnnotationColumns:
    """Every named span of the trace; ``name_id`` is a position in ``names``."""

    names: tuple[str, ...]
    name_id: Int64Column
    kinds: tuple[str, ...]
    found: AnnotatedSpans


@dataclass(frozen=True, slots=True)
class IterationRow:
    """One training step, or the whole trace where no step was found."""

    iteration: int
    first_event: int
    last_event: int
    peak_allocated_bytes: int
    peak_event: int


@dataclass(frozen=True, slots=True)
class WeightNaming:
    """How far a list of parameters gave the weights their names; sizes in requested bytes.

    ``certain_bytes`` are those whose size and order leave no other name. ``n_without_memory``: tensors of the
    list, of ``n_listed``, that are none of the weights.
    """

    file_name: str
    n_weights: int
    n_named: int
    weight_bytes: int
    named_bytes: int
    certain_bytes: int
    n_listed: int
    n_without_memory: int


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """Everything known about one device, ready to be written.

    ``own_stacks`` are the ids of the device's own among ``stacks``, which all devices share. ``is_project``
    has one entry per frame of ``stacks``. ``after_oom`` is the free memory at the dump where the program went
    on after it had run out of memory.
    """

    device: int
    peak_usage_bytes: int
    weights: tuple[WeightEntry, ...]
    activations: tuple[ActivationEntry, ...]
    source: tuple[tuple[str, str], ...]
    notes: tuple[Note, ...]
    history_verdict: str
    history_reason: str
    project_root: str | None
    moments: tuple[Moment, ...]
    categories_at_peak: tuple[CategoryTotal, ...]
    breakdown: tuple[BreakdownRow, ...]
    lines_at_peak: tuple[LineTotal, ...]
    iterations: tuple[IterationRow, ...]
    oom_events: tuple[FailedAllocation, ...]
    timeline: Timeline
    allocations: AllocationColumns
    stacks: StackTable
    own_stacks: Int64Column
    is_project: BoolColumn
    weight_naming: WeightNaming | None = None
    modules_at_peak: tuple[ModuleTotal, ...] = ()
    growth: tuple[Growth, ...] = ()
    project_includes: tuple[str, ...] = ()
    layouts: tuple[MomentLayout, ...] = ()
    annotations: AnnotationColumns | None = None
    annotation_totals: tuple[AnnotationTotal, ...] = ()
    after_oom: FreeMemory | None = None
