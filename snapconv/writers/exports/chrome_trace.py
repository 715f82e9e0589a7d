"""Tracks -> the JSON that chrome://tracing and most viewers of traces open."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from snapconv.answers.trace_tracks import TrackGroup
from snapconv.json_text import write_json

Event = dict[str, object]


def write_chrome(temporary: Path, groups: Sequence[TrackGroup]) -> None:
    """Write the trace into a file, an event a line."""
    with temporary.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        for number, event in enumerate(events_of(groups)):
            file.write((b",\n" if number else b"\n") + write_json(event))
        file.write(b"\n]}\n")


def events_of(groups: Sequence[TrackGroup]) -> Iterator[Event]:
    """Every event: a group is a process, a track of slices a thread; times in microseconds."""
    for pid, group in enumerate(groups, 1):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": group.name}}
        for tid, track in enumerate(group.tracks, 1):
            place: Event = {"pid": pid, "tid": tid}
            yield {"ph": "M", **place, "name": "thread_name", "args": {"name": track.name}}
            for one in track.slices:
                times = {"ts": one.begin_us, "dur": one.length_us}
                args = dict(one.details)
                yield {"ph": "X", **place, "name": one.name, **times, "args": args}
        for counter in group.counters:
            for time, value in zip(counter.time_us.tolist(), counter.n_bytes.tolist(), strict=True):
                yield {"ph": "C", "pid": pid, "name": counter.name, "ts": time, "args": {"bytes": value}}
