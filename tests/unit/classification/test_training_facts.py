"""What forward and backward hold when memory runs out, and what other threads and models do between them."""

from contextlib import suppress

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.caching_allocator import ModelOutOfMemory
from snapconv.classification.categories import Category
from tests.classified_jobs import (
    APPLY,
    ENGINE,
    FORWARD,
    LOAD,
    MAIN,
    NO_FRAMES,
    OTHER,
    STEP,
    TORCH,
    Job,
    at_line,
    categories,
    frames,
    job_of,
)

ACTIVATION = Category.ACTIVATION
GRADIENT = Category.GRADIENT
INPUT = Category.INPUT
TEMPORARY = Category.TEMPORARY
UNKNOWN = Category.UNKNOWN


@pytest.mark.parametrize(
    ("has_room", "phase", "category"),
    [(False, ENGINE, TEMPORARY), (True, ENGINE, UNKNOWN), (False, STEP, UNKNOWN)],
    ids=["failed", "did not fail", "failed later"],
)
def test_what_a_backward_held_when_it_ran_out_of_memory_was_its_own(
    has_room, phase, category, found
):
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


@pytest.mark.parametrize(
    ("has_room", "n_dropped", "category"),
    [(False, 3, ACTIVATION), (True, 3, TEMPORARY), (False, 5, TEMPORARY)],
    ids=["failed", "did not fail", "kept too little to be trained"],
)
def test_what_a_forward_held_when_it_ran_out_of_memory_is_an_activation(
    has_room, n_dropped, category, found
):
    """The exception then drops everything; what was dropped before it, forward did not need any more."""
    job = Job()
    job.model = RecordedAllocator(clock=job.now, capacity=None if has_room else 30 << 20)
    job.older(NO_FRAMES, 4000)
    job.alloc(APPLY, OTHER)
    earlier = job.alloc(FORWARD, 5000)
    job.does(STEP)
    held = [job.alloc(FORWARD) for _ in range(2)]
    for dropped in [job.alloc(FORWARD, 6000) for _ in range(n_dropped)]:
        job.free(dropped, FORWARD)
    with suppress(ModelOutOfMemory):
        job.free(job.alloc(FORWARD, 40 << 20), FORWARD)
    for addr in (earlier, *held):
        job.free(addr, MAIN)
    job.does(MAIN)
    assert categories(found(job)) == [category] * 2
    assert categories(found(job, 5000)) == [TEMPORARY]
    assert categories(found(job, 6000)) == [TEMPORARY] * n_dropped
    assert categories(found(job, 4000)) == [UNKNOWN]  # no forward had made it


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
    job = Job()
    job.does(FORWARD[:-1] + thread, ENGINE)
    block = job.alloc(ENGINE)
    job.alloc(frames(("load", "/w/proj/data.py")) + thread, OTHER)
    job.does(ENGINE)
    job.model.free(block, frames=ENGINE)
    job.does(ENGINE)
    assert categories(found(job)) == [TEMPORARY]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param("LAYER COPY", INPUT, id="data came since"),
        pytest.param("COPY FORWARD", INPUT, id="a module without weights"),
        pytest.param(
            "LAYER ENGINE STEP FORWARD", INPUT, id="a module without weights in the next iteration"
        ),
        pytest.param(
            "LAYER ENGINE RECOMPUTED_LAYER FORWARD",
            INPUT,
            id="a layer ran again in the backward before",
        ),
        pytest.param("COPY LAYER", ACTIVATION, id="a layer ran since"),
        pytest.param("COPY COMPILED_LAYERS", ACTIVATION, id="compiled layers ran since"),
        pytest.param("LAYER ENGINE STEP LAYER", ACTIVATION, id="a layer of the next iteration"),
        pytest.param("FORWARD LOAD", ACTIVATION, id="no data came"),
        pytest.param("FORWARD ZEROS", ACTIVATION, id="only numbers were filled in"),
    ],
)
def test_what_is_computed_between_a_forward_without_a_graph_and_one_with_it(
    before, expected, found
):
    """Pictures that a module normalizes; what a student shall say, of what its teacher says."""
    between = "alloc LOAD a, alloc FORWARD b other, does LOSS ENGINE, free b RELEASE, free a MAIN"
    assert categories(found(job_of(f"does {before}, {between}"))) == [expected]


def test_other_lines_fetch_no_batch_of_the_line_before_however_large_it_is(found):
    """NumPy before 2.0 has numbers of lines and sizes in 32 bits: then lines 4 apart make the same."""
    gib = 1 << 30
    job = Job()
    batch = job.alloc(LOAD, gib)
    job.does(FORWARD)
    others = [job.alloc(at_line(LOAD, line), gib) for line in range(10, 18)]
    job.does(ENGINE)
    job.free(batch, MAIN)
    job.does(FORWARD)
    for addr in others:
        job.free(addr, MAIN)
    assert "made-for-the-next-forward" not in {reason for *_, reason in found(job, gib)}


@pytest.mark.parametrize(("n_lines", "category"), [(6, ACTIVATION), (3, TEMPORARY)])
def test_results_of_many_lines_that_the_program_frees_at_once_were_kept_by_a_graph(
    n_lines, category, found
):
    """Without a graph, forward itself frees all but its results, which few lines make."""
    job = Job()
    job.does(FORWARD, NO_FRAMES)
    results = [job.alloc(at_line(FORWARD, line)) for line in range(n_lines)]
    job.does(MAIN)
    for addr in results:
        job.free(addr, MAIN)
    job.does(FORWARD, NO_FRAMES)
    assert categories(found(job)) == [category] * n_lines
