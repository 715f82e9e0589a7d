"""The memory that a replay starts with: that of a moment of the trace, as the allocator model takes it."""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.allocator.allocator_state import LiveBlock, SegmentLayout
from snapconv.allocator.allocator_trace import DEFAULT_POOL, PoolId
from snapconv.columns import BoolColumn, Int64Column
from snapconv.replay.device_replay import AllocationTable, Replay
from snapconv.replay.memory_layout import MemoryLayout, layout_at
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """The segments just before an event, with their live blocks.

    ``rows`` maps the address of a live block to its row among the allocations. ``n_inexact`` counts blocks
    whose size is only known to be at least the one here, ``n_outside`` live ones that no segment contains:
    they are left out.
    """

    segments: tuple[SegmentLayout, ...]
    rows: dict[int, int]
    n_inexact: int
    n_outside: int


def start_before(
    device: DeviceSnapshot, replayed: Replay, pools: tuple[PoolId, ...], event: int
) -> ReplayStart:
    """Find where memory was just before an event of one device."""
    rows = replayed.allocations
    sizes, is_exact = block_sizes(device, replayed)
    layout = layout_at(device, replace(rows, block_bytes=sizes), event - 1)
    live, is_pending = layout.blocks.allocation, _is_pending(device.events, rows, event)
    blocks = [
        LiveBlock(*fields)
        for fields in zip(
            layout.blocks.addr.tolist(),
            layout.blocks.n_bytes.tolist(),
            rows.requested_bytes[live].tolist(),
            is_pending[live].tolist(),
            strict=True,
        )
    ]
    segments = tuple(_with_blocks(layout, blocks, pools))
    inside = {block.addr for segment in segments for block in segment.live}
    is_live = (rows.alloc_event < event) & ((rows.end_event < 0) | (rows.end_event >= event))
    row_of = zip(layout.blocks.addr.tolist(), live.tolist(), strict=True)
    return ReplayStart(
        segments=segments,
        rows={addr: row for addr, row in row_of if addr in inside},
        n_inexact=int(np.count_nonzero(~is_exact[live])),
        n_outside=int(np.count_nonzero(is_live)) - len(inside),
    )


def block_sizes(device: DeviceSnapshot, replayed: Replay) -> tuple[Int64Column, BoolColumn]:
    """Derive the block bytes of every allocation, and which are certain.

    Beyond the replay's own inference: a block is placed where free memory begins, which is where its left
    neighbour ends. So a pre-existing block ends where the nearest block to its right begins, if that one
    was allocated in the trace while the first was there.
    """
    rows = replayed.allocations
    sizes, is_exact = rows.block_bytes.copy(), rows.is_exact.copy()
    unknown = np.flatnonzero(~is_exact)
    if not len(unknown):
        return sizes, is_exact
    order = np.lexsort((rows.alloc_event, rows.addr))
    addr = rows.addr[order]
    first = np.flatnonzero(np.concatenate(([True], addr[1:] != addr[:-1])))
    addrs, first_alloc = addr[first].tolist(), rows.alloc_event[order][first].tolist()
    starts = _segment_starts(device)
    least_remainder = replayed.rules.least_remainder(sizes[unknown], rows.addr[unknown]).tolist()
    for row, least in zip(unknown.tolist(), least_remainder, strict=True):
        start, end, size = int(rows.addr[row]), int(rows.end_event[row]), int(sizes[row])
        place = bisect_right(addrs, start)
        while place < len(addrs) and first_alloc[place] >= end:
            place += 1
        if place == len(addrs) or first_alloc[place] < 0 or addrs[place] in starts:
            continue
        if size <= addrs[place] - start < size + least:
            sizes[row], is_exact[row] = addrs[place] - start, True
    return sizes, is_exact


def _segment_starts(device: DeviceSnapshot) -> set[int]:
    events = device.events
    moves = (events.action >= Action.SEGMENT_ALLOC) & (events.action <= Action.SEGMENT_UNMAP)
    return {*device.segments.addr.tolist(), *events.addr[moves].tolist()}


def _is_pending(events: EventTable, rows: AllocationTable, event: int) -> BoolColumn:
    """Mark the allocations that were freed before the event, as far as they are live just then."""
    has_requests = bool(np.any(events.action == Action.FREE_REQUESTED))
    before = (rows.free_requested_event >= 0) & (rows.free_requested_event < event)
    # Requested before the first event: only its completion, or its state at the dump, shows it.
    unseen = (rows.alloc_event < 0) & (rows.free_requested_event < 0)
    completes = (rows.free_completed_event >= 0) & has_requests
    return np.asarray(before | (unseen & (completes | rows.is_pending_at_end)))


def _with_blocks(
    layout: MemoryLayout, blocks: list[LiveBlock], pools: tuple[PoolId, ...]
) -> Iterator[SegmentLayout]:
    """Put the live blocks into their segments; no block or segment lies over another."""
    segments, first, end = layout.segments, 0, 0
    columns = (segments.addr, segments.total_bytes, segments.stream, segments.pool_id, segments.is_small)
    rows = zip(*(column.tolist() for column in (*columns, segments.is_expandable)), strict=True)
    counts = np.bincount(layout.blocks.segment, minlength=len(segments)).tolist()
    for (addr, size, stream, pool, is_small, is_expandable), count in zip(rows, counts, strict=True):
        if addr < end:
            first += count
            continue
        end = addr + size
        live = _cut_where_they_overlap(blocks[first : first + count], addr + size)
        first += count
        if is_expandable and live:
            # What was unmapped may have been of either pool; its blocks show which.
            is_small = live[0].size <= SMALL_REQUEST_BYTES
        pool_id = pools[pool] if pool >= 0 else DEFAULT_POOL
        yield SegmentLayout(addr, size, stream, pool_id, is_small, is_expandable, live)


def _cut_where_they_overlap(blocks: list[LiveBlock], end: int) -> tuple[LiveBlock, ...]:
    limits = [block.addr for block in blocks[1:]] + [end]
    return tuple(
        block if block.addr + block.size <= limit else replace(block, size=limit - block.addr)
        for block, limit in zip(blocks, limits, strict=False)
        if limit > block.addr
    )
