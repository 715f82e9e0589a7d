"""Backward's results: freed within it, temporary; kept and as large as a weight, a gradient."""

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.features import Features, at, last_before, next_of
from snapconv.classification.rule import Decided, PipelineRule, Reason, role_rule, rule
from snapconv.columns import BoolColumn, distinct, has_code, is_among
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role

WITHIN = Reason(
    "freed-within-backward",
    "made by the engine, freed in the same run of backward or before the step that follows it",
    uses_phases=True,
)
FOR_ANOTHER = Reason(
    "kept-for-another-backward", "made by the engine, and freed by the engine in a later backward"
)
BY_HOOK = Reason(
    "freed-by-hook-of-gradient",
    "made by the engine, as large as a weight, and freed by Python code that it called: a hook that steps",
)
KEPT = Reason("kept-after-backward", "made by the engine, kept, as large as a weight", uses_phases=True)
FAILED = Reason(
    "live-in-failed-backward",
    "made by the engine, as large as no weight, in a backward that ran out of memory at the trace's end",
    uses_phases=True,
)
FOR_STEP = Reason(
    "kept-after-backward-for-the-step",
    "made by the engine, as large as no weight, and in use when the step after its backward begins: a sparse "
    "gradient",
    uses_phases=True,
)
KEPT_BY_PROGRAM = Reason(
    "kept-by-program-for-another-backward",
    "made by the engine in a backward that is itself differentiated, and kept by the program",
    uses_phases=True,
)


@role_rule(Role.RECOMPUTE, Category.ACTIVATION)
def recomputed(features: Features, _: Decided) -> BoolColumn:
    """Computed again by a checkpoint, and freed by the backward of that.

    Reentrant checkpoints call the engine from where they compute again: the stacks of both go through it.
    """
    again = features.made_through(Role.RECOMPUTE) & ~features.made_through(Role.REENTERED)
    by_own_backward = ~features.freed_through(Role.RECOMPUTE) | features.freed_through(Role.REENTERED)
    return again & features.is_freed_by_engine & by_own_backward


def _made(features: Features) -> BoolColumn:
    return np.asarray(features.by_engine & has_code(features.alloc_phase, Phase.BACKWARD))


def _within(features: Features, decided: Decided) -> BoolColumn:
    """What the step no longer finds is no gradient; what is freed later may be freed by zero_grad."""
    step_follows = has_code(features.next_run_phase, Phase.OPTIMIZER)
    before_step = step_follows & (features.end <= features.alloc_run_last)
    within = _made(features) & ((features.end <= features.alloc_run_end) | before_step)
    return np.asarray(within & ~decided.shared(_in_later_call, features))


def _in_later_call(features: Features, _: Decided) -> BoolColumn:
    """What the engine makes, and frees after the program went on: the program has called it again.

    For example, derivatives that are part of a loss: no module runs between them. A gradient that the engine
    or a hook replaces is freed in a later call, too, but was not kept for it.
    """
    roles, table = features.roles, features.allocations
    replaced = features.is_freed_in_hook | features.freed_through(Role.ACCUMULATION)
    later = _made(features) & features.is_freed_by_engine & ~replaced
    if not later.any():
        return later
    made, freed = roles.is_in_program(table.stack_id), roles.is_in_program(table.free_stack_id)
    at_work = np.sort(np.concatenate((features.alloc[made], features.end[freed])))
    later[later] = last_before(at_work, features.end[later]) > features.alloc[later]
    return later


def _kept(features: Features, decided: Decided) -> BoolColumn:
    return _made(features) & ~_within(features, decided)


def _in_later_run(features: Features) -> BoolColumn:
    return np.asarray(features.end > features.alloc_run_last)


@rule(BY_HOOK, Category.GRADIENT, Evidence.FREE_SITE)
def freed_by_hook(features: Features, decided: Decided) -> BoolColumn:
    """A gradient that is used up as soon as it is there, within its backward.

    What the hook makes itself has a stack of Python code.
    """
    made = _made(features) & ~features.made_in_hook & features.is_freed_in_hook
    weight_like = decided.has(Category.WEIGHT) | features.lasts_throughout
    return made & is_among(features.sizes, distinct(features.sizes[weight_like]))


@rule(WITHIN, Category.TEMPORARY, Evidence.LIFETIME)
def freed_within_backward(features: Features, decided: Decided) -> BoolColumn:
    """A gradient of an activation, or scratch."""
    return _within(features, decided)


@rule(FOR_ANOTHER, Category.ACTIVATION, Evidence.FREE_SITE)
def kept_for_another_backward(features: Features, decided: Decided) -> BoolColumn:
    """A gradient of gradients: the second backward frees what the first one kept for it."""
    in_later_run = _kept(features, decided) & _in_later_run(features) & features.is_freed_by_engine
    return in_later_run | decided.shared(_in_later_call, features)


@rule(KEPT, Category.GRADIENT, Evidence.LIFETIME)
def kept_after_backward(features: Features, decided: Decided) -> BoolColumn:
    """As large as a weight, or as what is pre-existing and may be one."""
    by_engine = features.made_through(Role.ENGINE)
    preexisting = features.lasts_throughout
    weight_like = decided.has(Category.WEIGHT) | (preexisting & ~by_engine)
    before = (preexisting & by_engine) | _without_frames_beside_weights(features, decided)
    rows = np.flatnonzero(_kept(features, decided) | before)
    return features.mask(rows[is_among(features.sizes[rows], distinct(features.sizes[weight_like]))])


def _without_frames_beside_weights(features: Features, decided: Decided) -> BoolColumn:
    """Pre-existing blocks without frames, where pre-existing weights have theirs.

    With Python-only stacks they are of the engine. No more of a size than there are such weights.
    """
    sizes = features.sizes
    preexisting = features.lasts_throughout & np.bool_(not features.has_cpp)
    unnamed = preexisting & features.has_no_frames & decided.is_open
    weights = preexisting & ~features.has_no_frames & decided.has(Category.WEIGHT)
    if not unnamed.any():
        return unnamed
    found, inverse = np.unique(sizes, return_inverse=True)
    n_unnamed, n_weights = (np.bincount(inverse[rows], minlength=len(found)) for rows in (unnamed, weights))
    return np.asarray(unnamed & (n_unnamed <= n_weights)[inverse])


@rule(FAILED, Category.TEMPORARY, Evidence.LIFETIME)
def in_use_by_failed_backward(features: Features, decided: Decided) -> BoolColumn:
    """The trace ends in a backward that ran out of memory, as no program of the benchmark's does."""
    if not features.phases.ends_in_oom:
        return np.zeros(len(features.alloc), np.bool_)
    of_last = features.alloc_run_last == features.n_events - 1
    return np.asarray(_kept(features, decided) & features.is_live_at_dump & of_last)


@rule(KEPT_BY_PROGRAM, Category.ACTIVATION, Evidence.LIFETIME)
def kept_by_program_for_another_backward(features: Features, decided: Decided) -> BoolColumn:
    """The results of a backward that is itself differentiated, as far as the program references them."""
    rest = _kept(features, decided) & _in_later_run(features) & ~decided.has(Category.GRADIENT)
    if not rest.any():
        return rest
    freed, run = rest & features.is_freed_by_engine, features.alloc_run_last
    n_freed, n_kept = (
        np.bincount(run[rows], features.sizes[rows], features.n_events) for rows in (freed, rest & ~freed)
    )
    is_most = n_freed >= n_kept
    return rest & ~freed & at(is_most, run).astype(np.bool_)


@rule(FOR_STEP, Category.GRADIENT, Evidence.LIFETIME)
def kept_for_step(features: Features, decided: Decided) -> BoolColumn:
    """What the last call of the engine before a step has made for it, whatever its size."""
    alloc, step = features.alloc, features.phases.next_after(Phase.OPTIMIZER, features.alloc)
    by_module = features.made_through(Role.MODULE_CALL) & ~features.made_through(Role.COMPILED)
    found = _kept(features, decided) & ~by_module & ~features.is_freed_by_engine & (features.end > step)
    found &= step <= features.next_forward
    if not found.any():
        return found
    by_program = features.roles.is_in_program(features.allocations.stack_id) & features.outside
    goes_on = next_of(np.sort(alloc[by_program]), alloc[found], features.n_events)
    found[found] = last_before(np.sort(alloc[_made(features)]), step[found]) < goes_on
    return found


IN_BACKWARD: tuple[PipelineRule, ...] = (
    recomputed,
    freed_by_hook,
    freed_within_backward,
    kept_for_another_backward,
    kept_after_backward,
    in_use_by_failed_backward,
    kept_by_program_for_another_backward,
)
# After what goes by the sizes of gradients: these may be of any.
FOR_THE_STEP: tuple[PipelineRule, ...] = (kept_for_step,)
