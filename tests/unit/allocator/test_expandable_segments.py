"""Expandable segments that an allocator takes over: which ranges are parts of one, and where they may grow.

S: the first range; MiB everywhere.
Pages of the large pool have 20 MiB; of 80 MiB torch reserves 90: five pages.
"""

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import MIB, AllocatorSettings
from snapconv.allocator.blocks import Block, BlockPool, LiveBlock, Reservation, SegmentLayout
from snapconv.allocator.caching_allocator import ModelOutOfMemory
from snapconv.allocator.expandable_segments import best_candidate

S = 0x7E00_0000_0000
EXPANDABLE = AllocatorSettings.from_conf("expandable_segments:True")
FRAMES = [{"name": "forward", "filename": "model.py", "line": 7}]
OTHER_FRAMES = [{"name": "backward", "filename": "model.py", "line": 9}]


def used_range(first, size, *, stream=0, is_small=False):
    """A mapped range that one block fills."""
    live = LiveBlock(S + first * MIB, size * MIB, size * MIB)
    return SegmentLayout(live.addr, live.size, stream, (0, 0), is_small, True, (live,))


def adopted(*layouts, capacity=80):
    n_bytes = None if capacity is None else capacity * MIB
    model = RecordedAllocator(settings=EXPANDABLE, capacity=n_bytes)
    model.adopt_layout(layouts)
    return model


def placed(model, size, *, stream=0):
    """Where the next block of so many MiB goes."""
    return (model.malloc(size * MIB, stream=stream) - S) / MIB


def test_ranges_that_are_whole_pages_apart_are_one_segment_with_a_hole():
    model = adopted(used_range(0, 20), used_range(60, 20))
    assert placed(model, 40) == 20
    assert len(model.segments()) == 1


def test_ranges_that_are_no_whole_pages_apart_grow_each_for_itself():
    """Between them is one page and a half, of which the first may have the one."""
    assert placed(adopted(used_range(0, 20), used_range(50, 20)), 30) == 70
    assert placed(adopted(used_range(0, 20), used_range(50, 20)), 20) == 20


def test_ranges_of_two_streams_are_two_segments():
    for first, second in [(0, 7), (7, 0)]:
        layouts = [used_range(0, 20, stream=first), used_range(40, 20, stream=second)]
        assert placed(adopted(*layouts), 20, stream=first) == 20
        assert placed(adopted(*layouts), 20, stream=second) == 60


def test_a_segment_begins_with_its_first_range():
    model = adopted(used_range(20, 20), used_range(60, 20))
    for layout in (used_range(20, 20), used_range(60, 20)):
        model.free(layout.addr)
    model.empty_cache()
    assert model.segments() == []
    assert placed(model, 60) == 20  # the hole is one, from the first range on


def test_the_memory_of_the_device_bounds_also_the_first_range():
    model = RecordedAllocator(settings=EXPANDABLE, capacity=40 * MIB)
    with pytest.raises(ModelOutOfMemory):
        model.malloc(60 * MIB)
    assert model.malloc(40 * MIB)


def test_without_a_capacity_a_segment_may_have_a_tebibyte_in_whole_pages_and_no_more():
    whole = 52_429 * 20  # MiB: a page more than 2^20 has
    assert placed(adopted(used_range(0, 20), capacity=None), whole - 20) == 20
    model = adopted(used_range(0, 20), capacity=None)
    assert placed(model, whole) != 20  # all of a new segment
    with pytest.raises(ModelOutOfMemory):
        model.malloc(whole * MIB + 512)


def test_of_address_space_a_segment_has_an_eighth_more_than_the_device_in_whole_pages():
    model = RecordedAllocator(settings=EXPANDABLE, capacity=80 * MIB)
    large, small = model.malloc(3 * MIB), model.malloc(1)
    assert small - large == 100 * MIB


def test_a_range_up_to_the_next_segment_has_no_hole_behind_it():
    model = adopted(used_range(0, 20), used_range(20, 20, stream=7))
    large = model.pool((0, 0), is_small=False)
    assert (len(large.unmapped_blocks(0)), len(large.unmapped_blocks(7))) == (0, 1)


@pytest.mark.parametrize("second", [(20, 40), (40, 20)])
def test_a_segment_ends_where_the_next_one_begins_of_however_many_parts_that_is(second):
    """The next one has two blocks in its first range, and a second range."""
    used = LiveBlock(S + 20 * MIB, second[0] * MIB, second[0] * MIB)
    next_one = SegmentLayout(used.addr, 60 * MIB, 7, (0, 0), False, True, (used,))
    model = adopted(used_range(0, 20), next_one, used_range(100, 20, stream=7), capacity=160)
    large = model.pool((0, 0), is_small=False)
    assert large.unmapped_blocks(0) == []
    assert [(hole.addr - S) // MIB for hole in large.unmapped_blocks(7)] == [80, 120]


def test_ranges_that_just_fit_into_what_is_reserved_are_one_segment():
    """Of 80 MiB five pages are reserved: the second range is the last of them."""
    large = adopted(used_range(0, 20), used_range(80, 20)).pool((0, 0), is_small=False)
    assert [((hole.addr - S) // MIB, hole.size // MIB) for hole in large.unmapped_blocks(0)] == [
        (20, 60)
    ]
    large = adopted(used_range(0, 20), used_range(100, 20)).pool((0, 0), is_small=False)
    assert [((hole.addr - S) // MIB, hole.size // MIB) for hole in large.unmapped_blocks(0)] == [
        (20, 80),
        (120, 80),
    ]


def test_how_far_a_segment_reaches_counts_from_its_first_range():
    """Of 80 MiB five pages are reserved: the third range is behind them, if not far from the second."""
    model = adopted(used_range(0, 20), used_range(60, 20), used_range(120, 20))
    holes = model.pool((0, 0), is_small=False).unmapped_blocks(0)
    assert [((hole.addr - S) // MIB, hole.size // MIB) for hole in holes] == [
        (20, 40),
        (80, 20),
        (140, 80),
    ]


def test_a_range_that_is_larger_than_what_is_reserved_has_no_hole_behind_it():
    large = adopted(used_range(20, 60), capacity=20).pool((0, 0), is_small=False)
    assert large.unmapped_blocks(0) == []


def test_all_pages_that_a_block_lacks_are_mapped_at_once():
    # try_allocate_expandable_block: map_block(next, remaining size), which rounds up to pages.
    model = RecordedAllocator(settings=EXPANDABLE)
    first = model.malloc(3 * MIB)
    assert model.malloc(60 * MIB) == first + 3 * MIB
    mapped = [
        ((e.addr - first) // MIB, e.size // MIB) for e in model.history if e.action == "segment_map"
    ]
    assert mapped == [(0, 20), (20, 60)]


@pytest.mark.parametrize(
    ("blocks", "chosen"),
    [
        ([(2, 30), (3, 20), (4, 10)], 4),  # each may grow less than the one before
        (
            [(2, 30), (3, 29), (4, 10)],
            2,
        ),  # torch compares with the next one only, which may grow as much
        ([(2, 30), (3, 40), (4, 10)], 2),
        ([(2, 30), (3, 0)], 3),
        ([(2, 1), (3, 0)], 2),
        ([(2, 30)], 2),
        ([(1, 0), (2, 9)], 2),  # too small for the request
    ],
)
def test_of_expandable_blocks_the_search_goes_on_while_the_next_may_grow_less(blocks, chosen):
    """Free blocks of (MiB, MiB of the hole behind it), the smallest first; 2 MiB are wanted."""
    pool = BlockPool((0, 0), is_small=False)
    reservation = Reservation(S, 1 << 40, 20 * MIB)
    for number, (size, hole) in enumerate(blocks):
        block = Block(S + number * 100 * MIB, size * MIB, 0, pool, reservation)
        if hole:
            behind = Block(
                block.addr + block.size, hole * MIB, 0, pool, reservation, is_mapped=False
            )
            behind.link(block, None)
        pool.insert(block)
    assert best_candidate(pool, 0, 2 * MIB, may_be_expandable=True).size == chosen * MIB


@pytest.mark.parametrize(
    ("kinds", "chosen"), [("eeo", 4), ("oeo", 2), ("eee", None), ("eoe", 3), ("ooo", 2)]
)
def test_without_expandable_segments_the_free_blocks_of_earlier_ones_are_passed_over(kinds, chosen):
    """Free blocks of 2, 3 and 4 MiB, expandable or ordinary; 2 MiB are wanted."""
    pool = BlockPool((0, 0), is_small=False)
    reservation = Reservation(S, 1 << 40, 20 * MIB)
    for size, kind in enumerate(kinds, 2):
        pool.insert(
            Block(S + size * 100 * MIB, size * MIB, 0, pool, reservation if kind == "e" else None)
        )
    found = best_candidate(pool, 0, 2 * MIB, may_be_expandable=False)
    assert (found and found.size // MIB) == chosen


def test_what_is_behind_a_used_block_does_not_count_for_a_run_of_free_ones():
    """The hole between has one page, the one at the end has more: two pages go to the end."""
    assert placed(adopted(used_range(0, 20), used_range(40, 20), capacity=160), 40) == 60


def test_only_what_is_not_mapped_lets_a_free_block_grow():
    """Both blocks stand before used ones: the first is the smaller, whatever is behind it."""
    model = RecordedAllocator(settings=EXPANDABLE)
    first, _, second, _ = (model.malloc(size * MIB) for size in (12, 100, 14, 3))
    model.free(first)
    model.free(second)
    assert model.malloc(2 * MIB) == first


def test_a_segment_keeps_the_stack_of_its_first_page():
    # map_block sets context_when_segment_allocated where there is none and nothing is before it.
    model = RecordedAllocator(settings=EXPANDABLE)
    model.free(model.malloc(20 * MIB, frames=FRAMES))
    model.malloc(40 * MIB, frames=OTHER_FRAMES)
    (raw,) = model.segments()
    assert (raw["total_size"], raw["frames"]) == (40 * MIB, FRAMES)


def test_of_live_blocks_that_are_taken_over_only_the_pending_ones_wait():
    waiting = LiveBlock(S + 20 * MIB, 20 * MIB, 20 * MIB, is_pending=True)
    model = adopted(
        used_range(0, 20),
        SegmentLayout(waiting.addr, waiting.size, 0, (0, 0), False, True, (waiting,)),
    )
    assert (model.allocated_bytes, model.active_bytes) == (20 * MIB, 40 * MIB)
    model.finish_stream(0)
    model.free(model.malloc(512))
    assert model.active_bytes == 40 * MIB  # until ``complete``, whatever stream ends
    model.process_events()
    assert (model.allocated_bytes, model.active_bytes) == (20 * MIB, 20 * MIB)
