"""The memory of a device over its events, as pages draw it: curves and segments.

A picture of 1,000 pixels cannot show a million events. It can show, for each pixel, the most and
the least that was allocated within it, and what both consisted of: every bin of events has its
extremes, so that no spike is lost.

The final segments are known, and every event that added or removed memory: walked backwards, they
give the lifetime of each piece. A segment of the usual kind is one piece. One that grows is as many
as were mapped.
"""

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterator
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np

from snapconv.classification.categories import Category
from snapconv.columns import (
    Int8Column,
    Int64Column,
    distinct,
    plain_rows,
    read_only,
    rows_of,
    sums_by,
)
from snapconv.replay.device_replay import AllocationTable, Curve, Replay
from snapconv.replay.lifetimes import real_events
from snapconv.replay.memory_layout import is_small_segment
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot

_ADDS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_REMOVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True)
class TimelineLevel:
    """Bins of ``events_per_bin`` events each (the last may have fewer), one row per bin.

    ``max_event`` is the first event of the bin after which allocated bytes are maximal within it,
    and ``min_event`` likewise; ``max_categories`` and ``min_categories`` (bins x categories) are
    the allocated bytes by category just then.
    """

    events_per_bin: int
    max_event: Int64Column
    min_event: Int64Column
    max_categories: Int64Column
    min_categories: Int64Column
    active_max: Int64Column
    reserved_max: Int64Column


def bytes_by_category(
    allocations: AllocationTable, category: Int8Column, events: Int64Column
) -> Int64Column:
    """Return the allocated bytes by category just after each of some events.

    The events ascend; -1 is before the first. One row per event, one column per Category.
    """
    freed_rows = rows_of(allocations.freed_event >= 0)
    begin = np.searchsorted(events, allocations.alloc_event)
    end = np.searchsorted(events, allocations.freed_event[freed_rows])
    # The last row is for what happens after all of these events.
    shape = len(events) + 1, len(Category)
    begin_cell = np.ravel_multi_index((begin, category), shape)
    end_cell = np.ravel_multi_index((end, category[freed_rows]), shape)
    n_cells = math.prod(shape)
    change = sums_by(begin_cell, allocations.block_bytes, n_cells)
    change -= sums_by(end_cell, allocations.block_bytes[freed_rows], n_cells)
    return np.cumsum(change.reshape(shape)[:-1], axis=0)


def timeline_level(
    replay: Replay, category: Int8Column, *, most_bins: int
) -> TimelineLevel:
    """Return the finest level with at most so many bins, of a power of two of events each."""
    n_events = len(replay.allocated.after)
    events_per_bin = 1
    while n_events > events_per_bin * most_bins:
        events_per_bin *= 2
    starts = np.arange(0, n_events, events_per_bin)
    max_event = _first_extremes(replay.allocated.after, events_per_bin)
    min_event = _first_extremes(-replay.allocated.after, events_per_bin)
    events = distinct(np.concatenate((max_event, min_event)))
    n_bytes = bytes_by_category(replay.allocations, category, events)
    level = TimelineLevel(
        events_per_bin=events_per_bin,
        max_event=max_event,
        min_event=min_event,
        max_categories=n_bytes[np.searchsorted(events, max_event)],
        min_categories=n_bytes[np.searchsorted(events, min_event)],
        active_max=_maxima(replay.active, starts),
        reserved_max=_maxima(replay.reserved, starts),
    )
    return read_only(level)


def _first_extremes(values: Int64Column, events_per_bin: int) -> Int64Column:
    """Return the first event of every bin with its greatest value."""
    n_full = len(values) // events_per_bin
    n_in_full = n_full * events_per_bin
    extremes = np.arange(n_full, dtype=np.int64) * events_per_bin
    if n_full:
        full_bins = values[:n_in_full].reshape(n_full, events_per_bin)
        extremes += full_bins.argmax(axis=1)
    last_bin = values[n_in_full:]
    return np.append(extremes, n_in_full + last_bin.argmax()) if len(last_bin) else extremes


def _maxima(curve: Curve, starts: Int64Column) -> Int64Column:
    return np.maximum.reduceat(curve.after, starts) if len(starts) else starts


class _Piece(NamedTuple):
    """A piece of reserved memory."""

    addr: int
    n_bytes: int
    stream: int
    pool_id: int
    is_small: bool
    is_expandable: bool
    begin_event: int = -1
    end_event: int = -1  # it is there after begin_event and no more after this

    def within(self, addr: int, end: int, begin_event: int = -1) -> "list[_Piece]":
        """Return its part between two addresses, if it has any."""
        first = max(self.addr, addr)
        n_bytes = min(self.addr + self.n_bytes, end) - first
        part = self._replace(addr=first, n_bytes=n_bytes, begin_event=begin_event)
        return [part] if n_bytes > 0 else []


_ADDR = attrgetter("addr")


def find_segment_lifetimes(device: DeviceSnapshot) -> "np.recarray[Any, Any]":
    """Walk the segment events of one device backwards from its final segments.

    The result has a row per piece, by address. ``begin_event`` is -1 for what was there before the
    first event, ``end_event`` -1 for what is there at the dump, ``pool_id`` -1 where the file does
    not have it.
    """
    reserved = _final_pieces(device)
    pieces: list[_Piece] = []
    for event, action, addr, n_bytes, stream, pool in _segment_events(device):
        if action in _ADDS:
            pieces += _take_away(reserved, addr, addr + n_bytes, event)
            continue
        # Only expandable segments are unmapped.
        is_expandable = action == Action.SEGMENT_UNMAP
        is_small = is_small_segment(
            n_bytes, device.large_segment_bytes, is_expandable=is_expandable
        )
        piece = _Piece(
            addr, n_bytes, stream, pool, is_small, is_expandable, end_event=event
        )
        insort(reserved, piece, key=_ADDR)
    # The remaining pieces were reserved before the first event.
    pieces += reserved
    pieces.sort(key=attrgetter("addr", "begin_event"))
    types = ("i8", "i8", "i8", "i4", "?", "?", "i8", "i8")
    return np.array(pieces, list(zip(_Piece._fields, types, strict=True))).view(np.recarray)


def _final_pieces(device: DeviceSnapshot) -> list[_Piece]:
    segments = device.segments
    rows = plain_rows(
        segments.addr,
        segments.total_bytes,
        segments.stream,
        segments.pool_id,
        segments.is_small,
        segments.is_expandable,
    )
    return [_Piece(*row) for row in rows]


def _segment_events(device: DeviceSnapshot) -> Iterator[Any]:
    """Yield the events that added or removed memory, the last first.

    Each has its number, action, address, size, stream and pool.
    """
    events = real_events(device.events)
    rows = rows_of(np.isin(events.action, (*_ADDS, *_REMOVES)))[::-1]
    columns = (events.action, events.addr, events.size, events.stream)
    return plain_rows(rows, *(column[rows] for column in columns), events.pools(rows))


def _take_away(reserved: list[_Piece], addr: int, end: int, event: int) -> list[_Piece]:
    """Undo that an event added memory: remove it from the reserved pieces, and return its parts."""
    first = max(bisect_right(reserved, addr, key=_ADDR) - 1, 0)
    last = bisect_left(reserved, end, key=_ADDR)
    removed = []
    remaining = []
    for piece in reserved[first:last]:
        removed += piece.within(addr, end, event)
        remaining += piece.within(piece.addr, addr)
        remaining += piece.within(end, piece.addr + piece.n_bytes)
    reserved[first:last] = remaining
    return removed
