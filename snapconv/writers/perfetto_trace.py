"""A file's memory over time -> the JSON of a trace, which ui.perfetto.dev opens.

A device is a process: its curves are counters of bytes with every change, and what the program did
meanwhile are slices in threads. Times are microseconds since 1970 as in the file; without any, an
event takes one. With a trace of torch.profiler, our events are added to its own, on its time axis.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import chain, count
from pathlib import Path

import numpy as np

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.classification.categories import Category
from snapconv.columns import (
    Int64Column,
    chunks,
    plain_rows,
    rows_of,
    run_starts,
    sums_by,
)
from snapconv.files import new_files
from snapconv.json_text import write_json
from snapconv.phases.annotation_spans import find_span_lanes
from snapconv.phases.clock_alignment import Alignment, align
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.fields import errors_of
from snapconv.snapshot.kineto_trace import KinetoTrace, load_kineto_trace
from snapconv.units import device_name, format_bytes, shortened

_MOST_SPANS = 1_000_000
_MOST_OF_NAME = 200

# The format's names for a name of a process or a thread, a slice, and a counter's new value.
_METADATA, _SLICE, _COUNTER = "M", "X", "C"
_Event = dict[str, object]
# A name, the first and last event, and the details that a selected slice shows.
_Span = tuple[str, int, int, Mapping[str, str]]
_NO_TRACE = KinetoTrace(
    opening=b'{"displayTimeUnit":"ms","traceEvents":[\n',
    n_events=0,
    base_us=0,
    begin_us=0,
    end_us=0,
    annotations={},
    process_ids=frozenset(),
)


def write_trace(
    output: Path, analysis: Analysis, *, kineto_trace: Path | None = None, force: bool
) -> str:
    """Write the memory of every device, an event a line, into a trace of torch.profiler or alone.

    Return how the times of both were aligned. Raises InputError where they cannot be, or
    ``kineto_trace`` is no such trace.
    """
    trace, alignment = _NO_TRACE, Alignment(0, "")
    if kineto_trace is not None:
        trace = load_kineto_trace(kineto_trace)
        with errors_of(kineto_trace):
            alignment = align(analysis.snapshot, trace)
    free_ids = (number for number in count(1) if number not in trace.process_ids)
    with new_files([output], force=force) as (temporary,), temporary.open("wb") as file:
        file.write(trace.opening)
        separator = b",\n" if trace.n_events else b""
        for device, pid in zip(analysis.devices, free_ids, strict=False):
            times = _times(device, alignment)
            spans = _span_lines(device, times, pid, alignment.sentence)
            for lines in chain(spans, _counter_lines(device, times, pid, trace.begin_us)):
                file.write(separator + lines)
                separator = b",\n"
        file.write(b"\n]}\n")
    return alignment.sentence


def _times(analysis: DeviceAnalysis, alignment: Alignment) -> Int64Column:
    """Return the time of each event on the axis of the trace."""
    events = analysis.device.events
    times = np.arange(len(events)) if events.time_us is None else events.time_us
    return times + alignment.offset_us


def _span_lines(
    analysis: DeviceAnalysis, times: Int64Column, pid: int, label: str
) -> Iterator[bytes]:
    """Yield the events of the threads, and of the names, each as a line."""
    for phase, event in _span_events(analysis, times, label):
        yield write_json({"ph": phase, "pid": pid, **event})


def _span_events(
    analysis: DeviceAnalysis, times: Int64Column, label: str
) -> Iterator[tuple[str, _Event]]:
    process = f"{device_name(analysis.device.device)} memory"
    yield _METADATA, {"name": "process_name", "args": {"name": process}}
    if label:
        yield _METADATA, {"name": "process_labels", "args": {"labels": label}}
    tid = 0
    for track, spans in _tracks(analysis):
        if not spans:
            continue
        tid += 1
        yield _METADATA, {"tid": tid, "name": "thread_name", "args": {"name": track}}
        for text, first, last, details in spans:
            begin = int(times[first])
            length = int(times[last] - times[first])
            yield (
                _SLICE,
                {"tid": tid, "name": text, "ts": begin, "dur": length, "args": details},
            )


def _counter_lines(
    analysis: DeviceAnalysis, times: Int64Column, pid: int, begin_us: float
) -> Iterator[bytes]:
    """Yield the events of the counters, many lines at a time: a trace has millions of them.

    Without events, a counter has its value where the trace begins.
    """
    first_time = times[:1] if len(times) else [int(begin_us)]
    for name, start, after in _curves(analysis):
        begin = write_json({"ph": _COUNTER, "pid": pid, "name": name})[:-1] + b',"ts":'
        changes = rows_of(np.diff(after, prepend=start))
        change_times = np.append(first_time, times[changes])
        n_bytes = np.append(start, after[changes])
        for part in chunks(len(n_bytes)):
            rows = np.column_stack((change_times[part], n_bytes[part]))
            # "[[1,2],[3,4]]" has the numbers of two lines: what stands between them is put there.
            numbers = write_json(rows)[2:-2].replace(b"],[", b"\n")
            texts = numbers.replace(b",", b',"args":{"bytes":')
            yield begin + texts.replace(b"\n", b"}},\n" + begin) + b"}}"


def _tracks(analysis: DeviceAnalysis) -> Iterator[tuple[str, list[_Span]]]:
    yield "iterations", list(_iterations(analysis))
    yield "phases", list(_phases(analysis))
    for lane in _annotations(analysis):
        yield "annotations", lane
    yield "out of memory", list(_failures(analysis))


def _curves(analysis: DeviceAnalysis) -> Iterator[tuple[str, int, Int64Column]]:
    """Yield the curves, and the allocated bytes of every category that the device has.

    Perfetto adds the name of the value to a counter's: "allocated" is drawn as "allocated bytes".
    """
    replay = analysis.replay
    yield "allocated", replay.allocated.start, replay.allocated.after
    yield "active", replay.active.start, replay.active.after
    yield "reserved", replay.reserved.start, replay.reserved.after
    table = analysis.allocations
    # The start of the trace, in which pre-existing allocations (event -1) are, and each event.
    n_moments = analysis.n_events + 1
    for category in Category:
        rows = analysis.rows(category)
        freed = rows[table.freed_event[rows] >= 0]
        if len(rows) and analysis.n_events:
            change = sums_by(
                table.alloc_event[rows] + 1, table.block_bytes[rows], n_moments
            )
            change -= sums_by(
                table.freed_event[freed] + 1, table.block_bytes[freed], n_moments
            )
            after = np.cumsum(change)
            yield f"allocated: {category.label}", int(after[0]), after[1:]


def _iterations(analysis: DeviceAnalysis) -> Iterator[_Span]:
    for number, iteration in enumerate(analysis.iterations):
        if iteration.first_event >= 0:
            details = {"peak": format_bytes(iteration.peak_bytes)}
            yield (
                f"iteration {number}",
                iteration.first_event,
                iteration.last_event,
                details,
            )


def _phases(analysis: DeviceAnalysis) -> Iterator[_Span]:
    """Yield a span for every run of events in one phase; the end of an iteration ends it too."""
    phase = analysis.phases.phase
    first = run_starts(analysis.phases.iteration.astype(np.int64) * len(Phase) + phase)
    last = np.append(first, len(phase))[1:] - 1
    for begin, end in plain_rows(first, last):
        if phase[begin] != Phase.UNKNOWN:
            yield Phase(phase[begin]).name.lower(), begin, end, {}


def _annotations(analysis: DeviceAnalysis) -> list[list[_Span]]:
    spans, lane_of_span, _ = find_span_lanes(
        analysis.snapshot, analysis.device, max_spans=_MOST_SPANS
    )
    lanes: dict[int, list[_Span]] = defaultdict(list)
    rows = plain_rows(spans.name_id, spans.first_event, spans.last_event, lane_of_span)
    for name_id, first, last, lane in rows:
        # A trace has the name once for every range: a file may share a long one among thousands.
        name = shortened(analysis.snapshot.texts[name_id], _MOST_OF_NAME)
        lanes[lane].append((name, first, last, {}))
    return [lanes[lane] for lane in sorted(lanes)]


def _failures(analysis: DeviceAnalysis) -> Iterator[_Span]:
    for event in analysis.phases.oom_events.tolist():
        size = format_bytes(int(analysis.device.events.size[event]))
        yield f"out of memory: {size} requested", event, event, {}
