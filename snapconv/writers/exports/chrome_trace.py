"""Tracks -> the JSON that chrome://tracing and most viewers of traces open."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from snapconv.answers.trace_tracks import TrackGroup

Event = dict[str, object]


def write_chrome(temporary: Path, groups: Sequence[TrackGroup]) -> None:
    """Write the trace into a file, an event a line."""
    with temporary.open("w", encoding="utf-8", newline="\n") as file:
        file.write('{"displayTimeUnit": "ms", "traceEvents": [')
        for number, event in enumerate(events_of(groups)):
            file.write(f"{',' if number else ''}\n{json.dumps(event)}")
        file.write("\n]}\n")


def events_of(groups: Sequence[TrackGroup]) -> Iterator[Event]:
    """Every event: a group is a process, a track of slices a thread; times in microseconds."""
    for pid, group in enumerate(groups, 1):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": _text(group.name)}}
        for tid, track in enumerate(group.tracks, 1):
            place: Event = {"pid": pid, "tid": tid}
            yield {"ph": "M", **place, "name": "thread_name", "args": {"name": _text(track.name)}}
            for one in track.slices:
                times = {"ts": one.begin_us, "dur": one.length_us}
                args = {name: _text(text) for name, text in one.details}
                yield {"ph": "X", **place, "name": _text(one.name), **times, "args": args}
        for counter in group.counters:
            for time, value in zip(counter.time_us.tolist(), counter.n_bytes.tolist(), strict=True):
                yield {"ph": "C", "pid": pid, "name": counter.name, "ts": time, "args": {"bytes": value}}


def _text(text: str) -> str:
    """The text with lone surrogates escaped, which are in no JSON that others read."""
    return text.encode("utf-8", "backslashreplace").decode()
