"""What is inferred where a recording has no C++ frames, or no stacks of frees."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    ENGINE,
    FORWARD,
    INDEX,
    LOAD,
    LOSS,
    MAIN,
    NO_FRAMES,
    OTHER,
    STEP,
    SUBJECT,
    WORKSPACE_BYTES,
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


@pytest.mark.parametrize(("before", "category"), [(SUBJECT, ACTIVATION), (OTHER, Category.UNKNOWN)])
def test_without_frames_of_cpp_a_line_that_frees_a_result_as_large_computes(before, category, found):
    job = Job()
    job.does(FORWARD)
    dropped = job.alloc(LOAD, before)
    result = job.alloc(LOAD)
    job.free(dropped, LOAD)
    job.does(FORWARD, NO_FRAMES)
    job.free(result, MAIN)
    assert categories(found(job))[-1] is category


@pytest.mark.parametrize(
    ("made_by", "freed_in", "category"),
    [
        (LOAD, "time", ACTIVATION),
        (MAIN, "time", Category.UNKNOWN),
        (LOAD, "advance", Category.UNKNOWN),
        (LOAD, "the end", Category.UNKNOWN),
    ],
    ids=["by its line", "by another line", "freed before the result was there", "freed later"],
)
def test_without_frames_of_cpp_a_result_is_computed_from_one_of_its_own_line_that_is_freed_then(
    made_by, freed_in, category, found
):
    job = Job()
    job.does(LOAD)
    job.does(FORWARD)
    dropped = job.alloc(made_by)
    if freed_in == "advance":
        job.free(dropped, LOAD)
    result = job.alloc(LOAD)
    if freed_in == "time":
        job.free(dropped, LOAD)
    job.does(FORWARD, NO_FRAMES)
    if freed_in == "the end":
        job.free(dropped, LOAD)
    job.free(result, MAIN)
    assert categories(found(job))[-1] is category


@pytest.mark.parametrize("stack", [FORWARD, NO_FRAMES], ids=["forward", "backward"])
@pytest.mark.parametrize("size", [8_519_680, 33_554_432])
def test_without_frames_of_cpp_a_workspace_is_inferred_from_its_size(size, stack, found):
    job = Job()
    job.does(FORWARD, NO_FRAMES)
    for _ in range(4):
        job.alloc(stack, size)
    assert found(job, size) == [(WORKSPACE, Evidence.SIZES, "cublas-workspace-size")] * 4


def test_more_than_four_blocks_of_the_size_of_a_workspace_are_none(found):
    job = Job()
    job.does(FORWARD, NO_FRAMES)
    for _ in range(5):
        job.alloc(FORWARD, WORKSPACE_BYTES)
    assert WORKSPACE not in categories(found(job, WORKSPACE_BYTES))


def test_with_frames_of_cpp_no_workspace_is_guessed_by_its_size(found):
    job = Job()
    job.alloc(FORWARD + ENGINE, WORKSPACE_BYTES)
    job.alloc(FORWARD, WORKSPACE_BYTES)
    assert WORKSPACE not in categories(found(job, WORKSPACE_BYTES))


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
