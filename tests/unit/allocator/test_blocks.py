"""Address ranges are used again, lowest first, and free ranges that touch are one."""

import pytest

from snapconv.allocator.allocator_settings import MIB
from snapconv.allocator.blocks import (
    AddressSpace,
    Block,
    BlockPool,
    Reservation,
    old_segments,
    oversize_segments,
)

S = 0x7F00_0000_0000


@pytest.fixture
def used():
    """Ranges of 2, 4, 2 and 4 MiB, one after the other."""
    addresses = AddressSpace(S)
    for size in (2, 4, 2, 4):
        addresses.take(size * MIB)
    return addresses


def offset(addr):
    return (addr - S) // MIB


def test_of_a_gap_that_is_larger_the_rest_stays(used):
    used.give_back(S + 2 * MIB, 4 * MIB)
    assert [offset(used.take(2 * MIB)) for _ in range(3)] == [2, 4, 12]


@pytest.mark.parametrize("order", [(0, 2, 6), (6, 2, 0), (2, 0, 6), (0, 6, 2)])
def test_gaps_that_touch_are_one_in_whatever_order_they_came(used, order):
    sizes = {0: 2, 2: 4, 6: 2}
    for first in order:
        used.give_back(S + first * MIB, sizes[first] * MIB)
    assert offset(used.take(8 * MIB)) == 0


def test_ranges_are_of_2_mib_each_however_little_is_wanted():
    addresses = AddressSpace(S)
    assert [offset(addresses.take(size)) for size in (1, 2 * MIB + 1, 2 * MIB)] == [0, 2, 6]
    addresses.give_back(S + 2 * MIB, 2 * MIB + 1)
    assert offset(addresses.take(4 * MIB)) == 2


def pool_of(*blocks):
    """A pool with free segments of (size, age), each at an address of its own."""
    pool = BlockPool((0, 0), is_small=False)
    oldest = max(age for _, age in blocks)
    for place, (size, age) in enumerate(sorted(blocks, key=lambda block: -block[1])):
        pool.n_searches = oldest - age
        pool.insert(Block(place << 40, size * MIB, 0, pool))
    pool.n_searches = oldest
    return pool


def chosen(pool, wanted):
    return [block.size // MIB for block in old_segments(pool, wanted * MIB)]


def test_nothing_is_released_where_nothing_is_wanted():
    assert chosen(pool_of((20, 3), (30, 1)), 0) == []
    assert len(old_segments(pool_of((20, 3), (30, 1)), 1)) == 1


def test_those_of_average_age_and_more_go_at_once():
    assert chosen(pool_of((20, 6), (30, 4), (40, 2)), 1) == [20, 30]


def test_the_average_is_that_of_the_segments_that_are_left():
    """The ages 10, 4 and 2 have the average 5.3; without the first 3, so that only the second goes too."""
    pool = pool_of((20, 10), (30, 4), (40, 2))
    assert chosen(pool, 20) == [20]
    assert chosen(pool, 21) == [20, 30]
    assert len(old_segments(pool, 50 * MIB)) == 2
    assert len(old_segments(pool, 50 * MIB + 1)) == 3


def test_segments_of_which_a_part_is_used_stay():
    pool = pool_of((20, 4), (30, 4))
    (used, _) = pool.free_blocks()
    used.link(Block(1, 512, 0, pool), None)
    assert chosen(pool, 99) == [30]


def test_expandable_blocks_stay_although_they_count_for_the_average_age():
    """The ages 9, 3 and 3 have the average 5; the one of 9 stays, and so nothing goes at once."""
    pool = pool_of((20, 9), (30, 3), (40, 3))
    pool.free_blocks()[0].reservation = Reservation(0, 20 * MIB, 20 * MIB)
    assert chosen(pool, 99) == []
    for block in pool.free_blocks():
        block.reservation = Reservation(0, 20 * MIB, 20 * MIB)
    assert chosen(pool, 99) == []


@pytest.mark.parametrize(
    ("wanted", "sizes"),
    [
        (55, [60]),  # the smallest that is enough
        (60, [60]),
        (61, [80]),
        (100, [80, 60]),  # none is enough: the largest first, and none below the limit
        (139, [80, 60]),
        (500, [80, 60, 50]),
    ],
)
def test_as_few_oversize_segments_as_are_enough(wanted, sizes):
    pool = pool_of((12, 1), (50, 1), (60, 1), (80, 1))
    found = oversize_segments(pool, 0, min_bytes=wanted * MIB, limit=50 * MIB)
    assert [block.size // MIB for block in found] == sizes
    assert oversize_segments(pool, 7, min_bytes=wanted * MIB, limit=50 * MIB) == []


def test_oversize_blocks_that_are_expandable_or_a_part_of_a_segment_stay():
    pool = pool_of((50, 1), (60, 1), (70, 1), (80, 1))
    _, expandable, part, _ = pool.free_blocks()
    expandable.reservation = Reservation(0, 60 * MIB, 20 * MIB)
    part.link(Block(1, 512, 0, pool), None)
    found = oversize_segments(pool, 0, min_bytes=500 * MIB, limit=50 * MIB)
    assert [block.size // MIB for block in found] == [80, 50]
