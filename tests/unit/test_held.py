"""What the program holds itself is told by who made it, how often and how large; and what is only older."""

import pytest

from snapconv.analysis.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    ENGINE,
    FORWARD,
    LOAD,
    MAIN,
    NO_FRAMES,
    RELEASE,
    SUBJECT,
    WORKSPACE_BYTES,
    ZERO_GRAD,
    Job,
    categories,
    classified,
)

WEIGHT, GRADIENT, INPUT = Category.WEIGHT, Category.GRADIENT, Category.INPUT
ACTIVATION, WORKSPACE = Category.ACTIVATION, Category.WORKSPACE


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


def trained_by_hand(n_kept, n_gradients):
    """A program without modules of torch: what it makes and keeps, and gradients of that size."""
    job = Job()
    for _ in range(n_kept):
        job.alloc(LOAD)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE) for _ in range(n_gradients)]:
        job.free(addr, ZERO_GRAD)
    return job


def test_a_kept_tensor_with_a_gradient_is_a_weight_though_no_module_made_it(found):
    rows = found(trained_by_hand(2, 2))
    assert rows[:2] == [(WEIGHT, Evidence.SIZES, "kept-and-has-a-gradient")] * 2


def test_more_tensors_than_gradients_of_a_size_are_not_told_apart(found):
    assert WEIGHT not in categories(found(trained_by_hand(3, 2)))


def test_a_batch_of_the_size_of_a_weight_that_has_its_gradient_is_none(found):
    job = Job()
    job.alloc(APPLY)
    job.alloc(LOAD)
    job.does(FORWARD)
    job.free(job.alloc(ENGINE), ZERO_GRAD)
    assert categories(found(job)) == [WEIGHT, INPUT, GRADIENT]


def test_several_tensors_of_one_line_as_large_as_weights_are_no_batch(found):
    job = Job()
    for _ in range(2):
        job.alloc(APPLY)
    kept = [job.alloc(LOAD) for _ in range(2)]
    job.does(FORWARD)
    job.free(kept[0], MAIN)
    assert categories(found(job))[2:] == [Category.UNKNOWN] * 2


@pytest.mark.parametrize(("n_blocks", "are_workspaces"), [(2, True), (3, False)])
def test_old_blocks_of_the_size_of_a_workspace_are_two_at_most(n_blocks, are_workspaces, found):
    job = Job()
    for _ in range(n_blocks):
        job.older(NO_FRAMES, WORKSPACE_BYTES)
    job.does(FORWARD)
    rows = found(job, WORKSPACE_BYTES)
    assert [category is WORKSPACE for category in categories(rows)] == [are_workspaces] * n_blocks


def test_what_the_engine_lets_go_of_at_once_may_be_its_own_if_it_is_older(found):
    job = Job()
    saved, other = job.older(NO_FRAMES), job.older(NO_FRAMES)
    job.free(saved, RELEASE)
    job.free(other, ENGINE)
    job.does(FORWARD)
    assert categories(found(job)) == [ACTIVATION, Category.UNKNOWN]
