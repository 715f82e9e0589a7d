"""The layout at a moment is the one that the allocator had, at every event and not only at the dump."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import MIB, AllocatorSettings
from snapconv.replay.device_replay import replay
from snapconv.replay.memory_layout import is_small_segment, layout_at, layouts
from snapconv.snapshot.load import load_snapshot
from snapconv.snapshot.segment_table import BlockState
from tests.builders import ADDR as S
from tests.builders import TraceBuilder

REAL = Path(__file__).parents[4] / "shared" / "snapshots"
CONFS = (
    "",
    "max_split_size_mb:32",
    "expandable_segments:True",
    "expandable_segments:True,large_segment_size_mb:32",
    "expandable_segments:True,roundup_power2_divisions:4",
)


def load(tmp_path, raw):
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(raw))
    snapshot = load_snapshot(path)
    (device,) = snapshot.devices
    return device, replay(snapshot, device).allocations


def shown(layout):
    """Plain values: segments (address, bytes, stream, is small) and pieces (address, bytes, is free)."""
    segments = layout.segments
    rows = zip(segments.addr, segments.total_bytes, segments.stream, segments.is_small, strict=True)
    pieces = [
        (*piece, False) for piece in zip(layout.blocks.addr, layout.blocks.n_bytes, strict=True)
    ]
    pieces += [(*piece, True) for piece in zip(layout.free.addr, layout.free.n_bytes, strict=True)]
    return [tuple(map(int, row)) for row in rows], sorted(
        tuple(map(int, piece)) for piece in pieces
    )


def as_the_model_has_it(segments):
    rows = [
        (s["address"], s["total_size"], s["stream"], int(s["segment_type"] == "small"))
        for s in segments
    ]
    blocks = [
        (b["address"], b["size"], int(b["state"] == "inactive"))
        for s in segments
        for b in s["blocks"]
    ]
    return sorted(rows), sorted(blocks)


def random_job(model, generator, n_steps):
    """Allocate and free at random, with the model's own segments after every step."""
    live, seen = [], {}
    for _ in range(n_steps):
        kind = generator.integers(10)
        if kind < 6 or not live:
            size = int(
                generator.choice([300, 5000, 700_000, 3 * MIB, 11 * MIB, 25 * MIB, 41 * MIB])
            )
            live.append(model.malloc(size, stream=int(generator.integers(2))))
        elif kind < 9:
            model.free(live.pop(int(generator.integers(len(live)))))
        else:
            model.empty_cache()
        seen[model.n_recorded - 1] = as_the_model_has_it(model.segments())
    return seen


@pytest.mark.parametrize("conf", CONFS)
@pytest.mark.parametrize("seed", range(3))
def test_the_layout_after_every_call_is_that_of_the_allocator(tmp_path, conf, seed):
    model = RecordedAllocator(settings=AllocatorSettings.from_conf(conf))
    seen = random_job(model, np.random.default_rng(seed), 120)
    device, allocations = load(tmp_path, model.snapshot())
    found = layouts(device, allocations, list(seen))
    assert {event: shown(layout) for event, layout in found.items()} == seen
    assert [layout.n_conflicts for layout in found.values()] == [0] * len(seen)


def test_a_layout_alone_is_the_same_as_among_others(tmp_path):
    model = RecordedAllocator()
    seen = random_job(model, np.random.default_rng(7), 60)
    device, allocations = load(tmp_path, model.snapshot())
    middle = sorted(seen)[30]
    assert shown(layout_at(device, allocations, middle)) == seen[middle]


def test_before_the_first_event_there_is_what_was_there_already(tmp_path):
    trace = TraceBuilder().segment(2 * MIB, traced=False).alloc(512, traced=False).segment(20 * MIB)
    device, allocations = load(tmp_path, trace.snapshot())
    layout = layout_at(device, allocations, -1)
    assert layout.segments.total_bytes.tolist() == [2 * MIB]
    assert layout.blocks.n_bytes.tolist() == [512]
    assert layout.free.n_bytes.tolist() == [2 * MIB - 512]
    assert (layout.blocks.allocation.tolist(), layout.free.allocation.tolist()) == ([0], [-1])


def test_the_pool_of_a_segment_given_back_is_that_of_its_event(tmp_path):
    model = RecordedAllocator()
    addr = model.malloc(30 * MIB, pool=(0, 7))
    at = model.n_recorded - 1
    model.free(addr)
    model.release_pool((0, 7))
    model.empty_cache()
    raw = model.snapshot()
    path = tmp_path / "snapshot.pickle"
    path.write_bytes(pickle.dumps(raw))
    snapshot = load_snapshot(path)
    layout = layout_at(snapshot.devices[0], replay(snapshot, snapshot.devices[0]).allocations, at)
    assert [snapshot.pools[pool] for pool in layout.segments.pool_id.tolist()] == [(0, 7)]


def test_blocks_outside_of_every_segment_are_conflicts_and_no_rows(tmp_path):
    raw = TraceBuilder().segment(2 * MIB).alloc(512).snapshot()
    raw["device_traces"][0].append({**raw["device_traces"][0][-1], "addr": 0x1000})
    device, allocations = load(tmp_path, raw)
    layout = layout_at(device, allocations, 2)
    assert (layout.n_conflicts, layout.blocks.n_bytes.tolist()) == (1, [512])


def expandable(*ranges):
    """A device that has expandable ranges of (first MiB, end, stream) at the dump."""
    builder = TraceBuilder()
    for first, end, stream in ranges:
        place = {
            "address": S + first * MIB,
            "stream": stream,
            "is_expandable": True,
            "segment_type": "large",
        }
        builder.segment((end - first) * MIB, traced=False, **place)
    return builder


def unmapped(builder, first, end, stream=0):
    """The ranges, in MiB and with their streams, before the last event: one that released a range."""
    builder.event("segment_unmap", addr=S + first * MIB, size=(end - first) * MIB, stream=stream)
    return builder


def ranges_before(tmp_path, builder):
    device, allocations = load(tmp_path, builder.snapshot())
    layout = layout_at(device, allocations, -1)
    rows = shown(layout)[0]
    return [
        ((a - S) // MIB, (a + n - S) // MIB, stream) for a, n, stream, _ in rows
    ], layout.n_conflicts


@pytest.mark.parametrize(("left", "right"), [(0, 7), (7, 0)])
def test_expandable_ranges_that_touch_are_one_for_the_same_stream_only(tmp_path, left, right):
    before = unmapped(expandable((0, 20, left), (40, 60, left)), 20, 40, left)
    assert ranges_before(tmp_path, before) == ([(0, 60, left)], 0)
    before = unmapped(expandable((0, 20, left)), 20, 40, right)
    assert ranges_before(tmp_path, before) == ([(0, 20, left), (20, 40, right)], 0)


@pytest.mark.parametrize(
    ("kept", "released"), [((0, 20), (20, 40)), ((20, 40), (0, 20))], ids=["left", "right"]
)
def test_a_released_range_is_not_joined_to_an_ordinary_segment_beside_it(tmp_path, kept, released):
    builder = TraceBuilder().segment(
        20 * MIB, address=S + kept[0] * MIB, traced=False, segment_type="large"
    )
    before = unmapped(builder, *released)
    assert ranges_before(tmp_path, before) == ([(0, 20, 0), (20, 40, 0)], 0)


@pytest.mark.parametrize(("first", "end"), [(10, 30), (30, 50), (45, 55)])
def test_a_released_range_that_overlaps_one_of_the_dump_on_either_side_is_a_conflict(
    tmp_path, first, end
):
    before = unmapped(expandable((0, 20, 0), (40, 60, 0)), first, end)
    assert ranges_before(tmp_path, before) == ([(0, 20, 0), (40, 60, 0)], 1)


@pytest.mark.parametrize("first", [-20, 10, 30])
def test_a_range_that_was_mapped_but_is_not_there_at_the_dump_is_a_conflict(tmp_path, first):
    builder = expandable((0, 20, 0)).event("segment_map", addr=S + first * MIB, size=20 * MIB)
    assert ranges_before(tmp_path, builder) == ([(0, 20, 0)], 1)


def test_the_pool_of_a_released_segment_is_unknown_where_events_have_none(tmp_path):
    builder = TraceBuilder().segment(traced=False)
    builder.event("segment_free", addr=S + 20 * MIB, size=2 * MIB)
    device, allocations = load(tmp_path, builder.snapshot())
    assert layout_at(device, allocations, -1).segments.pool_id.tolist() == [0, -1]


def test_where_there_is_no_segment_there_are_no_pieces(tmp_path):
    device, allocations = load(tmp_path, TraceBuilder().event("snapshot").snapshot())
    layout = layout_at(device, allocations, 0)
    assert shown(layout) == ([], [])
    assert layout.n_conflicts == 0


def test_blocks_that_overlap_by_a_byte_are_a_conflict(tmp_path):
    raw = (
        TraceBuilder()
        .segment(traced=False)
        .alloc(512, traced=False)
        .alloc(512, traced=False)
        .snapshot()
    )
    first = raw["segments"][0]["blocks"][0]
    first["size"] = 513
    device, allocations = load(tmp_path, raw)
    assert layout_at(device, allocations, -1).n_conflicts == 1
    first["size"] = 511
    device, allocations = load(tmp_path, raw)
    layout = layout_at(device, allocations, -1)
    assert (layout.n_conflicts, layout.free.n_bytes.tolist()) == (0, [1, 2 * MIB - 1024])


@pytest.mark.parametrize(
    ("size", "page", "is_small"),
    [
        (2, 20, True),
        (20, 20, False),
        (22, 20, True),
        (40, 20, False),
        (40, 32, True),
        (64, 32, False),
    ],
)
def test_a_range_is_of_a_large_pool_where_it_is_whole_pages_of_the_settings(size, page, is_small):
    assert is_small_segment(size * MIB, page * MIB, is_expandable=True) is is_small


@pytest.mark.parametrize(
    ("size", "is_small"), [(1, False), (2, True), (4, False), (20, False), (22, False)]
)
def test_an_ordinary_segment_is_of_a_small_pool_where_it_has_2_mib(size, is_small):
    assert is_small_segment(size * MIB, 20 * MIB, is_expandable=False) is is_small


@pytest.mark.skipif(not REAL.is_dir(), reason="real snapshots are not here")
@pytest.mark.parametrize("path", sorted(REAL.glob("*.pickle")), ids=lambda path: path.name)
def test_the_layout_at_the_dump_is_that_of_the_file(path):
    if path.name.startswith("facebookresearch"):
        pytest.skip("synthetic: its blocks do not tile their segments")
    snapshot = load_snapshot(path)
    for device in snapshot.devices:
        layout = layout_at(device, replay(snapshot, device).allocations, len(device.events) - 1)
        live = device.blocks.state != BlockState.INACTIVE
        for pieces, rows in ((layout.blocks, live), (layout.free, ~live)):
            assert np.array_equal(pieces.addr, device.blocks.addr[rows])
            assert np.array_equal(pieces.n_bytes, device.blocks.block_bytes[rows])
        assert layout.n_conflicts == 0


@pytest.mark.parametrize("conf", CONFS)
def test_at_the_dump_the_segments_are_those_of_the_file_with_their_pools_and_stacks(tmp_path, conf):
    model = RecordedAllocator(settings=AllocatorSettings.from_conf(conf))
    for number, size in enumerate((512, 3 * MIB, 30 * MIB, 25 * MIB)):
        frames = [{"name": f"f{number}", "filename": "a.py", "line": number}]
        model.malloc(size, stream=number % 2 * 7, frames=frames)
    device, allocations = load(tmp_path, model.snapshot())
    found = layout_at(device, allocations, len(device.events) - 1).segments
    for column in (
        "addr",
        "total_bytes",
        "stream",
        "pool_id",
        "is_small",
        "is_expandable",
        "stack_id",
    ):
        assert getattr(found, column).tolist() == getattr(device.segments, column).tolist(), column
    assert found.is_expandable.tolist() == [conf.startswith("expandable")] * len(found.addr)
    assert len(set(found.stack_id.tolist())) > 1 or found.is_expandable.all()


def test_what_began_before_the_first_event_and_after_it_adds_up(tmp_path):
    """Sizes whose bits overlap: 3,584 and 1,536 are both odd multiples of 512."""
    builder = TraceBuilder().segment(traced=False).alloc(3500, traced=False).alloc(1500).alloc(1500)
    path = builder.write(tmp_path / "snapshot.pickle")
    snapshot = load_snapshot(path)
    curve = replay(snapshot, snapshot.devices[0]).allocated
    assert [curve.start, *curve.after.tolist()] == [3584, 3584 + 1536, 3584 + 2 * 1536]
