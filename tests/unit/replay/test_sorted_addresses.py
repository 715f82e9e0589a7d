"""A sorted set of addresses in leaves, compared with a sorted list."""

from bisect import bisect_left, bisect_right

from hypothesis import given
from hypothesis import strategies as st

from snapconv.replay import sorted_addresses
from snapconv.replay.sorted_addresses import MAX_LEAF, SortedAddresses

ADDRESSES = st.sets(st.integers(-(1 << 62), 1 << 62), max_size=60)


def small_leaves(addresses) -> SortedAddresses:
    """A set of many leaves, however few addresses it has."""
    live = SortedAddresses(addresses)
    number = 0
    while number < len(live.leaves):
        if len(live.leaves[number]) > 3:
            live.split(number)
        else:
            number += 1
    return live


def contents(live: SortedAddresses) -> list[int]:
    return [addr for leaf in live.leaves for addr in leaf][1:-1]


def check_leaves(live: SortedAddresses) -> None:
    assert all(live.leaves)
    assert [leaf[0] for leaf in live.leaves] == live.firsts
    assert contents(live) == sorted(contents(live))


@given(ADDRESSES, st.integers(-(1 << 62), 1 << 62))
def test_the_next_address_is_that_of_a_sorted_list(addresses, addr):
    later = [a for a in addresses if a > addr]
    assert small_leaves(addresses).after(addr) == min(later, default=sorted_addresses._HIGHEST)


@given(st.sets(st.integers(0, 100), max_size=60), st.integers(-5, 105), st.integers(0, 60))
def test_a_range_is_removed_and_nothing_else(addresses, start, length):
    live = small_leaves(addresses)
    inside = {addr for addr in addresses if start <= addr < start + length}
    assert live.remove_between(start, start + length) == bool(inside)
    assert contents(live) == sorted(addresses - inside)
    check_leaves(live)


@given(st.sets(st.integers(0, 100), max_size=60))
def test_everything_can_be_removed_from_the_front(addresses):
    live = small_leaves(addresses)
    for addr in sorted(addresses):
        number = bisect_right(live.firsts, addr) - 1
        place = bisect_left(live.leaves[number], addr)
        if place:
            del live.leaves[number][place]
        else:
            live.remove_first(number)
        check_leaves(live)
    assert contents(live) == []


def test_no_leaf_is_long_however_many_addresses_there_are():
    live = SortedAddresses(range(100_000))
    assert max(map(len, live.leaves)) <= MAX_LEAF
    check_leaves(live)


def test_a_set_without_addresses_has_none_behind_any():
    assert SortedAddresses([]).after(0) == sorted_addresses._HIGHEST


def test_a_leaf_has_room_for_as_many_addresses_and_is_split_in_the_middle():
    live = SortedAddresses(range(2000))
    assert len(live.leaves[0]) == MAX_LEAF // 2 == max(map(len, live.leaves))
    live.split(0)
    assert len(live.leaves[0]) == len(live.leaves[1]) == MAX_LEAF // 4
    check_leaves(live)


def test_addresses_are_as_large_as_64_bits_have_room_for():
    first, last = -(1 << 63) + 1, (1 << 63) - 1
    live = SortedAddresses([first, last])
    assert (live.after(first), live.after(last - 1)) == (last, last)
    assert SortedAddresses([5]).after(first) == 5
