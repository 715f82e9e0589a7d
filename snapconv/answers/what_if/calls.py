"""A range of a trace -> the calls to the allocator that it shows, and the memory that they began with.

Segments are not called for: they come and go by what the allocator does with these calls. Only where the
program called ``empty_cache()``, or the device had no memory left, the trace's own segment events show it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.allocator.allocator_settings import (
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
)
from snapconv.allocator.allocator_trace import DEFAULT_POOL, PoolId
from snapconv.answers.what_if.start import ReplayStart, start_before
from snapconv.columns import BoolColumn, Int8Column, Int64Column, read_only
from snapconv.replay.device_replay import Replay
from snapconv.replay.lifetimes import real_events
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot, Snapshot
from snapconv.snapshot.stack_table import StackTable


class Operation(IntEnum):
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
class AllocatorCalls:
    """Calls in the order of the trace, one row each, and the memory before the first of them.

    ``row`` is a row of the allocations, -1 where none is meant; ``event`` the event that shows the call.
    ``requested_bytes``, ``stream`` and ``pool`` (position in ``pools``, as ``default_pool``) have one
    entry for each allocation. ``own`` are the
    settings that the trace was recorded with, as far as the file has them. ``n_missing`` counts calls that
    must have been, but are not in the trace; ``n_unsure_returns`` how often a DEVICE_IS_FULL may have been an
    EMPTY_CACHE, since no stack shows it.
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
    own: AllocatorSettings
    reserved_after: Int64Column
    n_missing: int
    n_unsure_returns: int

    def __len__(self) -> int:
        return len(self.operation)

    def until(self, event: int) -> "AllocatorCalls":
        """Return the calls of the events before this one."""
        kept = int(np.searchsorted(self.event, event))
        return replace(self, operation=self.operation[:kept], row=self.row[:kept], event=self.event[:kept])


def find_calls(
    snapshot: Snapshot,
    device: DeviceSnapshot,
    replayed: Replay,
    *,
    first_event: int = 0,
    freed_before: Mapping[int, int] | None = None,
    empty_cache_before: Sequence[int] = (),
) -> AllocatorCalls:
    """Find the calls from ``first_event`` on, and the memory just before it.

    ``freed_before`` maps rows of the allocations to events: these are freed just before them and not where
    the trace has it. ``empty_cache_before`` are events before which ``empty_cache()`` is called too.
    """
    events, rows = real_events(device.events), replayed.allocations
    device = DeviceSnapshot(device.device, events, device.segments, device.blocks)
    pools = snapshot.pools or (DEFAULT_POOL,)
    default = pools.index(DEFAULT_POOL) if DEFAULT_POOL in pools else len(pools)
    pools = pools if default < len(pools) else (*pools, DEFAULT_POOL)
    returns = _find_returns(events, replayed, snapshot.stacks)
    parts = [
        *_of_allocations(events, replayed, freed_before or {}),
        *returns.parts(),
        _part(np.flatnonzero(events.action == Action.OOM), Operation.FAILED_MALLOC, place=_ITSELF),
        _part(np.array(empty_cache_before, np.int64), Operation.EMPTY_CACHE, place=_BEFORE),
    ]
    order, operation, row = (np.concatenate(column) for column in zip(*parts, strict=True))
    sort = np.argsort(order, kind="stable")
    sort = sort[order[sort] >= first_event * _PLACES]
    return read_only(
        AllocatorCalls(
            operation=operation[sort].astype(np.int8),
            row=row[sort],
            event=order[sort] // _PLACES,
            requested_bytes=rows.requested_bytes,
            stream=rows.stream,
            pool=_pools_of(device, replayed, default),
            pools=pools,
            default_pool=default,
            start=start_before(device, replayed, pools, first_event),
            events=events,
            own=replayed.rules.settings,
            reserved_after=replayed.reserved.after,
            n_missing=replayed.n_missing_events,
            n_unsure_returns=returns.n_unsure,
        )
    )


# Several calls may belong to one event: these are their places.
_BEFORE, _ITSELF, _AFTER, _PLACES = 0, 1, 2, 3

_Part = tuple[Int64Column, NDArray[Any], Int64Column]


def _part(
    event: NDArray[np.integer[Any]], operation: Operation, *, place: int, row: Int64Column | None = None
) -> _Part:
    none = np.full(len(event), -1, np.int64)
    return (
        event.astype(np.int64) * _PLACES + place,
        np.full(len(event), operation),
        none if row is None else row,
    )


def _of_allocations(events: EventTable, replayed: Replay, freed_before: Mapping[int, int]) -> list[_Part]:
    """Mallocs and frees. A free that completes right after its request is one call."""
    rows = replayed.allocations
    requested, ended = rows.free_requested_event.copy(), rows.end_event.copy()
    moved = np.array(list(freed_before), np.int64)
    requested[moved] = ended[moved] = np.array(list(freed_before.values()), np.int64)
    is_moved = np.zeros(len(rows), np.bool_)
    is_moved[moved] = True
    malloc = np.flatnonzero(rows.alloc_event >= 0)
    has_end = ended >= 0
    # Where a free is missing, the block was freed before the malloc that found its memory free.
    action = np.append(events.action, Action.UNKNOWN)  # for those without an end
    is_implied = has_end & ((action[ended] == Action.ALLOC) | is_moved)
    at_once = has_end & ~is_implied & ((requested < 0) | (ended - requested <= 1))
    # What was requested before the trace is pending when it begins.
    at_once &= (requested >= 0) | ~np.any(events.action == Action.FREE_REQUESTED)
    later = has_end & ~is_implied & ~at_once
    is_requested = (requested >= 0) & ~is_implied & ~at_once
    at_once_event = np.where(requested >= 0, requested, ended)
    return [
        _part(rows.alloc_event[malloc], Operation.MALLOC, place=_ITSELF, row=malloc),
        _free_part(ended, is_implied, Operation.FREE, place=_BEFORE),
        _free_part(at_once_event, at_once, Operation.FREE, place=_ITSELF),
        _free_part(requested, is_requested, Operation.REQUEST_FREE, place=_ITSELF),
        _free_part(ended, later, Operation.COMPLETE_FREE, place=_AFTER),
    ]


def _free_part(
    event: NDArray[np.integer[Any]], where: NDArray[np.bool_], operation: Operation, *, place: int
) -> _Part:
    rows = np.flatnonzero(where)
    return _part(event[rows], operation, place=place, row=rows)


@dataclass(frozen=True, slots=True)
class _Returns:
    """Events at which a run of segments begins that were given back, and by whom: one entry for each."""

    event: Int64Column
    is_by_program: BoolColumn
    n_unsure: int

    def parts(self) -> list[_Part]:
        return [
            _part(self.event[self.is_by_program], Operation.EMPTY_CACHE, place=_BEFORE),
            _part(self.event[~self.is_by_program], Operation.DEVICE_IS_FULL, place=_BEFORE),
        ]


def _find_returns(events: EventTable, replayed: Replay, stacks: StackTable) -> _Returns:
    """Find where the program emptied the cache, and where the device was full.

    A malloc that finds the device full gives segments back, and then gets new memory or fails. So it was
    the program where something else follows; where a stack says so (stacks of all events have the name);
    where one of the segments would have fitted the malloc; and where the device had more at another time
    than would have been needed, unless garbage was collected.
    """
    action, settings = events.action, replayed.rules.settings
    is_return = (action == Action.SEGMENT_FREE) | (action == Action.SEGMENT_UNMAP)
    at = np.flatnonzero(is_return | np.isin(action, _CALLS_AND_GROWTH))
    is_return = is_return[at]
    first = np.flatnonzero(is_return & ~np.concatenate(([False], is_return))[:-1])
    last = np.flatnonzero(is_return & ~np.concatenate((is_return, [False]))[1:])
    begins, follower = at[first], np.append(at, len(events))[last + 1]
    next_action = np.append(action, Action.UNKNOWN)[follower]
    is_growth = np.isin(next_action, (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP))
    stack, next_stack = events.stack_id[begins], np.append(events.stack_id, -1)[follower]
    is_by_program = ~(is_growth | (next_action == Action.OOM))
    is_by_program |= (stack >= 0) & _stacks_that_empty(stacks)[stack]
    if settings.garbage_collection_threshold == 0:
        reserved = replayed.reserved
        before = np.append(reserved.after, reserved.start)[
            begins - 1
        ]  # the last entry is of before the trace
        wanted = np.append(events.size, 0)[follower]
        is_by_program |= is_growth & (before + wanted <= reserved.peak)
    if settings.max_split_size_bytes is None:
        run = np.repeat(np.arange(len(first)), last - first + 1)
        returned = at[is_return]
        serves = _would_serve(events, returned, follower[run])
        is_by_program |= np.bincount(run[serves], minlength=len(first)) > 0
    is_sure = is_by_program | ((stack >= 0) & (stack == next_stack))
    return _Returns(begins, is_by_program, int(np.count_nonzero(~is_sure)))


def _would_serve(events: EventTable, returned: Int64Column, follower: Int64Column) -> BoolColumn:
    """Whether a segment that was given back had served the malloc that got another one right after."""
    follower = np.minimum(follower, len(events) - 1)
    action, size = events.action, events.size
    is_oom = action[follower] == Action.OOM
    wants_small = size[follower] <= np.where(is_oom, SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES)
    fits = (size[returned] >= size[follower]) & (wants_small == (size[returned] <= SMALL_SEGMENT_BYTES))
    fits &= (action[returned] == Action.SEGMENT_FREE) & (is_oom | (action[follower] == Action.SEGMENT_ALLOC))
    fits &= events.stream[returned] == events.stream[follower]
    if events.pool_id is not None:
        fits &= events.pool_id[returned] == events.pool_id[follower]
    return np.asarray(fits)


_CALLS_AND_GROWTH = (
    Action.ALLOC,
    Action.FREE_REQUESTED,
    Action.FREE,
    Action.SEGMENT_ALLOC,
    Action.SEGMENT_MAP,
    Action.OOM,
)


def _stacks_that_empty(stacks: StackTable) -> NDArray[np.bool_]:
    """Mark the stacks that contain a call of ``empty_cache()``; one entry more than stacks, for none."""
    names = np.array(
        [name == "empty_cache" or "emptyCache" in name for name in stacks.frames.names], np.bool_
    )
    found = np.zeros(len(stacks) + 1, np.bool_)
    if names.any():
        stack_of_frame = np.repeat(np.arange(len(stacks)), np.diff(stacks.offsets))
        found[stack_of_frame[names[stacks.frame_ids]]] = True
    return found


def _pools_of(device: DeviceSnapshot, replayed: Replay, default: int) -> Int64Column:
    """Find the pool of every allocation: as the file has it, else of the final segment at its address."""
    rows, segments = replayed.allocations, device.segments
    pool = rows.pool_id.astype(np.int64)
    unknown = np.flatnonzero(pool < 0)
    if not len(unknown):
        return pool
    pool[unknown] = default
    if not len(segments) or not np.any(segments.pool_id != default):
        return pool
    born = _birth_events(device)
    order = np.argsort(segments.addr)
    place = order[np.maximum(np.searchsorted(segments.addr[order], rows.addr[unknown], side="right") - 1, 0)]
    is_inside = (segments.addr[place] <= rows.addr[unknown]) & (
        rows.addr[unknown] < segments.addr[place] + segments.total_bytes[place]
    )
    is_there = is_inside & (rows.alloc_event[unknown] >= born[place]) & (segments.pool_id[place] >= 0)
    pool[unknown[is_there]] = segments.pool_id[place[is_there]]
    return pool


def _birth_events(device: DeviceSnapshot) -> Int64Column:
    """Find the last event that got each final segment from the device; -1: before the trace."""
    events = device.events
    got = np.flatnonzero(events.action == Action.SEGMENT_ALLOC)
    last = dict(zip(events.addr[got].tolist(), got.tolist(), strict=True))
    return np.array([last.get(addr, -1) for addr in device.segments.addr.tolist()], np.int64)
