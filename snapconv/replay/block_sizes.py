"""The exact block size of every traced allocation, by walking back from the final segments.

A trace entry has the requested size only; ``max_memory_allocated()`` counts blocks. When an alloc
is undone, the free block that it was cut from ran from its address to the next live block or to the
end of its segment. Had the allocator split that, the block is the rounded request, otherwise all of
it. This gave the true size of 10,234 of 10,234 live blocks of real snapshots.

Blocks that are live at the dump have their sizes in the segments. The walk does not read these, so
those of them that were allocated in the trace are a sample in which every file checks the rules.
"""

import operator
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from snapconv.allocator.allocator_settings import NPU_PADDING_BYTES, AllocatorSettings
from snapconv.columns import (
    Int8Column,
    Int64Column,
    chunks,
    count_of,
    has_code,
    plain_rows,
    read_only,
    rows_of,
)
from snapconv.native.library import address, closing, core, goes_on
from snapconv.notes import Note
from snapconv.replay.lifetimes import Lifetimes, releases
from snapconv.replay.rounding import HOST_RULES, RoundingRules, expandable_ranges, infer_rules
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.snapshot.segment_table import BlockTable, SegmentTable
from snapconv.stop_signals import stage

_Facts = TypeVar("_Facts")
# What the walk does with an event; the segments' actions stand for themselves, all others do
# nothing.
_ALLOC, _RELEASE = int(Action.ALLOC), int(Action.FREE_COMPLETED)


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """``of_event``: block bytes per event by ``rules``, 0 for events that are no alloc.

    ``least_space`` maps the address of a block freed in the trace, but allocated before it, to the
    least bytes that it ever had up to its next neighbour: the most that it can have been.
    ``n_conflicts`` counts events that contradict the segments (blocks that overlap, or stand
    outside every segment).
    """

    rules: RoundingRules
    of_event: Int64Column
    least_space: dict[int, int]
    n_conflicts: int


def derive_block_sizes(
    events: EventTable, segments: SegmentTable, blocks: BlockTable, rules: RoundingRules
) -> BlockSizes:
    """Undo the events from the last to the first and read each block's size off its neighbours."""
    kind = _kinds(events, blocks)
    return read_only(
        _walk_compiled(kind, events, segments, blocks, rules)
        or _walk(kind, events, segments, blocks, rules)
    )


def _kinds(events: EventTable, blocks: BlockTable) -> Int8Column:
    # By products, since an assignment to the marked ones of so many events takes twenty times as
    # long.
    is_release = releases(events, blocks)
    moves = (events.action <= int(Action.SEGMENT_UNMAP)) & ~has_code(
        events.action, Action.FREE_REQUESTED
    )
    return np.asarray(events.action * (moves & ~is_release) + np.int8(_RELEASE) * is_release)


def _walk_compiled(
    kind: Int8Column,
    events: EventTable,
    segments: SegmentTable,
    blocks: BlockTable,
    rules: RoundingRules,
) -> BlockSizes | None:
    """Walk back in the compiled core; None where it finds something odd."""
    compiled = core()
    if compiled is None:
        return None
    live = rows_of(blocks.is_live)
    given = (segments.addr, segments.total_bytes, segments.is_expandable)
    given_blocks = (blocks.segment_id[live], blocks.addr[live])
    columns = [np.ascontiguousarray(column) for column in (*given, *given_blocks)]
    places = list(map(address, columns))
    new = compiled.snapconv_walk_new(len(segments), *places[:3], len(live), *places[3:])
    if new is None:
        return None
    with closing(new, compiled.snapconv_walk_free) as walk:
        sizes = np.zeros(len(kind), np.int64)
        for part, inputs in _newest_first(kind, events, rules):
            now = list(map(np.ascontiguousarray, inputs))
            status = compiled.snapconv_walk_undo(
                walk, len(now[0]), *map(address, now), address(sizes[part])
            )
            if not goes_on(status):
                return None
        n = compiled.snapconv_walk_least_space(walk, None, None)
        addrs = np.empty(n, np.int64)
        spaces = np.empty(n, np.int64)
        compiled.snapconv_walk_least_space(walk, address(addrs), address(spaces))
        least_space = dict(np.column_stack((addrs, spaces)).tolist())
        return BlockSizes(rules, sizes, least_space, compiled.snapconv_walk_conflicts(walk))


def _walk(
    kind: Int8Column,
    events: EventTable,
    segments: SegmentTable,
    blocks: BlockTable,
    rules: RoundingRules,
) -> BlockSizes:
    """Walk back in Python."""
    memory = _Memory(segments, blocks)
    sizes = np.zeros(len(kind), np.int64)
    for part, inputs in _newest_first(kind, events, rules):
        rows = plain_rows(*(column[::-1] for column in inputs))
        sizes[part] = [memory.undo(*row) for row in rows][::-1]
    return BlockSizes(rules, sizes, memory.least_space, memory.n_conflicts)


def _newest_first(
    kind: Int8Column, events: EventTable, rules: RoundingRules
) -> Iterator[tuple[slice, tuple[NDArray[Any], ...]]]:
    """Yield what a walk needs of the events, some at a time, so that Ctrl-C never waits long."""
    for part in reversed(list(chunks(len(kind)))):
        addr = events.addr[part]
        size = events.size[part]
        rounded = rules.rounded(size)
        yield part, (kind[part], addr, size, rounded, rules.least_remainder(rounded, addr))


def segment_moves(events: EventTable) -> Int64Column:
    """Return the rows of the events that obtain or release segments."""
    is_move = (events.action >= Action.SEGMENT_ALLOC) & (events.action <= Action.SEGMENT_UNMAP)
    return rows_of(is_move)


class SegmentRanges(Generic[_Facts]):
    """Ranges ``starts[i]`` to ``ends[i]`` that do not overlap, with the facts known of each.

    ``is_one`` decides whether two neighbouring ranges are parts of one expandable segment.
    ``n_conflicts`` counts events that do not fit the ranges.
    """

    def __init__(
        self,
        starts: list[int],
        ends: list[int],
        facts: list[_Facts],
        *,
        is_one: Callable[[_Facts, _Facts], bool],
    ) -> None:
        self.starts = starts
        self.ends = ends
        self.facts = facts
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
        starts = self.starts
        ends = self.ends
        first = last = bisect_right(starts, start)
        if (first > 0 and ends[first - 1] > start) or (last < len(starts) and starts[last] < end):
            self.n_conflicts += 1
            return
        if first > 0 and ends[first - 1] == start and self._is_one(self.facts[first - 1], facts):
            first -= 1
            start = starts[first]
            facts = self.facts[first]
        if last < len(starts) and starts[last] == end and self._is_one(facts, self.facts[last]):
            # What is still there at the dump is known by the file itself.
            end = ends[last]
            facts = self.facts[last]
            last += 1
        starts[first:last] = [start]
        ends[first:last] = [end]
        self.facts[first:last] = [facts]


class _Memory:
    """Live blocks and segments at one moment; moves backwards in time."""

    def __init__(self, segments: SegmentTable, blocks: BlockTable) -> None:
        ends = segments.addr + segments.total_bytes
        self.segments: SegmentRanges[bool] = SegmentRanges(
            segments.addr.tolist(),
            ends.tolist(),
            segments.is_expandable.tolist(),
            is_one=operator.and_,
        )
        self.live = _SortedAddresses(blocks.addr[blocks.is_live].tolist())
        self._n_conflicts = 0
        # Blocks whose free was undone and whose alloc was not met yet.
        self.least_space: dict[int, int] = {}

    @property
    def n_conflicts(self) -> int:
        """Events that contradict the segments or the live blocks."""
        return self._n_conflicts + self.segments.n_conflicts

    def undo(self, kind: int, addr: int, size: int, rounded: int, least_remainder: int) -> int:
        """Undo the newest event that is left; the bytes of its block if it is an alloc, else 0.

        Live blocks of other segments are beyond the ends of a block's own.
        """
        if kind != _ALLOC and kind != _RELEASE:
            if kind:
                self._undo_segment(kind, addr, size)
            return 0
        starts = self.segments.starts
        ends = self.segments.ends
        live = self.live
        segment = bisect_right(starts, addr) - 1
        if segment < 0 or addr >= ends[segment]:
            self._n_conflicts += 1
            return rounded if kind == _ALLOC else 0
        before, following = live.around(addr)
        if kind == _ALLOC:
            if following == addr:
                live.remove(addr)
                self.least_space.pop(addr, None)
                _, following = live.around(addr)
            else:
                self._n_conflicts += 1
            space = min(following, ends[segment]) - addr
            self._n_conflicts += space < rounded
            return space if rounded <= space < rounded + least_remainder else rounded
        if following == addr:
            self._n_conflicts += 1
            return 0
        self.least_space[addr] = min(following, ends[segment]) - addr
        if before >= starts[segment] and addr - before < self.least_space.get(before, 0):
            self.least_space[before] = addr - before
        live.add(addr)
        return 0

    def _undo_segment(self, action: int, addr: int, size: int) -> None:
        if action == Action.SEGMENT_ALLOC or action == Action.SEGMENT_MAP:
            if self.segments.take_away(addr, addr + size):
                has_live = False
                while (inside := self.live.around(addr)[1]) < addr + size:
                    self.live.remove(inside)
                    has_live = True
                self._n_conflicts += has_live
        else:
            self.segments.give_back(addr, addr + size, action == Action.SEGMENT_UNMAP)


_LEAF = 512
_MAX_LEAF = 1024
# No address of a file is as far out (see ADDRESS in snapshot/fields.py): with one at each end there
# is always an address before, and one behind.
_LOWEST, _HIGHEST = -(1 << 63), 1 << 63


class _SortedAddresses:
    """Addresses in sorted leaves, none empty: in one list of millions, a change would move half of it."""

    def __init__(self, addresses: Iterable[int]) -> None:
        every = [_LOWEST, *sorted(addresses), _HIGHEST]
        self._leaves = [every[i : i + _LEAF] for i in range(0, len(every), _LEAF)]
        self._firsts = [leaf[0] for leaf in self._leaves]

    def around(self, addr: int) -> tuple[int, int]:
        """Return the last address before this one, and the first that is not."""
        number = bisect_left(self._firsts, addr) - 1
        leaf = self._leaves[number]
        place = bisect_left(leaf, addr)
        return leaf[place - 1], leaf[place] if place < len(leaf) else self._firsts[number + 1]

    def add(self, addr: int) -> None:
        """Put in an address that is not there."""
        number = bisect_right(self._firsts, addr) - 1
        leaf = self._leaves[number]
        insort(leaf, addr)
        if len(leaf) > _MAX_LEAF:
            self._leaves[number : number + 1] = leaf[:_LEAF], leaf[_LEAF:]
            self._firsts.insert(number + 1, leaf[_LEAF])

    def remove(self, addr: int) -> None:
        """Take out an address that is there."""
        number = bisect_right(self._firsts, addr) - 1
        leaf = self._leaves[number]
        del leaf[bisect_left(leaf, addr)]
        self._firsts[number : number + 1] = leaf[:1]
        self._leaves[number : number + 1] = [leaf] if leaf else []


# --- the check


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """The numbers of blocks allocated in the trace and live at the dump, and of sizes that differ.

    ``n_different_by_settings`` counts those that differ by what the file says of its settings: more
    than ``n_different`` where other rules fit better and were taken. ``is_other_split_rule``: among
    them, whether blocks are split as in expandable segments.
    """

    n_checked: int
    n_different: int
    n_different_by_settings: int
    is_other_split_rule: bool = False


@stage
def derive_checked_sizes(
    device: DeviceSnapshot, lifetimes: Lifetimes, settings: AllocatorSettings, *, backend: str
) -> tuple[BlockSizes, SizeCheck]:
    """Derive the sizes by the file's settings, or by other rules where these fit more of the live blocks.

    The settings are those at the dump, which the program may have changed
    (``_set_allocator_settings``), and torch_npu's padding is in no setting.
    """
    if device.is_host:
        sizes = BlockSizes(HOST_RULES, HOST_RULES.rounded(device.events.size), {}, 0)
        return _check(sizes, lifetimes, device)
    if not device.has_segments:  # these sizes were derived, and there are no others
        rules = infer_rules(settings, device.blocks, backend=backend)
        return derive_block_sizes(device.events, device.segments, device.blocks, rules), SizeCheck(
            0, 0, 0
        )

    def derived(rules: RoundingRules) -> tuple[BlockSizes, SizeCheck]:
        sizes = derive_block_sizes(device.events, device.segments, device.blocks, rules)
        return _check(sizes, lifetimes, device)

    first = infer_rules(settings, device.blocks, backend=backend)
    best = by_settings = derived(first)
    others = _other_rules(first, device)
    while best[1].n_different and (other := next(others, None)):
        best = min(best, derived(other), key=lambda one: one[1].n_different)  # of equals the first
    sizes, check = best
    is_other = sizes.rules.settings.expandable_segments != settings.expandable_segments
    is_other |= sizes.rules.expandable is not None
    n_by_settings = by_settings[1].n_different
    return sizes, replace(
        check, n_different_by_settings=n_by_settings, is_other_split_rule=is_other
    )


def size_notes(check: SizeCheck, rules: RoundingRules) -> Iterator[Note]:
    """Yield the notes on a check that found differences."""
    if check.n_different:
        yield Note(
            "block-size-mismatch",
            f"{check.n_different} of {check.n_checked} traced blocks that are live at the dump "
            f"have another "
            "size there than their requests give: they count as in the dump, but those that were "
            "freed "
            "before may have wrong sizes, so allocated and active bytes before the dump are "
            "approximate",
        )
    if check.is_other_split_rule:
        kind = "expandable segments" if rules.settings.expandable_segments else "ordinary segments"
        if rules.expandable is not None:
            kind = "the kind of segment that each is in"
        yield Note(
            "other-split-rule",
            f"the live blocks were split as in {kind}, against what the file says of them: by "
            f"that, "
            f"{check.n_different_by_settings} of {check.n_checked} would have another size than "
            f"in the dump. "
            "If the setting was changed during the run, allocated and active bytes are "
            "approximate while it "
            "was the other one",
        )


def _other_rules(first: RoundingRules, device: DeviceSnapshot) -> Iterator[RoundingRules]:
    """Yield the other combinations of padding and split rule.

    Where a device has both kinds of segments, the setting was changed: then first the rule of each
    segment.
    """
    ranges = expandable_ranges(device.segments, device.events)
    has_ordinary = (
        not device.segments.is_expandable.all()
        or has_code(device.events.action, Action.SEGMENT_ALLOC).any()
    )
    if len(ranges.starts) and has_ordinary:
        yield replace(first, expandable=ranges)
    is_expandable = first.settings.expandable_segments
    for expandable, padding_bytes in product(
        (is_expandable, not is_expandable), (0, NPU_PADDING_BYTES)
    ):
        settings = replace(
            first.settings, expandable_segments=expandable, padding_bytes=padding_bytes
        )
        if settings != first.settings:
            yield replace(first, settings=settings)


def _check(
    sizes: BlockSizes, lifetimes: Lifetimes, device: DeviceSnapshot
) -> tuple[BlockSizes, SizeCheck]:
    rows = rows_of((lifetimes.alloc_event >= 0) & (lifetimes.block_id >= 0))
    derived = sizes.of_event[lifetimes.alloc_event[rows]]
    in_segments = device.blocks.block_bytes[lifetimes.block_id[rows]]
    n_different = count_of(derived != in_segments)
    return sizes, SizeCheck(len(rows), n_different, n_different)
