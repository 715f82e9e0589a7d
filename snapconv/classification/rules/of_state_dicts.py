"""Copies of a model's whole state that a program keeps while it trains: its best weights."""

from collections import Counter

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, of_fullest
from snapconv.classification.rule import Decided, PipelineRule, Reason, rule
from snapconv.classification.rules.for_every_parameter import is_nearly
from snapconv.columns import BoolColumn, grouped
from snapconv.torch_knowledge.frame_roles import Role

COPIED = Reason(
    "deep-copy-of-every-parameter",
    "a deep copy of all parameters of a model, in use in a later forward: a second model, or a kept state",
)


@rule(COPIED, Category.WEIGHT, Evidence.SIZES)
def copied_states(features: Features, decided: Decided) -> BoolColumn:
    """What a line copies in one iteration, if it is as large as all weights, or as the gradients of one."""
    by_program = features.outside | features.preexisting_outside
    deep = features.made_through(Role.DEEP_COPY) & by_program & decided.is_open
    kept = features.is_live_at_dump | (features.end >= features.next_forward)
    rows = np.flatnonzero(deep & kept)
    if not len(rows):
        return features.mask(rows)
    gradients = np.flatnonzero(decided.has(Category.GRADIENT))
    of_model = decided.has(Category.WEIGHT), of_fullest(gradients, features.iteration, features.sizes)
    wanted = [Counter(features.sizes[model].tolist()) for model in of_model]
    whole = [
        copy
        for of_line in grouped(rows, features.allocations.stack_id)
        for copy in grouped(of_line, features.iteration)
        if any(is_nearly(features.sizes[copy], model) for model in wanted)
    ]
    return features.mask(np.concatenate(whole or [rows[:0]]))


OF_STATE_DICTS: tuple[PipelineRule, ...] = (copied_states,)
