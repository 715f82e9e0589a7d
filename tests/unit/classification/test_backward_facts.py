"""What backward makes and keeps, and for how long."""

from contextlib import suppress

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.caching_allocator import ModelOutOfMemory
from snapconv.classification.categories import Category
from tests.classified_jobs import (
    ADD_TO_GRADIENT,
    APPLY,
    ENGINE,
    FORWARD,
    MAIN,
    OTHER,
    STEP,
    SUBJECT,
    TORCH,
    Job,
    categories,
    classified,
    frames,
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
    job.model = RecordedAllocator(clock=job.now, capacity=None if has_room else 30 << 20)
    job.alloc(APPLY, OTHER)
    job.does(FORWARD)
    gradient, own = job.alloc(ENGINE, OTHER), job.alloc(ENGINE)
    assert gradient != own
    job.does(phase)
    with suppress(ModelOutOfMemory):
        job.alloc(phase, 40 << 20)
    assert categories(found(job)) == [category]
    assert categories(found(job, OTHER))[2] == GRADIENT


def test_the_results_of_another_backward_are_decided_by_themselves(found):
    """Of two that are differentiated, the program keeps all of the second one's."""
    job = Job()
    freed = job.alloc(ENGINE, SUBJECT + 1)
    job.does(FORWARD)
    job.alloc(ENGINE)
    job.does(FORWARD, ENGINE)
    job.free(freed, ENGINE)
    assert categories(found(job)) == [UNKNOWN]


def test_what_outlives_backward_but_not_the_next_forward_is_a_gradient_if_a_weight_is_as_large(found):
    job = Job()
    job.alloc(APPLY)
    job.alloc(ENGINE)
    job.alloc(ENGINE, SUBJECT + 1)
    job.does(ENGINE, FORWARD, STEP)
    assert categories(found(job)) == [WEIGHT, GRADIENT]
    assert categories(found(job, SUBJECT + 1)) == [Category.UNKNOWN]


def calls_of_engine(at_work, freed_by=ENGINE, *, made_by=ENGINE, calls=FORWARD):
    """The engine makes a block, others make theirs, and the engine frees it: in one run of backward."""
    job = Job()
    job.does(calls, made_by)
    block = job.alloc(made_by)
    if at_work is not None:
        job.alloc(at_work, OTHER)
    job.does(made_by)
    job.model.free(block, frames=freed_by)
    job.does(made_by)
    return job


ON_ITS_THREAD = frames(("backward", "/w/proj/ops.py"), ("backward", f"{TORCH}/autograd/__init__.py")) + MAIN
WORKER = frames(("load", "/w/proj/data.py"), ("_bootstrap", "/usr/lib/python3.11/threading.py"))


@pytest.mark.parametrize(
    "outermost",
    [
        ("_bootstrap", "/usr/lib/python3.11/threading.py"),
        ("decorate_context", f"{TORCH}/utils/_contextlib.py"),
    ],
    ids=["of any thread", "of any function without gradients"],
)
def test_a_function_that_other_threads_have_outermost_as_well_is_not_the_program(outermost, found):
    """DataParallel's threads, and those that fetch a batch; a hook that calls a module, and all others."""
    thread = frames(outermost)
    job = calls_of_engine(frames(("load", "/w/proj/data.py")) + thread, calls=FORWARD[:-1] + thread)
    assert categories(found(job)) == [TEMPORARY]


def test_a_gradient_that_a_later_call_adds_to_was_not_kept_for_it(found):
    assert categories(found(calls_of_engine(MAIN, ADD_TO_GRADIENT))) == [TEMPORARY]


def test_what_happened_before_it_was_made_is_no_later_call(found):
    job = Job()
    job.does(FORWARD, ENGINE)
    job.alloc(MAIN, OTHER)
    block = job.alloc(ENGINE)
    job.does(ENGINE)
    job.free(block, ENGINE)
    job.alloc(MAIN, OTHER)
    job.does(ENGINE)
    assert categories(found(job)) == [TEMPORARY]
