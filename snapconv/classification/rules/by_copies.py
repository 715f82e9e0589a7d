"""Weights, gradients and optimizer state, separated only by how often each size occurs.

Blocks that were live before recording began have neither frames nor an alloc. But a gradient has its weight's
size, Adam keeps two more copies of each, SGD with momentum one: so the counts of sizes have a structure.
Where the gradients of an iteration are known, they are the reference; without them, only a structure that
chance does not make is accepted.
"""

from dataclasses import replace

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.factored_states import kept_for_dimensions
from snapconv.classification.features import Features, of_fullest
from snapconv.classification.frozen_forwards import frozen_modules_ran
from snapconv.classification.frozen_layers import frozen_layers
from snapconv.classification.functional_updates import functional_updates
from snapconv.classification.rule import Decided, PipelineRule, Reason, Rule, rule
from snapconv.classification.size_references import (
    NEEDED_SHARE,
    Preexisting,
    in_half,
    least_trained,
    live_at_once,
    may_have_states,
    of_one_model,
    one_copy_of_states,
)
from snapconv.classification.size_splits import (
    ADDED,
    AS_GRADIENTS,
    AS_STATES,
    BESIDE_STATES,
    COPIES_BESIDE_GRADIENTS,
    COPIES_BESIDE_STATES,
    FOURS,
    FULL_PRECISION,
    GRADIENT_OR_STATE,
    STATES,
    THREES,
    TWOS,
    SizeSplit,
    options_left,
    split_by_added,
    split_by_bounds,
    split_by_copies,
    split_by_options,
    split_by_precision,
    split_by_states,
    split_by_structure,
    split_of_sparse,
)
from snapconv.classification.two_step_updates import kept_between_two_steps
from snapconv.classification.weight_averages import averages_are_updated
from snapconv.classification.weights_in_place import in_place_of_weights
from snapconv.columns import BoolColumn, Int32Column, Int64Column, distinct, is_among
from snapconv.phases.trace_phases import Phase
from snapconv.replay.device_replay import AllocationTable
from snapconv.torch_knowledge.frame_roles import Role

NOT_TRAINED = Reason(
    "kept-without-gradient",
    "as large as no gradient, although the trace has all of a step, and such sizes repeat: not trained",
)

_W, _G, _S = Category.WEIGHT, Category.GRADIENT, Category.OPTIMIZER_STATE


def _split(features: Features, decided: Decided) -> SizeSplit:
    """Compare the open blocks without an alloc with the gradients and states that are known."""
    in_backward = features.by_engine & decided.has(Category.TEMPORARY)
    updates = decided.shared(functional_updates, features)
    in_place = decided.shared(in_place_of_weights, features)
    known = Preexisting(
        candidates=decided.is_open & features.unrecorded,
        gradients=decided.has(Category.GRADIENT) & ~updates.inner,
        states=_made_states(features, decided),
        summed=in_backward,
        added=in_backward & features.freed_through(Role.ACCUMULATION),
        iteration=features.iteration,
        run=features.alloc_run_last,
        whole=_whole_iterations(features),
        n_states=features.phases.n_states,
        states_range=features.phases.states_range,
        most_states=features.phases.most_states,
        states_are_built=features.phases.states_are_built,
        has_frozen_copy=_has_second_model(features),
        has_several_steps=features.phases.has_several_steps,
        has_sparse_steps=features.phases.has_sparse_steps,
        left=in_place.left,
        may_have_left=in_place.left | in_place.may_be_state,
    )
    return split_by_sizes(features.allocations, known)


def _has_second_model(features: Features) -> bool | None:
    """Whether a copy of the model, or an average, is there; not asked where the states are known without."""
    if features.phases.n_states is not None:
        return None
    return averages_are_updated(features) or frozen_modules_ran(features)


def _made_states(features: Features, decided: Decided) -> BoolColumn:
    """States of a parameter each: not of a dimension of it, nor what two steps keep between them."""
    of_dimensions = decided.shared(kept_for_dimensions, features)
    states = decided.has(Category.OPTIMIZER_STATE) & ~decided.shared(kept_between_two_steps, features)
    return states & ~is_among(features.sizes, distinct(features.sizes[of_dimensions]))


def _whole_iterations(features: Features) -> Int64Column:
    """The iterations of which the trace has the backward from its beginning: forward comes before it."""
    forward, first_forward = _first_of_iterations(features, Phase.FORWARD)
    backward, first_backward = _first_of_iterations(features, Phase.BACKWARD)
    both, in_forward, in_backward = np.intersect1d(forward, backward, return_indices=True)
    return np.asarray(both[first_forward[in_forward] < first_backward[in_backward]], np.int64)


def _first_of_iterations(features: Features, phase: Phase) -> tuple[Int32Column, Int64Column]:
    """The iterations that have a phase, and the first event of each that shows it."""
    events = np.flatnonzero(features.phases.certain == phase)
    iterations, first = np.unique(features.phases.iteration[events], return_index=True)
    return iterations, events[first]


def split_by_sizes(allocations: AllocationTable, known: Preexisting) -> SizeSplit:
    """Split the candidates, as far as their sizes allow."""
    sizes, found = allocations.requested_bytes, SizeSplit(len(allocations))
    rows = np.flatnonzero(known.candidates)
    if not len(rows):
        return found
    gradients = of_one_model(allocations, _fullest_gradients(sizes, known), known.run)
    states = one_copy_of_states(allocations, known)
    is_whole = bool(is_among(known.iteration[gradients], known.whole).any())
    by_gradients = is_whole or sizes[gradients].sum() >= sizes[states].sum()
    reference = sizes[gradients] if by_gradients else sizes[states]
    added = of_fullest(np.flatnonzero(known.added), known.run, sizes)
    gradients_stay = not known.has_several_steps and sizes[added].sum() > sizes[gradients].sum()
    if gradients_stay and split_by_added(found, rows, sizes, sizes[added], known):
        return _with_not_trained(found, rows, sizes, added, known)
    # A few temporaries of backward that are taken for gradients must not spoil a good fit as a whole.
    is_weak = 2 * sizes[rows][is_among(sizes[rows], reference)].sum() < sizes[rows].sum()
    if is_weak and split_by_structure(found, rows, sizes, distinct(sizes[known.summed]), known):
        return found
    if is_weak and not by_gradients:
        return found
    if by_gradients and split_by_precision(found, rows, sizes, in_half(_of_whole(allocations, known)), known):
        return found
    made = sizes[known.states & (allocations.end_event < 0)]
    trained = sizes[gradients] if is_whole else sizes[:0]
    if known.has_several_steps:
        trained = live_at_once(allocations, known, rows)
    if by_gradients and known.n_states and len(trained):
        left = np.flatnonzero(known.may_have_left)
        n_states = known.n_states
        split_by_states(found, rows, sizes, trained=trained, made=made, left=left, n_states=n_states)
    elif by_gradients and known.n_states and not len(made):
        bounded = split_by_bounds(found, rows, sizes, least_trained(allocations, known), known.n_states)
        rows = rows[~is_among(rows, bounded)]
    rows = rows[~is_among(sizes[rows], distinct(sizes[known.left]))]
    options = options_left(known, sizes[gradients], made)
    if not (by_gradients and is_whole and split_by_options(found, rows, sizes, sizes[gradients], options)):
        split_by_copies(found, rows, sizes, reference, known, by_gradients=by_gradients)
    if not by_gradients:
        return found
    if known.has_sparse_steps:
        split_of_sparse(found, rows[~is_among(sizes[rows], sizes[known.gradients])], sizes)
    return _with_not_trained(found, rows, sizes, gradients, known)


def _with_not_trained(
    found: SizeSplit, rows: Int64Column, sizes: Int64Column, gradients: Int64Column, known: Preexisting
) -> SizeSplit:
    """The same with the rows as large as none of the gradients, where these are of a whole iteration.

    Or of whole iterations of one of several optimizers, unless the rows may be a model of another one.
    """
    is_whole = is_among(known.iteration[gradients], known.whole).any()
    # Whole iterations of one optimizer: another one's gradients are of others, or were there before.
    is_in_turn = known.has_several_steps and len(known.whole) > 0
    seen = sizes[gradients] if is_whole else sizes[known.gradients]
    without = rows[~is_among(sizes[rows], seen)]
    if is_whole or (is_in_turn and not may_have_states(sizes[without], known)):
        return replace(found, not_trained=without, added_to=distinct(sizes[known.added]))
    return found


def _fullest_gradients(sizes: Int64Column, known: Preexisting) -> Int64Column:
    """The gradients of the iteration with most bytes of them.

    Rather of a whole one, if nearly as full: of those from before the trace a few may be something else.
    """
    rows = np.flatnonzero(known.gradients)
    fullest = of_fullest(rows, known.iteration, sizes)
    of_whole = of_fullest(rows[is_among(known.iteration[rows], known.whole)], known.iteration, sizes)
    is_nearly_as_full = sizes[of_whole].sum() >= NEEDED_SHARE * sizes[fullest].sum()
    return of_whole if is_nearly_as_full else fullest


def _of_whole(allocations: AllocationTable, known: Preexisting) -> Int64Column:
    """The sizes of the gradients of one iteration that the trace has from its beginning.

    Those from before it may be in full precision, and as many bytes more.
    """
    sizes = allocations.requested_bytes
    rows = np.flatnonzero(known.gradients & is_among(known.iteration, known.whole))
    rows = of_one_model(allocations, of_fullest(rows, known.iteration, sizes), known.run)
    return np.asarray(sizes[rows])


def _by_split(name: str, reason: Reason, category: Category) -> Rule:
    """A rule for what the split has found for a reason."""

    def where(features: Features, decided: Decided) -> BoolColumn:
        return decided.shared(_split, features).of(reason, category)

    return Rule(name, reason, category, Evidence.SIZES, where)


@rule(NOT_TRAINED, Category.WEIGHT, Evidence.SIZES)
def not_trained(features: Features, decided: Decided) -> BoolColumn:
    """What stays and has the size of no gradient, although all gradients were seen, is not trained.

    Nor does backward add to gradients of the size, which stay.
    """
    split = decided.shared(_split, features)
    rows = frozen_layers(features, decided, split.not_trained)
    return features.mask(rows[~is_among(features.sizes[rows], split.added_to)])


BY_COPIES: tuple[PipelineRule, ...] = (
    _by_split("weights_beside_gradients_that_stay", ADDED, _W),
    _by_split("states_beside_gradients_that_stay", ADDED, _S),
    _by_split("gradients_that_stay", ADDED, _G),
    _by_split("4_copies_weight", FOURS, _W),
    _by_split("4_copies_optimizer_state", FOURS, _S),
    *(
        _by_split(f"{n_copies}_copies_{category.label}", reason, category)
        for n_copies, reason in ((3, THREES), (2, TWOS))
        for category in (_W, _G, _S)
    ),
    _by_split("gradient_or_state", GRADIENT_OR_STATE, Category.UNKNOWN),
    _by_split("weights_in_full_precision", FULL_PRECISION, _W),
    _by_split("states_in_full_precision", FULL_PRECISION, _S),
    _by_split("weights_beside_states", BESIDE_STATES, _W),
    _by_split("states_of_optimizer", STATES, _S),
    _by_split("as_many_as_gradients", AS_GRADIENTS, _W),
    _by_split("copies_beside_gradients", COPIES_BESIDE_GRADIENTS, _S),
    not_trained,
    _by_split("as_many_as_states", AS_STATES, _W),
    _by_split("copies_beside_states", COPIES_BESIDE_STATES, _G),
)
