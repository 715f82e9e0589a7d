"""One device replayed: every number of these small snapshots can be followed by hand. S: the segment."""

import pickle

import numpy as np
import pytest

from snapconv.allocator.allocator_settings import NPU_PADDING_BYTES
from snapconv.replay.device_replay import AllocationTable, Curve, replay
from snapconv.snapshot.load import load_snapshot

MIB = 1 << 20
S = 0x7F0000000000
A, B = S, S + 1024
FRAMES = [{"name": "forward", "filename": "/w/proj/model.py", "line": 7}]
OTHER_FRAMES = [{"name": "step", "filename": "/w/proj/train.py", "line": 9}]


def event(action, addr, size, frames=None, **keys):
    entry = {"action": action, "addr": addr, "size": size, "stream": 0, **keys}
    return entry if frames is None else {**entry, "frames": frames}


def block(size, requested=0, state=None, frames=()):
    state = state or ("active_allocated" if requested else "inactive")
    return {"size": size, "requested_size": requested, "state": state, "frames": list(frames)}


def segment(*blocks, addr=S, **keys):
    """A small segment that is filled by its blocks; the addresses follow from their sizes."""
    placed, at = [], addr
    for raw in blocks:
        placed.append({**raw, "address": at})
        at += raw["size"]
    total = at - addr
    fields = {
        "device": 0,
        "address": addr,
        "total_size": total,
        "stream": 0,
        "segment_type": "small",
    }
    return {**fields, "is_expandable": False, "frames": [], "blocks": placed, **keys}


@pytest.fixture
def replayed(tmp_path):
    def make(events=(), segments=(), settings=None):
        path = tmp_path / "snapshot.pickle"
        raw = {"segments": list(segments), "device_traces": [list(events)]}
        path.write_bytes(
            pickle.dumps(raw if settings is None else {**raw, "allocator_settings": settings})
        )
        snapshot = load_snapshot(path)
        return replay(snapshot, snapshot.devices[0])

    return make


def curve(start, *after):
    return Curve(start, lambda: np.array(after, np.int64))


def values(found):
    return [found.start, *found.after.tolist()]


def slugs(found):
    return [note.slug for note in found.notes]


def test_the_peak_is_the_first_event_with_the_most_bytes():
    found = curve(0, 5, 9, 3, 9)
    assert (found.peak_event, found.peak, found.end) == (1, 9, 9)


CURVES = ("requested", "allocated", "active", "reserved")


@pytest.mark.parametrize("name", CURVES)
def test_a_single_value_and_the_peak_are_found_without_the_whole_curve(name, replayed):
    events = [
        event("segment_alloc", S, 2 * MIB),
        event("alloc", A, 1000),
        event("alloc", B, 600),
        event("free_requested", A, 1000),
        event("free_completed", A, 1000),
    ]
    blocks = [block(1024), block(1024, 600), block(2 * MIB - 2048)]
    found = getattr(replayed(events, [segment(*blocks)]), name)
    peak, single = found.peak_event, [found.at(moment) for moment in range(-1, 5)]
    assert "after" not in vars(found)
    assert single == values(found)
    assert peak == {"reserved": 0}.get(name, 2)


def test_a_block_that_the_first_event_frees_counts_before_it_only(replayed):
    found = replayed(
        [event("free", A, 1000), event("alloc", B, 600)], [segment(block(1024), block(1024, 600))]
    )
    for curve, n_bytes in ((found.requested, (1000, 0, 600)), (found.active, (1024, 0, 1024))):
        assert tuple(curve.at(moment) for moment in (-1, 0, 1)) == n_bytes
        assert "after" not in vars(curve)


def test_a_curve_can_be_pickled(replayed):
    found = replayed([event("alloc", A, 1000)], [segment(block(1024, 1000))]).active
    assert values(pickle.loads(pickle.dumps(found))) == [0, 1024]


@pytest.mark.parametrize("after", [(5, 4, 5), (4, 3), ()])
def test_the_peak_is_before_the_first_event_if_nothing_exceeds_that(after):
    found = curve(5, *after)
    assert (found.peak_event, found.peak) == (-1, 5)


def test_a_curve_has_its_start_at_event_minus_1():
    found = curve(5, 6, 7)
    assert [found.at(event) for event in (-1, 0, 1)] == [5, 6, 7]
    assert curve(5).end == 5


def test_the_four_curves_fall_at_their_own_events(replayed):
    events = [
        event("segment_alloc", S, 2 * MIB),
        event("alloc", A, 1000),
        event("free_requested", A, 1000),
        event("snapshot", 0, 1024),
        event("free_completed", A, 1000),
        event("segment_free", S, 2 * MIB),
    ]
    found = replayed(events)
    assert values(found.requested) == [0, 0, 1000, 1000, 1000, 0, 0]
    assert values(found.allocated) == [0, 0, 1024, 0, 0, 0, 0]
    assert values(found.active) == [0, 0, 1024, 1024, 1024, 0, 0]
    assert values(found.reserved) == [0, 2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB, 2 * MIB, 0]
    assert found.notes == ()


def test_pre_existing_blocks_count_from_before_the_first_event(replayed):
    events = [event("free_requested", B, 600), event("free_completed", B, 600)]
    found = replayed(events, [segment(block(1024, 1000), block(2 * MIB - 1024))])
    assert values(found.requested) == [1600, 1600, 1000]
    assert values(found.active) == [2048, 2048, 1024]
    assert values(found.allocated) == [2048, 1024, 1024]
    assert values(found.reserved) == [2 * MIB] * 3
    assert "pending-free" not in slugs(found)


def test_a_file_without_events_has_curves_without_events(replayed):
    found = replayed((), [segment(block(1024, 1000), block(1024))])
    assert [values(c) for c in (found.requested, found.allocated, found.active)] == [
        [1000],
        [1024],
        [1024],
    ]
    assert values(found.reserved) == [2048]
    assert len(found.allocations) == 1
    (stack,) = replayed(
        (), [segment(block(1024, 1000, frames=FRAMES))]
    ).allocations.stack_id.tolist()
    assert stack == 1  # that of the block; 0 is the segment's, which is empty
    assert found.allocations.free_stack_id.tolist() == [-1]


def test_an_empty_file_has_nothing(replayed):
    found = replayed()
    assert (len(found.allocations), found.allocated.peak, found.reserved.peak) == (0, 0, 0)


def test_mapped_ranges_are_reserved_bytes(replayed):
    events = [event("segment_map", S, 20 * MIB), event("segment_unmap", S + 2 * MIB, 18 * MIB)]
    assert values(replayed(events, [segment(block(2 * MIB))]).reserved) == [0, 20 * MIB, 2 * MIB]


def test_curves_cannot_be_written_to(replayed):
    found = replayed([event("alloc", A, 512)], [segment(block(512, 512))])
    with pytest.raises(ValueError, match="read-only"):
        found.active.after[0] = 1


def table(*rows) -> AllocationTable:
    """Allocations of (alloc, free requested, end)."""
    n = len(rows)
    alloc, requested, end = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    zeros, missing = np.zeros(n, np.int64), np.full(n, -1, np.int32)
    flags = np.ones(n, np.bool_)
    return AllocationTable(
        alloc,
        requested,
        end,
        end,
        zeros,
        zeros,
        zeros,
        zeros,
        flags,
        ~flags,
        missing,
        missing,
        missing,
    )


def test_an_allocation_is_live_from_its_alloc_until_it_is_freed():
    rows = table((1, 3, 4), (-1, -1, -1), (2, -1, -1), (-1, 0, 2), (1, -1, 3))
    assert [rows.live_at(e).nonzero()[0].tolist() for e in range(-1, 5)] == [
        [1, 3],
        [1],
        [0, 1, 4],
        [0, 1, 2, 4],
        [1, 2],
        [1, 2],
    ]


def test_a_merged_free_counts_at_its_event(replayed):
    events = [event("alloc", A, 1000), event("free", A, 1000)]
    found = replayed(events, [segment(block(2 * MIB))])
    assert [values(c) for c in (found.allocated, found.active)] == [[0, 1024, 0], [0, 1024, 0]]
    assert found.allocations.live_at(1).tolist() == [False]


def test_stacks_and_streams_come_from_the_alloc_or_else_from_the_block(replayed):
    events = [
        event("alloc", B, 512, FRAMES, stream=7),
        event("free_requested", B, 512, OTHER_FRAMES, stream=7),
        event("free_completed", B, 512, OTHER_FRAMES, stream=7),
    ]
    blocks = [block(1024, 1000, frames=OTHER_FRAMES), block(2 * MIB - 1024)]
    rows = replayed(events, [segment(*blocks, stream=5, segment_pool_id=(0, 1))]).allocations
    assert rows.addr.tolist() == [A, B]
    assert rows.stream.tolist() == [5, 7]
    assert rows.stack_id[0] == rows.free_stack_id[1] != rows.stack_id[1]
    assert (rows.stack_id >= 0).all()
    assert rows.free_stack_id[0] == -1
    assert rows.pool_id.tolist() == [0, -1]


def test_the_pool_of_an_event_counts_where_the_block_is_not_in_the_segments(replayed):
    events = [event("alloc", B, 512, pool_id=(0, 3)), event("free", B, 512, pool_id=(0, 3))]
    rows = replayed(events, [segment(block(2 * MIB), segment_pool_id=(0, 0))]).allocations
    assert rows.pool_id.tolist() == [1]


def test_the_pool_of_the_segment_counts_before_that_of_an_event(replayed):
    """Pools are numbered by first use: 0 is the segment's, 1 that of the events."""
    blocks = [block(512, 512), block(512, 512, state="active_pending_free"), block(2 * MIB - 1024)]
    events = [
        event("alloc", A, 512, pool_id=(0, 3)),
        event("free_requested", A + 512, 512, pool_id=(0, 3)),
    ]
    found = replayed(events, [segment(*blocks, segment_pool_id=(0, 1))])
    assert found.allocations.pool_id.tolist() == [0, 0]


def test_a_preexisting_small_block_that_was_freed_is_exact(replayed):
    found = replayed([event("free", A, 1000)], [segment(block(2 * MIB))])
    assert found.allocations.block_bytes.tolist() == [1024]
    assert found.allocations.is_exact.tolist() == [True]
    assert found.notes == ()


def test_a_preexisting_large_block_fills_a_gap_of_up_to_1_mib(replayed):
    gap = [block(4 * MIB), block(16 * MIB, 16 * MIB)]
    found = replayed([event("free", A, 3 * MIB)], [segment(*gap)])
    assert found.allocations.block_bytes.tolist() == [4 * MIB, 16 * MIB]
    assert found.allocations.is_exact.all()


def test_a_preexisting_large_block_before_a_wide_gap_is_known_within_1_mib(replayed):
    gap = [block(6 * MIB), block(14 * MIB, 14 * MIB)]
    found = replayed([event("free", A, 3 * MIB)], [segment(*gap)])
    assert found.allocations.block_bytes.tolist() == [3 * MIB, 14 * MIB]
    assert found.allocations.is_exact.tolist() == [False, True]
    (note,) = found.notes
    assert note.slug == "inexact-block-sizes"
    assert "may be up to 1.00 MiB higher: the exact sizes of 1 block" in note.message


def test_a_preexisting_block_outside_of_every_segment_has_no_bound_to_add(replayed):
    outside = event("free", S - 40 * MIB, 3 * MIB)
    found = replayed([outside, event("free", A, 3 * MIB)], [segment(block(20 * MIB))])
    note = next(note for note in found.notes if note.slug == "inexact-block-sizes")
    assert "sizes of 2 blocks" in note.message
    assert "may be up to 1.00 MiB higher" in note.message


def test_padding_of_torch_npu_is_seen_in_the_live_blocks(replayed):
    found = replayed([event("alloc", A, 512)], [segment(block(1024, 512), block(1024, 512))])
    assert found.rules.settings.padding_bytes == NPU_PADDING_BYTES
    assert found.allocations.block_bytes.tolist() == [1024, 1024]


def test_without_live_blocks_the_backend_shows_the_padding(replayed):
    freed = [event(action, A, 512) for action in ("alloc", "free_requested", "free_completed")]
    assert replayed(freed, [GONE]).active.peak == 512
    assert replayed([*freed, event("empty_cache", 0, 0)], [GONE]).active.peak == 1024


ALLOC, LIVE = event("alloc", A, 1000), segment(block(1024, 1000), block(2 * MIB - 1024))
FREED = [event("free_requested", A, 1000), event("free_completed", A, 1000)]
GONE = segment(block(2 * MIB))
PENDING = segment(block(1024, 1000, "active_pending_free"), block(2 * MIB - 1024))
GRAPH = [{"name": "at::cuda::setCheckpointPoolState(signed char)", "filename": "??", "line": 0}]
NOTES = {
    "orphan-free": ([ALLOC, *FREED, *FREED], [GONE]),
    "implicit-free": ([ALLOC, ALLOC], [LIVE]),
    "missing-from-segments": ([ALLOC], [GONE]),
    "trace-contradicts-segments": (
        [event("alloc", S - 512, 512), event("free", S - 512, 512)],
        [GONE],
    ),
    "pending-free": ([], [PENDING]),
    "skipped-actions": ([ALLOC, FREED[0]], [GONE]),
    "cuda-graph-pools": ([{**ALLOC, "frames": GRAPH}], [LIVE]),
    "checkpoint-mismatch": ([ALLOC, event("snapshot", 0, 2048)], [LIVE]),
    "negative-bytes": ([event("segment_alloc", S - 4 * MIB, 4 * MIB)], [GONE]),
    "inexact-block-sizes": ([event("free", A, 3 * MIB)], [segment(block(20 * MIB))]),
}


@pytest.mark.parametrize("slug", sorted(NOTES))
def test_what_keeps_a_figure_from_being_exact_gives_a_note(slug, replayed):
    found = replayed(*NOTES[slug])
    assert slug in slugs(found)
    assert all(note.device == 0 for note in found.notes)


def test_a_trace_that_fits_gives_no_note(replayed):
    assert slugs(replayed([event("segment_alloc", S, 2 * MIB), ALLOC, *FREED, ALLOC], [LIVE])) == []


def test_a_checkpoint_that_fits_gives_no_note(replayed):
    assert slugs(replayed([ALLOC, event("snapshot", 0, 1024), *FREED], [GONE])) == []


def test_frees_without_allocs_give_a_note(replayed):
    assert slugs(replayed(FREED, [GONE])) == ["skipped-actions"]


def test_a_snapshot_event_without_a_count_contradicts_nothing(replayed):
    assert "checkpoint-mismatch" not in slugs(replayed([ALLOC, event("snapshot", 0, 0)], [LIVE]))


def test_a_block_that_waits_for_a_stream_stays_active(replayed):
    found = replayed([ALLOC, FREED[0]], [PENDING])
    assert values(found.active) == [0, 1024, 1024]
    assert values(found.allocated) == [0, 1024, 0]


def test_a_free_requested_before_the_first_event_counts_as_allocated_until_it_completes(replayed):
    events = [event("free_completed", A, 1000), event("alloc", A, 500), *FREED]
    assert values(replayed(events, [GONE]).allocated) == [1024, 0, 512, 0, 0]


def test_a_free_requested_before_the_first_event_gives_a_note_also_if_it_completes(replayed):
    other = [event(action, B, 512) for action in ("alloc", "free_requested", "free_completed")]
    (note,) = replayed([*other[:1], FREED[1], *other[1:]], [GONE]).notes
    assert (note.slug, note.message) == (
        "pending-free",
        (
            "1 block (1.00 KiB) was freed before the first event, but counted as allocated until "
            "free_completed"
        ),
    )


def test_frees_without_any_request_were_not_requested_earlier(replayed):
    assert slugs(replayed([FREED[1]], [GONE])) == []


def test_the_note_separates_blocks_that_wait_from_frees_that_were_requested_earlier(replayed):
    (note,) = replayed([ALLOC, FREED[0]], [PENDING]).notes
    waits = "1 block (1.00 KiB) was freed but still in use by a stream at the dump"
    assert note.message == waits
    (note,) = replayed([FREED[1], ALLOC, *FREED], [GONE]).notes
    assert note.message.startswith("1 block (1.00 KiB) was freed before the first event")


def test_a_block_that_waits_in_a_file_without_events_is_in_the_note_once(replayed):
    (note,) = replayed([], [PENDING]).notes
    assert note.message.endswith("in use by a stream at the dump, and counted as allocated")
    assert note.message.count("1 block") == 1


def test_events_that_describe_the_workspace_of_torch_npu_move_no_memory(replayed):
    workspace = [
        event("workspace_snapshot", 0, 0),
        event("segment_alloc", S - 4 * MIB, 4 * MIB),
        event("alloc", S - 4 * MIB, MIB),
    ]
    found = replayed([ALLOC, *workspace], [LIVE])
    assert values(found.reserved) == [2 * MIB] * 5
    assert values(found.requested) == [0, 1000, 1000, 1000, 1000]
    assert found.notes == ()
