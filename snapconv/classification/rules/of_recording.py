"""What a recording has evidence for once the rules about phases have been evaluated.

Attributes of modules, and moments of optimizers that are none of torch's.
"""

from collections import Counter

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided, Reason, Rule, rule
from snapconv.columns import BoolColumn, grouped
from snapconv.torch_knowledge.frame_roles import Role

ATTRIBUTE = Reason(
    "recorded-as-attribute",
    "a plain attribute of a module: if written since it was made, a cache; else like a buffer",
)
MOMENTS = Reason(
    "made-for-recorded-parameters",
    "a line filled it with zeros, with others of the sizes of recorded parameters; all are kept",
)
# Fewer tensors, or of one size, may agree with those of parameters by chance.
_LEAST_PARAMETERS, _LEAST_SIZES = 4, 2


def _attributes(features: Features, *, is_written: bool) -> BoolColumn:
    if features.recorded is None:
        return np.zeros(len(features.alloc), np.bool_)
    rows = features.recorded.attributes[features.recorded.metadata.attributes.is_written == is_written]
    return np.asarray(features.mask(rows[rows >= 0]) & features.outside)


@rule(ATTRIBUTE, Category.ACTIVATION, Evidence.METADATA)
def written_attribute(features: Features, _: Decided) -> BoolColumn:
    """An attribute of a module, written since it was made: a cache, such as keys and values."""
    return _attributes(features, is_written=True)


@rule(ATTRIBUTE, Category.WEIGHT, Evidence.METADATA)
def constant_attribute(features: Features, _: Decided) -> BoolColumn:
    """An attribute of a module, never written since: like a buffer."""
    return _attributes(features, is_written=False)


@rule(MOMENTS, Category.OPTIMIZER_STATE, Evidence.SIZES)
def zeros_for_parameters(features: Features, decided: Decided) -> BoolColumn:
    """What a line fills with zeros for every parameter of a list, and keeps: an optimizer's moments.

    Or twice as large, where the model is in half precision. For optimizers that are none of torch's.
    """
    found = np.zeros(len(features.alloc), np.bool_)
    if features.recorded is None:
        return found
    parameters = features.recorded.metadata.parameters
    of_model = Counter(parameters.memory.n_bytes[~parameters.is_buffer].tolist())
    wanted = of_model, Counter({2 * size: n for size, n in of_model.items()})
    stack, kept = features.allocations.stack_id, features.outside & features.is_live_at_dump
    rows = np.flatnonzero(kept & decided.is_open & features.made_through(Role.ZEROS))
    for made in grouped(rows, stack):
        sizes = Counter(features.sizes[made].tolist())
        is_list = len(made) >= _LEAST_PARAMETERS and len(sizes) >= _LEAST_SIZES
        found[made] = is_list and any(sizes <= of_list for of_list in wanted)
    return found


OF_RECORDING: tuple[Rule, ...] = (written_attribute, constant_attribute)
# After what is found by gradients: its moments are evidence for other rules.
LAST: tuple[Rule, ...] = (zeros_for_parameters,)
