"""Curves in bins, whose extremes are those of all their events, and segments at any moment."""

from pathlib import Path

import numpy as np
import pytest

from snapconv.answers.timeline import bytes_by_category, find_segment_lifetimes, timeline_level
from snapconv.classification.categories import Category
from snapconv.replay.device_replay import replay
from snapconv.replay.memory_layout import layouts
from snapconv.snapshot.load import load_snapshot
from tests.builders import ADDR, MIB, TraceBuilder

FIXTURES = Path(__file__).parents[3] / "fixtures"


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


def test_bytes_by_category_are_those_of_what_is_live(replayed):
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
    assert len(level.max_event) <= most_bins
    for i in range(len(level.max_event)):
        within = after[i * level.events_per_bin : (i + 1) * level.events_per_bin]
        assert int(after[level.max_event[i]]) == within.max() == level.max_categories[i].sum()
        assert int(after[level.min_event[i]]) == within.min() == level.min_categories[i].sum()
        assert level.max_categories[i].tolist() == by_hand(found, category, int(level.max_event[i]))


def test_the_peak_is_in_every_level(replayed):
    found = replayed(trace_of(50))
    for most_bins in (1, 3, 10, 64):
        level = timeline_level(found, alternating(found), most_bins=most_bins)
        assert level.max_categories.sum(axis=1).max() == found.allocated.peak
        assert found.allocated.peak_event in level.max_event
        assert level.active_max.max() == found.active.peak
        assert level.reserved_max.max() == found.reserved.peak


def test_a_trace_with_fewer_events_than_bins_has_each_in_its_own(replayed):
    found = replayed(TraceBuilder().segment().alloc(512).free())
    level = timeline_level(found, alternating(found), most_bins=100)
    assert level.events_per_bin == 1
    assert level.max_categories.sum(axis=1).tolist() == [0, 512, 0, 0]


def test_without_events_there_are_no_bins(replayed):
    found = replayed(TraceBuilder().segment(traced=False).alloc(512, traced=False))
    level = timeline_level(found, alternating(found), most_bins=100)
    assert (len(level.max_event), len(level.active_max), level.max_categories.shape) == (
        0,
        0,
        (0, len(Category)),
    )


@pytest.fixture
def device_of(tmp_path):
    def device_of(builder):
        snapshot = load_snapshot(builder.write(tmp_path / "run.pickle"))
        return snapshot, snapshot.devices[0]

    return device_of


def rows(found):
    offsets = ((found.addr - ADDR) // MIB).tolist()
    sizes = (found.n_bytes // MIB).tolist()
    return list(
        zip(offsets, sizes, found.begin_event.tolist(), found.end_event.tolist(), strict=True)
    )


def test_a_segment_lives_from_its_event_or_from_before_to_the_dump(device_of):
    builder = TraceBuilder().segment(2 * MIB, traced=False).alloc(512).segment(20 * MIB)
    found = find_segment_lifetimes(device_of(builder)[1])
    assert rows(found) == [(0, 2, -1, -1), (2, 20, 1, -1)]
    assert found.is_small.tolist() == [True, False]


def test_a_segment_that_was_given_back_lived_until_then(device_of):
    builder = TraceBuilder().segment(2 * MIB)
    builder.event("segment_alloc", addr=ADDR + 50 * MIB, size=4 * MIB)
    builder.event("segment_free", addr=ADDR + 50 * MIB, size=4 * MIB)
    builder.event("segment_free", addr=ADDR + 90 * MIB, size=2 * MIB)  # was there before the trace
    found = find_segment_lifetimes(device_of(builder)[1])
    assert rows(found) == [(0, 2, 0, -1), (50, 4, 1, 2), (90, 2, -1, 3)]
    assert found.is_small.tolist() == [True, False, True]


def test_a_part_that_is_unmapped_ends_apart_from_the_rest(device_of):
    builder = TraceBuilder()
    builder.segment(4 * MIB, traced=False, is_expandable=True)
    builder.event("segment_map", addr=ADDR, size=8 * MIB)
    builder.event("segment_unmap", addr=ADDR + 4 * MIB, size=4 * MIB)
    found = find_segment_lifetimes(device_of(builder)[1])
    assert rows(found) == [(0, 4, 0, -1), (4, 4, 0, 1)]
    assert found.is_expandable.tolist() == [True, True]


@pytest.mark.parametrize(("conf", "is_small"), [("", True), ("large_segment_size_mb:32", False)])
def test_pages_that_are_unmapped_are_large_by_the_settings_of_the_file(tmp_path, conf, is_small):
    builder = TraceBuilder().event("segment_map", addr=ADDR, size=64 * MIB)
    builder.event("segment_unmap", addr=ADDR, size=64 * MIB)
    settings = {"PYTORCH_CUDA_ALLOC_CONF": conf}
    path = builder.write(tmp_path / "a.pickle", allocator_settings=settings)
    found = find_segment_lifetimes(load_snapshot(path).devices[0])
    assert found.is_small.tolist() == [is_small]


def test_what_lives_at_an_event_are_the_reserved_bytes(device_of):
    builder = TraceBuilder().segment(2 * MIB, traced=False).segment(4 * MIB).alloc(512)
    builder.event("segment_alloc", addr=ADDR + 50 * MIB, size=20 * MIB)
    builder.free()
    builder.event("segment_free", addr=ADDR + 50 * MIB, size=20 * MIB)
    snapshot, device = device_of(builder)
    found, reserved = find_segment_lifetimes(device), replay(snapshot, device).reserved
    for event in range(-1, len(device.events)):
        is_there = (found.begin_event <= event) & (
            (found.end_event < 0) | (found.end_event > event)
        )
        assert int(found.n_bytes[is_there].sum()) == reserved.at(event)
        spans = np.stack((found.addr[is_there], found.addr[is_there] + found.n_bytes[is_there]))
        assert (np.diff(spans.T.reshape(-1)) >= 0).all()  # no two of them overlap


@pytest.mark.parametrize(
    "name",
    ["training_step", "expandable_segments", "several_streams", "private_pools", "max_split_size"],
)
def test_what_lives_at_an_event_is_the_layout_of_that_moment(name):
    snapshot = load_snapshot(FIXTURES / f"{name}.pickle")
    device = snapshot.devices[0]
    found, allocations = find_segment_lifetimes(device), replay(snapshot, device).allocations
    moments = range(-1, len(device.events), max(1, len(device.events) // 40))
    for event, layout in layouts(device, allocations, moments).items():
        is_there = (found.begin_event <= event) & (
            (found.end_event < 0) | (found.end_event > event)
        )
        begins, ends = found.addr[is_there], (found.addr + found.n_bytes)[is_there]
        of_layout = layout.segments.addr, layout.segments.addr + layout.segments.total_bytes
        # Pieces that touch are one segment in the layout where it grows.
        assert set(of_layout[0].tolist()) <= set(begins.tolist())
        assert set(of_layout[1].tolist()) <= set(ends.tolist())
        assert int((ends - begins).sum()) == int(layout.segments.total_bytes.sum())


def test_an_event_that_fits_no_segment_is_passed_over(device_of):
    builder = TraceBuilder().segment(2 * MIB, traced=False)
    builder.event("segment_alloc", addr=ADDR + 70 * MIB, size=2 * MIB)
    assert rows(find_segment_lifetimes(device_of(builder)[1])) == [(0, 2, -1, -1)]
