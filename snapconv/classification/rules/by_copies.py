"""Weights, gradients and optimizer state, separated only by how often each size occurs.

Blocks that were live before recording began have neither frames nor an alloc. But a gradient has its weight's
size, Adam keeps two more copies of each, SGD with momentum one: so the counts of sizes have a structure.
Where the gradients of an iteration are known, they are the reference; without them, only a structure that
chance does not make is accepted.
"""

from collections import Counter
from dataclasses import field
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, of_fullest
from snapconv.classification.frozen_forwards import frozen_modules_ran
from snapconv.classification.rule import Decided, PipelineRule, Reason, Rule, rule
from snapconv.columns import BoolColumn, Int64Column
from snapconv.lazy_dataclass import dataclass
from snapconv.phases.trace_phases import Phase
from snapconv.replay.device_replay import AllocationTable

BESIDE_STATES = Reason(
    "beside-gradients-and-states",
    "of a size that gradients have, and more than the states that this optimizer keeps for them",
)
STATES = Reason(
    "states-of-the-optimizer",
    "as many of a size as this optimizer keeps for the parameters that have gradients",
)
AS_GRADIENTS = Reason("as-many-as-gradients", "as many pre-existing blocks of a size as gradients")
COPIES_BESIDE_GRADIENTS = Reason(
    "whole-copies-beside-gradients", "the further whole copies of a size, beside weights and gradients"
)
AS_STATES = Reason("as-many-as-optimizer-states", "as many pre-existing blocks of a size as states")
COPIES_BESIDE_STATES = Reason(
    "whole-copies-beside-optimizer-states", "the further whole copy of a size, beside weights and states"
)
FOURS = Reason("4-copies-of-every-size", "every size occurs in fours: weight, two states, gradient")
THREES = Reason(
    "3-copies-of-every-size",
    "every size occurs in threes: a weight, a state, and a second state or a gradient",
)
TWOS = Reason(
    "2-copies-of-every-size",
    "every size occurs twice: a weight, and one state or a gradient that backward adds to",
)
NOT_TRAINED = Reason(
    "kept-without-gradient",
    "as large as no gradient, although the trace has all of a step, and such sizes repeat: not trained",
)
FULL_PRECISION = Reason(
    "copies-in-full-precision",
    "every size of a gradient occurs twice as large, as often or a whole number of times as often",
)

_SMALL_BYTES = 1024
_NEEDED_SHARE = 0.98
# Even the smallest layers have tensors of three sizes: two matrices and a vector.
_LEAST_SIZES = 3

# The weights themselves in full precision, and Adam's two states; or momentum's one; or they alone.
_FULL_COPIES = (3, 2, 1)

_W, _G, _S = Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE
_Copies = tuple[tuple[int, dict[Category, int]], ...]
# How many of n blocks of one size are what. In the order in which they are made, and so of their addresses
# where those show it: weights, gradients in the first backward, states in the first step.
_COPIES: _Copies = ((4, {_W: 1, _G: 1, _S: 2}), (3, {_W: 1, _S: 1}))
# Where the optimizer is known to keep so many states.
_COPIES_BY_STATES: dict[int | None, _Copies] = {
    2: (_COPIES[0], (3, {_W: 1, _S: 2})),
    1: ((3, {_W: 1, _G: 1, _S: 1}), (2, {_W: 1, _S: 1})),
}
_COPIES_WITH_GRADIENTS: _Copies = (_COPIES[0], (3, {_W: 1, _G: 1, _S: 1}), (2, {_W: 1, _G: 1}))
_REASON_OF_COPIES = {4: FOURS, 3: THREES, 2: TWOS}


@dataclass(frozen=True, slots=True)
class Preexisting:
    """Rows that only sizes can separate, and the rows to compare them with (bool per allocation).

    ``summed`` are the temporaries of backward: where gradients stay from step to step, they are added to
    them. ``whole`` are the iterations whose backward the trace has from its beginning. ``n_states``: how many
    states every optimizer keeps for each of its parameters, if that is known; ``states_range``: the least and
    the most of them; ``has_several_steps``: whether there may be several optimizers. ``has_frozen_copy``: the
    trained modules also ran without saving anything, so that there may be another model of the kind.
    """

    candidates: BoolColumn
    gradients: BoolColumn
    states: BoolColumn
    summed: BoolColumn
    iteration: NDArray[np.integer[Any]]
    # The run of one phase that made each allocation, by its last event.
    run: NDArray[np.integer[Any]]
    whole: Int64Column
    n_states: int | None = None
    states_range: tuple[int, int] | None = None
    has_frozen_copy: bool = False
    has_several_steps: bool = False


@dataclass(frozen=True, slots=True)
class SizeSplit:
    """The result of counting sizes: the rows (bool per allocation) by reason and category.

    ``not_trained`` are the candidates without a gradient of their size, where all gradients were seen.
    """

    n_allocations: int
    marks: dict[tuple[str, Category], BoolColumn] = field(default_factory=dict)
    not_trained: Int64Column = field(default_factory=lambda: np.zeros(0, np.int64))

    def mark(self, reason: Reason, category: Category, rows: Int64Column) -> None:
        """Add rows of a category, for a reason."""
        where = self.marks.setdefault((reason.slug, category), np.zeros(self.n_allocations, np.bool_))
        where[rows] = True

    def of(self, reason: Reason, category: Category) -> BoolColumn:
        """The rows of a category, for a reason."""
        nothing = np.zeros(self.n_allocations, np.bool_)
        return self.marks.get((reason.slug, category), nothing)


def _split(features: Features, decided: Decided) -> SizeSplit:
    """Compare the open blocks without an alloc with the gradients and states that are known."""
    in_backward = features.by_engine & decided.has(Category.TEMPORARY)
    unnamed = ~features.is_traced & features.is_live_at_dump & features.has_no_frames
    known = Preexisting(
        candidates=decided.is_open & unnamed,
        gradients=decided.has(Category.GRADIENT),
        states=decided.has(Category.OPTIMIZER_STATE),
        summed=in_backward,
        iteration=features.iteration,
        run=features.alloc_run_last,
        whole=_whole_iterations(features),
        n_states=features.phases.n_states,
        states_range=features.phases.states_range,
        has_frozen_copy=features.phases.n_states is None and frozen_modules_ran(features),
        has_several_steps=features.phases.has_several_steps,
    )
    return split_by_sizes(features.allocations, known)


def _whole_iterations(features: Features) -> Int64Column:
    """The iterations of which the trace has the backward from its beginning: forward comes before it."""
    iteration, certain = features.phases.iteration, features.phases.certain
    forward, first_forward = np.unique(iteration[certain == Phase.FORWARD], return_index=True)
    backward, first_backward = np.unique(iteration[certain == Phase.BACKWARD], return_index=True)
    first_forward = np.flatnonzero(certain == Phase.FORWARD)[first_forward]
    first_backward = np.flatnonzero(certain == Phase.BACKWARD)[first_backward]
    both, in_forward, in_backward = np.intersect1d(forward, backward, return_indices=True)
    return np.asarray(both[first_forward[in_forward] < first_backward[in_backward]], np.int64)


def split_by_sizes(allocations: AllocationTable, known: Preexisting) -> SizeSplit:
    """Split the candidates, as far as their sizes allow."""
    sizes, found = allocations.requested_bytes, SizeSplit(len(allocations))
    rows = np.flatnonzero(known.candidates)
    if not len(rows):
        return found
    gradients = of_fullest(np.flatnonzero(known.gradients), known.iteration, sizes)
    gradients = _of_one_model(allocations, gradients, known.run)
    states = _one_copy_of_states(allocations, known)
    by_gradients = sizes[gradients].sum() >= sizes[states].sum()
    reference = sizes[gradients] if by_gradients else sizes[states]
    # A few temporaries of backward that are taken for gradients must not spoil a good fit as a whole.
    n_states = None if known.has_several_steps else known.n_states
    is_weak = 2 * sizes[rows][np.isin(sizes[rows], reference)].sum() < sizes[rows].sum()
    if is_weak and _split_by_structure(found, rows, sizes, np.unique(sizes[known.summed]), n_states):
        return found
    is_whole = len(gradients) > 0 and known.iteration[gradients[0]] in known.whole
    if (
        by_gradients
        and is_whole
        and _split_by_precision(found, rows, sizes, _in_half(sizes[gradients]), known)
    ):
        return found
    made = sizes[known.states & (allocations.end_event < 0)]
    trained = sizes[gradients] if is_whole else sizes[:0]
    if known.has_several_steps:
        trained = _live_at_once(allocations, known, rows)
    if by_gradients and known.n_states and len(trained):
        _split_by_states(found, rows, sizes, trained=trained, made=made, n_states=known.n_states)
    options = _options_left(known, sizes[gradients], made)
    if not (by_gradients and is_whole and _split_by_options(found, rows, sizes, sizes[gradients], options)):
        _split_by_copies(found, rows, sizes, reference, by_gradients=by_gradients)
    if by_gradients and is_whole:
        not_trained = rows[~np.isin(sizes[rows], sizes[gradients])]
        return SizeSplit(len(allocations), found.marks, not_trained)
    return found


def _of_one_model(
    allocations: AllocationTable, gradients: Int64Column, run: NDArray[np.integer[Any]]
) -> Int64Column:
    """Of every size the last ones, as many as one backward makes or as are live at once, whichever is more.

    An iteration with several backwards that frees its gradients between them, as one that looks for flat
    minima, has a gradient of every parameter several times.
    """
    if len(np.unique(run[gradients])) < 2:
        return gradients
    kept = [gradients[:0]]
    for _, rows in _by_size(gradients, allocations.requested_bytes):
        _, n_of_run = np.unique(run[rows], return_counts=True)
        alloc, end = np.sort(allocations.alloc_event[rows]), allocations.end_event[rows]
        end = np.sort(np.where(end < 0, np.iinfo(np.int64).max, end))
        n_live = np.arange(1, len(rows) + 1) - np.searchsorted(end, alloc, side="right")
        most = max(int(n_of_run.max()), int(n_live.max()))
        kept.append(rows[np.argsort(allocations.alloc_event[rows], kind="stable")][-most:])
    return np.sort(np.concatenate(kept))


def _live_at_once(allocations: AllocationTable, known: Preexisting, rows: Int64Column) -> Int64Column:
    """The sizes of the gradients of all models trained in turn: the most that are live at the same time.

    Nothing where these may not be all. Where models free theirs at different times, some sizes are made more
    often than others for each that is live. And where a parameter has several optimizers, or models of equal
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
    n_live = np.cumsum(change[order])
    begins = np.flatnonzero(np.diff(size[order], prepend=-1))
    before = np.concatenate(([0], n_live[begins[1:] - 1]))
    most = np.maximum.reduceat(n_live, begins) - before
    times_made = np.bincount(which) / most
    of_rows = np.sort(sizes[rows])
    n_blocks = np.searchsorted(of_rows, found, side="right") - np.searchsorted(of_rows, found)
    is_explained = n_blocks <= most * (2 + known.n_states)
    if np.any(times_made != times_made[0]) or not is_explained.all():
        return gradients[:0]
    return np.repeat(found, most)


def _one_copy_of_states(allocations: AllocationTable, known: Preexisting) -> Int64Column:
    """One state per parameter: Adam makes its two moments on two lines, and some make them anew each step.

    So the fullest stack of the fullest iteration has one.
    """
    rows = np.flatnonzero(known.states & (allocations.stack_id >= 0))
    stack = allocations.stack_id.astype(np.int64)
    origin = known.iteration.astype(np.int64) * (int(stack.max(initial=0)) + 1) + stack
    return of_fullest(rows, origin, allocations.requested_bytes)


def _in_half(gradients: Int64Column) -> Int64Column:
    """The gradients without those twice as large, where every one has been made again in full precision."""
    left, half = _counted(gradients), Counter[int]()
    for size in sorted(left):
        n = min(left[size], left.get(2 * size, 0))
        if n:
            half[size] += n
            left[size] -= n
            left[2 * size] -= n
    total = int(gradients.sum())
    if sum(size * n for size, n in left.items()) > (1 - _NEEDED_SHARE) * total:
        return gradients
    return np.array(list(half.elements()), np.int64)


def _split_by_precision(
    found: SizeSplit, rows: Int64Column, sizes: Int64Column, gradients: Int64Column, known: Preexisting
) -> bool:
    """Weights in half precision whose optimizer keeps its own in full: every size has copies twice as large.

    What an optimizer of torch steps on are weights as well: its states have their type, and are no more.
    Accepted if one number of copies explains nearly all bytes; returns whether it does.
    """
    n_gradients, groups = _counted(gradients), _by_size(rows, sizes)
    total = sum(size * len(members) for size, members in groups)
    for n_copies in _FULL_COPIES:
        split = {
            size: (n_gradients.get(size, 0), n_copies * n_gradients.get(size // 2, 0) * (size % 2 == 0))
            for size, _ in groups
        }
        fitting = [(size, members) for size, members in groups if sum(split[size]) == len(members)]
        if sum(size * len(members) for size, members in fitting) < _NEEDED_SHARE * total:
            continue
        least, most = known.states_range or (n_copies, n_copies)
        n_weights = n_copies - min(most, n_copies - 1) if least < n_copies else 0
        for size, members in fitting:
            n_half, n_full = split[size]
            n_states = n_full - n_weights * (n_full // n_copies)
            found.mark(AS_GRADIENTS, _W, members[:n_half])
            found.mark(FULL_PRECISION, _W, members[n_half : len(members) - n_states])
            found.mark(FULL_PRECISION, _S, members[len(members) - n_states :])
        return True
    return False


def _split_by_states(
    found: SizeSplit,
    rows: Int64Column,
    sizes: Int64Column,
    *,
    trained: Int64Column,
    made: Int64Column,
    n_states: int,
) -> None:
    """Per size: as many states as the optimizer keeps for the parameters, and everything else is weights.

    Weights are at least as many as the gradients (``trained``: their sizes): more where a part of the model
    is not trained, or a copy of it is kept. But if every size is a multiple of a weight and its states, then
    all have states, and some had no gradient this time: an expert that got no token. ``made`` are the sizes
    of states made in the trace.
    """
    n_gradients, n_made, groups = _counted(trained), _counted(made), _by_size(rows, sizes)
    each = {size: len(members) // (1 + n_states) for size, members in groups}
    all_have_states = (
        not n_made
        and all(len(members) % (1 + n_states) == 0 for _, members in groups)
        and any(n_gradients.get(size, 0) == n for size, n in each.items())
    )
    for size, members in groups:
        n_trained = n_gradients.get(size, 0)
        n_before = max(n_states * n_trained - n_made.get(size, 0), 0)
        n_weights = each[size] if all_have_states else len(members) - n_before
        if n_trained and n_weights >= n_trained:
            # Models are built before the first step, and so their weights come first.
            found.mark(BESIDE_STATES, _W, members[:n_weights])
            found.mark(STATES, _S, members[n_weights:])


@dataclass(frozen=True, slots=True)
class _Options:
    """What may be among the copies: so many states of one optimizer (range, if known), a frozen model."""

    states: tuple[int, int] | None
    has_frozen_copy: bool
    is_one_optimizer: bool


def _options_left(known: Preexisting, gradients: Int64Column, made: Int64Column) -> _Options:
    """What is not made in the trace: ``made`` are the sizes of the states that are."""
    n_made = int(made[np.isin(made, gradients)].sum() // max(int(gradients.sum()), 1))
    states = known.states_range and tuple(max(n - n_made, 0) for n in known.states_range)
    is_one = not known.has_several_steps and known.n_states is None
    return _Options((states[0], states[1]) if states else None, known.has_frozen_copy, is_one)


def _split_by_options(
    found: SizeSplit, rows: Int64Column, sizes: Int64Column, gradients: Int64Column, options: _Options
) -> bool:
    """Where the optimizer's states depend on its arguments: what must be weights, and what must be states.

    Returns whether anything is known.
    """
    if not options.is_one_optimizer:
        return False
    n_gradients = _counted(gradients)
    groups = [(size, members) for size, members in _by_size(rows, sizes) if size in n_gradients]
    groups = [(size, members) for size, members in groups if len(members) >= n_gradients[size]]
    n_copies = [len(members) / n_gradients[size] for size, members in groups]
    large = [n for n, (size, _) in zip(n_copies, groups, strict=True) if size >= _SMALL_BYTES]
    if not large:
        return False
    total, usual = sum(size * len(members) for size, members in groups), min(large)
    fitting = sum(size * len(m) for n, (size, m) in zip(n_copies, groups, strict=True) if n == usual)
    if fitting >= _NEEDED_SHARE * total:
        parts = _weights_and_states(int(usual), options)
        if parts is None:
            return False
        for n, (size, members) in zip(n_copies, groups, strict=True):
            if n == usual:
                found.mark(BESIDE_STATES, _W, members[: parts[0] * n_gradients[size]])
                found.mark(STATES, _S, members[len(members) - parts[1] * n_gradients[size] :])
        return True
    # All parameters have their states: no more than the size has that occurs least often.
    least, most = options.states or (1, 0)
    n_states = int(usual) - 1
    if not least <= n_states <= most:
        return False
    for size, members in groups:
        n_weights = len(members) - n_states * n_gradients[size]
        found.mark(BESIDE_STATES, _W, members[:n_weights])
        found.mark(STATES, _S, members[n_weights:])
    return True


def _weights_and_states(n_copies: int, options: _Options) -> tuple[int, int] | None:
    """How many of so many copies must be weights, and how many states; None where all may be states.

    A model that ran frozen is at most one further copy of the weights.
    """
    least, most = options.states or (0, n_copies)
    certain = max(n_copies - most, 1), min(least, n_copies - 1)
    beside_second = n_copies - 2
    if certain[0] >= 2 and beside_second <= most:
        return 2, beside_second
    if options.has_frozen_copy and 1 <= least <= beside_second:
        return 2, beside_second
    if options.has_frozen_copy or certain[0] >= 2:
        return certain
    return (1, beside_second) if beside_second >= 2 and least else None


def _split_by_copies(
    found: SizeSplit, rows: Int64Column, sizes: Int64Column, reference: Int64Column, *, by_gradients: bool
) -> None:
    """Per size: as many weights as the reference has; whole further copies are the other category.

    Up to two further copies can be optimizer state, one can be gradients.
    """
    of_weight, of_copies, category, most = (
        (AS_GRADIENTS, COPIES_BESIDE_GRADIENTS, _S, 2)
        if by_gradients
        else (AS_STATES, COPIES_BESIDE_STATES, _G, 1)
    )
    n_expected = _counted(reference)
    for size, members in _by_size(rows, sizes):
        expected = n_expected.get(size, 0)
        if not expected:
            continue
        found.mark(of_weight, _W, members[:expected])
        copies, rest = divmod(len(members) - expected, expected)
        if not rest and copies <= most:
            found.mark(of_copies, category, members[expected:])


def _split_by_structure(
    found: SizeSplit, rows: Int64Column, sizes: Int64Column, summed: Int64Column, n_states: int | None
) -> bool:
    """Believe n copies of everything only if nearly all bytes agree, and a copy is not copies itself.

    Four are a weight, its gradient and Adam's two states. Of three, one is a weight and one a state; the
    third is Adam's other state, or a gradient beside SGD's momentum: the optimizer decides that, if it is
    known, or backward, if it is seen to add to gradients that stay: it makes temporaries of their sizes
    (``summed``). Else it stays open. Returns whether a structure is accepted.
    """
    groups = [(size, members) for size, members in _by_size(rows, sizes) if size >= _SMALL_BYTES]
    total = sum(size * len(members) for size, members in groups)
    have_gradients = 2 * sum(size * len(m) for size, m in groups if size in summed) > total
    usual = _COPIES_WITH_GRADIENTS if have_gradients else _COPIES
    for n_copies, parts in _COPIES_BY_STATES.get(n_states, usual):
        fitting = [(size, members) for size, members in groups if len(members) % n_copies == 0]
        if (
            not _occur_once_in_copies(groups, fitting, n_copies)
            or sum(size * len(m) for size, m in fitting) < _NEEDED_SHARE * total
        ):
            continue
        for _, members in fitting:
            _mark_parts(found, members, n_copies, parts)
        return True
    return False


def _occur_once_in_copies(
    groups: list[tuple[int, Int64Column]], fitting: list[tuple[int, Int64Column]], n_copies: int
) -> bool:
    """Whether so many copies, and not fewer of something that itself has every size several times.

    A size with one block in each copy shows it. So do several sizes whose numbers in a copy have no common
    divisor, as where embedding and head are equal: what has its own sizes k times has k in all of them.
    """
    times = [len(members) // n_copies for _, members in fitting]
    if 1 in times:
        return True
    n_fitting, n_blocks = (sum(len(members) for _, members in found) for found in (fitting, groups))
    return len(times) >= _LEAST_SIZES and gcd(*times) == 1 and n_fitting >= _NEEDED_SHARE * n_blocks


def _mark_parts(found: SizeSplit, members: Int64Column, n_copies: int, parts: dict[Category, int]) -> None:
    """Give the rows of one size their categories, as many copies of each as the parts have."""
    each, first = len(members) // n_copies, 0
    for category, n_parts in parts.items():
        found.mark(_REASON_OF_COPIES[n_copies], category, members[each * first : each * (first + n_parts)])
        first += n_parts


def _counted(sizes: Int64Column) -> dict[int, int]:
    """How often every size occurs."""
    return dict(zip(*(part.tolist() for part in np.unique(sizes, return_counts=True)), strict=True))


def _by_size(rows: Int64Column, sizes: Int64Column) -> list[tuple[int, Int64Column]]:
    """The rows grouped by size, each group in order."""
    order = rows[np.argsort(sizes[rows], kind="stable")]
    starts = np.flatnonzero(np.concatenate(([True], np.diff(sizes[order]) != 0)))
    return [(int(sizes[group[0]]), group) for group in np.split(order, starts[1:])]


def _by_split(name: str, reason: Reason, category: Category) -> Rule:
    """A rule for what the split has found for a reason."""

    def where(features: Features, decided: Decided) -> BoolColumn:
        return decided.shared(_split, features).of(reason, category)

    return Rule(name, reason, category, Evidence.SIZES, where)


@rule(NOT_TRAINED, Category.WEIGHT, Evidence.SIZES)
def not_trained(features: Features, decided: Decided) -> BoolColumn:
    """What stays and has the size of no gradient, although all gradients were seen, is not trained.

    Layers repeat, and so do several sizes of frozen weights. Data that stays is a few large blocks.
    """
    rows = decided.shared(_split, features).not_trained
    rows = rows[decided.is_open[rows]]
    found, counts = np.unique(features.sizes[rows], return_counts=True)
    repeats = (counts > 1) & (found >= _SMALL_BYTES)
    n_bytes = found * counts
    if np.count_nonzero(repeats) < _LEAST_SIZES or 2 * n_bytes[repeats].sum() < n_bytes.sum():
        rows = rows[:0]
    return features.mask(rows)


BY_COPIES: tuple[PipelineRule, ...] = (
    *(
        _by_split(f"{n_copies}_copies_{category.label}", reason, category)
        for n_copies, reason in _REASON_OF_COPIES.items()
        for category in (_W, _G, _S)
    ),
    _by_split("weights_in_full_precision", FULL_PRECISION, _W),
    _by_split("states_in_full_precision", FULL_PRECISION, _S),
    _by_split("weights_beside_states", BESIDE_STATES, _W),
    _by_split("states_of_optimizer", STATES, _S),
    _by_split("as_many_as_gradients", AS_GRADIENTS, _W),
    _by_split("copies_beside_gradients", COPIES_BESIDE_GRADIENTS, _S),
    not_trained,
    _by_split("as_many_as_states", AS_STATES, _W),
    _by_split("copies_beside_states", COPIES_BESIDE_STATES, _G),
)
