"""What an optimizer of two steps keeps between them, and what only looks like it."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    ENGINE,
    FORWARD,
    MAIN,
    NO_FRAMES,
    STEP,
    SUBJECT,
    ZERO_GRAD,
    Job,
    categories,
    classified,
    cpp,
    frames,
)

SIZES = (SUBJECT, 9000)
SCALED = frames(cpp("at::_ops::mul_Tensor::call(at::Tensor const&)")) + MAIN
COPIED = frames(cpp("at::_ops::clone::call(at::Tensor const&)")) + MAIN
STATE = Category.OPTIMIZER_STATE


@pytest.fixture
def moved(tmp_path):
    """The category of what the first step made for the first parameter."""

    def category_of(job):
        return categories(classified(job, tmp_path / "snapshot.pickle"))[2]

    return category_of


def two_steps(line=SCALED, *, sizes=SIZES, cleared_by=ZERO_GRAD, again=False, until_second=True):
    """Two backwards, after the first of which a line makes one block for every gradient."""
    job = Job()
    for size in SIZES:
        job.older(NO_FRAMES, size)
    job.does(FORWARD)
    gradients = [job.alloc(ENGINE, size) for size in SIZES]
    job.does(ENGINE)
    made = [job.alloc(line, size) for size in sizes]
    for gradient in gradients:
        job.free(gradient, cleared_by)
    job.does(FORWARD)
    if not until_second:
        for block in made:
            job.free(block, MAIN)
    gradients = [job.alloc(ENGINE, size) for size in SIZES]
    job.does(ENGINE)
    if again:
        made += [job.alloc(line, size) for size in sizes]
    if until_second:
        for block in made:
            job.free(block, MAIN)
    job.does(STEP)
    return job


def test_what_is_kept_from_the_first_step_to_the_second_is_state_of_the_optimizer(moved):
    assert moved(two_steps()) == STATE


@pytest.mark.parametrize(
    "other",
    [
        {"line": COPIED},
        {"sizes": (SUBJECT, SUBJECT)},
        {"cleared_by": MAIN},
        {"again": True},
        {"until_second": False},
    ],
    ids=[
        "copies, maybe of gradients",
        "of one parameter",
        "gradients that nothing clears",
        "after every backward, as sums are",
        "freed before the second backward",
    ],
)
def test_what_only_looks_like_it_is_not(other, moved):
    assert moved(two_steps(**other)) != STATE
