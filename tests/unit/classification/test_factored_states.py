"""What an optimizer keeps for each dimension of a weight is found by what its step computes to add to it."""

from collections import Counter

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    ENGINE,
    FORWARD,
    NO_FRAMES,
    STEP,
    TORCH,
    ZERO_GRAD,
    Job,
    at_line,
    classified,
    frames,
)

WEIGHT, STATE, UNKNOWN = Category.WEIGHT, Category.OPTIMIZER_STATE, Category.UNKNOWN

# Two layers, and what is kept for the dimensions of each, of which they have one in common. No size is that
# of a square matrix in fp32: those are found by the sides of the layers too.
WEIGHTS = (16_000, 24_000)
OF_BOTH, OF_FIRST, OF_SECOND = 44_000, 6_000, 14_000
FACTORS = (OF_BOTH, OF_FIRST, OF_SECOND, OF_BOTH)
IN_STEP = frames(("step", "/w/proj/shampoo.py"), ("wrapper", f"{TORCH}/optim/optimizer.py"))


def trained(*older, made, made_beside=(), weights=WEIGHTS, line=IN_STEP):
    """Blocks from before the trace; a forward, a backward, and a step with temporaries, of one iteration.

    ``made_beside``: what another line of the step makes.
    """
    job = Job()
    for size in older:
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    gradients = [job.alloc(ENGINE, size) for size in weights]
    for of_line, sizes in ((line, made), (at_line(line, 7), made_beside)):
        for size in sizes:
            job.free(job.alloc(of_line, size), of_line)
    for gradient in gradients:
        job.free(gradient, ZERO_GRAD)
    return job


@pytest.fixture
def said(tmp_path):
    """The categories of the blocks of a size that were there before the trace."""

    def categories(job, size, n):
        found = classified(job, tmp_path / "snapshot.pickle", size)
        return Counter(category for category, *_ in found[:n])

    return categories


@pytest.mark.parametrize("times", [1, 2, 3])
def test_blocks_as_often_as_the_step_makes_them_or_a_multiple_are_its_states(times, said, tmp_path):
    job = trained(*WEIGHTS, *FACTORS * times, made=FACTORS)
    assert said(job, OF_BOTH, 2 * times) == {STATE: 2 * times}
    assert said(job, OF_FIRST, times) == said(job, OF_SECOND, times) == {STATE: times}
    assert [said(job, size, 1) for size in WEIGHTS] == [{WEIGHT: 1}, {WEIGHT: 1}]
    _, evidence, reason = classified(job, tmp_path / "snapshot.pickle", OF_FIRST)[0]
    assert (evidence.label, reason) == ("sizes", "as-often-as-the-step-makes-it")


def test_weights_of_a_factor_s_size_stay_weights(said):
    # A further layer of that size.
    job = trained(*WEIGHTS, OF_BOTH, *FACTORS, made=FACTORS, weights=(*WEIGHTS, OF_BOTH))
    assert said(job, OF_BOTH, 3) == {WEIGHT: 1, STATE: 2}


def test_moments_beside_factors_are_found_as_without_them(said):
    job = trained(*WEIGHTS * 2, *FACTORS, made=FACTORS)
    assert [said(job, size, 2) for size in WEIGHTS] == [{WEIGHT: 1, STATE: 1}] * 2


def test_frozen_weights_of_one_of_the_sizes_are_left_open(said):
    # For the other sizes, with most of the bytes, there is one block for each that the step makes.
    factors = (*FACTORS, *(OF_SECOND,) * 5)
    job = trained(*WEIGHTS, OF_BOTH, *factors, made=factors)
    assert said(job, OF_SECOND, 6) == {STATE: 6}
    assert said(job, OF_BOTH, 3) == {STATE: 2, UNKNOWN: 1}


def test_what_is_decided_already_counts_with_what_is_left(said, tmp_path):
    # Layers of 100 x 40, 60 x 100 and 100 x 100: by their sides, all squares are known but those of 100, of
    # which one is a weight.
    weights, squares = (16_000, 24_000, 40_000), (40_000, 6_400, 14_400, 40_000, 40_000, 40_000)
    job = trained(*weights, *squares, made=squares, weights=weights)
    decided = {size: classified(job, tmp_path / "a.pickle", size)[0] for size in squares}
    assert decided[6_400][2] == decided[14_400][2] == "squares-of-the-sides-of-layers"
    assert said(job, 40_000, 5) == {WEIGHT: 1, STATE: 4}


def test_one_size_alone_shows_nothing(said):
    job = trained(*WEIGHTS, OF_BOTH, OF_BOTH, made=(OF_BOTH, OF_BOTH))
    assert said(job, OF_BOTH, 2) == {UNKNOWN: 2}


def test_of_two_lines_of_the_step_the_one_that_explains_most_bytes_is_believed(said):
    # Many small factors, and two larger blocks that may as well be frozen.
    many, two = (OF_FIRST, OF_SECOND) * 8, (OF_BOTH, 50_000)
    job = trained(*WEIGHTS, *many, *two, made=many, made_beside=two)
    assert [said(job, size, 8) for size in many[:2]] == [{STATE: 8}] * 2
    assert [said(job, size, 1) for size in two] == [{UNKNOWN: 1}] * 2


def test_fewer_blocks_than_the_step_makes_are_not_its_states(said):
    job = trained(*WEIGHTS, OF_BOTH, OF_FIRST, OF_SECOND, made=FACTORS * 2)
    assert said(job, OF_FIRST, 1) == said(job, OF_SECOND, 1) == {UNKNOWN: 1}


TWICE = tuple(2 * size for size in WEIGHTS)


@pytest.mark.parametrize("n_layers", [1, 5])
def test_gradients_in_full_precision_are_no_factors_and_the_masters_are_weights(n_layers, said):
    weights, twice = WEIGHTS * n_layers, TWICE * n_layers
    job = trained(*weights, *twice * 3, made=twice, weights=weights, line=STEP)
    expected = {WEIGHT: n_layers, STATE: 2 * n_layers}
    assert [said(job, size, 3 * n_layers) for size in TWICE] == [expected] * 2


# Beside 80,000 bytes.
@pytest.mark.parametrize(("other", "are_gradients"), [(8_880, True), (8_896, False)])
def test_gradients_are_nine_tenths_of_what_a_line_of_the_step_makes_that_makes_them(
    other, are_gradients, said
):
    job = trained(*WEIGHTS, *(*TWICE, other) * 3, made=(*TWICE, other))
    assert (said(job, TWICE[0], 3) == {STATE: 3}) is not are_gradients


# Frozen weights repeat in layers, and so would factors: what the step makes as large may be either.
@pytest.mark.parametrize(("made", "expected"), [((), WEIGHT), ((OF_FIRST,), UNKNOWN)])
def test_what_is_as_large_as_something_that_the_step_makes_is_not_taken_for_frozen(made, expected, said):
    frozen = (1_000, OF_BOTH, OF_FIRST, OF_SECOND, 50_000) * 4
    job = trained(*WEIGHTS, *frozen, made=made)
    assert said(job, OF_SECOND, 4) == {WEIGHT: 4}
    assert said(job, OF_FIRST, 4) == {expected: 4}


def test_gradients_that_stay_are_known_by_the_temporaries_that_are_added_to_them(said):
    job = Job()
    # Weights, gradients, and factors; the gradients are not made again.
    for size in (*WEIGHTS * 2, *FACTORS):
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    for size in WEIGHTS:
        job.free(job.alloc(ENGINE, size), ENGINE)
    for size in (*WEIGHTS, *FACTORS):
        job.free(job.alloc(IN_STEP, size), IN_STEP)
    assert said(job, OF_BOTH, 2) == {STATE: 2}
    assert STATE not in said(job, WEIGHTS[0], 2)


@pytest.mark.parametrize(("size", "expected"), [(1024, STATE), (1020, UNKNOWN)])
def test_two_sizes_from_a_kibibyte_on_show_factors(size, expected, said):
    job = trained(*WEIGHTS, size, OF_BOTH, made=(size, OF_BOTH))
    assert said(job, OF_BOTH, 1) == {expected: 1}


def test_a_line_of_which_less_than_half_the_bytes_are_kept_as_often_shows_nothing(said):
    """Of 140,000 bytes, 50,000: of the other size there are two, which may be frozen."""
    job = trained(*WEIGHTS, OF_BOTH, OF_FIRST, 90_000, 90_000, made=(OF_BOTH, OF_FIRST, 90_000))
    assert said(job, OF_BOTH, 1) == {UNKNOWN: 1}


def test_three_blocks_for_two_that_the_step_makes_are_not_its_states(said):
    job = trained(*WEIGHTS, *(OF_FIRST, OF_SECOND) * 3, made=(OF_FIRST, OF_SECOND) * 2)
    assert said(job, OF_FIRST, 3) == said(job, OF_SECOND, 3) == {UNKNOWN: 3}
