"""What is known of memory by what freed it."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    APPLY,
    COPY,
    ENGINE,
    FORWARD,
    LOAD,
    NO_FRAMES,
    RELEASE,
    STEP,
    SUBJECT,
    ZEROS,
    Job,
    at_line,
    categories,
    classified,
    job_of,
)

INPUT = Category.INPUT
ACTIVATION = Category.ACTIVATION
TEMPORARY = Category.TEMPORARY

UNKNOWN = Category.UNKNOWN


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


def test_what_freed_it_goes_before_who_made_it(found):
    job = job_of("alloc APPLY, free RELEASE, alloc COPY, free RELEASE")
    assert categories(found(job)) == [ACTIVATION] * 2


@pytest.mark.parametrize(
    ("n_weights", "expected"),
    [(1, [INPUT]), (2, [ACTIVATION] * 2)],
    ids=["a batch", "weights"],
)
def test_what_a_line_computes_for_every_weight_is_no_batch_of_the_graph(n_weights, expected, found):
    job = Job()
    for _ in range(n_weights):
        job.alloc(APPLY)
    computed = [job.alloc(LOAD) for _ in range(n_weights)]
    job.does(FORWARD, ENGINE)
    for addr in computed:
        job.free(addr, RELEASE)
    assert categories(found(job))[n_weights:] == expected


def test_what_modules_made_is_no_gradient_though_it_is_freed_in_zero_grad(found):
    assert categories(found(job_of("alloc FORWARD, free ZERO_GRAD"))) == [TEMPORARY]


def test_a_preexisting_batch_is_what_other_iterations_freed_at_that_place_and_of_that_size(found):
    """Nothing but the graph held the batch; an activation of another size is freed by the same stack."""
    job = Job()
    old, kept = job.older(NO_FRAMES), job.older(NO_FRAMES, SUBJECT + 1)
    for _ in range(2):
        job.free(old, RELEASE)
        job.free(kept, RELEASE)
        job.does(ENGINE, STEP)
        old = job.alloc(COPY)
        kept = job.alloc(FORWARD, SUBJECT + 1)
    job.free(old, RELEASE)
    job.free(kept, RELEASE)
    assert categories(found(job)) == [INPUT] * 3
    assert categories(found(job, SUBJECT + 1)) == [ACTIVATION] * 3


def test_where_batches_and_activations_of_a_size_are_freed_a_preexisting_one_may_be_either(found):
    job = Job()
    old = job.older(NO_FRAMES)
    job.free(old, RELEASE)
    job.does(ENGINE, STEP)
    batch, kept = job.alloc(COPY), job.alloc(FORWARD)
    job.free(batch, RELEASE)
    job.free(kept, RELEASE)
    assert categories(found(job)) == [ACTIVATION, INPUT, ACTIVATION]


def test_what_each_line_makes_once_in_an_iteration_is_no_list_of_states(found):
    """Eight lines keep one block as large as a weight in each of four iterations; and one from before.

    In the last of them it is no batch: no forward follows.
    """
    lines = [at_line(ZEROS, number) for number in range(1, 9)]
    job = Job()
    for line in lines:
        job.older(line)
    job.alloc(APPLY)
    for _ in range(4):
        job.does(FORWARD, ENGINE)
        for line in lines:
            job.alloc(line)
    assert categories(found(job))[-8:] == [UNKNOWN] * 8
