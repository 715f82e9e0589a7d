"""The memory of a device over its events, as pages draw it: curves and segments.

A picture of 1,000 pixels cannot show a million events. It can show, for each pixel, the most and
the least that was allocated within it, and what both consisted of: every bin of events has its
extremes, so that no spike is lost.

The final segments are known, and every event that added or removed memory: walked backwards, they
give the lifetime of each piece. A segment of the usual kind is one piece. One that grows is as many
as were mapped.
"""

from bisect import bisect_right, insort
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
    unknown_column,
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
    and ``min_event`` likewise; ``at_max`` and ``at_min`` (bins x categories) are the allocated
    bytes by category just then.
    """

    events_per_bin: int
    max_event: Int64Column
    min_event: Int64Column
    at_max: Int64Column
    at_min: Int64Column
    active_max: Int64Column
    reserved_max: Int64Column


def bytes_by_category(
    allocations: AllocationTable, category: Int8Column, events: Int64Column
) -> Int64Column:
    """Allocated bytes by category just after each of these events (ascending; -1: before the first).

    One row per event, one column per Category.
    """
    n_categories = len(Category)
    freed = allocations.freed_event
    ends = rows_of(freed >= 0)
    begins_at = np.searchsorted(events, allocations.alloc_event)
    ends_at = np.searchsorted(events, freed[ends])
    n_cells = (len(events) + 1) * n_categories
    change = sums_by(begins_at * n_categories + category, allocations.block_bytes, n_cells)
    change -= sums_by(
        ends_at * n_categories + category[ends], allocations.block_bytes[ends], n_cells
    )
    return np.cumsum(change.reshape(-1, n_categories), axis=0)[: len(events)]


def timeline_level(replay: Replay, category: Int8Column, *, most_bins: int) -> TimelineLevel:
    """Return the finest level with at most so many bins, of a power of two of events each."""
    n_events = len(replay.allocated.after)
    events_per_bin = 1
    while n_events > events_per_bin * most_bins:
        events_per_bin *= 2
    starts = np.arange(0, n_events, events_per_bin)
    max_event = _first_extremes(replay.allocated.after, events_per_bin)
    min_event = _first_extremes(-replay.allocated.after, events_per_bin)
    wanted = distinct(np.concatenate((max_event, min_event)))
    by_category = bytes_by_category(replay.allocations, category, wanted)
    return read_only(
        TimelineLevel(
            events_per_bin=events_per_bin,
            max_event=max_event,
            min_event=min_event,
            at_max=by_category[np.searchsorted(wanted, max_event)],
            at_min=by_category[np.searchsorted(wanted, min_event)],
            active_max=_most(replay.active, starts),
            reserved_max=_most(replay.reserved, starts),
        )
    )


def _first_extremes(values: Int64Column, events_per_bin: int) -> Int64Column:
    """Return the first event of every bin with its greatest value."""
    n_whole = len(values) // events_per_bin
    whole = values[: n_whole * events_per_bin].reshape(n_whole, events_per_bin)
    first = np.arange(n_whole, dtype=np.int64) * events_per_bin
    found = first + whole.argmax(axis=1) if n_whole else first
    rest = values[n_whole * events_per_bin :]
    return np.append(found, n_whole * events_per_bin + rest.argmax()) if len(rest) else found


def _most(curve: Curve, starts: Int64Column) -> Int64Column:
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

    def part(self, addr: int, end: int, begin_event: int = -1) -> "_Piece":
        return self._replace(addr=addr, n_bytes=end - addr, begin_event=begin_event)


_ADDR = attrgetter("addr")


def find_segment_lifetimes(device: DeviceSnapshot) -> "np.recarray[Any, Any]":
    """Walk the segment events of one device backwards from its final segments, a row per piece by address.

    ``begin_event`` is -1 for what was there before the first event, ``end_event`` -1 for what is
    there at the dump, ``pool_id`` -1 where the file does not have it.
    """
    segments = device.segments
    events = real_events(device.events)
    final = (segments.addr, segments.total_bytes, segments.stream, segments.pool_id)
    kinds = (segments.is_small, segments.is_expandable)
    there = [_Piece(*row) for row in plain_rows(*final, *kinds)]
    found: list[_Piece] = []
    rows = rows_of(np.isin(events.action, (*_ADDS, *_REMOVES)))[::-1]
    pools = events.pool_id if events.pool_id is not None else unknown_column(len(events), np.int32)
    columns = (events.action, events.addr, events.size, events.stream, pools)
    values = plain_rows(*(column[rows] for column in columns))
    for event, (action, addr, n_bytes, stream, pool) in zip(rows.tolist(), values, strict=True):
        if action in _ADDS:
            found += _take_away(there, addr, addr + n_bytes, event)
            continue
        grows = action == Action.SEGMENT_UNMAP
        is_small = is_small_segment(n_bytes, is_expandable=grows)
        insort(there, _Piece(addr, n_bytes, stream, pool, is_small, grows, -1, event), key=_ADDR)
    # What is still there was there before the first event.
    found = sorted((*found, *there), key=lambda piece: (piece.addr, piece.begin_event))
    types = ("i8", "i8", "i8", "i4", "?", "?", "i8", "i8")
    return np.array(found, list(zip(_Piece._fields, types, strict=True))).view(np.recarray)


def _take_away(there: list[_Piece], addr: int, end: int, event: int) -> Iterator[_Piece]:
    """Undo that memory was added by an event: yield the parts of what is there, which began with it."""
    place = max(bisect_right(there, addr, key=_ADDR) - 1, 0)
    while place < len(there) and there[place].addr < end:
        piece = there[place]
        piece_end = piece.addr + piece.n_bytes
        if piece_end <= addr:
            place += 1
            continue
        first = max(piece.addr, addr)
        last = min(piece_end, end)
        yield piece.part(first, last, event)
        rest = [piece.part(a, b) for a, b in ((piece.addr, first), (last, piece_end)) if a < b]
        there[place : place + 1] = rest
        place += len(rest)
