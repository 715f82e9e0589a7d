"""Weights that a program gives new values by new memory: ``p.data = …`` for every parameter, or for one.

Averages that follow a model, models that are moved without a gradient, and weights that the program corrects.
"""

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features
from snapconv.classification.replaced_weights import replacements_of_weights
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.classification.sizes_of_layers import made_as_layers
from snapconv.classification.weights_in_place import in_place_of_weights
from snapconv.columns import BoolColumn, is_among
from snapconv.torch_knowledge.frame_roles import Role

IN_PLACE = Reason(
    "in-place-of-a-weight",
    "in use when the program frees a weight that goes on being trained, and the only one of its size that "
    "nothing else explains",
)
NEW_VALUES = Reason(
    "new-values-of-weights",
    "made outside of modules by a line that makes many, of the sizes of layers, and has freed weights of "
    "these sizes: an average of weights, or weights that are moved without a gradient",
)

REPLACEMENT = Reason(
    "replaces-a-weight",
    "made in the call that then frees a weight of the size, and the only one of it there: its new value",
)


@rule(NEW_VALUES, Category.WEIGHT, Evidence.FREE_SITE)
def new_values_of_weights(features: Features, decided: Decided) -> BoolColumn:
    """What no rule before this one has called temporary."""
    return as_new_values(features, decided)


def as_new_values(features: Features, decided: Decided) -> BoolColumn:
    """The first time, the line frees what is known as a weight. One that does so with states makes states."""
    many = decided.shared(made_as_layers, features)
    # A copy that was placed and has not run yet when it gets its first values counts as temporary.
    weights = decided.has(Category.WEIGHT) | features.made_through(Role.PLACEMENT)
    if not (many.any() and np.any(weights & features.is_freed)):
        return np.zeros(len(many), np.bool_)
    line, freeing = features.lines(), features.lines_of(features.allocations.free_stack_id)
    # What a line both makes and frees is on its way to the new values; so is all where frees have no stacks.
    freed = features.is_freed & (line != freeing)
    others = freed & ~decided.is_open & ~weights
    former = freed & weights & ~is_among(freeing, freeing[others])
    of_sizes = features.sizes * np.int64(len(features.roles.stacks.frames) + 1)
    # The same line may do so for a smaller part of the model, called from elsewhere.
    made = (line >= 0) & is_among(line, line[many])
    return made & is_among(of_sizes + line, (of_sizes + freeing)[former])


@rule(REPLACEMENT, Category.WEIGHT, Evidence.FREE_SITE)
def replacements(features: Features, decided: Decided) -> BoolColumn:
    """What nobody else knows: an average, a state or a batch would have been called so before."""
    return replacements_of_weights(features, decided)


@rule(IN_PLACE, Category.WEIGHT, Evidence.FREE_SITE)
def in_place(features: Features, decided: Decided) -> BoolColumn:
    """What a parameter is given for its memory: values that were kept to be put back, or new ones."""
    return decided.shared(in_place_of_weights, features).weights


IN_PLACE_OF_WEIGHTS: tuple[PipelineRule, ...] = (in_place,)
OF_NEW_VALUES: tuple[PipelineRule, ...] = (new_values_of_weights,)
OF_REPLACEMENTS: tuple[PipelineRule, ...] = (replacements,)
