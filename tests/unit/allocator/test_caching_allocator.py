"""The rules of the caching allocator, each with numbers that follow from torch's source.

Sources: get_pool, should_split, get_allocation_size, get_free_block, free_block,
release_cached_blocks and the expandable segments in c10/cuda/CUDACachingAllocator.cpp.
"""

import pytest

from scripts.fixtures.recorded_allocator import RecordedAllocator
from snapconv.allocator.allocator_settings import KIB, MIB, AllocatorSettings
from snapconv.allocator.caching_allocator import ModelOutOfMemory
from snapconv.errors import RecorderError

FRAMES = [{"name": "forward", "filename": "model.py", "line": 7}]
OTHER_FRAMES = [{"name": "clear", "filename": "model.py", "line": 9}]


def allocator(conf="", **options):
    return RecordedAllocator(settings=AllocatorSettings.from_conf(conf), **options)


def actions(model):
    return [recorded.action for recorded in model.history]


def last(model, action):
    return next(recorded for recorded in reversed(model.history) if recorded.action == action)


def block_bytes(model, n_bytes, **options):
    model.malloc(n_bytes, **options)
    return last(model, "alloc").block_bytes


def states(model):
    """Block sizes and states by segment."""
    return [[(b["size"], b["state"]) for b in raw["blocks"]] for raw in model.segments()]


@pytest.mark.parametrize(
    ("n_bytes", "segment_bytes", "segment_type"),
    [
        (1, 2 * MIB, "small"),
        (MIB, 2 * MIB, "small"),
        (MIB + 1, 20 * MIB, "large"),
        (10 * MIB - 512, 20 * MIB, "large"),
        (10 * MIB - 511, 10 * MIB, "large"),  # rounds to 10 MiB, which gets its own segment
        (10 * MIB, 10 * MIB, "large"),
        (10 * MIB + 1, 12 * MIB, "large"),
    ],
)
def test_a_new_segment_is_sized_by_the_rounded_request(n_bytes, segment_bytes, segment_type):
    model = allocator()
    model.malloc(n_bytes)
    (raw,) = model.segments()
    assert (raw["total_size"], raw["segment_type"]) == (segment_bytes, segment_type)


def test_large_segment_size_sets_the_shared_segments():
    model = allocator("large_segment_size_mb:40")
    model.malloc(3 * MIB)
    assert model.reserved_bytes == 40 * MIB


def test_a_small_block_is_split_to_the_last_512_bytes():
    model = allocator()
    assert block_bytes(model, 2 * MIB - MIB - 512) == MIB - 512
    assert block_bytes(model, MIB) == MIB
    assert block_bytes(model, 1) == 512
    assert model.reserved_bytes == 2 * MIB


def test_a_large_block_keeps_a_remainder_of_up_to_1_mib():
    assert block_bytes(allocator(), 11 * MIB) == 12 * MIB
    assert block_bytes(allocator(), 11 * MIB - 512) == 11 * MIB - 512


def test_the_smallest_sufficient_block_is_taken_and_of_equal_ones_the_lowest():
    model = allocator()
    addrs = [model.malloc(n * MIB) for n in (30, 12, 20, 12)]
    for addr in reversed(addrs):
        model.free(addr)
    assert model.malloc(11 * MIB) == addrs[1]
    assert model.malloc(11 * MIB) == addrs[3]
    assert model.malloc(11 * MIB) == addrs[2]


def test_streams_and_pools_share_nothing():
    model = allocator()
    model.free(model.malloc(KIB))
    assert model.malloc(KIB, stream=7) != model.malloc(KIB, pool=(1, 0))
    assert [raw["stream"] for raw in model.segments()] == [0, 7, 0]
    assert [raw["segment_pool_id"] for raw in model.segments()] == [(0, 0), (0, 0), (1, 0)]


def test_a_freed_block_merges_with_free_neighbours_only():
    model = allocator()
    first, second, third = (model.malloc(KIB) for _ in range(3))
    model.free(first)
    model.free(third)
    rest = 2 * MIB - 2 * KIB
    assert states(model) == [[(KIB, "inactive"), (KIB, "active_allocated"), (rest, "inactive")]]
    model.free(second)
    assert states(model) == [[(2 * MIB, "inactive")]]


def test_a_free_block_still_shows_the_request_of_its_last_use():
    model = allocator()
    model.free(model.malloc(100))
    assert model.segments()[0]["blocks"][0]["requested_size"] == 100
    assert model.segments()[0]["requested_size"] == 0


def test_splitting_loses_the_stack_of_the_segment():
    # alloc_found_block hands out a new Block, without context_when_segment_allocated.
    model = allocator()
    model.malloc(12 * MIB, frames=FRAMES)
    model.malloc(3 * MIB, frames=FRAMES)
    assert [raw["frames"] for raw in model.segments()] == [FRAMES, []]


def test_merging_to_the_left_takes_over_the_lost_stack_of_the_segment():
    model = allocator()
    model.free(model.malloc(12 * MIB, frames=FRAMES))
    first, second = model.malloc(3 * MIB), model.malloc(9 * MIB)
    model.free(first)
    model.free(second)
    assert (states(model), model.segments()[0]["frames"]) == ([[(12 * MIB, "inactive")]], [])


def test_a_free_event_without_a_stack_takes_that_of_the_allocation():
    model = allocator()
    model.free(model.malloc(1, frames=FRAMES))
    assert all(entry["frames"] is FRAMES for entry in model.trace())


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
@pytest.mark.parametrize(
    ("given", "recorded"), [(None, FRAMES), ([], []), (OTHER_FRAMES, OTHER_FRAMES)]
)
def test_memory_that_is_given_back_without_a_stack_has_that_of_its_segment(conf, given, recorded):
    # release_block and unmap_block: context ? context : block->context_when_segment_allocated
    model = allocator(conf)
    model.free(model.malloc(20 * MIB, frames=FRAMES))
    model.empty_cache(frames=given)
    assert model.reserved_bytes == 0
    assert model.history[-1].frames == recorded


def test_an_oversize_block_is_neither_split_nor_given_to_a_smaller_request():
    model = allocator("max_split_size_mb:100")
    big = model.malloc(200 * MIB)
    model.free(big)
    model.malloc(99 * MIB)
    assert model.reserved_bytes == 300 * MIB  # 99 MiB rounds up to a segment of 100
    assert block_bytes(model, 180 * MIB + 512) == 200 * MIB
    assert last(model, "alloc").addr == big


@pytest.mark.parametrize(("size", "reserved"), [(181, 200), (180, 380), (150, 350), (100, 300)])
def test_an_oversize_block_serves_requests_that_are_less_than_20_mib_smaller(size, reserved):
    model = allocator("max_split_size_mb:100")
    model.free(model.malloc(200 * MIB))
    model.malloc(size * MIB)
    assert model.reserved_bytes == reserved * MIB


def test_an_oversize_request_leaves_a_block_that_is_20_mib_larger_alone():
    model = allocator("max_split_size_mb:100")
    model.free(model.malloc(200 * MIB))
    assert block_bytes(model, 180 * MIB) == 180 * MIB
    assert model.reserved_bytes == 380 * MIB
    model = allocator("max_split_size_mb:100,max_non_split_rounding_mb:21")
    model.free(model.malloc(200 * MIB))
    assert block_bytes(model, 180 * MIB) == 200 * MIB


def test_zero_bytes_leave_no_trace():
    model = allocator()
    assert model.malloc(0) == 0
    model.free(0)
    assert model.trace() == []


def test_counters_fall_at_the_event_that_torch_lets_them_fall_at():
    model = allocator()
    addr = model.malloc(100)
    model.record_stream(addr, 7)
    model.free(addr)
    assert (model.requested_bytes, model.allocated_bytes, model.active_bytes) == (100, 0, 512)
    assert model.segments()[0]["blocks"][0]["state"] == "active_pending_free"
    model.process_events()
    assert (model.requested_bytes, model.allocated_bytes, model.active_bytes) == (0, 0, 0)
    assert (model.max_allocated_bytes, model.reserved_bytes) == (512, 2 * MIB)


def test_a_pending_free_completes_in_the_malloc_after_its_stream_is_done():
    model = allocator()
    addr = model.malloc(KIB)
    model.record_stream(addr, 7)
    model.free(addr)
    assert model.malloc(KIB) != addr
    model.finish_stream(7)
    assert model.malloc(KIB) == addr
    assert actions(model)[-2:] == ["free_completed", "alloc"]


def test_a_block_that_is_given_back_later_is_active_until_all_pending_frees_are_complete():
    model = allocator()
    small = model.pool((0, 0), is_small=True)
    first, second = (model.take(small, 0, KIB, KIB) for _ in range(2))
    addrs = [first.addr, second.addr]
    model.give_back_later(first)
    model.give_back_later(second)
    assert (model.allocated_bytes, model.active_bytes) == (0, 2 * KIB)
    model.complete(first)
    assert (model.active_bytes, first.is_active) == (KIB, False)
    model.process_events()
    assert model.active_bytes == 0
    freed = [(r.action, r.addr) for r in model.history[-4:]]
    assert freed == [
        (action, addr) for action in ("free_requested", "free_completed") for addr in addrs
    ]


def test_use_on_the_own_stream_defers_nothing():
    model = allocator()
    addr = model.malloc(KIB, stream=3)
    model.record_stream(addr, 3)
    model.free(addr)
    assert actions(model)[-2:] == ["free_requested", "free_completed"]


def test_empty_cache_frees_unsplit_segments_large_ones_first():
    model = allocator()
    small, large, kept = model.malloc(1), model.malloc(12 * MIB), model.malloc(3 * MIB)
    model.free(small)
    model.free(large)
    model.empty_cache()
    freed = [(r.addr, r.size) for r in model.history if r.action == "segment_free"]
    assert freed == [(large, 12 * MIB), (small, 2 * MIB)]
    assert [raw["address"] for raw in model.segments()] == [kept]


def test_empty_cache_spares_a_private_pool_until_it_is_released():
    model = allocator()
    model.free(model.malloc(1, pool=(0, 1)))
    model.empty_cache()
    assert model.reserved_bytes == 2 * MIB
    model.release_pool((0, 1))
    model.empty_cache()
    assert model.reserved_bytes == 0


def test_out_of_memory_frees_the_cache_first_and_records_the_rounded_request():
    model = allocator(capacity=30 * MIB)
    model.free(model.malloc(12 * MIB))
    model.malloc(20 * MIB)
    assert actions(model)[-3:] == ["segment_free", "segment_alloc", "alloc"]
    with pytest.raises(ModelOutOfMemory) as caught:
        model.malloc(11 * MIB + 1)
    assert (caught.value.segment_bytes, caught.value.free_bytes) == (12 * MIB, 10 * MIB)
    entry = model.trace()[-1]
    assert (entry["action"], entry["size"], entry["device_free"]) == (
        "oom",
        11 * MIB + 512,
        10 * MIB,
    )
    assert "addr" not in entry


@pytest.mark.parametrize(
    ("n_bytes", "freed"),
    [
        (30 * MIB, [60 * MIB]),  # the smallest oversize block is enough
        (100 * MIB, [80 * MIB, 60 * MIB]),  # no single one is: the largest first, until the sum is
    ],
)
def test_with_max_split_size_only_as_many_oversize_blocks_as_needed_are_freed(n_bytes, freed):
    model = allocator("max_split_size_mb:50", capacity=160 * MIB)
    for addr in [model.malloc(size * MIB) for size in (60, 80, 12)]:
        model.free(addr)
    model.malloc(n_bytes)
    assert [r.size for r in model.history if r.action == "segment_free"] == freed


def test_an_oversize_block_of_just_the_bytes_that_are_wanted_is_enough_and_no_other_is_freed():
    model = allocator("max_split_size_mb:50", capacity=130 * MIB)
    for addr in [model.malloc(size * MIB) for size in (50, 12)]:
        model.free(addr)
    model.malloc(60 * MIB)
    model.malloc(30 * MIB)  # 8 MiB are left; 12 MiB of the cache would be of no use
    assert [r.size for r in model.history if r.action == "segment_free"] == [50 * MIB]


@pytest.mark.parametrize("conf", ["", "expandable_segments:True"])
def test_the_last_byte_of_the_device_can_be_had(conf):
    model = allocator(conf, capacity=40 * MIB)
    model.malloc(40 * MIB)
    with pytest.raises(ModelOutOfMemory):
        model.malloc(1)


def test_an_expandable_segment_grows_by_whole_pages_at_its_end():
    model = allocator("expandable_segments:True")
    first, second = model.malloc(3 * MIB), model.malloc(30 * MIB)
    assert second == first + 3 * MIB
    maps = [(r.addr - first, r.size) for r in model.history if r.action == "segment_map"]
    assert maps == [(0, 20 * MIB), (20 * MIB, 20 * MIB)]
    (raw,) = model.segments()
    assert (raw["is_expandable"], raw["total_size"]) == (True, 40 * MIB)


def test_an_expandable_segment_is_split_to_the_last_512_bytes():
    model = allocator("expandable_segments:True")
    assert block_bytes(model, 20 * MIB - 512) == 20 * MIB - 512
    assert [size for size, _ in states(model)[0]] == [20 * MIB - 512, 512]


def test_empty_cache_unmaps_the_whole_pages_inside_free_blocks():
    model = allocator("expandable_segments:True")
    first, second, third = (model.malloc(30 * MIB) for _ in range(3))
    model.free(second)
    model.empty_cache()
    unmapped = last(model, "segment_unmap")
    assert (unmapped.addr - first, unmapped.size) == (40 * MIB, 20 * MIB)
    assert [(raw["address"] - first, raw["total_size"]) for raw in model.segments()] == [
        (0, 40 * MIB),
        (60 * MIB, 40 * MIB),
    ]
    # The hole is filled before the end grows: the free 10 MiB before it and the page.
    assert model.malloc(30 * MIB) == second
    assert len(model.segments()) == 1
    assert third == first + 60 * MIB


def test_of_expandable_blocks_the_one_that_cannot_grow_is_preferred():
    model = allocator("expandable_segments:True")
    hole, _, tail = (model.malloc(n * MIB) for n in (12, 3, 5))
    model.free(hole)
    model.free(tail)  # merges into the end of the mapped range, which could grow
    assert model.malloc(2 * MIB) == hole


def test_an_expandable_segment_without_memory_gives_its_address_range_back():
    model = allocator("expandable_segments:True")
    addr = model.malloc(3 * MIB)
    model.free(addr)
    model.empty_cache()
    assert (model.segments(), model.reserved_bytes) == ([], 0)
    assert model.malloc(1) == addr  # in another pool, so not the old range


def test_a_snapshot_event_follows_the_snapshot_that_it_is_about():
    model = allocator(device=1)
    model.malloc(1)
    assert [len(trace) for trace in model.snapshot()["device_traces"]] == [0, 2]
    entry = model.trace()[-1]
    assert (entry["action"], entry["addr"], entry["size"]) == ("snapshot", 0, 512)


def test_only_an_allocated_block_can_be_freed():
    model = allocator()
    addr = model.malloc(1)
    model.free(addr)
    with pytest.raises(RecorderError, match="not the address of an allocated block"):
        model.free(addr)


def gc_model(limit):
    """Four large segments, of 30, 24, 32 and 40 MiB; the first was freed a search before the second."""
    model = allocator(
        "garbage_collection_threshold:0.4,per_process_memory_fraction:0.5", limit=limit
    )
    first, second = model.malloc(30 * MIB), model.malloc(24 * MIB)
    model.free(first)
    model.malloc(32 * MIB)
    model.free(second)
    model.malloc(40 * MIB)
    return model


def test_garbage_collection_releases_free_segments_of_average_age_and_more():
    # Above 0.4 * 200 MiB by 6 MiB when the last segment is wanted. Ages 2 and 1: the average is
    # 1.5.
    model = gc_model(200 * MIB)
    assert last(model, "segment_free").size == 30 * MIB
    assert model.reserved_bytes == (24 + 32 + 40) * MIB


@pytest.mark.parametrize(
    ("conf", "limit", "n_searches"),
    [
        ("", 80 * MIB, 0),
        ("garbage_collection_threshold:0.5", None, 0),
        ("garbage_collection_threshold:0.5", 80 * MIB, 2),
    ],
)
def test_the_age_of_blocks_is_counted_where_garbage_is_collected_only(conf, limit, n_searches):
    model = allocator(conf, limit=limit)
    model.malloc(1)
    model.malloc(1)
    assert model.pool((0, 0), is_small=True).n_searches == n_searches


def test_garbage_is_collected_with_a_memory_fraction_only():
    assert gc_model(None).reserved_bytes == (30 + 24 + 32 + 40) * MIB


def test_a_limit_counts_whole_pages_of_expandable_segments_only_after_they_are_mapped():
    # alloc_block compares what an ordinary segment would need (16 MiB), and a page of 20 MiB is
    # mapped.
    model = allocator("expandable_segments:True", limit=36 * MIB)
    model.malloc(5 * MIB)
    model.malloc(16 * MIB)
    assert model.reserved_bytes == 40 * MIB
    model = allocator("expandable_segments:True", limit=36 * MIB - 1)
    model.malloc(5 * MIB)
    with pytest.raises(ModelOutOfMemory):
        model.malloc(16 * MIB)


def test_settings_are_changed_one_by_one():
    found = AllocatorSettings.from_conf("max_split_size_mb:64,expandable_segments:True")
    changed = found.changed("expandable_segments:False,roundup_power2_divisions:4")
    assert changed.max_split_size_bytes == 64 * MIB
    assert not changed.expandable_segments
    assert changed.roundup_power2_divisions == (4,) * 16


def places(model):
    """Where blocks are, in what state."""
    return [
        [(b["address"], b["size"], b["state"]) for b in raw["blocks"]] for raw in model.segments()
    ]


def grown(model):
    """Two ranges of one expandable segment with a hole between, and small blocks beside."""
    kept = model.malloc(15 * MIB)
    freed = model.malloc(60 * MIB)
    model.malloc(25 * MIB)
    model.malloc(1000)
    model.free(freed)
    model.empty_cache()
    return kept
