"""Atoms: the named conditions that facts are made of, each about an allocation or about the recording."""

from collections.abc import Callable

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.decisions import Condition, Decided, atom, freed, judged, made
from snapconv.classification.features import Features, at, first_before, last_before, next_of
from snapconv.classification.parameters import (
    find_parameters,
    gradients_of_samples,
    is_training,
    lines_per_parameter,
)
from snapconv.columns import BoolColumn, EventColumn, Int64Column, distinct, grouped, is_among, run_starts
from snapconv.phases.trace_phases import Phase
from snapconv.torch_knowledge.frame_patterns import CUBLAS_WORKSPACE_BYTES
from snapconv.torch_knowledge.frame_roles import Role

# cuBLAS has one workspace for every handle and stream: of so few there may be several, traced or pre-
# existing.
_MOST_WORKSPACES, _MOST_OLD_WORKSPACES = 4, 2
# How often a line must lengthen its result, always by the same: fewer may be any two sizes.
_LEAST_LENGTHENED = 2
# Of what a forward made until memory ran out, more than this in use: it is trained. Inference keeps little.
_LEAST_IN_USE = 0.4


def _column(name: str, find: Callable[[Features], BoolColumn | bool]) -> Condition:
    return Condition(name, lambda decided: find(decided.features))


# --- who made it
traced = _column("traced", lambda f: f.is_traced)
by_engine = _column("by_engine", lambda f: f.by_engine)
in_forward = _column("in_forward", lambda f: f.in_forward)
outside = _column("outside", lambda f: f.outside)
in_backward = _column("in_backward", lambda f: f.alloc_phase == Phase.BACKWARD)
in_step = _column("in_step", lambda f: f.is_traced & (f.alloc_phase == Phase.OPTIMIZER))
in_annotated_step = _column("in_annotated_step", lambda f: at(f.phases.in_step, f.alloc).astype(np.bool_))
in_hook = _column("in_hook", lambda f: f.made_in_hook)
without_frames = _column("without_frames", lambda f: f.has_no_frames)
unrecorded = _column("unrecorded", lambda f: f.unrecorded)
older_in_forward = _column("older_in_forward", lambda f: f.preexisting_in_forward)
older_outside = _column("older_outside", lambda f: f.preexisting_outside)
from_nothing = _column("from_nothing", lambda f: f.from_nothing)
feeds_module = _column("feeds_module", lambda f: f.feeds_module)
may_be_input = _column("may_be_input", lambda f: f.may_be_input)
mid_forward = _column("mid_forward", lambda f: f.mid_forward)
# --- who freed it, and when
is_freed = _column("is_freed", lambda f: f.is_freed)
is_live = _column("is_live", lambda f: f.is_live_at_dump)
freed_by_engine = _column("freed_by_engine", lambda f: f.is_freed_by_engine)
freed_in_own_forward = _column("freed_in_own_forward", lambda f: f.is_freed_in_own_forward)
freed_in_hook = _column("freed_in_hook", lambda f: f.is_freed_in_hook)
freed_in_step = _column("freed_in_step", lambda f: f.end_phase == Phase.OPTIMIZER)
freed_in_zero_grad = _column(
    "freed_in_zero_grad", lambda f: at(f.phases.in_zero_grad, f.end).astype(np.bool_)
)
free_was_requested = _column("free_was_requested", lambda f: f.allocations.free_requested_event >= 0)
ends_within_run = _column("ends_within_run", lambda f: f.end <= f.alloc_run_last)
ends_within_backward = _column("ends_within_backward", lambda f: f.end <= f.alloc_run_end)
ends_before_step = _column(
    "ends_before_step", lambda f: (f.next_run_phase == Phase.OPTIMIZER) & (f.end <= f.alloc_run_last)
)
ends_before_next_phase = _column(
    "ends_before_next_phase", lambda f: f.end < np.minimum(f.next_forward, f.next_backward)
)
reaches_backward = _column("reaches_backward", lambda f: f.reaches_backward)
in_use_in_backward = _column("in_use_in_backward", lambda f: f.end >= f.next_backward)
in_use_in_forward = _column("in_use_in_forward", lambda f: f.end >= f.next_forward)
ends_in_first_run = _column(
    "ends_in_first_run", lambda f: f.end <= (f.phases.run_end[0] if f.n_events else -1)
)
ends_in_forward = _column("ends_in_forward", lambda f: f.end_phase == Phase.FORWARD)
ends_after_first_forward = _column("ends_after_first_forward", lambda f: f.first(Phase.FORWARD) < f.end)
# --- the recording
has_cpp = _column("has_cpp", lambda f: f.has_cpp)
has_backward = _column("has_backward", lambda f: f.has_next_backward)
begins_in_step = _column("begins_in_step", lambda f: f.n_events > 0 and f.phases.phase[0] == Phase.OPTIMIZER)
names_release = _column("names_release", lambda f: bool(f.roles.has[Role.RELEASE].any()))
has_recompute = _column("has_recompute", lambda f: bool(f.roles.has[Role.RECOMPUTE].any()))
ends_out_of_memory = _column("ends_out_of_memory", lambda f: f.phases.ends_in_oom)
in_last_run = _column("in_last_run", lambda f: f.alloc_run_last == f.n_events - 1)
without_modules = _column("without_modules", lambda f: not f.by_module.any())
shows_phases = _column("shows_phases", lambda f: bool(f.in_forward.any() or f.has_next_backward.any()))
of_last_iteration = _column(
    "of_last_iteration", lambda f: f.iteration >= f.iteration[f.in_forward].max(initial=-1)
)
before_first_backward = _column("before_first_backward", lambda f: f.alloc < f.first(Phase.BACKWARD))
before_any_forward = _column(
    "before_any_forward", lambda f: f.alloc < f.alloc[f.in_forward].min(initial=f.n_events)
)


@judged
def trains(decided: Decided) -> bool:
    """Tell whether a backward or a step is in the trace, or states are known."""
    return is_training(decided)


@atom
def everything(decided: Decided) -> bool:
    """Every allocation."""
    return True


kept_by_program = is_live & (outside | older_outside)
older = ~traced


@atom
def begins_in_backward(decided: Decided) -> bool:
    """Tell whether the trace begins within a backward, by stacks that show it."""
    shown = decided.features.phases.certain
    shown = shown[shown > 0]
    return len(shown) > 0 and shown[0] == Phase.BACKWARD and decided.features.has_cpp


@atom
def workspace_size(decided: Decided) -> BoolColumn:
    """As large as cuBLAS's workspace, kept, and rare; only where no C++ frame names it."""
    features = decided.features
    sizes = features.sizes
    fits = is_among(sizes, CUBLAS_WORKSPACE_BYTES) & features.is_live_at_dump
    found = np.zeros(len(sizes), np.bool_)
    if not features.has_cpp:
        computed = fits & ((features.alloc_phase == Phase.FORWARD) | features.by_engine)
        found |= computed & _is_rare(sizes, computed, _MOST_WORKSPACES)
    unnamed = fits & ~features.is_traced & (features.has_no_frames | np.bool_(not features.has_cpp))
    return found | (unnamed & _is_rare(sizes, np.ones(len(sizes), np.bool_), _MOST_OLD_WORKSPACES))


def _is_rare(sizes: Int64Column, where: BoolColumn, most: int) -> BoolColumn:
    found, counts = np.unique(sizes[where], return_counts=True)
    return is_among(sizes, found[counts <= most])


@judged
def in_bulk(decided: Decided) -> BoolColumn:
    """As large as weights, of a line that makes several in an iteration: noise, moments and copies.

    As large as a weight, or as a block without frames that may be one, or twice as large (full precision).
    """
    features = decided.features
    model = decided.has(Category.WEIGHT) | features.made_through(Role.PLACEMENT) | features.unrecorded
    sizes = distinct(features.sizes[model])
    rows = np.flatnonzero(features.outside | features.preexisting_outside)
    rows = rows[is_among(features.sizes[rows], np.concatenate((sizes, 2 * sizes)))]
    # One number for stack and iteration, either of which may be -1.
    stack = features.allocations.stack_id[rows].astype(np.int64)
    where = stack * (features.phases.n_iterations + 1) + features.iteration[rows]
    _, inverse, counts = np.unique(where, return_inverse=True, return_counts=True)
    return features.mask(rows[counts[inverse] > 1])


@atom
def in_nested_constructors(decided: Decided) -> BoolColumn:
    """Made by an ``__init__`` that another one calls, of the program's code: a layer that a model builds."""
    features = decided.features
    stacks = features.roles.stacks
    is_init = np.array([name == "__init__" for name in stacks.frames.names], np.bool_)
    innermost = features.lines()
    made: BoolColumn = (innermost >= 0) & np.append(is_init, np.False_)[innermost]
    if not made.any():
        return made
    stack_of_frame = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))
    n_inits = np.bincount(stack_of_frame[is_init[stacks.frame_ids]], minlength=len(stacks))
    is_nested: BoolColumn = np.append(n_inits > 1, np.False_)[features.allocations.stack_id]
    return made & is_nested


@judged
def replaces_weights(decided: Decided) -> BoolColumn:
    """Made in a step by a line whose results are freed there as the weights before them were."""
    features = decided.features
    former = decided.has(Category.WEIGHT) & features.is_freed & (features.end_phase == Phase.OPTIMIZER)
    if not (features.phases.free_sites_known and former.any()):
        return np.zeros(len(features.alloc), np.bool_)
    freeing, line = features.lines_of(features.allocations.free_stack_id), features.lines()
    kept = features.is_traced & (features.alloc_phase == Phase.OPTIMIZER) & (line >= 0)
    kept &= features.end > features.alloc_run_last
    freeing_weights = distinct(freeing[former & (freeing >= 0)])
    alike = kept & features.is_freed & is_among(freeing, freeing_weights)
    kept &= is_among(features.sizes, distinct(features.sizes[former]))
    return np.asarray(kept & is_among(line, distinct(line[alike])))


@atom
def for_each_parameter(decided: Decided) -> BoolColumn:
    """Of a line outside of modules that makes one for nearly every parameter in an iteration.

    Gradients are known when the first fact needs it, and it is not found again for later ones.
    """
    return lines_per_parameter(decided)


@judged
def of_samples(decided: Decided) -> BoolColumn:
    """Of nearly all parameters' sizes times one whole number, in one iteration, and in use in its step."""
    return gradients_of_samples(decided, find_parameters(decided).sizes)


@atom
def before_the_graph(decided: Decided) -> BoolColumn:
    """Made before the first module that keeps anything for the next backward."""
    features = decided.features
    saved = np.flatnonzero(features.by_module & features.is_freed_by_engine)
    first = first_before(features.next_backward, features.alloc, saved, features.n_events)
    return np.asarray(features.alloc < first)


@atom
def may_be_gradient(decided: Decided) -> BoolColumn:
    """Made by the engine, by the program after a backward, or pre-existing, and by no module.

    Modules run in backward where a checkpoint computes again; but a compiled backward makes gradients.
    """
    features = decided.features
    by_module = features.made_through(Role.MODULE_CALL)
    by_module &= ~(features.by_engine & features.made_through(Role.COMPILED))
    by_program = features.outside & (features.alloc > features.first(Phase.BACKWARD))
    return (features.by_engine | by_program | ~features.is_traced) & ~by_module


replaced_in_backward = freed_in_hook | freed(Role.ACCUMULATION)


@judged
def size_of_weight(decided: Decided) -> BoolColumn:
    """As large as a weight, or as what is there throughout, may be one, and the engine did not make."""
    features = decided.features
    like = decided.has(Category.WEIGHT) | (features.lasts_throughout & ~features.made_through(Role.ENGINE))
    return is_among(features.sizes, distinct(features.sizes[like]))


@judged
def as_many_as_named_weights(decided: Decided) -> BoolColumn:
    """Without frames, no more of a size than weights with frames: with Python-only stacks, of the engine."""
    features, sizes = decided.features, decided.features.sizes
    there = features.lasts_throughout & np.bool_(not features.has_cpp)
    unnamed = there & features.has_no_frames & ~features.unrecorded & decided.is_open
    weights = there & ~features.has_no_frames & decided.has(Category.WEIGHT)
    if not (unnamed.any() and weights.any()):
        return np.zeros(len(sizes), np.bool_)
    found, inverse = np.unique(sizes, return_inverse=True)
    n_unnamed, n_weights = (np.bincount(inverse[rows], minlength=len(found)) for rows in (unnamed, weights))
    return np.asarray(unnamed & (n_unnamed <= n_weights)[inverse])


@judged
def size_of_made_state(decided: Decided) -> BoolColumn:
    """As large as a state that a step of the trace has made."""
    features = decided.features
    states = decided.has(Category.OPTIMIZER_STATE) & features.is_traced
    return is_among(features.sizes, distinct(features.sizes[states]))


@judged
def infers(decided: Decided) -> bool:
    """Tell whether there are forwards, nothing of training, and nothing kept for a backward."""
    features = decided.features
    if is_training(decided) or saves(decided) == SURELY:
        return False
    return bool((features.in_forward | features.preexisting_in_forward).any())


# How sure it is that forward keeps results for a backward that the trace does not have.
NOT, MAYBE, SURELY = 0, 1, 2
# Measured on forwards of 207 programs: what is trained keeps results of seven lines and more, inference of
# three at most. Where one line makes all, its result is no sign.
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
    stack = features.allocations.stack_id
    n_kept = len(distinct(stack[kept]))
    if n_kept >= _SAVED_LINES or (n_kept > 1 and share > _SAVED_SHARE):
        return SURELY
    return MAYBE if n_kept >= _MAYBE_LINES else NOT


@atom
def surely_saves(decided: Decided) -> bool:
    """Forward keeps results for a backward that the trace does not have."""
    return saves(decided) == SURELY


@atom
def maybe_saves(decided: Decided) -> bool:
    """Forward may keep results for a backward that the trace does not have."""
    return saves(decided) != NOT


@atom
def outlives_forward(decided: Decided) -> BoolColumn:
    """Made in forward, and there when something is made outside of modules."""
    features = decided.features
    after = next_of(features.alloc[features.outside], features.alloc, features.n_events)
    return features.in_forward & (features.end > after)


@atom
def lengthened(decided: Decided) -> BoolColumn:
    """Made anew by one stack, kept until then, and each time longer by the same."""
    features, stack = decided.features, decided.features.allocations.stack_id
    unfinished = features.is_live_at_dump & ~features.has_next_backward
    kept = features.in_forward & features.has_stack & (outlives_forward.of(decided) | unfinished)
    rows = np.flatnonzero(kept)
    rows = rows[np.argsort(features.alloc[rows], kind="stable")]
    lines = []
    for of_line in grouped(rows, stack):
        sizes = features.sizes[of_line]
        more = np.diff(sizes[run_starts(sizes)])
        longer = more[more > 0]  # it begins anew with every text
        if len(longer) >= _LEAST_LENGTHENED and np.all(longer == longer[0]):
            lines.append(stack[of_line[0]])
    return kept & is_among(stack, lines)


@judged
def held_by_attribute(decided: Decided) -> BoolColumn:
    """Made in forward, and freed by a later one that gives an attribute a new value; or of the same line."""
    features = decided.features
    held = features.in_forward & features.freed_through(Role.ATTRIBUTE)
    held &= features.end >= features.phases.next_after(Phase.FORWARD, features.alloc_run_end)
    if not held.any():
        return held
    line = features.lines()
    of_lines = (line >= 0) & is_among(line, line[held])
    found = held | (of_lines & features.in_forward & features.is_live_at_dump)
    # What backward has gradients of, which it frees, was computed for it.
    gradients, freed_ = (
        distinct(features.sizes[decided.has(category) & features.by_engine])
        for category in (Category.GRADIENT, Category.TEMPORARY)
    )
    return found & ~is_among(features.sizes, np.intersect1d(gradients, freed_))


@atom
def in_use_when_memory_ran_out(decided: Decided) -> BoolColumn:
    """In use when memory ran out in its forward, as most of what that had made."""
    features = decided.features
    oom = next_of(features.phases.oom_events, features.alloc, features.n_events)
    failed = features.in_forward & (oom <= features.alloc_run_last)
    in_use = failed & (features.end > oom)
    return in_use & np.bool_(features.sizes[in_use].sum() > _LEAST_IN_USE * features.sizes[failed].sum())


@atom
def renewed(decided: Decided) -> BoolColumn:
    """Of a stack that makes others too, which are freed."""
    features, stack = decided.features, decided.features.allocations.stack_id
    return is_among(stack, stack[features.outside & features.is_freed])


@atom
def freed_after_own(decided: Decided) -> BoolColumn:
    """Freed once backward has freed something of its own, that it was seen to make."""
    features = decided.features
    own = features.is_traced & features.by_engine & features.is_freed_by_engine
    return np.asarray(features.end > features.end[own].min(initial=features.n_events))


@judged
def of_functions(decided: Decided) -> BoolColumn:
    """Made by a forward of functions: it begins with the first result that its backward frees."""
    rows, begin = _forward_of_functions(decided)
    return rows & (decided.features.alloc >= begin)


@judged
def before_functions(decided: Decided) -> BoolColumn:
    """Made before or in a forward of functions that has a beginning."""
    rows, begin = _forward_of_functions(decided)
    return rows & (begin < decided.features.n_events)


def _forward_of_functions(decided: Decided) -> tuple[BoolColumn, EventColumn]:
    """Return what is made before a backward without any module, and where that forward begins, by row."""
    features = decided.features
    modules, others = np.sort(features.alloc[features.by_module]), features.phases.events_of_training
    rows = np.flatnonzero(features.outside)
    alloc = features.alloc[rows]
    is_next = features.next_backward[rows] < next_of(modules, alloc, features.n_events)
    is_first = last_before(modules, alloc) <= last_before(others, alloc)
    marked = features.mask(rows[is_next & is_first])
    saved = np.flatnonzero(marked & features.is_freed_by_engine & decided.has(Category.ACTIVATION))
    return marked, first_before(features.next_backward, features.alloc, saved, features.n_events)


made_by_module = made(Role.MODULE_CALL)


@atom
def before_this_forward(decided: Decided) -> BoolColumn:
    """No forward has run yet since the last backward or step."""
    features = decided.features
    forward = last_before(np.flatnonzero(features.phases.certain == Phase.FORWARD), features.alloc)
    return np.asarray(forward <= last_before(features.phases.events_of_training, features.alloc))
