"""What is made in forward, or freed there, and what was there before it."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    CRITERION,
    ENGINE,
    FORWARD,
    LOAD,
    MAIN,
    NO_FRAMES,
    RECOMPUTE,
    RELEASE,
    SUBJECT,
    Job,
    categories,
    classified,
    cpp,
    frames,
)

ACTIVATION = Category.ACTIVATION
TEMPORARY = Category.TEMPORARY
UNKNOWN = Category.UNKNOWN


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


def test_what_the_engine_frees_at_once_may_be_its_own_if_it_is_preexisting(found):
    job = Job()
    saved, other = job.older(NO_FRAMES), job.older(NO_FRAMES)
    job.free(saved, RELEASE)
    job.free(other, ENGINE)
    job.does(FORWARD)
    job.does(RELEASE)
    assert categories(found(job)) == [ACTIVATION, TEMPORARY]


def test_where_checkpoints_compute_again_what_the_engine_frees_may_have_been_kept(found):
    job = Job()
    other = job.older(NO_FRAMES)
    job.free(other, ENGINE)
    job.does(RELEASE, FORWARD, RECOMPUTE)
    assert categories(found(job)) == [UNKNOWN]


MATMUL = frames(cpp("at::_ops::addmm::call(at::Tensor const&)"), ("mlp", "/w/proj/train.py")) + MAIN


def test_a_criterion_is_no_module_that_a_batch_is_made_for(found):
    job = Job()
    for _ in range(3):
        hidden, loss = job.alloc(MATMUL), job.alloc(CRITERION, SUBJECT + 1)
        job.free(loss, RELEASE)
        job.free(hidden, RELEASE)
        job.does(ENGINE)
    assert categories(found(job)) == [ACTIVATION] * 3


def test_what_a_module_keeps_from_step_to_step_is_no_temporary_of_a_lost_forward(found):
    job = Job()
    old = job.older(NO_FRAMES)
    job.does(LOAD, FORWARD)
    job.free(old, FORWARD)
    job.does(ENGINE)
    assert categories(found(job)) == [UNKNOWN]
