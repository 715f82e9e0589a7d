"""The sizes to compare blocks without frames with: those of the gradients, or states, that one model has.

What an iteration made may be several times what a model has: several backwards, several models, gradients
that were made again in full precision.
"""

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.columns import BoolColumn, Int64Column, distinct, grouped, run_starts
from snapconv.replay.device_replay import AllocationTable

SMALL_BYTES = 1024
NEEDED_SHARE = 0.98


@dataclass(frozen=True, slots=True)
class Preexisting:
    """Rows that only sizes can separate, and the rows to compare them with (bool per allocation).

    ``summed`` are the temporaries of backward: where gradients stay from step to step, they are added to
    them. ``added`` are those of which the stack of the free shows it. ``whole`` are the iterations whose
    backward the trace has from its beginning. ``n_states``: how many states every optimizer keeps for each of
    its parameters, if that is known; ``states_range``: the least and the most of them; ``most_states``: the
    most that any of several keeps; ``states_are_built``: they are made before the first gradients;
    ``has_several_steps``: whether there may be several optimizers; ``has_sparse_steps``: whether one takes
    only sparse gradients.
    ``has_frozen_copy``: an average of the weights is updated, or the trained modules also ran without saving
    anything, so that there may be another model of the kind; None where that may have been a validation, or
    the states are known without it. ``left``: what was a weight at the start, and was freed;
    ``may_have_left``: besides, what may as well have been a state.
    """

    candidates: BoolColumn
    gradients: BoolColumn
    states: BoolColumn
    summed: BoolColumn
    added: BoolColumn
    iteration: NDArray[np.integer[Any]]
    # The run of one phase that made each allocation, by its last event.
    run: NDArray[np.integer[Any]]
    whole: Int64Column
    n_states: int | None
    states_range: tuple[int, int] | None
    most_states: int | None
    has_frozen_copy: bool | None
    states_are_built: bool
    has_several_steps: bool
    has_sparse_steps: bool
    left: BoolColumn
    may_have_left: BoolColumn


def of_one_model(
    allocations: AllocationTable, gradients: Int64Column, run: NDArray[np.integer[Any]]
) -> Int64Column:
    """Of every size the last ones, as many as one backward makes or as are live at once, whichever is more.

    An iteration with several backwards that frees its gradients between them, as one that looks for flat
    minima, has a gradient of every parameter several times.
    """
    if len(distinct(run[gradients])) < 2:
        return gradients
    kept = [gradients[:0]]
    for _, rows in by_size(gradients, allocations.requested_bytes):
        _, n_of_run = np.unique(run[rows], return_counts=True)
        alloc, end = np.sort(allocations.alloc_event[rows]), allocations.end_event[rows]
        end = np.sort(np.where(end < 0, np.iinfo(np.int32).max, end))
        n_live = np.arange(1, len(rows) + 1) - np.searchsorted(end, alloc, side="right")
        most = max(int(n_of_run.max()), int(n_live.max()))
        kept.append(rows[np.argsort(allocations.alloc_event[rows], kind="stable")][-most:])
    return np.sort(np.concatenate(kept))


def live_at_once(allocations: AllocationTable, known: Preexisting, rows: Int64Column) -> Int64Column:
    """The sizes of the gradients of all models trained in turn: the most that are live at the same time.

    Nothing where these may not be all. Where models free theirs at different times, some sizes are made more
    often than others for each that is live. And where a parameter has several optimizers, or models of equal
    sizes are trained, there are more blocks (``rows``) than a model, a copy of it and one optimizer have.
    """
    sizes = allocations.requested_bytes
    gradients = np.flatnonzero(known.gradients & (sizes >= SMALL_BYTES))
    if not len(gradients) or not len(known.whole) or known.n_states is None:
        return gradients[:0]
    found, most, n_made = _most_live(allocations, gradients)
    of_rows = np.sort(sizes[rows])
    n_blocks = np.searchsorted(of_rows, found, side="right") - np.searchsorted(of_rows, found)
    is_explained = n_blocks <= most * (2 + known.n_states)
    if np.diff(n_made / most).any() or not is_explained.all():
        return gradients[:0]
    return np.repeat(found, most)


def least_trained(allocations: AllocationTable, known: Preexisting) -> dict[int, int]:
    """How many parameters of a size are trained at least: as many as have gradients at the same time."""
    gradients = np.flatnonzero(known.gradients)
    if not len(gradients):
        return {}
    found, most, _ = _most_live(allocations, gradients)
    return dict(zip(found.tolist(), most.tolist(), strict=True))


def _most_live(
    allocations: AllocationTable, rows: Int64Column
) -> tuple[Int64Column, Int64Column, Int64Column]:
    """The sizes of the rows, the most of each that are live at the same time, and how many there are."""
    end = allocations.end_event[rows]
    end = np.where(end < 0, np.iinfo(np.int32).max, end)
    found, which = np.unique(allocations.requested_bytes[rows], return_inverse=True)
    size = np.concatenate((which, which))
    change = np.repeat((-1, 1), len(rows))
    order = np.lexsort((change, np.concatenate((end, allocations.alloc_event[rows])), size))
    n_live = np.cumsum(change[order])
    return found, np.maximum.reduceat(n_live, run_starts(size[order])), np.bincount(which)


def may_have_states(sizes: Int64Column, known: Preexisting) -> bool:
    """Whether half of the sizes occur as often as weights with their states do.

    Then they may be of a model that is not trained in the trace. It may still hold its last gradients, and
    have an average beside it.
    """
    _, counts = np.unique(sizes[sizes >= SMALL_BYTES], return_counts=True)
    n_states = (1, 2) if known.n_states is None else (known.n_states,)
    copies = {1 + n + more for n in n_states for more in range(3)}
    return any(2 * np.count_nonzero(counts % n_copies == 0) >= len(counts) for n_copies in copies)


def one_copy_of_states(allocations: AllocationTable, known: Preexisting) -> Int64Column:
    """One state per parameter: Adam makes its two moments on two lines, and some make them anew each step.

    So the fullest stack of the fullest iteration has one.
    """
    rows = np.flatnonzero(known.states & (allocations.stack_id >= 0))
    of_lines = [
        of_line
        for of_iteration in grouped(rows, known.iteration)
        for of_line in grouped(of_iteration, allocations.stack_id)
    ]
    # Of equals the last.
    return max(
        reversed(of_lines), key=lambda of_line: allocations.requested_bytes[of_line].sum(), default=rows
    )


def in_half(gradients: Int64Column) -> Int64Column:
    """The gradients without those twice as large, where every one has been made again in full precision."""
    left, half = counted(gradients), Counter[int]()
    for size in sorted(left):
        n = min(left[size], left[2 * size])
        if n:
            half[size] += n
            left[size] -= n
            left[2 * size] -= n
    total = int(gradients.sum())
    if sum(size * n for size, n in left.items()) > (1 - NEEDED_SHARE) * total:
        return gradients
    return np.array(list(half.elements()), np.int64)


def counted(sizes: Int64Column) -> Counter[int]:
    """How often every size occurs."""
    return Counter(dict(np.column_stack(np.unique(sizes, return_counts=True)).tolist()))


def by_size(rows: Int64Column, sizes: Int64Column) -> list[tuple[int, Int64Column]]:
    """The rows grouped by size, each group in order."""
    groups = grouped(rows, sizes)
    return [(int(sizes[group[0]]), group) for group in groups]
