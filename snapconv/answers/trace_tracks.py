"""A device on an axis of time, as viewers of traces show it: counters of bytes, and slices in tracks.

Times are microseconds since 1970 as in the file; without any, an event is a microsecond. Columns of
counters are as long as the events that change them.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.program_names import find_span_lanes
from snapconv.classification.categories import Category
from snapconv.columns import Int64Column
from snapconv.phases.annotation_spans import find_spans
from snapconv.phases.trace_phases import Phase
from snapconv.replay.device_replay import Curve
from snapconv.snapshot.event_table import Action
from snapconv.units import device_name, format_bytes, shortened

_MOST_SPANS = 1_000_000
_MOST_OF_NAME = 200


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
class SliceTrack:
    """Slices by their beginning, none of which overlaps another."""

    name: str
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class TrackGroup:
    """What belongs together: a device."""

    name: str
    counters: tuple[CounterTrack, ...]
    tracks: tuple[SliceTrack, ...]


def memory_group(analysis: DeviceAnalysis) -> TrackGroup:
    """Return the memory of a device: its curves, by category too, and what the program did meanwhile."""
    events = analysis.device.events
    times = np.arange(len(events), dtype=np.int64) if events.time_us is None else events.time_us
    tracks = [SliceTrack("iterations", tuple(_iterations(analysis, times)))]
    tracks.append(SliceTrack("phases", tuple(_phases(analysis, times))))
    tracks += _annotations(analysis, times)
    tracks.append(SliceTrack("out of memory", tuple(_failures(analysis, times))))
    return TrackGroup(
        f"{device_name(analysis.device.device)} memory",
        (*_curves(analysis, times), *_by_category(analysis, times)),
        tuple(track for track in tracks if track.slices),
    )


def _curves(analysis: DeviceAnalysis, times: Int64Column) -> Iterator[CounterTrack]:
    replay = analysis.replay
    for name, curve in (
        ("allocated", replay.allocated),
        ("active", replay.active),
        ("reserved", replay.reserved),
    ):
        yield _counter(f"{name} bytes", curve, times)


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


def _annotations(analysis: DeviceAnalysis, times: Int64Column) -> list[SliceTrack]:
    spans = find_span_lanes(
        analysis.snapshot, find_spans(analysis.snapshot, analysis.device), most=_MOST_SPANS
    )
    lanes: dict[int, list[Slice]] = {}
    columns = (spans.name_id, spans.first_event, spans.last_event, spans.lane)
    for name, first, last, lane in zip(*(column.tolist() for column in columns), strict=True):
        # A trace has the name once for every range: a file may share a long one among thousands.
        text = shortened(analysis.snapshot.texts[name], _MOST_OF_NAME)
        lanes.setdefault(lane, []).append(_slice(text, times, first, last))
    return [SliceTrack("annotations", tuple(lanes[lane])) for lane in sorted(lanes)]


def _failures(analysis: DeviceAnalysis, times: Int64Column) -> Iterator[Slice]:
    events = analysis.device.events
    for event in np.flatnonzero(events.action == Action.OOM).tolist():
        requested = format_bytes(int(events.size[event]))
        yield _slice(f"out of memory: {requested} requested", times, event, event)


def _slice(
    name: str, times: Int64Column, first: int, last: int, details: tuple[tuple[str, str], ...] = ()
) -> Slice:
    return Slice(name, int(times[first]), int(times[last] - times[first]), details)
