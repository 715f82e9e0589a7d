"""Ranges of addresses that grow, shrink and join: segments of a device, and gaps between them."""

import operator
from bisect import bisect_right
from collections.abc import Callable, Iterable
from typing import Generic, TypeVar

_Facts = TypeVar("_Facts")
# No address of a file is as far out; see ADDRESS in snapshot/fields.py.
LOWEST, HIGHEST = -(1 << 63), 1 << 63


class AddressRanges(Generic[_Facts]):
    """Ranges ``starts[i]`` to ``ends[i]`` that do not overlap, with the facts known of each.

    ``are_joined`` decides whether two ranges side by side are one; by default the facts say it.
    ``n_conflicts`` counts changes that do not fit the ranges, and are left out.
    """

    def __init__(
        self,
        starts: list[int],
        ends: list[int],
        facts: list[_Facts],
        *,
        are_joined: Callable[[_Facts, _Facts], bool] = operator.and_,
    ) -> None:
        self.starts = starts
        self.ends = ends
        self.facts = facts
        self.n_conflicts = 0
        self._are_joined = are_joined

    def take_away(self, start: int, end: int) -> bool:
        """Remove bytes from the range around them; False where there is none."""
        index = bisect_right(self.starts, start) - 1
        if index < 0 or end > self.ends[index]:
            self.n_conflicts += 1
            return False
        before = (self.starts[index], start)
        after = (end, self.ends[index])
        self._replace(index, index + 1, (before, after), self.facts[index])
        return True

    def give_back(self, start: int, end: int, facts: _Facts) -> None:
        """Add a range, joined with those that it touches."""
        starts = self.starts
        ends = self.ends
        first = last = bisect_right(starts, start)
        previous_end = ends[first - 1] if first > 0 else LOWEST
        following_start = starts[last] if last < len(starts) else HIGHEST
        if previous_end > start or following_start < end:
            self.n_conflicts += 1
            return
        if previous_end == start and self._are_joined(self.facts[first - 1], facts):
            first -= 1
            start = starts[first]
            facts = self.facts[first]
        if following_start == end and self._are_joined(facts, self.facts[last]):
            # The file itself has the facts of a segment that is still there at the dump.
            end = ends[last]
            facts = self.facts[last]
            last += 1
        self._replace(first, last, ((start, end),), facts)

    def _replace(
        self, first: int, last: int, ranges: Iterable[tuple[int, int]], facts: _Facts
    ) -> None:
        """Replace some ranges by others, without those of no bytes."""
        starts = []
        ends = []
        for start, end in ranges:
            if start < end:
                starts.append(start)
                ends.append(end)
        self.starts[first:last] = starts
        self.ends[first:last] = ends
        self.facts[first:last] = [facts] * len(starts)
