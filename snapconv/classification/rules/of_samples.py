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
from snapconv.torch_knowledge.frame_roles import Role

OF_EVERY_SAMPLE = Reason(
    "as-many-times-as-large-as-parameters",
    "made by backward and kept, or computed after it and used by the step; of several sizes, those of nearly "
    "all parameters times one number: gradients of every sample, or of several tasks",
)

# Fewer sizes may agree by chance.
_LEAST_SIZES = 3
# Of the different sizes of parameters. Gradients of results may be as many times as large as all matrices,
# which have one side in common, but not as vectors, too.
_LEAST_SHARE = 0.9
# Twice as large are copies in full precision.
_LEAST_TIMES = 3
# Of more sizes nothing is looked for.
_MOST_SIZES = 200


@rule(OF_EVERY_SAMPLE, Category.GRADIENT, Evidence.SIZES)
def gradients_of_samples(features: Features, decided: Decided) -> BoolColumn:
    """By the gradients that are known now, or by the weights."""
    return as_of_samples(features, decided)


def as_of_samples(features: Features, decided: Decided) -> BoolColumn:
    """What is so large in an iteration, beside the parameters of the whole trace: batches may differ."""
    sizes, found = features.sizes, np.zeros(len(features.alloc), np.bool_)
    made = _kept_by_backward(features) | decided.shared(computed_for_step, features)
    rows = np.flatnonzero(made & decided.is_open & ~features.made_through(Role.RECOMPUTE))
    weight_like = decided.has(Category.WEIGHT) | (features.lasts_throughout & ~features.by_engine)
    of_parameters = [
        distinct(sizes[of & (sizes > 0)]) for of in (decided.has(Category.GRADIENT), weight_like)
    ]
    # Most iterations make blocks of the same sizes.
    known: dict[bytes, Int64Column] = {}
    for of_iteration in grouped(rows, features.iteration):
        made_sizes = distinct(sizes[of_iteration])
        key = made_sizes.tobytes()
        if key not in known:
            known[key] = np.concatenate([_multiples(made_sizes, of_each) for of_each in of_parameters])
        if len(known[key]):
            found[of_iteration] = is_among(sizes[of_iteration], known[key])
    return found


def _after_backward(features: Features) -> BoolColumn:
    """Made by the program within a backward, as hooks do, or after one."""
    return np.asarray(features.outside & (at(features.phases.phase, features.alloc) == Phase.BACKWARD))


def _kept_by_backward(features: Features) -> BoolColumn:
    """Without C++ frames, a hook's code does not show that the engine called it."""
    by_hook = _after_backward(features) & (features.alloc < features.alloc_run_end)
    return np.asarray((features.by_engine | by_hook) & (features.end > features.alloc_run_last))


def computed_for_step(features: Features, decided: Decided) -> BoolColumn:
    """What the program makes after a backward, and is in use when it makes gradients or a step begins.

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
    """Those of the sizes that are parameters' times one whole number, as for nearly all parameters."""
    numbers = len(sizes), len(of_parameters)
    if min(numbers) < _LEAST_SIZES or max(numbers) > _MOST_SIZES:
        return sizes[:0]
    # Pairs of a size and a parameter's, by how many times it is as large.
    times = sizes[:, None] // of_parameters
    row, column = np.nonzero((times >= _LEAST_TIMES) & (times * of_parameters == sizes[:, None]))
    _, number, n_sizes = np.unique(times[row, column], return_inverse=True, return_counts=True)
    fits = n_sizes >= max(_LEAST_SIZES, _LEAST_SHARE * len(of_parameters))
    return distinct(sizes[row[fits[number]]])


OF_SAMPLES: tuple[PipelineRule, ...] = (gradients_of_samples,)
