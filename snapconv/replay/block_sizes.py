"""The exact block size of every traced allocation, by walking back from the final segments.

A trace entry has the requested size only; ``max_memory_allocated()`` counts blocks. When an alloc
is undone, the free block that it was cut from ran from its address to the next live block or to the
end of its segment. Had the allocator split that, the block is the rounded request, otherwise all of
it. This gave the true size of 10,234 of 10,234 live blocks of real snapshots.

Blocks that are live at the dump have their sizes in the segments. The walk does not read these, so
those of them that were allocated in the trace are a sample in which every file checks the rules.
"""

import ctypes
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.allocator.address_ranges import HIGHEST, LOWEST, AddressRanges
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
from snapconv.replay.rounding import (
    HOST_RULES,
    RoundingRules,
    expandable_ranges,
    infer_rules,
)
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.snapshot.segment_table import BlockTable, SegmentTable
from snapconv.stop_signals import stage

# The kinds of events for the walk: an alloc, a release, the segments' actions as they are, and 0
# for all events that it skips.
_ALLOC, _RELEASE = int(Action.ALLOC), int(Action.FREE_COMPLETED)


@dataclass(frozen=True, slots=True)
class BlockSizes:
    """``event_bytes``: block bytes per event by ``rules``, 0 for events that are no alloc.

    ``least_space`` maps the address of a block freed in the trace, but allocated before it, to the
    least bytes that it ever had up to its next neighbour: the most that it can have been.
    ``n_conflicts`` counts events that contradict the segments (blocks that overlap, or stand
    outside every segment).
    """

    rules: RoundingRules
    event_bytes: Int64Column
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
    """Return the kind of every event."""
    # These are products, since an assignment to marked events takes twenty times as long.
    is_release = releases(events, blocks)
    is_request = has_code(events.action, Action.FREE_REQUESTED)
    keeps_action = (events.action <= int(Action.SEGMENT_UNMAP)) & ~is_request & ~is_release
    return np.asarray(events.action * keeps_action + np.int8(_RELEASE) * is_release)


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
    new_walk = _new_walk(compiled, segments, blocks)
    if new_walk is None:
        return None
    with closing(new_walk, compiled.snapconv_walk_free) as walk:
        sizes = np.zeros(len(kind), np.int64)
        for part, inputs in _newest_first(kind, events, rules):
            columns = [np.ascontiguousarray(column) for column in inputs]
            addresses = [address(column) for column in columns]
            n_events = len(columns[0])
            output = address(sizes[part])
            status = compiled.snapconv_walk_undo(walk, n_events, *addresses, output)
            if not goes_on(status):
                return None
        n_conflicts = compiled.snapconv_walk_conflicts(walk)
        return BlockSizes(rules, sizes, _least_space(compiled, walk), n_conflicts)


def _new_walk(
    compiled: ctypes.CDLL, segments: SegmentTable, blocks: BlockTable
) -> int | None:
    """Return a walk of the compiled core, which copies its inputs; None where they are odd."""
    live = rows_of(blocks.is_live)
    segment_columns = (segments.addr, segments.total_bytes, segments.is_expandable)
    block_columns = (blocks.segment_id[live], blocks.addr[live])
    # The core reads them at their addresses: they must live until it has.
    segment_inputs = list(map(np.ascontiguousarray, segment_columns))
    block_inputs = list(map(np.ascontiguousarray, block_columns))
    new_walk: int | None = compiled.snapconv_walk_new(
        len(segments), *map(address, segment_inputs), len(live), *map(address, block_inputs)
    )
    return new_walk


def _least_space(compiled: ctypes.CDLL, walk: int) -> dict[int, int]:
    n_blocks = compiled.snapconv_walk_least_space(walk, None, None)
    addrs = np.empty(n_blocks, np.int64)
    spaces = np.empty(n_blocks, np.int64)
    compiled.snapconv_walk_least_space(walk, address(addrs), address(spaces))
    return dict(zip(addrs.tolist(), spaces.tolist(), strict=True))


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
        newest_first = [column[::-1] for column in inputs]
        sizes[part] = [memory.undo(*row) for row in plain_rows(*newest_first)][::-1]
    return BlockSizes(rules, sizes, memory.least_space, memory.segments.n_conflicts)


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
    is_move = (events.action >= Action.SEGMENT_ALLOC) & (
        events.action <= Action.SEGMENT_UNMAP
    )
    return rows_of(is_move)


class _Memory:
    """Live blocks and segments at one moment; moves backwards in time."""

    def __init__(self, segments: SegmentTable, blocks: BlockTable) -> None:
        self.segments: AddressRanges[bool] = AddressRanges(
            segments.addr.tolist(), segments.ends.tolist(), segments.is_expandable.tolist()
        )
        self.live = _SortedAddresses(blocks.addr[blocks.is_live].tolist())
        # Blocks whose free was undone and whose alloc was not met yet.
        self.least_space: dict[int, int] = {}

    def undo(
        self, kind: int, addr: int, size: int, rounded: int, least_remainder: int
    ) -> int:
        """Undo the newest event that is left; the bytes of its block if it is an alloc, else 0."""
        if kind != _ALLOC and kind != _RELEASE:
            if kind:
                self._undo_segment(kind, addr, size)
            return 0
        segments = self.segments
        segment = bisect_right(segments.starts, addr) - 1
        if segment < 0 or addr >= segments.ends[segment]:
            self.segments.n_conflicts += 1
            return rounded if kind == _ALLOC else 0
        if kind == _ALLOC:
            space = self._undo_alloc(addr, segments.ends[segment])
            self.segments.n_conflicts += space < rounded
            return space if rounded <= space < rounded + least_remainder else rounded
        self._undo_release(addr, segments.starts[segment], segments.ends[segment])
        return 0

    def _undo_alloc(self, addr: int, segment_end: int) -> int:
        """Remove a live block; return the bytes up to the next one, or to the segment's end."""
        _, following = self.live.around(addr)
        if following == addr:
            self.live.remove(addr)
            self.least_space.pop(addr, None)
            _, following = self.live.around(addr)
        else:
            self.segments.n_conflicts += 1
        return min(following, segment_end) - addr

    def _undo_release(self, addr: int, segment_start: int, segment_end: int) -> None:
        """Add a live block, and note the space that it and the one before it have from then on."""
        previous, following = self.live.around(addr)
        if following == addr:
            self.segments.n_conflicts += 1
            return
        self.least_space[addr] = min(following, segment_end) - addr
        distance = addr - previous
        # A live block of another segment is beyond the ends of this one.
        if previous >= segment_start and distance < self.least_space.get(previous, 0):
            self.least_space[previous] = distance
        self.live.add(addr)

    def _undo_segment(self, action: int, addr: int, size: int) -> None:
        end = addr + size
        if action != Action.SEGMENT_ALLOC and action != Action.SEGMENT_MAP:
            self.segments.give_back(addr, end, action == Action.SEGMENT_UNMAP)
        elif self.segments.take_away(addr, end):
            _, first_live = self.live.around(addr)
            self.segments.n_conflicts += first_live < end
            while first_live < end:
                self.live.remove(first_live)
                _, first_live = self.live.around(addr)


_LEAF = 512
_MAX_LEAF = 1024


class _SortedAddresses:
    """Sorted addresses in short lists, called leaves, none empty.

    In one list of millions, a change would move half of it.
    """

    def __init__(self, addresses: Iterable[int]) -> None:
        # So every address has one before it and one after it.
        ordered = [LOWEST, *sorted(addresses), HIGHEST]
        self._leaves = [ordered[i : i + _LEAF] for i in range(0, len(ordered), _LEAF)]
        self._firsts = [leaf[0] for leaf in self._leaves]

    def around(self, addr: int) -> tuple[int, int]:
        """Return the last address before this one, and the first that is not."""
        number = bisect_left(self._firsts, addr) - 1
        leaf = self._leaves[number]
        index = bisect_left(leaf, addr)
        if index < len(leaf):
            return leaf[index - 1], leaf[index]
        return leaf[index - 1], self._firsts[number + 1]

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
        if leaf:
            self._firsts[number] = leaf[0]
        else:
            del self._firsts[number], self._leaves[number]


# --- the check


@dataclass(frozen=True, slots=True)
class SizeCheck:
    """The numbers of blocks allocated in the trace and live at the dump, and of sizes that differ.

    ``n_different_by_settings`` counts the sizes that differ if the file's own settings apply: more
    than ``n_different`` where other rules fit better and were taken. ``is_other_split_rule``:
    whether those rules split blocks otherwise, as in expandable segments or as in ordinary ones.
    """

    n_checked: int
    n_different: int
    n_different_by_settings: int
    is_other_split_rule: bool = False


@stage
def derive_checked_sizes(
    device: DeviceSnapshot,
    lifetimes: Lifetimes,
    settings: AllocatorSettings,
    *,
    backend: str,
) -> tuple[BlockSizes, SizeCheck]:
    """Derive the sizes by the file's settings, or by rules that fit more of the live blocks.

    The settings are those at the dump, which the program may have changed
    (``_set_allocator_settings``), and torch_npu's padding is in no setting.
    """
    if device.is_host:
        sizes = BlockSizes(HOST_RULES, HOST_RULES.rounded(device.events.size), {}, 0)
        return sizes, _check(sizes, lifetimes, device)
    rules = infer_rules(settings, device.blocks, backend=backend)
    sizes = derive_block_sizes(device.events, device.segments, device.blocks, rules)
    # The blocks' sizes were derived too: there is nothing to compare.
    if not device.has_segments:
        return sizes, SizeCheck(0, 0, 0)
    check = settings_check = _check(sizes, lifetimes, device)
    alternatives = _other_rules(rules, device)
    while check.n_different:
        alternative = next(alternatives, None)
        if alternative is None:
            break
        other_sizes = derive_block_sizes(
            device.events, device.segments, device.blocks, alternative
        )
        other_check = _check(other_sizes, lifetimes, device)
        if other_check.n_different < check.n_different:
            sizes = other_sizes
            check = other_check
    is_other = sizes.rules.settings.expandable_segments != settings.expandable_segments
    is_other |= sizes.rules.expandable is not None
    n_by_settings = settings_check.n_different
    return sizes, replace(
        check, n_different_by_settings=n_by_settings, is_other_split_rule=is_other
    )


def size_notes(check: SizeCheck, rules: RoundingRules) -> Iterator[Note]:
    """Yield the notes on a check that found differences."""
    if check.n_different:
        yield Note(
            "block-size-mismatch",
            f"{check.n_different} of {check.n_checked} traced blocks that are live at the dump "
            "have another size there than their requests give: they count as in the dump, but "
            "those that were freed before may have wrong sizes, so allocated and active bytes "
            "before the dump are approximate",
        )
    if check.is_other_split_rule:
        if rules.expandable is not None:
            kind = "the kind of segment that each is in"
        elif rules.settings.expandable_segments:
            kind = "expandable segments"
        else:
            kind = "ordinary segments"
        yield Note(
            "other-split-rule",
            f"the live blocks were split as in {kind}, against what the file says of them: "
            f"by that, {check.n_different_by_settings} of {check.n_checked} would have another "
            "size than in the dump. If the setting was changed during the run, allocated and "
            "active bytes are approximate while it was the other one",
        )


def _other_rules(first: RoundingRules, device: DeviceSnapshot) -> Iterator[RoundingRules]:
    """Yield the other combinations of padding and split rule.

    Where a device has both kinds of segments, the setting was changed: then first the rule of each
    segment.
    """
    ranges = expandable_ranges(device.segments, device.events)
    obtains_ordinary = has_code(device.events.action, Action.SEGMENT_ALLOC).any()
    has_ordinary = obtains_ordinary or not device.segments.is_expandable.all()
    if len(ranges.starts) and has_ordinary:
        yield replace(first, expandable=ranges)
    settings = first.settings
    for is_changed, padding_bytes in product((False, True), (0, NPU_PADDING_BYTES)):
        is_expandable = settings.expandable_segments != is_changed
        if is_changed or padding_bytes != settings.padding_bytes:
            changed = replace(
                settings, expandable_segments=is_expandable, padding_bytes=padding_bytes
            )
            yield replace(first, settings=changed)


def _check(sizes: BlockSizes, lifetimes: Lifetimes, device: DeviceSnapshot) -> SizeCheck:
    rows = rows_of((lifetimes.alloc_event >= 0) & (lifetimes.block_id >= 0))
    derived_bytes = sizes.event_bytes[lifetimes.alloc_event[rows]]
    dump_bytes = device.blocks.block_bytes[lifetimes.block_id[rows]]
    n_different = count_of(derived_bytes != dump_bytes)
    return SizeCheck(len(rows), n_different, n_different)
