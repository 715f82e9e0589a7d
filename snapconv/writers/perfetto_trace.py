"""A file's memory over time -> the JSON of a trace, which ui.perfetto.dev opens."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from snapconv.analysis import Analysis
from snapconv.answers.timeline import Tracks, find_tracks
from snapconv.files import new_files
from snapconv.json_text import write_json

_Event = dict[str, object]


def write_trace(output: Path, analysis: Analysis, *, force: bool) -> None:
    """Write the memory of every device, an event a line."""
    with new_files([output], force=force) as (temporary,), temporary.open("wb") as file:
        file.write(b'{"displayTimeUnit":"ms","traceEvents":[')
        for number, event in enumerate(_events(map(find_tracks, analysis.devices))):
            file.write((b",\n" if number else b"\n") + write_json(event))
        file.write(b"\n]}\n")


def _events(groups: Iterable[Tracks]) -> Iterator[_Event]:
    """Yield every event: a group is a process, a track of slices a thread; times in microseconds."""
    for pid, group in enumerate(groups, 1):
        yield {"ph": "M", "pid": pid, "name": "process_name", "args": {"name": group.name}}
        for tid, (name, slices) in enumerate(group.slices, 1):
            place: _Event = {"pid": pid, "tid": tid}
            yield {"ph": "M", **place, "name": "thread_name", "args": {"name": name}}
            for text, begin_us, length_us, details in slices:
                yield {"ph": "X", **place, "name": text, "ts": begin_us, "dur": length_us, "args": details}
        for name, (times, values) in group.counters:
            for time, value in zip(times.tolist(), values.tolist(), strict=True):
                yield {"ph": "C", "pid": pid, "name": name, "ts": time, "args": {"bytes": value}}
