"""Blocks that take the place of a trained weight: when its memory is freed, the parameter lies elsewhere.

``p.data = backup``: the weight that was there is freed, and its gradients are made as before. If just one
block of its size is in use then that nothing else explains, it is the parameter now.
"""

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided
from snapconv.classification.size_references import SMALL_BYTES
from snapconv.columns import BoolColumn, Int64Column, distinct, grouped, is_among
from snapconv.lazy_dataclass import dataclass
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role


@dataclass(frozen=True, slots=True)
class InPlace:
    """One bool per allocation.

    ``weights``: what took the place of a weight, and what such a clone took it from. ``left``: pre-existing,
    of the size of a gradient, and freed by the program while something of that size was in use that may have
    taken its place: such a size may have no weight from before the trace. ``may_be_state``: the same, where
    the line or the function that frees it has made the other: it may as well renew a state.
    """

    weights: BoolColumn
    left: BoolColumn
    may_be_state: BoolColumn


def in_place_of_weights(features: Features, decided: Decided) -> InPlace:
    """Go through the frees of every size that weights may have."""
    found = InPlace(*np.zeros((3, len(features.alloc)), np.bool_))
    if not features.phases.free_sites_known:
        return found
    gradients = decided.has(Category.GRADIENT) & features.by_engine
    of_gradients = is_among(features.sizes, distinct(features.sizes[gradients]))
    may_leave = _is_freed_by_program(features) & of_gradients & (features.sizes >= SMALL_BYTES)
    weights = may_leave & decided.has(Category.WEIGHT)
    in_python = features.lines_of(features.allocations.free_stack_id) >= 0
    former = may_leave & decided.is_open & ~features.is_traced & in_python
    of_left = is_among(features.sizes, distinct(features.sizes[weights | former]))
    new = decided.is_open & features.outside & of_left
    rows = np.flatnonzero(new | weights | former | (gradients & of_left))
    is_clone = features.made_through(Role.CLONE)
    for of_size in grouped(rows, features.sizes):
        if new[of_size].any() and gradients[of_size].any():
            size = _Size(features, of_size, new, gradients, weights, is_clone)
            found.weights[size.weights] = True
            found.left[size.left] = True
            found.may_be_state[size.may_be_state] = True
    return found


def _is_freed_by_program(features: Features) -> BoolColumn:
    by_engine = features.is_freed_by_engine | features.freed_through(Role.RELEASE)
    return np.asarray(features.is_freed & ~by_engine & (features.end_phase != Phase.OPTIMIZER))


class _Size:
    """The rows of one size, gone through in the order of time: gradients are there, or made again."""

    def __init__(
        self,
        features: Features,
        rows: Int64Column,
        new: BoolColumn,
        gradients: BoolColumn,
        weights: BoolColumn,
        is_clone: BoolColumn,
    ) -> None:
        self.weights: list[int] = []
        self.left: list[int] = []
        self.may_be_state: list[int] = []
        self._known = set(rows[weights[rows]].tolist())
        self._new, self._gradients = set(rows[new[rows]].tolist()), set(rows[gradients[rows]].tolist())
        self._clones = set(rows[is_clone[rows]].tolist())
        self._stacks, self._stack = features.roles.stacks, features.allocations.stack_id
        self._functions = self._stacks.frames.names, self._stacks.frames.filenames
        self._line = dict(zip(rows.tolist(), features.lines()[rows].tolist(), strict=True))
        sites = features.allocations.free_stack_id[rows]
        self._freed_by = dict(zip(rows.tolist(), features.lines_of(sites).tolist(), strict=True))
        self._in_use: set[int] = set()
        self._n_gradients = 0
        alloc, end = features.alloc[rows], features.end[rows]
        last_gradient = int(alloc[gradients[rows]].max())
        times, which = np.concatenate((alloc, end)), np.concatenate((rows, rows))
        begins = np.arange(len(times)) < len(rows)
        order = np.argsort(times, kind="stable")
        order = order[(times[order] >= 0) & (times[order] < features.n_events)]
        in_order = which[order].tolist(), begins[order].tolist(), (times[order] < last_gradient).tolist()
        for row, is_begin, is_followed in zip(*in_order, strict=True):
            if is_begin:
                self._begin(row)
            else:
                self._end(row, is_trained=is_followed or self._n_gradients > 0)

    def _begin(self, row: int) -> None:
        if row in self._new:
            self._in_use.add(row)
        self._n_gradients += row in self._gradients

    def _end(self, row: int, *, is_trained: bool) -> None:
        if row in self._gradients:
            self._n_gradients -= 1
        elif row in self._known:
            if len(self._in_use) == 1 and is_trained:
                self._takes_place(self._in_use.pop())
        elif row in self._in_use:
            self._in_use.discard(row)
        elif row not in self._new:
            self._former_ends(row)

    def _former_ends(self, row: int) -> None:
        """Pre-existing: while the gradient is there too, it is not the gradient."""
        line = self._freed_by[row]
        if not self._in_use or not self._n_gradients:
            return
        if all(self._is_called_by(new, line) for new in self._in_use):
            self.may_be_state.append(row)
            return
        if len(self._in_use) == 1 and self._in_use <= self._clones:
            self.weights.append(row)
            self._takes_place(self._in_use.pop())
        self.left.append(row)

    def _is_called_by(self, row: int, line: int) -> bool:
        """Whether it was made through a line, or in the function of that line."""
        frames, names, files = self._stacks.frames_of(int(self._stack[row])).tolist(), *self._functions
        function = names[line], files[line]
        return line in frames or (names[self._line[row]], files[self._line[row]]) == function

    def _takes_place(self, row: int) -> None:
        self._known.add(row)
        self.weights.append(row)
