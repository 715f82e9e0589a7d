"""The memory that is live at one moment of a device, by category, line, module and operation.

The peak is one moment among others: what is said of it can be said of every event. ``live`` marks
the allocations of a sum, as ``AllocationTable.live_at`` does. Rows with the most bytes come first,
but for categories, which have their own order.

The memory of the device outside torch (contexts, libraries, NCCL and other processes) is in no
file. With the device's total, and what the driver had free, it is what is left; without, it is not
known, and never taken for nothing.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from operator import add, attrgetter
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.moments import FoundMoment
from snapconv.classification.categories import (
    Category,
    Evidence,
    Trait,
    categories_with,
)
from snapconv.classification.inventory import GRADIENT_OR_STATE, SLUG
from snapconv.columns import (
    BoolColumn,
    Int64Column,
    count_of,
    first_known,
    number_groups,
    plain_rows,
    rows_of,
    sums_by,
    unknown_column,
)
from snapconv.phases.annotation_spans import annotations_at
from snapconv.replay.memory_layout import MemoryLayout, layout_at
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import HOST, Device, counted, format_bytes

# A smaller part of a sum is not worth a word.
_NEXT_TO_NOTHING = 0.01
# The row of summaries for what is one of two categories.
EITHER_LABEL = "gradient or optimizer state"
# Stands beside the categories for blocks that the program has freed, see
# AllocationTable.waiting_at.
WAITING_LABEL = "freed, waiting for another stream"
# A part of a module's path that is a number, and what stands for several of them.
_NUMBER, _ANY_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])"), "*"

_FIGURES = ("n_allocations", "requested_bytes", "block_bytes")
_Name = TypeVar("_Name")
_Row = TypeVar("_Row", bound=Any)


class Sum(NamedTuple):
    """Some allocations: their bytes, and those of them that are likely, and not certain."""

    n_allocations: int
    requested_bytes: int
    block_bytes: int
    likely_bytes: int


NOTHING = Sum(0, 0, 0, 0)


def sums_by_name(
    analysis: DeviceAnalysis,
    live: BoolColumn,
    name: Callable[..., _Name],
    *keys: NDArray[np.integer[Any]],
) -> dict[_Name, Sum]:
    """Sum up by a name that follows from ``keys``, columns with a value for every allocation.

    ``name`` is called once for each combination of values.
    """
    rows = rows_of(live)
    allocations = analysis.allocations
    first, group = number_groups(*(key[rows] for key in keys))
    n_groups = len(first)
    n_bytes = allocations.block_bytes[rows]
    is_likely = analysis.classification.is_likely[rows]
    figures = plain_rows(
        np.bincount(group, minlength=n_groups),
        sums_by(group, allocations.requested_bytes[rows], n_groups),
        sums_by(group, n_bytes, n_groups),
        sums_by(group, n_bytes * is_likely, n_groups),
    )
    values = plain_rows(*(key[rows[first]] for key in keys))
    sums: dict[_Name, Sum] = {}
    for key, group_figures in zip(values, figures, strict=True):
        label = name(*key)
        sums[label] = Sum(*map(add, sums.get(label, NOTHING), group_figures))
    return sums


def most_first(rows: Iterable[_Row], tie_break: Callable[[_Row], Any]) -> tuple[_Row, ...]:
    """Order rows by their ``block_bytes``, the largest first, and equal ones by a name."""

    def largest_first(row: _Row) -> tuple[int, Any]:
        return -row.block_bytes, tie_break(row)

    return tuple(sorted(rows, key=largest_first))


@dataclass(frozen=True, slots=True)
class CategoryTotal:
    """The bytes of one category; ``likely_bytes`` are those that are likely, and not certain."""

    category: str
    n_allocations: int
    requested_bytes: int
    block_bytes: int
    likely_bytes: int = 0

    @property
    def certainty(self) -> str:
        """How much of it is likely, in words; empty for next to nothing."""
        return likely_words(self.block_bytes, self.likely_bytes)

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values, without the name."""
        return {name: value for name, value in asdict(self).items() if name != "category"}


def totals_by_category(
    analysis: DeviceAnalysis, live: BoolColumn
) -> tuple[CategoryTotal, ...]:
    """Sum every category, also those without memory, unless only a recorder sees them."""
    sums = sums_by_name(analysis, live, Category, analysis.classification.category)
    recorded = set(categories_with(Trait.ONLY_RECORDED))
    order = (*list(Category)[1:], Category.UNKNOWN)
    shown = [name for name in order if name in sums or name not in recorded]
    return tuple(CategoryTotal(name.label, *sums.get(name, NOTHING)) for name in shown)


def total_of_either(analysis: DeviceAnalysis, live: BoolColumn) -> CategoryTotal:
    """Sum the memory that is a gradient or an optimizer state; by category it is unknown."""
    is_either_live = live & is_either(analysis)
    sums = sums_by_name(
        analysis, is_either_live, Category, analysis.classification.category
    )
    return CategoryTotal(EITHER_LABEL, *sums.get(Category.UNKNOWN, NOTHING))


def summary_totals(analysis: DeviceAnalysis, live: BoolColumn) -> tuple[CategoryTotal, ...]:
    """Sum every category, and gradients or optimizer states in a row of their own."""
    return rows_of_summary(
        totals_by_category(analysis, live), total_of_either(analysis, live)
    )


def rows_of_summary(
    categories: tuple[CategoryTotal, ...], undecided: CategoryTotal
) -> tuple[CategoryTotal, ...]:
    """Take gradients or optimizer states out of the unknown memory, which is the last category."""
    *decided, unknown = categories
    remaining = {
        name: getattr(unknown, name) - getattr(undecided, name) for name in _FIGURES
    }
    return (*decided, replace(unknown, **remaining), undecided)


def is_either(analysis: DeviceAnalysis) -> BoolColumn:
    """Mark the allocations that are a gradient or an optimizer state."""
    return analysis.classification.has_reason(GRADIENT_OR_STATE)


def job_sentence(analysis: DeviceAnalysis) -> str | None:
    """Return the hypothesis about the job that explains memory from before the trace, or None."""
    explanation = analysis.classification.explanation
    slugs = {SLUG, GRADIENT_OR_STATE}
    has_decided = not slugs.isdisjoint(analysis.classification.reasons)
    return explanation if explanation and has_decided else None


def likely_words(block_bytes: int, likely_bytes: int) -> str:
    """Say how much of a sum is likely: ``likely``, or so many bytes; empty for very little."""
    if likely_bytes <= _NEXT_TO_NOTHING * block_bytes:
        return ""
    is_all = likely_bytes >= (1 - _NEXT_TO_NOTHING) * block_bytes
    return "likely" if is_all else f"{format_bytes(likely_bytes)} of it only likely"


@dataclass(frozen=True, slots=True)
class LineTotal:
    """The bytes of one line of the project."""

    line: SourceLine
    n_allocations: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class ModuleTotal:
    """The bytes of one module; ``evidence``: how its name is known."""

    module: str
    evidence: str
    n_allocations: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class OperationTotal:
    """The bytes of one operation."""

    operation: str
    n_allocations: int
    block_bytes: int


@dataclass(frozen=True, slots=True)
class PoolTotal:
    """The bytes of one memory pool and stream; ``pool`` None: the file does not contain it."""

    pool: tuple[int, int] | None
    stream: int
    n_allocations: int
    block_bytes: int


def totals_by_line(analysis: DeviceAnalysis, live: BoolColumn) -> tuple[LineTotal, ...]:
    """Sum by the innermost line of the project; what has none is in no row."""
    sums = sums_by_name(
        analysis, live, analysis.lines.innermost, analysis.allocations.stack_id
    )
    rows = []
    for line, total in sums.items():
        if line:
            rows.append(LineTotal(line, total.n_allocations, total.block_bytes))
    return most_first(rows, attrgetter("line"))


def totals_by_module(analysis: DeviceAnalysis, live: BoolColumn) -> tuple[ModuleTotal, ...]:
    """Sum by module; what is of no known module is in no row."""
    modules = analysis.modules
    sums = sums_by_name(analysis, live & (modules.module_id >= 0), int, modules.module_id)
    rows = []
    for i, total in sums.items():
        evidence = modules.evidence[i].label
        figures = (total.n_allocations, total.block_bytes)
        rows.append(ModuleTotal(modules.names[i], evidence, *figures))
    return most_first(rows, attrgetter("module"))


def totals_by_operation(
    analysis: DeviceAnalysis, live: BoolColumn
) -> tuple[OperationTotal, ...]:
    """Sum by the operation that allocated it."""
    sums = sums_by_name(
        analysis, live, analysis.operations.__getitem__, analysis.operation_id
    )
    rows = [
        OperationTotal(name, total.n_allocations, total.block_bytes)
        for name, total in sums.items()
    ]
    return most_first(rows, attrgetter("operation"))


def totals_by_pool(
    analysis: DeviceAnalysis, live: BoolColumn, layout: MemoryLayout
) -> tuple[PoolTotal, ...]:
    """Sum by memory pool and stream."""
    pools = analysis.snapshot.pools
    pool_id = pool_ids(analysis, layout)

    def pool_and_stream(pool: int, stream: int) -> tuple[tuple[int, int] | None, int]:
        return pools[pool] if pool >= 0 else None, stream

    sums = sums_by_name(
        analysis, live, pool_and_stream, pool_id, analysis.allocations.stream
    )
    rows = [
        PoolTotal(*key, total.n_allocations, total.block_bytes)
        for key, total in sums.items()
    ]
    return most_first(rows, _pool_name)


def pool_ids(analysis: DeviceAnalysis, layout: MemoryLayout) -> Int64Column:
    """Return the pool of every allocation, where its events name none that of its segment."""
    allocations = analysis.allocations
    segment_pools = unknown_column(len(allocations))
    segment_pools[layout.blocks.allocation] = layout.segments.pool_id[layout.blocks.segment]
    return first_known(allocations.pool_id.astype(np.int64), segment_pools)


def pool_shown(pool: tuple[int, int] | None) -> str:
    """Name a memory pool as people know it."""
    if pool is None:
        return "pool not known"
    return "default pool" if pool == (0, 0) else f"private pool {pool}"


def _pool_name(row: PoolTotal) -> tuple[str, int]:
    return str(row.pool), row.stream


def group_modules(modules: Sequence[ModuleTotal]) -> list[tuple[int, str]]:
    """Put equal modules whose paths differ in numbers alone into one row; most bytes first.

    A row is what all have together, and a path with the number of modules that it stands for. A
    module whose name is not a recorded path has a row of its own.
    """
    groups: dict[tuple[str, bool, int, int], list[ModuleTotal]] = defaultdict(list)
    for row in modules:
        is_path = row.evidence == Evidence.METADATA.label
        pattern = _NUMBER.sub(_ANY_NUMBER, row.module) if is_path else row.module
        groups[pattern, is_path, row.n_allocations, row.block_bytes].append(row)
    totals = []
    for (_, is_path, _, n_bytes), equal_modules in groups.items():
        name = equal_modules[0].module
        if is_path and len(equal_modules) > 1:
            path = _common_path([row.module for row in equal_modules])
            name = f"{path}, {counted(len(equal_modules), 'module')}"
        totals.append((-n_bytes * len(equal_modules), name))
    return [(-negative_bytes, name) for negative_bytes, name in sorted(totals)]


def _common_path(paths: Sequence[str]) -> str:
    """Return the path that paths have in common, with a sign for the parts in which they differ."""
    parts = []
    for words in zip(*(path.split(".") for path in paths), strict=True):
        parts.append(words[0] if len(set(words)) == 1 else _ANY_NUMBER)
    return ".".join(parts)


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """The memory of a device at a moment; None: not known.

    ``free_bytes`` is the driver's figure, which torch writes only at a failed allocation,
    ``measured_event``. ``outside_bytes`` was in use outside torch then; at other moments
    ``at_most_bytes`` is its upper limit. ``is_simulated``: there was no device, and nothing outside
    torch.
    """

    total_bytes: int | None
    reserved_bytes: int
    free_bytes: int | None
    measured_event: int | None
    outside_bytes: int | None
    at_most_bytes: int | None
    is_simulated: bool = False


@dataclass(frozen=True, slots=True)
class MomentState:
    """The memory of a device just after an event; None: before the first event, or not in the file.

    ``annotations`` are the names of the spans that the event is in, outermost first. ``lines`` and
    ``modules`` leave out memory without one; ``categories``, ``operations`` and ``pools`` sum to
    the allocated bytes. ``gradient_or_state`` is the part of the unknown that is one of these.
    ``job`` explains all memory from before the trace. ``no_stack_bytes`` have no recorded stack.
    ``waiting_bytes`` are in blocks beside the allocated ones, which the program has freed and
    another stream still uses; ``waiting_lines`` allocated them. ``at_least`` names those of
    requested, allocated, active and reserved that are lower bounds.
    """

    device: Device
    moment: str
    event: int | None
    n_events: int
    time_us: int | None
    iteration: int | None
    phase: str | None
    annotations: tuple[str, ...]
    requested_bytes: int
    allocated_bytes: int
    active_bytes: int
    reserved_bytes: int
    n_allocations: int
    categories: tuple[CategoryTotal, ...]
    gradient_or_state: CategoryTotal
    lines: tuple[LineTotal, ...]
    modules: tuple[ModuleTotal, ...]
    operations: tuple[OperationTotal, ...]
    pools: tuple[PoolTotal, ...]
    project_root: str | None
    project_includes: tuple[str, ...]
    history_verdict: str
    history_reason: str
    memory: DeviceMemory
    job: str | None = None
    no_stack_bytes: int = 0
    waiting_bytes: int = 0
    waiting_lines: tuple[LineTotal, ...] = ()
    at_least: tuple[str, ...] = ()

    @property
    def summary_rows(self) -> tuple[CategoryTotal, ...]:
        """The categories, with a row of its own for what is a gradient or an optimizer state."""
        return rows_of_summary(self.categories, self.gradient_or_state)


def state_at(
    analysis: DeviceAnalysis,
    moment: FoundMoment,
    *,
    device_total: int | None = None,
    layout: MemoryLayout | None = None,
) -> MomentState:
    """Describe the memory of one device just after a moment's event.

    ``device_total`` are the bytes of the device. ``layout`` is that of the event, where it is known
    already.
    """
    event = moment.event
    events = analysis.device.events
    replay = analysis.replay
    allocations = analysis.allocations
    live = allocations.live_at(event)
    layout = layout or layout_at(analysis.device, allocations, event)
    state = MomentState(
        device=analysis.device.device,
        moment=moment.name,
        event=analysis.file_event(event),
        n_events=analysis.n_file_events,
        time_us=events.time_at(event),
        iteration=analysis.phases.iteration_at(event),
        phase=analysis.phases.name_at(event),
        annotations=annotations_at(analysis.snapshot, analysis.device, event),
        requested_bytes=replay.requested.at(event),
        allocated_bytes=replay.allocated.at(event),
        active_bytes=replay.active.at(event),
        reserved_bytes=replay.reserved.at(event),
        n_allocations=count_of(live),
        categories=totals_by_category(analysis, live),
        gradient_or_state=total_of_either(analysis, live),
        job=job_sentence(analysis),
        lines=totals_by_line(analysis, live),
        modules=totals_by_module(analysis, live),
        operations=totals_by_operation(analysis, live),
        pools=totals_by_pool(analysis, live, layout),
        project_root=analysis.project.root,
        project_includes=analysis.project.includes,
        history_verdict=analysis.history.verdict.value,
        history_reason=analysis.history.reason,
        memory=device_memory(analysis, event, given_total=device_total),
    )
    return _add_limits(state, analysis, event, live)


def _add_limits(
    state: MomentState, analysis: DeviceAnalysis, event: int, live: BoolColumn
) -> MomentState:
    """Add what the totals do not show.

    Memory without a stack, blocks that wait for another stream, and which figures are lower bounds.
    """
    allocations = analysis.allocations
    waiting = allocations.waiting_at(event)
    return replace(
        state,
        no_stack_bytes=allocations.bytes_of(live & (analysis.project_frame < -1)),
        waiting_bytes=allocations.bytes_of(waiting),
        waiting_lines=totals_by_line(analysis, waiting),
        at_least=tuple(sorted(analysis.replay.lower_bounds)),
    )


def device_memory(
    analysis: DeviceAnalysis, event: int, *, given_total: int | None = None
) -> DeviceMemory:
    """Find the memory outside torch just after an event, or at the failed allocation before it."""
    total = _device_total(analysis) if given_total is None else given_total
    reserved = analysis.replay.reserved
    failed = analysis.phases.oom_events
    measured = None
    free = None
    outside = None
    if len(failed):
        earlier = failed[failed <= event]
        measured = int(earlier[-1]) if len(earlier) else int(failed[0])
        # An event of a failed allocation has the free bytes where others have an address.
        free = int(analysis.device.events.addr[measured])
        if total is not None and "reserved" not in analysis.replay.lower_bounds:
            outside = max(total - free - reserved.at(measured), 0)
    return DeviceMemory(
        total_bytes=total,
        reserved_bytes=reserved.at(event),
        free_bytes=free if measured == event else None,
        measured_event=measured,
        outside_bytes=outside,
        at_most_bytes=None if total is None else max(total - reserved.peak, 0),
        is_simulated=analysis.snapshot.is_simulated,
    )


def _device_total(analysis: DeviceAnalysis) -> int | None:
    """Return the device's total as recorded, or as torch's message in a capture has it."""
    device = analysis.device.device
    metadata = analysis.snapshot.metadata
    if metadata is None or device == HOST:
        return None
    recorded = metadata.device_bytes.get(device)
    if recorded:
        return recorded
    from snapconv.answers.oom.message import read_message
    from snapconv.answers.oom.message_text import compacted

    message = read_message(compacted(metadata.ended_detail).text)
    return message.total_bytes if message.device == device else None
