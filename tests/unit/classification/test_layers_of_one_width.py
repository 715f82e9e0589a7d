"""Where nothing is trained, layers are known by a vector that divides nearly all that repeats."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import ENGINE, FORWARD, NO_FRAMES, Job, classified

KIB = 1024


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size: classified(job, tmp_path / "snapshot.pickle", size)


# A layer of 128 numbers: two norms, four matrices of attention, three that widen; side by side, as small
# ones lie.
NORM, SQUARE, WIDE = 512, 64 * KIB, 160 * KIB
OF_ONE_WIDTH = "layers-of-one-width"


def side_by_side(n_layers=5, norms=2, squares=4, wide=3, others=(), n_copies=1):
    job = Job()
    counts = ((NORM, norms * n_layers + (norms > 0)), (SQUARE, squares * n_layers), (WIDE, wide * n_layers))
    for size, n in (*counts, *others):
        for _ in range(n * n_copies):
            job.older(NO_FRAMES, size)
    job.does(FORWARD)
    return job


def reasons(rows):
    return {(category, reason) for category, _, reason in rows}


def test_layers_that_ran_in_no_one_number_are_known_by_a_vector_that_divides_them(found):
    job = side_by_side()
    for size in (NORM, SQUARE, WIDE):
        assert reasons(found(job, size)) == {(Category.WEIGHT, OF_ONE_WIDTH)}


@pytest.mark.parametrize("n", [1, 2])
def test_one_or_two_for_every_layer_may_be_a_cache(n, found):
    job = side_by_side(others=[(48 * KIB, 5 * n)])
    assert reasons(found(job, 48 * KIB)) == {(Category.KV_CACHE, "one-for-every-layer")}
    assert reasons(found(job, WIDE)) == {(Category.WEIGHT, OF_ONE_WIDTH)}


@pytest.mark.parametrize(
    ("size", "n", "is_weight"),
    [(4 * SQUARE, 10, True), (4 * SQUARE, 9, False), (4 * SQUARE + 512, 10, False), (2 * SQUARE, 10, False)],
)
def test_two_that_are_four_times_as_large_as_what_has_four_widen_and_narrow(size, n, is_weight, found):
    job = side_by_side(wide=0, others=[(size, n)])
    assert (reasons(found(job, size)) == {(Category.WEIGHT, OF_ONE_WIDTH)}) is is_weight


def test_beside_what_layers_widen_to_two_for_every_layer_may_be_a_cache(found):
    """Llama's layers have four squares and three that widen; a cache is as large as some words of a batch."""
    job = side_by_side(others=[(4 * SQUARE, 10)])
    assert reasons(found(job, 4 * SQUARE)) == {(Category.KV_CACHE, "one-for-every-layer")}


def test_two_layers_are_too_few_to_widen_and_narrow(found):
    job = side_by_side(n_layers=2, wide=0, others=[(4 * SQUARE, 4)])
    assert OF_ONE_WIDTH not in {reason for _, reason in reasons(found(job, 4 * SQUARE))}


def test_two_models_of_which_one_has_half_the_precision_widen_and_narrow_each(found):
    """One has a layer of its own after the last."""
    job = side_by_side(wide=0, others=[(4 * SQUARE, 10), (2 * SQUARE, 21), (8 * SQUARE, 10)])
    for size in (4 * SQUARE, 8 * SQUARE):
        assert reasons(found(job, size)) == {(Category.WEIGHT, OF_ONE_WIDTH)}


@pytest.mark.parametrize(
    "job",
    [side_by_side(norms=0, others=[(SQUARE + 4, 20)]), side_by_side(n_copies=2), side_by_side(squares=0)],
    ids=["no vector", "two of everything", "two sizes"],
)
def test_without_a_width_or_as_copies_or_of_few_sizes_they_may_be_anything(job, found):
    assert reasons(found(job, WIDE)) == {(Category.UNKNOWN, "persistent-since-before-the-recording")}


def test_several_pairs_of_which_one_is_four_times_as_large_may_be_weights_and_states_of_bytes(found):
    job = Job()
    for size, n in ((NORM, 11), (16 * KIB, 40), (SQUARE, 20), (4 * SQUARE, 10)):
        for _ in range(n):
            job.older(NO_FRAMES, size)
    job.does(FORWARD)
    assert reasons(found(job, SQUARE)) == {(Category.UNKNOWN, "persistent-since-before-the-recording")}


def test_where_something_is_trained_layers_of_one_width_are_not_enough(found):
    job = side_by_side()
    job.does(ENGINE)
    assert OF_ONE_WIDTH not in {reason for _, reason in reasons(found(job, WIDE))}
