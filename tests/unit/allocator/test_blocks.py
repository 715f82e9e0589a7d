"""Address ranges are used again, lowest first, and free ranges that touch are one."""

import pytest

from snapconv.allocator.allocator_settings import MIB
from snapconv.allocator.blocks import AddressSpace

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


def test_a_gap_of_just_the_size_is_filled(used):
    used.give_back(S + 2 * MIB, 4 * MIB)
    assert [offset(used.take(4 * MIB)) for _ in range(2)] == [2, 12]


def test_a_gap_that_is_too_small_is_left_for_later(used):
    used.give_back(S, 2 * MIB)
    assert [offset(used.take(size * MIB)) for size in (4, 2)] == [12, 0]


@pytest.mark.parametrize("order", [(0, 2, 6), (6, 2, 0), (2, 0, 6), (0, 6, 2)])
def test_gaps_that_touch_are_one_in_whatever_order_they_came(used, order):
    sizes = {0: 2, 2: 4, 6: 2}
    for first in order:
        used.give_back(S + first * MIB, sizes[first] * MIB)
    assert offset(used.take(8 * MIB)) == 0


def test_gaps_with_something_between_stay_apart(used):
    used.give_back(S, 2 * MIB)
    used.give_back(S + 6 * MIB, 2 * MIB)
    assert [offset(used.take(size * MIB)) for size in (4, 2, 2)] == [12, 0, 6]


def test_a_range_that_is_joined_to_one_gap_leaves_the_others(used):
    for first, size in [(2, 4), (8, 4), (0, 2)]:
        used.give_back(S + first * MIB, size * MIB)
    assert [offset(used.take(size * MIB)) for size in (6, 4)] == [0, 8]
    for first, size in [(0, 2), (6, 2), (8, 4)]:
        used.give_back(S + first * MIB, size * MIB)
    assert [offset(used.take(size * MIB)) for size in (6, 2)] == [6, 0]


def test_ranges_are_of_2_mib_each_however_little_is_wanted():
    addresses = AddressSpace(S)
    assert [offset(addresses.take(size)) for size in (1, 2 * MIB + 1, 2 * MIB)] == [0, 2, 6]
    addresses.give_back(S + 2 * MIB, 2 * MIB + 1)
    assert offset(addresses.take(4 * MIB)) == 2
