"""What is known of memory by what freed it."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    APPLY,
    COPY,
    ENGINE,
    FORWARD,
    LOAD,
    MAIN,
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


@pytest.mark.parametrize(("factor", "expected"), [(1, UNKNOWN), (2, UNKNOWN), (3, INPUT)])
def test_several_of_a_line_as_large_as_a_weight_or_twice_are_no_batches(factor, expected, found):
    """In full precision, copies of weights in half are twice as large."""
    job = Job()
    job.alloc(APPLY)
    made = [job.alloc(LOAD, factor * SUBJECT) for _ in range(2)]
    job.does(FORWARD)
    for addr in made:
        job.free(addr, MAIN)
    assert categories(found(job, factor * SUBJECT))[-2:] == [expected] * 2


@pytest.mark.parametrize("weight", [APPLY, NO_FRAMES], ids=["placed", "not seen"])
@pytest.mark.parametrize(("n_before", "expected"), [(1, INPUT), (2, UNKNOWN)])
def test_several_of_a_line_before_the_trace_are_no_batches_either(weight, n_before, expected, found):
    job = Job()
    job.older(weight)
    for _ in range(n_before):
        job.older(LOAD)
    job.does(FORWARD)
    assert categories(found(job))[1:] == [expected] * n_before


def test_a_line_that_makes_one_before_the_trace_and_one_in_it_makes_batches(found):
    job = Job()
    job.alloc(APPLY, 2 * SUBJECT)
    job.alloc(APPLY)
    job.older(LOAD)
    job.alloc(LOAD)
    job.does(FORWARD)
    assert categories(found(job)).count(INPUT) == 2


# What happens to allocations of SUBJECT bytes ("free" takes the oldest), and what they are.
LIVES = {
    "what an annotated step makes is its own even if the engine frees it": (
        "begin step, alloc MAIN, end step, does FORWARD, does ENGINE, free RELEASE",
        [Category.OPTIMIZER_STATE],
    ),
    "what a compiled backward makes with modules' lines is a gradient": (
        "does FORWARD, alloc COMPILED, free ZERO_GRAD",
        [Category.GRADIENT],
    ),
    "what modules make for a checkpoint in backward is none": (
        "does FORWARD, alloc RECOMPUTED, does STEP, free ZERO_GRAD",
        [UNKNOWN],
    ),
    "what was there is a gradient where zero_grad frees it, and no batch": (
        "older LOAD, does FORWARD, does ENGINE, free ZERO_GRAD",
        [Category.GRADIENT],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIVES)
def test_(name, found):
    life, expected = LIVES[name]
    assert categories(found(job_of(life))) == expected
