"""The ways to split blocks without frames into weights, gradients and states, by how often a size occurs.

A gradient has its weight's size, Adam keeps two more copies of each, SGD with momentum one. Each way marks
rows in a SizeSplit, and only where nearly all bytes agree with it.
"""

from dataclasses import dataclass, field
from math import gcd

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.rule import Reason
from snapconv.classification.size_references import (
    NEEDED_SHARE,
    SMALL_BYTES,
    Preexisting,
    by_size,
    counted,
)
from snapconv.columns import BoolColumn, Int64Column, is_among

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
ADDED = Reason(
    "as-many-as-backward-adds-to",
    "backward adds to so many gradients of a size; beside these and the states of the optimizer are weights",
)
GRADIENT_OR_STATE = Reason(
    "gradient-or-optimizer-state",
    "a gradient or a state of the optimizer: as many of a size as both have, and nothing shows which",
)
FOURS = Reason(
    "4-copies-of-every-size",
    "every size occurs in fours: a weight, two states and a gradient, or three states",
)
THREES = Reason(
    "3-copies-of-every-size",
    "every size occurs in threes: a weight, a state, and a second state or a gradient",
)
TWOS = Reason(
    "2-copies-of-every-size",
    "every size occurs twice: a weight, and one state or a gradient that backward adds to",
)
FULL_PRECISION = Reason(
    "copies-in-full-precision",
    "every size of a gradient occurs twice as large, as often or a whole number of times as often",
)

# Even the smallest layers have tensors of three sizes: two matrices and a vector.
LEAST_SIZES = 3

# The weights themselves in full precision, and Adam's two states; or momentum's one; or they alone.
_FULL_COPIES = (3, 2, 1)

_W, _G, _S = Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE
# A gradient or a state: both are made where the first forward has left room, so that addresses do not show
# which.
_O = Category.UNKNOWN
_Copies = tuple[tuple[Category | None, ...], ...]
# What the copies of a size are; None where that is open to other rules. Weights are made first, and so have
# the lowest addresses.
_COPIES: _Copies = ((_W, _O, _O, _O), (_W, _S, None))
# Where the optimizer is known to keep so many states.
_COPIES_BY_STATES: dict[int, _Copies] = {
    3: ((_W, _S, _S, _S),),
    2: ((_W, _O, _O, _O), (_W, _S, _S)),
    1: ((_W, _O, _O), (_W, _S)),
}
# One that makes its states before the first backward.
_COPIES_BY_BUILT_STATES: dict[int, _Copies] = {1: ((_W, _S, _G), (_W, _S))}
_OF_SPARSE = (_W, _S, _S)
_COPIES_WITH_GRADIENTS: _Copies = ((_W, _O, _O, _O), (_W, _O, _O), (_W, _G))
REASON_OF_COPIES = {4: FOURS, 3: THREES, 2: TWOS}


@dataclass(frozen=True, slots=True)
class SizeSplit:
    """The result of counting sizes: the rows (bool per allocation) by reason and category.

    ``not_trained`` are the candidates without a gradient of their size, where all gradients were seen;
    ``added_to`` the sizes (bytes) of gradients that backward adds to.
    """

    n_allocations: int
    marks: dict[tuple[str, Category], BoolColumn] = field(default_factory=dict)
    not_trained: Int64Column = field(default_factory=lambda: np.zeros(0, np.int64))
    added_to: Int64Column = field(default_factory=lambda: np.zeros(0, np.int64))

    def mark(self, reason: Reason, category: Category, rows: Int64Column) -> None:
        """Add rows of a category, for a reason."""
        where = self.marks.setdefault((reason.slug, category), np.zeros(self.n_allocations, np.bool_))
        where[rows] = True

    def of(self, reason: Reason, category: Category) -> BoolColumn:
        """The rows of a category, for a reason."""
        nothing = np.zeros(self.n_allocations, np.bool_)
        return self.marks.get((reason.slug, category), nothing)


def split_by_precision(
    found: SizeSplit, rows: Int64Column, sizes: Int64Column, gradients: Int64Column, known: Preexisting
) -> bool:
    """Weights in half precision whose optimizer keeps its own in full: every size has copies twice as large.

    What an optimizer of torch steps on are weights as well: its states have their type, and are no more.
    Accepted if one number of copies explains nearly all bytes; returns whether it does.
    """
    n_gradients, groups = counted(gradients), by_size(rows, sizes)
    total = sum(size * len(members) for size, members in groups)
    for n_copies in _FULL_COPIES:
        split = {
            size: (n_gradients[size], n_copies * n_gradients[size // 2] * (size % 2 == 0))
            for size, _ in groups
        }
        fitting = [(size, members) for size, members in groups if sum(split[size]) == len(members)]
        if sum(size * len(members) for size, members in fitting) < NEEDED_SHARE * total:
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


def split_by_states(
    found: SizeSplit,
    rows: Int64Column,
    sizes: Int64Column,
    *,
    trained: Int64Column,
    made: Int64Column,
    left: Int64Column,
    n_states: int,
) -> None:
    """Per size: as many states as the optimizer keeps for the parameters, and everything else is weights.

    Weights are at least as many as the gradients (``trained``: their sizes): more where a part of the model
    is not trained, or a copy of it is kept. But if every size is a multiple of a weight and its states, then
    all have states, and some had no gradient this time: an expert that got no token. ``made`` are the sizes
    of states made in the trace, ``left`` the rows of what was freed in it and may have been weights: as many
    as there are states but no weights for.
    """
    n_gradients, n_made, groups = counted(trained), counted(made), by_size(rows, sizes)
    left_by_size = dict(by_size(left, sizes))
    each = {size: len(members) // (1 + n_states) for size, members in groups}
    all_have_states = (
        not n_made
        and all(len(members) % (1 + n_states) == 0 for _, members in groups)
        and any(n_gradients[size] == n for size, n in each.items())
    )
    for size, members in groups:
        n_trained = n_gradients[size]
        n_before = max(n_states * n_trained - n_made[size], 0)
        n_weights = each[size] if all_have_states else len(members) - n_before
        of_left = left_by_size.get(size, left[:0])
        if n_trained and n_weights >= max(n_trained - len(of_left), 0):
            found.mark(BESIDE_STATES, _W, of_left[: max(n_trained - n_weights, 0)])
            # Models are built before the first step, and so their weights come first.
            found.mark(BESIDE_STATES, _W, members[:n_weights])
            found.mark(STATES, _S, members[n_weights:])


def split_by_bounds(
    found: SizeSplit, rows: Int64Column, sizes: Int64Column, trained: dict[int, int], n_states: int
) -> Int64Column:
    """Per size: what must be weights and what must be states, where it is not known how many are trained.

    At least as many as have gradients at the same time (``trained``), as several optimizers step in turn, and
    no more than there are blocks for. Returns the rows of the sizes of which that says something: none at all
    if some have too few blocks.
    """
    groups = [(size, members) for size, members in by_size(rows, sizes) if size in trained]
    has_room = {size: len(members) >= (1 + n_states) * trained[size] for size, members in groups}
    total = sum(size * len(members) for size, members in groups)
    fitting = sum(size * len(members) for size, members in groups if has_room[size])
    if fitting < NEEDED_SHARE * total:
        return rows[:0]
    known = [rows[:0]]
    for size, members in groups:
        least, n_blocks = trained[size], len(members)
        if not has_room[size]:
            continue
        most = n_blocks // (1 + n_states)
        # Two optimizers may step on the same parameters.
        n_weights = least if n_blocks >= (1 + 2 * n_states) * least else n_blocks - n_states * most
        found.mark(BESIDE_STATES, _W, members[:n_weights])
        found.mark(STATES, _S, members[n_blocks - n_states * least :])
        known.append(members)
    return np.concatenate(known)


@dataclass(frozen=True, slots=True)
class _Options:
    """What may be among the copies: so many states of one optimizer (range, if known), a frozen model."""

    states: tuple[int, int] | None
    has_frozen_copy: bool | None
    is_one_optimizer: bool


def options_left(known: Preexisting, gradients: Int64Column, made: Int64Column) -> _Options:
    """What is not made in the trace: ``made`` are the sizes of the states that are."""
    n_made = int(made[is_among(made, gradients)].sum() // max(int(gradients.sum()), 1))
    states = known.states_range and tuple(max(n - n_made, 0) for n in known.states_range)
    is_one = not known.has_several_steps and known.n_states is None
    return _Options((states[0], states[1]) if states else None, known.has_frozen_copy, is_one)


def split_by_options(
    found: SizeSplit, rows: Int64Column, sizes: Int64Column, gradients: Int64Column, options: _Options
) -> bool:
    """Where the optimizer's states depend on its arguments: what must be weights, and what must be states.

    Returns whether anything is known.
    """
    if not options.is_one_optimizer:
        return False
    n_gradients = counted(gradients)
    known = [(size, members) for size, members in by_size(rows, sizes) if size in n_gradients]
    of_size = [(size, members, len(members) / n_gradients[size]) for size, members in known]
    groups = [(size, members, n_copies) for size, members, n_copies in of_size if n_copies >= 1]
    large = [n_copies for size, _, n_copies in groups if size >= SMALL_BYTES]
    if not large:
        return False
    total, usual = sum(size * len(members) for size, members, _ in groups), min(large)
    fitting = sum(size * len(members) for size, members, n_copies in groups if n_copies == usual)
    if fitting >= NEEDED_SHARE * total:
        parts = _weights_and_states(int(usual), options)
        if parts is None:
            return False
        for size, members, n_copies in groups:
            if n_copies == usual:
                found.mark(BESIDE_STATES, _W, members[: parts[0] * n_gradients[size]])
                found.mark(STATES, _S, members[len(members) - parts[1] * n_gradients[size] :])
        return True
    # All parameters have their states: no more than the size has that occurs least often.
    n_states = int(usual) - 1
    if options.states is None:
        return False
    least, most = options.states
    if not least <= n_states <= most:
        return False
    # Much more than the least may as well be a state less, and an average of the weights.
    n_certain = n_states - 1 if n_states >= least + 2 else n_states
    for size, members, _ in groups:
        n_weights = len(members) - n_states * n_gradients[size]
        found.mark(BESIDE_STATES, _W, members[:n_weights])
        found.mark(STATES, _S, members[len(members) - n_certain * n_gradients[size] :])
    return True


def _weights_and_states(n_copies: int, options: _Options) -> tuple[int, int] | None:
    """How many of so many copies must be weights, and how many states; None where all may be states.

    A model that ran frozen is one further copy of the weights, and there may be others.
    """
    least, most = options.states or (0, n_copies)
    certain = max(n_copies - most, 1), min(least, n_copies - 1)
    beside_second = n_copies - 2
    if certain[0] >= 2 and beside_second <= most:
        return 2, beside_second
    if options.has_frozen_copy and 1 <= least <= beside_second:
        # More than the least number of states may as well be a third model, as a kept best one.
        return 2, least
    if options.has_frozen_copy is not False or certain[0] >= 2:
        return certain
    return (1, beside_second) if beside_second >= 2 and least else None


def split_by_copies(
    found: SizeSplit,
    rows: Int64Column,
    sizes: Int64Column,
    reference: Int64Column,
    known: Preexisting,
    *,
    by_gradients: bool,
) -> None:
    """Per size: as many weights as the reference has; whole further copies are the other category.

    As many further copies can be optimizer states as the optimizer keeps at most, or two if it is not known;
    one can be gradients. They stay open where one of them may be a second model.
    """
    most_states = 2 if known.most_states is None else known.most_states
    of_weight, of_copies, category, most = (
        (AS_GRADIENTS, COPIES_BESIDE_GRADIENTS, _S, most_states)
        if by_gradients
        else (AS_STATES, COPIES_BESIDE_STATES, _G, 1)
    )
    has_second_model = by_gradients and known.has_frozen_copy is True
    n_expected = counted(reference)
    for size, members in by_size(rows, sizes):
        expected = n_expected[size]
        if not expected:
            continue
        found.mark(of_weight, _W, members[:expected])
        copies, rest = divmod(len(members) - expected, expected)
        if not rest and copies <= most and not has_second_model:
            found.mark(of_copies, category, members[expected:])


def split_by_added(
    found: SizeSplit, rows: Int64Column, sizes: Int64Column, added: Int64Column, known: Preexisting
) -> bool:
    """Per size: as many gradients as backward adds to (``added``: their sizes), and their optimizer's states.

    Believed only if nearly all bytes of these sizes have room for them and for as many weights. What is more,
    as a part of the model that is not trained, is weights. Returns whether it is.
    """
    n_added = counted(added)
    groups = [(size, members) for size, members in by_size(rows, sizes) if size in n_added]
    n_states = _states_beside(groups, n_added, known)
    if n_states is None:
        return False
    for size, members in groups:
        n_made = n_added[size]
        n_weights = len(members) - (1 + n_states) * n_made
        if n_weights < n_made:
            continue
        found.mark(ADDED, _W, members[:n_weights])
        rest = members[n_weights:]
        if n_states and not known.states_are_built:
            found.mark(GRADIENT_OR_STATE, _O, rest)
        else:
            found.mark(ADDED, _S, rest[: n_states * n_made])
            found.mark(ADDED, _G, rest[n_states * n_made :])
    return True


def _states_beside(
    groups: list[tuple[int, Int64Column]], n_added: dict[int, int], known: Preexisting
) -> int | None:
    """How many states the optimizer keeps for what backward adds to; None where the blocks do not show it.

    Where that depends on its arguments: what nearly all sizes have beside a weight and a gradient.
    """
    times = [(size, len(members), len(members) // n_added[size]) for size, members in groups]
    usual = min((n_copies for size, _, n_copies in times if size >= SMALL_BYTES), default=0)
    n_states = known.n_states
    if n_states is None and known.states_range is not None:
        least, most = known.states_range
        n_states = usual - 2 if least <= usual - 2 <= most else None
        times = [(size, n, n_copies if n_copies == usual else 0) for size, n, n_copies in times]
    if n_states is None:
        return None
    total = sum(size * n for size, n, _ in times)
    fitting = sum(size * n for size, n, n_copies in times if n_copies >= 2 + n_states)
    return n_states if total and fitting >= NEEDED_SHARE * total else None


def split_by_structure(
    found: SizeSplit, rows: Int64Column, sizes: Int64Column, summed: Int64Column, known: Preexisting
) -> bool:
    """Believe n copies of everything only if nearly all bytes agree, and a copy is not copies itself.

    Four are a weight, its gradient and Adam's two states. Of three, one is a weight and one a state; the
    third is Adam's other state, or a gradient beside SGD's momentum: the optimizer decides that, if it is
    known, or backward, if it is seen to add to gradients that stay: it makes temporaries of their sizes
    (``summed``). Else it stays open. Returns whether a structure is accepted.
    """
    groups = [(size, members) for size, members in by_size(rows, sizes) if size >= SMALL_BYTES]
    total = sum(size * len(members) for size, members in groups)
    of_summed = set(summed.tolist())  # a column would be searched from its beginning, for every size
    have_gradients = 2 * sum(size * len(m) for size, m in groups if size in of_summed) > total
    usual = _COPIES_WITH_GRADIENTS if have_gradients else _COPIES
    by_states = _COPIES_BY_BUILT_STATES if known.states_are_built else _COPIES_BY_STATES
    n_states = None if known.has_several_steps else known.n_states
    # With more than two states, copies are no structure: several other sums are as likely.
    for parts in by_states.get(n_states, ()) if n_states else usual:
        fitting = [(size, members) for size, members in groups if len(members) % len(parts) == 0]
        if (
            not _occur_once_in_copies(groups, fitting, len(parts))
            or sum(size * len(m) for size, m in fitting) < NEEDED_SHARE * total
        ):
            continue
        for _, members in fitting:
            _mark_parts(found, members, parts)
        return True
    return False


def split_of_sparse(found: SizeSplit, rows: Int64Column, sizes: Int64Column) -> None:
    """Tables with sparse gradients, which are as large as no parameter: a weight and SparseAdam's two states.

    Believed only if nearly all bytes (``rows``: of the sizes of no gradient) are such threes.
    """
    groups = [(size, members) for size, members in by_size(rows, sizes) if size >= SMALL_BYTES]
    total = sum(size * len(members) for size, members in groups)
    fitting = [(size, members) for size, members in groups if len(members) % len(_OF_SPARSE) == 0]
    if sum(size * len(members) for size, members in fitting) < NEEDED_SHARE * total:
        return
    if _occur_once_in_copies(groups, fitting, len(_OF_SPARSE)):
        for _, members in fitting:
            _mark_parts(found, members, _OF_SPARSE)


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
    return len(times) >= LEAST_SIZES and gcd(*times) == 1 and n_fitting >= NEEDED_SHARE * n_blocks


def _mark_parts(found: SizeSplit, members: Int64Column, parts: tuple[Category | None, ...]) -> None:
    """Give the rows of one size their categories, as many copies of each as the parts have."""
    for category, copy in zip(parts, np.split(members, len(parts)), strict=True):
        if category is not None:
            found.mark(GRADIENT_OR_STATE if category == _O else REASON_OF_COPIES[len(parts)], category, copy)
