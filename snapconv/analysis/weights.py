"""Weights with their gradients: matched by size, since nothing in a bare snapshot links them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category
from snapconv.analysis.replay import AllocationTable

Int64Column = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class WeightTable:
    """The weights live at the report's moment, in the order in which they were allocated.

    ``row`` is their row in the AllocationTable, ``gradient_row`` that of their gradient or -1.
    ``n_unmatched_gradients``: gradients of that iteration that fit no weight.
    """

    row: Int64Column
    gradient_row: Int64Column
    n_unmatched_gradients: int


def match_weights(
    allocations: AllocationTable,
    category: NDArray[np.int8],
    *,
    event: int,
    iteration_events: tuple[int, int],
) -> WeightTable:
    """Pair each weight live at ``event`` with a gradient that lives during the iteration around it.

    Of equal sizes, any is as good as another: the sum is right, and a row is right where its size is
    unique. Gradients that live at ``event`` itself go first; there is one per weight at most.
    """
    live = allocations.live_at(event)
    weights = np.flatnonzero(live & (category == Category.WEIGHT))
    first, last = iteration_events
    begun = allocations.alloc_event <= last
    not_ended = (allocations.end_event < 0) | (allocations.end_event >= first)
    candidates = np.flatnonzero((category == Category.GRADIENT) & begun & not_ended)
    candidates = candidates[np.argsort(~live[candidates], kind="stable")]
    free: dict[int, list[int]] = {}
    for row, size in zip(candidates.tolist(), allocations.requested_bytes[candidates].tolist(), strict=True):
        free.setdefault(size, []).append(row)
    for rows in free.values():
        rows.reverse()
    gradient = np.full(len(weights), -1, np.int64)
    for i, size in enumerate(allocations.requested_bytes[weights].tolist()):
        if free.get(size):
            gradient[i] = free[size].pop()
    unmatched = live.copy()
    unmatched[gradient[gradient >= 0]] = False
    n_unmatched = int(np.count_nonzero(unmatched & (category == Category.GRADIENT)))
    return WeightTable(weights, gradient, n_unmatched)
