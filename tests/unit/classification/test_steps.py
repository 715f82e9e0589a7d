"""What a step of an optimizer makes and frees."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    APPLY,
    ENGINE,
    FORWARD,
    STEP,
    SUBJECT,
    Job,
    categories,
    classified,
    job_of,
)

STATE = Category.OPTIMIZER_STATE
WEIGHT = Category.WEIGHT
GRADIENT = Category.GRADIENT
TEMPORARY = Category.TEMPORARY
UNKNOWN = Category.UNKNOWN


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


def test_what_a_step_makes_is_its_own_even_if_the_engine_frees_it(found):
    assert categories(found(job_of("alloc STEP, free RELEASE"))) == [STATE]


def test_an_annotated_step_goes_before_a_stack_of_placement(found):
    assert categories(found(job_of("begin step, alloc APPLY, alloc LOAD, end step"))) == [STATE] * 2


def test_with_stacks_of_frees_a_state_that_is_freed_soon_after_the_step_is_still_one(found):
    assert categories(found(job_of("does FORWARD, alloc STEP, free MAIN, does FORWARD"))) == [STATE]


# What happens to allocations of SUBJECT bytes ("free" takes the oldest), and what they are.
LIVES = {
    "what the program frees outside of steps is no former state": (
        "older NO_FRAMES, alloc STEP, does STEP, free MAIN",
        [UNKNOWN, STATE],
    ),
    "what zero_grad frees is no former state, but a gradient": (
        "older NO_FRAMES, alloc STEP, does STEP, free ZERO_GRAD",
        [GRADIENT, STATE],
    ),
    "weights that are placed and never used are weights": ("alloc APPLY", [WEIGHT]),
    "weights that the first forward frees were used in it": ("alloc APPLY, free FORWARD", [WEIGHT]),
    "what is freed before the first forward was none": ("alloc APPLY, free MAIN, does FORWARD", [TEMPORARY]),
    "a step that makes no state replaces none": (
        "older NO_FRAMES, older STEP, does FORWARD, does STEP, free STEP",
        [UNKNOWN, STATE],
    ),
    "what an optimizer had made before the trace is a state": ("older STEP, does FORWARD", [STATE]),
    "what a step makes and keeps until the next step is a state": (
        "alloc STEP, does STEP, does FORWARD, does STEP, free STEP",
        [STATE],
    ),
    "a state of an optimizer that is built is there when backward begins": (
        "alloc BUILD_OPTIMIZER, free MAIN, does FORWARD, does ENGINE, "
        "alloc BUILD_OPTIMIZER, does FORWARD, does ENGINE, free MAIN",
        [TEMPORARY, STATE],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIVES)
def test_(name, found):
    life, expected = LIVES[name]
    assert categories(found(job_of(life))) == expected


def test_what_is_placed_in_backward_is_no_weight(found):
    """A hook that moves something to the device."""
    job = Job()
    job.does(FORWARD)
    job.alloc(APPLY[:1] + ENGINE)
    job.does(ENGINE, STEP)
    assert WEIGHT not in categories(found(job))
