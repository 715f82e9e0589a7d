"""The memory that is live at a moment, summed by category, line, module, operation, and pool and stream.

``live`` marks allocations, as ``AllocationTable.live_at`` does; every sum is of these. Rows with the most
bytes come first, but for categories, which have their own order.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.model_copies import n_models
from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, Int32Column, Int64Column, first_known, has_code, sums_by
from snapconv.replay.device_replay import AllocationTable
from snapconv.replay.memory_layout import MemoryLayout
from snapconv.stacks.project_lines import ProjectLines, SourceLine


@dataclass(frozen=True, slots=True)
class CategoryTotal:
    """The bytes of one category; ``n_models``: of weights, how many models of equal sizes, if several."""

    category: str
    n_allocations: int
    requested_bytes: int
    block_bytes: int
    n_models: int | None = None


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


def totals_by_category(analysis: DeviceAnalysis, live: BoolColumn) -> Iterator[CategoryTotal]:
    """Sum every category, also those without memory."""
    allocations = analysis.allocations
    for category in (*list(Category)[1:], Category.UNKNOWN):
        rows = live & has_code(analysis.classification.category, category)
        yield CategoryTotal(
            category=category.label,
            n_allocations=int(np.count_nonzero(rows)),
            requested_bytes=int(allocations.requested_bytes[rows].sum()),
            block_bytes=int(allocations.block_bytes[rows].sum()),
            n_models=n_models(analysis, live) if category == Category.WEIGHT else None,
        )


def totals_by_line(
    allocations: AllocationTable, live: BoolColumn, lines: ProjectLines
) -> tuple[LineTotal, ...]:
    """Sum by the innermost line of the project; what has none is in no row."""
    stack_ids, inverse = np.unique(allocations.stack_id[live], return_inverse=True)
    n_bytes = sums_by(inverse, allocations.block_bytes[live], len(stack_ids))
    counts = np.bincount(inverse, minlength=len(stack_ids))
    totals: dict[SourceLine, tuple[int, int]] = {}
    for stack, size, count in zip(stack_ids.tolist(), n_bytes.tolist(), counts.tolist(), strict=True):
        if line := lines.innermost(stack):
            before = totals.get(line, (0, 0))
            totals[line] = before[0] + count, before[1] + size
    rows = [LineTotal(line, count, size) for line, (count, size) in totals.items()]
    return tuple(sorted(rows, key=lambda row: (-row.block_bytes, row.line)))


def totals_by_module(analysis: DeviceAnalysis, live: BoolColumn) -> tuple[ModuleTotal, ...]:
    """Sum by module; what is of no known module is in no row."""
    found = analysis.modules
    counts, n_bytes = _sums(analysis, live, found.module_id, len(found.names))
    columns = (found.names, found.evidence, counts.tolist(), n_bytes.tolist())
    totals = [
        ModuleTotal(name, evidence.label, count, size)
        for name, evidence, count, size in zip(*columns, strict=True)
        if count
    ]
    return tuple(sorted(totals, key=lambda total: (-total.block_bytes, total.module)))


def totals_by_operation(analysis: DeviceAnalysis, live: BoolColumn) -> tuple[OperationTotal, ...]:
    """Sum by the operation that allocated it."""
    counts, n_bytes = _sums(analysis, live, analysis.operation_id, len(analysis.operations))
    columns = (analysis.operations, counts.tolist(), n_bytes.tolist())
    totals = [OperationTotal(*row) for row in zip(*columns, strict=True) if row[1]]
    return tuple(sorted(totals, key=lambda total: (-total.block_bytes, total.operation)))


def totals_by_pool(
    analysis: DeviceAnalysis, live: BoolColumn, layout: MemoryLayout, pools: tuple[tuple[int, int], ...]
) -> tuple[PoolTotal, ...]:
    """Sum by memory pool and stream; the segment shows the pool of a block whose own events do not."""
    rows, allocations = np.flatnonzero(live), analysis.allocations
    of_segment = np.full(len(allocations), -1, np.int64)
    of_segment[layout.blocks.allocation] = layout.segments.pool_id[layout.blocks.segment]
    pool_id = first_known(allocations.pool_id.astype(np.int64), of_segment)[rows]
    both = np.stack((pool_id, allocations.stream[rows]), axis=1)
    found, inverse = np.unique(both, axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    n_bytes = sums_by(inverse, allocations.block_bytes[rows], len(found))
    counts = np.bincount(inverse, minlength=len(found))
    totals = [
        PoolTotal(pools[pool] if pool >= 0 else None, stream, count, size)
        for (pool, stream), count, size in zip(found.tolist(), counts.tolist(), n_bytes.tolist(), strict=True)
    ]
    return tuple(sorted(totals, key=lambda total: (-total.block_bytes, str(total.pool), total.stream)))


def _sums(
    analysis: DeviceAnalysis, live: BoolColumn, group: Int32Column, n_groups: int
) -> tuple[Int64Column, Int64Column]:
    """How many of the allocations every group has, and their bytes; -1 is no group."""
    rows = np.flatnonzero(live & (group >= 0))
    n_bytes = sums_by(group[rows], analysis.allocations.block_bytes[rows], n_groups)
    return np.bincount(group[rows], minlength=n_groups), n_bytes
