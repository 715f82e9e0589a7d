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
# Even the smallest layers have tensors of three sizes: two matrices and a vector.
_LEAST_SIZES = 3

# The weights themselves in full precision, and Adam's two states; or momentum's one; or they alone.
_FULL_COPIES = (3, 2, 1)

_Copies = tuple[tuple[int, dict[Category, int]], ...]
# How many of n blocks of one size are what. In the order in which they are made, and so of their addresses
# where those tell: weights, gradients in the first backward, states in the first step.
_COPIES: _Copies = (
    (4, {Category.WEIGHT: 1, Category.GRADIENT: 1, Category.OPTIMIZER_STATE: 2}),
    (3, {Category.WEIGHT: 1, Category.OPTIMIZER_STATE: 1}),
)
# Where the optimizer is known to keep so many states.
_COPIES_BY_STATES: dict[int | None, _Copies] = {
    2: (_COPIES[0], (3, {Category.WEIGHT: 1, Category.OPTIMIZER_STATE: 2})),
    1: (
        (3, {Category.WEIGHT: 1, Category.GRADIENT: 1, Category.OPTIMIZER_STATE: 1}),
        (2, {Category.WEIGHT: 1, Category.OPTIMIZER_STATE: 1}),
    ),
}
_COPIES_WITH_GRADIENTS: _Copies = (
    _COPIES[0],
    (3, {Category.WEIGHT: 1, Category.GRADIENT: 1, Category.OPTIMIZER_STATE: 1}),
    (2, {Category.WEIGHT: 1, Category.GRADIENT: 1}),
)


@dataclass(frozen=True, slots=True)
class Persistent:
    """Rows that only sizes can tell apart, and the rows to compare them with (bool per allocation).

    ``summed`` are the temporaries of backward: where gradients stay from step to step, they are added to
    them. ``whole`` are the iterations whose backward the trace has from its beginning. ``n_states``: how many
    states every optimizer keeps for each of its parameters, if that is known; ``has_several_steps``: whether
    there may be several of them.
    """

    candidates: BoolColumn
    gradients: BoolColumn
    states: BoolColumn
    summed: BoolColumn
    iteration: Int64Column
    whole: Int64Column
    n_states: int | None = None
    has_several_steps: bool = False


def sort_persistent(decisions: Decisions, known: Persistent) -> None:
    """Decide the persistent blocks without frames, as far as their sizes allow."""
    sizes = decisions.allocations.requested_bytes
    rows = np.flatnonzero(known.candidates)
    if not len(rows):
        return
    gradients = _gradients_of_fullest_iteration(sizes, known)
    states = _one_copy_of_states(decisions.allocations, known)
    by_gradients = sizes[gradients].sum() >= sizes[states].sum()
    yardstick = sizes[gradients] if by_gradients else sizes[states]
    # A few temporaries of backward that are taken for gradients must not spoil what fits as a whole.
    n_states = None if known.has_several_steps else known.n_states
    is_poor = 2 * sizes[rows][np.isin(sizes[rows], yardstick)].sum() < sizes[rows].sum()
    if is_poor and _sort_by_structure(decisions, rows, np.unique(sizes[known.summed]), n_states):
        return
    is_whole = len(gradients) > 0 and known.iteration[gradients[0]] in known.whole
    if by_gradients and is_whole and _sort_by_precision(decisions, rows, sizes[gradients]):
        return
    trained = sizes[gradients] if is_whole else sizes[:0]
    if known.has_several_steps:
        trained = _held_at_once(decisions.allocations, known, rows)
    if by_gradients and known.n_states and len(trained):
        made = known.states & (decisions.allocations.end_event < 0)
        _sort_by_states(decisions, rows, trained, sizes[made], known.n_states)
    if by_gradients:
        _sort_by_copies(decisions, rows, yardstick, Category.OPTIMIZER_STATE, "gradients")
        _frozen(decisions, rows, gradients, known)
    else:
        _sort_by_copies(decisions, rows, yardstick, Category.GRADIENT, "optimizer-states")


def _frozen(decisions: Decisions, rows: Int64Column, gradients: Int64Column, known: Persistent) -> None:
    """What stays and has the size of no gradient, although all gradients were seen, is not trained.

    Layers repeat, and so do several sizes of frozen weights. Data that stays is a few large blocks.
    """
    sizes = decisions.allocations.requested_bytes
    if not len(gradients) or known.iteration[gradients[0]] not in known.whole:
        return
    open_rows = rows[decisions.category[rows] == Category.UNKNOWN]
    open_rows = open_rows[~np.isin(sizes[open_rows], sizes[gradients])]
    found, counts = np.unique(sizes[open_rows], return_counts=True)
    repeats = (counts > 1) & (found >= _SMALL_BYTES)
    n_bytes = found * counts
    if np.count_nonzero(repeats) < _LEAST_SIZES or 2 * n_bytes[repeats].sum() < n_bytes.sum():
        return
    where = np.zeros(len(sizes), np.bool_)
    where[open_rows] = True
    decisions.decide(where, Category.WEIGHT, Evidence.SIZES, "stays-without-gradient")


def _gradients_of_fullest_iteration(sizes: Int64Column, known: Persistent) -> Int64Column:
    """The gradients of the iteration that has most bytes of them, the last such; -1 is before the trace."""
    rows = np.flatnonzero(known.gradients)
    if not len(rows):
        return rows
    iterations = known.iteration[rows]
    found, inverse = np.unique(iterations, return_inverse=True)
    totals = np.zeros(len(found), np.int64)
    np.add.at(totals, inverse, sizes[rows])
    return np.asarray(rows[iterations == found[totals >= totals.max()][-1]])


def _held_at_once(allocations: AllocationTable, known: Persistent, rows: Int64Column) -> Int64Column:
    """The sizes of the gradients of all models that are trained in turn: most that are held at the same time.

    Nothing where these may not be all. Where models drop theirs at different times, some sizes are made more
    often than others for each that is held. And where a parameter has several optimizers, or models of equal
    sizes are trained, there are more blocks (``rows``) than a model, a copy of it and one optimizer have.
    """
    sizes = allocations.requested_bytes
    gradients = np.flatnonzero(known.gradients & (sizes >= _SMALL_BYTES))
    if not len(gradients) or not len(known.whole) or known.n_states is None:
        return gradients[:0]
    end = allocations.end_event[gradients]
    end = np.where(end < 0, np.iinfo(np.int64).max, end)
    found, which = np.unique(sizes[gradients], return_inverse=True)
    size = np.concatenate((which, which))
    change = np.repeat((-1, 1), len(gradients))
    order = np.lexsort((change, np.concatenate((end, allocations.alloc_event[gradients])), size))
    held = np.cumsum(change[order])
    begins = np.flatnonzero(np.diff(size[order], prepend=-1))
    before = np.concatenate(([0], held[begins[1:] - 1]))
    most = np.maximum.reduceat(held, begins) - before
    times_made = np.bincount(which) / most
    of_rows = np.sort(sizes[rows])
    n_blocks = np.searchsorted(of_rows, found, side="right") - np.searchsorted(of_rows, found)
    is_explained = n_blocks <= most * (2 + known.n_states)
    if np.any(times_made != times_made[0]) or not is_explained.all():
        return gradients[:0]
    return np.repeat(found, most)


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


def _sort_by_precision(decisions: Decisions, rows: Int64Column, gradients: Int64Column) -> bool:
    """Weights in half precision whose optimizer keeps its own in full: every size has copies twice as large.

    Believed if one number of copies explains nearly all bytes; say if so.
    """
    sizes, n_gradients = decisions.allocations.requested_bytes, _counted(gradients)
    groups = _by_size(rows, sizes)
    total = sum(size * len(members) for size, members in groups)
    for n_copies in _FULL_COPIES:
        split = {
            size: (n_gradients.get(size, 0), n_copies * n_gradients.get(size // 2, 0) * (size % 2 == 0))
            for size, _ in groups
        }
        fitting = [(size, members) for size, members in groups if sum(split[size]) == len(members)]
        if sum(size * len(members) for size, members in fitting) < _NEEDED_SHARE * total:
            continue
        weight, state = np.zeros(len(sizes), np.bool_), np.zeros(len(sizes), np.bool_)
        for size, members in fitting:
            weight[members[: split[size][0]]] = True
            state[members[split[size][0] :]] = True
        decisions.decide(weight, Category.WEIGHT, Evidence.SIZES, "as-many-as-gradients")
        decisions.decide(state, Category.OPTIMIZER_STATE, Evidence.SIZES, "copies-in-full-precision")
        return True
    return False


def _sort_by_states(
    decisions: Decisions, rows: Int64Column, gradients: Int64Column, made: Int64Column, n_states: int
) -> None:
    """Per size: as many states as the optimizer keeps for the parameters, and everything else is weights.

    Weights are at least as many as the gradients: more where a part of the model is not trained, or a copy of
    it is kept. But if every size is a multiple of a weight and its states, then all have states, and some had
    no gradient this time: an expert that was not asked. ``made`` are the sizes of states made in the trace.
    """
    sizes = decisions.allocations.requested_bytes
    weight, state = np.zeros(len(sizes), np.bool_), np.zeros(len(sizes), np.bool_)
    n_gradients, n_made, groups = _counted(gradients), _counted(made), _by_size(rows, sizes)
    each = {size: len(members) // (1 + n_states) for size, members in groups}
    all_have_states = (
        not n_made
        and all(len(members) % (1 + n_states) == 0 for _, members in groups)
        and any(n_gradients.get(size, 0) == n for size, n in each.items())
    )
    for size, members in groups:
        n_trained = n_gradients.get(size, 0)
        n_old = max(n_states * n_trained - n_made.get(size, 0), 0)
        n_weights = each[size] if all_have_states else len(members) - n_old
        if n_trained and n_weights >= n_trained:
            # Models are built before the first step, and so their weights come first.
            weight[members[:n_weights]] = True
            state[members[n_weights:]] = True
    decisions.decide(weight, Category.WEIGHT, Evidence.SIZES, "beside-gradients-and-states")
    decisions.decide(state, Category.OPTIMIZER_STATE, Evidence.SIZES, "states-of-the-optimizer")


def _sort_by_copies(
    decisions: Decisions, rows: Int64Column, yardstick: Int64Column, others: Category, reason: str
) -> None:
    """Per size: as many weights as the yardstick has; whole further copies are the other category.

    Up to two further copies can be optimizer state, one can be gradients.
    """
    sizes = decisions.allocations.requested_bytes
    n_expected = _counted(yardstick)
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


def _sort_by_structure(
    decisions: Decisions, rows: Int64Column, summed: Int64Column, n_states: int | None
) -> bool:
    """Believe n copies of everything only if nearly all bytes agree and some tensor is unique; say if so.

    Four are a weight, its gradient and Adam's two states. Of three, one is a weight and one a state; the
    third is Adam's other state, or a gradient beside SGD's momentum. That is told by the optimizer, if it is
    known, or by backward, if it is seen to add to gradients that stay: it makes temporaries of their sizes
    (``summed``). Else it stays open.
    """
    sizes = decisions.allocations.requested_bytes
    groups = [(size, members) for size, members in _by_size(rows, sizes) if size >= _SMALL_BYTES]
    total = sum(size * len(members) for size, members in groups)
    have_gradients = 2 * sum(size * len(m) for size, m in groups if size in summed) > total
    usual = _COPIES_WITH_GRADIENTS if have_gradients else _COPIES
    likely = _COPIES_BY_STATES.get(n_states, usual)
    for n_copies, parts in likely:
        fitting = [(size, members) for size, members in groups if len(members) % n_copies == 0]
        has_unique = any(len(members) == n_copies for _, members in fitting)
        if not has_unique or sum(size * len(m) for size, m in fitting) < _NEEDED_SHARE * total:
            continue
        _split_copies(decisions, [members for _, members in fitting], n_copies, parts)
        return True
    return False


def _split_copies(
    decisions: Decisions, groups: list[Int64Column], n_copies: int, parts: dict[Category, int]
) -> None:
    """Give the rows of every size their categories, as many copies of each as the parts say."""
    first = 0
    for category, n_parts in parts.items():
        chosen = np.zeros(len(decisions.category), np.bool_)
        for members in groups:
            each = len(members) // n_copies
            chosen[members[each * first : each * (first + n_parts)]] = True
        decisions.decide(chosen, category, Evidence.SIZES, f"{n_copies}-copies-of-every-size")
        first += n_parts


def _counted(sizes: Int64Column) -> dict[int, int]:
    """How often every size occurs."""
    return dict(zip(*(part.tolist() for part in np.unique(sizes, return_counts=True)), strict=True))


def _by_size(rows: Int64Column, sizes: Int64Column) -> list[tuple[int, Int64Column]]:
    """The rows grouped by size, each group in order."""
    order = rows[np.argsort(sizes[rows], kind="stable")]
    starts = np.flatnonzero(np.concatenate(([True], np.diff(sizes[order]) != 0)))
    return [(int(sizes[group[0]]), group) for group in np.split(order, starts[1:])]
