"""What a step of the optimizer allocates is state if it outlives the step; and what model building places."""

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, at
from snapconv.classification.rule import Decided, PipelineRule, Reason, role_rule, rule
from snapconv.columns import BoolColumn, distinct, has_code, is_among
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role

KEPT = Reason("made-in-step-and-kept", "made in a step, still live after it", uses_phases=True)
FREED = Reason("made-in-step-and-freed", "made in a step, freed in it", uses_phases=True)
REPLACED = Reason(
    "replaced-in-step",
    "pre-existing, freed in a step, as large as a state made in one",
    uses_phases=True,
)
FREED_IN_FIRST = Reason(
    "freed-in-step", "pre-existing; the trace begins in the step that frees it", uses_phases=True
)
FREED_WHILE_PLACING = Reason(
    "freed-while-placing", "made while weights are placed, freed before forward", uses_phases=True
)


def _in_step(features: Features, *, is_annotated: bool) -> BoolColumn:
    annotated = at(features.phases.in_step, features.alloc).astype(np.bool_)
    made = features.is_traced & has_code(features.alloc_phase, Phase.OPTIMIZER)
    return np.asarray(made & (annotated if is_annotated else ~annotated))


def _outlives_step(features: Features) -> BoolColumn:
    return np.asarray(features.end > features.alloc_run_last)


@rule(KEPT, Category.OPTIMIZER_STATE, Evidence.ANNOTATION)
def kept_from_annotated_step(features: Features, _: Decided) -> BoolColumn:
    """Made in an annotated step, and kept."""
    return _in_step(features, is_annotated=True) & _outlives_step(features)


@rule(FREED, Category.TEMPORARY, Evidence.ANNOTATION)
def freed_in_annotated_step(features: Features, _: Decided) -> BoolColumn:
    """Made in an annotated step, and freed in it."""
    return _in_step(features, is_annotated=True) & ~_outlives_step(features)


@rule(KEPT, Category.OPTIMIZER_STATE, Evidence.FRAMES)
def kept_from_step(features: Features, _: Decided) -> BoolColumn:
    """Made in a step, by its stack, and kept."""
    return _in_step(features, is_annotated=False) & _outlives_step(features)


@rule(FREED, Category.TEMPORARY, Evidence.FRAMES)
def freed_in_step(features: Features, _: Decided) -> BoolColumn:
    """Made in a step, by its stack, and freed in it."""
    return _in_step(features, is_annotated=False) & ~_outlives_step(features)


@role_rule(Role.OPTIMIZER, Category.OPTIMIZER_STATE)
def preexisting_state(features: Features, _: Decided) -> BoolColumn:
    """Pre-existing, and made by an optimizer as the block's own stack shows."""
    return ~features.is_traced


@role_rule(Role.STATES, Category.OPTIMIZER_STATE)
def state_from_start(features: Features, _: Decided) -> BoolColumn:
    """Made where an optimizer is built, and there when it can step for the first time."""
    return features.is_live_at_dump | (features.end >= features.next_backward)


@rule(REPLACED, Category.OPTIMIZER_STATE, Evidence.LIFETIME)
def replaced_state(features: Features, decided: Decided) -> BoolColumn:
    """An optimizer that computes new states instead of updating in place frees the former in its step."""
    made = features.sizes[decided.has(Category.OPTIMIZER_STATE) & features.is_traced]
    freed = ~features.is_traced & (features.end_phase == Phase.OPTIMIZER)
    rows = np.flatnonzero(freed)
    return features.mask(rows[is_among(features.sizes[rows], distinct(made))])


@rule(FREED_IN_FIRST, Category.TEMPORARY, Evidence.LIFETIME)
def freed_in_first_step(features: Features, _: Decided) -> BoolColumn:
    """The trace begins in a step, which frees it."""
    if not features.n_events or features.phases.phase[0] != Phase.OPTIMIZER:
        return np.zeros(len(features.alloc), np.bool_)
    in_first = (features.end_phase == Phase.OPTIMIZER) & (features.end <= features.phases.run_end[0])
    return np.asarray(~features.is_traced & in_first)


def _placed(features: Features) -> tuple[BoolColumn, BoolColumn]:
    """Put on the device by model building; and still there when forward begins."""
    placed = features.made_through(Role.PLACEMENT) & ~features.by_engine
    return placed, features.is_live_at_dump | (features.end >= features.next_forward)


@role_rule(Role.PLACEMENT, Category.WEIGHT)
def placed_and_kept(features: Features, _: Decided) -> BoolColumn:
    """Placed while a model is built or loaded, and there in forward."""
    placed, stays = _placed(features)
    return placed & stays


@rule(FREED_WHILE_PLACING, Category.TEMPORARY, Evidence.LIFETIME)
def placed_and_freed(features: Features, _: Decided) -> BoolColumn:
    """Placed while a model is built or loaded, and freed before forward."""
    placed, stays = _placed(features)
    return placed & ~stays


BY_OPTIMIZER: tuple[PipelineRule, ...] = (
    kept_from_annotated_step,
    freed_in_annotated_step,
    kept_from_step,
    freed_in_step,
    preexisting_state,
    state_from_start,
    replaced_state,
    freed_in_first_step,
)
BY_PLACEMENT: tuple[PipelineRule, ...] = (placed_and_kept, placed_and_freed)
