"""What programs without modules of torch make, by the names of the functions that make it."""

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.features import Features
from snapconv.classification.rule import Decided, PipelineRule, role_rule
from snapconv.columns import BoolColumn
from snapconv.torch_knowledge.frame_roles import Role


def _kept(features: Features) -> BoolColumn:
    """Made outside of modules, and kept: what such a function frees again it needed on the way."""
    return np.asarray(features.is_live_at_dump & (features.outside | features.preexisting_outside))


@role_rule(Role.NAMED_WEIGHTS, Category.WEIGHT)
def named_weights(features: Features, _: Decided) -> BoolColumn:
    """Made by a function that is named after weights."""
    return _kept(features)


@role_rule(Role.NAMED_CACHE, Category.KV_CACHE)
def named_cache(features: Features, decided: Decided) -> BoolColumn:
    """Made by a function that is named after a cache, where nothing is trained: there it may be of data."""
    trains = len(features.phases.events_of_training) > 0 or decided.has(Category.OPTIMIZER_STATE).any()
    return _kept(features) & np.bool_(not trains)


BY_NAMES: tuple[PipelineRule, ...] = (named_weights, named_cache)
