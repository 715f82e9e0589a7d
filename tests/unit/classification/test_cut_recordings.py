"""What is inferred of recordings that begin or end in the middle of a step, and of compiled code in them."""

from contextlib import suppress

import pytest

from snapconv.allocator.caching_allocator import CachingAllocator, OutOfMemory
from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    COMPILED,
    COPY,
    ENGINE,
    FORWARD,
    MAIN,
    NO_FRAMES,
    OTHER,
    RELEASE,
    STEP,
    SUBJECT,
    Job,
    at_line,
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


def test_a_compiled_backward_frees_on_each_line_of_what_it_does_in_other_iterations(found):
    """It drops what was kept for it, and what it made itself; the trace begins in the middle of the first."""
    job = Job()
    kept, made, unseen_at_first, unseen = (job.older(NO_FRAMES) for _ in range(4))
    for line, addr in ((10, kept), (20, made), (30, unseen_at_first)):
        job.model.free(addr, frames=at_line(COMPILED, line))
    job.does(COMPILED)  # it drops something of its own: what goes now was kept
    job.model.free(unseen, frames=at_line(COMPILED, 40))
    job.does(STEP)
    kept = job.alloc(FORWARD)
    job.does(RELEASE)
    made = job.alloc(COMPILED)
    job.model.free(kept, frames=at_line(COMPILED, 10))
    job.model.free(made, frames=at_line(COMPILED, 20))
    old, new = [ACTIVATION, TEMPORARY, UNKNOWN, ACTIVATION], [ACTIVATION, TEMPORARY]
    assert categories(found(job)) == [*old, *new]


def test_a_compiled_backward_makes_gradients_though_its_lines_are_those_of_forward(found):
    job = job_of("does FORWARD, alloc COMPILED, does STEP, free ZERO_GRAD")
    assert found(job) == [(GRADIENT, FREE_SITE, "freed-in-zero-grad")]


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
    ("has_room", "n_dropped", "category"),
    [(False, 3, ACTIVATION), (True, 3, TEMPORARY), (False, 5, TEMPORARY)],
    ids=["failed", "did not fail", "kept too little to be trained"],
)
def test_what_a_forward_held_when_it_ran_out_of_memory_is_an_activation(has_room, n_dropped, category, found):
    """The exception then drops everything; what was dropped before it, forward did not need any more."""
    job = Job()
    job.model = CachingAllocator(clock=job.now, capacity=None if has_room else 30 << 20)
    job.older(NO_FRAMES, 4000)
    job.alloc(APPLY, OTHER)
    earlier = job.alloc(FORWARD, 5000)
    job.does(STEP)
    held = [job.alloc(FORWARD) for _ in range(2)]
    for dropped in [job.alloc(FORWARD, 6000) for _ in range(n_dropped)]:
        job.free(dropped, FORWARD)
    with suppress(OutOfMemory):
        job.free(job.alloc(FORWARD, 40 << 20), FORWARD)
    for addr in (earlier, *held):
        job.free(addr, MAIN)
    job.does(MAIN)
    assert categories(found(job)) == [category] * 2
    assert categories(found(job, 5000)) == [TEMPORARY]
    assert categories(found(job, 6000)) == [TEMPORARY] * n_dropped
    assert categories(found(job, 4000)) == [UNKNOWN]  # no forward had made it


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
