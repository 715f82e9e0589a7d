"""Lives in which one thing is otherwise than in those that a rule decides, and what they are then."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    APPLY,
    ENGINE,
    FORWARD,
    SUBJECT,
    ZEROS,
    Job,
    at_line,
    categories,
    classified,
    job_of,
)

UNKNOWN, WEIGHT, GRADIENT, STATE = (
    Category.UNKNOWN,
    Category.WEIGHT,
    Category.GRADIENT,
    Category.OPTIMIZER_STATE,
)
ACTIVATION, INPUT, TEMPORARY = Category.ACTIVATION, Category.INPUT, Category.TEMPORARY


@pytest.fixture
def found(tmp_path):
    """The categories of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: categories(classified(job, tmp_path / "snapshot.pickle", size))


# What happens to allocations of SUBJECT bytes ("free" takes the oldest), and what they are.
LIVES = {
    "what a checkpoint computes again is no gradient, whatever frees it": (
        "does FORWARD, alloc RECOMPUTED, does STEP, free ZERO_GRAD",
        [UNKNOWN],
    ),
    "what the program frees outside of steps is no former state": (
        "older NO_FRAMES, alloc STEP, does STEP, free MAIN",
        [UNKNOWN, STATE],
    ),
    "what zero_grad frees is no former state, but a gradient": (
        "older NO_FRAMES, alloc STEP, does STEP, free ZERO_GRAD",
        [GRADIENT, STATE],
    ),
    "what forward frees first was there in forward": ("alloc LOAD, free FORWARD", [UNKNOWN]),
    "what the program makes before any backward is no gradient": (
        "alloc MAIN, does FORWARD, does ENGINE, free ZERO_GRAD",
        [INPUT],
    ),
    "what a line makes after backward in bulk and not by filling may be anything": (
        "alloc APPLY, does FORWARD, does ENGINE, alloc LOAD, alloc LOAD",
        [WEIGHT, UNKNOWN, UNKNOWN],
    ),
    "without frames of C++ nothing shows whether it fills": (
        "alloc APPLY, does FORWARD, does NO_FRAMES, alloc LOAD, alloc LOAD",
        [WEIGHT, STATE, STATE],
    ),
    "of what a line makes after backward one alone is no list of states": (
        "alloc APPLY, does FORWARD, does ENGINE, alloc ZEROS",
        [WEIGHT, UNKNOWN],
    ),
    "what is kept from a first backward on is none of the second one's": (
        "alloc APPLY, does FORWARD, does ENGINE, alloc ZEROS, alloc ZEROS, does FORWARD, does ENGINE",
        [WEIGHT, STATE, STATE],
    ),
    "what is freed with the last result of its line was passed on": (
        "alloc FORWARD, alloc FORWARD, alloc FORWARD, free FORWARD, free FORWARD, free FORWARD, does MAIN",
        [TEMPORARY, TEMPORARY, TEMPORARY],
    ),
    "the first step frees what was there, later ones what they had made": (
        "older NO_FRAMES, older NO_FRAMES, does STEP, free STEP, does FORWARD, does STEP, free STEP",
        [TEMPORARY, UNKNOWN],
    ),
    "where no backward follows nothing shows that a forward had made it": (
        "older NO_FRAMES, free FORWARD",
        [UNKNOWN],
    ),
    "a second forward frees what was there before it": (
        "older NO_FRAMES, does FORWARD, does ENGINE, does FORWARD, free FORWARD, does ENGINE",
        [UNKNOWN],
    ),
    "weights that are placed and never used are weights": ("alloc APPLY", [WEIGHT]),
    "a state of an optimizer that is built is there when backward begins": (
        "alloc BUILD_OPTIMIZER, free MAIN, does FORWARD, does ENGINE, "
        "alloc BUILD_OPTIMIZER, does FORWARD, does ENGINE, free MAIN",
        [TEMPORARY, STATE],
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
    assert found(job)[-8:] == [UNKNOWN] * 8


@pytest.mark.parametrize("name", LIVES)
def test_(name, found):
    life, expected = LIVES[name]
    assert found(job_of(life)) == expected
