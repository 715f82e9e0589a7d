"""What a line makes for every parameter, outside of modules and of torch's optimizers, and the program keeps.

Moments, masters in full precision, a second model: as large as the gradients, or twice as large, and as many.
"""

from collections import Counter
from dataclasses import dataclass

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, of_fullest
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.classification.size_references import SMALL_BYTES
from snapconv.columns import BoolColumn, Int64Column, distinct, grouped, is_among
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role

FOR_EVERY_PARAMETER = Reason(
    "made-for-every-parameter",
    "kept, and made outside of modules by a line that makes one for every parameter: zeros, and what is "
    "in full precision beside them, an optimizer's; copies made before backward, a second model's",
)

COPY_OF_ONE = Reason(
    "copy-of-a-parameter",
    "kept, and copied outside of modules before the first backward, as large as a parameter that is trained: "
    "to put back what a step shall not change, or to see how far it went",
)

# A parameter may have no gradient, or share its memory.
NEARLY = 0.9
# Fewer sizes may agree by chance.
LEAST_SIZES = 2


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
    wanted = Counter(sizes[gradients_of_fullest(features, decided)].tolist())
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
    return bool(NEARLY * rows.sum() <= as_large.sum())


def _as_large_as_trained(features: Features, decided: Decided) -> BoolColumn:
    """What the program has made before the first backward, and keeps, of the size of a gradient."""
    sizes = features.sizes
    kept = (features.outside | features.preexisting_outside) & features.is_live_at_dump
    before = kept & (features.alloc < features.first(Phase.BACKWARD)) & (sizes >= SMALL_BYTES)
    return before & is_among(sizes, distinct(sizes[gradients_of_fullest(features, decided)]))


@rule(COPY_OF_ONE, Category.WEIGHT, Evidence.SIZES)
def copy_of_parameter(features: Features, decided: Decided) -> BoolColumn:
    """Clones: a batch is copied from elsewhere, or computed.

    A line that clones what is of other sizes, too, may do so with batches.
    """
    as_large, stack = _as_large_as_trained(features, decided), features.allocations.stack_id
    clones = features.made_through(Role.CLONE)
    return as_large & clones & ~is_among(stack, distinct(stack[clones & ~as_large]))


def is_nearly(sizes: Int64Column, wanted: Counter[int]) -> bool:
    """Whether nearly all bytes are of the sizes that are wanted, as often."""
    made, total = int(sizes.sum()), sum(size * n for size, n in wanted.items())
    if len(wanted) < LEAST_SIZES or not NEARLY * total <= made <= total / NEARLY:
        return False
    both = Counter(sizes.tolist()) & wanted
    return bool(sum(size * n for size, n in both.items()) >= NEARLY * max(made, total))


def gradients_of_fullest(features: Features, decided: Decided) -> Int64Column:
    """The gradients that backward made, of the iteration that has most bytes of them."""
    rows = np.flatnonzero(decided.has(Category.GRADIENT) & ~features.outside)
    return of_fullest(rows, features.iteration, features.sizes)


FOR_PARAMETERS: tuple[PipelineRule, ...] = (
    zeros_for_every_parameter,
    copies_for_every_parameter,
    stepped_on_in_full_precision,
    full_precision_for_every_parameter,
    copy_of_parameter,
)
