"""What the program itself makes and holds, outside of modules and of torch's optimizers.

Its batches, results that it keeps, weights that are no module's, states of an optimizer of its own: told by
who made them, when, how often and how large. Asked last, when gradients and weights are known.
"""

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.categories import Category, Evidence
from snapconv.analysis.decisions import Decisions
from snapconv.analysis.facts import Facts, next_of
from snapconv.analysis.phases import Phase
from snapconv.analysis.rules import Role

BoolColumn = NDArray[np.bool_]
Int64Column = NDArray[np.int64]


def decide_held(decisions: Decisions, facts: Facts) -> None:
    """Decide what is still open and was made, or is let go of, by the program's own code."""
    _outside_torch(decisions, facts)
    _kept(decisions, facts)
    _let_go_by_program(decisions, facts)


def _outside_torch(decisions: Decisions, facts: Facts) -> None:
    """Weights that are no module's, and states of an optimizer that is none of torch's."""
    sizes = facts.allocations.requested_bytes
    category = decisions.category
    first_backward = next_of(
        np.flatnonzero(facts.phases.certain == Phase.BACKWARD), np.array([-1]), facts.n_events
    )[0]
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
    after &= ~facts.mid_forward & (facts.has(Role.FACTORY) | np.bool_(not facts.roles.has_cpp))
    decisions.decide(after, Category.OPTIMIZER_STATE, Evidence.LIFETIME, "made-after-backward-and-kept")


def _kept(decisions: Decisions, facts: Facts) -> None:
    """What the program still holds at the dump: its batch, and results of a forward that the trace lost."""
    if not facts.in_forward.any():
        return
    stack = facts.allocations.stack_id
    is_live = facts.is_live_at_dump & ~made_in_bulk(decisions, facts)
    made_from_nothing = facts.has(Role.COPY) | facts.has(Role.FACTORY)
    slug = "made-outside-modules-used-in-forward"
    may_be = (facts.may_be_input | facts.old_outside) & is_live
    decisions.decide(may_be & made_from_nothing, Category.INPUT, Evidence.FRAMES, slug)
    # Of what is computed, and of everything where no C++ frame tells: what was there at first, what takes the
    # place of an earlier one, and what is of the last iteration.
    is_renewed = np.isin(stack, stack[facts.outside & facts.is_freed])
    is_last = is_renewed | (facts.iteration >= facts.iteration[facts.in_forward].max())
    is_last |= facts.alloc < facts.alloc[facts.in_forward].min()
    decisions.decide(
        may_be & is_last & (facts.feeds_module | ~facts.is_traced), Category.INPUT, Evidence.LIFETIME, slug
    )
    made_in_forward = (facts.has(Role.MODULE_CALL) | facts.has(Role.LOSS)) & ~facts.has(Role.ENGINE)
    decisions.decide(
        ~facts.is_traced & facts.is_live_at_dump & made_in_forward & (facts.next_backward < facts.n_events),
        Category.ACTIVATION, Evidence.LIFETIME, "kept-into-backward",
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
    """Rows as large as a weight or a nameless old block: noise, moments and copies are no inputs."""
    sizes = facts.allocations.requested_bytes
    nameless = ~facts.is_traced & facts.is_live_at_dump & facts.has_no_frames
    model = (decisions.category == Category.WEIGHT) | nameless
    return np.isin(sizes, sizes[model])
