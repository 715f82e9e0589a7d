"""A range of a trace -> the calls to the allocator that it shows, and the memory before them.

Segments are not called for: they come and go by what the allocator does with these calls. Only
where the program called ``empty_cache()``, or the device had no memory left, the trace's own
segment events show it.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from snapconv.allocator.allocator_settings import (
    MIN_BLOCK_BYTES,
    SMALL_REQUEST_BYTES,
    AllocatorSettings,
)
from snapconv.allocator.allocator_trace import DEFAULT_POOL, PoolId
from snapconv.allocator.blocks import LiveBlock, SegmentLayout
from snapconv.classification.features import at
from snapconv.columns import (
    BoolColumn,
    Int8Column,
    Int64Column,
    count_of,
    first_known,
    has_code,
    is_among,
    plain_rows,
    read_only,
    rows_of,
    run_starts,
    take,
    unknown_column,
)
from snapconv.replay.device_replay import AllocationTable, Replay
from snapconv.replay.lifetimes import real_events
from snapconv.replay.memory_layout import MemoryLayout, Pieces, layout_at, segments_of
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot, Snapshot
from snapconv.snapshot.segment_table import SegmentTable
from snapconv.snapshot.stack_table import StackTable

# Above every address of a device, and its negative below: those of Intel GPUs may be negative.
_NO_ADDRESS = 1 << 62
# No memory is as large, and sums of it are still integers of 64 bits.
MOST_BYTES = 1 << 50


class CallKind(IntEnum):
    """The calls; the values are those of AllocatorCalls.operation."""

    MALLOC = 0
    FREE = 1  # requested and completed at once
    REQUEST_FREE = 2
    COMPLETE_FREE = 3
    EMPTY_CACHE = 4
    # The next malloc found the device full, and gave cached segments back.
    DEVICE_IS_FULL = 5
    # A request that failed: the trace's ``oom`` event.
    FAILED_MALLOC = 6


@dataclass(frozen=True, slots=True)
class CallChange:
    """A change of calls beside their sizes.

    The frees of the allocations ``completed`` complete at once, as if no other stream used their
    blocks. The cache is emptied after the events ``emptied``. The streams ``merged`` are one, the
    first of them.
    """

    completed: tuple[int, ...] = ()
    emptied: tuple[int, ...] = ()
    merged: tuple[int, ...] = ()

    def stream_of(self, stream: ArrayLike) -> Int64Column:
        """Return the streams that the calls of some streams then have."""
        return np.where(np.isin(stream, self.merged), min(self.merged, default=0), stream)


@dataclass(frozen=True, slots=True)
class ReplayStart:
    """The segments just before an event, with their live blocks.

    ``rows`` maps the address of a live block to its row among the allocations. ``n_inexact`` counts
    blocks whose size is only known to be at least the one here; ``n_outside`` counts live ones that
    no segment contains, which are left out.
    """

    segments: tuple[SegmentLayout, ...]
    rows: dict[int, int]
    n_inexact: int
    n_outside: int


@dataclass(frozen=True, slots=True)
class AllocatorCalls:
    """Calls in the order of the trace, one row each, and the memory before the first of them.

    ``row`` is a row of the allocations, -1 where none is meant; ``event`` the event that shows the
    call. ``requested_bytes``, ``stream`` and ``pool`` (position in ``pools``, as ``default_pool``)
    have one entry for each allocation. ``file_settings`` are those that the trace was recorded
    with, as far as the file has them. ``n_missing`` counts calls that must have been, but are not
    in the trace; ``n_unsure_returns`` how often a DEVICE_IS_FULL may have been an EMPTY_CACHE,
    since no stack shows it.
    """

    operation: Int8Column
    row: Int64Column
    event: Int64Column
    requested_bytes: Int64Column
    stream: Int64Column
    pool: Int64Column
    pools: tuple[PoolId, ...]
    default_pool: int
    start: ReplayStart
    events: EventTable
    file_settings: AllocatorSettings
    reserved_after: Int64Column
    n_missing: int
    n_unsure_returns: int

    def __len__(self) -> int:
        return len(self.operation)

    def select(self, calls: NDArray[Any] | slice) -> "AllocatorCalls":
        """Return some of the calls."""
        return replace(
            self,
            operation=self.operation[calls],
            row=self.row[calls],
            event=self.event[calls],
        )

    def until(self, event: int) -> "AllocatorCalls":
        """Return the calls of the events before this one."""
        return self.select(slice(int(np.searchsorted(self.event, event))))

    def compact(self) -> tuple["AllocatorCalls", Int64Column]:
        """Return the calls with the allocations that they or the start have, and those alone.

        Also return the row of each among all allocations.
        """
        is_called = np.zeros(len(self.requested_bytes), bool)
        is_called[self.row[self.row >= 0]] = True
        is_called[list(self.start.rows.values())] = True
        rows = rows_of(is_called)
        number = unknown_column(len(is_called) + 1)  # the last entry is that of row -1
        number[rows] = np.arange(len(rows))
        start_rows = {addr: int(number[row]) for addr, row in self.start.rows.items()}
        calls = replace(
            self,
            row=number[self.row],
            requested_bytes=self.requested_bytes[rows],
            stream=self.stream[rows],
            pool=self.pool[rows],
            start=replace(self.start, rows=start_rows),
        )
        return calls, rows

    def insert(
        self,
        operation: ArrayLike,
        row: ArrayLike,
        event: ArrayLike,
        is_after: ArrayLike = 0,
    ) -> "AllocatorCalls":
        """Return the calls with others, each before the calls of its event, or after them."""
        event = np.asarray(event, np.int64)
        added_key = event * _PLACES + np.asarray(is_after) * _AFTER
        key = np.append(added_key, self.event * _PLACES + _ITSELF)
        calls = replace(
            self,
            operation=np.append(operation, self.operation).astype(np.int8),
            row=np.append(row, self.row),
            event=np.append(event, self.event),
        )
        return calls.select(np.argsort(key, kind="stable"))

    def changed(self, change: CallChange) -> "AllocatorCalls":
        """Return the calls with a change; a trial skips the completion of what is free already."""
        is_request = has_code(self.operation, CallKind.REQUEST_FREE)
        is_free = is_request & is_among(self.row, change.completed)
        segments = []
        for segment in self.start.segments:
            stream = int(change.stream_of(segment.stream))
            segments.append(replace(segment, stream=stream))
        calls = replace(
            self,
            operation=np.where(is_free, np.int8(CallKind.FREE), self.operation),
            stream=change.stream_of(self.stream),
            start=replace(self.start, segments=tuple(segments)),
            events=replace(self.events, stream=change.stream_of(self.events.stream)),
        )
        event = np.maximum(np.array(change.emptied, np.int64), calls.event[:1].sum())
        operation = np.full_like(event, CallKind.EMPTY_CACHE)
        return calls.insert(operation, np.full_like(event, -1), event, 1)

    def resized(
        self, requested_bytes: Int64Column, failed_scale: float = 1.0
    ) -> "AllocatorCalls":
        """Return the same calls for other sizes.

        Requests that failed are ``failed_scale`` times as large.
        """
        failed = rows_of(self.events.action == Action.OOM)
        size = self.events.size.copy()
        grown = np.minimum(size[failed] * failed_scale, MOST_BYTES).astype(np.int64)
        size[failed] = grown - grown % -MIN_BLOCK_BYTES
        events = replace(self.events, size=size)
        return replace(self, requested_bytes=requested_bytes, events=events)


def find_calls(
    snapshot: Snapshot, device: DeviceSnapshot, replayed: Replay, *, first_event: int = 0
) -> AllocatorCalls:
    """Find the calls from ``first_event`` on, and the memory just before it."""
    events = real_events(device.events)
    rows = replayed.allocations
    device = replace(device, events=events)
    pools = tuple(dict.fromkeys((*snapshot.pools, DEFAULT_POOL)))
    default = pools.index(DEFAULT_POOL)
    emptied, filled, n_unsure_returns = _find_returns(events, replayed, snapshot.stacks)
    parts = [
        *_allocation_parts(events, replayed),
        _part(emptied, CallKind.EMPTY_CACHE, rank=_BEFORE),
        _part(filled, CallKind.DEVICE_IS_FULL, rank=_BEFORE),
        _part(rows_of(events.action == Action.OOM), CallKind.FAILED_MALLOC, rank=_ITSELF),
    ]
    position, operation, row = _sort_calls(parts, first_event)
    return read_only(
        AllocatorCalls(
            operation=operation.astype(np.int8),
            row=row,
            event=position // _PLACES,
            requested_bytes=rows.requested_bytes,
            stream=rows.stream,
            pool=_pools_of(device, replayed, default),
            pools=pools,
            default_pool=default,
            start=start_before(device, replayed, pools, first_event),
            events=events,
            file_settings=replayed.rules.settings,
            reserved_after=replayed.reserved.after,
            n_missing=replayed.n_missing_events,
            n_unsure_returns=n_unsure_returns,
        )
    )


# Several calls may belong to one event: these are their places.
_BEFORE, _ITSELF, _AFTER, _PLACES = 0, 1, 2, 3

# Positions (an event and a place at it), operations and rows.
_Part = tuple[Int64Column, ...]


def _part(
    event: NDArray[Any], operation: CallKind, *, rank: int, row: ArrayLike = -1
) -> _Part:
    order = event.astype(np.int64) * _PLACES + rank
    operations = np.full(len(event), operation, np.int64)
    return order, operations, np.full(len(event), row, np.int64)


def _sort_calls(parts: Iterable[_Part], first_event: int) -> _Part:
    """Return the calls of all parts in the order of their positions, from an event on."""
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    position = columns[0]
    order = np.argsort(position, kind="stable")
    order = order[position[order] >= first_event * _PLACES]
    return tuple(column[order] for column in columns)


def _allocation_parts(events: EventTable, replayed: Replay) -> Iterator[_Part]:
    """Yield mallocs and frees. A free that completes right after its request is one call."""
    rows = replayed.allocations
    requested = rows.free_requested_event
    ended = rows.end_event
    # Where a free is missing, the block was freed before the malloc that found its memory free.
    is_implied = has_code(at(events.action, ended), Action.ALLOC)
    has_end = (ended >= 0) & ~is_implied
    has_request = requested >= 0
    is_direct = has_end & (~has_request | (ended - requested <= 1))
    # What was requested before the trace is pending when it begins.
    is_direct &= has_request | ~np.any(has_code(events.action, Action.FREE_REQUESTED))
    is_requested = has_request & ~is_implied & ~is_direct
    kinds = (
        (rows.alloc_event, rows.alloc_event >= 0, CallKind.MALLOC, _ITSELF),
        (ended, is_implied, CallKind.FREE, _BEFORE),
        (np.where(has_request, requested, ended), is_direct, CallKind.FREE, _ITSELF),
        (requested, is_requested, CallKind.REQUEST_FREE, _ITSELF),
        (ended, has_end & ~is_direct, CallKind.COMPLETE_FREE, _AFTER),
    )
    for event, has_call, operation, rank in kinds:
        yield _part(event[has_call], operation, rank=rank, row=rows_of(has_call))


def _find_returns(
    events: EventTable, replayed: Replay, stacks: StackTable
) -> tuple[Int64Column, Int64Column, int]:
    """Find where the program emptied the cache, and where the device was full.

    The last value is how often that is unsure. Both as the events at which a run of segments begins
    that were given back. A malloc that finds the device full gives segments back, and then gets new
    memory or fails. So it was the program where something else follows; where a stack says so
    (stacks of all events have the name); and where the device had more at another time than would
    have been needed, unless garbage was collected.
    """
    begins, follower = _runs_of_returns(events)
    next_action = at(events.action, follower)
    is_growth = is_among(next_action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    stack = events.stack_id[begins]
    next_stack = at(events.stack_id, follower, -1)
    is_by_program = ~(is_growth | (next_action == Action.OOM))
    is_by_program |= at(_stacks_that_empty(stacks), stack)
    if replayed.rules.settings.garbage_collection_threshold == 0:
        reserved = replayed.reserved
        # The last entry is of before the trace.
        before = np.append(reserved.after, reserved.start)[begins - 1]
        requested = at(events.size, follower)
        is_by_program |= is_growth & (before + requested <= reserved.peak)
    is_sure = is_by_program | ((stack >= 0) & (stack == next_stack))
    return begins[is_by_program], begins[~is_by_program], count_of(~is_sure)


def _runs_of_returns(events: EventTable) -> tuple[Int64Column, Int64Column]:
    """Return where each run of returned segments begins, and the call or growth that follows it.

    The number of events where nothing follows.
    """
    is_return = is_among(events.action, (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP))
    rows = rows_of(is_return | is_among(events.action, _CALLS_AND_GROWTH))
    starts = rows[run_starts(is_return[rows])]
    runs = rows_of(is_return[starts])
    return starts[runs], at(starts, runs + 1, len(events))


_CALLS_AND_GROWTH = (
    Action.ALLOC,
    Action.FREE_REQUESTED,
    Action.FREE,
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_MAP,
    Action.OOM,
)


def _stacks_that_empty(stacks: StackTable) -> NDArray[np.bool_]:
    """Mark the stacks that contain a call of ``empty_cache()``."""
    is_call = [
        name == "empty_cache" or "emptyCache" in name for name in stacks.frames.names
    ]
    calls = stacks.only(np.array(is_call, bool))
    return np.diff(calls.offsets) > 0


def _pools_of(device: DeviceSnapshot, replayed: Replay, default: int) -> Int64Column:
    """Find the pool of every allocation: as the file has it, else that of its final segment."""
    rows = replayed.allocations
    segments = take(device.segments, np.argsort(device.segments.addr))
    segment, is_inside = segments_of(segments, rows.addr, rows.block_bytes)
    segment_pool = np.where(is_inside, at(segments.pool_id, segment), -1)
    default_pool = np.full(len(rows), default)
    return first_known(rows.pool_id, segment_pool, default_pool)


def start_before(
    device: DeviceSnapshot, replayed: Replay, pools: tuple[PoolId, ...], event: int
) -> ReplayStart:
    """Find where memory was just before an event of one device."""
    rows = replayed.allocations
    segments, blocks = _drop_overlaps(layout_at(device, rows, event - 1))
    live = blocks.allocation
    is_pending = _is_pending(device.events, rows, event)
    columns = (blocks.addr, blocks.n_bytes, rows.requested_bytes[live], is_pending[live])
    live_blocks: list[list[LiveBlock]] = [[] for _ in range(len(segments))]
    for segment, *fields in plain_rows(blocks.segment, *columns):
        live_blocks[segment].append(LiveBlock(*fields))
    is_live = (rows.alloc_event < event) & (
        (rows.end_event < 0) | (rows.end_event >= event)
    )
    return ReplayStart(
        segments=tuple(_segment_layouts(segments, live_blocks, pools)),
        rows=dict(plain_rows(blocks.addr, live)),
        n_inexact=count_of(~rows.is_exact[live]),
        n_outside=count_of(is_live) - len(blocks.addr),
    )


def _drop_overlaps(layout: MemoryLayout) -> tuple[SegmentTable, Pieces]:
    """Return the segments and blocks of a layout that lie over no other.

    Where segments overlap, the first counts; where blocks do, the part before the next one.
    """
    segments = layout.segments
    blocks = layout.blocks
    ends = np.maximum.accumulate(segments.addr + segments.total_bytes)
    is_first = segments.addr >= np.append(-_NO_ADDRESS, ends[:-1])
    n_bytes = np.minimum(blocks.n_bytes, np.diff(blocks.addr, append=_NO_ADDRESS))
    exists = (n_bytes > 0) & is_first[blocks.segment]
    number = np.cumsum(is_first) - 1
    blocks = replace(blocks, n_bytes=n_bytes, segment=number[blocks.segment])
    return take(segments, rows_of(is_first)), take(blocks, rows_of(exists))


def _is_pending(events: EventTable, rows: AllocationTable, event: int) -> BoolColumn:
    """Mark the allocations that were freed before the event, as far as they are live just then."""
    has_requests = bool(np.any(events.action == Action.FREE_REQUESTED))
    before = (rows.free_requested_event >= 0) & (rows.free_requested_event < event)
    # Requested before the first event: only its completion, or its state at the dump, shows it.
    unseen = (rows.alloc_event < 0) & (rows.free_requested_event < 0)
    completes = (rows.free_completed_event >= 0) & has_requests
    return before | (unseen & (completes | rows.is_pending_at_end))


def _segment_layouts(
    segments: SegmentTable, blocks: Iterable[list[LiveBlock]], pools: tuple[PoolId, ...]
) -> Iterator[SegmentLayout]:
    """Put the live blocks into their segments."""
    names = ("addr", "total_bytes", "stream", "pool_id", "is_small", "is_expandable")
    columns = [getattr(segments, name).tolist() for name in names]
    for live, addr, size, stream, pool, is_small, is_expandable in zip(
        blocks, *columns, strict=True
    ):
        if is_expandable and live:
            # What was unmapped may have been of either pool; its blocks show which.
            is_small = live[0].size <= SMALL_REQUEST_BYTES
        pool_id = pools[pool] if pool >= 0 else DEFAULT_POOL
        yield SegmentLayout(
            addr, size, stream, pool_id, is_small, is_expandable, tuple(live)
        )
