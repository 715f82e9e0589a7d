"""Deep copies of a whole model, and other copies."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    CLONE,
    ENGINE,
    FORWARD,
    MAIN,
    SHAPES,
    STEP,
    SUBJECT,
    TORCH,
    ZERO_GRAD,
    Job,
    at_line,
    categories,
    classified,
    frames,
    with_copies,
)

WEIGHT = Category.WEIGHT
STATE = Category.OPTIMIZER_STATE


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


DEEPCOPY = frames(("__deepcopy__", f"{TORCH}/_tensor.py"), ("deepcopy", "/usr/lib/python3.11/copy.py")) + MAIN


def after_a_step(stack, *, shapes=SHAPES, until_forward=True):
    """What a line copies of the model when a step is over, and the next iteration."""
    job = with_copies()
    copies = [job.alloc(stack, size) for size in shapes]
    if not until_forward:
        for addr in copies:
            job.free(addr, MAIN)
    job.does(FORWARD, ENGINE)
    return job


def test_a_deep_copy_of_every_parameter_that_a_later_forward_finds_is_a_model(found):
    kept = (WEIGHT, Evidence.SIZES, "copy-of-every-parameter")
    assert found(after_a_step(DEEPCOPY), SHAPES[0])[-1] == kept
    assert found(with_copies(DEEPCOPY), SHAPES[0])[1] == kept


@pytest.mark.parametrize(
    ("stack", "other"),
    [(CLONE, {}), (DEEPCOPY, {"shapes": SHAPES[:1]}), (DEEPCOPY, {"until_forward": False})],
    ids=["maybe of gradients", "of one parameter", "freed before"],
)
def test_other_copies_after_a_step_are_no_kept_model(stack, other, found):
    assert categories(found(after_a_step(stack, **other), SHAPES[0]))[-1] is not WEIGHT


def test_what_the_first_event_of_a_forward_frees_was_there_in_forward(found):
    job = with_copies()
    for addr in [job.alloc(DEEPCOPY, size) for size in SHAPES]:
        job.free(addr, FORWARD)
    job.does(ENGINE)
    assert categories(found(job, SHAPES[0]))[-1] is WEIGHT


@pytest.mark.parametrize("halves", [False, True], ids=["all in each", "a half in each"])
def test_a_copy_is_made_in_one_iteration(halves, found):
    """What was there before the trace is of none; another line makes a copy then."""
    job = Job()
    before, last = (SHAPES[:1], SHAPES[1:]) if halves else (SHAPES, SHAPES)
    for size in before:
        job.older(at_line(DEEPCOPY, 2), size)
    for size in SHAPES:
        job.alloc(APPLY, size)
    for sizes in ((), last, before):
        job.does(FORWARD)
        for addr in [job.alloc(ENGINE, size) for size in SHAPES]:
            job.free(addr, ZERO_GRAD)
        for size in sizes:
            job.alloc(DEEPCOPY, size)
        job.does(STEP)
    copies = [categories(found(job, SHAPES[0]))[i] for i in (0, -1)]
    assert [category is WEIGHT for category in copies] == [not halves] * 2
