"""A file's memory over time -> the JSON of a trace, which ui.perfetto.dev opens."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from snapconv.analysis import Analysis
from snapconv.answers.trace_tracks import TrackGroup, memory_group
from snapconv.files import new_files
from snapconv.json_text import write_json

_Event = dict[str, object]


def write_trace(output: Path, analysis: Analysis, *, force: bool) -> None:
    """Write the memory of every device, an event a line."""
    with new_files([output], force=force) as (temporary,), temporary.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        for number, event in enumerate(_events(map(memory_group, analysis.devices))):
            file.write((b",\n" if number else b"\n") + write_json(event))
        file.write(b"\n]}\n")


def _events(groups: Iterable[TrackGroup]) -> Iterator[_Event]:
    """Yield every event: a group is a process, a track of slices a thread; times in microseconds."""
    for pid, group in enumerate(groups, 1):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": group.name}}
        for tid, track in enumerate(group.tracks, 1):
            place: _Event = {"pid": pid, "tid": tid}
            yield {"ph": "M", **place, "name": "thread_name", "args": {"name": track.name}}
            for one in track.slices:
                times = {"ts": one.begin_us, "dur": one.length_us}
                yield {"ph": "X", **place, "name": one.name, **times, "args": dict(one.details)}
        for counter in group.counters:
            for time, value in zip(counter.time_us.tolist(), counter.n_bytes.tolist(), strict=True):
                yield {"ph": "C", "pid": pid, "name": counter.name, "ts": time, "args": {"bytes": value}}
