"""What the program holds itself: inferred from who made it, how often, how large."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    APPLY,
    COPY,
    ENGINE,
    FORWARD,
    LOAD,
    LOSS,
    MAIN,
    RELEASE,
    SHAPES,
    STEP,
    SUBJECT,
    ZERO_GRAD,
    ZEROS,
    Job,
    categories,
    classified,
    cpp,
    frames,
    job_of,
)

WEIGHT = Category.WEIGHT
GRADIENT = Category.GRADIENT
INPUT = Category.INPUT
ACTIVATION = Category.ACTIVATION
TEMPORARY = Category.TEMPORARY
UNKNOWN = Category.UNKNOWN
STATE = Category.OPTIMIZER_STATE


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


def trained_by_hand(n_kept, n_gradients):
    """A program without modules of torch: what it makes and keeps, and gradients of that size."""
    job = Job()
    for _ in range(n_kept):
        job.alloc(LOAD)
    job.does(FORWARD)
    for addr in [job.alloc(ENGINE) for _ in range(n_gradients)]:
        job.free(addr, ZERO_GRAD)
    return job


def test_more_tensors_than_gradients_of_a_size_are_not_distinguished(found):
    assert WEIGHT not in categories(found(trained_by_hand(3, 2)))


def test_beside_the_weights_of_a_module_a_gradient_of_its_size_makes_no_weight_of_a_kept_tensor(found):
    job = Job()
    job.alloc(APPLY, 2 * SUBJECT)
    job.alloc(LOAD)
    job.does(FORWARD)
    job.free(job.alloc(ENGINE), ZERO_GRAD)
    assert WEIGHT not in categories(found(job))


def test_a_batch_of_the_size_of_a_weight_that_has_its_gradient_is_none(found):
    job = Job()
    job.alloc(APPLY)
    job.alloc(LOAD)
    job.does(FORWARD)
    job.free(job.alloc(ENGINE), ZERO_GRAD)
    assert categories(found(job)) == [WEIGHT, INPUT, GRADIENT]


def test_several_tensors_of_one_line_as_large_as_weights_are_no_batch(found):
    job = Job()
    for _ in range(2):
        job.alloc(APPLY)
    kept = [job.alloc(LOAD) for _ in range(2)]
    job.does(FORWARD)
    job.free(kept[0], MAIN)
    assert categories(found(job))[2:] == [Category.UNKNOWN] * 2


def test_beside_an_optimizer_of_torch_what_is_as_large_as_weights_is_no_state(found):
    """An average that is made anew in every iteration, or a batch."""
    job = Job()
    job.alloc(APPLY)
    job.does(FORWARD, ENGINE, STEP)
    for _ in range(2):
        job.alloc(ZEROS)
    assert categories(found(job)) == [WEIGHT, UNKNOWN, UNKNOWN]


@pytest.mark.parametrize(
    ("phases", "category"),
    [((FORWARD, ENGINE), INPUT), ((LOSS, ENGINE), INPUT)],
)
def test_what_is_held_of_what_was_computed_outside_of_modules_is_a_batch(phases, category, found):
    job = Job()
    job.older(frames(cpp("at::_ops::div_Tensor::call(at::Tensor const&, at::Tensor const&)")) + MAIN)
    job.does(*phases)
    assert categories(found(job)) == [category]


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
def test_what_is_not_as_often_as_gradients_that_no_weight_has_is_not_trained(made, gradients, found):
    assert WEIGHT not in categories(found(trained_beside_a_module(made, gradients), BARE[0]))


def test_a_forward_without_modules_begins_with_the_first_result_that_backward_frees(found):
    job = Job()
    batch, saved, dropped, kept = (job.alloc(MAIN) for _ in range(4))
    job.free(dropped, MAIN)
    job.does(ENGINE)
    job.free(saved, RELEASE)
    job.does(ENGINE)
    job.free(kept, MAIN)
    job.free(batch, MAIN)
    assert categories(found(job)) == [UNKNOWN, ACTIVATION, TEMPORARY, ACTIVATION]


def test_what_a_line_makes_anew_and_frees_is_a_batch_though_an_earlier_iteration_made_the_last(found):
    job = Job()
    job.does(FORWARD, ENGINE, STEP)
    freed = job.alloc(LOAD)
    job.does(FORWARD, ENGINE, STEP)
    job.free(freed, MAIN)
    job.alloc(LOAD)
    job.does(FORWARD, ENGINE, STEP, FORWARD, ENGINE, STEP)
    assert categories(found(job)) == [INPUT, INPUT]


@pytest.mark.parametrize(
    ("sizes", "category"),
    [
        ((2000, 3000, 4000) * 3, INPUT),
        ((2000, 3000) * 3 + (2000,) * 2, INPUT),
        ((2000,) * 8 + (3000,), INPUT),
    ],
    ids=["a list of batches", "as many as a batch has", "one of another size"],
)
@pytest.mark.parametrize("line", [COPY, LOAD], ids=["copied", "computed"])
@pytest.mark.parametrize("make", [Job.older, Job.alloc], ids=["before", "in the trace"])
def test_weights_that_a_program_moves_itself_are_no_batches(make, line, sizes, category, found):
    job = Job()
    for size in sizes:
        make(job, line, size)
    job.does(FORWARD, ENGINE, FORWARD)
    assert categories(found(job, 2000)) == [category] * sizes.count(2000)


def test_batches_of_several_lengths_are_made_by_a_line_in_turn_and_freed(found):
    job = Job()
    for size in (2000, 3000) * 4:
        batch = job.alloc(COPY, size)
        job.does(FORWARD, ENGINE)
        job.free(batch, MAIN)
    job.alloc(COPY, 2000)
    job.does(FORWARD)
    assert categories(found(job, 2000)) == [INPUT] * 5


# What happens to allocations of SUBJECT bytes ("free" takes the oldest), and what they are.
LIVES = {
    "what a line makes after backward in bulk and not by filling may be anything": (
        "alloc APPLY, does FORWARD, does ENGINE, alloc LOAD, alloc LOAD",
        [WEIGHT, UNKNOWN, UNKNOWN],
    ),
    "of what a line makes after backward one alone is no list of states": (
        "alloc APPLY, does FORWARD, does ENGINE, alloc ZEROS",
        [WEIGHT, UNKNOWN],
    ),
    "a step ends what a validation before it shows: functions make what follows": (
        "does FORWARD, does ENGINE, does FORWARD, does STEP, alloc MAIN, alloc MAIN, free RELEASE, free MAIN",
        [ACTIVATION, ACTIVATION],
    ),
    "what is loaded between a module and its backward is no result of functions": (
        "does FORWARD, does ENGINE, does STEP, does FORWARD, does ZERO_GRAD, "
        "alloc MAIN, alloc LOAD, free RELEASE, does STEP, free MAIN",
        [ACTIVATION, UNKNOWN],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIVES)
def test_(name, found):
    life, expected = LIVES[name]
    assert categories(found(job_of(life))) == expected
