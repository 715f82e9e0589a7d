"""The exact block size of every traced allocation, by walking back from the final segments.

A trace entry has the requested size only; ``max_memory_allocated()`` counts blocks. When an alloc is
undone, the free block that it was cut from ran from its address to the next live block or to the end
of its segment. Had the allocator split that, the block is the rounded request, otherwise all of it.
This gave the true size of 10,234 of 10,234 live blocks of real snapshots.

Blocks that are live at the dump have their sizes in the segments. The walk does not read these, so those
of them that were allocated in the trace are a sample in which every file checks the rules.
"""

import operator
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Generic, TypeVar

import numpy as np

from snapconv.allocator.allocator_settings import NPU_PADDING_BYTES, AllocatorSettings
from snapconv.columns import Int8Column, Int64Column, chunks, has_code, read_only
from snapconv.native.library import address, closing, core, goes_on
from snapconv.notes import Note
from snapconv.replay.lifetimes import Lifetimes, releases
from snapconv.replay.rounding import HOST_RULES, RoundingRules, expandable_ranges, infer_rules
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.snapshot.segment_table import BlockState, BlockTable, SegmentTable
from snapconv.stop_signals import stage

_Facts = TypeVar("_Facts")
# What the walk does with an event; the segments' actions stand for themselves, all others do nothing.
_ALLOC, _RELEASE = int(Action.ALLOC), int(Action.FREE_COMPLETED)


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """``of_event``: block bytes per event, 0 for events that are no alloc.

    ``least_space`` maps the address of a block freed in the trace, but allocated before it, to the least
    bytes that it ever had up to its next neighbour: the most that it can have been. ``n_conflicts``
    counts events that contradict the segments (blocks that overlap, or stand outside every segment).
    """

    of_event: Int64Column
    least_space: dict[int, int]
    n_conflicts: int


def derive_block_sizes(
    events: EventTable, segments: SegmentTable, blocks: BlockTable, rules: RoundingRules
) -> BlockSizes:
    """Undo the events from the last to the first and read each block's size off its neighbours."""
    kind = _kinds(events, blocks)
    found = _walk_compiled(kind, events, segments, blocks, rules)
    if found:
        return read_only(found)
    memory = _Memory(segments, blocks)
    rounded = rules.rounded(events.size)
    least_remainder = rules.least_remainder(rounded, events.addr)
    sizes = np.zeros(len(events), np.int64)
    numbers = range(len(events))
    for chunk in reversed(list(chunks(len(events)))):
        rows = zip(
            numbers[chunk][::-1],
            *(
                column[chunk][::-1].tolist()
                for column in (kind, events.addr, events.size, rounded, least_remainder)
            ),
            strict=True,
        )
        memory.undo(rows, sizes)
    return read_only(BlockSizes(sizes, memory.least_space, memory.n_conflicts))


def _kinds(events: EventTable, blocks: BlockTable) -> Int8Column:
    # By products, since an assignment to the marked ones of so many events takes twenty times as long.
    is_release = releases(events, blocks)
    moves = (events.action <= int(Action.SEGMENT_UNMAP)) & ~has_code(events.action, Action.FREE_REQUESTED)
    return np.asarray(events.action * (moves & ~is_release) + np.int8(_RELEASE) * is_release)


def _walk_compiled(
    kind: Int8Column, events: EventTable, segments: SegmentTable, blocks: BlockTable, rules: RoundingRules
) -> BlockSizes | None:
    """Walk back in the compiled core; None where it finds something odd.

    A call is short, for some events, so that Ctrl-C never waits long.
    """
    compiled = core()
    if compiled is None:
        return None
    live = np.flatnonzero(blocks.state != BlockState.INACTIVE)
    given = (segments.addr, segments.total_bytes, segments.is_expandable)
    given_blocks = (blocks.segment_id[live], blocks.addr[live])
    columns = [np.ascontiguousarray(column) for column in (*given, *given_blocks)]
    places = list(map(address, columns))
    new = compiled.snapconv_walk_new(len(segments), *places[:3], len(live), *places[3:])
    if new is None:
        return None
    block_bytes = np.zeros(len(kind), np.int64)
    with closing(new, compiled.snapconv_walk_free) as walk:
        for part in reversed(list(chunks(len(kind)))):
            addr, size = events.addr[part], events.size[part]
            rounded = rules.rounded(size)
            least_remainder = rules.least_remainder(rounded, addr)
            inputs = list(map(np.ascontiguousarray, (kind[part], addr, size, rounded, least_remainder)))
            status = compiled.snapconv_walk_undo(
                walk, len(rounded), *map(address, inputs), address(block_bytes[part])
            )
            if not goes_on(status):
                return None
        n = compiled.snapconv_walk_least_space(walk, None, None)
        addrs, spaces = np.empty(n, np.int64), np.empty(n, np.int64)
        compiled.snapconv_walk_least_space(walk, address(addrs), address(spaces))
        least_space = dict(np.column_stack((addrs, spaces)).tolist())
        return BlockSizes(block_bytes, least_space, compiled.snapconv_walk_conflicts(walk))


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


class _Memory:
    """Live blocks and segments at one moment; moves backwards in time."""

    def __init__(self, segments: SegmentTable, blocks: BlockTable) -> None:
        ends = segments.addr + segments.total_bytes
        self.segments: SegmentRanges[bool] = SegmentRanges(
            segments.addr.tolist(), ends.tolist(), segments.is_expandable.tolist(), is_one=operator.and_
        )
        self.live = SortedAddresses(blocks.addr[blocks.state != BlockState.INACTIVE].tolist())
        self._n_conflicts = 0
        # Blocks whose free was undone and whose alloc was not met yet.
        self.least_space: dict[int, int] = {}

    @property
    def n_conflicts(self) -> int:
        """Events that contradict the segments or the live blocks."""
        return self._n_conflicts + self.segments.n_conflicts

    def undo(self, rows: Iterable[tuple[int, ...]], sizes: Int64Column) -> None:
        """Undo a run of events, newest first, writing block sizes of allocs.

        One flat loop: at ten million events a function call per event would cost as much as the rest. Live
        blocks of other segments are beyond the ends of a block's own.
        """
        starts, ends, least_space = self.segments.starts, self.segments.ends, self.least_space
        live = self.live
        leaves, firsts = live.leaves, live.firsts
        for event, kind, addr, size, rounded, least_remainder in rows:
            if kind != _ALLOC and kind != _RELEASE:
                if kind:
                    self._undo_segment(kind, addr, size)
                continue
            segment = bisect_right(starts, addr) - 1
            if segment < 0 or addr >= ends[segment]:
                if kind == _ALLOC:
                    sizes[event] = rounded
                self._n_conflicts += 1
                continue
            number = bisect_right(firsts, addr) - 1
            leaf = leaves[number]
            place = bisect_left(leaf, addr)
            following = leaf[place] if place < len(leaf) else firsts[number + 1]
            if kind == _ALLOC:
                if following == addr:
                    if place:
                        del leaf[place]
                    else:
                        live.remove_first(number)
                    least_space.pop(addr, None)
                    following = leaf[place] if place < len(leaf) else live.after(addr)
                else:
                    self._n_conflicts += 1
                space = min(following, ends[segment]) - addr
                if space < rounded:
                    self._n_conflicts += 1
                sizes[event] = space if rounded <= space < rounded + least_remainder else rounded
            elif following == addr:
                self._n_conflicts += 1
            else:
                least_space[addr] = min(following, ends[segment]) - addr
                before = leaf[place - 1]
                if before >= starts[segment] and addr - before < least_space.get(before, 0):
                    least_space[before] = addr - before
                leaf.insert(place, addr)
                if len(leaf) > MAX_LEAF:
                    live.split(number)

    def _undo_segment(self, action: int, addr: int, size: int) -> None:
        if action == Action.SEGMENT_ALLOC or action == Action.SEGMENT_MAP:
            if self.segments.take_away(addr, addr + size) and self.live.remove_between(addr, addr + size):
                self._n_conflicts += 1
        else:
            self.segments.give_back(addr, addr + size, action == Action.SEGMENT_UNMAP)


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
        """Return the first address beyond this one."""
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


# --- the check


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """The numbers of blocks allocated in the trace and live at the dump, and of sizes that differ.

    ``n_different_by_settings`` counts those that differ by what the file says of its settings: more than
    ``n_different`` where other rules fit better and were taken. ``is_other_split_rule``: among them, whether
    blocks are split as in expandable segments.
    """

    n_checked: int
    n_different: int
    n_different_by_settings: int
    is_other_split_rule: bool = False


@dataclass(frozen=True, slots=True)
class CheckedSizes:
    """Block sizes with the rules that they follow from."""

    sizes: BlockSizes
    rules: RoundingRules
    check: SizeCheck


@stage
def derive_checked_sizes(
    device: DeviceSnapshot, lifetimes: Lifetimes, settings: AllocatorSettings, *, backend: str
) -> CheckedSizes:
    """Derive the sizes by the file's settings, or by other rules where these fit more of the live blocks.

    The settings are those at the dump, which the program may have changed (``_set_allocator_settings``),
    and torch_npu's padding is in no setting.
    """
    if device.is_host:
        sizes = BlockSizes(HOST_RULES.rounded(device.events.size), {}, 0)
        return CheckedSizes(sizes, HOST_RULES, _check(sizes, lifetimes, device))
    first = infer_rules(settings, device.blocks, backend=backend)
    best = by_settings = _derive(device, lifetimes, first)
    others = _other_rules(first, device)
    while best.check.n_different and (rules := next(others, None)):
        # Of equals the first.
        best = min(best, _derive(device, lifetimes, rules), key=lambda derived: derived.check.n_different)
    check = replace(
        best.check,
        n_different_by_settings=by_settings.check.n_different,
        is_other_split_rule=best.rules.expandable is not None
        or best.rules.settings.expandable_segments != settings.expandable_segments,
    )
    return replace(best, check=check)


def size_notes(checked: CheckedSizes) -> Iterator[Note]:
    """Yield the notes on a check that found differences."""
    check = checked.check
    if check.n_different:
        yield Note(
            "block-size-mismatch",
            f"{check.n_different} of {check.n_checked} traced blocks that are live at the dump have another "
            "size there than their requests give: they count as in the dump, but those that were freed "
            "before may have wrong sizes, so allocated and active bytes before the dump are approximate",
        )
    if check.is_other_split_rule:
        kind = "expandable segments" if checked.rules.settings.expandable_segments else "ordinary segments"
        if checked.rules.expandable is not None:
            kind = "the kind of segment that each is in"
        yield Note(
            "other-split-rule",
            f"the live blocks were split as in {kind}, against what the file says of them: by that, "
            f"{check.n_different_by_settings} of {check.n_checked} would have another size than in the dump. "
            "If the setting was changed during the run, allocated and active bytes are approximate while it "
            "was the other one",
        )


def _other_rules(first: RoundingRules, device: DeviceSnapshot) -> Iterator[RoundingRules]:
    """Yield the other combinations of padding and split rule.

    Where a device has both kinds of segments, the setting was changed: then first the rule of each segment.
    """
    ranges = expandable_ranges(device.segments, device.events)
    has_ordinary = (
        not device.segments.is_expandable.all() or has_code(device.events.action, Action.SEGMENT_ALLOC).any()
    )
    if len(ranges.starts) and has_ordinary:
        yield replace(first, expandable=ranges)
    is_expandable = first.settings.expandable_segments
    for expandable, padding_bytes in product((is_expandable, not is_expandable), (0, NPU_PADDING_BYTES)):
        settings = replace(first.settings, expandable_segments=expandable, padding_bytes=padding_bytes)
        if settings != first.settings:
            yield replace(first, settings=settings)


def _derive(device: DeviceSnapshot, lifetimes: Lifetimes, rules: RoundingRules) -> CheckedSizes:
    sizes = derive_block_sizes(device.events, device.segments, device.blocks, rules)
    return CheckedSizes(sizes, rules, _check(sizes, lifetimes, device))


def _check(sizes: BlockSizes, lifetimes: Lifetimes, device: DeviceSnapshot) -> SizeCheck:
    rows = np.flatnonzero((lifetimes.alloc_event >= 0) & (lifetimes.block_id >= 0))
    derived = sizes.of_event[lifetimes.alloc_event[rows]]
    in_segments = device.blocks.block_bytes[lifetimes.block_id[rows]]
    n_different = int(np.count_nonzero(derived != in_segments))
    return SizeCheck(len(rows), n_different, n_different)
