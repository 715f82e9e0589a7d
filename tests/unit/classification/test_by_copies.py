"""Pre-existing blocks without frames, distinguished by how often each size occurs."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from snapconv.classification.categories import Category, Evidence
from snapconv.classification.rule import Decided
from snapconv.classification.rules.by_copies import BY_COPIES, split_by_sizes
from snapconv.classification.size_references import Preexisting, live_at_once
from snapconv.classification.size_splits import GRADIENT_OR_STATE
from snapconv.replay.device_replay import AllocationTable
from tests.classified_jobs import (
    ADD_TO_GRADIENT,
    ENGINE,
    FORWARD,
    MAIN,
    NO_FRAMES,
    STEP,
    ZERO_GRAD,
    Job,
    classified,
)

KIB = 1024
SHAPES = (4 * KIB, 4 * KIB, 8 * KIB, 20 * KIB)  # two tensors of one size, two of sizes of their own
PLAIN, GRADIENT, STATE, SUMMED, ADDED = "candidate", "gradient", "state", "temporary of backward", "added"
LEFT, MAY_HAVE_LEFT = "a weight from before that lies elsewhere", "one that may as well be a state"
OPEN = "a gradient or a state"


def allocations_of(sizes, stacks):
    n = len(sizes)
    zeros, missing, flags = np.zeros(n, np.int64), np.full(n, -1, np.int64), np.ones(n, np.bool_)
    return AllocationTable(
        alloc_event=missing,
        free_requested_event=missing,
        free_completed_event=missing,
        end_event=missing,
        addr=512 * np.arange(n),
        stream=zeros,
        requested_bytes=np.array(sizes, np.int64),
        block_bytes=np.array(sizes, np.int64),
        is_exact=flags,
        is_pending_at_end=~flags,
        pool_id=missing.astype(np.int32),
        stack_id=np.array(stacks, np.int32),
        free_stack_id=missing.astype(np.int32),
    )


def decided_by_copies(allocations, known):
    """Evaluate the rules about copies where only ``known`` is known."""
    split, sizes = split_by_sizes(allocations, known), allocations.requested_bytes
    features = SimpleNamespace(
        sizes=sizes,
        mask=lambda rows: np.isin(np.arange(len(sizes)), rows),
        is_traced=np.zeros(len(sizes), np.bool_),
        alloc_phase=np.zeros(len(sizes), np.int8),
        unrecorded=known.candidates,
        in_forward=np.zeros(len(sizes), np.bool_),
        outside=np.zeros(len(sizes), np.bool_),
        is_live_at_dump=np.ones(len(sizes), np.bool_),
        alloc=np.full(len(sizes), -1),
        first=lambda _: 0,
        has_cpp=True,
        phases=SimpleNamespace(events_of_training=()),
        made_through=lambda _: np.zeros(len(sizes), np.bool_),
    )
    decided = Decided(len(sizes))
    decided.shared = lambda *_: split  # type: ignore[method-assign, assignment]
    for rule in BY_COPIES:
        for proposal in rule.proposals(features, decided):
            decided.add(proposal)
    return decided.result()


def sort(
    *rows,
    whole=(),
    n_states=None,
    states_range=None,
    most_states=None,
    states_are_built=False,
    has_frozen_copy=False,
    has_several_steps=False,
    has_sparse_steps=False,
):
    """Sort rows of (role, size, more): a gradient's iteration, or a state's stack + 100 x iteration.

    The candidates as bytes per category, or OPEN, with the reasons.
    """
    roles, sizes, more = zip(*(row if len(row) == 3 else (*row, -1) for row in rows), strict=True)
    kinds = np.array(roles)
    extra = np.array(more, np.int64)
    allocations = allocations_of(sizes, np.where(kinds == STATE, extra % 100, -1))
    known = Preexisting(
        candidates=kinds == PLAIN,
        gradients=kinds == GRADIENT,
        states=kinds == STATE,
        summed=(kinds == SUMMED) | (kinds == ADDED),
        added=kinds == ADDED,
        whole=np.array(whole, np.int64),
        n_states=n_states,
        states_range=states_range,
        most_states=most_states,
        states_are_built=states_are_built,
        has_frozen_copy=has_frozen_copy,
        has_several_steps=has_several_steps,
        has_sparse_steps=has_sparse_steps,
        left=kinds == LEFT,
        may_have_left=(kinds == LEFT) | (kinds == MAY_HAVE_LEFT),
        iteration=np.where(kinds == STATE, extra // 100, extra),
        run=np.full(len(sizes), -1),
    )
    found = decided_by_copies(allocations, known)
    is_plain = np.isin(kinds, (PLAIN, LEFT, MAY_HAVE_LEFT))
    assert not found.category[~is_plain].any()
    decided = is_plain & (found.reason_id > 0)
    assert (found.evidence[decided] == Evidence.SIZES).all()
    reasons, totals = np.array(found.reasons)[found.reason_id], {}
    for row in np.flatnonzero(is_plain).tolist():
        key = OPEN if reasons[row] == GRADIENT_OR_STATE.slug else Category(found.category[row])
        totals[key] = totals.get(key, 0) + sizes[row]
    return totals, set(reasons[decided].tolist()) - {GRADIENT_OR_STATE.slug}


def copies(role, n, shapes=SHAPES, more=-1):
    return [(role, size, more) for size in shapes] * n


TOTAL = sum(SHAPES)


def test_as_many_as_there_are_gradients_are_weights():
    found, reasons = sort(*copies(PLAIN, 1), *copies(GRADIENT, 1, more=0))
    assert found == {Category.WEIGHT: TOTAL}
    assert reasons == {"as-many-as-gradients"}


@pytest.mark.parametrize("n_states", [1, 2])
def test_whole_copies_beside_the_gradients_are_optimizer_states(n_states):
    found, reasons = sort(*copies(PLAIN, 1 + n_states), *copies(GRADIENT, 1, more=0))
    assert found == {Category.WEIGHT: TOTAL, Category.OPTIMIZER_STATE: n_states * TOTAL}
    assert reasons == {"as-many-as-gradients", "whole-copies-beside-gradients"}


def test_more_copies_than_two_states_are_not_accepted():
    found, _ = sort(*copies(PLAIN, 4), *copies(GRADIENT, 1, more=0))
    assert found == {Category.WEIGHT: TOTAL, Category.UNKNOWN: 3 * TOTAL}


@pytest.mark.parametrize(("most_states", "n_states"), [(None, 0), (2, 0), (3, 3), (4, 3)])
def test_where_several_optimizers_are_seen_no_more_copies_are_states_than_one_of_them_keeps(
    most_states, n_states
):
    """Adam with amsgrad beside SGD: what is trained by which is not known."""
    rows = [*copies(PLAIN, 4), *copies(GRADIENT, 1, more=0)]
    found, _ = sort(*rows, has_several_steps=True, most_states=most_states)
    assert found.get(Category.OPTIMIZER_STATE, 0) == n_states * TOTAL


def test_where_the_optimizers_keep_one_state_at_most_two_further_copies_are_not_both_states():
    rows = [*copies(PLAIN, 3), *copies(GRADIENT, 1, more=0)]
    for most_states, n_states in ((None, 2), (2, 2), (1, 0)):
        found, _ = sort(*rows, has_several_steps=True, most_states=most_states)
        assert found.get(Category.OPTIMIZER_STATE, 0) == n_states * TOTAL


def test_where_the_states_are_known_further_copies_are_a_second_model():
    found, reasons = sort(*copies(PLAIN, 5), *copies(GRADIENT, 1, more=0), whole=[0], n_states=2)
    assert found == {Category.WEIGHT: 3 * TOTAL, Category.OPTIMIZER_STATE: 2 * TOTAL}
    assert reasons == {"beside-gradients-and-states", "states-of-the-optimizer"}


def test_where_three_states_are_known_the_third_further_copy_is_one():
    found, _ = sort(*copies(PLAIN, 4), *copies(GRADIENT, 1, more=0), whole=[0], n_states=3)
    assert found == {Category.WEIGHT: TOTAL, Category.OPTIMIZER_STATE: 3 * TOTAL}
    # Without any gradient, four copies may be one as well, beside two states.
    assert sort(*copies(PLAIN, 4), n_states=3)[0] == found
    assert sort(*copies(PLAIN, 4), n_states=2)[0] == {Category.WEIGHT: TOTAL, OPEN: 3 * TOTAL}


def test_where_the_states_are_known_a_single_size_that_no_gradient_has_may_be_data():
    rows = [*copies(PLAIN, 3), (PLAIN, 12 * KIB), *copies(GRADIENT, 1, more=0)]
    assert sort(*rows, whole=[0], n_states=2)[0][Category.UNKNOWN] == 12 * KIB


def test_a_part_of_a_model_that_is_not_trained_has_no_states():
    rows = [*copies(PLAIN, 3), (PLAIN, 4 * KIB), (PLAIN, 20 * KIB), *copies(GRADIENT, 1, more=0)]
    assert sort(*rows, whole=[0], n_states=2)[0] == {
        Category.WEIGHT: TOTAL + 24 * KIB,
        Category.OPTIMIZER_STATE: 2 * TOTAL,
    }


def test_what_has_states_but_no_gradient_this_time_is_a_weight_with_its_states():
    gradients = copies(GRADIENT, 1, shapes=SHAPES[1:], more=0)  # one of two experts of 4 KiB was not asked
    assert sort(*copies(PLAIN, 3), *gradients, whole=[0], n_states=2)[0] == {
        Category.WEIGHT: TOTAL,
        Category.OPTIMIZER_STATE: 2 * TOTAL,
    }


def test_counts_that_only_happen_to_be_multiples_do_not_make_all_of_them_trained():
    gradients = copies(GRADIENT, 1, more=0)  # half of the model: every size has twice as many weights
    found = sort(*copies(PLAIN, 6), *copies(PLAIN, 6), *copies(GRADIENT, 3, more=0), whole=[0], n_states=2)[0]
    assert found == {Category.WEIGHT: 6 * TOTAL, Category.OPTIMIZER_STATE: 6 * TOTAL}
    assert sort(*copies(PLAIN, 3), *gradients, whole=[0], n_states=2)[0][Category.WEIGHT] == TOTAL


def test_a_size_without_a_gradient_does_not_show_that_all_parameters_have_states():
    """Every size occurs in threes, but twice as often as there are gradients: half is not trained."""
    rows = [*copies(PLAIN, 6), *[(PLAIN, 12 * KIB)] * 3, *copies(GRADIENT, 1, more=0)]
    assert sort(*rows, whole=[0], n_states=2)[0] == {
        Category.WEIGHT: 4 * TOTAL,
        Category.OPTIMIZER_STATE: 2 * TOTAL,
        Category.UNKNOWN: 36 * KIB,
    }


SGD, RMSPROP = (0, 1), (1, 3)
# No size is twice another one.
SHAPES_IN_HALF = (3 * KIB, 5 * KIB, 5 * KIB, 7 * KIB)


def test_gradients_in_full_precision_from_before_the_trace_do_not_hide_weights_in_half():
    doubled = tuple(2 * size for size in SHAPES_IN_HALF)
    rows = [*copies(PLAIN, 1, SHAPES_IN_HALF), *copies(PLAIN, 3, doubled)]
    gradients = [*copies(GRADIENT, 1, SHAPES_IN_HALF, more=0), *copies(GRADIENT, 1, doubled)]
    half = sum(SHAPES_IN_HALF)
    found, reasons = sort(*rows, *gradients, whole=[0], states_range=(2, 2))
    assert found == {Category.WEIGHT: 3 * half, Category.OPTIMIZER_STATE: 4 * half}
    assert reasons == {"as-many-as-gradients", "copies-in-full-precision"}


def copies_beside_gradients(n_copies, **known):
    """How many copies are weights, states, or open, where every size has so many beside its gradient."""
    found, _ = sort(*copies(PLAIN, n_copies), *copies(GRADIENT, 1, more=0), whole=[0], **known)
    of = (Category.WEIGHT, Category.OPTIMIZER_STATE, Category.UNKNOWN)
    assert set(found) <= set(of)
    return tuple(found.get(category, 0) // TOTAL for category in of)


@pytest.mark.parametrize(
    ("states_range", "n_copies", "expected"),
    [
        (SGD, 2, (1, 1, 0)),  # momentum
        (SGD, 3, (2, 1, 0)),  # and an average of weights
        (SGD, 4, (3, 0, 1)),
        (RMSPROP, 2, (1, 1, 0)),
        (RMSPROP, 3, (1, 2, 0)),  # momentum and a mean of gradients, too
        (RMSPROP, 4, (1, 2, 1)),
    ],
)
def test_of_an_optimizer_with_options_no_more_copies_are_states_than_it_can_have(
    states_range, n_copies, expected
):
    assert copies_beside_gradients(n_copies, states_range=states_range) == expected


@pytest.mark.parametrize(
    ("states_range", "n_copies", "expected"),
    [
        (SGD, 2, (1, 0, 1)),  # momentum, or a teacher beside SGD without it
        (SGD, 3, (2, 1, 0)),
        (RMSPROP, 1, (1, 0, 0)),
        (RMSPROP, 2, (1, 1, 0)),
        (RMSPROP, 3, (2, 1, 0)),
        (RMSPROP, 4, (2, 1, 1)),  # a second state, or a third model
        (None, 2, (1, 0, 1)),
        (None, 3, (1, 0, 2)),
    ],
)
def test_where_the_modules_also_ran_frozen_a_copy_may_be_a_second_model(states_range, n_copies, expected):
    found = copies_beside_gradients(n_copies, states_range=states_range, has_frozen_copy=True)
    assert found == expected


@pytest.mark.parametrize(
    ("states_range", "n_copies", "expected"),
    [(RMSPROP, 3, (1, 1, 1)), (RMSPROP, 4, (1, 1, 2)), (SGD, 2, (1, 0, 1)), (None, 3, (1, 0, 2))],
)
def test_where_they_may_have_run_in_a_validation_only_what_is_certain_is_said(
    states_range, n_copies, expected
):
    found = copies_beside_gradients(n_copies, states_range=states_range, has_frozen_copy=None)
    assert found == expected


def test_a_parameter_without_a_copy_shows_that_the_optimizer_keeps_no_states():
    """A teacher of all but the head, beside SGD without momentum: with it, the head had a state."""
    rows = [*copies(PLAIN, 2, shapes=SHAPES[1:]), (PLAIN, 4 * KIB), *copies(GRADIENT, 1, more=0)]
    found, _ = sort(*rows, whole=[0], states_range=SGD)
    assert found == {Category.WEIGHT: 2 * TOTAL - 4 * KIB}
    rows = [*copies(PLAIN, 2), *copies(PLAIN, 1, shapes=SHAPES[1:]), *copies(GRADIENT, 1, more=0)]
    found, _ = sort(*rows, whole=[0], states_range=SGD)
    assert found == {Category.WEIGHT: 2 * TOTAL - 4 * KIB, Category.OPTIMIZER_STATE: TOTAL}
    fewer = [(PLAIN, 40 * KIB), *[(GRADIENT, 40 * KIB, 0)] * 2]  # a gradient that is not one of the model
    found, _ = sort(*rows, *fewer, whole=[0], states_range=SGD)
    assert found[Category.UNKNOWN] == 40 * KIB


@pytest.mark.parametrize(("n_copies", "expected"), [(2, (0, 1, 0)), (3, (0, 2, 0)), (4, (0, 2, 1))])
def test_beside_a_part_that_is_not_trained_too_one_of_many_copies_may_be_an_average(n_copies, expected):
    """RMSprop with a momentum and an average of the weights has as many as a centred one."""
    rows = [*copies(PLAIN, n_copies), *copies(PLAIN, 1, shapes=SHAPES[1:]), *copies(GRADIENT, 1, more=0)]
    found, _ = sort(*rows, whole=[0], states_range=RMSPROP)
    assert found.pop(Category.WEIGHT) == 2 * TOTAL - 4 * KIB
    of = (Category.GRADIENT, Category.OPTIMIZER_STATE, Category.UNKNOWN)
    assert tuple(found.get(category, 0) // TOTAL for category in of) == expected


def test_states_that_are_made_in_the_trace_are_none_of_the_copies():
    rows = [*copies(PLAIN, 2), *copies(STATE, 1, more=3), *copies(GRADIENT, 1, more=0)]
    found, _ = sort(*rows, whole=[0], states_range=SGD, has_frozen_copy=True)
    assert found == {Category.WEIGHT: 2 * TOTAL}


def test_states_that_are_made_in_the_trace_are_not_looked_for_before_it():
    states = [*copies(STATE, 1, more=3), *copies(STATE, 1, more=4)]
    rows = [*copies(PLAIN, 2), *states, *copies(GRADIENT, 2, more=0)]  # more bytes than a copy of the states
    assert sort(*rows, whole=[0], n_states=1)[0] == {Category.WEIGHT: 2 * TOTAL}


@pytest.mark.parametrize(
    ("n_copies", "n_states", "n_weights", "n_sure"),
    [(3, 2, 1, 2), (4, 2, 2, 2), (5, 2, 1, 2), (2, 1, 1, 1), (3, 1, 1, 1)],
)
def test_where_a_gradient_may_be_missing_what_has_one_has_its_states(n_copies, n_states, n_weights, n_sure):
    """As many copies more may be another model that is trained, or the states of a second optimizer."""
    rows = [*copies(PLAIN, n_copies), *copies(GRADIENT, 1, more=0)]
    found, _ = sort(*rows, whole=[1], n_states=n_states)
    n_open = n_copies - n_weights - n_sure
    expected = {Category.WEIGHT: n_weights, Category.OPTIMIZER_STATE: n_sure, Category.UNKNOWN: n_open}
    assert found == {category: n * TOTAL for category, n in expected.items() if n}


@pytest.mark.parametrize(("n_blocks", "n_weights", "n_sure"), [(14, 6, 8), (17, 7, 8), (20, 4, 8)])
def test_no_more_is_trained_than_there_are_blocks_for(n_blocks, n_weights, n_sure):
    """Four have gradients: of 14 blocks, a fifth would need 15; of 17, a fifth and no sixth."""
    rows = [*copies(PLAIN, n_blocks, (20 * KIB,)), *copies(GRADIENT, 4, (20 * KIB,), more=0)]
    found, _ = sort(*rows, whole=[1], n_states=2)
    assert found[Category.WEIGHT] == n_weights * 20 * KIB
    assert found[Category.OPTIMIZER_STATE] == n_sure * 20 * KIB


@pytest.mark.parametrize(("n_more", "is_sure"), [(0, True), (1, False)])
def test_where_a_size_has_no_room_for_the_states_of_its_gradients_nothing_is_sure(n_more, is_sure):
    more = copies(GRADIENT, n_more, (20 * KIB,), more=0)
    found, _ = sort(*copies(PLAIN, 4), *copies(GRADIENT, 1, more=0), *more, whole=[1], n_states=2)
    assert (Category.UNKNOWN not in found) is is_sure


# As many blocks of a kind as there are tables with sparse gradients.
TABLES = (40 * KIB, 48 * KIB)


@pytest.mark.parametrize("has_sparse_steps", [True, False])
def test_tables_with_sparse_gradients_have_the_two_states_of_their_optimizer(has_sparse_steps):
    """As large as no gradient, which has only the rows that were looked up."""
    rows = [*copies(PLAIN, 2), *copies(PLAIN, 3, TABLES), *copies(GRADIENT, 1, more=0)]
    found, reasons = sort(*rows, whole=[0], has_several_steps=True, has_sparse_steps=has_sparse_steps)
    of_tables = {Category.WEIGHT: 1, Category.OPTIMIZER_STATE: 2} if has_sparse_steps else {}
    for category in (Category.WEIGHT, Category.OPTIMIZER_STATE):
        assert found[category] == TOTAL + of_tables.get(category, 0) * sum(TABLES)
    assert ("3-copies-of-every-size" in reasons) is has_sparse_steps


@pytest.mark.parametrize(("size", "are_tables"), [(1 * KIB, True), (8 * KIB, False), (1000, True)])
def test_nearly_all_that_has_no_gradient_must_be_tables_with_their_states(size, are_tables):
    """Of 272 KiB, 2 % are more than 5; what is less than a KiB does not count."""
    rows = [*copies(PLAIN, 2), *copies(PLAIN, 3, TABLES), (PLAIN, size), *copies(GRADIENT, 1, more=0)]
    found, _ = sort(*rows, whole=[0], has_sparse_steps=True)
    assert (found[Category.OPTIMIZER_STATE] == TOTAL + 2 * sum(TABLES)) is are_tables


@pytest.mark.parametrize(("n_blocks", "are_tables"), [(3, True), (6, False)])
def test_six_of_every_table_may_be_others_that_are_frozen_beside_one_with_states(n_blocks, are_tables):
    rows = [*copies(PLAIN, 2), *copies(PLAIN, n_blocks, TABLES), *copies(GRADIENT, 1, more=0)]
    found, _ = sort(*rows, whole=[0], has_sparse_steps=True)
    assert (found[Category.OPTIMIZER_STATE] > TOTAL) is are_tables


@pytest.mark.parametrize("is_made", [False, True])
def test_beside_states_that_are_made_in_the_trace_nothing_is_sure_of_those_before(is_made):
    rows = [*copies(PLAIN, 4), *copies(GRADIENT, 1, more=0), *copies(STATE, int(is_made), more=1)]
    found, _ = sort(*rows, whole=[1], n_states=2)
    assert (Category.UNKNOWN in found) is is_made


FROZEN = (24 * KIB, 28 * KIB, 32 * KIB, 36 * KIB)


@pytest.mark.parametrize(
    ("several", "counts", "n_states", "is_frozen"),
    [
        (True, (4, 2, 2, 2), 2, True),
        (False, (4, 2, 2, 2), 2, False),
        (True, (3, 3, 2, 2), 2, False),
        (True, (4, 4, 2, 2), 2, False),
        (True, (5, 5, 2, 2), 2, False),
        (True, (6, 2, 2, 2), 2, True),
        (True, (6, 6, 7, 11), 2, False),
        (True, (6, 6, 7, 11), 8, True),
        (True, (7, 11, 5, 5), None, False),
        (True, (7, 11, 7, 5), None, True),
    ],
)
def test_beside_several_optimizers_frozen_layers_have_the_size_of_none_of_all_gradients(
    several, counts, n_states, is_frozen
):
    """A model not trained in the trace has its states beside it, maybe its last gradients and an average."""
    rows = [row for size, n in zip(FROZEN, counts, strict=True) for row in copies(PLAIN, n, (size,))]
    rows += [*copies(PLAIN, 3), *copies(GRADIENT, 1, more=-1), *copies(PLAIN, 4, (512,))]
    _, reasons = sort(*rows, whole=[0], n_states=n_states, has_several_steps=several)
    assert ("kept-without-gradient" in reasons) is is_frozen


@pytest.mark.parametrize("is_added_to", [False, True])
def test_what_backward_adds_to_gradients_of_is_not_frozen(is_added_to):
    rows = [row for size in FROZEN for row in copies(PLAIN, 4, (size,))] + copies(PLAIN, 4, (512,))
    rows += [*copies(PLAIN, 3), *copies(GRADIENT, 1, more=0), *copies(ADDED, int(is_added_to), FROZEN[:1])]
    found, reasons = sort(*rows, whole=[0])
    assert "kept-without-gradient" in reasons
    assert found.get(Category.UNKNOWN, 0) == is_added_to * 4 * FROZEN[0]


def twice(shapes):
    return tuple(2 * size for size in shapes)


@pytest.mark.parametrize("n_copies", [1, 2, 3])
def test_copies_twice_as_large_are_what_an_optimizer_keeps_in_full_precision(n_copies):
    full = copies(PLAIN, n_copies, shapes=twice(SHAPES))
    found, reasons = sort(*copies(PLAIN, 1), *full, *copies(GRADIENT, 1, more=0), whole=[0])
    assert found == {Category.WEIGHT: TOTAL, Category.OPTIMIZER_STATE: 2 * n_copies * TOTAL}
    assert reasons == {"as-many-as-gradients", "copies-in-full-precision"}


@pytest.mark.parametrize(
    ("n_full", "states_range", "n_weights"),
    [(3, (2, 2), 1), (2, (0, 1), 1), (1, (0, 1), 1), (3, None, 0), (2, (2, 2), 0)],
)
@pytest.mark.parametrize("has_full_gradients", [False, True])
def test_of_copies_twice_as_large_those_beyond_the_states_of_an_optimizer_are_weights(
    n_full, states_range, n_weights, has_full_gradients
):
    """What one of torch's optimizers steps on; another one's own copies are all its states."""
    full = tuple(2 * size for size in SHAPES_IN_HALF)
    gradients = copies(GRADIENT, 1, shapes=SHAPES_IN_HALF, more=0)
    gradients += copies(GRADIENT, 1, shapes=full, more=0) if has_full_gradients else []
    rows = [*copies(PLAIN, 1, shapes=SHAPES_IN_HALF), *copies(PLAIN, n_full, shapes=full), *gradients]
    found, _ = sort(*rows, whole=[0], states_range=states_range)
    half = sum(SHAPES_IN_HALF)
    expected = {Category.WEIGHT: half + 2 * half * n_weights}
    expected[Category.OPTIMIZER_STATE] = 2 * half * (n_full - n_weights)
    assert found == {category: n for category, n in expected.items() if n}


def test_copies_twice_as_large_of_a_part_of_the_sizes_are_none_in_full_precision():
    part = copies(PLAIN, 2, shapes=twice(SHAPES[2:]))
    rows = [*copies(PLAIN, 1), *part, *copies(GRADIENT, 1, more=0)]
    assert Category.OPTIMIZER_STATE not in sort(*rows, whole=[0])[0]


def test_a_part_of_a_copy_stays_unknown():
    found, _ = sort(*copies(PLAIN, 1), (PLAIN, 4 * KIB), *copies(GRADIENT, 1, more=0))
    assert found == {Category.WEIGHT: TOTAL, Category.UNKNOWN: 4 * KIB}


@pytest.mark.parametrize(
    ("n_copies", "expected"),
    [
        (2, {Category.WEIGHT: TOTAL, Category.OPTIMIZER_STATE: 2 * TOTAL}),
        (3, {Category.WEIGHT: TOTAL, Category.OPTIMIZER_STATE: 2 * TOTAL, Category.UNKNOWN: TOTAL}),
        (1, {Category.UNKNOWN: 2 * TOTAL}),
    ],
)
def test_where_weights_may_lie_elsewhere_now_the_states_are_still_there(n_copies, expected):
    rows = [*copies(PLAIN, n_copies), *copies(LEFT, 1), *copies(GRADIENT, 1, more=0)]
    assert sort(*rows, whole=[0], n_states=2)[0] == expected


@pytest.mark.parametrize("n_copies", [2, 3])
def test_where_a_state_may_have_been_renewed_the_number_of_states_decides(n_copies):
    rows = [*copies(PLAIN, n_copies), *copies(MAY_HAVE_LEFT, 1), *copies(GRADIENT, 1, more=0)]
    found, _ = sort(*rows, whole=[0], n_states=2)
    assert found[Category.OPTIMIZER_STATE] == 2 * TOTAL
    assert found[Category.WEIGHT] == TOTAL
    assert found.get(Category.UNKNOWN, 0) == (n_copies - 2) * TOTAL
    assert sort(*rows, whole=[0])[0][Category.WEIGHT] == TOTAL


@pytest.mark.parametrize("n_copies", [1, 2, 3])
def test_where_weights_may_lie_elsewhere_and_no_states_are_known_nothing_is(n_copies):
    rows = [*copies(PLAIN, n_copies), *copies(LEFT, 1), *copies(GRADIENT, 1, more=0)]
    assert sort(*rows)[0] == {Category.UNKNOWN: (1 + n_copies) * TOTAL}
    other = (PLAIN, 40 * KIB), (GRADIENT, 40 * KIB, 0)
    assert sort(*rows, *other)[0][Category.WEIGHT] == 40 * KIB


@pytest.mark.parametrize("n_states", [4, 5])
def test_of_so_many_states_no_structure_is_known(n_states):
    assert sort(*copies(PLAIN, 4), n_states=n_states)[0] == {Category.UNKNOWN: 4 * TOTAL}
    found, _ = sort(*copies(PLAIN, 1 + n_states), *copies(GRADIENT, 1, more=0), whole=[0], n_states=n_states)
    assert found == {Category.WEIGHT: TOTAL, Category.OPTIMIZER_STATE: n_states * TOTAL}


def test_sizes_that_no_gradient_has_stay_unknown():
    found, _ = sort(*copies(PLAIN, 1), (PLAIN, 12 * KIB), *copies(GRADIENT, 1, more=0))
    assert found == {Category.WEIGHT: TOTAL, Category.UNKNOWN: 12 * KIB}


LAYER = (12 * KIB, 16 * KIB, 2 * KIB)


@pytest.mark.parametrize(("n_layers", "other"), [(2, 24 * KIB), (5, 100 * KIB)])
def test_sizes_that_no_gradient_has_and_that_repeat_as_layers_do_are_frozen_weights(n_layers, other):
    frozen = [*copies(PLAIN, n_layers, shapes=LAYER), (PLAIN, other)]
    found, reasons = sort(*copies(PLAIN, 1), *frozen, *copies(GRADIENT, 1, more=0), whole=[0])
    assert found == {Category.WEIGHT: TOTAL + n_layers * sum(LAYER) + other}
    assert reasons == {"as-many-as-gradients", "kept-without-gradient"}


@pytest.mark.parametrize("others", [LAYER, LAYER[:2] * 2, (*LAYER * 2, 100 * KIB), (*LAYER * 5, 160 * KIB)])
def test_other_blocks_without_a_gradient_may_be_data_and_stay_unknown(others):
    rows = [*copies(PLAIN, 1), *copies(PLAIN, 1, shapes=others), *copies(GRADIENT, 1, more=0)]
    assert sort(*rows, whole=[0])[0] == {Category.WEIGHT: TOTAL, Category.UNKNOWN: sum(others)}


def test_where_a_gradient_may_be_missing_nothing_is_called_frozen():
    rows = [*copies(PLAIN, 1), *copies(PLAIN, 2, shapes=LAYER), *copies(GRADIENT, 1, more=0)]
    assert sort(*rows, whole=[1])[0] == {Category.WEIGHT: TOTAL, Category.UNKNOWN: 60 * KIB}


def test_the_gradients_of_one_iteration_are_the_reference():
    gradients = [*copies(GRADIENT, 1, more=0), *copies(GRADIENT, 1, more=1), (GRADIENT, 4 * KIB, 2)]
    assert sort(*copies(PLAIN, 3), *gradients)[0] == {
        Category.WEIGHT: TOTAL,
        Category.OPTIMIZER_STATE: 2 * TOTAL,
    }


@pytest.mark.parametrize(
    ("n_bytes", "reasons"),
    [
        (TOTAL // 50, {"beside-gradients-and-states", "states-of-the-optimizer"}),
        (TOTAL // 40, {"as-many-as-gradients", "whole-copies-beside-gradients"}),
    ],
    ids=["nearly", "no more"],
)
def test_a_whole_iteration_that_is_nearly_as_full_as_another_is_the_reference(n_bytes, reasons):
    gradients = [*copies(GRADIENT, 1, more=0), (GRADIENT, n_bytes, 0), *copies(GRADIENT, 1, more=1)]
    assert sort(*copies(PLAIN, 3), *gradients, whole=[1], n_states=2)[1] == reasons


@pytest.mark.parametrize("lines", [(3, 4), (0, 1)], ids=["any lines", "the first of the file"])
def test_as_many_as_one_copy_of_the_states_are_weights_and_another_copy_gradients(lines):
    states = [row for line in lines for row in copies(STATE, 1, more=line)]  # the moments of Adam
    found, reasons = sort(*copies(PLAIN, 2), *states)
    assert found == {Category.WEIGHT: TOTAL, Category.GRADIENT: TOTAL}
    assert reasons == {"as-many-as-optimizer-states", "whole-copies-beside-optimizer-states"}


def test_states_that_are_made_anew_in_every_step_are_one_copy():
    states = [*copies(STATE, 1, more=3), *copies(STATE, 1, more=103), *copies(STATE, 1, more=203)]
    assert sort(*copies(PLAIN, 2), *states)[0] == {Category.WEIGHT: TOTAL, Category.GRADIENT: TOTAL}


def test_beside_states_two_further_copies_are_not_accepted():
    found, _ = sort(*copies(PLAIN, 3), *copies(STATE, 1, more=3))
    assert found == {Category.WEIGHT: TOTAL, Category.UNKNOWN: 2 * TOTAL}


def test_the_fullest_line_that_makes_states_is_the_one_copy():
    states = [*copies(STATE, 1, more=3), (STATE, 4 * KIB, 4), (STATE, 8 * KIB, 4)]
    found, _ = sort(*copies(PLAIN, 1), *states)
    assert found == {Category.WEIGHT: TOTAL}


@pytest.mark.parametrize("is_freed_between", [True, False])
def test_gradients_that_a_second_backward_makes_again_are_not_those_of_more_weights(
    is_freed_between, tmp_path
):
    job = Job()
    for _ in range(2):
        for size in SHAPES:
            job.older(NO_FRAMES, size)
    for _ in range(2):
        job.does(FORWARD)
        made = [job.alloc(ENGINE, size) for size in SHAPES]
        for addr in made if is_freed_between else ():
            job.free(addr, MAIN)
    job.does(STEP)
    path = tmp_path / "a.pickle"
    found = [category for size in set(SHAPES) for category, *_ in classified(job, path, size)]
    n_weights = len(SHAPES) if is_freed_between else 2 * len(SHAPES)
    assert found.count(Category.WEIGHT) == n_weights


@pytest.mark.parametrize(("made_by", "category"), [(ENGINE, Category.WEIGHT), (FORWARD, Category.UNKNOWN)])
def test_only_temporaries_of_backward_show_that_it_adds_to_gradients(made_by, category, tmp_path):
    job = Job()
    for size in (*SHAPES, *SHAPES):
        job.older(NO_FRAMES, size)
    job.does(FORWARD, ENGINE)
    for size in set(SHAPES):
        job.free(job.alloc(made_by, size), made_by)
    job.does(made_by, ENGINE)
    assert classified(job, tmp_path / "a.pickle", SHAPES[-1])[0][0] is category


class WithoutStacks(Job):
    """A job whose blocks have no stacks in the file."""

    def snapshot(self):
        raw = super().snapshot()
        for block in (block for segment in raw["segments"] for block in segment["blocks"]):
            del block["frames"]
        return raw


@pytest.mark.parametrize(("free", "is_shown"), [(ADD_TO_GRADIENT, True), (ENGINE, False)])
def test_what_backward_adds_to_is_known_by_where_its_temporaries_are_freed(free, is_shown, tmp_path):
    """Five copies: of a model, of one that is not trained, a gradient and Adam's two states."""
    job = Job()
    for size in SHAPES * 5:
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    for size in SHAPES:
        job.free(job.alloc(ENGINE, size), free)
    job.free(job.alloc(STEP, 512))  # of the very line, or there might be two optimizers
    found = [category for category, *_ in classified(job, tmp_path / "a.pickle", 8 * KIB)][:5]
    assert found == [Category.WEIGHT if is_shown else Category.UNKNOWN] * 2 + [Category.UNKNOWN] * 3


@pytest.mark.parametrize("has_stacks", [True, False])
def test_a_file_without_stacks_shows_copies_too(has_stacks, tmp_path):
    job = Job() if has_stacks else WithoutStacks()
    for size in (4 * KIB, 20 * KIB) * 4:
        job.older(NO_FRAMES, size)
    found = {category for category, *_ in classified(job, tmp_path / "a.pickle", 4 * KIB)}
    assert found == {Category.WEIGHT, Category.UNKNOWN}


@pytest.mark.parametrize(
    ("phases", "category"),
    [((FORWARD,), Category.WEIGHT), ((), Category.UNKNOWN), ((ZERO_GRAD,), Category.UNKNOWN)],
)
def test_what_has_no_gradient_is_frozen_only_if_the_trace_has_all_of_its_backward(phases, category, tmp_path):
    """Forward comes before it; what comes after may be the next one's."""
    job = Job()
    for size in (*SHAPES, *LAYER * 2):
        job.older(NO_FRAMES, size)
    job.does(*phases)
    for size in SHAPES:
        job.alloc(ENGINE, size)
    job.does(ENGINE, FORWARD, STEP)
    assert {found[0] for found in classified(job, tmp_path / "a.pickle", LAYER[0])} == {category}


def test_of_iterations_that_make_as_many_bytes_of_states_the_last_is_the_one_copy():
    states = [*copies(STATE, 1, more=3), (STATE, TOTAL, 103)]
    found, _ = sort((PLAIN, TOTAL), *copies(PLAIN, 1), *states)
    assert found == {Category.WEIGHT: TOTAL, Category.UNKNOWN: TOTAL}


def test_where_most_bytes_are_as_large_as_no_state_none_is_compared_with_states():
    states = copies(STATE, 1, more=3)
    assert sort(*copies(PLAIN, 1), (PLAIN, TOTAL), *states)[0][Category.WEIGHT] == TOTAL
    assert Category.WEIGHT not in sort(*copies(PLAIN, 1), (PLAIN, TOTAL + 1), *states)[0]


def test_the_larger_reference_counts():
    gradients = [(GRADIENT, 4 * KIB, 0)]
    found, reasons = sort(*copies(PLAIN, 1), *gradients, *copies(STATE, 1, more=3))
    assert found == {Category.WEIGHT: TOTAL}
    assert reasons == {"as-many-as-optimizer-states"}


def test_states_of_the_first_stack_of_a_file_are_a_reference_as_those_of_any_other():
    for stack in (0, 3):
        found, reasons = sort(*copies(PLAIN, 1), *copies(STATE, 1, more=stack))
        assert (found, reasons) == ({Category.WEIGHT: TOTAL}, {"as-many-as-optimizer-states"})


def test_four_copies_of_every_size_are_a_whole_step_of_adam():
    found, reasons = sort(*copies(PLAIN, 4))
    assert found == {Category.WEIGHT: TOTAL, OPEN: 3 * TOTAL}
    assert reasons == {"4-copies-of-every-size"}


@pytest.mark.parametrize("role", [GRADIENT, STATE])
def test_a_reference_of_few_sizes_does_not_spoil_four_copies_of_every_size(role):
    found, reasons = sort(*copies(PLAIN, 4), (role, 4 * KIB, 0))
    assert found == {Category.WEIGHT: TOTAL, OPEN: 3 * TOTAL}
    assert reasons == {"4-copies-of-every-size"}


@pytest.mark.parametrize(("sizes", "is_enough"), [((20 * KIB,), True), ((4 * KIB, 4 * KIB, 8 * KIB), False)])
def test_a_reference_counts_beside_four_copies_of_every_size_if_most_bytes_have_its_sizes(sizes, is_enough):
    """Of 36 KiB, 20 or 16; more than two copies beside a reference are not accepted."""
    found, reasons = sort(*copies(PLAIN, 4), *copies(GRADIENT, 1, shapes=sizes, more=0))
    assert reasons == ({"as-many-as-gradients"} if is_enough else {"4-copies-of-every-size"})
    assert found[Category.WEIGHT] == (sum(sizes) if is_enough else TOTAL)


def test_a_reference_of_few_sizes_counts_where_there_is_no_other():
    found, reasons = sort(*copies(PLAIN, 1), (GRADIENT, 8 * KIB, 0))
    assert found == {Category.WEIGHT: 8 * KIB, Category.UNKNOWN: TOTAL - 8 * KIB}
    assert reasons == {"as-many-as-gradients"}


def test_of_three_copies_of_every_size_one_may_be_a_state_or_a_gradient():
    found, reasons = sort(*copies(PLAIN, 3))
    assert found == {Category.WEIGHT: TOTAL, Category.OPTIMIZER_STATE: TOTAL, Category.UNKNOWN: TOTAL}
    assert reasons == {"3-copies-of-every-size"}


@pytest.mark.parametrize(
    ("n_copies", "n_states", "expected"),
    [
        (3, 2, {Category.WEIGHT: 1, Category.OPTIMIZER_STATE: 2}),
        (3, 1, {Category.WEIGHT: 1, OPEN: 2}),
        (2, 1, {Category.WEIGHT: 1, Category.OPTIMIZER_STATE: 1}),
    ],
)
def test_the_optimizer_shows_what_the_copies_are(n_copies, n_states, expected):
    found, _ = sort(*copies(PLAIN, n_copies), n_states=n_states)
    assert found == {category: n * TOTAL for category, n in expected.items()}


def test_where_backward_adds_to_gradients_two_copies_are_weights_and_gradients():
    found, reasons = sort(*copies(PLAIN, 2), *copies(SUMMED, 1))
    assert found == {Category.WEIGHT: TOTAL, Category.GRADIENT: TOTAL}
    assert reasons == {"2-copies-of-every-size"}


def test_where_backward_adds_to_gradients_one_of_three_copies_is_one():
    found, reasons = sort(*copies(PLAIN, 3), *copies(SUMMED, 1))
    assert (found, reasons) == ({Category.WEIGHT: TOTAL, OPEN: 2 * TOTAL}, {"3-copies-of-every-size"})


def test_states_that_are_made_when_the_optimizer_is_built_come_before_the_gradients():
    rows = [(PLAIN, 4 * KIB), *[(PLAIN, 20 * KIB)] * 2] * 3
    found, reasons = sort(*rows, n_states=1, states_are_built=True)
    sizes = {Category.WEIGHT: 44 * KIB, Category.OPTIMIZER_STATE: 44 * KIB, Category.GRADIENT: 44 * KIB}
    assert (found, reasons) == (sizes, {"3-copies-of-every-size"})
    assert sort(*copies(PLAIN, 2), n_states=1, states_are_built=True)[0] == {
        Category.WEIGHT: TOTAL,
        Category.OPTIMIZER_STATE: TOTAL,
    }


@pytest.mark.parametrize("n_states", [0, 1, 2, 3])
def test_where_backward_adds_to_gradients_all_other_copies_but_the_states_are_weights(n_states):
    """A frozen model has the same sizes once more: of so many blocks no multiple would show anything."""
    rows = [*copies(PLAIN, 2 + n_states), *copies(PLAIN, 1, shapes=SHAPES[1:]), *copies(ADDED, 1)]
    found, reasons = sort(*rows, n_states=n_states)
    beside = {OPEN: (1 + n_states) * TOTAL} if n_states else {Category.GRADIENT: TOTAL}
    assert found == {Category.WEIGHT: 2 * TOTAL - 4 * KIB, **beside}
    assert reasons == {"as-many-as-backward-adds-to"}


def test_what_backward_adds_to_comes_after_states_that_were_made_when_the_optimizer_was_built():
    found, _ = sort(*copies(PLAIN, 4), *copies(ADDED, 1), n_states=1, states_are_built=True)
    assert found == {
        Category.WEIGHT: 2 * TOTAL,
        Category.OPTIMIZER_STATE: TOTAL,
        Category.GRADIENT: TOTAL,
    }


@pytest.mark.parametrize(("n_copies", "n_open"), [(2, 0), (3, 2), (4, 0), (5, 0)])
def test_momentum_is_known_by_what_nearly_all_sizes_have_beside_a_gradient_that_backward_adds_to(
    n_copies, n_open
):
    """SGD keeps none, or one: more may be another model. Four copies may be Adam's with any optimizer."""
    found, reasons = sort(*copies(PLAIN, n_copies), *copies(ADDED, 1), states_range=(0, 1))
    assert found.get(OPEN, 0) == (3 if n_copies == 4 else n_open) * TOTAL
    assert ("as-many-as-backward-adds-to" in reasons) == (n_copies in (2, 3))


@pytest.mark.parametrize("more", [{"n_states": 2}, {"states_range": (1, 3)}])
@pytest.mark.parametrize(("size", "is_shown"), [(24 * KIB, True), (25 * KIB, False)])
def test_nearly_all_bytes_must_have_room_for_what_backward_adds_to_and_for_states(size, is_shown, more):
    """Beside 3,528 KiB, three blocks where there should be four are two hundredths, or more."""
    added = copies(ADDED, 1, shapes=(882 * KIB, size))
    found, _ = sort(*copies(PLAIN, 4, shapes=(882 * KIB,)), *copies(PLAIN, 3, shapes=(size,)), *added, **more)
    weights = {Category.WEIGHT: 882 * KIB, OPEN: 3 * 882 * KIB} if is_shown else {}
    assert found == {**weights, Category.UNKNOWN: 3 * size + (0 if is_shown else 4 * 882 * KIB)}


@pytest.mark.parametrize("added", [SHAPES, SHAPES[2:]], ids=["as many", "fewer"])
def test_gradients_that_the_trace_made_are_the_reference_if_backward_adds_to_no_more(added):
    """Of several backwards in a step the later ones add to what the first one made."""
    rows = [*copies(PLAIN, 4), *copies(GRADIENT, 1, more=0), *copies(ADDED, 1, shapes=added)]
    found, reasons = sort(*rows, whole=[0], n_states=2)
    assert found == {Category.WEIGHT: 2 * TOTAL, Category.OPTIMIZER_STATE: 2 * TOTAL}
    assert reasons == {"beside-gradients-and-states", "states-of-the-optimizer"}


def test_where_there_may_be_several_optimizers_one_backward_may_add_to_one_of_several_models():
    found, reasons = sort(*copies(PLAIN, 5), *copies(ADDED, 1), n_states=2, has_several_steps=True)
    assert (found, reasons) == ({Category.UNKNOWN: 5 * TOTAL}, set())


@pytest.mark.parametrize(("whole", "category"), [([0], Category.WEIGHT), ([1], Category.UNKNOWN)])
def test_what_backward_adds_to_nothing_of_is_not_trained(whole, category):
    added = [(ADDED, size, 0) for size in SHAPES]
    found, _ = sort(*copies(PLAIN, 4), *copies(PLAIN, 2, shapes=LAYER), *added, whole=whole, n_states=2)
    frozen = 2 * sum(LAYER)
    expected = {Category.WEIGHT: TOTAL, OPEN: 3 * TOTAL}
    expected[category] = expected.get(category, 0) + frozen
    assert found == expected


def test_temporaries_of_other_sizes_are_no_evidence_of_copies():
    found, _ = sort(*copies(PLAIN, 2), (SUMMED, 12 * KIB), (SUMMED, 8 * KIB))
    assert found == {Category.UNKNOWN: 2 * TOTAL}


@pytest.mark.parametrize("n_copies", [1, 2, 5])
def test_other_numbers_of_copies_are_no_evidence(n_copies):
    assert sort(*copies(PLAIN, n_copies))[0] == {Category.UNKNOWN: n_copies * TOTAL}


def test_without_a_tensor_of_a_size_of_its_own_copies_are_no_evidence():
    assert sort(*copies(PLAIN, 4, shapes=(4 * KIB, 4 * KIB)))[0] == {Category.UNKNOWN: 32 * KIB}


TWO, THREE, FIVE = (20 * KIB,) * 2, (8 * KIB,) * 3, (4 * KIB,) * 5


def test_sizes_whose_numbers_in_a_copy_have_no_common_divisor_are_as_good_as_a_size_of_its_own():
    """An embedding and a head of one size, and layers: nothing is there just once."""
    found, _ = sort(*copies(PLAIN, 4, shapes=TWO + THREE + FIVE))
    total = sum(TWO + THREE + FIVE)
    assert found == {Category.WEIGHT: total, OPEN: 3 * total}


@pytest.mark.parametrize(
    "shapes",
    [TWO * 2 + THREE * 4 + FIVE * 2, TWO + FIVE, TWO + THREE + FIVE + (KIB + 1,) * 5],
    ids=["twice each", "few sizes", "some blocks are no copies"],
)
def test_other_numbers_in_a_copy_are_no_evidence(shapes):
    rows = [*copies(PLAIN, 4, shapes=shapes[:-5]), *copies(PLAIN, 5, shapes=shapes[-5:])]
    rows = rows if shapes[-1] == KIB + 1 else copies(PLAIN, 4, shapes=shapes)
    assert set(sort(*rows)[0]) == {Category.UNKNOWN}


def test_a_few_bytes_outside_the_copies_are_let_pass():
    found, _ = sort(*copies(PLAIN, 4, shapes=(400 * KIB, 80 * KIB)), (PLAIN, 2 * KIB))
    assert found == {Category.WEIGHT: 480 * KIB, OPEN: 1440 * KIB, Category.UNKNOWN: 2 * KIB}


def test_few_bytes_in_many_blocks_outside_the_copies_make_them_a_chance():
    """No size is there just once in a copy, and one block in nine is none of a copy."""
    shapes = tuple(10 * size for size in TWO + THREE + FIVE)
    assert set(sort(*copies(PLAIN, 4, shapes=shapes), *[(PLAIN, KIB)] * 5)[0]) == {Category.UNKNOWN}


def test_beside_four_copies_of_every_size_a_single_block_is_no_weight_by_one_gradient():
    """A weight that is trained would have its states; so what is taken for its gradient is none."""
    rows = [*copies(PLAIN, 4, shapes=(400 * KIB, 80 * KIB)), (PLAIN, 2 * KIB), (GRADIENT, 2 * KIB, 0)]
    assert sort(*rows)[0] == {
        Category.WEIGHT: 480 * KIB,
        OPEN: 1440 * KIB,
        Category.UNKNOWN: 2 * KIB,
    }


def test_more_bytes_outside_the_copies_make_them_a_chance():
    rows = [*copies(PLAIN, 4, shapes=(400 * KIB, 80 * KIB)), (PLAIN, 60 * KIB)]
    assert sort(*rows)[0] == {Category.UNKNOWN: 1980 * KIB}


def test_blocks_of_1_kib_are_not_too_small():
    found, _ = sort(*copies(PLAIN, 3, shapes=(KIB,)))
    assert found == {Category.WEIGHT: KIB, Category.OPTIMIZER_STATE: KIB, Category.UNKNOWN: KIB}


def test_small_blocks_neither_help_nor_hinder():
    found, _ = sort(*copies(PLAIN, 4), *[(PLAIN, 512)] * 7)
    assert found == {Category.WEIGHT: TOTAL, OPEN: 3 * TOTAL, Category.UNKNOWN: 7 * 512}


def test_without_candidates_nothing_is_decided():
    assert sort(*copies(GRADIENT, 1, more=0)) == ({}, set())


@pytest.mark.parametrize("may_be_second", [True, False])
def test_beside_a_second_model_whole_copies_may_be_of_it(may_be_second):
    """Of an optimizer that nobody knows, in a trace that has no whole iteration."""
    rows = (*copies(PLAIN, 3), *copies(GRADIENT, 1))
    other = Category.UNKNOWN if may_be_second else Category.OPTIMIZER_STATE
    assert sort(*rows, has_frozen_copy=may_be_second)[0] == {Category.WEIGHT: TOTAL, other: 2 * TOTAL}


def test_beside_a_second_model_one_more_copy_than_states_may_be_the_gradients():
    rows = (*copies(PLAIN, 2), *copies(STATE, 1, more=1))
    found, _ = sort(*rows, has_frozen_copy=True)
    assert found == sort(*rows)[0] == {Category.WEIGHT: TOTAL, Category.GRADIENT: TOTAL}


def sizes_live_at_once(*gradients, n_blocks=3, n_states=1):
    """Of gradients as (size, alloc, end) and so many blocks of each of these sizes."""
    sizes = [size for size, *_ in gradients]
    blocks = [size for size in set(sizes) for _ in range(n_blocks)]
    n, is_gradient = len(sizes) + len(blocks), np.arange(len(sizes) + len(blocks)) < len(sizes)
    alloc, end = ([*column, *[-1] * len(blocks)] for column in tuple(zip(*gradients, strict=True))[1:])
    allocations = replace(
        allocations_of([*sizes, *blocks], [-1] * n),
        alloc_event=np.array(alloc, np.int32),
        end_event=np.array(end, np.int32),
    )
    known = Preexisting(
        candidates=~is_gradient,
        gradients=is_gradient,
        states=np.zeros(n, np.bool_),
        summed=np.zeros(n, np.bool_),
        added=np.zeros(n, np.bool_),
        iteration=np.zeros(n, np.int64),
        run=np.full(n, -1),
        whole=np.zeros(1, np.int64),
        n_states=n_states,
        states_range=None,
        most_states=None,
        states_are_built=False,
        has_frozen_copy=None,
        has_several_steps=False,
        has_sparse_steps=False,
        left=np.zeros(n, np.bool_),
        may_have_left=np.zeros(n, np.bool_),
    )
    return live_at_once(allocations, known, np.flatnonzero(~is_gradient)).tolist()


FIRST, SECOND = [(4096, 0, 10), (8192, 1, 11)], [(4096, 20, 30), (8192, 21, 31)]
BESIDE_FIRST, AT_THE_END = [(4096, 5, 15), (8192, 6, 16)], [(4096, 40, -1), (8192, 41, -1)]


@pytest.mark.parametrize(
    ("gradients", "expected"),
    [
        (FIRST, [4096, 8192]),
        (FIRST + SECOND, [4096, 8192]),
        (FIRST + BESIDE_FIRST, [4096, 4096, 8192, 8192]),
        (FIRST + SECOND + AT_THE_END, [4096, 8192]),
        (FIRST + SECOND[:1], []),
        (FIRST + BESIDE_FIRST[:1] + SECOND[:1], []),
        ([*FIRST, (512, 0, -1)], [4096, 8192]),
    ],
    ids=[
        "once",
        "in two iterations",
        "of two models at once",
        "in three, of which the last are live",
        "one size more often",
        "one size more often for each that is live",
        "what is small does not count",
    ],
)
def test_the_gradients_of_models_that_are_trained_in_turn_are_those_that_are_live_at_once(
    gradients, expected
):
    assert sizes_live_at_once(*gradients) == expected


@pytest.mark.parametrize(("n_blocks", "n_states", "is_model"), [(3, 1, True), (4, 1, False), (4, 2, True)])
def test_there_are_no_more_blocks_than_of_a_model_a_copy_of_it_and_an_optimizer(n_blocks, n_states, is_model):
    found = sizes_live_at_once(*FIRST, n_blocks=n_blocks, n_states=n_states)
    assert found == ([4096, 8192] if is_model else [])


def test_where_the_states_are_not_known_models_in_turn_are_not_counted():
    assert sizes_live_at_once(*FIRST, n_states=None) == []


def test_where_there_may_be_several_optimizers_what_is_live_at_once_has_states():
    rows = [*copies(PLAIN, 2), *copies(GRADIENT, 1, more=0)]
    found, _ = sort(*rows, whole=[0], n_states=1, has_several_steps=True)
    assert found == {Category.WEIGHT: TOTAL, Category.OPTIMIZER_STATE: TOTAL}


REASONS = {
    "as-many-as-gradients",
    "whole-copies-beside-gradients",
    "as-many-as-optimizer-states",
    "whole-copies-beside-optimizer-states",
    "4-copies-of-every-size",
    "3-copies-of-every-size",
    "2-copies-of-every-size",
    "kept-without-gradient",
    "beside-gradients-and-states",
    "states-of-the-optimizer",
    "copies-in-full-precision",
    "as-many-as-backward-adds-to",
}


def test_every_reason_is_given_by_a_test_above():
    jobs = [
        sort(*copies(PLAIN, 2), *copies(GRADIENT, 1, more=0)),
        sort(*copies(PLAIN, 2), *copies(STATE, 1, more=3)),
        sort(*copies(PLAIN, 4)),
        sort(*copies(PLAIN, 3)),
        sort(*copies(PLAIN, 2), *copies(SUMMED, 1)),
        sort(*copies(PLAIN, 2), *copies(ADDED, 1), n_states=0),
        sort(*copies(PLAIN, 2, shapes=LAYER), (GRADIENT, 4 * KIB, 0), whole=[0]),
        sort(*copies(PLAIN, 4), *copies(GRADIENT, 1, more=0), whole=[0], n_states=2),
        sort(*copies(PLAIN, 1, shapes=SHAPES + twice(SHAPES)), *copies(GRADIENT, 1, more=0), whole=[0]),
    ]
    assert set().union(*(reasons for _, reasons in jobs)) == REASONS


def test_sizes_with_98_hundredths_of_the_bytes_show_how_many_copies_there_are():
    """Of 100 KiB. Of a size that occurs more often, one is a weight, as there is one gradient."""
    gradients = [(GRADIENT, 49 * KIB, 0), (GRADIENT, 512, 0)]
    found, _ = sort(*[(PLAIN, 49 * KIB)] * 2, *[(PLAIN, 512)] * 4, *gradients, whole=[0], states_range=SGD)
    assert found == {
        Category.WEIGHT: 49 * KIB + 512,
        Category.OPTIMIZER_STATE: 49 * KIB,
        Category.UNKNOWN: 3 * 512,
    }


# What is smaller than 1 KiB agrees by chance.
@pytest.mark.parametrize(("size", "n_weights"), [(1024, 2), (1023, 1)])
def test_sizes_from_a_kibibyte_on_show_that_there_is_a_second_model(size, n_weights):
    rows = [*[(PLAIN, size)] * 3, (GRADIENT, size, 0)]
    found, _ = sort(*rows, whole=[0], states_range=SGD)
    assert found == {Category.WEIGHT: n_weights * size, Category.OPTIMIZER_STATE: (3 - n_weights) * size}


@pytest.mark.parametrize(("size", "is_decided"), [(1024, True), (1023, False)])
def test_sizes_from_a_kibibyte_on_are_of_a_structure(size, is_decided):
    found, _ = sort(*copies(PLAIN, 4, shapes=(size, 4 * KIB, 20 * KIB)))
    assert found.get(Category.UNKNOWN, 0) == (0 if is_decided else 4 * size)


@pytest.mark.parametrize(("size", "is_frozen"), [(1024, True), (1023, False)])
def test_sizes_from_a_kibibyte_on_repeat_as_layers_do(size, is_frozen):
    frozen = copies(PLAIN, 2, shapes=(size, *LAYER[:2]))
    found, _ = sort(*copies(PLAIN, 1), *frozen, *copies(GRADIENT, 1, more=0), whole=[0])
    assert (Category.UNKNOWN not in found) is is_frozen


@pytest.mark.parametrize(("size", "expected"), [(1024, [1024, 8192]), (1023, [8192])])
def test_gradients_from_a_kibibyte_on_are_counted(size, expected):
    assert sizes_live_at_once((size, 0, 10), (8192, 1, 11)) == expected


def test_sizes_with_less_than_98_hundredths_of_the_bytes_show_only_what_one_of_all_sizes_has():
    """Of 102 KiB: every size has one state, and all else are weights."""
    gradients = [(GRADIENT, 49 * KIB, 0), (GRADIENT, 512, 0)]
    found, _ = sort(*[(PLAIN, 49 * KIB)] * 2, *[(PLAIN, 512)] * 8, *gradients, whole=[0], states_range=SGD)
    assert found == {Category.WEIGHT: 49 * KIB + 7 * 512, Category.OPTIMIZER_STATE: 49 * KIB + 512}


def test_a_size_that_occurs_once_for_its_gradient_shows_that_nothing_is_kept_for_gradients():
    """A teacher of all layers but one: momentum would be of that one, too."""
    shapes, head = (8 * KIB, 20 * KIB), 40 * KIB
    rows = [*copies(PLAIN, 2, shapes=shapes), (PLAIN, head)]
    found, _ = sort(*rows, *copies(GRADIENT, 1, shapes=(*shapes, head), more=0), whole=[0], states_range=SGD)
    assert found == {Category.WEIGHT: 2 * sum(shapes) + head}


def test_an_odd_number_of_bytes_is_twice_no_size():
    """Of bytes; as large as twice a gradient and one more."""
    odd = tuple(2 * size + 1 for size in SHAPES)
    found, _ = sort(*copies(PLAIN, 1), *copies(PLAIN, 1, shapes=odd), *copies(GRADIENT, 1, more=0), whole=[0])
    assert found == {Category.WEIGHT: TOTAL, Category.UNKNOWN: sum(odd)}


def test_as_many_gradients_as_states_are_the_reference_though_some_may_be_missing():
    rows = [*copies(PLAIN, 1), *copies(GRADIENT, 1, more=0), *copies(STATE, 1, more=3)]
    assert sort(*rows) == ({Category.WEIGHT: TOTAL}, {"as-many-as-gradients"})


def test_where_copies_are_more_than_states_can_be_each_size_is_looked_at_by_itself():
    """SGD keeps one state: three of one size and four of another are not explained by it."""
    rows = [*[(PLAIN, 20 * KIB)] * 3, *[(PLAIN, 8 * KIB)] * 4]
    gradients = copies(GRADIENT, 1, shapes=(20 * KIB, 8 * KIB), more=0)
    found, reasons = sort(*rows, *gradients, whole=[0], states_range=SGD)
    assert found == {
        Category.WEIGHT: 28 * KIB,
        Category.OPTIMIZER_STATE: 40 * KIB,
        Category.UNKNOWN: 24 * KIB,
    }
    assert reasons == {"as-many-as-gradients", "whole-copies-beside-gradients"}
