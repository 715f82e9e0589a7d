"""Blocks that take the place of a trained weight: when its memory is freed, the parameter lies elsewhere.

``p.data = backup``: the weight that was there is freed, and its gradients are made as before. If just one
block of its size is in use then that nothing else explains, it is the parameter now.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided
from snapconv.classification.size_references import SMALL_BYTES
from snapconv.columns import BoolColumn, EventColumn, Int32Column, Int64Column, distinct, grouped, is_among
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role


@dataclass(frozen=True, slots=True)
class InPlace:
    """One bool per allocation.

    ``weights``: what took the place of a weight, and the pre-existing weight whose place a clone took.
    ``left``: pre-existing, of the size of a gradient, and freed by the program while something of that size
    was in use that may have taken its place: such a size may have no weight from before the trace.
    ``may_be_state``: the same, where the line or the function that frees it has made the other: it may as
    well renew a state.
    """

    weights: BoolColumn
    left: BoolColumn
    may_be_state: BoolColumn


def in_place_of_weights(features: Features, decided: Decided) -> InPlace:
    """Go through the frees of every size that weights may have."""
    found = InPlace(*np.zeros((3, len(features.alloc)), np.bool_))
    rows = _rows(features, decided)
    if rows is None:
        return found
    for of_size in rows.by_size(features.sizes):
        size = _Size(features, rows, of_size)
        found.weights[size.found] = True
        found.left[size.left] = True
        found.may_be_state[size.may_be_state] = True
    return found


@dataclass(frozen=True, slots=True)
class _Rows:
    """What takes part, one bool per allocation: by what is known of it before this rule.

    ``weights``: those that the program frees. ``placed``: those that were made in the trace. ``preexisting``:
    unknown, from before the trace, and freed by a line of Python. ``made_on``, ``freed_on``: frames.
    """

    weights: BoolColumn
    placed: BoolColumn
    preexisting: BoolColumn
    candidates: BoolColumn
    gradients: BoolColumn
    made_on: Int32Column
    freed_on: Int32Column

    def by_size(self, sizes: Int64Column) -> list[Int64Column]:
        """The rows of each size that has a gradient, a candidate, and something in whose place it may be."""
        former = self.weights | self.preexisting
        of_all = distinct(sizes[former & is_among(sizes, sizes[self.gradients])])
        of_all = of_all[is_among(of_all, sizes[self.candidates])]
        any_of_them = former | self.placed | self.candidates | self.gradients
        return grouped(np.flatnonzero(any_of_them & is_among(sizes, of_all)), sizes)


def _rows(features: Features, decided: Decided) -> _Rows | None:
    """None where nothing can be found: without stacks of frees, or without a weight that may leave."""
    if not features.phases.free_sites_known:
        return None
    by_engine = features.is_freed_by_engine | features.freed_through(Role.RELEASE)
    by_program = features.is_freed & ~by_engine & (features.end_phase != Phase.OPTIMIZER)
    may_leave = by_program & (features.sizes >= SMALL_BYTES)
    is_weight = decided.has(Category.WEIGHT)
    if not np.any(may_leave & (is_weight | ~features.is_traced)):
        return None
    freed_on = features.lines_of(features.allocations.free_stack_id)
    return _Rows(
        weights=is_weight & may_leave,
        placed=is_weight & features.is_traced,
        preexisting=may_leave & decided.is_open & ~features.is_traced & (freed_on >= 0),
        candidates=decided.is_open & features.outside,
        gradients=decided.has(Category.GRADIENT) & features.by_engine,
        made_on=features.lines(),
        freed_on=freed_on,
    )


class _Size:
    """The rows of one size, gone through in the order of time."""

    def __init__(self, features: Features, rows: _Rows, of_size: Int64Column) -> None:
        self.found: list[int] = []
        self.left: list[int] = []
        self.may_be_state: list[int] = []
        self._features, self._rows = features, rows
        self._weights = set(of_size[rows.weights[of_size]].tolist())
        self._in_use: set[int] = set()
        # How many in use a stack has made, and on which line.
        self._made_by: Counter[tuple[int, int]] = Counter()
        is_gradient = rows.gradients[of_size]
        gradients = of_size[is_gradient & (features.alloc[of_size] > features.first(Phase.FORWARD))]
        self._made, self._ended = np.sort(features.alloc[gradients]), np.sort(features.end[gradients])
        self._most_gradients = int(self._gradients_at(self._made).max(initial=0))
        self._last_placed = int(features.alloc[of_size[rows.placed[of_size]]].max(initial=-1))
        self._go_through(of_size[~is_gradient])

    def _go_through(self, rows: Int64Column) -> None:
        times = np.concatenate((self._features.alloc[rows], self._features.end[rows]))
        order = np.argsort(times, kind="stable")
        order = order[(times[order] >= 0) & (times[order] < self._features.n_events)]
        is_begin = order < len(rows)
        for row, begins in zip(np.tile(rows, 2)[order].tolist(), is_begin.tolist(), strict=True):
            if not begins:
                self._end(row)
            elif self._rows.candidates[row]:
                self._in_use.add(row)
                self._made_by[self._maker(row)] += 1

    def _maker(self, row: int) -> tuple[int, int]:
        return int(self._features.allocations.stack_id[row]), int(self._rows.made_on[row])

    def _drop(self, row: int) -> None:
        self._in_use.discard(row)
        maker = self._maker(row)
        self._made_by[maker] -= 1
        if not self._made_by[maker]:
            del self._made_by[maker]

    def _gradients_at(self, event: EventColumn) -> Int64Column:
        """How many gradients of whole backward passes are in use after each event."""
        n_made, n_ended = (np.searchsorted(events, event, "right") for events in (self._made, self._ended))
        return np.asarray(n_made - n_ended)

    def _end(self, row: int) -> None:
        if row in self._weights:
            if len(self._in_use) == 1:
                self._weight_ends(int(self._features.end[row]), next(iter(self._in_use)))
        elif row in self._in_use:
            self._drop(row)
        elif self._rows.preexisting[row] and self._in_use:
            self._preexisting_ends(row)

    def _weight_ends(self, event: int, new: int) -> None:
        """The new one is in use when the next gradient is made; and no module has placed another weight."""
        of_next = np.searchsorted(self._made, event, "right")
        has_next = of_next < len(self._made)
        needed = self._made[of_next] if has_next else self._features.n_events - 1
        is_trained = has_next or self._gradients_at(np.array([event]))[0] > 0
        if is_trained and self._last_placed < event and self._features.end[new] > needed:
            self._takes_place(new)

    def _preexisting_ends(self, row: int) -> None:
        """While the gradients of all parameters of the size are there, it is none of them."""
        n_gradients = self._gradients_at(self._features.end[[row]])[0]
        if not n_gradients or n_gradients < self._most_gradients:
            return
        line = int(self._rows.freed_on[row])
        if all(self._is_called_by(stack, made_on, line) for stack, made_on in self._made_by):
            self.may_be_state.append(row)
            return
        new = next(iter(self._in_use))
        if len(self._in_use) == 1 and self._features.roles.of(
            Role.CLONE, self._features.allocations.stack_id[[new]]
        ):
            self.found.append(row)
            self._takes_place(new)
        self.left.append(row)

    def _is_called_by(self, stack: int, made_on: int, line: int) -> bool:
        """Whether the stack goes through a line, or ends in the function of that line."""
        stacks = self._features.roles.stacks
        names, files = stacks.frames.names, stacks.frames.filenames
        is_same = made_on >= 0 and (names[made_on], files[made_on]) == (names[line], files[line])
        return is_same or line in stacks.frames_of(stack)

    def _takes_place(self, new: int) -> None:
        self._drop(new)
        self._weights.add(new)
        self.found.append(new)
