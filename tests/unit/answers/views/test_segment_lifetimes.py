"""Segments at any moment: what the final segments and the events that changed them say together."""

from pathlib import Path

import numpy as np
import pytest

from snapconv.answers.views.segment_lifetimes import find_segment_lifetimes
from snapconv.replay.device_replay import replay
from snapconv.replay.memory_layout import layouts
from snapconv.snapshot.load import load_snapshot
from tests.builders import ADDR, MIB, TraceBuilder

FIXTURES = Path(__file__).parents[4] / "fixtures"


@pytest.fixture
def device_of(tmp_path):
    def device_of(builder):
        snapshot = load_snapshot(builder.write(tmp_path / "run.pickle"))
        return snapshot, snapshot.devices[0]

    return device_of


def rows(found):
    offsets = ((found.addr - ADDR) // MIB).tolist()
    sizes = (found.n_bytes // MIB).tolist()
    return list(zip(offsets, sizes, found.begin_event.tolist(), found.end_event.tolist(), strict=True))


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


def test_what_lives_at_an_event_are_the_reserved_bytes(device_of):
    builder = TraceBuilder().segment(2 * MIB, traced=False).segment(4 * MIB).alloc(512)
    builder.event("segment_alloc", addr=ADDR + 50 * MIB, size=20 * MIB)
    builder.free()
    builder.event("segment_free", addr=ADDR + 50 * MIB, size=20 * MIB)
    snapshot, device = device_of(builder)
    found, reserved = find_segment_lifetimes(device), replay(snapshot, device).reserved
    for event in range(-1, len(device.events)):
        is_there = (found.begin_event <= event) & ((found.end_event < 0) | (found.end_event > event))
        assert int(found.n_bytes[is_there].sum()) == reserved.at(event)
        spans = np.stack((found.addr[is_there], found.addr[is_there] + found.n_bytes[is_there]))
        assert (np.diff(spans.T.reshape(-1)) >= 0).all()  # no two of them overlap


@pytest.mark.parametrize(
    "name", ["training_step", "expandable_segments", "several_streams", "private_pools", "max_split_size"]
)
def test_what_lives_at_an_event_is_the_layout_of_that_moment(name):
    snapshot = load_snapshot(FIXTURES / f"{name}.pickle")
    device = snapshot.devices[0]
    found, allocations = find_segment_lifetimes(device), replay(snapshot, device).allocations
    moments = range(-1, len(device.events), max(1, len(device.events) // 40))
    for event, layout in layouts(device, allocations, moments).items():
        is_there = (found.begin_event <= event) & ((found.end_event < 0) | (found.end_event > event))
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
