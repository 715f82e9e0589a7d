"""Expandable segments that an allocator takes over: which ranges are parts of one, and where they may grow.

S: the first range; MiB everywhere.
Pages of the large pool have 20 MiB; of 80 MiB torch reserves 90: five pages.
"""

import pytest

from snapconv.allocator.allocator_settings import MIB, AllocatorSettings
from snapconv.allocator.allocator_state import LiveBlock, SegmentLayout
from snapconv.allocator.caching_allocator import CachingAllocator, OutOfMemory

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
    model = CachingAllocator(settings=EXPANDABLE, capacity=n_bytes)
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
    assert model.releasable_ranges() == []
    assert model.segments() == []
    assert placed(model, 60) == 20  # the hole is one, from the first range on


def test_the_memory_of_the_device_bounds_also_the_first_range():
    model = CachingAllocator(settings=EXPANDABLE, capacity=40 * MIB)
    with pytest.raises(OutOfMemory):
        model.malloc(60 * MIB)
    assert model.malloc(40 * MIB)


def test_without_a_capacity_a_segment_may_have_a_tebibyte_in_whole_pages_and_no_more():
    whole = 52_429 * 20  # MiB: a page more than 2^20 has
    assert placed(adopted(used_range(0, 20), capacity=None), whole - 20) == 20
    model = adopted(used_range(0, 20), capacity=None)
    assert placed(model, whole) != 20  # all of a new segment
    with pytest.raises(OutOfMemory):
        model.malloc(whole * MIB + 512)


def test_of_address_space_a_segment_has_an_eighth_more_than_the_device_in_whole_pages():
    model = CachingAllocator(settings=EXPANDABLE, capacity=80 * MIB)
    large, small = model.malloc(3 * MIB), model.malloc(1)
    assert small - large == 100 * MIB


def test_a_range_up_to_the_next_segment_has_no_hole_behind_it():
    model = adopted(used_range(0, 20), used_range(20, 20, stream=7))
    large = model.pool((0, 0), is_small=False)
    assert (len(large.unmapped_blocks(0)), len(large.unmapped_blocks(7))) == (0, 1)


def test_only_what_is_not_mapped_lets_a_free_block_grow():
    """Both blocks stand before used ones: the first is the smaller, whatever is behind it."""
    model = CachingAllocator(settings=EXPANDABLE)
    first, _, second, _ = (model.malloc(size * MIB) for size in (12, 100, 14, 3))
    model.free(first)
    model.free(second)
    assert model.malloc(2 * MIB) == first


def test_a_segment_keeps_the_stack_of_its_first_page():
    # map_block sets context_when_segment_allocated where there is none and nothing is before it.
    model = CachingAllocator(settings=EXPANDABLE)
    model.free(model.malloc(20 * MIB, frames=FRAMES))
    model.malloc(40 * MIB, frames=OTHER_FRAMES)
    (raw,) = model.segments()
    assert (raw["total_size"], raw["frames"]) == (40 * MIB, FRAMES)


def test_of_live_blocks_that_are_taken_over_only_the_pending_ones_wait():
    waiting = LiveBlock(S + 20 * MIB, 20 * MIB, 20 * MIB, is_pending=True)
    model = adopted(
        used_range(0, 20), SegmentLayout(waiting.addr, waiting.size, 0, (0, 0), False, True, (waiting,))
    )
    assert (model.allocated_bytes, model.active_bytes) == (20 * MIB, 40 * MIB)
    model.process_events()
    assert (model.allocated_bytes, model.active_bytes) == (20 * MIB, 20 * MIB)
