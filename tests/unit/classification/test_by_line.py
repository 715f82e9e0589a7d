"""What the program frees itself: by what else the line frees or makes."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    ENGINE,
    FORWARD,
    LOAD,
    MAIN,
    NO_FRAMES,
    OTHER,
    SUBJECT,
    Job,
    categories,
    classified,
    frames,
)

INPUT = Category.INPUT
ACTIVATION = Category.ACTIVATION
TEMPORARY = Category.TEMPORARY
UNKNOWN = Category.UNKNOWN


@pytest.fixture
def found(tmp_path):
    """Classify a job: category, evidence and reason of the allocations of a size, older ones first."""
    return lambda job, size=SUBJECT: classified(job, tmp_path / "snapshot.pickle", size)


def test_a_line_that_gives_a_variable_a_new_value_shows_what_the_former_one_was(found):
    job = Job()
    old = job.older(NO_FRAMES)
    job.alloc(LOAD)
    job.model.free(old, frames=LOAD)
    job.does(FORWARD, ENGINE)
    found_of_old = found(job)[0]
    assert found_of_old == (INPUT, Evidence.FREE_SITE, "replaced-on-the-same-line")


def test_a_line_that_frees_and_makes_nothing_does_not_hide_what_another_one_replaced(found):
    other = frames(("drop", "/w/proj/cache.py")) + MAIN
    for first in (other, LOAD):  # of the file, by a block that comes first in it
        job = Job()
        job.older(first, OTHER)
        old, dropped = job.older(NO_FRAMES), job.older(NO_FRAMES)
        job.alloc(LOAD)
        job.model.free(dropped, frames=other)
        job.model.free(old, frames=LOAD)
        job.does(FORWARD, ENGINE)
        assert found(job)[0] == (INPUT, Evidence.FREE_SITE, "replaced-on-the-same-line")


def test_what_a_free_without_a_stack_ends_was_replaced_by_no_line(found, monkeypatch):
    job = Job()
    old = job.older(NO_FRAMES)
    job.alloc(LOAD)
    job.model.free(old)
    job.does(FORWARD, ENGINE)
    raw = job.snapshot()
    for event in raw["device_traces"][0][1:3]:
        assert event["action"] in ("free_requested", "free_completed")
        del event["frames"]
    monkeypatch.setattr(job, "snapshot", lambda: raw)
    assert categories(found(job))[0] is UNKNOWN


def test_each_former_value_is_what_the_next_one_of_its_size_is(found):
    """One line gives two variables new values, twice: a batch and a result of a module."""
    job, made = Job(), {}
    for name, size in (("batch", SUBJECT), ("result", SUBJECT + 1)):
        made[name] = job.older(NO_FRAMES, size)
    for _ in range(2):
        for name, size, stack in (("batch", SUBJECT, LOAD), ("result", SUBJECT + 1, LOAD[:1] + FORWARD)):
            new = job.alloc(stack, size)
            job.model.free(made[name], frames=stack)
            made[name] = new
        job.does(FORWARD, ENGINE)
    assert categories(found(job)) == [INPUT] * 3
    assert categories(found(job, SUBJECT + 1)) == [ACTIVATION] * 3
    for size in (SUBJECT, SUBJECT + 1):
        assert found(job, size)[0][2] == "replaced-on-the-same-line"


def test_without_stacks_of_frees_no_line_shows_what_a_former_value_was(found):
    """Every free has the stack of its alloc there: by it, the same line seems to free the former value."""
    job = Job()
    old = job.older(LOAD)
    job.alloc(LOAD)
    job.free(old)
    for stack in (FORWARD, ENGINE):
        job.free(job.alloc(stack, SUBJECT + 1))
    assert categories(found(job)) == [UNKNOWN, INPUT]


def test_a_value_that_is_made_later_takes_no_place(found):
    job = Job()
    job.model.free(job.older(NO_FRAMES), frames=LOAD)
    job.alloc(LOAD)
    job.does(FORWARD, ENGINE)
    assert categories(found(job)) == [UNKNOWN, INPUT]


def test_a_value_that_was_freed_first_takes_no_place(found):
    job = Job()
    old = job.older(NO_FRAMES)
    job.free(job.alloc(LOAD), MAIN)
    job.model.free(old, frames=LOAD)
    job.does(FORWARD, ENGINE)
    assert categories(found(job))[0] is UNKNOWN


def test_a_line_that_frees_several_kinds_is_no_evidence_of_preexisting_blocks(found):
    job = Job()
    old = job.older(NO_FRAMES, SUBJECT + 1)
    batch, result = job.alloc(LOAD), job.alloc(FORWARD)
    job.does(ENGINE)
    for addr in (batch, result, old):
        job.free(addr, MAIN)
    assert categories(found(job)) == [INPUT, ACTIVATION]
    assert categories(found(job, SUBJECT + 1)) == [UNKNOWN]


def test_a_temporary_of_its_line_is_not_older_than_those_of_the_line_get(found):
    job = Job()
    old = job.older(NO_FRAMES, SUBJECT + 1)
    job.does(FORWARD, ENGINE)
    job.does(MAIN)
    job.free(old, MAIN)
    assert categories(found(job, SUBJECT + 1)) == [UNKNOWN]


def test_what_a_line_frees_soon_after_the_beginning_is_as_temporary_as_what_else_it_frees(found):
    job = Job()
    old, other = job.older(NO_FRAMES, SUBJECT + 1), job.alloc(LOAD)
    job.free(old, MAIN)
    job.does(LOAD, LOAD)
    job.free(other, MAIN)
    job.does(FORWARD, ENGINE)
    assert categories(found(job)) == [TEMPORARY]
    assert categories(found(job, SUBJECT + 1)) == [TEMPORARY]
