"""What lines of the program make and free: how often, how large, in place of what; deep copies of a model."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    APPLY,
    COPY,
    ENGINE,
    FORWARD,
    LOAD,
    MAIN,
    MATMUL,
    NO_FRAMES,
    OTHER,
    SHAPES,
    STEP,
    ZERO_GRAD,
    ZEROS,
    Job,
    at_line,
    categories,
    job_of,
    likely,
)

ACTIVATION = Category.ACTIVATION
INPUT = Category.INPUT
UNKNOWN = Category.UNKNOWN
WEIGHT = Category.WEIGHT


def trained_beside_a_module(made, gradients):
    """A module whose weights are trained, and what a line makes before, with the gradients of both."""
    job = Job()
    for size in made:
        job.alloc(LOAD, size)
    for size in SHAPES:
        job.alloc(APPLY, size)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE, size) for size in (*SHAPES, *gradients)]:
        job.free(addr, ZERO_GRAD)
    return job


BARE = (3000, 5000)


@pytest.mark.parametrize(
    ("made", "gradients"),
    [(BARE, ()), (BARE[:1], BARE), ((*BARE, *BARE), BARE), ((*BARE, 40_000), BARE)],
    ids=["without gradients", "of one size", "more often", "and much more"],
)
def test_what_is_not_as_often_as_gradients_that_no_weight_has_is_not_trained(
    made, gradients, found
):
    assert WEIGHT not in categories(found(trained_beside_a_module(made, gradients), BARE[0]))


def kept_from_the_start(stack, sizes):
    """What a line makes once, before three iterations that train a module."""
    job = Job()
    for size in SHAPES:
        job.alloc(APPLY, size)
    for size in sizes:
        job.alloc(stack, size)
    for _ in range(3):
        job.does(FORWARD)
        gradients = [job.alloc(ENGINE, size) for size in SHAPES]
        job.alloc(STEP, 2 * SHAPES[0])
        for addr in gradients:
            job.free(addr, ZERO_GRAD)
    return job


def test_what_is_computed_as_large_as_a_weight_and_stays_may_be_what_the_weight_was(tmp_path):
    kept = kept_from_the_start(MATMUL, SHAPES[:1])
    found = likely(kept, tmp_path / "s.pickle", SHAPES[0])
    assert found == [(WEIGHT, 0.8)]


@pytest.mark.parametrize(("stack", "size"), [(COPY, SHAPES[0]), (MATMUL, OTHER + 1)])
def test_what_is_copied_to_the_device_or_of_another_size_is_data(stack, size, found):
    assert INPUT in categories(found(kept_from_the_start(stack, (size,)), size))


def test_what_an_optimizer_by_hand_keeps_of_every_parameter_is_no_certain_weight(found):
    """It may be weights in full precision or states of twice the size."""
    masters = tuple(2 * size for size in SHAPES)
    assert WEIGHT not in categories(found(kept_from_the_start(MATMUL, masters), masters[0]))


@pytest.mark.parametrize(
    "sizes",
    [(2000, 3000, 4000) * 3, (2000, 3000) * 3 + (2000,) * 2, (2000,) * 8 + (3000,)],
    ids=["a list of batches", "as many as a batch has", "one of another size"],
)
@pytest.mark.parametrize("line", [COPY, LOAD], ids=["copied", "computed"])
@pytest.mark.parametrize("make", [Job.older, Job.alloc], ids=["before", "in the trace"])
def test_a_list_of_batches_is_one_whoever_makes_it_and_when(make, line, sizes, found):
    job = Job()
    for size in sizes:
        make(job, line, size)
    job.does(FORWARD, ENGINE, FORWARD)
    assert categories(found(job, 2000)) == [INPUT] * sizes.count(2000)


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


def test_a_recursion_passes_over_each_value_once(found):
    deep = FORWARD[:-1] + FORWARD[-1:] * 40
    job = Job()
    old = job.older(NO_FRAMES)
    job.alloc(deep)
    job.free(job.alloc(deep), deep)
    job.model.free(old, frames=MAIN)
    job.does(ENGINE)
    assert categories(found(job))[0] is ACTIVATION


@pytest.mark.parametrize(
    "life",
    [
        "older NO_FRAMES, alloc LOAD, drop LOAD, does FORWARD ENGINE",
        "older NO_FRAMES a, alloc COPY b +1, does FORWARD ENGINE, drop b COPY, drop a COPY",
    ],
    ids=["replaced", "freed with a batch"],
)
def test_what_a_free_without_a_stack_ends_is_of_no_line(life, found, monkeypatch):
    raw = (job := job_of(life)).snapshot()
    for event in raw["device_traces"][0]:
        if event["action"].startswith("free") and event["size"] != OTHER:
            del event["frames"]
    monkeypatch.setattr(job, "snapshot", lambda: raw)
    assert categories(found(job))[0] is UNKNOWN
