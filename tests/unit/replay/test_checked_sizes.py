"""Derived sizes against those of the live blocks; every number of these snapshots can be followed by hand."""

import pickle

import pytest

from snapconv.allocator.allocator_settings import NPU_PADDING_BYTES
from snapconv.replay.device_replay import replay
from snapconv.snapshot.load import load_snapshot
from tests.builders import ADDR, TraceBuilder

KIB, MIB = 1 << 10, 1 << 20


@pytest.fixture
def replayed(tmp_path):
    def replayed(raw, device=0):
        path = tmp_path / "snapshot.pickle"
        path.write_bytes(pickle.dumps(raw))
        snapshot = load_snapshot(path)
        return replay(snapshot, snapshot.devices[device])

    return replayed


def counts(found):
    return found.size_check.n_checked, found.size_check.n_different


def notes(found):
    return {note.slug: note.message for note in found.notes}


def test_blocks_that_were_allocated_in_the_trace_and_are_live_at_the_dump_are_checked(replayed):
    builder = TraceBuilder().segment(traced=False).alloc(1000, traced=False)
    builder.alloc(600).alloc(5000).alloc(512).free().free(completed=False)
    found = replayed(builder.snapshot())
    # 600 bytes, and 5000 that wait for a stream; not the pre-existing block, nor the one that is
    # gone.
    assert counts(found) == (2, 0)
    assert set(notes(found)) == {"pending-free"}


def test_a_file_without_events_has_nothing_to_check(replayed):
    builder = TraceBuilder().segment(traced=False).alloc(512, traced=False)
    assert counts(replayed(builder.snapshot())) == (0, 0)


def with_block_bytes(raw, *sizes):
    """The first blocks of the first segment have these sizes, and the last one what is left."""
    (segment,) = raw["segments"]
    addr, end = segment["address"], segment["address"] + segment["total_size"]
    for block, size in zip(segment["blocks"], sizes, strict=False):
        block.update(address=addr, size=size)
        addr += size
    segment["blocks"][-1].update(address=addr, size=end - addr)
    return raw


def test_a_size_that_no_rule_gives_is_counted_and_the_block_has_that_of_the_dump(replayed):
    raw = TraceBuilder().segment(20 * MIB).alloc(3 * MIB).snapshot()
    found = replayed(with_block_bytes(raw, 5 * MIB))
    assert counts(found) == (1, 1)
    assert set(notes(found)) == {"block-size-mismatch"}
    assert notes(found)["block-size-mismatch"].startswith("1 of 1 traced blocks")
    assert found.active.end == found.allocated.peak == 5 * MIB


def a_block_before_a_gap_of(rest, *, block_bytes, **fields):
    """3 MiB are allocated before a gap, freed, and allocated again; in the dump the block has these bytes."""
    builder = TraceBuilder().segment(20 * MIB).alloc(3 * MIB + rest).alloc(4 * MIB)
    builder.free(ADDR).alloc(3 * MIB).free().alloc(3 * MIB)
    return with_block_bytes(builder.snapshot(**fields), block_bytes)


ORDINARY, EXPANDABLE = {"expandable_segments": False}, {"expandable_segments": True}


@pytest.mark.parametrize(
    ("settings", "block_bytes", "kind"),
    [(ORDINARY, 3 * MIB, "expandable"), (EXPANDABLE, 3 * MIB + 512 * KIB, "ordinary")],
)
def test_the_split_rule_that_the_live_blocks_follow_counts_before_the_setting(
    replayed, settings, block_bytes, kind
):
    raw = a_block_before_a_gap_of(512 * KIB, block_bytes=block_bytes, allocator_settings=settings)
    found = replayed(raw)
    assert counts(found) == (2, 0)
    assert found.size_check.n_different_by_settings == 1
    # The 3 MiB that were freed before have the size that those at the dump have.
    rows = found.allocations
    of_3_mib = rows.requested_bytes == 3 * MIB
    assert rows.block_bytes[of_3_mib].tolist() == [block_bytes] * 2
    assert set(notes(found)) == {"other-split-rule"}
    assert f"as in {kind} segments, against" in notes(found)["other-split-rule"]
    assert "1 of 2 would" in notes(found)["other-split-rule"]


@pytest.mark.parametrize(
    ("settings", "block_bytes"), [(EXPANDABLE, 3 * MIB), (ORDINARY, 3 * MIB + 512 * KIB)]
)
def test_a_setting_that_the_live_blocks_follow_gives_no_note(replayed, settings, block_bytes):
    raw = a_block_before_a_gap_of(512 * KIB, block_bytes=block_bytes, allocator_settings=settings)
    found = replayed(raw)
    assert counts(found) == (2, 0)
    assert found.size_check.n_different_by_settings == 0
    assert notes(found) == {}


def test_padding_that_only_large_blocks_show_is_found(replayed):
    # Gone are the small blocks that would show it; a request of 3 MiB, padded, has 512 bytes more.
    builder = TraceBuilder().segment(20 * MIB).alloc(3 * MIB).alloc(3 * MIB + 512)
    raw = with_block_bytes(builder.snapshot(), 3 * MIB + 512, 3 * MIB + 1024)
    raw["segments"][0]["blocks"][1]["requested_size"] = 3 * MIB + 512
    raw["device_traces"][0][-1]["addr"] = ADDR + 3 * MIB + 512
    found = replayed(raw)
    assert counts(found) == (2, 0)
    assert found.rules.settings.padding_bytes == NPU_PADDING_BYTES
    assert notes(found) == {}


def test_the_setting_counts_where_the_other_rule_fits_no_better(replayed):
    # 3 MiB and 256 KiB: neither the request nor the gap.
    raw = a_block_before_a_gap_of(
        512 * KIB, block_bytes=3 * MIB + 256 * KIB, allocator_settings=EXPANDABLE
    )
    found = replayed(raw)
    assert counts(found) == (2, 1)
    assert found.rules.settings.expandable_segments
    assert set(notes(found)) == {"block-size-mismatch"}


def a_gap_twice(device, start, action, **fields):
    """3 MiB are allocated before a gap of 3.5 MiB and freed, so that nothing shows what they had."""
    other = TraceBuilder(device).segment(20 * MIB, traced=False, address=start, **fields)
    other.event(action, addr=start, size=20 * MIB).alloc(3 * MIB + 512 * KIB).alloc(4 * MIB)
    return other.free(start).alloc(3 * MIB).free()


def sizes_of_3_mib(found):
    rows = found.allocations
    return rows.block_bytes[rows.requested_bytes == 3 * MIB].tolist()


@pytest.mark.parametrize("expandable", [0, 1])
def test_a_device_with_ordinary_segments_splits_as_in_these_beside_one_with_expandable_ones(
    replayed, expandable
):
    # As torch_npu, which writes no settings: what segments show holds for their own device.
    first, second = (
        a_gap_twice(
            device,
            ADDR,
            "segment_map" if device == expandable else "segment_alloc",
            is_expandable=device == expandable,
        )
        for device in (0, 1)
    )
    raw = first.snapshot(second)
    sizes = [sizes_of_3_mib(replayed(raw, device)) for device in (0, 1)]
    assert sizes[expandable] == [3 * MIB]
    assert sizes[1 - expandable] == [3 * MIB + 512 * KIB]
    assert notes(replayed(raw, 1)) == {}


@pytest.mark.parametrize("settings", [ORDINARY, EXPANDABLE])
def test_where_live_blocks_contradict_the_setting_each_segment_has_the_rule_of_its_kind(
    replayed, settings
):
    far = ADDR + (1 << 40)
    ordinary, grown = (
        a_gap_twice(0, ADDR, "segment_alloc"),
        a_gap_twice(0, far, "segment_map", is_expandable=True),
    )
    for builder in (ordinary, grown):
        builder.alloc(3 * MIB)
    (one,), (other,) = ordinary.raw_segments(), grown.raw_segments()
    raw = ordinary.snapshot(allocator_settings=settings)
    raw["segments"] = [
        with_block_bytes({"segments": [one]}, 3 * MIB + 512 * KIB)["segments"][0],
        other,
    ]
    raw["device_traces"] = [ordinary.events + grown.events]
    found = replayed(raw)
    assert counts(found) == (4, 0)
    assert sorted(sizes_of_3_mib(found)) == [3 * MIB] * 2 + [3 * MIB + 512 * KIB] * 2
    assert "as in the kind of segment that each is in, against" in notes(found)["other-split-rule"]


def test_blocks_of_pinned_memory_are_checked_too(replayed):
    builder = TraceBuilder(device=-1).segment().alloc(2 * MIB)
    raw = {"segments": [], "device_traces": [], **builder.as_host()}
    assert counts(replayed(raw)) == (1, 0)
    assert notes(replayed(raw)) == {}
    raw["host_traces"][-1]["size"] = MIB
    assert counts(replayed(raw)) == (1, 1)
    assert set(notes(replayed(raw))) == {"block-size-mismatch"}
