"""The segments of a device at one moment, by address, while their events are undone, newest first."""

from bisect import bisect_right
from collections.abc import Callable
from typing import Generic, TypeVar

_Facts = TypeVar("_Facts")


class SegmentRanges(Generic[_Facts]):
    """Ranges ``starts[i]`` to ``ends[i]`` that do not overlap, with the facts known of each.

    ``is_one`` decides whether two neighbouring ranges are parts of one expandable segment. ``n_conflicts``
    counts events that do not fit the ranges.
    """

    def __init__(
        self,
        starts: list[int],
        ends: list[int],
        facts: list[_Facts],
        *,
        is_one: Callable[[_Facts, _Facts], bool],
    ) -> None:
        self.starts, self.ends, self.facts = starts, ends, facts
        self.n_conflicts = 0
        self._is_one = is_one

    def take_away(self, start: int, end: int) -> bool:
        """Remove a range that the undone event had obtained; the rest of an expandable segment stays."""
        place = bisect_right(self.starts, start) - 1
        if place < 0 or end > self.ends[place]:
            self.n_conflicts += 1
            return False
        parts = [(self.starts[place], start), (end, self.ends[place])]
        kept = [part for part in parts if part[0] < part[1]]
        self.starts[place : place + 1] = [part[0] for part in kept]
        self.ends[place : place + 1] = [part[1] for part in kept]
        self.facts[place : place + 1] = [self.facts[place]] * len(kept)
        return True

    def give_back(self, start: int, end: int, facts: _Facts) -> None:
        """Add a range that the undone event had released, joined to expandable segments that it touches."""
        starts, ends = self.starts, self.ends
        first = last = bisect_right(starts, start)
        if (first > 0 and ends[first - 1] > start) or (last < len(starts) and starts[last] < end):
            self.n_conflicts += 1
            return
        if first > 0 and ends[first - 1] == start and self._is_one(self.facts[first - 1], facts):
            first -= 1
            start, facts = starts[first], self.facts[first]
        if last < len(starts) and starts[last] == end and self._is_one(facts, self.facts[last]):
            # What is still there at the dump is known by the file itself.
            end, facts = ends[last], self.facts[last]
            last += 1
        starts[first:last] = [start]
        ends[first:last] = [end]
        self.facts[first:last] = [facts]
