"""Lives in which one thing is otherwise than in those that a rule decides, and what they are then."""

import pytest

from snapconv.classification.categories import Category
from tests.classified_jobs import (
    SUBJECT,
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
    "what the program makes before any backward is no gradient": (
        "alloc MAIN, does FORWARD, does ENGINE, free ZERO_GRAD",
        [INPUT],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LIVES)
def test_(name, found):
    life, expected = LIVES[name]
    assert found(job_of(life)) == expected
