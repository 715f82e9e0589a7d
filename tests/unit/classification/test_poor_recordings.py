"""What is inferred where a recording has no C++ frames, or no stacks of frees."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    APPLY,
    ENGINE,
    FORWARD,
    INDEX,
    LAYER,
    LOAD,
    LOSS,
    MAIN,
    NO_FRAMES,
    OTHER,
    STEP,
    SUBJECT,
    Job,
    categories,
    classified,
    job_of,
)

WEIGHT, GRADIENT = Category.WEIGHT, Category.GRADIENT
ACTIVATION, INPUT, TEMPORARY, WORKSPACE = (
    Category.ACTIVATION,
    Category.INPUT,
    Category.TEMPORARY,
    Category.WORKSPACE,
)


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


def test_without_stacks_of_frees_a_step_still_frees_its_temporaries(found):
    job = Job()
    for stack in (FORWARD, ENGINE, STEP, FORWARD):
        job.free(job.alloc(stack, SUBJECT if stack is STEP else OTHER))
    assert categories(found(job)) == [TEMPORARY]


def test_without_stacks_of_frees_a_batch_is_made_before_the_first_forward_that_keeps_anything(found):
    """A forward that acts keeps nothing for backward; what is chosen of its data then is trained on."""
    job = Job()
    job.free(job.alloc(FORWARD, OTHER))
    batch, saved = job.alloc(INDEX), job.alloc(FORWARD, OTHER)
    for stack in (LOSS, ENGINE):
        job.free(job.alloc(stack, OTHER))
    job.free(saved)
    job.free(batch)
    assert categories(found(job)) == [INPUT]


def test_without_stacks_of_frees_what_is_freed_before_the_step_is_no_gradient(found):
    job = Job()
    job.alloc(APPLY)
    job.free(job.alloc(FORWARD, OTHER))
    job.free(job.alloc(ENGINE))
    job.alloc(STEP, OTHER)
    assert categories(found(job)) == [WEIGHT, TEMPORARY]


def test_without_stacks_of_frees_what_is_freed_where_no_step_follows_may_be_a_gradient(found):
    """Gradients with an overflow are dropped, and zero_grad comes next."""
    job = Job()
    job.alloc(APPLY)
    job.free(job.alloc(FORWARD, OTHER))
    gradient = job.alloc(ENGINE)
    job.free(job.alloc(ENGINE, OTHER))
    job.free(gradient)
    job.note("Optimizer.zero_grad#AdamW.zero_grad", "START")
    job.free(job.alloc(MAIN, OTHER))
    job.note("Optimizer.zero_grad#AdamW.zero_grad", "END")
    assert categories(found(job)) == [WEIGHT, GRADIENT]


def test_without_frames_of_cpp_what_is_as_large_as_a_weight_is_no_input(found):
    assert (
        categories(found(job_of("alloc APPLY, free MAIN, alloc LOAD, does FORWARD, free MAIN")))[1] == INPUT
    )
    weight = "alloc APPLY, alloc FORWARD, alloc LOAD, does FORWARD"
    job = job_of(weight)
    batch = job.alloc(LOAD)
    job.does(FORWARD)
    job.free(batch, MAIN)
    assert categories(found(job)) == [WEIGHT, ACTIVATION, Category.UNKNOWN, Category.UNKNOWN]


def test_without_frames_of_cpp_what_is_as_large_as_an_activation_may_be_an_input(found):
    job = Job()
    job.alloc(FORWARD)
    batch = job.alloc(LOAD)
    job.does(FORWARD)
    job.free(batch, MAIN)
    assert categories(found(job)) == [ACTIVATION, INPUT]


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        ((LAYER, NO_FRAMES, STEP, FORWARD), INPUT),
        ((LAYER, NO_FRAMES, STEP, LAYER), Category.UNKNOWN),
        ((FORWARD,), Category.UNKNOWN),
    ],
    ids=["a module without weights", "a layer", "in the first iteration"],
)
def test_without_frames_of_cpp_what_is_made_before_the_first_graph_is_an_input_too(before, expected, found):
    job = Job()
    job.does(*before)
    subject, saved = job.alloc(LOAD), job.alloc(FORWARD, OTHER)
    job.does(FORWARD)
    job.free(saved, NO_FRAMES)
    job.does(NO_FRAMES)
    job.free(subject, MAIN)
    assert categories(found(job)) == [expected]


def test_without_stacks_of_frees_what_the_step_still_finds_is_a_gradient(found):
    job = Job()
    job.alloc(APPLY)
    job.free(job.alloc(FORWARD, OTHER))
    gradient = job.alloc(ENGINE)
    job.alloc(STEP, OTHER)
    job.free(gradient)
    assert categories(found(job)) == [WEIGHT, GRADIENT]


def test_without_stacks_of_frees_a_step_that_allocates_nothing_still_leaves_gradients(found):
    job = Job()
    job.alloc(APPLY)
    for _ in range(2):
        activation = job.alloc(FORWARD, OTHER)
        gradient = job.alloc(ENGINE)
        job.free(activation)
        job.free(gradient)
    assert categories(found(job)) == [WEIGHT, GRADIENT, GRADIENT]
