"""Data that lies on the device before the first batch: the sizes of what batches are drawn from.

A batch takes the same number of rows of each tensor, so that all are as many times as large as what is drawn
from them.
"""

import re
from collections.abc import Iterable, Iterator
from math import gcd
from typing import TYPE_CHECKING

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided
from snapconv.classification.size_references import SMALL_BYTES, counted
from snapconv.columns import BoolColumn, Int64Column, distinct, is_among
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_patterns import REPEATED_ROWS, ROWS_BY_INDEX, ROWS_BY_NUMBER
from snapconv.torch_knowledge.frame_roles import Role

if TYPE_CHECKING:
    from fractions import Fraction

# The sizes of two tensors and two batches; fewer agree by chance.
_LEAST_SIZES = 2
_NEARLY = 0.8
# Beside labels of a size, there may be an order in which samples are drawn.
_MOST_FOR_A_BATCH = 2
# Of a batch.
_MOST_ROWS = 4096
# Of more sizes nothing is looked for.
_MOST_SIZES = 200


def drawn_from(features: Features, decided: Decided) -> BoolColumn:
    """What nearly all batches, by bytes, are drawn from.

    It was there before the first forward, or else before the first backward: a replay buffer may be made when
    the first steps of an agent are put into it, and these needed forwards.
    """
    found = _drawn_from_before(features, decided, features.first(Phase.FORWARD))
    if found.any() or not features.has_cpp or not len(features.phases.events_of_training):
        return found
    return _drawn_from_before(features, decided, features.first(Phase.BACKWARD))


def _drawn_from_before(features: Features, decided: Decided, begins: int) -> BoolColumn:
    sizes = features.sizes
    made = features.outside & features.is_live_at_dump & (features.alloc < begins)
    open_rows = (features.unrecorded | made) & decided.is_open & (sizes >= SMALL_BYTES)
    kept = counted(sizes[open_rows])
    # A search by beams chooses rows of its caches, too.
    drawn = counted(sizes[_chosen_by_number(features) & ~decided.has(Category.KV_CACHE)])
    found = _sizes_drawn_from(kept, drawn) if max(len(kept), len(drawn)) <= _MOST_SIZES else set[int]()
    data = np.asarray(open_rows & is_among(sizes, sorted(found)))
    # Without C++ frames all that may be a batch counts as chosen, and weights may be as large by chance.
    is_most = 2 * sizes[data].sum() >= sizes[open_rows].sum()
    return data & np.bool_(features.has_cpp or is_most)


def only_source_of_batches(features: Features, decided: Decided) -> BoolColumn:
    """What rows must have been chosen from: the open blocks of the one size that is larger and on the device.

    Rows of a batch have a whole number of bytes, of which the data are a multiple. What is as large as the
    batch may have been put in another order.
    """
    sizes, found = features.sizes, np.zeros(len(features.alloc), np.bool_)
    if not features.has_cpp or not len(features.phases.events_of_training):
        return found
    is_open = features.unrecorded & decided.is_open & features.is_live_at_dump
    is_chosen = _chosen_by_number(features, ROWS_BY_INDEX) & decided.has(Category.INPUT)
    of_open = distinct(sizes[is_open])
    if not len(of_open) or of_open[-1] < SMALL_BYTES:
        return found
    # Of several sizes only the largest can be the only one that is larger.
    source = int(of_open[-1])
    second = int(of_open[-2]) if len(of_open) > 1 else 0
    of_chosen = distinct(sizes[is_chosen])
    of_chosen = of_chosen[(of_chosen > second) & (of_chosen < source)]
    if not len(of_chosen):
        return found
    size = int(of_chosen[-1])
    is_former = ~features.is_traced & features.is_freed & (sizes == size)
    others = np.flatnonzero(_no_part_of_the_model(features, decided) & ~(is_open | is_chosen | is_former))
    others = others[sizes[others] >= size]
    drawn = features.alloc[is_chosen & (sizes == size)]
    n_before = np.searchsorted(np.sort(features.alloc[others]), drawn)
    n_ended = np.searchsorted(np.sort(features.end[others]), drawn, side="right")
    if np.any(n_before == n_ended) and gcd(source, size) * _MOST_ROWS >= size:
        return np.asarray(is_open & (sizes == source))
    return found


def _no_part_of_the_model(features: Features, decided: Decided) -> BoolColumn:
    """Nor what forward made before the trace."""
    of_model = decided.has(Category.WEIGHT) | decided.has(Category.GRADIENT)
    of_model |= decided.has(Category.OPTIMIZER_STATE)
    return np.asarray(~of_model & (features.is_traced | ~decided.has(Category.ACTIVATION)))


def _chosen_by_number(features: Features, operations: re.Pattern[str] = ROWS_BY_NUMBER) -> BoolColumn:
    """Rows of other tensors, and not pieces side by side. Without C++ frames, all that may be batches."""
    if not features.has_cpp:
        return features.may_be_input
    rows = np.flatnonzero(features.outside & features.made_through(Role.COLLECTED))
    if not len(rows):
        return features.mask(rows)
    stack, stacks = features.allocations.stack_id, features.roles.stacks
    names = stacks.frames.names
    chosen = []
    for number in distinct(stack[rows]).tolist():
        of_stack = [names[frame] for frame in stacks.frames_of(number).tolist()]
        if any(map(operations.search, of_stack)) and not any(map(REPEATED_ROWS.search, of_stack)):
            chosen.append(number)
    return features.mask(rows[is_among(stack[rows], chosen)])


def may_be_data(features: Features, decided: Decided, rows: Int64Column) -> bool:
    """Whether most bytes of the rows are as many times as large as batches are, which may be chance.

    Beside a replay buffer there are rollouts, whose sizes are others.
    """
    kept = counted(features.sizes[rows])
    drawn = distinct(features.sizes[_chosen_by_number(features) & ~decided.has(Category.KV_CACHE)]).tolist()
    if max(len(kept), len(drawn)) > _MOST_SIZES:
        return False
    by_times: dict[Fraction, set[int]] = {}
    for times, size, _ in _times_as_large(kept, drawn):
        by_times.setdefault(times, set()).add(size)
    total = sum(size * n for size, n in kept.items())
    return any(
        len(found) >= _LEAST_SIZES and 2 * sum(size * kept[size] for size in found) >= total
        for found in by_times.values()
    )


def _times_as_large(kept: Iterable[int], drawn: Iterable[int]) -> Iterator[tuple["Fraction", int, int]]:
    """How many times as large as a batch something is, for all pairs of a larger size and that of a batch."""
    from fractions import Fraction  # takes 1.4 ms, and few files have both

    for size in kept:
        for batch in drawn:
            if size > batch:
                yield Fraction(size, batch), size, batch


def _sizes_drawn_from(kept: dict[int, int], drawn: dict[int, int]) -> set[int]:
    if not (kept and drawn):
        return set()
    by_times: dict[Fraction, set[int]] = {}
    for times, size, batch in _times_as_large(kept, drawn):
        if kept[size] <= _MOST_FOR_A_BATCH * drawn[batch]:
            by_times.setdefault(times, set()).add(batch)
    if not by_times:
        return set()
    # Sizes that are powers of two have several such numbers by chance: the one that explains most.
    total = sum(batch * n for batch, n in drawn.items())
    explained = {times: sum(batch * drawn[batch] for batch in batches) for times, batches in by_times.items()}
    best = max(by_times, key=lambda times: (explained[times], len(by_times[times])))
    if len(by_times[best]) < _LEAST_SIZES or explained[best] < _NEARLY * total:
        return set()
    return {int(best * batch) for batch in by_times[best]}
