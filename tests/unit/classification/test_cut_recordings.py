"""What is inferred of recordings that begin or end in the middle of a step, and of compiled code in them."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    FORWARD,
    NO_FRAMES,
    STEP,
    SUBJECT,
    Job,
    categories,
    classified,
    job_of,
)

WEIGHT, GRADIENT, UNKNOWN = Category.WEIGHT, Category.GRADIENT, Category.UNKNOWN
ACTIVATION, INPUT, TEMPORARY = Category.ACTIVATION, Category.INPUT, Category.TEMPORARY
FREE_SITE = Evidence.FREE_SITE


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


def test_a_compiled_backward_makes_gradients_though_its_lines_are_those_of_forward(found):
    job = job_of("does FORWARD, alloc COMPILED, does STEP, free ZERO_GRAD")
    assert found(job) == [(GRADIENT, FREE_SITE, "freed-in-zero-grad")]


def test_with_python_stacks_what_goes_before_backward_frees_anything_of_its_own_stays_open(found):
    """The engine's stacks are empty there, and the trace begins in a backward."""
    job = Job()
    first, second = job.older(NO_FRAMES), job.older(NO_FRAMES)
    job.free(first, NO_FRAMES)
    job.does(NO_FRAMES)
    job.free(second, NO_FRAMES)
    job.does(STEP, FORWARD)
    assert categories(found(job)) == [UNKNOWN, ACTIVATION]


def test_what_a_later_step_frees_was_not_made_in_the_one_that_the_trace_begins_in(found):
    life = "older NO_FRAMES, does STEP, does FORWARD, does ENGINE, does STEP, free STEP"
    assert categories(found(job_of(life))) == [UNKNOWN]
