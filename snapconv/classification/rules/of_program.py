"""What the program itself makes and keeps, outside of modules and of torch's optimizers.

Its batches, results that it keeps, weights that are no module's, states of an optimizer of its own: by who
made them, when, how often and how large. These rules come last, when gradients and weights are known.
"""

from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.built_layers import built_in_turn
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, first_before, last_before, next_of, of_fullest
from snapconv.classification.rule import Decided, PipelineRule, Reason, Rule, rule
from snapconv.classification.rules.by_free import FREED_BY_LINE, USED_IN_FORWARD, made_in_bulk
from snapconv.classification.rules.in_forward import (
    FREED_BEFORE,
    FREED_BY_BACKWARD,
    KEPT_INTO_BACKWARD,
    LIVE_AT_DUMP,
    is_freed_after_own,
)
from snapconv.columns import BoolColumn, EventColumn, Int64Column, distinct, grouped, is_among
from snapconv.lazy_dataclass import dataclass
from snapconv.phases.trace_phases import Phase
from snapconv.stacks.stack_roles import innermost_python, stacks_by_frame
from snapconv.torch_knowledge.frame_roles import Role

FOR_EVERY_PARAMETER = Reason(
    "made-for-every-parameter",
    "kept, and made outside of modules by a line that makes one for every parameter: zeros, and what is "
    "in full precision beside them, an optimizer's; copies made before backward, a second model's",
)
HAS_GRADIENT = Reason(
    "kept-and-has-a-gradient",
    "made before the first backward, kept, and as large as a gradient that no module's weight has: in a "
    "program without modules, or by a line that makes several",
)
OF_LAYERS = Reason(
    "made-in-turn-where-layers-are-built",
    "kept, and made before any forward by lines of an `__init__` that take turns, one of which computes what "
    "it makes: packed weights",
)
AFTER_BACKWARD = Reason(
    "made-after-backward-and-kept",
    "made outside of modules after backward by a line that makes several as large as weights, and kept",
    uses_phases=True,
)
SAME_LINE = Reason(
    "replaced-on-the-same-line",
    "pre-existing, freed by a line that had made its replacement of the same size",
)

# A parameter may have no gradient, or share its memory.
_NEARLY = 0.9
# Fewer sizes may agree by chance.
_LEAST_SIZES = 2

# What a program replaces or frees by itself, again and again. Of other categories neither was seen, or, of
# temporary replacements, was not right: a line that makes one may keep the next.
_REPLACED = (Category.ACTIVATION, Category.INPUT, Category.OPTIMIZER_STATE)
_FREED_ALIKE = (Category.GRADIENT, Category.ACTIVATION, Category.INPUT, Category.TEMPORARY)


# --- one for every parameter


@dataclass(frozen=True, slots=True)
class _PerParameter:
    """Rows of lines that make one block for every parameter: as large as it, or twice as large.

    ``has_moments``: some of what is twice as large are moments in full precision.
    """

    as_large: BoolColumn
    in_full: BoolColumn
    has_moments: bool


def _per_parameter(features: Features, decided: Decided) -> _PerParameter:
    """Zeros are an optimizer's moments, and copies that are there before the first backward a second model's.

    Zeros twice as large are moments in full precision, where the model is in half; beside them, copies twice
    as large are the weights that the optimizer works on. Alone, they may as well be an average.
    """
    sizes, stack = features.sizes, features.allocations.stack_id
    kept = (features.outside | features.preexisting_outside) & features.is_live_at_dump
    rows = np.flatnonzero(kept & decided.is_open & features.has_stack)
    wanted = Counter(sizes[_gradients(features, decided)].tolist())
    twice = Counter({2 * size: n for size, n in wanted.items()})
    as_large, in_full = np.zeros(len(sizes), np.bool_), np.zeros(len(sizes), np.bool_)
    n_in_full = 0
    for of_line in grouped(rows, stack):
        as_large[of_line] = is_nearly(sizes[of_line], wanted)
        in_full[of_line] = is_nearly(sizes[of_line], twice)
        n_in_full += int(in_full[of_line[0]])
    # Without C++ frames, two lines may be the moments as well.
    has_zeros = bool(np.any(in_full & features.made_through(Role.ZEROS)))
    return _PerParameter(as_large, in_full, n_in_full > 1 and (has_zeros or not features.has_cpp))


@rule(FOR_EVERY_PARAMETER, Category.OPTIMIZER_STATE, Evidence.SIZES)
def zeros_for_every_parameter(features: Features, decided: Decided) -> BoolColumn:
    """Moments."""
    return decided.shared(_per_parameter, features).as_large & features.made_through(Role.ZEROS)


@rule(FOR_EVERY_PARAMETER, Category.WEIGHT, Evidence.SIZES)
def copies_for_every_parameter(features: Features, decided: Decided) -> BoolColumn:
    """A second model."""
    is_copy = features.made_through(Role.CLONE) | features.made_through(Role.COPY)
    before = is_copy & (features.alloc < features.first(Phase.BACKWARD))
    return decided.shared(_per_parameter, features).as_large & before


@rule(FOR_EVERY_PARAMETER, Category.OPTIMIZER_STATE, Evidence.SIZES)
def full_precision_for_every_parameter(features: Features, decided: Decided) -> BoolColumn:
    """Moments, and the weights that the optimizer works on, in full precision.

    One of torch's has its own moments: without C++ frames, beside its weights may be their gradients.
    """
    found = decided.shared(_per_parameter, features)
    by_hand = found.has_moments and not _are_stepped_on(features, decided, found.in_full)
    return found.in_full & (features.made_through(Role.ZEROS) | np.bool_(by_hand))


@rule(FOR_EVERY_PARAMETER, Category.WEIGHT, Evidence.SIZES)
def stepped_on_in_full_precision(features: Features, decided: Decided) -> BoolColumn:
    """Copies in full precision that one of torch's optimizers steps on: it has made states as large."""
    is_copy = features.made_through(Role.CLONE) | features.made_through(Role.COPY)
    in_full = decided.shared(_per_parameter, features).in_full & (is_copy | np.bool_(not features.has_cpp))
    before = features.alloc < features.first(Phase.BACKWARD)
    return in_full & before & np.bool_(_are_stepped_on(features, decided, in_full))


def _are_stepped_on(features: Features, decided: Decided, rows: BoolColumn) -> bool:
    """Whether one of torch's optimizers has states as large as nearly all of the rows."""
    of_states = decided.has(Category.OPTIMIZER_STATE) & ~features.outside
    as_large = is_among(features.sizes[rows], features.sizes[of_states])
    return bool(_NEARLY * rows.sum() <= as_large.sum())


def is_nearly(sizes: Int64Column, wanted: Counter[int]) -> bool:
    """Whether nearly all bytes are of the sizes that are wanted, as often."""
    made, total = int(sizes.sum()), sum(size * n for size, n in wanted.items())
    if len(wanted) < _LEAST_SIZES or not _NEARLY * total <= made <= total / _NEARLY:
        return False
    both = Counter(sizes.tolist()) & wanted
    return bool(sum(size * n for size, n in both.items()) >= _NEARLY * max(made, total))


def _gradients(features: Features, decided: Decided) -> Int64Column:
    """The gradients that backward made, of the iteration that has most bytes of them."""
    rows = np.flatnonzero(decided.has(Category.GRADIENT) & ~features.outside)
    return of_fullest(rows, features.iteration, features.sizes)


# --- weights and states without torch's modules and optimizers


def _kept_by_program(features: Features, decided: Decided) -> BoolColumn:
    made = features.outside | features.preexisting_outside
    return made & features.is_live_at_dump & decided.is_open


@rule(HAS_GRADIENT, Category.WEIGHT, Evidence.SIZES)
def kept_with_gradient(features: Features, decided: Decided) -> BoolColumn:
    """Weights of a program without modules: of no size more than there are gradients.

    Beside a module's weights, what is as large as a gradient without a weight is as often a batch.
    """
    sizes, first_backward = features.sizes, features.first(Phase.BACKWARD)
    if first_backward >= features.n_events or decided.has(Category.WEIGHT).any():
        return np.zeros(len(sizes), np.bool_)
    before = _kept_by_program(features, decided) & (features.alloc < first_backward)
    n_gradients = Counter(sizes[_gradients(features, decided)].tolist())
    n_kept = Counter(sizes[before].tolist())
    return before & is_among(sizes, [size for size, n in n_kept.items() if n <= n_gradients[size]])


@rule(HAS_GRADIENT, Category.WEIGHT, Evidence.SIZES)
def kept_with_gradients(features: Features, decided: Decided) -> BoolColumn:
    """Weights beside those of modules: a line makes as many of each size as there are gradients to spare.

    Rates that are learned for every weight, low-rank updates, codes: a batch is of a size of its own. Beside
    a list that is filled or copied, one that is computed has the weights of an inner step.
    """
    sizes, nothing = features.sizes, np.zeros(len(features.alloc), np.bool_)
    gradients, weights = _gradients(features, decided), decided.has(Category.WEIGHT)
    if not len(gradients):
        return nothing
    line = features.lines()
    is_filled = features.from_nothing | features.made_through(Role.CLONE)
    before = _kept_by_program(features, decided) & (features.alloc < features.first(Phase.BACKWARD))
    to_spare = Counter(sizes[gradients].tolist()) - Counter(sizes[weights].tolist())
    found = []
    for of_line in grouped(np.flatnonzero(before & (line >= 0)), line):
        made = Counter(sizes[of_line].tolist())
        # Buffers of modules may be as large as a few of them.
        as_often = [size for size, n in made.items() if to_spare[size] == n]
        share = sum(size * made[size] for size in as_often) / max(int(sizes[of_line].sum()), 1)
        if len(as_often) >= _LEAST_SIZES and share >= _NEARLY:
            found.append(of_line)
    if len(found) > 1:
        found = [of_line for of_line in found if is_filled[of_line].all()]
    return features.mask(found[0]) if len(found) == 1 else nothing


@rule(AFTER_BACKWARD, Category.OPTIMIZER_STATE, Evidence.LIFETIME)
def kept_after_backward_in_bulk(features: Features, decided: Decided) -> BoolColumn:
    """States of an optimizer that is none of torch's.

    One of torch's has its own states: an average is as large, and so may a batch be.
    """
    sizes = features.sizes
    if np.any(features.phases.certain == Phase.OPTIMIZER):
        return np.zeros(len(sizes), np.bool_)
    gradients = sizes[_gradients(features, decided)]
    known = np.concatenate((distinct(sizes[decided.has(Category.WEIGHT)]), gradients))
    after = _kept_by_program(features, decided) & (features.alloc > features.first(Phase.BACKWARD))
    after &= is_among(sizes, known) & made_in_bulk(features, decided)
    is_copy = features.made_through(Role.DEEP_COPY)
    filled = features.made_through(Role.FACTORY) | (np.bool_(not features.has_cpp) & ~is_copy)
    return after & ~features.mid_forward & filled


# --- layers that a program builds on the device


@rule(OF_LAYERS, Category.WEIGHT, Evidence.LIFETIME)
def packed_weights(features: Features, decided: Decided) -> BoolColumn:
    """Weights that are computed on the device, as those are that are packed into few bits."""
    return decided.shared(built_in_turn, features).packed


# --- a forward made of functions


@dataclass(frozen=True, slots=True)
class _Functions:
    """What is made before a backward without any module, and where that forward begins (event by row)."""

    rows: BoolColumn
    begin: EventColumn

    def made_by_forward(self, features: Features) -> BoolColumn:
        """What the forward made itself."""
        return np.asarray(self.rows & (features.alloc >= self.begin))


def _functions(features: Features, decided: Decided) -> _Functions:
    """A forward without any module begins with the first result that its backward frees."""
    certain, modules = features.phases.certain, np.sort(features.alloc[features.by_module])
    others = np.flatnonzero((certain == Phase.BACKWARD) | (certain == Phase.OPTIMIZER))
    outside = np.flatnonzero(features.outside)
    alloc = features.alloc[outside]
    is_next = features.next_backward[outside] < next_of(modules, alloc, features.n_events)
    is_first = last_before(modules, alloc) <= last_before(others, alloc)
    rows = features.mask(outside[is_next & is_first])
    saved = np.flatnonzero(rows & features.is_freed_by_engine & decided.has(Category.ACTIVATION))
    return _Functions(rows, first_before(features.next_backward, features.alloc, saved, features.n_events))


def _into_backward(features: Features) -> BoolColumn:
    return np.asarray(features.end >= features.next_backward)


@rule(KEPT_INTO_BACKWARD, Category.ACTIVATION, Evidence.LIFETIME)
def functions_into_backward(features: Features, decided: Decided) -> BoolColumn:
    """Made by a forward of functions, and in use when backward begins."""
    found = decided.shared(_functions, features)
    return found.made_by_forward(features) & _into_backward(features)


@rule(FREED_BEFORE, Category.TEMPORARY, Evidence.LIFETIME)
def functions_freed_before(features: Features, decided: Decided) -> BoolColumn:
    """Made by a forward of functions, and freed before backward."""
    found = decided.shared(_functions, features)
    return found.made_by_forward(features) & features.is_freed & ~_into_backward(features)


@rule(USED_IN_FORWARD, Category.INPUT, Evidence.LIFETIME)
def given_to_functions(features: Features, decided: Decided) -> BoolColumn:
    """Made before a forward of functions, in a program without any module."""
    if features.by_module.any():
        return np.zeros(len(features.alloc), np.bool_)
    found = decided.shared(_functions, features)
    given = found.rows & _into_backward(features) & (found.begin < features.n_events)
    return given & ~made_in_bulk(features, decided)


# --- what is replaced on the same line, and what is still there


@dataclass(frozen=True, slots=True)
class _Replaced:
    """Pre-existing rows that a line freed when it had made another of the size, and those replacements."""

    rows: Int64Column
    replacements: Int64Column


def _replaced(features: Features, decided: Decided) -> _Replaced:
    """A line that gives a variable a new value makes that first, and then frees the one before."""
    table, stacks = features.allocations, features.roles.stacks
    freed = features.is_freed & ~features.is_freed_by_engine
    rows = np.flatnonzero(~features.is_traced & decided.is_open & freed)
    if not features.phases.free_sites_known or not len(rows):
        return _Replaced(rows[:0], rows[:0])
    sizes, width = features.sizes, features.n_events + 1
    by_program = features.is_traced & ~features.is_freed_by_engine
    new = np.flatnonzero(by_program & is_among(sizes, distinct(sizes[rows])))
    new = new[np.argsort(table.stack_id[new], kind="stable")]
    # What -1 finds stands at the end.
    line = np.append(innermost_python(stacks), -1)[table.free_stack_id[rows]]
    stacks_with = stacks_by_frame(stacks)
    replacement = np.full(len(rows), -1, np.int64)
    for here in grouped(np.flatnonzero(line >= 0), line):
        made = _of_stacks(new, table.stack_id[new], stacks_with(int(line[here[0]])))
        if not len(made):
            continue
        keys = sizes[made] * width + features.alloc[made]
        order = np.argsort(keys)
        former = rows[here]
        last = np.searchsorted(keys[order], sizes[former] * width + features.end[former]) - 1
        youngest = made[order[last]]
        fits = (
            (last >= 0) & (sizes[youngest] == sizes[former]) & (features.end[youngest] > features.end[former])
        )
        replacement[here[fits]] = youngest[fits]
    is_replaced = replacement >= 0
    return _Replaced(rows[is_replaced], replacement[is_replaced])


def _of_stacks(rows: Int64Column, stack: NDArray[Any], wanted: Int64Column) -> Int64Column:
    """The rows with one of the wanted stacks, where ``stack`` is that of each row, in order."""
    first, after = (np.searchsorted(stack, wanted, side) for side in ("left", "right"))
    n_of = after - first
    begins = np.repeat(first - np.concatenate(([0], np.cumsum(n_of)[:-1])), n_of) if len(n_of) else n_of
    return np.asarray(rows[np.arange(int(n_of.sum())) + begins])


@rule(LIVE_AT_DUMP, Category.ACTIVATION, Evidence.LIFETIME)
def preexisting_live_at_dump(features: Features, _: Decided) -> BoolColumn:
    """The result of a forward that the trace does not have, and no backward follows."""
    no_backward = features.next_backward >= features.n_events
    return features.preexisting_in_forward & features.is_live_at_dump & no_backward


def _is_replacement(features: Features, decided: Decided) -> BoolColumn:
    return features.mask(decided.shared(_replaced, features).replacements)


def _still_there(features: Features, decided: Decided) -> BoolColumn:
    """What the program references at the dump, of lines that make one, if a forward or backward is seen."""
    if not (features.in_forward.any() or np.any(features.next_backward < features.n_events)):
        return np.zeros(len(features.alloc), np.bool_)
    return features.is_live_at_dump & ~made_in_bulk(features, decided)


def _may_be_batch(features: Features, decided: Decided) -> BoolColumn:
    made = features.may_be_input | features.preexisting_outside
    made &= ~decided.shared(built_in_turn, features).repeated
    return made & _still_there(features, decided)


@rule(USED_IN_FORWARD, Category.INPUT, Evidence.FRAMES)
def batch_from_nothing_still_there(features: Features, decided: Decided) -> BoolColumn:
    """A batch that was copied to the device, and is still there."""
    return _may_be_batch(features, decided) & features.from_nothing


@rule(USED_IN_FORWARD, Category.INPUT, Evidence.LIFETIME)
def batch_still_there(features: Features, decided: Decided) -> BoolColumn:
    """Of what is computed, and of everything where no C++ frame shows it.

    What was there at first, what replaces an earlier one, and what is of the last iteration.
    """
    stack, forward = features.allocations.stack_id, features.in_forward
    is_renewed = is_among(stack, stack[features.outside & features.is_freed])
    is_last = is_renewed | _is_replacement(features, decided)
    is_last |= features.iteration >= features.iteration[forward].max(initial=-1)
    is_last |= features.alloc < features.alloc[forward].min(initial=features.n_events)
    # Cut within a backward, live computed tensors may be results of its forward too.
    certain = features.phases.certain[features.phases.certain > 0]
    begins_in_backward = len(certain) > 0 and certain[0] == Phase.BACKWARD and features.has_cpp
    is_fed = features.feeds_module | (~features.is_traced & np.bool_(not begins_in_backward))
    return _may_be_batch(features, decided) & is_last & is_fed


@rule(KEPT_INTO_BACKWARD, Category.ACTIVATION, Evidence.LIFETIME)
def preexisting_into_backward(features: Features, _: Decided) -> BoolColumn:
    """The result of a forward that the trace does not have, which the program still references."""
    has_backward = features.next_backward < features.n_events
    return features.preexisting_in_forward & features.is_live_at_dump & has_backward


def _replaced_on_same_line(category: Category) -> Rule:
    """A replaced block has the category of its replacement."""

    def where(features: Features, decided: Decided) -> BoolColumn:
        found = decided.shared(_replaced, features)
        return features.mask(found.rows[decided.category[found.replacements] == category])

    return Rule(f"replaced_{category.label}", SAME_LINE, category, Evidence.FREE_SITE, where)


# --- freed by lines that free only one category


def _freed_by_program(features: Features) -> tuple[BoolColumn, BoolColumn]:
    """What the program frees; and the part of it that a compiled backward frees: it was kept for that."""
    compiled = features.freed_through(Role.COMPILED) & features.is_freed_by_engine
    site = features.allocations.free_stack_id
    return features.is_freed & (~features.is_freed_by_engine | compiled) & (site >= 0), compiled


def _like_others(features: Features, decided: Decided) -> dict[Category, BoolColumn]:
    """Pre-existing rows by the one category that their line frees, if it is only ever one.

    A line that runs in every iteration, `cache = longer` or the end of a function. What it makes and frees
    itself did not live long.
    """
    if not features.phases.free_sites_known:
        return {}
    site, category = features.allocations.free_stack_id, decided.category
    by_program, _ = _freed_by_program(features)
    preexisting = by_program & ~features.is_traced & decided.is_open
    seen = np.flatnonzero(by_program & features.is_traced & is_among(site, site[preexisting]))
    lived, found = features.end - features.alloc, {}
    for which in map(Category, distinct(category[seen]).tolist()):
        of_which = seen[category[seen] == which]
        only = np.setdiff1d(site[of_which], site[seen[category[seen] != which]])
        found[which] = preexisting & is_among(site, only)
        if which == Category.TEMPORARY:
            found[which] &= features.end <= lived[of_which].max()
    return found


def _freed_like_others(category: Category) -> Rule:
    """Pre-existing, and freed by a line that frees nothing but this category."""

    def where(features: Features, decided: Decided) -> BoolColumn:
        found = decided.shared(_like_others, features).get(category)
        return np.zeros(len(features.alloc), np.bool_) if found is None else found

    return Rule(f"freed_like_{category.label}", FREED_BY_LINE, category, Evidence.FREE_SITE, where)


@rule(FREED_BY_BACKWARD, Category.ACTIVATION, Evidence.FREE_SITE)
def preexisting_freed_by_compiled_backward(features: Features, _: Decided) -> BoolColumn:
    """What a compiled backward frees was kept for it, unless other iterations show otherwise.

    For all that torch.compile makes; the benchmark has one such program, as that is what it can simulate.
    """
    if not features.phases.free_sites_known:
        return np.zeros(len(features.alloc), np.bool_)
    _by_program, compiled = _freed_by_program(features)
    return compiled & ~features.is_traced & is_freed_after_own(features)


OF_PROGRAM: tuple[PipelineRule, ...] = (
    zeros_for_every_parameter,
    copies_for_every_parameter,
    stepped_on_in_full_precision,
    full_precision_for_every_parameter,
    kept_with_gradient,
    kept_with_gradients,
    kept_after_backward_in_bulk,
    packed_weights,
    functions_into_backward,
    functions_freed_before,
    given_to_functions,
    preexisting_live_at_dump,
    batch_from_nothing_still_there,
    batch_still_there,
    preexisting_into_backward,
    *map(_replaced_on_same_line, _REPLACED),
    *map(_freed_like_others, _FREED_ALIKE),
    preexisting_freed_by_compiled_backward,
)
