"""Atoms: the named conditions that facts are made of, each about an allocation or about the recording.

What is not here is a feature (``features.py``), or the role of code: ``made(...)``, ``freed(...)``.
"""

from collections.abc import Callable

import numpy as np

from snapconv.classification import parameters
from snapconv.classification.categories import Category
from snapconv.classification.decisions import Condition, Decided, atom, made
from snapconv.classification.decisions import feature as f
from snapconv.classification.features import Features, at, first_before
from snapconv.classification.parameters import is_training
from snapconv.columns import (
    BoolColumn,
    distinct,
    grouped,
    has_code,
    is_among,
    next_of,
    rows_by,
    rows_of,
    run_starts,
)
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_patterns import CUBLAS_WORKSPACE_BYTES, Role

# cuBLAS has one workspace for every handle and stream: of so few there may be several, traced or
# pre- existing.
_MOST_WORKSPACES, _MOST_OLD_WORKSPACES = 4, 2
# How often a line must lengthen its result, always by the same: fewer may be any two sizes.
_LEAST_LENGTHENED = 2
# Without frames that show autocast, its casts are of so many sizes: two were seen that were none.
_LEAST_CAST = 3
# Of what a forward made until memory ran out, more than this in use: it is trained. Inference keeps
# little.
_LEAST_IN_USE = 0.4


def _column(find: Callable[[Features], BoolColumn | bool]) -> Condition:
    return Condition(lambda decided: find(decided.features))


# Made by a line that makes one for every parameter: of any size, and in full precision beside half.
for_every_parameter = Condition(
    lambda decided: decided.shared(parameters.halves_of_every_parameter) > 0
)
twice_as_large = Condition(
    lambda decided: decided.shared(parameters.halves_of_every_parameter) == 4
)
everything = Condition(lambda decided: True)
undecided = Condition(lambda decided: decided.is_open)
trains = Condition(is_training)
# --- who made it, and when
older = ~f.is_traced
in_step = _column(lambda f: f.is_traced & has_code(f.alloc_phase, Phase.OPTIMIZER))
in_backward = _column(lambda f: has_code(f.alloc_phase, Phase.BACKWARD))
in_annotated_step = _column(lambda f: at(f.phases.in_step, f.alloc))
kept_by_program = f.is_live_at_dump & (f.outside | f.preexisting_outside)
before_first_backward = _column(lambda f: f.alloc < f.phases.first(Phase.BACKWARD))
before_any_forward = _column(lambda f: f.alloc < f.alloc[f.in_forward].min(initial=f.n_events))
in_last_run = _column(lambda f: f.alloc_run_last == f.n_events - 1)
# --- who freed it, and when
freed_in_step = _column(lambda f: has_code(f.end_phase, Phase.OPTIMIZER))
freed_in_zero_grad = _column(lambda f: at(f.phases.in_zero_grad, f.end))
ends_within_run = _column(lambda f: f.end <= f.alloc_run_last)
ends_within_backward = ends_within_run & _column(
    lambda f: (
        (f.end <= f.alloc_run_end)
        | has_code(at(f.phases.phase, f.alloc_run_last + 1), Phase.OPTIMIZER)
    )
)
ends_before_next_phase = _column(lambda f: f.end < np.minimum(f.next_forward, f.next_backward))
in_use_in_backward = _column(lambda f: f.end >= f.next_backward)
in_use_in_forward = _column(lambda f: f.end >= f.next_forward)
ends_after_first_forward = _column(lambda f: f.end > f.phases.first(Phase.FORWARD))
# --- the recording
# The first event that shows a phase is of a backward, by stacks that show it.
begins_in_backward = _column(
    lambda f: (
        f.has_cpp and np.append(f.phases.certain[f.phases.certain > 0], 0)[0] == Phase.BACKWARD
    )
)
ends_out_of_memory = _column(lambda f: f.phases.ends_in_oom)
shows_phases = _column(lambda f: bool(f.in_forward.any() or f.has_next_backward.any()))


@atom
def in_nested_constructors(decided: Decided) -> BoolColumn:
    """Made by an ``__init__`` that another one calls, of the program's code: a layer that a model builds."""
    features = decided.features
    stacks = features.roles.stacks
    is_init = np.array([name == "__init__" for name in stacks.frames.names], bool)
    innermost = features.lines_of(features.allocations.stack_id)
    made: BoolColumn = (innermost >= 0) & np.append(is_init, np.False_)[innermost]
    if not made.any():
        return made
    n_inits = np.bincount(stacks.owners[stacks.with_frames(is_init)], minlength=len(stacks))
    is_nested: BoolColumn = np.append(n_inits > 1, np.False_)[features.allocations.stack_id]
    return made & is_nested


@atom
def workspace_size(decided: Decided) -> BoolColumn:
    """As large as cuBLAS's workspace, kept, and rare; only where no C++ frame names it."""
    features = decided.features
    fits = is_among(features.sizes, CUBLAS_WORKSPACE_BYTES) & features.is_live_at_dump
    without_cpp = np.bool_(not features.has_cpp)
    computed = (has_code(features.alloc_phase, Phase.FORWARD) | features.by_engine) & without_cpp
    found = _rare(features, fits & computed, fits & computed, _MOST_WORKSPACES)
    unnamed = fits & ~features.is_traced & (features.has_no_frames | without_cpp)
    return found | _rare(features, unnamed, fits | True, _MOST_OLD_WORKSPACES)


def _rare(features: Features, rows: BoolColumn, among: BoolColumn, most: int) -> BoolColumn:
    """Leave those of the rows whose size occurs at most so often among others."""
    if not rows.any():
        return rows
    found, counts = np.unique(features.sizes[among], return_counts=True)
    return rows & is_among(features.sizes, found[counts <= most])


@Condition
def in_bulk(decided: Decided) -> BoolColumn:
    """As large as weights, or twice so, of a line that makes several in an iteration: noise, moments."""
    features = decided.features
    model = (
        decided.has(Category.WEIGHT) | features.made_through(Role.PLACEMENT) | features.unrecorded
    )
    sizes = distinct(features.sizes[model])
    rows = rows_of(features.outside | features.preexisting_outside)
    rows = rows[is_among(features.sizes[rows], np.concatenate((sizes, 2 * sizes)))]
    # One number for stack and iteration, either of which may be -1.
    stack = features.allocations.stack_id[rows].astype(np.int64)
    where = stack * (features.phases.n_iterations + 1) + features.iteration[rows]
    _, inverse, counts = np.unique(where, return_inverse=True, return_counts=True)
    return features.mask(rows[counts[inverse] > 1])


@atom
def before_the_graph(decided: Decided) -> BoolColumn:
    """Made before the first module that keeps anything for the next backward."""
    features = decided.features
    saved = rows_of(features.by_module & features.is_freed_by_engine)
    first = first_before(features.next_backward, features.alloc, saved, features.n_events)
    return np.asarray(features.alloc < first)


@atom
def may_be_gradient(decided: Decided) -> BoolColumn:
    """Made by the engine, by the program after a backward, or pre-existing; by a module if it is compiled."""
    features = decided.features
    compiled = features.by_engine & features.made_through(Role.COMPILED)
    by_module = features.made_through(Role.MODULE_CALL) & ~compiled
    by_program = features.outside & (features.alloc > features.phases.first(Phase.BACKWARD))
    return (features.by_engine | by_program | ~features.is_traced) & ~by_module


@Condition
def like_weight(decided: Decided) -> BoolColumn:
    """Known to be a weight, or there throughout, may be one, and the engine did not make it."""
    features = decided.features
    return decided.has(Category.WEIGHT) | (
        features.lasts_throughout & ~features.made_through(Role.ENGINE)
    )


@Condition
def size_of_weight(decided: Decided) -> BoolColumn:
    """As large as what is a weight, or like one."""
    sizes = decided.features.sizes
    return is_among(sizes, distinct(sizes[like_weight.of(decided)]))


_weight_of_layers = like_weight | made(Role.PLACEMENT) | in_nested_constructors


@Condition
def cast_of_weight(decided: Decided) -> BoolColumn:
    """Cast by autocast, half as large as a weight, and no input of the operation.

    By its frames; without them it comes right before a result of its line. An operation casts its
    input last:
    it is the third cast, or comes after one that is no smaller, as a bias is smaller than its
    weight.
    """
    features = decided.features
    sizes = decided.features.sizes
    stack = decided.features.allocations.stack_id
    is_repeated = features.in_forward & np.append(stack[1:] == stack[:-1], False)
    may_be = features.made_through(Role.CAST) if features.has_cpp else is_repeated
    follows = np.append(False, may_be[1:] & (may_be & is_repeated)[:-1])
    is_input = follows & np.append(False, follows[:-1] | (sizes[1:] <= sizes[:-1]))
    is_half = is_among(2 * sizes, distinct(sizes[_weight_of_layers.of(decided)]))
    found = features.in_forward & may_be & is_half & ~is_input
    is_seen = features.has_cpp or features.freed_through(Role.UNCACHED).any()
    return np.asarray(found & np.bool_(is_seen or len(distinct(sizes[found])) >= _LEAST_CAST))


@Condition
def size_of_made_state(decided: Decided) -> BoolColumn:
    """As large as a state that a step of the trace has made."""
    features = decided.features
    states = decided.has(Category.OPTIMIZER_STATE) & features.is_traced
    return is_among(features.sizes, distinct(features.sizes[states]))


@Condition
def replaces_weights(decided: Decided) -> BoolColumn:
    """Made in a step by a line whose results are freed there as the weights before them were."""
    features = decided.features
    former = decided.has(Category.WEIGHT) & features.is_freed
    former &= has_code(features.end_phase, Phase.OPTIMIZER)
    if not (features.phases.free_sites_known and former.any()):
        return np.zeros(len(features.alloc), bool)
    table = features.allocations
    freeing = features.lines_of(table.free_stack_id)
    line = features.lines_of(table.stack_id)
    kept = in_step.of(decided) & (line >= 0) & (features.end > features.alloc_run_last)
    freeing_weights = distinct(freeing[former & (freeing >= 0)])
    freed_so = kept & features.is_freed & is_among(freeing, freeing_weights)
    kept &= is_among(features.sizes, distinct(features.sizes[former]))
    return np.asarray(kept & is_among(line, distinct(line[freed_so])))


@Condition
def infers(decided: Decided) -> bool:
    """Tell whether there are forwards, nothing of training, and nothing kept for a backward."""
    features = decided.features
    if is_training(decided) or decided.shared(saves) == SURELY:
        return False
    return bool((features.in_forward | features.preexisting_in_forward).any())


# How sure it is that forward keeps results for a backward that the trace does not have.
NOT, MAYBE, SURELY = 0, 1, 2
# Measured on forwards of 207 programs: what is trained keeps results of seven lines and more,
# inference of three at most. Where one line makes all, its result is no sign.
_SAVED_SHARE, _SAVED_LINES, _MAYBE_LINES = 0.4, 6, 4


def saves(decided: Decided) -> int:
    """Return how surely forward keeps results, no caches, for a backward that the trace does not have."""
    features = decided.features
    is_cache = features.made_through(Role.CACHE_UPDATE) | lengthened.of(decided)
    made_there = features.in_forward & ~is_cache
    kept = made_there & features.is_live_at_dump
    if not kept.any():
        return NOT
    share = features.sizes[kept].sum() / max(1, features.sizes[made_there].sum())
    n_kept = len(distinct(features.allocations.stack_id[kept]))
    if n_kept >= _SAVED_LINES or (n_kept > 1 and share > _SAVED_SHARE):
        return SURELY
    return MAYBE if n_kept >= _MAYBE_LINES else NOT


surely_saves = Condition(lambda decided: decided.shared(saves) == SURELY)
maybe_saves = Condition(lambda decided: decided.shared(saves) != NOT)


@atom
def outlives_forward(decided: Decided) -> BoolColumn:
    """Made in forward, and there when something is made outside of modules."""
    features = decided.features
    after = next_of(features.alloc[features.outside], features.alloc, features.n_events)
    return features.in_forward & (features.end > after)


@atom
def lengthened(decided: Decided) -> BoolColumn:
    """Made anew by one stack, kept until then, and each time longer by the same."""
    features = decided.features
    stack = decided.features.allocations.stack_id
    unfinished = features.is_live_at_dump & ~features.has_next_backward
    kept = features.in_forward & features.has_stack & (outlives_forward.of(decided) | unfinished)
    rows = rows_of(kept)
    rows = rows_by(features.alloc, rows)
    lines = []
    for of_line in grouped(rows, stack):
        sizes = features.sizes[of_line]
        more = np.diff(sizes[run_starts(sizes)])
        longer = more[more > 0]  # it begins anew with every text
        if len(longer) >= _LEAST_LENGTHENED and np.all(longer == longer[0]):
            lines.append(stack[of_line[0]])
    return kept & is_among(stack, lines)


@atom
def in_use_when_memory_ran_out(decided: Decided) -> BoolColumn:
    """In use when memory ran out in its forward, as most of what that had made."""
    features = decided.features
    if not len(features.phases.oom_events):
        return np.zeros(len(features.alloc), bool)
    oom = next_of(features.phases.oom_events, features.alloc, features.n_events)
    failed = features.in_forward & (oom <= features.alloc_run_last)
    in_use = failed & (features.end > oom)
    return in_use & np.bool_(
        features.sizes[in_use].sum() > _LEAST_IN_USE * features.sizes[failed].sum()
    )


@atom
def freed_after_own(decided: Decided) -> BoolColumn:
    """Freed once backward has freed something of its own, that it was seen to make."""
    features = decided.features
    own = features.is_traced & features.by_engine & features.is_freed_by_engine
    return np.asarray(features.end > features.end[own].min(initial=features.n_events))


after_forward_or_own = ends_after_first_forward | (
    _column(lambda f: not f.roles.has[Role.RELEASE].any()) & freed_after_own
)
