"""An estimate of the requests of a run with another batch size.

Best from a second file of the same program with another batch size: two sizes of one allocation give the
part of it that grows with the batch. Without one, the categories decide.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, Int64Column
from snapconv.errors import InputError
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.load import Snapshot
from snapconv.units import format_share

# What an engineer expects to grow with the batch; of these, what the optimizer's step allocates does not.
_GROWING = [
    category for category in Category if category.label in ("activation", "input", "temporary", "kv_cache")
]
# No memory is as large, and sums of it are still integers of 64 bits.
MOST_BYTES = 1 << 50
# How much of the bytes that differ must agree on the ratio of the two batch sizes.
_LEAST_AGREEMENT = 0.8


@dataclass(frozen=True, slots=True)
class OtherRun:
    """A run of the same program with another batch size, and that size in batches of the first run.

    ``scale`` None: it follows from the sizes.
    """

    analysis: DeviceAnalysis
    scale: float | None = None


@dataclass(frozen=True, slots=True)
class ScaledSizes:
    """The requests of all allocations at ``scale`` times the batch, and how they were found."""

    scale: float
    requested_bytes: Int64Column
    how: str


def scale_batch(analysis: DeviceAnalysis, scale: float, other: OtherRun | None = None) -> ScaledSizes:
    """Estimate the requests of a device at another batch size.

    Raises InputError where ``other`` does not show what its batch size is.
    """
    sizes = analysis.allocations.requested_bytes
    by_category = np.where(_grows(analysis), sizes * scale, sizes)
    if other is None:
        how = (
            "activations, inputs and temporaries grow with the batch; weights, gradients and optimizer do not"
        )
        return ScaledSizes(scale, _whole(by_category, sizes), how)
    other_sizes, is_matched = _matches(analysis, other)
    ratio = _ratio(sizes[is_matched], other_sizes[is_matched]) if other.scale is None else other.scale
    if ratio == 1:
        raise InputError(
            f"{other.analysis.snapshot.path} has the same batch size, and does not show what grows with it"
        )
    per_batch = (other_sizes - sizes) / (ratio - 1)
    scaled = np.where(is_matched, sizes + per_batch * (scale - 1), by_category)
    share = format_share(int(sizes[is_matched].sum()), int(sizes.sum()))
    how = f"{share} of the requested bytes by the other file, of batch × {ratio:g}, the rest by category"
    return ScaledSizes(scale, _whole(scaled, sizes), how)


def _whole(scaled: NDArray[np.float64], sizes: Int64Column) -> Int64Column:
    """Whole bytes; something stays something."""
    whole = np.clip(np.ceil(scaled - 1e-6), 1, MOST_BYTES)
    return np.where(sizes > 0, whole, 0).astype(np.int64)


def _grows(analysis: DeviceAnalysis) -> BoolColumn:
    alloc = analysis.allocations.alloc_event
    phase = np.append(analysis.phases.phase, -1)[alloc]
    in_optimizer = (alloc >= 0) & (phase == Phase.OPTIMIZER)
    return np.asarray(np.isin(analysis.classification.category, _GROWING) & ~in_optimizer)


def _ratio(sizes: Int64Column, other_sizes: Int64Column) -> float:
    """Infer the batch size of the other file in those of this one: the ratio of most sizes that differ."""
    differs = (sizes != other_sizes) & (sizes > 0)
    n_bytes: Counter[float] = Counter()
    ratios = np.round(other_sizes[differs] / sizes[differs], 4)
    for ratio, size in zip(ratios.tolist(), sizes[differs].tolist(), strict=True):
        n_bytes[ratio] += size
    if not n_bytes:
        return 1.0
    ((ratio, agreeing),) = n_bytes.most_common(1)
    if agreeing < _LEAST_AGREEMENT * n_bytes.total():
        raise InputError(
            "the batch sizes of the two files do not follow from their allocations: give the other one's "
            "with --other-scale, in batches of the first file"
        )
    return ratio


_Group = tuple[int, int]


def _matches(analysis: DeviceAnalysis, other: OtherRun) -> tuple[Int64Column, BoolColumn]:
    """Find the size of every allocation in the other run, and which have a counterpart there.

    Those of one stack in one iteration are counterparts in their order, if they are as many.
    """
    stacks: dict[tuple[object, ...], int] = {}
    mine, theirs = _groups(analysis, stacks), _groups(other.analysis, stacks)
    by_stack: dict[int, dict[int, Int64Column]] = {}
    for (stack, iteration), rows in theirs.items():
        by_stack.setdefault(stack, {})[iteration] = rows
    their_sizes = other.analysis.allocations.requested_bytes
    sizes = analysis.allocations.requested_bytes.copy()
    is_matched = np.zeros(len(sizes), np.bool_)
    for (stack, iteration), rows in mine.items():
        found = _counterpart(by_stack.get(stack, {}), iteration, len(rows))
        if found is not None:
            sizes[rows], is_matched[rows] = their_sizes[found], True
    return sizes, is_matched


def _counterpart(iterations: dict[int, Int64Column], iteration: int, n_rows: int) -> Int64Column | None:
    """Find the allocations of a stack in the same iteration, or in the last one that has as many."""
    candidates = [iteration, *(i for i in reversed(iterations) if (i < 0) == (iteration < 0))]
    found = (iterations.get(candidate) for candidate in candidates)
    return next((rows for rows in found if rows is not None and len(rows) == n_rows), None)


def _groups(analysis: DeviceAnalysis, stacks: dict[tuple[object, ...], int]) -> dict[_Group, Int64Column]:
    """Group the rows by stack and iteration, in the order of events; ``stacks`` numbers distinct stacks."""
    stack_ids, row_stack = np.unique(analysis.allocations.stack_id, return_inverse=True)
    keys = [
        stacks.setdefault(_content(analysis.snapshot, stack), len(stacks)) for stack in stack_ids.tolist()
    ]
    key = np.array(keys, np.int64)[row_stack] if len(keys) else np.empty(0, np.int64)
    iteration = analysis.iteration.astype(np.int64)
    order = np.lexsort((np.arange(len(key)), iteration, key))
    key, iteration = key[order], iteration[order]
    begins = np.flatnonzero((np.diff(key, prepend=-1) != 0) | (np.diff(iteration, prepend=-2) != 0))
    return {
        (int(key[rows[0]]), int(iteration[rows[0]])): order[rows]
        for rows in np.split(np.arange(len(key)), begins[1:])
        if len(rows)
    }


def _content(snapshot: Snapshot, stack: int) -> tuple[object, ...]:
    frames = snapshot.stacks.frames
    return tuple(
        (frames.filenames[frame], int(frames.lines[frame]), frames.names[frame])
        for frame in snapshot.stacks.frames_of(stack).tolist()
    )
