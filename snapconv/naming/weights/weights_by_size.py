"""Weights with their gradients: matched by size, since nothing in a bare snapshot links them."""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from snapconv.classification.categories import Category
from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, read_only
from snapconv.replay.device_replay import AllocationTable


@dataclass(frozen=True, slots=True)
class WeightTable:
    """The weights live at the report's moment: in the order of allocation, or as they were recorded.

    ``row`` is their row in the AllocationTable, ``gradient_row`` that of their gradient; -1 for none.
    ``names`` are empty where there is none. ``n_unmatched_gradients``: gradients that fit no weight.
    """

    row: Int64Column
    gradient_row: Int64Column
    n_unmatched_gradients: int
    names: tuple[str, ...]
    size_bytes: Int64Column
    gradient_bytes: Int64Column
    stack_id: Int32Column


def live_weights(allocations: AllocationTable, category: Int8Column, event: int) -> Int64Column:
    """The rows of the weights that are live after an event, in the order of allocation."""
    return np.flatnonzero(allocations.live_at(event) & (category == Category.WEIGHT))


def match_weights(
    allocations: AllocationTable,
    category: Int8Column,
    *,
    event: int,
    iteration_events: tuple[int, int],
    names: tuple[str, ...] | None = None,
    is_trained: BoolColumn | None = None,
) -> WeightTable:
    """Pair each weight live at ``event`` with a gradient that lives during the iteration around it.

    Of equal sizes, any is as good as another: the sum is right, and a row is right where its size is
    unique. Gradients that live at ``event`` itself go first; there is one per weight at most, and of a size
    no more than one iteration has. Weights that are trained, where that is known, come before the others.
    """
    live = allocations.live_at(event)
    weights = live_weights(allocations, category, event)
    first, last = iteration_events
    begun = allocations.alloc_event <= last
    not_ended = (allocations.end_event < 0) | (allocations.end_event >= first)
    candidates = np.flatnonzero((category == Category.GRADIENT) & begun & not_ended)
    candidates = candidates[np.argsort(~live[candidates], kind="stable")]
    sizes = allocations.requested_bytes
    n_at_once = _most_at_once(allocations, candidates, first)
    gradient = _pair(sizes[weights], sizes[candidates], n_at_once, is_trained)
    gradient[gradient >= 0] = candidates[gradient[gradient >= 0]]
    unmatched = live.copy()
    unmatched[gradient[gradient >= 0]] = False
    n_unmatched = int(np.count_nonzero(unmatched & (category == Category.GRADIENT)))
    table = WeightTable(
        row=weights,
        gradient_row=gradient,
        n_unmatched_gradients=n_unmatched,
        names=names if names is not None else ("",) * len(weights),
        size_bytes=sizes[weights],
        gradient_bytes=np.where(gradient >= 0, np.append(sizes, 0)[gradient], 0),
        stack_id=allocations.stack_id[weights],
    )
    return read_only(table)


def _most_at_once(allocations: AllocationTable, rows: Int64Column, first: int) -> dict[int, int]:
    """How many gradients of each size an iteration that begins at ``first`` has.

    As many as are live together, or are made in it: an optimizer may free each when it has used it.
    Those of the iteration before, which live on until zero_grad, must not count beside their successors: a
    batch norm's buffers have the size of its weights.
    """
    sizes, made = allocations.requested_bytes[rows], allocations.alloc_event[rows]
    end = allocations.end_event[rows]
    n_made = Counter(sizes[made >= first].tolist())
    time = np.concatenate((made, end[end >= 0]))
    size = np.concatenate((sizes, sizes[end >= 0]))
    change = np.repeat((1, -1), (len(made), len(time) - len(made)))
    n_live: Counter[int] = Counter()
    for i in np.lexsort((change, time)).tolist():
        n_live[int(size[i])] += int(change[i])
        n_made[int(size[i])] = max(n_made[int(size[i])], n_live[int(size[i])])
    return n_made


def _pair(
    weights: Int64Column, gradients: Int64Column, n_at_once: dict[int, int], is_trained: BoolColumn | None
) -> Int64Column:
    """The number of a gradient of the same size for every weight, each given once; -1 for none."""
    free: dict[int, list[int]] = {}
    for number, size in enumerate(gradients.tolist()):
        free.setdefault(size, []).append(number)
    for size, same_size in free.items():
        del same_size[n_at_once[size] :]
        same_size.reverse()
    paired = np.full(len(weights), -1, np.int64)
    order = np.arange(len(weights)) if is_trained is None else np.argsort(~is_trained, kind="stable")
    for i in order.tolist():
        if left := free.get(int(weights[i])):
            paired[i] = left.pop()
    return paired
