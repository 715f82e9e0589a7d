"""Gradients of every sample, or of several tasks: as many times as large as the parameter.

Differential privacy clips the gradient of each sample, surgery on gradients compares those of tasks.
They are most of the memory of such a program.
"""

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, at, next_of
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.columns import BoolColumn, Int64Column, distinct, grouped, is_among
from snapconv.phases.trace_phases import Phase

OF_EVERY_SAMPLE = Reason(
    "as-many-times-as-large-as-parameters",
    "made by backward and kept, or computed after it and used by the step; of several sizes, those of most "
    "parameters times one number: gradients of every sample, or of several tasks",
)

# Fewer sizes may agree by chance.
_LEAST_SIZES = 3
# Of the bytes of parameters: some may be frozen.
_LEAST_SHARE = 0.5
# Of more sizes nothing is looked for.
_MOST_SIZES = 200


@rule(OF_EVERY_SAMPLE, Category.GRADIENT, Evidence.SIZES)
def gradients_of_samples(features: Features, decided: Decided) -> BoolColumn:
    """What backward made, or the program of its results."""
    return decided.shared(as_of_samples, features)


def as_of_samples(features: Features, decided: Decided) -> BoolColumn:
    """In every iteration by itself: batches need not be equally large."""
    sizes, found = features.sizes, np.zeros(len(features.alloc), np.bool_)
    made = _kept_by_backward(features) | decided.shared(computed_for_step, features)
    rows = np.flatnonzero(made & decided.is_open)
    weight_like = decided.has(Category.WEIGHT) | (features.lasts_throughout & ~features.by_engine)
    of_parameters = [
        distinct(sizes[of & (sizes > 0)]) for of in (decided.has(Category.GRADIENT), weight_like)
    ]
    for of_iteration in grouped(rows, features.iteration):
        made_sizes = distinct(sizes[of_iteration])
        if len(made_sizes) >= _LEAST_SIZES:
            multiples = [_multiples(made_sizes, parameters) for parameters in of_parameters]
            found[of_iteration] = is_among(sizes[of_iteration], np.concatenate(multiples))
    return found


def _after_backward(features: Features) -> BoolColumn:
    """Made by the program within a backward, as hooks do, or after one."""
    return np.asarray(features.outside & (at(features.phases.phase, features.alloc) == Phase.BACKWARD))


def _kept_by_backward(features: Features) -> BoolColumn:
    """Without C++ frames, a hook's code does not show that the engine called it."""
    by_hook = _after_backward(features) & (features.alloc < features.alloc_run_end)
    return np.asarray((features.by_engine | by_hook) & (features.end > features.alloc_run_last))


def computed_for_step(features: Features, decided: Decided) -> BoolColumn:
    """What the program makes of a backward's results, and of which it makes gradients, or a step uses it.

    A step that allocates nothing is not seen.
    """
    by_program = decided.has(Category.GRADIENT) & features.outside
    begins = np.minimum(
        features.phases.next_after(Phase.OPTIMIZER, features.alloc),
        next_of(features.alloc[by_program], features.alloc, features.n_events),
    )
    is_next = (begins < features.n_events) & (begins < features.next_forward)
    return np.asarray(_after_backward(features) & is_next & (features.end > begins))


def _multiples(sizes: Int64Column, of_parameters: Int64Column) -> Int64Column:
    """Those of the sizes that are parameters' times one number above 1, as most parameters' bytes are."""
    if len(of_parameters) < _LEAST_SIZES or max(len(sizes), len(of_parameters)) > _MOST_SIZES:
        return sizes[:0]
    # Pairs of a size and a parameter's that it exceeds, by the ratio between them.
    row, column = np.nonzero(sizes[:, None] > of_parameters)
    larger, smaller = sizes[row], of_parameters[column]
    _, ratio, n_sizes = np.unique(larger / smaller, return_inverse=True, return_counts=True)
    fits = (n_sizes >= _LEAST_SIZES) & (np.bincount(ratio, smaller) >= _LEAST_SHARE * of_parameters.sum())
    return distinct(larger[fits[ratio]])


OF_SAMPLES: tuple[PipelineRule, ...] = (gradients_of_samples,)
