"""A sorted set of addresses in which a change costs no more than a leaf, however many there are.

A single sorted list moves all that is behind at every change: a file of 30 MB took hours.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

_LEAF, MAX_LEAF = 512, 1024
# No address of a file is as far out (see ADDRESS in snapshot/fields.py): with one at each end there is always
# an address before, and one behind.
_LOWEST, _HIGHEST = -(1 << 63), 1 << 63


class SortedAddresses:
    """Addresses in leaves: ``leaves[i]`` is sorted, never empty, and begins with ``firsts[i]``.

    An address that is there is at ``bisect_left`` in the leaf ``bisect_right(firsts, addr) - 1``. What walks
    millions of them looks them up by itself, and changes a leaf in place unless its first address goes, or
    more than MAX_LEAF would be in it.
    """

    def __init__(self, addresses: Iterable[int]) -> None:
        every = [_LOWEST, *sorted(addresses), _HIGHEST]
        self.leaves = [every[i : i + _LEAF] for i in range(0, len(every), _LEAF)]
        self.firsts = [leaf[0] for leaf in self.leaves]

    def after(self, addr: int) -> int:
        """The first address beyond this one."""
        number = bisect_right(self.firsts, addr) - 1
        leaf = self.leaves[number]
        place = bisect_right(leaf, addr)
        return leaf[place] if place < len(leaf) else self.firsts[number + 1]

    def split(self, number: int) -> None:
        """Make two leaves of one."""
        leaf = self.leaves[number]
        half = len(leaf) // 2
        self.leaves.insert(number + 1, leaf[half:])
        self.firsts.insert(number + 1, leaf[half])
        del leaf[half:]

    def remove_first(self, number: int) -> None:
        """Take the first address out of a leaf, and the leaf with it where it was the only one."""
        leaf = self.leaves[number]
        del leaf[0]
        if leaf:
            self.firsts[number] = leaf[0]
        else:
            del self.leaves[number], self.firsts[number]

    def remove_between(self, start: int, end: int) -> bool:
        """Take out all addresses from ``start`` up to, not including, ``end``; whether there were any."""
        found = False
        while (addr := self.after(start - 1)) < end:
            number = bisect_right(self.firsts, addr) - 1
            place = bisect_left(self.leaves[number], addr)
            if place:
                del self.leaves[number][place]
            else:
                self.remove_first(number)
            found = True
        return found
