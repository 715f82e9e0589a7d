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
from snapconv.snapshot.recorded.timing_file import PHASES, Timing
from snapconv.units import device_name, format_bytes, shortened

_MOST_SPANS = 1_000_000
_MOST_OF_NAME = 200
_PHASE_ORDER = {name: i for i, name in enumerate(PHASES)}


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
    """What belongs together: a device, or the times of a capture."""

    name: str
    counters: tuple[CounterTrack, ...]
    tracks: tuple[SliceTrack, ...]


def memory_group(analysis: DeviceAnalysis) -> TrackGroup:
    """Return the memory of a device: its curves, by category too, and what the program did meanwhile."""
    times = event_times(analysis)
    tracks = [SliceTrack("iterations", tuple(_iterations(analysis, times)))]
    tracks.append(SliceTrack("phases", tuple(_phases(analysis, times))))
    tracks += _annotations(analysis, times)
    tracks.append(SliceTrack("out of memory", tuple(_failures(analysis, times))))
    return TrackGroup(
        f"{device_name(analysis.device.device)} memory",
        (*_curves(analysis, times), *_by_category(analysis, times)),
        tuple(track for track in tracks if track.slices),
    )


def times_group(timing: Timing, *, begin_us: float) -> TrackGroup:
    """Return the times of a capture's operations: their lengths are measured, their places are not.

    Each iteration has its forward, laid end to end in the order of the calls, then its backward in the
    opposite order, then the optimizer.
    """
    tracks: dict[str, list[Slice]] = {}
    for one in timing.iterations:
        rows = np.flatnonzero(timing.calls.iteration == one.iteration)
        for phase, slices in _laid_out(timing, rows, begin_us):
            tracks.setdefault(phase, []).extend(slices)
            begin_us = max(begin_us, slices[-1].begin_us + slices[-1].length_us)
    kept = tuple(SliceTrack(name, tuple(slices)) for name, slices in tracks.items())
    return TrackGroup("operations (lengths measured, laid end to end)", (), kept)


def event_times(analysis: DeviceAnalysis) -> Int64Column:
    """Return the time of every event; where the file has none, its number."""
    events = analysis.device.events
    return np.arange(len(events), dtype=np.int64) if events.time_us is None else events.time_us


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


def _laid_out(timing: Timing, rows: Int64Column, begin_us: float) -> Iterator[tuple[str, list[Slice]]]:
    calls = timing.calls
    is_forward = calls.phase[rows] == _PHASE_ORDER["forward"]
    forward = rows[is_forward]
    with_backward = rows[~np.isnan(calls.backward_ms[rows])][::-1]
    optimizer = rows[calls.phase[rows] == _PHASE_ORDER["optimizer"]]
    parts = (
        ("forward", forward, calls.forward_ms),
        ("backward", with_backward, calls.backward_ms),
        ("optimizer", optimizer, calls.forward_ms),
    )
    for name, mine, lengths in parts:
        slices = []
        for row, length in zip(mine.tolist(), lengths[mine].tolist(), strict=True):
            module = timing.texts[calls.module_id[row]] if calls.module_id[row] >= 0 else ""
            details = (("module", module),) if module else ()
            slices.append(Slice(timing.texts[calls.name_id[row]], begin_us, length * 1000, details))
            begin_us += length * 1000
        if slices:
            yield name, slices
