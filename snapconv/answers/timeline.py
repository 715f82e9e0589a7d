"""The memory of a device over its events, as pages and viewers of traces draw it: curves and segments.

A picture of 1,000 pixels cannot show a million events. It can show, for each pixel, the most and the least
that was allocated within it, and what both consisted of: every bin of events has its extremes, so that no
spike is lost.

The final segments are known, and every event that added or removed memory: walked backwards, they give the
lifetime of each piece. A segment of the usual kind is one piece. One that grows is as many as were mapped.

Viewers of traces show every change: counters of bytes, and slices in tracks.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.program_names import find_span_lanes
from snapconv.classification.categories import Category
from snapconv.columns import (
    BoolColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    distinct,
    read_only,
    sums_by,
)
from snapconv.phases.trace_phases import Phase
from snapconv.replay.device_replay import AllocationTable, Curve, Replay
from snapconv.replay.lifetimes import real_events
from snapconv.replay.memory_layout import is_small_segment
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.units import device_name, format_bytes, shortened

_ADDS = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_REMOVES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_MOST_SPANS = 1_000_000
_MOST_OF_NAME = 200


@dataclass(frozen=True, slots=True)
class TimelineLevel:
    """Bins of ``events_per_bin`` events each (the last may have fewer), one row per bin.

    ``max_event`` is the first event of the bin after which allocated bytes are maximal within it, and
    ``min_event`` likewise; ``at_max`` and ``at_min`` (bins x categories) are the allocated bytes by category
    just then.
    """

    events_per_bin: int
    max_event: Int64Column
    min_event: Int64Column
    at_max: Int64Column
    at_min: Int64Column
    active_max: Int64Column
    reserved_max: Int64Column

    def __len__(self) -> int:
        return len(self.max_event)


def bytes_by_category(allocations: AllocationTable, category: Int8Column, events: Int64Column) -> Int64Column:
    """Allocated bytes by category just after each of these events (ascending; -1: before the first).

    One row per event, one column per Category.
    """
    n_categories = len(Category)
    freed = allocations.freed_event
    ends = np.flatnonzero(freed >= 0)
    begins_at = np.searchsorted(events, allocations.alloc_event)
    ends_at = np.searchsorted(events, freed[ends])
    n_cells = (len(events) + 1) * n_categories
    change = sums_by(begins_at * n_categories + category, allocations.block_bytes, n_cells)
    change -= sums_by(ends_at * n_categories + category[ends], allocations.block_bytes[ends], n_cells)
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


class _Piece(NamedTuple):
    """A piece of reserved memory, with what a row of SegmentLifetimes has."""

    addr: int
    n_bytes: int
    stream: int
    pool_id: int
    is_small: bool
    is_expandable: bool
    begin_event: int = -1
    end_event: int = -1

    def part(self, addr: int, end: int, begin_event: int = -1) -> "_Piece":
        return self._replace(addr=addr, n_bytes=end - addr, begin_event=begin_event)


class _Reserved:
    """The pieces that are there at the moment that the walk has reached, by address."""

    def __init__(self) -> None:
        self._addrs: list[int] = []
        self.pieces: list[_Piece] = []
        self.found: list[_Piece] = []

    def add(self, piece: _Piece) -> None:
        """Undo that a piece was removed."""
        place = bisect_right(self._addrs, piece.addr)
        self._addrs.insert(place, piece.addr)
        self.pieces.insert(place, piece)

    def remove(self, addr: int, n_bytes: int, event: int) -> None:
        """Undo that memory was added by an event: that part of what is there began with it."""
        end = addr + n_bytes
        place = max(bisect_right(self._addrs, addr) - 1, 0)
        while place < len(self.pieces) and self._addrs[place] < end:
            piece = self.pieces[place]
            piece_end = piece.addr + piece.n_bytes
            if piece_end <= addr:
                place += 1
                continue
            first, last = max(piece.addr, addr), min(piece_end, end)
            self.found.append(piece.part(first, last, event))
            rest = [piece.part(a, b) for a, b in ((piece.addr, first), (last, piece_end)) if a < b]
            self.pieces[place : place + 1] = rest
            self._addrs[place : place + 1] = [part.addr for part in rest]
            place += len(rest)


def find_segment_lifetimes(device: DeviceSnapshot) -> SegmentLifetimes:
    """Walk the segment events of one device backwards from its final segments."""
    reserved, segments, events = _Reserved(), device.segments, real_events(device.events)
    final = (segments.addr, segments.total_bytes, segments.stream, segments.pool_id)
    kinds = (segments.is_small, segments.is_expandable)
    for row in zip(*(column.tolist() for column in (*final, *kinds)), strict=True):
        reserved.add(_Piece(*row))
    rows = np.flatnonzero(np.isin(events.action, (*_ADDS, *_REMOVES)))[::-1]
    pools = events.pool_id if events.pool_id is not None else np.full(len(events), -1, np.int32)
    columns = (events.action, events.addr, events.size, events.stream, pools)
    values = zip(*(column[rows].tolist() for column in columns), strict=True)
    for event, (action, addr, n_bytes, stream, pool) in zip(rows.tolist(), values, strict=True):
        if action in _ADDS:
            reserved.remove(addr, n_bytes, event)
            continue
        grows = action == Action.SEGMENT_UNMAP
        is_small = is_small_segment(n_bytes, is_expandable=grows)
        reserved.add(_Piece(addr, n_bytes, stream, pool, is_small, grows, -1, event))
    # What is still there was there before the first event.
    found = sorted((*reserved.found, *reserved.pieces), key=lambda piece: (piece.addr, piece.begin_event))
    types = (np.int64, np.int64, np.int64, np.int32, np.bool_, np.bool_, np.int64, np.int64)
    by_column = zip(*found, strict=True) if found else [()] * len(types)
    return read_only(
        SegmentLifetimes(*(np.array(values, kind) for values, kind in zip(by_column, types, strict=True)))
    )


@dataclass(frozen=True, slots=True)
class CounterTrack:
    """The bytes of one kind at each moment at which they change."""

    name: str
    time_us: Int64Column
    n_bytes: Int64Column


@dataclass(frozen=True, slots=True)
class Slice:
    """Something with a beginning and a length; ``details`` are shown where it is selected."""

    name: str
    begin_us: float
    length_us: float
    details: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Tracks:
    """A device as viewers of traces show it; the slices of a track do not overlap.

    Times are microseconds since 1970 as in the file; without any, an event is a microsecond.
    """

    name: str
    counters: tuple[CounterTrack, ...]
    slices: tuple[tuple[str, tuple[Slice, ...]], ...]


def find_tracks(analysis: DeviceAnalysis) -> Tracks:
    """Return the memory of a device: its curves, by category too, and what the program did meanwhile."""
    events, replay = analysis.device.events, analysis.replay
    times = np.arange(len(events), dtype=np.int64) if events.time_us is None else events.time_us
    curves = (
        ("allocated bytes", replay.allocated),
        ("active bytes", replay.active),
        ("reserved bytes", replay.reserved),
    )
    tracks = (
        ("iterations", _iterations(analysis, times)),
        ("phases", _phases(analysis, times)),
        *(("annotations", lane) for lane in _annotations(analysis, times)),
        ("out of memory", _failures(analysis, times)),
    )
    slices = ((name, tuple(found)) for name, found in tracks)
    return Tracks(
        f"{device_name(analysis.device.device)} memory",
        (
            *(_counter(name, curve, times) for name, curve in curves),
            *_by_category(analysis, times),
        ),
        tuple(track for track in slices if track[1]),
    )


def _counter(name: str, curve: Curve, times: Int64Column) -> CounterTrack:
    if not len(times):
        return CounterTrack(name, np.zeros(1, np.int64), np.array([curve.start], np.int64))
    before = np.concatenate(([curve.start], curve.after[:-1]))
    changes = np.flatnonzero(curve.after != before)
    first = np.concatenate(([times[0]], times[changes]))
    return CounterTrack(name, first, np.concatenate(([curve.start], curve.after[changes])))


def _by_category(analysis: DeviceAnalysis, times: Int64Column) -> Iterator[CounterTrack]:
    """Yield the allocated bytes of every category that the device has."""
    rows, category = analysis.allocations, analysis.classification.category
    for one in Category:
        mine = np.flatnonzero(category == one)
        if not len(mine) or not len(times):
            continue
        n_bytes, alloc, freed = rows.block_bytes[mine], rows.alloc_event[mine], rows.freed_event[mine]
        start = int(n_bytes[alloc < 0].sum())
        events = np.concatenate((alloc[alloc >= 0], freed[freed >= 0]))
        changes = np.concatenate((n_bytes[alloc >= 0], -n_bytes[freed >= 0]))
        order = np.argsort(events, kind="stable")
        after = start + np.cumsum(changes[order])
        yield CounterTrack(
            f"allocated: {one.label}",
            np.concatenate(([times[0]], times[events[order]])),
            np.concatenate(([start], after)),
        )


def _iterations(analysis: DeviceAnalysis, times: Int64Column) -> Iterator[Slice]:
    for number, one in enumerate(analysis.iterations):
        if one.first_event >= 0:
            details = (("peak", format_bytes(one.peak_bytes)),)
            yield _slice(f"iteration {number}", times, one.first_event, one.last_event, details)


def _phases(analysis: DeviceAnalysis, times: Int64Column) -> Iterator[Slice]:
    """Yield the runs of events of one phase, cut where an iteration ends."""
    phase, iteration = analysis.phases.phase, analysis.phases.iteration
    if not len(phase):
        return
    changes = (phase[1:] != phase[:-1]) | (iteration[1:] != iteration[:-1])
    first = np.concatenate(([0], np.flatnonzero(changes) + 1))
    last = np.append(first[1:] - 1, len(phase) - 1)
    for begin, end in zip(first.tolist(), last.tolist(), strict=True):
        if phase[begin] != Phase.UNKNOWN:
            yield _slice(Phase(phase[begin]).name.lower(), times, begin, end)


def _annotations(analysis: DeviceAnalysis, times: Int64Column) -> list[list[Slice]]:
    spans = find_span_lanes(analysis, most=_MOST_SPANS)
    lanes: dict[int, list[Slice]] = {}
    columns = (spans.name_id, spans.first_event, spans.last_event, spans.lane)
    for name, first, last, lane in zip(*(column.tolist() for column in columns), strict=True):
        # A trace has the name once for every range: a file may share a long one among thousands.
        text = shortened(analysis.snapshot.texts[name], _MOST_OF_NAME)
        lanes.setdefault(lane, []).append(_slice(text, times, first, last))
    return [lanes[lane] for lane in sorted(lanes)]


def _failures(analysis: DeviceAnalysis, times: Int64Column) -> Iterator[Slice]:
    events = analysis.device.events
    for event in np.flatnonzero(events.action == Action.OOM).tolist():
        requested = format_bytes(int(events.size[event]))
        yield _slice(f"out of memory: {requested} requested", times, event, event)


def _slice(
    name: str, times: Int64Column, first: int, last: int, details: tuple[tuple[str, str], ...] = ()
) -> Slice:
    return Slice(name, int(times[first]), int(times[last] - times[first]), details)
