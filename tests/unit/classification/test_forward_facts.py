"""What is made in forward, or freed there, and what was there before it."""

from contextlib import suppress

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.caching_allocator import ModelOutOfMemory
from snapconv.classification.categories import Category
from tests.classified_jobs import (
    APPLY,
    CALL,
    COMPILED_FILE,
    COPY,
    CRITERION,
    DESTROYED,
    ENGINE,
    FORWARD,
    INDEX,
    LAYER,
    LOAD,
    LOSS,
    MAIN,
    NO_FRAMES,
    OTHER,
    RECOMPUTE,
    RELEASE,
    STEP,
    SUBJECT,
    ZEROS,
    Job,
    at_line,
    categories,
    classified,
    cpp,
    frames,
    job_of,
)

ACTIVATION = Category.ACTIVATION
TEMPORARY = Category.TEMPORARY
UNKNOWN = Category.UNKNOWN

INPUT = Category.INPUT


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


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


@pytest.mark.parametrize(
    ("has_room", "n_dropped", "category"),
    [(False, 3, ACTIVATION), (True, 3, TEMPORARY), (False, 5, TEMPORARY)],
    ids=["failed", "did not fail", "kept too little to be trained"],
)
def test_what_a_forward_held_when_it_ran_out_of_memory_is_an_activation(has_room, n_dropped, category, found):
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


def test_what_a_variable_holds_until_a_later_forward_is_an_activation(found):
    job = job_of("alloc FORWARD, does ENGINE, alloc FORWARD, free MAIN, does ENGINE")
    assert categories(found(job)) == [ACTIVATION] * 2


@pytest.mark.parametrize("freed_by", [FORWARD, frames(cpp(DESTROYED[0]["name"])) + FORWARD])
def test_what_forward_itself_frees_is_temporary_though_a_graph_held_it(freed_by, found):
    job = Job()
    job.free(job.alloc(FORWARD), freed_by)
    job.does(FORWARD, ENGINE)
    assert categories(found(job)) == [TEMPORARY]


@pytest.mark.parametrize("following", [(ENGINE,), (FORWARD,), ()], ids=["backward", "forward", "nothing"])
def test_what_a_graph_held_after_its_forward_is_an_activation_without_a_backward_too(following, found):
    job = Job()
    saved = job.alloc(FORWARD)
    job.does(FORWARD)
    job.free(saved, DESTROYED)
    job.does(*following)
    assert categories(found(job)) == [ACTIVATION]


@pytest.mark.parametrize(
    ("made_by", "saved_first", "expected"),
    [(INDEX, False, INPUT), (INDEX, True, ACTIVATION), (LOAD, False, ACTIVATION)],
    ids=["rows of data", "between the modules of one graph", "computed of what the first forward made"],
)
def test_what_is_put_together_after_a_forward_without_a_graph_is_a_batch(
    made_by, saved_first, expected, found
):
    job = Job()
    job.does(FORWARD)
    before = [job.alloc(FORWARD, OTHER)] * saved_first
    batch, saved = job.alloc(made_by), job.alloc(FORWARD, OTHER)
    job.does(LOSS, ENGINE)
    for addr in (*before, saved):
        job.free(addr, RELEASE)
    job.free(batch, MAIN)
    assert categories(found(job)) == [expected]


RECOMPUTED_LAYER = LAYER[:1] + RECOMPUTE + ENGINE


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ((LAYER, COPY), INPUT),
        ((COPY, FORWARD), INPUT),
        ((LAYER, ENGINE, STEP, FORWARD), INPUT),
        ((LAYER, ENGINE, RECOMPUTED_LAYER, FORWARD), INPUT),
        ((COPY, LAYER), ACTIVATION),
        ((COPY, frames(("call", COMPILED_FILE)) + CALL), ACTIVATION),
        ((LAYER, ENGINE, STEP, LAYER), ACTIVATION),
        ((FORWARD, LOAD), ACTIVATION),
        ((FORWARD, ZEROS), ACTIVATION),
    ],
    ids=[
        "data came since",
        "a module without weights",
        "a module without weights in the next iteration",
        "a layer ran again in the backward before",
        "a layer ran since",
        "compiled layers ran since",
        "a layer of the next iteration",
        "no data came",
        "only numbers were filled in",
    ],
)
def test_what_is_computed_between_a_forward_without_a_graph_and_one_with_it(before, expected, found):
    """Pictures that a module normalizes; what a student shall say, of what its teacher says."""
    job = Job()
    job.does(*before)
    subject, saved = job.alloc(LOAD), job.alloc(FORWARD, OTHER)
    job.does(LOSS, ENGINE)
    job.free(saved, RELEASE)
    job.free(subject, MAIN)
    assert categories(found(job)) == [expected]


def test_what_is_as_large_as_the_batch_after_a_teacher_ran_is_the_batch_mixed(found):
    job = Job()
    for _ in range(2):
        batch = job.alloc(COPY)
        job.does(LAYER)
        mixed, saved = job.alloc(LOAD), job.alloc(FORWARD, OTHER)
        job.does(LOSS, ENGINE)
        job.free(saved, RELEASE)
        for addr in (mixed, batch):
            job.free(addr, MAIN)
    assert categories(found(job)) == [INPUT] * 4


def test_what_a_line_keeps_of_a_forward_without_a_graph_is_no_batch(found):
    """Features of a style that all pictures are compared with."""
    job = Job()
    job.does(COPY, FORWARD)
    job.alloc(LOAD)
    saved = job.alloc(FORWARD, OTHER)
    job.does(LOSS, ENGINE)
    job.free(saved, RELEASE)
    assert categories(found(job)) == [ACTIVATION]


@pytest.mark.parametrize(
    ("made_by", "expected"), [(INDEX, INPUT), (LOAD, Category.UNKNOWN)], ids=["chosen rows", "any code"]
)
def test_only_what_is_put_together_is_a_batch_where_a_line_makes_several_as_large_as_weights(
    made_by, expected, found
):
    job = Job()
    job.alloc(APPLY)
    batches = [job.alloc(made_by) for _ in range(2)]
    job.does(FORWARD)
    for addr in batches:
        job.free(addr, MAIN)
    assert categories(found(job))[1:] == [expected] * 2


# What happens to allocations of SUBJECT bytes ("free" takes the oldest), and what they are.
LIVES = {
    "what forward frees first was there in forward": ("alloc LOAD, free FORWARD", [UNKNOWN]),
    "what is made between modules as another was is no batch of a later forward": (
        "does FORWARD, alloc LOAD, does FORWARD, alloc LOAD, does ENGINE, does FORWARD, free MAIN, free MAIN",
        [ACTIVATION, ACTIVATION],
    ),
    "a cache of keys and values is no activation where nothing is trained": (
        "alloc CACHE_UPDATE, does FORWARD, does MAIN, free MAIN, does FORWARD",
        [Category.KV_CACHE],
    ),
    "and where a backward follows it is one": (
        "alloc CACHE_UPDATE, does FORWARD, does ENGINE, free MAIN",
        [ACTIVATION],
    ),
    "what a module made before the trace is an activation, though no backward follows": (
        "older FORWARD, does FORWARD",
        [ACTIVATION],
    ),
    "what is freed with the last result of its line was passed on": (
        "alloc FORWARD, alloc FORWARD, alloc FORWARD, free FORWARD, free FORWARD, free FORWARD, does MAIN",
        [TEMPORARY, TEMPORARY, TEMPORARY],
    ),
    "where no backward follows nothing shows that a forward had made it": (
        "older NO_FRAMES, free FORWARD",
        [UNKNOWN],
    ),
    "a second forward frees what was there before it": (
        "older NO_FRAMES, does FORWARD, does ENGINE, does FORWARD, free FORWARD, does ENGINE",
        [UNKNOWN],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIVES)
def test_(name, found):
    life, expected = LIVES[name]
    assert categories(found(job_of(life))) == expected


@pytest.mark.parametrize(
    ("freed_at", "expected"),
    [("forward", TEMPORARY), ("backward", ACTIVATION), ("after", ACTIVATION)],
)
def test_the_first_event_of_backward_ends_what_is_temporary(freed_at, expected, found):
    """What the engine does first frees it, or something else that the engine made."""
    job = Job()
    made = job.alloc(FORWARD)
    if freed_at == "forward":
        job.free(made, FORWARD)
    if freed_at == "backward":
        job.free(made, ENGINE)
    job.does(ENGINE)
    if freed_at == "after":
        job.free(made, MAIN)
    assert categories(found(job)) == [expected]


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
