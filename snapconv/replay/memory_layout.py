"""The memory layout at a moment: the segments, the blocks in them, and the free pieces between.

The file has this for the dump only. Segments of an earlier moment follow from those of the dump,
with the events in between undone; blocks are the allocations that were active then. Columns in,
columns out.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from snapconv.allocator.address_ranges import AddressRanges
from snapconv.allocator.allocator_settings import SMALL_SEGMENT_BYTES
from snapconv.columns import (
    BoolColumn,
    Int64Column,
    count_of,
    plain_rows,
    read_only,
    rows_by,
    rows_of,
    unknown_column,
)
from snapconv.replay.block_sizes import segment_moves
from snapconv.replay.device_replay import AllocationTable
from snapconv.replay.lifetimes import real_events
from snapconv.replay.rounding import ranges_of
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.snapshot.segment_table import SegmentTable


@dataclass(frozen=True, slots=True)
class Pieces:
    """Pieces of segments, by address: the rows of their segment and allocation (-1: free)."""

    segment: Int64Column
    addr: Int64Column
    n_bytes: Int64Column
    allocation: Int64Column


@dataclass(frozen=True, slots=True)
class MemoryLayout:
    """The memory of one device just after an event (-1: before the first one).

    ``blocks`` are those in use or waiting for a stream, ``free`` the largest pieces between them,
    both by address. ``n_conflicts`` counts what contradicts the rest: events that fit no segment,
    blocks outside of every segment (which are in no row), blocks that overlap. With none, a segment
    is the sum of its pieces. ``large_segment_bytes`` is the device's.
    """

    event: int
    segments: SegmentTable
    blocks: Pieces
    free: Pieces
    n_conflicts: int
    large_segment_bytes: int


class SegmentFacts(NamedTuple):
    """The columns of a segment beside its address and size, in the order of SegmentTable."""

    stream: int
    pool_id: int
    is_small: bool
    is_expandable: bool
    stack_id: int


_DTYPES: dict[str, type[np.generic]] = {
    "stream": np.int64,
    "pool_id": np.int32,
    "is_small": np.bool_,
    "is_expandable": np.bool_,
    "stack_id": np.int32,
}


def layouts(
    device: DeviceSnapshot, allocations: AllocationTable, events: Sequence[int]
) -> dict[int, MemoryLayout]:
    """Return the layout after each of some events; one walk back from the dump finds them all."""
    dump = device.segments
    real = real_events(device.events)
    facts_columns = [getattr(dump, name) for name in SegmentFacts._fields]
    facts = [SegmentFacts(*row) for row in plain_rows(*facts_columns)]
    ranges = AddressRanges(
        dump.addr.tolist(), dump.ends.tolist(), facts, are_joined=are_joined
    )
    earlier = segment_moves(real)
    result = {}
    for event in sorted(set(events), reverse=True):
        n_earlier = np.searchsorted(earlier, event, side="right")
        later = earlier[n_earlier:]
        earlier = earlier[:n_earlier]
        move_segments(ranges, real, later[::-1], device.large_segment_bytes, is_undone=True)
        result[event] = _layout(device, allocations, event, ranges)
    return result


def layout_at(
    device: DeviceSnapshot, allocations: AllocationTable, event: int
) -> MemoryLayout:
    """Return the layout after one event."""
    return layouts(device, allocations, [event])[event]


def are_joined(first: SegmentFacts, second: SegmentFacts) -> bool:
    """Return whether two ranges side by side are of one expandable segment."""
    return first.is_expandable and second.is_expandable and first.stream == second.stream


def move_segments(
    segments: AddressRanges[SegmentFacts],
    events: EventTable,
    rows: Int64Column,
    large_segment_bytes: int,
    *,
    is_undone: bool,
) -> None:
    """Let events of segments happen one after the other, or undo them, the newest first."""
    columns = (events.action, events.addr, events.size, events.stream, events.stack_id)
    moved = [column[rows] for column in columns]
    values = np.column_stack((*moved, events.pools(rows)))
    for action, addr, size, stream, stack_id, pool_id in values.tolist():
        if (action in (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)) == is_undone:
            segments.take_away(addr, addr + size)
        else:
            is_expandable = action in (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
            is_small = is_small_segment(
                size, large_segment_bytes, is_expandable=is_expandable
            )
            facts = SegmentFacts(stream, pool_id, is_small, is_expandable, stack_id)
            segments.give_back(addr, addr + size, facts)


def segment_table(ranges: AddressRanges[SegmentFacts], device: int) -> SegmentTable:
    """Return ranges as a table."""
    addr = np.array(ranges.starts, np.int64)
    columns = np.array(ranges.facts, np.int64).reshape(len(addr), len(_DTYPES)).T
    facts = {
        name: column.astype(dtype)
        for (name, dtype), column in zip(_DTYPES.items(), columns, strict=True)
    }
    total_bytes = np.array(ranges.ends, np.int64) - addr
    return read_only(SegmentTable(np.full(len(addr), device), addr, total_bytes, **facts))


def is_small_segment(
    n_bytes: int, large_segment_bytes: int, *, is_expandable: bool
) -> bool:
    """Return whether a segment of this size was of a small pool when it was given back.

    Only small pools have segments of 2 MiB, and pages of 2 MiB. Pages of large pools are of 20 MiB,
    or of the ``large_segment_size_mb`` of the settings (torch 2.12 on).
    """
    if is_expandable:
        return n_bytes % large_segment_bytes != 0
    return n_bytes == SMALL_SEGMENT_BYTES


def _layout(
    device: DeviceSnapshot,
    allocations: AllocationTable,
    event: int,
    ranges: AddressRanges[SegmentFacts],
) -> MemoryLayout:
    segments = segment_table(ranges, device.device)
    end = allocations.end_event
    is_open = (end < 0) | (end > event)
    active = rows_of((allocations.alloc_event <= event) & is_open)
    active = rows_by(allocations.addr, active)
    addr = allocations.addr[active]
    n_bytes = allocations.block_bytes[active]
    segment, is_inside = segments_of(segments, addr, n_bytes)
    n_outside = count_of(~is_inside)
    blocks = Pieces(
        segment[is_inside], addr[is_inside], n_bytes[is_inside], active[is_inside]
    )
    free, n_overlaps = _between(segments, blocks)
    return MemoryLayout(
        event=event,
        segments=segments,
        blocks=read_only(blocks),
        free=read_only(free),
        n_conflicts=ranges.n_conflicts + n_outside + n_overlaps,
        large_segment_bytes=device.large_segment_bytes,
    )


def segments_of(
    segments: SegmentTable, addr: Int64Column, n_bytes: Int64Column
) -> tuple[Int64Column, BoolColumn]:
    """Return the segment of every block, and whether it lies within it."""
    return ranges_of(segments.addr, segments.ends, addr, addr + n_bytes)


def _between(segments: SegmentTable, blocks: Pieces) -> tuple[Pieces, int]:
    """Return the free pieces of all segments, by address, and the number of overlaps of blocks."""
    numbers = np.arange(len(segments))
    ends = segments.ends
    # Both ends of a segment are pieces of no bytes: space beside them is found like any other.
    segment = np.concatenate((numbers, blocks.segment, numbers))
    start = np.concatenate((segments.addr, blocks.addr, ends))
    stop = np.concatenate((segments.addr, blocks.addr + blocks.n_bytes, ends))
    order = np.lexsort((start, segment))
    segment = segment[order]
    start = start[order]
    stop = stop[order]
    is_same_segment = segment[1:] == segment[:-1]
    space = np.where(is_same_segment, start[1:] - stop[:-1], 0)
    rows = rows_of(space > 0)
    free = Pieces(segment[rows], stop[rows], space[rows], unknown_column(len(rows)))
    return free, count_of(space < 0)
