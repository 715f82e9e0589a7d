"""A file's own dictionary with fewer events: what the writer of a cut starts from."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapconv.errors import InputError
from snapconv.files import snapshot_file
from snapconv.snapshot.fields import errors_of
from snapconv.snapshot.load import collector_off
from snapconv.snapshot.readers.containers import as_snapshot_dict, read_raw
from snapconv.snapshot.recorded.metadata import KEY as METADATA_KEY
from snapconv.units import HOST

_TRACES, _HOST_TRACES = "device_traces", "host_traces"
_SEGMENTS, _HOST_SEGMENTS = "segments", "host_segments"
_ANNOTATIONS = "external_annotations"


@dataclass(frozen=True, slots=True)
class DevicePart:
    """The events of a device from ``first`` up to ``after``, and its segments then.

    ``segments`` are None where they are those of the file. ``times_us``: the first and the last
    time, None without times.
    """

    first: int
    after: int
    segments: list[dict[str, Any]] | None
    times_us: tuple[int, int] | None


def cut_snapshot(path: Path, parts: Mapping[int, DevicePart]) -> dict[str, Any]:
    """Read a file's dictionary, and keep the parts of some devices alone.

    Everything else in it stays, but for source that a recorder kept. Raises InputError.
    """
    path = snapshot_file(path)
    with errors_of(path), collector_off():
        value, _, _ = read_raw(path)
        raw: dict[str, Any] = as_snapshot_dict(value)
        if _TRACES not in raw:
            raise InputError("it is not the allocator's own snapshot: it cannot be cut")
    traces = []
    for device, trace in enumerate(raw[_TRACES]):
        traces.append(_events_of(trace, parts[device]) if device in parts else [])
    raw[_TRACES] = traces
    file_segments = raw.get(_SEGMENTS) or []
    raw[_SEGMENTS] = []
    for device, part in parts.items():
        if device != HOST:
            raw[_SEGMENTS] += _segments_of(file_segments, device, part)
    if HOST in parts:
        raw[_HOST_TRACES] = _events_of(raw[_HOST_TRACES], parts[HOST])
        raw[_HOST_SEGMENTS] = parts[HOST].segments or raw[_HOST_SEGMENTS]
    else:
        raw.pop(_HOST_TRACES, None)
        raw.pop(_HOST_SEGMENTS, None)
    _cut_annotations(raw, [part.times_us for part in parts.values()])
    if isinstance(raw.get(METADATA_KEY), dict):
        raw[METADATA_KEY]["source"] = None
    return raw


def _events_of(trace: list[dict[str, Any]], part: DevicePart) -> list[dict[str, Any]]:
    """Return the part of a trace, in the order in which events are numbered."""
    times = [event.get("time_us", -1) for event in trace]
    if min(times, default=-1) >= 0:
        trace = [trace[i] for i in sorted(range(len(trace)), key=times.__getitem__)]
    return trace[part.first : part.after]


def _segments_of(
    segments: list[dict[str, Any]], device: int, part: DevicePart
) -> list[dict[str, Any]]:
    if part.segments is not None:
        return part.segments
    return [segment for segment in segments if segment.get("device", 0) == device]


def _cut_annotations(raw: dict[str, Any], times_us: list[tuple[int, int] | None]) -> None:
    """Leave out the ranges' beginnings and ends that are outside of all parts."""
    spans = [times for times in times_us if times is not None]
    if not raw.get(_ANNOTATIONS) or len(spans) < len(times_us):
        return
    first = min(first for first, _ in spans)
    last = max(last for _, last in spans)
    raw[_ANNOTATIONS] = [row for row in raw[_ANNOTATIONS] if _is_within(row, first, last)]


def _is_within(row: dict[str, Any], first_us: int, last_us: int) -> bool:
    """Return whether an annotation has a time in a span; a damaged one has none."""
    time_us = row.get("time_us")
    return isinstance(time_us, int) and first_us <= time_us <= last_us
