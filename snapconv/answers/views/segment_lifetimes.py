"""Which memory of the device the allocator held, and from when to when: the segments at any moment.

The final segments are known, and every event that added or removed memory: walked backwards, they give the
lifetime of each piece. A segment of the usual kind is one piece. One that grows is as many as were mapped.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from snapconv.columns import BoolColumn, Int32Column, Int64Column, read_only
from snapconv.replay.lifetimes import real_events
from snapconv.replay.memory_layout import is_small_segment
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot

_ADDS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_REMOVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_GROWS = (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)


@dataclass(frozen=True, slots=True)
class SegmentLifetimes:
    """Pieces of reserved memory, one row each, by address.

    ``begin_event`` is -1 for what was there before the first event, ``end_event`` -1 for what is there at the
    dump: a piece is there after ``begin_event`` and no more after ``end_event``. ``pool_id`` is -1 where the
    file does not have it.
    """

    addr: Int64Column
    n_bytes: Int64Column
    stream: Int64Column
    pool_id: Int32Column
    is_small: BoolColumn
    is_expandable: BoolColumn
    begin_event: Int64Column
    end_event: Int64Column

    def __len__(self) -> int:
        return len(self.addr)


@dataclass(frozen=True, slots=True)
class _Piece:
    addr: int
    n_bytes: int
    stream: int
    pool_id: int
    is_small: bool
    is_expandable: bool
    end_event: int

    def part(self, addr: int, end: int) -> "_Piece":
        return _Piece(
            addr, end - addr, self.stream, self.pool_id, self.is_small, self.is_expandable, self.end_event
        )


class _Reserved:
    """The pieces that are there at the moment that the walk has reached, by address."""

    def __init__(self) -> None:
        self._addrs: list[int] = []
        self._pieces: list[_Piece] = []
        self.found: list[tuple[_Piece, int]] = []

    def add(self, piece: _Piece) -> None:
        """Undo that a piece was removed."""
        place = bisect_right(self._addrs, piece.addr)
        self._addrs.insert(place, piece.addr)
        self._pieces.insert(place, piece)

    def remove(self, addr: int, n_bytes: int, event: int) -> None:
        """Undo that memory was added by an event: that part of what is there began with it."""
        end = addr + n_bytes
        place = max(bisect_right(self._addrs, addr) - 1, 0)
        while place < len(self._pieces) and self._addrs[place] < end:
            piece = self._pieces[place]
            piece_end = piece.addr + piece.n_bytes
            if piece_end <= addr:
                place += 1
                continue
            first, last = max(piece.addr, addr), min(piece_end, end)
            self.found.append((piece.part(first, last), event))
            rest = [piece.part(a, b) for a, b in ((piece.addr, first), (last, piece_end)) if a < b]
            self._pieces[place : place + 1] = rest
            self._addrs[place : place + 1] = [part.addr for part in rest]
            place += len(rest)

    def finish(self) -> None:
        """End the walk: what is still there was there before the first event."""
        self.found += [(piece, -1) for piece in self._pieces]


def find_segment_lifetimes(device: DeviceSnapshot) -> SegmentLifetimes:
    """Walk the segment events of one device backwards from its final segments."""
    reserved, segments, events = _Reserved(), device.segments, real_events(device.events)
    for i in range(len(segments)):
        reserved.add(
            _Piece(
                int(segments.addr[i]),
                int(segments.total_bytes[i]),
                int(segments.stream[i]),
                int(segments.pool_id[i]),
                bool(segments.is_small[i]),
                bool(segments.is_expandable[i]),
                end_event=-1,
            )
        )
    rows = np.flatnonzero(np.isin(events.action, (*_ADDS, *_REMOVES)))[::-1]
    pools = events.pool_id if events.pool_id is not None else np.full(len(events), -1, np.int32)
    columns = (events.action, events.addr, events.size, events.stream, pools)
    values = zip(*(column[rows].tolist() for column in columns), strict=True)
    for event, (action, addr, n_bytes, stream, pool) in zip(rows.tolist(), values, strict=True):
        if action in _ADDS:
            reserved.remove(addr, n_bytes, event)
            continue
        grows = action in _GROWS
        is_small = is_small_segment(n_bytes, is_expandable=grows)
        reserved.add(_Piece(addr, n_bytes, stream, pool, is_small, grows, event))
    reserved.finish()
    return _table(sorted(reserved.found, key=lambda row: (row[0].addr, row[1])))


def _table(found: list[tuple[_Piece, int]]) -> SegmentLifetimes:
    pieces = [piece for piece, _ in found]
    return read_only(
        SegmentLifetimes(
            addr=np.array([piece.addr for piece in pieces], np.int64),
            n_bytes=np.array([piece.n_bytes for piece in pieces], np.int64),
            stream=np.array([piece.stream for piece in pieces], np.int64),
            pool_id=np.array([piece.pool_id for piece in pieces], np.int32),
            is_small=np.array([piece.is_small for piece in pieces], np.bool_),
            is_expandable=np.array([piece.is_expandable for piece in pieces], np.bool_),
            begin_event=np.array([event for _, event in found], np.int64),
            end_event=np.array([piece.end_event for piece in pieces], np.int64),
        )
    )
