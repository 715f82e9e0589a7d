"""Block sizes read off the neighbours, walking back from the final segments. S is where they begin."""

import numpy as np
import pytest

from snapconv import columns
from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.replay.block_sizes import derive_block_sizes
from snapconv.replay.rounding import RoundingRules
from snapconv.snapshot.segment_table import BlockState, BlockTable, SegmentTable
from tests.property.histories import run, seeded_program
from tests.tables import int64, table, trace

KIB, MIB = 1 << 10, 1 << 20
S = 0x7F0000000000


def derive(*events, segments, live=(), is_expandable=False, **settings):
    """Derive sizes from segments of (address, bytes) and the addresses of live blocks at the dump.

    ``is_expandable`` is one for all segments, or a list of them.
    """
    addrs, totals = zip(*segments, strict=True) if segments else ((), ())
    segment_table = table(
        SegmentTable, len(segments), addr=addrs, total_bytes=totals, is_expandable=is_expandable
    )
    segment_id = np.searchsorted(int64(*addrs), int64(*live), side="right") - 1
    block_table = table(
        BlockTable, len(live), segment_id=segment_id, addr=live, state=BlockState.ACTIVE
    )
    rules = RoundingRules(AllocatorSettings(**settings))
    return derive_block_sizes(trace(*events), segment_table, block_table, rules)


def sizes(found):
    return found.event_bytes.tolist()


def freed(addr, size):
    return ("free_requested", addr, size), ("free_completed", addr, size)


@pytest.mark.parametrize(
    ("rest", "block"),
    [(0, 1024), (511, 1535), (512, 1024), (513, 1024), (4096, 1024)],
)
def test_a_small_block_keeps_a_remainder_of_less_than_512_bytes(rest, block):
    found = derive(("alloc", S, 1000), segments=[(S, 2 * MIB)], live=[S, S + 1024 + rest])
    assert sizes(found) == [block]
    assert found.n_conflicts == 0


@pytest.mark.parametrize(
    ("rest", "block"),
    [(0, 3 * MIB), (512, 3 * MIB + 512), (MIB, 4 * MIB), (MIB + 1, 3 * MIB), (9 * MIB, 3 * MIB)],
)
def test_a_large_block_keeps_a_remainder_of_up_to_1_mib(rest, block):
    found = derive(("alloc", S, 3 * MIB), segments=[(S, 20 * MIB)], live=[S, S + 3 * MIB + rest])
    assert sizes(found) == [block]


def test_the_end_of_the_segment_is_a_neighbour_too():
    assert sizes(derive(("alloc", S, 11 * MIB), segments=[(S, 12 * MIB)], live=[S])) == [12 * MIB]
    assert sizes(derive(("alloc", S, 10 * MIB), segments=[(S, 20 * MIB)], live=[S])) == [10 * MIB]


def test_neighbours_count_as_they_were_when_the_block_was_allocated():
    events = [
        ("alloc", S, 3 * MIB),
        ("alloc", S + 3 * MIB, 2 * MIB),
        *freed(S, 3 * MIB),
        ("alloc", S, 5 * MIB // 2),
    ]
    found = derive(*events, segments=[(S, 20 * MIB)], live=[S, S + 3 * MIB])
    # The second block in the hole of 3 MiB leaves half a MiB: not split off.
    assert sizes(found) == [3 * MIB, 2 * MIB, 0, 0, 3 * MIB]
    assert found.n_conflicts == 0


def test_a_block_is_in_the_way_until_its_free_completes():
    a, b = S, S + 2 * MIB
    events = [
        ("free_requested", b, 2 * MIB),
        ("alloc", a, 3 * MIB // 2),
        ("free_completed", b, 2 * MIB),
    ]
    assert sizes(derive(*events, segments=[(S, 20 * MIB)], live=[a])) == [0, 2 * MIB, 0]


def test_without_completions_the_requests_free():
    events = [("alloc", S, 1024), ("free_requested", S, 1024), ("alloc", S, 512)]
    assert sizes(derive(*events, segments=[(S, 1024)], live=[S])) == [1024, 0, 512]


def test_a_merged_free_frees():
    events = [
        ("alloc", S, 1024),
        ("free", S, 1024),
        ("alloc", S, 512),
        ("alloc", S + 512, 512),
        *freed(S, 512),
    ]
    found = derive(*events, segments=[(S, 1024)], live=[S + 512])
    assert sizes(found) == [1024, 0, 512, 512, 0, 0]


def test_segments_that_are_returned_at_the_dump_come_back_on_the_way():
    events = [
        *[("segment_alloc", S, 12 * MIB), ("alloc", S, 11 * MIB), *freed(S, 11 * MIB)],
        *[
            ("segment_free", S, 12 * MIB),
            ("segment_alloc", S, 20 * MIB),
            ("alloc", S, 11 * MIB - 512),
        ],
    ]
    found = derive(*events, segments=[(S, 20 * MIB)], live=[S])
    assert sizes(found) == [0, 12 * MIB, 0, 0, 0, 0, 11 * MIB - 512]
    assert found.n_conflicts == 0


def test_among_thousands_of_blocks_the_neighbour_is_the_next_one():
    """Blocks 1 KiB apart, each with a gap of 512 bytes that is half filled and not split off."""
    addrs = [S + 1024 * i for i in range(1500)]
    events = [("alloc", addr, 700) for addr in addrs]
    found = derive(*events, segments=[(S, 2 * MIB)], live=addrs)
    assert set(sizes(found)) == {1024}
    assert found.n_conflicts == 0


def test_among_thousands_of_blocks_the_space_of_a_freed_one_ends_at_the_next():
    addrs = [S + 1024 * i for i in range(1500)]
    events = [("free", addr + 512, 512) for addr in addrs[:-1]]
    found = derive(*events, segments=[(S, 2 * MIB)], live=addrs)
    assert found.least_space == {addr + 512: 512 for addr in addrs[:-1]}
    assert found.n_conflicts == 0


def test_a_range_that_was_joined_to_its_left_neighbour_leaves_with_it():
    """The segment before stays, and what is between the two is in neither."""
    left = S + 40 * MIB
    events = [
        *[("free", S + 30 * MIB, 512), ("free", left + 5 * MIB, 512), ("free", S + 10 * MIB, 512)],
        *[("segment_map", left, 40 * MIB), ("segment_unmap", left + 20 * MIB, 20 * MIB)],
    ]
    found = derive(*events, segments=[(S, 20 * MIB), (left, 20 * MIB)], is_expandable=True)
    assert (found.n_conflicts, found.least_space) == (2, {S + 10 * MIB: 10 * MIB})


def test_adjacent_ordinary_segments_stay_apart():
    events = [("alloc", S, 11 * MIB), *freed(S, 11 * MIB), ("segment_free", S, 12 * MIB)]
    found = derive(*events, segments=[(S + 12 * MIB, 20 * MIB)], live=[])
    assert sizes(found) == [12 * MIB, 0, 0, 0]
    assert found.n_conflicts == 0


def test_from_max_split_size_on_a_block_has_all_of_the_hole():
    found = derive(
        ("alloc", S, 32 * MIB), segments=[(S, 48 * MIB)], live=[S], max_split_size_bytes=32 * MIB
    )
    assert sizes(found) == [48 * MIB]


def test_with_expandable_segments_no_block_keeps_512_bytes():
    events = [("alloc", S, 3 * MIB)]
    found = derive(
        *events, segments=[(S, 4 * MIB)], live=[S], is_expandable=True, expandable_segments=True
    )
    assert sizes(found) == [3 * MIB]


def test_ranges_that_were_mapped_one_by_one_are_taken_away_one_by_one():
    events = [
        *[("segment_map", S, 20 * MIB), ("alloc", S, 19 * MIB + MIB // 2)],
        *[("segment_map", S + 20 * MIB, 20 * MIB), ("alloc", S + 20 * MIB, 5 * MIB)],
    ]
    # Without expandable_segments in the settings, remainders of up to 1 MiB show where a range
    # ended.
    found = derive(*events, segments=[(S, 40 * MIB)], live=[S, S + 20 * MIB], is_expandable=True)
    assert sizes(found) == [0, 20 * MIB, 0, 5 * MIB]
    assert found.n_conflicts == 0


def test_an_unmapped_middle_joins_both_its_neighbours_again():
    events = [
        ("alloc", S, 59 * MIB + MIB // 2),
        *freed(S, 60 * MIB),
        ("segment_unmap", S + 20 * MIB, 20 * MIB),
    ]
    segments = [(S, 20 * MIB), (S + 40 * MIB, 20 * MIB)]
    found = derive(*events, segments=segments, is_expandable=True)
    assert sizes(found) == [60 * MIB, 0, 0, 0]
    assert found.n_conflicts == 0


@pytest.mark.parametrize(
    ("expandable_side", "size"),
    [("left", 20 * MIB), ("right", 19 * MIB + MIB // 2), ("neither", 20 * MIB)],
)
def test_an_unmapped_range_joins_no_neighbour_that_is_not_expandable(expandable_side, size):
    """A block fills 20 MiB but for half a MiB, which it keeps unless the range goes on at the right."""
    middle = S + 20 * MIB
    events = [
        *[("alloc", middle, 19 * MIB + MIB // 2), *freed(middle, 19 * MIB + MIB // 2)],
        ("segment_unmap", middle, 20 * MIB),
    ]
    segments = [(S, 20 * MIB), (S + 40 * MIB, 20 * MIB)]
    expandable = [expandable_side == "left", expandable_side == "right"]
    found = derive(*events, segments=segments, is_expandable=expandable)
    assert sizes(found)[0] == size
    assert found.n_conflicts == 0


def test_a_middle_that_was_mapped_last_leaves_two_ranges():
    left, right = S, S + 40 * MIB
    events = [
        *[("alloc", left, 19 * MIB + MIB // 2), ("alloc", right, 19 * MIB + MIB // 2)],
        ("segment_map", S + 20 * MIB, 20 * MIB),
    ]
    found = derive(*events, segments=[(S, 60 * MIB)], live=[left, right], is_expandable=True)
    assert sizes(found) == [20 * MIB, 20 * MIB, 0]
    assert found.n_conflicts == 0


def test_the_space_of_a_preexisting_block_is_the_least_that_it_ever_had():
    older, other = S, S + 4 * MIB
    events = [("alloc", other, 2 * MIB), *freed(other, 2 * MIB), *freed(older, 3 * MIB)]
    found = derive(*events, segments=[(S, 20 * MIB)])
    assert found.least_space == {older: 4 * MIB}


def test_another_preexisting_block_limits_the_space():
    events = [*freed(S + 4 * MIB, 3 * MIB), *freed(S, 3 * MIB)]
    found = derive(*events, segments=[(S, 20 * MIB)])
    assert found.least_space == {S: 4 * MIB, S + 4 * MIB: 16 * MIB}


def test_a_block_that_stays_until_the_dump_has_no_space_of_its_own():
    found = derive(*freed(S + 512, 512), segments=[(S, 2 * MIB)], live=[S])
    assert found.least_space == {S + 512: 2 * MIB - 512}


def test_a_traced_block_has_no_space_of_its_own():
    found = derive(("alloc", S, 512), *freed(S, 512), segments=[(S, 2 * MIB)])
    assert found.least_space == {}


def test_a_preexisting_block_and_a_traced_one_may_have_one_address():
    found = derive(*freed(S, 512), ("alloc", S, 512), *freed(S, 512), segments=[(S, 2 * MIB)])
    assert found.least_space == {S: 2 * MIB}


CONFLICTS = {
    "an alloc outside every segment": [("alloc", S - 512, 512)],
    "an alloc behind every segment": [("alloc", S + 2 * MIB, 512)],
    "an alloc of what is not live": [("alloc", S + 512, 512)],
    "a free outside every segment": freed(S - 512, 512),
    "a free of what is still live": freed(S, 512),
    "a range taken away that is not there": [("segment_map", S + 4 * MIB, 2 * MIB)],
    "a segment taken away that has a live block": [("segment_alloc", S, 2 * MIB)],
    "a range given back that is there": [("segment_unmap", S + MIB, 2 * MIB)],
    "a range given back that ends where one is": [("segment_unmap", S - MIB, 2 * MIB)],
}


@pytest.mark.parametrize("events", CONFLICTS.values(), ids=CONFLICTS)
def test_what_contradicts_the_segments_is_counted(events):
    found = derive(*events, segments=[(S, 2 * MIB)], live=[S])
    assert found.n_conflicts == 1


def test_a_block_that_overlaps_its_neighbour_has_its_rounded_request():
    found = derive(("alloc", S, 1000), segments=[(S, 2 * MIB)], live=[S, S + 512])
    assert sizes(found) == [1024]
    assert found.n_conflicts == 1


def test_no_segments_leave_the_rounded_requests():
    found = derive(("alloc", S, 1000), *freed(S, 1000), segments=[])
    assert sizes(found) == [1024, 0, 0]
    assert found.n_conflicts == 2


def test_events_that_move_no_memory_are_passed_over():
    others = [
        (action, S, 512)
        for action in ("oom", "snapshot", "annotate", "empty_cache", "free_requested")
    ]
    found = derive(*others, ("free_completed", S + 512, 512), segments=[(S, 2 * MIB)], live=[S])
    assert sizes(found) == [0] * 6
    assert found.n_conflicts == 0


def test_no_events_give_no_sizes():
    assert sizes(derive(segments=[(S, 2 * MIB)], live=[S])) == []


@pytest.mark.parametrize("n_events", [1, 7, 64])
def test_sizes_do_not_depend_on_the_chunks_of_the_walk(monkeypatch, n_events):
    history = run(seeded_program(1))
    events = [(e.action, e.addr, e.size) for e in history.complete]
    raw = history.snapshot["segments"]
    live = [b["address"] for s in raw for b in s["blocks"] if b["state"] != "inactive"]
    segments = [(segment["address"], segment["total_size"]) for segment in raw]
    whole = derive(*events, segments=segments, live=live)
    monkeypatch.setattr(columns, "_CHUNK_ROWS", n_events)
    parts = derive(*events, segments=segments, live=live)
    assert (sizes(parts), parts.least_space) == (sizes(whole), whole.least_space)
    assert len(events) > 64
