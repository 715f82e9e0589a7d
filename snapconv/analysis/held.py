"""What the program itself makes and holds, outside of modules and of torch's optimizers.

Its batches, results that it keeps, weights that are no module's, states of an optimizer of its own: told by
who made them, when, how often and how large. Asked last, when gradients and weights are known.
"""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category, Evidence
from snapconv.analysis.decisions import Decisions
from snapconv.analysis.facts import Facts, first_before
from snapconv.analysis.phases import Phase
from snapconv.analysis.rules import Role
from snapconv.analysis.stack_roles import innermost_python, stacks_by_frame

BoolColumn = NDArray[np.bool_]
Int64Column = NDArray[np.int64]

# A parameter may have no gradient, or share its memory.
_NEARLY = 0.9
# Fewer sizes may agree by chance.
_LEAST_SIZES = 2


def decide_held(decisions: Decisions, facts: Facts) -> None:
    """Decide what is still open and was made, or is let go of, by the program's own code."""
    _for_every_parameter(decisions, facts)
    _outside_torch(decisions, facts)
    _forward_of_functions(decisions, facts)
    old, heirs = _heirs(facts, ~facts.is_traced & (decisions.category == Category.UNKNOWN))
    _kept(decisions, facts, heirs)
    for which in np.unique(decisions.category[heirs]).tolist():
        if which != Category.UNKNOWN:
            replaced = np.zeros(len(facts.alloc), np.bool_)
            replaced[old[decisions.category[heirs] == which]] = True
            decisions.decide(replaced, Category(which), Evidence.FREE_SITE, "replaced-on-the-same-line")
    _let_go_alike(decisions, facts)
    _let_go_by_program(decisions, facts)


def _for_every_parameter(decisions: Decisions, facts: Facts) -> None:
    """What a line of the program makes for every parameter that has a gradient, and keeps.

    Zeros are an optimizer's moments, and copies that are there before the first backward are the weights of a
    second model. Zeros twice as large are moments in full precision, where the model is in half; beside them,
    copies twice as large are the weights that the optimizer works on. Alone, they may as well be an average.
    """
    sizes, stack = facts.allocations.requested_bytes, facts.allocations.stack_id
    kept = (facts.outside | facts.old_outside) & facts.is_live_at_dump
    rows = np.flatnonzero(kept & (decisions.category == Category.UNKNOWN) & (stack >= 0))
    is_gradient = decisions.category == Category.GRADIENT
    wanted = Counter(sizes[_fullest(is_gradient, sizes, facts.iteration)].tolist())
    twice = Counter({2 * size: n for size, n in wanted.items()})
    as_large, in_full = np.zeros(len(sizes), np.bool_), np.zeros(len(sizes), np.bool_)
    n_in_full = 0
    for of_line in _groups(rows, stack):
        as_large[of_line] = _is_nearly(sizes[of_line], wanted)
        in_full[of_line] = _is_nearly(sizes[of_line], twice)
        n_in_full += int(in_full[of_line[0]])
    reason = "made-for-every-parameter"
    is_zeros = facts.has(Role.ZEROS)
    is_copy = (facts.has(Role.CLONE) | facts.has(Role.COPY)) & (facts.alloc < _first_backward(facts))
    # Without C++ frames, two lines may be the moments as well.
    has_moments = n_in_full > 1 and (bool(np.any(in_full & is_zeros)) or not facts.roles.has_cpp)
    decisions.decide(as_large & is_zeros, Category.OPTIMIZER_STATE, Evidence.SIZES, reason)
    decisions.decide(as_large & is_copy, Category.WEIGHT, Evidence.SIZES, reason)
    decisions.decide(
        in_full & (is_zeros | np.bool_(has_moments)), Category.OPTIMIZER_STATE, Evidence.SIZES, reason
    )


def _groups(rows: Int64Column, key: NDArray[Any]) -> list[Int64Column]:
    """The rows in groups of one key."""
    order = rows[np.argsort(key[rows], kind="stable")]
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1) if len(order) else []


def _first_backward(facts: Facts) -> int:
    """The first event of a backward; the number of events where there is none."""
    return int(facts.phases.next_after(Phase.BACKWARD, np.array([-1]))[0])


def _is_nearly(sizes: Int64Column, wanted: Counter[int]) -> bool:
    """Whether nearly all bytes are of the sizes that are wanted, as often."""
    made, total = int(sizes.sum()), sum(size * n for size, n in wanted.items())
    if len(wanted) < _LEAST_SIZES or not _NEARLY * total <= made <= total / _NEARLY:
        return False
    both = Counter(sizes.tolist()) & wanted
    return bool(sum(size * n for size, n in both.items()) >= _NEARLY * max(made, total))


def _outside_torch(decisions: Decisions, facts: Facts) -> None:
    """Weights that are no module's, and states of an optimizer that is none of torch's."""
    sizes = facts.allocations.requested_bytes
    category = decisions.category
    first_backward = _first_backward(facts)
    may_be = facts.outside | facts.old_outside
    kept = may_be & facts.is_live_at_dump & (category == Category.UNKNOWN)
    before = kept & (facts.alloc < first_backward) & (first_backward < facts.n_events)
    gradients = sizes[_fullest(category == Category.GRADIENT, sizes, facts.iteration)]
    missing = _missing(gradients, sizes[category == Category.WEIGHT])
    found, counts = np.unique(sizes[before], return_counts=True)
    fits = [
        size for size, n in zip(found.tolist(), counts.tolist(), strict=True) if n <= missing.get(size, 0)
    ]
    decisions.decide(
        before & np.isin(sizes, fits), Category.WEIGHT, Evidence.SIZES, "kept-and-has-a-gradient"
    )
    weights = np.unique(sizes[category == Category.WEIGHT])
    after = kept & (facts.alloc > first_backward) & np.isin(sizes, np.concatenate((weights, gradients)))
    after &= made_in_bulk(decisions, facts)
    # One of torch's has its own states: an average is as large, and so may a batch be.
    after &= np.bool_(not np.any(facts.phases.certain == Phase.OPTIMIZER))
    after &= ~facts.mid_forward & (facts.has(Role.FACTORY) | np.bool_(not facts.roles.has_cpp))
    decisions.decide(after, Category.OPTIMIZER_STATE, Evidence.LIFETIME, "made-after-backward-and-kept")


def _forward_of_functions(decisions: Decisions, facts: Facts) -> None:
    """A forward without any module begins with the first result that its backward lets go of."""
    decide, category = decisions.decide, decisions.category
    in_functions = facts.before_backward_without_modules
    saved = np.flatnonzero(in_functions & facts.is_freed_by_engine & (category == Category.ACTIVATION))
    begin = first_before(facts.next_backward, facts.alloc, saved, facts.n_events)
    is_kept, made_by_forward = facts.end >= facts.next_backward, in_functions & (facts.alloc >= begin)
    decide(made_by_forward & is_kept, Category.ACTIVATION, Evidence.LIFETIME, "kept-into-backward")
    decide(
        made_by_forward & facts.is_freed & ~is_kept,
        Category.TEMPORARY, Evidence.LIFETIME, "freed-before-backward",
    )  # fmt: skip
    if not facts.made_by_module.any():
        given = in_functions & is_kept & (begin < facts.n_events) & ~made_in_bulk(decisions, facts)
        decide(given, Category.INPUT, Evidence.LIFETIME, "made-outside-modules-used-in-forward")


def _heirs(facts: Facts, where: BoolColumn) -> tuple[Int64Column, Int64Column]:
    """The marked rows that the program lets go of on a line that had made another of the size, and those.

    A line that gives a variable a new value makes that first, and then drops the one before.
    """
    table, stacks = facts.allocations, facts.roles.stacks
    old = np.flatnonzero(where & facts.is_freed & ~facts.is_freed_by_engine & (table.free_stack_id >= 0))
    if not facts.phases.free_sites_known or not len(old):
        return old[:0], old[:0]
    sizes, width = table.requested_bytes, facts.n_events + 1
    new = np.flatnonzero(facts.is_traced & ~facts.is_freed_by_engine & np.isin(sizes, np.unique(sizes[old])))
    new = new[np.argsort(table.stack_id[new], kind="stable")]
    line, stacks_with = innermost_python(stacks)[table.free_stack_id[old]], stacks_by_frame(stacks)
    heir = np.full(len(old), -1, np.int64)
    for here in _groups(np.flatnonzero(line >= 0), line):
        made = _of_stacks(new, table.stack_id[new], stacks_with(int(line[here[0]])))
        keys = sizes[made] * width + facts.alloc[made]
        order = np.argsort(keys)
        gone = old[here]
        last = np.searchsorted(keys[order], sizes[gone] * width + facts.end[gone]) - 1
        youngest = made[order[last]] if len(made) else np.full(len(gone), -1)
        fits = (last >= 0) & (sizes[youngest] == sizes[gone]) & (facts.end[youngest] > facts.end[gone])
        heir[here[fits]] = youngest[fits]
    return old[heir >= 0], heir[heir >= 0]


def _of_stacks(rows: Int64Column, stack: NDArray[Any], wanted: Int64Column) -> Int64Column:
    """The rows with one of the wanted stacks, where ``stack`` is that of each row, in order."""
    first, after = (np.searchsorted(stack, wanted, side) for side in ("left", "right"))
    n_of = after - first
    begins = np.repeat(first - np.concatenate(([0], np.cumsum(n_of)[:-1])), n_of) if len(n_of) else n_of
    return np.asarray(rows[np.arange(int(n_of.sum())) + begins])


def _kept(decisions: Decisions, facts: Facts, heirs: Int64Column) -> None:
    """What the program still holds at the dump: its batch, and results of a forward that the trace lost."""
    decisions.decide(
        facts.old_in_forward & facts.is_live_at_dump & (facts.next_backward >= facts.n_events),
        Category.ACTIVATION, Evidence.LIFETIME, "made-in-forward-and-live-at-dump",
    )  # fmt: skip
    if not (facts.in_forward.any() or np.any(facts.next_backward < facts.n_events)):
        return
    stack = facts.allocations.stack_id
    is_live = facts.is_live_at_dump & ~made_in_bulk(decisions, facts)
    slug = "made-outside-modules-used-in-forward"
    may_be = (facts.may_be_input | facts.old_outside) & is_live
    decisions.decide(may_be & facts.made_from_nothing, Category.INPUT, Evidence.FRAMES, slug)
    # Of what is computed, and of everything where no C++ frame tells: what was there at first, what takes the
    # place of an earlier one, and what is of the last iteration.
    is_heir = np.isin(np.arange(len(stack)), heirs)
    is_renewed = np.isin(stack, stack[facts.outside & facts.is_freed]) | is_heir
    forward = facts.in_forward
    is_last = is_renewed | (facts.iteration >= facts.iteration[forward].max(initial=-1))
    is_last |= facts.alloc < facts.alloc[forward].min(initial=facts.n_events)
    # Cut in the middle of a backward, what is held of what was computed may as well be of its forward.
    certain = facts.phases.certain[facts.phases.certain > 0]
    begins_in_backward = len(certain) > 0 and certain[0] == Phase.BACKWARD and facts.roles.has_cpp
    is_fed = facts.feeds_module | (~facts.is_traced & np.bool_(not begins_in_backward))
    decisions.decide(may_be & is_last & is_fed, Category.INPUT, Evidence.LIFETIME, slug)
    # It takes the place of what was there in forward, and will be there in the next.
    decisions.decide(is_heir & facts.outside & is_live, Category.INPUT, Evidence.LIFETIME, slug)
    decisions.decide(
        facts.old_in_forward & facts.is_live_at_dump & (facts.next_backward < facts.n_events),
        Category.ACTIVATION, Evidence.LIFETIME, "kept-into-backward",
    )  # fmt: skip


def _let_go_alike(decisions: Decisions, facts: Facts) -> None:
    """What is older than the trace is of the kind that its line lets go of, if that is only ever one.

    A line that runs in every iteration, `cache = longer` or the end of a function. What it makes and drops
    itself did not live long. What a compiled backward lets go of was kept for it, unless other iterations
    tell.
    """
    if not facts.phases.free_sites_known:
        return
    site, category = facts.allocations.free_stack_id, decisions.category
    compiled = facts.freed_by(Role.COMPILED) & facts.is_freed_by_engine
    by_program = facts.is_freed & (~facts.is_freed_by_engine | compiled) & (site >= 0)
    old = by_program & ~facts.is_traced & (category == Category.UNKNOWN)
    seen = np.flatnonzero(by_program & facts.is_traced & np.isin(site, site[old]))
    lived = facts.end - facts.alloc
    for which in np.unique(category[seen]).tolist():
        alike = seen[category[seen] == which]
        only = np.setdiff1d(site[alike], site[seen[category[seen] != which]])
        where = old & np.isin(site, only)
        if which == Category.TEMPORARY:
            where &= facts.end <= lived[alike].max()
        if which != Category.UNKNOWN:
            decisions.decide(where, Category(which), Evidence.FREE_SITE, "freed-where-its-like-are")
    decisions.decide(
        compiled & ~facts.is_traced & facts.is_freed_after_own,
        Category.ACTIVATION, Evidence.FREE_SITE, "freed-by-backward",
    )  # fmt: skip


def _let_go_by_program(decisions: Decisions, facts: Facts) -> None:
    """What is older than the trace and replaced in it is what has its size and takes its place.

    That is the youngest that the program holds when it lets go of the old one, or else makes next.
    """
    sizes, category = facts.allocations.requested_bytes, decisions.category
    by_program = ~facts.is_freed_by_engine & (facts.end_phase != Phase.OPTIMIZER)
    trains = np.bool_(np.any(category == Category.GRADIENT))
    is_new = (category == Category.INPUT) | ((category == Category.ACTIVATION) & trains)
    new = np.flatnonzero(facts.is_traced & by_program & is_new)
    old = np.flatnonzero(~facts.is_traced & facts.is_freed & by_program & (category == Category.UNKNOWN))
    if not len(new):
        return
    width = facts.n_events + 1
    keys = sizes[new] * width + facts.alloc[new]
    order = np.argsort(keys)
    place = np.searchsorted(keys[order], sizes[old] * width + facts.end[old]) - 1
    for candidate in (place, place + 1):
        row = new[order[np.clip(candidate, 0, len(new) - 1)]]
        fits = sizes[row] == sizes[old]
        for which in (Category.INPUT, Category.ACTIVATION):
            where = np.zeros(len(sizes), np.bool_)
            where[old[fits & (category[row] == which)]] = True
            decisions.decide(where, which, Evidence.SIZES, "replaced-by-one-of-its-size")


def _missing(gradients: Int64Column, weights: Int64Column) -> dict[int, int]:
    """How many more gradients than weights there are of every size."""
    found, counts = np.unique(gradients, return_counts=True)
    return {
        size: n - int(np.count_nonzero(weights == size))
        for size, n in zip(found.tolist(), counts.tolist(), strict=True)
    }


def _fullest(where: BoolColumn, sizes: Int64Column, iteration: Int64Column) -> Int64Column:
    """The marked rows of the iteration that has most bytes of them."""
    rows = np.flatnonzero(where)
    if not len(rows):
        return rows
    found, inverse = np.unique(iteration[rows], return_inverse=True)
    totals = np.bincount(inverse.reshape(-1), weights=sizes[rows])
    return np.asarray(rows[iteration[rows] == found[totals.argmax()]])


def made_in_bulk(decisions: Decisions, facts: Facts) -> BoolColumn:
    """Rows as large as weights, of a line that makes several in an iteration: noise, moments and copies."""
    stack = facts.allocations.stack_id
    rows = np.flatnonzero((facts.outside | facts.old_outside) & _like_weights(decisions, facts))
    where = np.stack((stack[rows].astype(np.int64), facts.iteration[rows].astype(np.int64)))
    _, inverse, counts = np.unique(where, axis=1, return_inverse=True, return_counts=True)
    bulk = np.zeros(len(stack), np.bool_)
    bulk[rows] = counts[inverse.reshape(-1)] > 1
    return bulk


def _like_weights(decisions: Decisions, facts: Facts) -> BoolColumn:
    """Rows as large as a weight or a nameless old block, or twice as large, as in full precision.

    Noise, moments and copies are no inputs.
    """
    sizes = facts.allocations.requested_bytes
    nameless = ~facts.is_traced & facts.is_live_at_dump & facts.has_no_frames
    model = (decisions.category == Category.WEIGHT) | nameless
    of_model = np.unique(sizes[model])
    return np.isin(sizes, np.concatenate((of_model, 2 * of_model)))
