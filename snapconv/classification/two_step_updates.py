"""What an optimizer of two steps keeps from its first to its second: how far it moved each weight.

Sharpness-aware minimization goes along the gradient, computes another one there, and goes back.
"""

import numpy as np
from numpy.typing import NDArray

from snapconv.classification.features import Features, at
from snapconv.classification.functional_updates import functional_updates, outlives_backward
from snapconv.classification.rule import Decided
from snapconv.columns import BoolColumn, EventColumn, Int64Column, grouped
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_roles import Role

_NEARLY = 0.9


def kept_between_two_steps(features: Features, decided: Decided) -> BoolColumn:
    """Rows of a line that runs after the first backward of an iteration only, whose gradients are cleared.

    As many bytes as the results of that backward, which zero_grad frees before the next one, and kept into
    the step: what the program drops before it (bounds of weights that it has moved) is not the optimizer's.
    Not copies: those may be of gradients, and without C++ frames nothing shows it. Nothing where no
    step shows what is one iteration: the sums of several batches look the same.
    """
    if not (features.has_cpp and features.phases.has_steps):
        return np.zeros(len(features.alloc), np.bool_)
    updates = decided.shared(functional_updates, features)
    rows = np.flatnonzero(updates.in_no_graph & ~features.made_through(Role.CLONE))
    if not len(rows):
        return features.mask(rows)
    results = outlives_backward(features) & ~features.is_freed_by_engine
    run, stack = features.alloc_run_last, features.allocations.stack_id
    next_run = features.phases.next_after(Phase.BACKWARD, run.astype(np.int64))
    cleared = results & (features.end < next_run) & _freed_in_zero_grad(features)
    n_wanted, n_cleared = (_bytes_of_runs(features, found) for found in (results, cleared))
    keys, group = np.unique(np.stack((stack[rows], run[rows])), axis=1, return_inverse=True)
    group = group.ravel()
    n_bytes = np.bincount(group, features.sizes[rows])
    wanted, is_cleared = n_wanted[keys[1]], n_cleared[keys[1]] >= _NEARLY * n_wanted[keys[1]]
    fits = is_cleared & (n_bytes >= _NEARLY * wanted) & (n_bytes <= wanted / _NEARLY)
    second = features.next_backward[rows]
    kept = features.end[rows] >= _step_after(features, rows, second)
    through_forward = features.next_forward[rows] < second
    is_once = _runs_once(features)[stack[rows]]
    return features.mask(rows[fits[group] & kept & through_forward & is_once])


def _step_after(features: Features, rows: Int64Column, backward: EventColumn) -> EventColumn:
    """The first event of the step after a backward; where it shows none, the first after the iteration."""
    phases = features.phases
    after = np.searchsorted(phases.iteration, features.iteration[rows], side="right").astype(np.int32)
    return np.minimum(phases.next_after(Phase.OPTIMIZER, backward), after)


def _freed_in_zero_grad(features: Features) -> BoolColumn:
    annotated = at(features.phases.in_zero_grad, features.end).astype(np.bool_)
    return annotated | features.freed_through(Role.ZERO_GRAD) | features.freed_through(Role.SET_GRAD)


def _bytes_of_runs(features: Features, found: BoolColumn) -> NDArray[np.float64]:
    """For each event that is the last of a run, the bytes of the rows that the run made."""
    run = features.alloc_run_last[found]
    return np.bincount(run, features.sizes[found], features.n_events).astype(np.float64)


def _runs_once(features: Features) -> BoolColumn:
    """Per stack, whether it allocates after no more than one backward of an iteration."""
    after = at(features.phases.phase, features.alloc) == Phase.BACKWARD
    rows = np.flatnonzero(after & features.outside & features.has_stack)
    stack, run = features.allocations.stack_id, features.alloc_run_last
    is_once = np.ones(len(features.roles.stacks), np.bool_)
    for of_stack in grouped(rows, stack):
        iterations = grouped(of_stack, features.iteration)
        is_once[stack[of_stack]] = not any(np.ptp(run[of_iteration]) for of_iteration in iterations)
    return is_once
