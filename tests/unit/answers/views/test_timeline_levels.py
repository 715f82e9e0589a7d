"""Levels of detail of a timeline: whatever the width of a bin, its extremes are those of all its events."""

import numpy as np
import pytest

from snapconv.answers.views import timeline_levels
from snapconv.answers.views.timeline_levels import bytes_by_category, timeline_level
from snapconv.classification.categories import Category
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from tests.builders import MIB, TraceBuilder


def trace_of(n_allocations):
    """Two allocations that stay, one of them from before, and many that come and go, each larger."""
    builder = TraceBuilder().segment(64 * MIB, traced=False).alloc(512, traced=False).alloc(1024)
    for size in range(1, n_allocations + 1):
        builder.alloc(512 * size).free()
    return builder


@pytest.fixture
def replayed(tmp_path):
    def replayed(builder):
        snapshot = load_snapshot(builder.write(tmp_path / "run.pickle"))
        return replay(snapshot, snapshot.devices[0])

    return replayed


def alternating(replayed):
    """Categories by turns, so that a composition is not one number."""
    return (np.arange(len(replayed.allocations)) % 3).astype(np.int8)


def by_hand(replayed, category, event):
    live = replayed.allocations.live_at(event)
    n_bytes = replayed.allocations.block_bytes
    return [int(n_bytes[live & (category == number)].sum()) for number in range(len(Category))]


@pytest.mark.parametrize("many", [0, 1_000])
def test_bytes_by_category_are_those_of_what_is_live(replayed, monkeypatch, many):
    monkeypatch.setattr(timeline_levels, "_MANY", many)
    found = replayed(trace_of(20))
    category = alternating(found)
    events = np.array([-1, 0, 5, 30, 60])
    rows = bytes_by_category(found.allocations, category, events).tolist()
    assert rows == [by_hand(found, category, event) for event in events.tolist()]


@pytest.mark.parametrize("most_bins", [1, 2, 7, 1000])
def test_a_bin_has_the_extremes_of_its_events_and_what_they_consist_of(replayed, most_bins):
    found = replayed(trace_of(20))
    category = alternating(found)
    level = timeline_level(found, category, most_bins=most_bins)
    after = found.allocated.after
    assert len(level) <= most_bins
    for i in range(len(level)):
        within = after[i * level.events_per_bin : (i + 1) * level.events_per_bin]
        assert int(after[level.max_event[i]]) == within.max() == level.at_max[i].sum()
        assert int(after[level.min_event[i]]) == within.min() == level.at_min[i].sum()
        assert level.at_max[i].tolist() == by_hand(found, category, int(level.max_event[i]))


def test_the_peak_is_in_every_level(replayed):
    found = replayed(trace_of(50))
    for most_bins in (1, 3, 10, 64):
        level = timeline_level(found, alternating(found), most_bins=most_bins)
        assert level.at_max.sum(axis=1).max() == found.allocated.peak
        assert found.allocated.peak_event in level.max_event
        assert level.active_max.max() == found.active.peak
        assert level.reserved_max.max() == found.reserved.peak


def test_a_trace_with_fewer_events_than_bins_has_each_in_its_own(replayed):
    found = replayed(TraceBuilder().segment().alloc(512).free())
    level = timeline_level(found, alternating(found), most_bins=100)
    assert level.events_per_bin == 1
    assert level.at_max.sum(axis=1).tolist() == [0, 512, 0, 0]


def test_without_events_there_are_no_bins(replayed):
    found = replayed(TraceBuilder().segment(traced=False).alloc(512, traced=False))
    level = timeline_level(found, alternating(found), most_bins=100)
    assert (len(level), len(level.active_max), level.at_max.shape) == (0, 0, (0, len(Category)))
