"""What the program itself makes and keeps, outside of modules and of torch's optimizers.

Its batches, results that it keeps, weights that are no module's: by who made them, when, how often and how
large. These rules come last, when gradients and weights are known.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from snapconv.classification.built_layers import built_in_turn
from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, first_before, last_before, next_of
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.classification.rules.by_free import USED_IN_FORWARD, made_in_bulk
from snapconv.classification.rules.by_line import replaced_on_same_line
from snapconv.classification.rules.for_every_parameter import LEAST_SIZES, NEARLY, gradients_of_fullest
from snapconv.classification.rules.in_forward import FREED_BEFORE, KEPT_INTO_BACKWARD, LIVE_AT_DUMP
from snapconv.classification.rules.of_samples import computed_for_step
from snapconv.classification.sizes_of_layers import made_as_layers
from snapconv.columns import BoolColumn, EventColumn, Int64Column, distinct, grouped, is_among
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role

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


# Rows, by the line that made them.
_Lists = list[Int64Column]


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
    n_gradients = Counter(sizes[gradients_of_fullest(features, decided)].tolist())
    n_kept = Counter(sizes[before].tolist())
    return before & is_among(sizes, [size for size, n in n_kept.items() if n <= n_gradients[size]])


@rule(HAS_GRADIENT, Category.WEIGHT, Evidence.SIZES)
def kept_with_gradients(features: Features, decided: Decided) -> BoolColumn:
    """Weights beside those of modules: a line makes as many of each size as there are gradients to spare.

    Rates that are learned for every weight, low-rank updates, codes: a batch is of a size of its own. Beside
    a list of such sizes that is filled or copied, one that is computed holds the weights of an inner step.
    """
    sizes, found = features.sizes, np.zeros(len(features.alloc), np.bool_)
    gradients, weights = gradients_of_fullest(features, decided), decided.has(Category.WEIGHT)
    if not len(gradients):
        return found
    line = features.lines()
    is_filled = features.from_nothing | features.made_through(Role.CLONE)
    before = _kept_by_program(features, decided) & (features.alloc < features.first(Phase.BACKWARD))
    to_spare = Counter(sizes[gradients].tolist()) - Counter(sizes[weights].tolist())
    lists = _Lists()
    for of_line in grouped(np.flatnonzero(before & (line >= 0)), line):
        made = Counter(sizes[of_line].tolist())
        # Buffers of modules may be as large as a few of them.
        as_often = [size for size, n in made.items() if to_spare[size] == n]
        n_bytes = sum(size * made[size] for size in as_often)
        if len(as_often) >= LEAST_SIZES and n_bytes >= NEARLY * sizes[of_line].sum():
            lists.append(of_line)
    alone, others = _by_shared_sizes(lists, sizes)
    filled, _ = _by_shared_sizes([of_line for of_line in others if is_filled[of_line].all()], sizes)
    for of_line in alone + filled:
        found[of_line] = True
    return found


def _by_shared_sizes(lists: _Lists, sizes: Int64Column) -> tuple[_Lists, _Lists]:
    """The lists that have no size of another; and the others, as a gradient is of one of them only."""
    n_lists = Counter(size for rows in lists for size in distinct(sizes[rows]).tolist())
    alone, others = _Lists(), _Lists()
    for rows in lists:
        (others if any(n_lists[size] > 1 for size in sizes[rows].tolist()) else alone).append(rows)
    return alone, others


@rule(AFTER_BACKWARD, Category.OPTIMIZER_STATE, Evidence.LIFETIME)
def kept_after_backward_in_bulk(features: Features, decided: Decided) -> BoolColumn:
    """States of an optimizer that is none of torch's.

    One of torch's has its own states: an average is as large, and so may a batch be.
    """
    sizes = features.sizes
    if np.any(features.phases.certain == Phase.OPTIMIZER):
        return np.zeros(len(sizes), np.bool_)
    gradients = sizes[gradients_of_fullest(features, decided)]
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
    modules, others = np.sort(features.alloc[features.by_module]), features.phases.events_of_training
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


# --- what is still there


@rule(LIVE_AT_DUMP, Category.ACTIVATION, Evidence.LIFETIME)
def preexisting_live_at_dump(features: Features, _: Decided) -> BoolColumn:
    """The result of a forward that the trace does not have, and no backward follows."""
    return features.preexisting_in_forward & ~features.has_next_backward


def _is_replacement(features: Features, decided: Decided) -> BoolColumn:
    return features.mask(decided.shared(replaced_on_same_line, features).replacements)


def _still_there(features: Features, decided: Decided) -> BoolColumn:
    """What the program references at the dump, of lines that make one, if a forward or backward is seen."""
    if not (features.in_forward.any() or features.has_next_backward.any()):
        return np.zeros(len(features.alloc), np.bool_)
    return features.is_live_at_dump & ~made_in_bulk(features, decided)


def _may_be_batches(features: Features, decided: Decided) -> BoolColumn:
    """What the program makes itself, but for what a line makes as the layers of a model have it."""
    made = features.may_be_input | features.preexisting_outside
    made &= ~decided.shared(built_in_turn, features).repeated & ~decided.shared(computed_for_step, features)
    return made & ~decided.shared(made_as_layers, features)


def _batches_still_there(features: Features, decided: Decided) -> BoolColumn:
    return decided.shared(_may_be_batches, features) & _still_there(features, decided)


@rule(USED_IN_FORWARD, Category.INPUT, Evidence.FRAMES)
def batch_from_nothing_still_there(features: Features, decided: Decided) -> BoolColumn:
    """A batch that was copied to the device, and is still there."""
    return _batches_still_there(features, decided) & features.from_nothing


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
    return _batches_still_there(features, decided) & is_last & is_fed


@rule(KEPT_INTO_BACKWARD, Category.ACTIVATION, Evidence.LIFETIME)
def preexisting_into_backward(features: Features, _: Decided) -> BoolColumn:
    """The result of a forward that the trace does not have, which the program still references."""
    return features.preexisting_in_forward & features.has_next_backward


OF_PROGRAM: tuple[PipelineRule, ...] = (
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
)
