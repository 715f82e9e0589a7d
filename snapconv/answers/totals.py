"""Sums of the memory of a device that is live at a moment: by category, line, module, operation and pool.

``live`` marks allocations, as ``AllocationTable.live_at`` does; every sum is of these. Rows with the most
bytes come first, but for categories, which have their own order.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.decisions import Classification
from snapconv.classification.inventory import GRADIENT_OR_STATE, SLUG
from snapconv.columns import BoolColumn, Int64Column, first_known, has_code, sums_by
from snapconv.replay.memory_layout import MemoryLayout
from snapconv.stacks.project_lines import SourceLine, line_values
from snapconv.units import counted, format_bytes

# Of a sum: less than this is not worth a word.
_NEXT_TO_NOTHING = 0.01
# The row of summaries for what is one of two categories.
EITHER_LABEL = "gradient or optimizer state"
_ANY_NUMBER = "*"
# Paths of modules are not deeper; a longer one stays as it is.
_MAX_DEPTH = 32

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
        return replace(
            row,
            n_allocations=row.n_allocations - either.n_allocations,
            requested_bytes=row.requested_bytes - either.requested_bytes,
            block_bytes=row.block_bytes - either.block_bytes,
        )

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


def codes_with_likely(found: Classification) -> Int64Column:
    """Return a code for every allocation's category that separates what is likely from what is certain."""
    return 2 * found.category.astype(np.int64) + found.is_likely


def label_with_likely(code: int) -> str:
    """Name one of these codes: ``weight``, or ``weight (likely)``."""
    return f"{Category(code // 2).label}{' (likely)' if code % 2 else ''}"


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


@dataclass(frozen=True, slots=True)
class ModuleGroup:
    """Modules with as many allocations and as many bytes each; ``block_bytes`` is what all have together."""

    path: tuple[str, ...]
    n_modules: int
    n_allocations: int
    block_bytes: int

    @property
    def label(self) -> str:
        """The path, and how many modules it stands for."""
        path = ".".join(self.path)
        return path if self.n_modules == 1 else f"{path}, {counted(self.n_modules, 'module')}"


def group_modules(modules: Sequence[ModuleTotal]) -> tuple[ModuleGroup, ...]:
    """Put equal modules into groups, number by number from the left; most bytes first.

    A module whose name is not a recorded path is a group of its own.
    """
    groups = []
    for row in modules:
        is_path = row.evidence == Evidence.METADATA.label
        path = tuple(row.module.split(".")) if is_path else (row.module,)
        groups.append(ModuleGroup(path, 1, row.n_allocations, row.block_bytes))
    for place in range(min(_MAX_DEPTH, max((len(group.path) for group in groups), default=0))):
        groups = _joined_at(groups, place)
    return tuple(sorted(groups, key=lambda group: (-group.block_bytes, group.path)))


def _joined_at(groups: Iterable[ModuleGroup], place: int) -> list[ModuleGroup]:
    """Join the groups that differ in the number at one place of their path alone."""
    equal: dict[ModuleGroup, list[ModuleGroup]] = defaultdict(list)
    for group in groups:
        is_numbered = place < len(group.path) and group.path[place].isdecimal()
        path = (*group.path[:place], _ANY_NUMBER, *group.path[place + 1 :]) if is_numbered else group.path
        equal[replace(group, path=path)].append(group)
    return [
        same[0]
        if (n := len(same)) == 1
        else replace(
            one,
            n_modules=n * one.n_modules,
            n_allocations=n * one.n_allocations,
            block_bytes=n * one.block_bytes,
        )
        for one, same in equal.items()
    ]
