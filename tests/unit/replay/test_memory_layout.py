"""The layout at a moment is the one that the allocator had, at every event and not only at the dump."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from snapconv.allocator.allocator_settings import MIB, AllocatorSettings
from snapconv.allocator.caching_allocator import CachingAllocator
from snapconv.replay.device_replay import replay
from snapconv.replay.memory_layout import layout_at, layouts
from snapconv.snapshot.load import load_snapshot
from snapconv.snapshot.segment_table import BlockState
from tests.builders import TraceBuilder

REAL = Path(__file__).parents[4] / "shared" / "snapshots"
CONFS = (
    "",
    "max_split_size_mb:32",
    "expandable_segments:True",
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
    pieces = [(*piece, False) for piece in zip(layout.blocks.addr, layout.blocks.n_bytes, strict=True)]
    pieces += [(*piece, True) for piece in zip(layout.free.addr, layout.free.n_bytes, strict=True)]
    return [tuple(map(int, row)) for row in rows], sorted(tuple(map(int, piece)) for piece in pieces)


def as_the_model_has_it(segments):
    rows = [(s["address"], s["total_size"], s["stream"], int(s["segment_type"] == "small")) for s in segments]
    blocks = [(b["address"], b["size"], int(b["state"] == "inactive")) for s in segments for b in s["blocks"]]
    return sorted(rows), sorted(blocks)


def random_job(model, generator, n_steps):
    """Allocate and free at random, with the model's own segments after every step."""
    live, seen = [], {}
    for _ in range(n_steps):
        kind = generator.integers(10)
        if kind < 6 or not live:
            size = int(generator.choice([300, 5000, 700_000, 3 * MIB, 11 * MIB, 25 * MIB, 41 * MIB]))
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
    model = CachingAllocator(settings=AllocatorSettings.from_conf(conf))
    seen = random_job(model, np.random.default_rng(seed), 120)
    device, allocations = load(tmp_path, model.snapshot())
    found = layouts(device, allocations, list(seen))
    assert {event: shown(layout) for event, layout in found.items()} == seen
    assert [layout.n_conflicts for layout in found.values()] == [0] * len(seen)


def test_a_layout_alone_is_the_same_as_among_others(tmp_path):
    model = CachingAllocator()
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


def test_the_pool_of_a_segment_given_back_is_that_of_its_event(tmp_path):
    model = CachingAllocator()
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
    model = CachingAllocator(settings=AllocatorSettings.from_conf(conf))
    for number, size in enumerate((512, 3 * MIB, 30 * MIB, 25 * MIB)):
        frames = [{"name": f"f{number}", "filename": "a.py", "line": number}]
        model.malloc(size, stream=number % 2 * 7, frames=frames)
    device, allocations = load(tmp_path, model.snapshot())
    found = layout_at(device, allocations, len(device.events) - 1).segments
    for column in ("addr", "total_bytes", "stream", "pool_id", "is_small", "is_expandable", "stack_id"):
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
