"""A weight that a program casts in place is a weight in its new type."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    CALL,
    ENGINE,
    FORWARD,
    MAIN,
    NO_FRAMES,
    OTHER,
    Job,
    classified,
    frames,
)

CAST = frames(("to_full_precision", "/w/proj/models.py")) + MAIN
HALF, FULL = 7_168, 14_336
IS_WEIGHT = (Category.WEIGHT, Evidence.LIFETIME, "cast-in-place-of-a-weight")


def cast(*, new=FULL, made_by=CAST, freed_by=CAST, former=APPLY, between=False, is_kept=True, sites=True):
    """Weights are placed, cast on one line, and used; sizes are the requests."""
    job = Job()
    placed = [job.alloc(former, HALF) for _ in range(3)]
    made = []
    for addr in placed:
        made.append(job.alloc(made_by, new))
        job.does(*[MAIN] * between)
        job.model.free(addr, frames=freed_by)
    for stack in (FORWARD, ENGINE):
        job.free(job.alloc(stack, OTHER), stack if sites else None)
    for addr in () if is_kept else made:
        job.free(addr, MAIN)
    return job


@pytest.fixture
def said(tmp_path):
    return lambda job, size=FULL: set(classified(job, tmp_path / "snapshot.pickle", size))


def test_what_takes_the_place_of_a_weight_in_another_type_is_one(said):
    assert said(cast()) == {IS_WEIGHT}


@pytest.mark.parametrize("times", [2, 4, 8])
def test_a_type_may_be_some_times_smaller_too(times, said):
    assert said(cast(new=HALF // times), HALF // times) == {IS_WEIGHT}


@pytest.mark.parametrize("new", [3 * HALF, FULL + 512], ids=["three times", "more than twice"])
def test_types_have_sizes_of_two_and_its_powers(new, said):
    assert IS_WEIGHT not in said(cast(new=new), new)


def test_where_only_the_stacks_of_allocations_are_known_what_is_freed_next_shows_it(said):
    assert said(cast(freed_by=None, sites=False)) == {IS_WEIGHT}


@pytest.mark.parametrize(
    "job",
    [
        cast(freed_by=MAIN),
        cast(between=True),
        cast(former=MAIN),
        cast(is_kept=False),
        cast(made_by=CALL, freed_by=CALL),
    ],
    ids=["freed on another line", "something between", "of no weight", "freed", "by a module"],
)
def test_anything_else_that_is_made_before_another_is_freed_is_no_weight_by_it(job, said):
    assert IS_WEIGHT not in said(job)


def test_only_a_weight_is_followed_by_one(said):
    job = Job()
    older = [job.older(NO_FRAMES, HALF) for _ in range(3)]
    for addr in older:
        job.alloc(CAST, FULL)
        job.model.free(addr, frames=CAST)
    job.does(FORWARD, ENGINE)
    assert IS_WEIGHT not in said(job)
