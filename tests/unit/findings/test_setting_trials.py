"""What is tried, in which order it is shown, and what is said of the figures."""

import pytest

from snapconv.allocator.allocator_settings import MIB
from snapconv.findings.setting_trials import OWN, OWN_PLACED_ANEW, SEARCHED, Request, read_setting
from snapconv.session import load
from tests.builders import TraceBuilder


@pytest.fixture
def tried_on(tmp_path):
    def run(builder, request):
        (found,) = load(builder.write(tmp_path / "snapshot.pickle")).what_if(request)
        return found

    return run


def two_segments():
    """40 MiB reserved for 36 MiB: each segment has two blocks of 9 and 2 MiB that are free."""
    builder = TraceBuilder()
    for _ in range(2):
        builder.segment(20 * MIB, segment_type="large").alloc(9 * MIB).alloc(9 * MIB)
    return builder


def test_the_own_settings_come_first_and_alternatives_as_given(tried_on):
    found = tried_on(two_segments(), Request(("max_split_size_mb:64", "expandable_segments:True")))
    assert [one.name for one in found.tried] == [OWN, "max_split_size_mb:64", "expandable_segments:True"]
    assert found.recorded.peak_reserved == found.tried[0].outcome.peak_reserved == 40 * MIB
    assert found.check.is_exact
    assert found.estimated == ()


def test_a_search_ranks_by_what_is_reserved_and_puts_what_runs_out_last(tried_on):
    found = tried_on(two_segments(), Request(is_search=True, capacity=39 * MIB))
    outcomes = [one.outcome for one in found.tried[1:]]
    assert {one.name for one in found.tried} > set(SEARCHED)
    keys = [(outcome.ran_out is not None, outcome.peak_reserved) for outcome in outcomes]
    assert keys == sorted(keys)
    assert found.tried[0].outcome.ran_out is not None


def test_a_setting_that_the_file_has_is_not_tried_again(tried_on):
    found = tried_on(two_segments(), Request(("expandable_segments:False",)))
    assert [one.name for one in found.tried] == [OWN]


def test_settings_that_begin_otherwise_are_compared_from_the_same_beginning(tried_on):
    builder = TraceBuilder().segment(40 * MIB, traced=False, segment_type="large")
    builder.alloc(5 * MIB, traced=False).alloc(6 * MIB)
    found = tried_on(builder, Request(("roundup_power2_divisions:4",)))
    assert [one.name for one in found.tried[:2]] == [OWN, OWN_PLACED_ANEW]
    assert [one.outcome.peak_reserved for one in found.tried[:2]] == [40 * MIB, 20 * MIB]
    assert any("placed anew" in reason for reason in found.estimated)


def test_a_failed_request_gives_the_capacity(tried_on):
    builder = two_segments().oom(22 * MIB, device_free=10 * MIB)
    found = tried_on(builder, Request(("expandable_segments:True",)))
    assert found.capacity == 50 * MIB
    assert found.capacity_from == "what torch had when event 6 failed"
    assert [one.outcome.ran_out is None for one in found.tried] == [False, False]
    # 36 MiB of blocks and 22 fit into three pages of 20 MiB; another segment of 22 MiB does not fit.
    found = tried_on(builder, Request(("expandable_segments:True",), capacity=60 * MIB))
    assert [one.outcome.ran_out is None for one in found.tried] == [False, True]


def test_a_trace_that_lost_events_gives_estimates(tried_on):
    builder = two_segments()
    assert tried_on(builder, Request(is_search=True)).estimated == ()
    builder.events[:] = [{**builder.events[1], "action": "free_completed"}, *builder.events]
    assert tried_on(builder, Request(is_search=True)).estimated != ()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("expandable_segments", "expected key:value, got 'expandable_segments'"),
        ("", "expected key:value, got nothing"),
        (
            "backend:cudaMallocAsync",
            "the model has no setting 'backend', or it moves no blocks; it has: expand",
        ),
        ("expandable_segments:true", "expandable_segments must be True or False, got 'true'"),
        ("max_split_size_mb:five", "max_split_size_mb needs an integer"),
        ("per_process_memory_fraction:2", "must be from 0 to 1"),
    ],
)
def test_a_setting_that_cannot_be_tried_is_refused(text, reason):
    with pytest.raises(ValueError, match=reason):
        read_setting(text)
