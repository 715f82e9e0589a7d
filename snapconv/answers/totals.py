"""Sums of the memory of a device that is live at a moment: by category, line, module, operation and pool.

``live`` marks allocations, as ``AllocationTable.live_at`` does; every sum is of these. Rows with the most
bytes come first, but for categories, which have their own order.
"""

import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.inventory import GRADIENT_OR_STATE, SLUG
from snapconv.columns import BoolColumn, first_known, has_code, sums_by
from snapconv.replay.memory_layout import MemoryLayout
from snapconv.stacks.project_lines import SourceLine, line_values
from snapconv.units import counted, format_bytes

# Of a sum: less than this is not worth a word.
_NEXT_TO_NOTHING = 0.01
# The row of summaries for what is one of two categories.
EITHER_LABEL = "gradient or optimizer state"
# A part of a module's path that is a number, and what stands for several of them.
_NUMBER, _ANY_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])"), "*"

_FIGURES = ("n_allocations", "requested_bytes", "block_bytes")
_Name = TypeVar("_Name")


class Sum(NamedTuple):
    """Some allocations: their bytes, and those of them that are likely, and not certain."""

    n_allocations: int
    block_bytes: int
    likely_bytes: int


def sums_by_name(
    analysis: DeviceAnalysis, live: BoolColumn, name: Callable[..., _Name], *keys: NDArray[np.integer[Any]]
) -> dict[_Name, Sum]:
    """Sum up by a name that follows from ``keys``, columns with a value for every allocation.

    ``name`` is called once for each combination of values.
    """
    rows = np.flatnonzero(live)
    combined = np.stack([key[rows].astype(np.int64) for key in keys])
    values, group = np.unique(combined, axis=1, return_inverse=True)
    n_groups, group = values.shape[1], group.reshape(-1)
    n_bytes = analysis.allocations.block_bytes[rows]
    columns = (
        np.bincount(group, minlength=n_groups),
        sums_by(group, n_bytes, n_groups),
        sums_by(group, n_bytes * analysis.classification.is_likely[rows], n_groups),
    )
    found: dict[_Name, Sum] = {}
    for key, *more in zip(values.T.tolist(), *(column.tolist() for column in columns), strict=True):
        named = name(*key)
        before = found.get(named, (0, 0, 0))
        found[named] = Sum(*(one + other for one, other in zip(before, more, strict=True)))
    return found


@dataclass(frozen=True, slots=True)
class CategoryTotal:
    """The bytes of one category; ``likely_bytes``: those of them that are likely, and not certain."""

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


def totals_by_category(analysis: DeviceAnalysis, live: BoolColumn) -> tuple[CategoryTotal, ...]:
    """Sum every category, also those without memory."""
    category = analysis.classification.category
    order = (*list(Category)[1:], Category.UNKNOWN)
    return tuple(_total(analysis, live & has_code(category, one), one.label) for one in order)


def total_of_either(analysis: DeviceAnalysis, live: BoolColumn) -> CategoryTotal:
    """Sum what is a gradient or an optimizer state, of which nothing shows which; it counts as unknown."""
    return _total(analysis, live & is_either(analysis), EITHER_LABEL)


def summary_totals(analysis: DeviceAnalysis, live: BoolColumn) -> tuple[CategoryTotal, ...]:
    """Sum every category, and in a row of its own what is a gradient or an optimizer state."""
    return rows_of_summary(totals_by_category(analysis, live), total_of_either(analysis, live))


def rows_of_summary(
    categories: tuple[CategoryTotal, ...], either: CategoryTotal
) -> tuple[CategoryTotal, ...]:
    """Take what is one of two categories out of the unknown, as a row of its own."""

    def without(row: CategoryTotal) -> CategoryTotal:
        less = {name: getattr(row, name) - getattr(either, name) for name in _FIGURES}
        return replace(row, **less)

    unknown = Category.UNKNOWN.label
    return (*(without(row) if row.category == unknown else row for row in categories), either)


def is_either(analysis: DeviceAnalysis) -> BoolColumn:
    """Mark the allocations that are a gradient or an optimizer state."""
    reasons, reason_id = analysis.classification.reasons, analysis.classification.reason_id
    if GRADIENT_OR_STATE not in reasons:
        return np.zeros(len(reason_id), np.bool_)
    return np.asarray(reason_id == reasons.index(GRADIENT_OR_STATE))


def job_sentence(analysis: DeviceAnalysis) -> str | None:
    """Say which hypothesis about the job explains the memory from before the trace; None: no part."""
    explanation, reasons = analysis.classification.explanation, analysis.classification.reasons
    has_decided = not {SLUG, GRADIENT_OR_STATE}.isdisjoint(reasons)
    return explanation if explanation and has_decided else None


def _total(analysis: DeviceAnalysis, rows: BoolColumn, name: str) -> CategoryTotal:
    allocations, is_likely = analysis.allocations, analysis.classification.is_likely
    return CategoryTotal(
        category=name,
        n_allocations=int(np.count_nonzero(rows)),
        requested_bytes=int(allocations.requested_bytes[rows].sum()),
        block_bytes=int(allocations.block_bytes[rows].sum()),
        likely_bytes=int(allocations.block_bytes[rows & is_likely].sum()),
    )


def likely_words(block_bytes: int, likely_bytes: int) -> str:
    """Say how much of a sum is likely: ``likely``, or so many bytes; empty for next to nothing of it."""
    if likely_bytes <= _NEXT_TO_NOTHING * block_bytes:
        return ""
    is_all = likely_bytes >= (1 - _NEXT_TO_NOTHING) * block_bytes
    return "likely" if is_all else f"{format_bytes(likely_bytes)} of it likely"


@dataclass(frozen=True, slots=True)
class LineTotal:
    """The bytes of one line of the project."""

    line: SourceLine
    n_allocations: int
    block_bytes: int

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return line_values(self.line) | {"n_allocations": self.n_allocations, "block_bytes": self.block_bytes}


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
    sums = sums_by_name(analysis, live, analysis.lines.innermost, analysis.allocations.stack_id)
    rows = [LineTotal(line, *found[:2]) for line, found in sums.items() if line]
    return tuple(sorted(rows, key=lambda row: (-row.block_bytes, row.line)))


def totals_by_module(analysis: DeviceAnalysis, live: BoolColumn) -> tuple[ModuleTotal, ...]:
    """Sum by module; what is of no known module is in no row."""
    modules = analysis.modules
    sums = sums_by_name(analysis, live & (modules.module_id >= 0), int, modules.module_id)
    rows = [ModuleTotal(modules.names[i], modules.evidence[i].label, *one[:2]) for i, one in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.block_bytes, row.module)))


def totals_by_operation(analysis: DeviceAnalysis, live: BoolColumn) -> tuple[OperationTotal, ...]:
    """Sum by the operation that allocated it."""
    sums = sums_by_name(analysis, live, analysis.operations.__getitem__, analysis.operation_id)
    rows = [OperationTotal(name, *found[:2]) for name, found in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.block_bytes, row.operation)))


def totals_by_pool(analysis: DeviceAnalysis, live: BoolColumn, layout: MemoryLayout) -> tuple[PoolTotal, ...]:
    """Sum by memory pool and stream; the segment shows the pool of a block whose own events do not."""
    allocations, pools = analysis.allocations, analysis.snapshot.pools
    of_segment = np.full(len(allocations), -1, np.int64)
    of_segment[layout.blocks.allocation] = layout.segments.pool_id[layout.blocks.segment]
    pool_id = first_known(allocations.pool_id.astype(np.int64), of_segment)

    def place(pool: int, stream: int) -> tuple[tuple[int, int] | None, int]:
        return pools[pool] if pool >= 0 else None, stream

    sums = sums_by_name(analysis, live, place, pool_id, allocations.stream)
    rows = [PoolTotal(*where, *found[:2]) for where, found in sums.items()]
    return tuple(sorted(rows, key=lambda row: (-row.block_bytes, str(row.pool), row.stream)))


def group_modules(modules: Sequence[ModuleTotal]) -> list[tuple[int, str]]:
    """Put modules whose paths differ in numbers alone, and that are equal, into a row; most bytes first.

    A row is what all have together, and a path with the number of modules that it stands for. A module whose
    name is not a recorded path has a row of its own.
    """
    groups: dict[tuple[str, bool, int, int], list[ModuleTotal]] = defaultdict(list)
    for row in modules:
        is_path = row.evidence == Evidence.METADATA.label
        pattern = _NUMBER.sub(_ANY_NUMBER, row.module) if is_path else row.module
        groups[pattern, is_path, row.n_allocations, row.block_bytes].append(row)
    rows = []
    for (_, is_path, *_), same in groups.items():
        n_bytes = sum(row.block_bytes for row in same)
        if not is_path or len(same) == 1:
            rows.append((n_bytes, same[0].module))
            continue
        parts = zip(*(row.module.split(".") for row in same), strict=True)
        path = ".".join(part[0] if len(set(part)) == 1 else _ANY_NUMBER for part in parts)
        rows.append((n_bytes, f"{path}, {counted(len(same), 'module')}"))
    return sorted(rows, key=lambda row: (-row[0], row[1]))
