"""What backward makes and keeps, and for how long."""

from contextlib import suppress

import pytest

from snapconv.allocator.caching_allocator import CachingAllocator, OutOfMemory
from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    ENGINE,
    FORWARD,
    OTHER,
    STEP,
    SUBJECT,
    Job,
    categories,
    classified,
    job_of,
)

GRADIENT = Category.GRADIENT
TEMPORARY = Category.TEMPORARY
UNKNOWN = Category.UNKNOWN
ACTIVATION = Category.ACTIVATION

WEIGHT = Category.WEIGHT


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


@pytest.mark.parametrize(
    ("has_room", "phase", "category"),
    [(False, ENGINE, TEMPORARY), (True, ENGINE, UNKNOWN), (False, STEP, UNKNOWN)],
    ids=["failed", "did not fail", "failed later"],
)
def test_what_a_backward_held_when_it_ran_out_of_memory_was_its_own(has_room, phase, category, found):
    job = Job()
    job.model = CachingAllocator(clock=job.now, capacity=None if has_room else 30 << 20)
    job.alloc(APPLY, OTHER)
    job.does(FORWARD)
    gradient, own = job.alloc(ENGINE, OTHER), job.alloc(ENGINE)
    assert gradient != own
    job.does(phase)
    with suppress(OutOfMemory):
        job.alloc(phase, 40 << 20)
    assert categories(found(job)) == [category]
    assert categories(found(job, OTHER))[2] == GRADIENT


@pytest.mark.parametrize(
    ("n_bytes", "expected"),
    [(SUBJECT - 1, UNKNOWN), (SUBJECT + 1, ACTIVATION)],
    ids=["less than half of them", "half of them and more"],
)
def test_half_of_the_results_of_a_backward_decide_the_rest(n_bytes, expected, found):
    job = Job()
    freed = job.alloc(ENGINE, n_bytes)
    job.alloc(ENGINE)
    job.does(FORWARD, ENGINE)
    job.free(freed, ENGINE)
    assert categories(found(job)) == [expected]


def test_as_many_results_that_are_freed_as_are_kept_decide_the_rest(found):
    job = Job()
    freed = job.alloc(ENGINE)
    job.alloc(ENGINE)
    job.does(FORWARD, ENGINE)
    job.free(freed, ENGINE)
    assert categories(found(job)) == [ACTIVATION] * 2


def test_the_results_of_another_backward_are_decided_by_themselves(found):
    """Of two that are differentiated, the program keeps all of the second one's."""
    job = Job()
    freed = job.alloc(ENGINE, SUBJECT + 1)
    job.does(FORWARD)
    job.alloc(ENGINE)
    job.does(FORWARD, ENGINE)
    job.free(freed, ENGINE)
    assert categories(found(job)) == [UNKNOWN]


def test_a_gradient_has_the_size_of_a_weight(found):
    job = Job()
    job.alloc(APPLY)
    job.alloc(ENGINE)
    job.alloc(ENGINE, SUBJECT + 1)
    job.does(ENGINE, STEP)
    assert categories(found(job)) == [WEIGHT, GRADIENT]
    assert found(job, SUBJECT + 1) == [(Category.UNKNOWN, Evidence.NONE, "none")]


@pytest.mark.parametrize(
    ("life", "expected"),
    [
        ("older APPLY, older NO_FRAMES, does STEP", [WEIGHT, GRADIENT]),
        ("older APPLY, older NO_FRAMES, older NO_FRAMES, does STEP", [WEIGHT] + [UNKNOWN] * 2),
        ("older MAIN, older NO_FRAMES, does STEP", [UNKNOWN] * 2),
        ("older APPLY, older NO_FRAMES, does ENGINE", [WEIGHT, UNKNOWN]),
    ],
    ids=["one each", "more", "no weight", "with frames of C++"],
)
def test_beside_preexisting_weights_with_frames_a_preexisting_block_without_is_of_backward(
    life, expected, found
):
    """With Python-only stacks nothing that the engine makes has a frame."""
    assert categories(found(job_of(life))) == expected
