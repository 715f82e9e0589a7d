"""Tell weights, gradients and optimizer state apart by nothing but how often each size occurs.

Blocks that were live before recording began have neither frames nor a birth. But a gradient has its
weight's size, Adam keeps two more copies of each, SGD with momentum one: so the counts of sizes have a
structure. Where the gradients of an iteration are known, they are the yardstick; without them, only a
structure that chance does not make is believed.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category, Evidence
from snapconv.analysis.decisions import Decisions
from snapconv.analysis.replay import AllocationTable

BoolColumn = NDArray[np.bool_]
Int64Column = NDArray[np.int64]

_SMALL_BYTES = 1024
_NEEDED_SHARE = 0.98


@dataclass(frozen=True, slots=True)
class Persistent:
    """Rows that only sizes can tell apart, and the rows to compare them with (bool per allocation)."""

    candidates: BoolColumn
    gradients: BoolColumn
    states: BoolColumn
    iteration: Int64Column


def sort_persistent(decisions: Decisions, known: Persistent) -> None:
    """Decide the persistent blocks without frames, as far as their sizes allow."""
    sizes = decisions.allocations.requested_bytes
    rows = np.flatnonzero(known.candidates)
    if not len(rows):
        return
    gradients = _gradients_of_fullest_iteration(sizes, known)
    states = _one_copy_of_states(decisions.allocations, known)
    if len(gradients) and sizes[gradients].sum() >= sizes[states].sum():
        _sort_by_copies(decisions, rows, sizes[gradients], Category.OPTIMIZER_STATE, "gradients")
    elif len(states):
        _sort_by_copies(decisions, rows, sizes[states], Category.GRADIENT, "optimizer-states")
    else:
        _sort_by_structure(decisions, rows, sizes)


def _gradients_of_fullest_iteration(sizes: Int64Column, known: Persistent) -> Int64Column:
    """The gradients of the iteration that has most bytes of them; -1 is before the trace."""
    rows = np.flatnonzero(known.gradients)
    if not len(rows):
        return rows
    iterations = known.iteration[rows]
    found, inverse = np.unique(iterations, return_inverse=True)
    totals = np.zeros(len(found), np.int64)
    np.add.at(totals, inverse, sizes[rows])
    return np.asarray(rows[iterations == found[totals.argmax()]])


def _one_copy_of_states(allocations: AllocationTable, known: Persistent) -> Int64Column:
    """One state per parameter: Adam makes its two moments on two lines, and some make them anew each step.

    So the fullest stack of the fullest iteration has one.
    """
    rows = np.flatnonzero(known.states & (allocations.stack_id >= 0))
    if not len(rows):
        return rows
    origin = np.stack((allocations.stack_id[rows].astype(np.int64), known.iteration[rows]))
    found, inverse = np.unique(origin, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    totals = np.zeros(found.shape[1], np.int64)
    np.add.at(totals, inverse, allocations.requested_bytes[rows])
    return np.asarray(rows[inverse == totals.argmax()])


def _sort_by_copies(
    decisions: Decisions, rows: Int64Column, yardstick: Int64Column, others: Category, reason: str
) -> None:
    """Per size: as many weights as the yardstick has; whole further copies are the other category.

    Up to two further copies can be optimizer state, one can be gradients.
    """
    sizes = decisions.allocations.requested_bytes
    n_expected = dict(zip(*(part.tolist() for part in np.unique(yardstick, return_counts=True)), strict=True))
    weight = np.zeros(len(sizes), np.bool_)
    other = np.zeros(len(sizes), np.bool_)
    for size, members in _by_size(rows, sizes):
        expected = n_expected.get(size, 0)
        if not expected:
            continue
        weight[members[:expected]] = True
        copies, rest = divmod(len(members) - expected, expected)
        if not rest and copies <= (2 if others is Category.OPTIMIZER_STATE else 1):
            other[members[expected:]] = True
    decisions.decide(weight, Category.WEIGHT, Evidence.SIZES, f"as-many-as-{reason}")
    decisions.decide(other, others, Evidence.SIZES, f"whole-copies-beside-{reason}")


def _sort_by_structure(decisions: Decisions, rows: Int64Column, sizes: Int64Column) -> None:
    """Believe n copies of everything only if nearly all bytes agree and some tensor is unique."""
    groups = [(size, members) for size, members in _by_size(rows, sizes) if size >= _SMALL_BYTES]
    total = sum(size * len(members) for size, members in groups)
    for n_copies, states in ((4, 2), (3, 2)):
        fitting = [(size, members) for size, members in groups if len(members) % n_copies == 0]
        has_unique = any(len(members) == n_copies for _, members in fitting)
        if not has_unique or sum(size * len(m) for size, m in fitting) < _NEEDED_SHARE * total:
            continue
        _split_copies(decisions, fitting, n_copies, states, len(sizes))
        return


def _split_copies(
    decisions: Decisions, groups: list[tuple[int, Int64Column]], n_copies: int, n_states: int, n_rows: int
) -> None:
    weight, state, gradient = (np.zeros(n_rows, np.bool_) for _ in range(3))
    for _, members in groups:
        each = len(members) // n_copies
        weight[members[:each]] = True
        state[members[each : each * (1 + n_states)]] = True
        gradient[members[each * (1 + n_states) :]] = True
    reason = f"{n_copies}-copies-of-every-size"
    decisions.decide(weight, Category.WEIGHT, Evidence.SIZES, reason)
    decisions.decide(state, Category.OPTIMIZER_STATE, Evidence.SIZES, reason)
    decisions.decide(gradient, Category.GRADIENT, Evidence.SIZES, reason)


def _by_size(rows: Int64Column, sizes: Int64Column) -> list[tuple[int, Int64Column]]:
    """The rows grouped by size, each group in order."""
    order = rows[np.argsort(sizes[rows], kind="stable")]
    starts = np.flatnonzero(np.concatenate(([True], np.diff(sizes[order]) != 0)))
    return [(int(sizes[group[0]]), group) for group in np.split(order, starts[1:])]
