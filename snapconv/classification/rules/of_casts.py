"""Weights that a program gives another type in place: `param.data = param.data.to(torch.float32)`.

The copy is made, and the weight that it replaces is freed before anything else happens. peft does so before
it trains on a quantized model (`prepare_model_for_kbit_training`), diffusers with adapters
(`cast_training_params`), and many programs by hand.
"""

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, at
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.columns import BoolColumn
from snapconv.torch_knowledge.frame_roles import Role

CAST = Reason(
    "cast-in-place-of-a-weight",
    "made outside of modules and kept, of the size of a weight in another type, by the line that frees that "
    "weight next",
)

# float64, float32, half precision and 8 bits: how many times as large one is as another, other than as large.
_TIMES = (2, 4, 8)


@rule(CAST, Category.WEIGHT, Evidence.LIFETIME)
def cast_in_place(features: Features, _: Decided) -> BoolColumn:
    """What takes the place of what was put on the device as a weight."""
    table, sizes = features.allocations, features.sizes
    freed_at = table.free_requested_event
    replaced = np.flatnonzero(features.made_through(Role.PLACEMENT) & (freed_at >= 0))
    replaced = replaced[np.argsort(freed_at[replaced])]
    rows = np.flatnonzero(features.outside & features.is_live_at_dump)
    after, moments = features.alloc[rows] + 1, freed_at[replaced]
    place = np.searchsorted(moments, after)
    is_next = at(moments, place, -1) == after
    rows, former = rows[is_next], replaced[place[is_next]]
    larger, smaller = np.maximum(sizes[rows], sizes[former]), np.minimum(sizes[rows], sizes[former])
    is_cast = np.any([larger == times * smaller for times in _TIMES], axis=0)
    if features.phases.free_sites_known:
        is_cast &= features.lines()[rows] == features.lines_of(table.free_stack_id[former])
    return features.mask(rows[is_cast])


OF_CASTS: tuple[PipelineRule, ...] = (cast_in_place,)
