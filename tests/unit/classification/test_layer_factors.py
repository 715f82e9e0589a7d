"""Square matrices that are kept for the two sides of layers, and what only looks like them."""

from itertools import pairwise

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import APPLY, ENGINE, FORWARD, HOOK, MAIN, Job, classified, frames

# The sides of three layers in a row, and their weights in full precision.
SIDES = (20, 44, 68, 36)
LAYERS = tuple(pairwise(SIDES))
SEEN = frames(("see_inputs", "/w/proj/kfac.py")) + FORWARD
FOUND = (Category.OPTIMIZER_STATE, Evidence.SIZES, "squares-of-the-sides-of-layers")


def square(side, n_bytes=4):
    return n_bytes * side * side


def preconditioned(*, layers=LAYERS, kept=True, bias=0, n_factors=2, weight_bytes=4, n_more=0):
    """Two iterations; in the first one hooks make a matrix for either side of every layer."""
    job = Job()
    for inner, outer in layers:
        job.alloc(APPLY, weight_bytes * (inner * outer + n_more))
    job.does(FORWARD)
    with_factors = layers[: n_factors * len(layers) // 2]
    factors = [job.alloc(SEEN, square(inner + bias)) for inner, _ in with_factors]
    factors += [job.alloc(HOOK, square(outer)) for _, outer in with_factors]
    job.does(ENGINE)
    if not kept:
        for factor in factors:
            job.free(factor, MAIN)
    job.does(FORWARD, ENGINE, MAIN)
    return job


@pytest.fixture
def found(tmp_path):
    def of_size(job, size):
        return classified(job, tmp_path / "snapshot.pickle", size)

    return of_size


@pytest.mark.parametrize("bias", [0, 1])
def test_squares_of_both_sides_of_layers_are_state_of_a_preconditioner(found, bias):
    job = preconditioned(bias=bias)
    assert found(job, square(20 + bias)) == [FOUND]
    assert set(found(job, square(44))) == {FOUND}


def test_factors_in_full_precision_stand_beside_weights_in_half(found):
    assert found(preconditioned(weight_bytes=2), square(20)) == [FOUND]


@pytest.mark.parametrize("is_kept", [True, False])
def test_what_is_there_before_and_after_a_trace_of_half_a_step_is_kept(found, is_kept):
    """A ring that begins after the last forward: nothing shows that another one follows."""
    job = Job()
    for inner, outer in LAYERS:
        job.older(APPLY, 4 * inner * outer)
    factors = [job.older(SEEN, square(inner)) for inner, _ in LAYERS]
    factors += [job.older(HOOK, square(outer)) for _, outer in LAYERS]
    job.does(ENGINE)
    for factor in () if is_kept else factors:
        job.free(factor, ENGINE)
    assert (FOUND in found(job, square(20))) == is_kept


@pytest.mark.parametrize(
    "other",
    [
        {"kept": False},
        {"layers": LAYERS[:1]},
        {"n_factors": 0},
        {"n_more": 1},
        {"layers": ((20, 44), (44, 68), (100, 500), (500, 100)), "n_factors": 1},
    ],
    ids=[
        "freed before another forward",
        "of one layer",
        "of no layer",
        "of no product of sides",
        "of few of the weights",
    ],
)
def test_what_is_not_kept_for_most_layers_is_no_state(found, other):
    assert FOUND not in found(preconditioned(**other), square(20))


@pytest.mark.parametrize("weight_bytes", [4, 2])
def test_copies_of_square_weights_are_no_factors(weight_bytes, found):
    """A second model with layers of 20 x 20, 44 x 44 and 20 x 44; or the weights in full precision."""
    layers = ((20, 20), (44, 44), (20, 44))
    job = Job()
    for inner, outer in layers:
        job.alloc(APPLY, weight_bytes * inner * outer)
    for inner, outer in layers:
        job.alloc(MAIN, 4 * inner * outer)
    job.does(FORWARD, ENGINE, FORWARD, ENGINE)
    assert FOUND not in found(job, square(20)) + found(job, square(44))


def test_fewer_squares_than_weights_are_no_factors(found):
    """One data set of 64 x 64 and one of 128 x 128 beside many weights of 64 x 128."""
    job = Job()
    for _ in range(3):
        job.alloc(APPLY, 4 * 64 * 128)
        job.alloc(APPLY, 4 * 64 * 256)
    for side in (64, 128, 256):
        job.alloc(MAIN, square(side))
    job.does(FORWARD, ENGINE, FORWARD, ENGINE)
    assert FOUND not in found(job, square(64))


@pytest.mark.parametrize(("side", "is_factor"), [(16, True), (15, False)])
def test_squares_of_fewer_than_16_rows_are_squares_by_chance(found, side, is_factor):
    job = preconditioned(layers=((side, 44), (44, 68), (68, 36)))
    assert (FOUND in found(job, square(side))) == is_factor
    assert FOUND in found(job, square(68))


@pytest.mark.parametrize(
    ("others", "is_half"),
    [(((10, 200), (9, 208)), True), (((10, 200), (9, 209)), False), (((40, 60),) * 3, False)],
    ids=["half", "less", "less, of layers of one size"],
)
def test_half_of_the_bytes_of_weights_have_factors(found, others, is_half):
    """The first two layers have them: 20 x 44 and 44 x 68 are as much as 10 x 200 and 9 x 208."""
    job = preconditioned(layers=(*LAYERS[:2], *others), n_factors=1)
    assert (FOUND in found(job, square(20))) == is_half


def test_what_a_line_of_factors_makes_is_one_though_a_weight_is_as_large(found):
    """A layer of 44 x 44: its own factors, and those of others, are as large as itself."""
    job = preconditioned(layers=((20, 44), (44, 44), (44, 68)))
    rows = found(job, square(44))
    assert rows[0][0] is Category.WEIGHT
    assert set(rows[1:]) == {FOUND}


def test_what_is_made_between_two_backwards_and_freed_within_the_next_is_no_factor(found):
    job = Job()
    for inner, outer in LAYERS:
        job.alloc(APPLY, 4 * inner * outer)
    job.does(FORWARD, ENGINE)
    factors = [job.alloc(MAIN, square(side)) for layer in LAYERS for side in layer]
    job.does(FORWARD, ENGINE)
    for factor in factors:
        job.free(factor, ENGINE)
    job.does(ENGINE, FORWARD, ENGINE)
    assert FOUND not in found(job, square(20))


def test_one_new_side_is_not_enough_beside_square_weights(found):
    """Layers of 20 x 20, 24 x 24 and 28 x 28: data of 100 x 100 is as large as one side of the others."""
    layers = ((20, 20), (24, 24), (28, 28), (20, 100), (24, 100))
    assert FOUND not in found(preconditioned(layers=layers), square(100))


def test_several_layers_of_a_size_have_factors_each(found):
    assert set(found(preconditioned(layers=LAYERS[:2] * 3), square(20))) == {FOUND}
