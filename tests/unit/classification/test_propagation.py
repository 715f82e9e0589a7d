"""What the program frees itself: by what else the line frees or makes."""

import pytest

from snapconv.classification.categories import Category, Evidence
from tests.classified_jobs import (
    APPLY,
    COPY,
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
    former = [job.older(LOAD), job.older(LOAD)]
    job.alloc(LOAD)
    for old in former:
        job.free(old)
    for stack in (FORWARD, ENGINE):
        job.free(job.alloc(stack, SUBJECT + 1))
    assert categories(found(job)) == [UNKNOWN, UNKNOWN, INPUT]


def test_a_value_that_is_made_later_takes_no_place(found):
    job = Job()
    job.model.free(job.older(NO_FRAMES), frames=LOAD)
    job.alloc(LOAD)
    job.does(FORWARD, ENGINE)
    assert categories(found(job)) == [UNKNOWN, INPUT]


def test_a_value_that_was_freed_first_takes_no_place(found):
    job = Job()
    old, first = job.older(NO_FRAMES), job.alloc(LOAD)
    job.does(FORWARD)
    job.free(first, MAIN)
    job.model.free(old, frames=LOAD)
    job.does(FORWARD, ENGINE)
    assert categories(found(job))[0] is UNKNOWN


@pytest.mark.parametrize(("n_freed", "category"), [(0, ACTIVATION), (31, ACTIVATION), (32, UNKNOWN)])
def test_of_what_a_line_makes_the_new_value_is_the_youngest_that_it_has_not_freed(n_freed, category, found):
    """`outputs = model(batch)`: most of what the call makes it frees; so much is passed over."""
    job = Job()
    old = job.older(NO_FRAMES)
    job.alloc(FORWARD)
    for _ in range(n_freed):
        job.free(job.alloc(FORWARD), FORWARD)
    job.model.free(old, frames=MAIN)
    job.does(ENGINE)
    assert categories(found(job))[0] is category


def test_a_recursion_passes_over_each_value_once(found):
    deep = FORWARD[:-1] + FORWARD[-1:] * 40
    job = Job()
    old = job.older(NO_FRAMES)
    job.alloc(deep)
    job.free(job.alloc(deep), deep)
    job.model.free(old, frames=MAIN)
    job.does(ENGINE)
    assert categories(found(job))[0] is ACTIVATION


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


def without_stacks_of_frees(job, *addrs):
    """The snapshot of a job in which nothing shows what freed these addresses."""
    raw = job.snapshot()
    for event in raw["device_traces"][0]:
        if event["addr"] in addrs and event["action"].startswith("free"):
            del event["frames"]
    return raw


def test_what_frees_without_a_stack_end_is_of_no_line(found, monkeypatch):
    job = Job()
    old, batch = job.older(NO_FRAMES, SUBJECT + 1), job.alloc(COPY)
    job.does(FORWARD, ENGINE)
    for addr in (batch, old):
        job.model.free(addr)
    raw = without_stacks_of_frees(job, batch, old)
    monkeypatch.setattr(job, "snapshot", lambda: raw)
    assert categories(found(job)) == [INPUT]
    assert categories(found(job, SUBJECT + 1)) == [UNKNOWN]


def test_only_what_was_there_before_the_trace_is_what_replaced_it(found):
    """One of two that a line made for two weights: nothing shows what they are."""
    job = Job()
    for _ in range(2):
        job.alloc(APPLY)
    kept = [job.alloc(LOAD) for _ in range(2)]
    job.does(FORWARD, ENGINE)
    job.alloc(COPY)
    job.model.free(kept[0], frames=COPY)
    job.does(FORWARD, ENGINE)
    assert categories(found(job))[2:] == [UNKNOWN, UNKNOWN, INPUT]


def test_a_new_value_of_another_size_replaced_nothing(found):
    job = Job()
    old, other = job.older(NO_FRAMES), job.older(NO_FRAMES, SUBJECT + 1)
    job.alloc(LOAD)
    for addr in (old, other):
        job.model.free(addr, frames=LOAD)
    job.does(FORWARD, ENGINE)
    assert categories(found(job)) == [INPUT, INPUT]
    assert categories(found(job, SUBJECT + 1)) == [UNKNOWN]


def test_what_a_line_frees_of_batches_is_one_however_late(found):
    """A batch lives until the next one; the first one may have been there for any time."""
    job = Job()
    old = job.older(NO_FRAMES, SUBJECT + 1)
    job.does(FORWARD, ENGINE, FORWARD, ENGINE)
    batch = job.alloc(COPY)
    job.does(FORWARD)
    for addr in (batch, old):
        job.free(addr, MAIN)
    assert found(job, SUBJECT + 1) == [(INPUT, Evidence.FREE_SITE, "freed-by-line-of-one-category")]


@pytest.mark.parametrize(("n_before", "category"), [(1, TEMPORARY), (2, UNKNOWN)])
def test_a_temporary_lives_for_no_more_events_than_others_of_its_line(n_before, category, found):
    """The others live for one event, of the line that frees them."""
    job = Job()
    old = job.older(NO_FRAMES, SUBJECT + 1)
    for _ in range(n_before):
        job.alloc(APPLY, OTHER)
    job.free(old, LOAD)
    job.does(LOAD, FORWARD, ENGINE)
    assert categories(found(job, SUBJECT + 1)) == [category]


def test_what_was_there_as_long_replaced_nothing(found):
    """The line had made another block before the trace, which is still there."""
    job = Job()
    kept, old = job.older(LOAD), job.older(NO_FRAMES)
    job.model.free(old, frames=LOAD)
    job.does(FORWARD, ENGINE)
    assert kept != old
    assert sorted(categories(found(job))) == [UNKNOWN, INPUT]
