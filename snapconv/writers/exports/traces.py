"""Tracks -> traces over time: the JSON of chrome://tracing, and the packets of ui.perfetto.dev.

The numbers of perfetto's fields are those of its protos/perfetto/trace/: trace_packet.proto,
track_event/track_descriptor.proto, counter_descriptor.proto, process_descriptor.proto, track_event.proto and
debug_annotation.proto.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from snapconv.answers.views.trace_tracks import CounterTrack, Slice, SliceTrack, TrackGroup
from snapconv.json_text import write_json
from snapconv.writers.exports.protobuf_fields import bytes_field, number_field, text_field

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


# Trace
_PACKET = 1
# TracePacket
_TIMESTAMP, _SEQUENCE_ID, _TRACK_EVENT, _TRACK_DESCRIPTOR = 8, 10, 11, 60
# TrackDescriptor
_UUID, _TRACK_NAME, _PROCESS, _PARENT, _COUNTER = 1, 2, 3, 5, 8
# ProcessDescriptor, CounterDescriptor
_PID, _PROCESS_NAME, _UNIT = 1, 6, 3
_SIZE_BYTES = 3
# TrackEvent
_DEBUG_ANNOTATIONS, _TYPE, _TRACK, _EVENT_NAME, _COUNTER_VALUE = 4, 9, 11, 23, 30
_SLICE_BEGIN, _SLICE_END, _COUNTER_EVENT = 1, 2, 4
# DebugAnnotation
_DETAIL_TEXT, _DETAIL_NAME = 6, 10
# One writer, one sequence.
_SEQUENCE = number_field(_SEQUENCE_ID, 1)


def write_perfetto(temporary: Path, groups: Sequence[TrackGroup]) -> None:
    """Write the trace into a file."""
    with temporary.open("wb") as file:
        for packet in packets_of(groups):
            file.write(bytes_field(_PACKET, packet))


def packets_of(groups: Sequence[TrackGroup]) -> Iterator[bytes]:
    """Every packet: a group is a process, and its tracks are below it."""
    uuid = 0
    for pid, group in enumerate(groups, 1):
        uuid += 1
        parent = uuid
        process = number_field(_PID, pid) + text_field(_PROCESS_NAME, group.name)
        yield _descriptor(uuid, bytes_field(_PROCESS, process))
        for track in group.tracks:
            uuid += 1
            yield _descriptor(uuid, text_field(_TRACK_NAME, track.name) + number_field(_PARENT, parent))
            yield from _slices(uuid, track)
        for counter in group.counters:
            uuid += 1
            about = text_field(_TRACK_NAME, counter.name) + number_field(_PARENT, parent)
            yield _descriptor(uuid, about + bytes_field(_COUNTER, number_field(_UNIT, _SIZE_BYTES)))
            yield from _values(uuid, counter)


def _descriptor(uuid: int, about: bytes) -> bytes:
    return bytes_field(_TRACK_DESCRIPTOR, number_field(_UUID, uuid) + about) + _SEQUENCE


def _values(uuid: int, track: CounterTrack) -> Iterator[bytes]:
    head = number_field(_TYPE, _COUNTER_EVENT) + number_field(_TRACK, uuid)
    for time, value in zip(track.time_us.tolist(), track.n_bytes.tolist(), strict=True):
        event = bytes_field(_TRACK_EVENT, head + number_field(_COUNTER_VALUE, value))
        yield number_field(_TIMESTAMP, time * 1000) + _SEQUENCE + event


def _slices(uuid: int, track: SliceTrack) -> Iterator[bytes]:
    on_track = number_field(_TRACK, uuid)
    end = bytes_field(_TRACK_EVENT, number_field(_TYPE, _SLICE_END) + on_track)
    for one in track.slices:
        event = number_field(_TYPE, _SLICE_BEGIN) + on_track + text_field(_EVENT_NAME, one.name)
        begin_ns, end_ns = round(one.begin_us * 1000), round((one.begin_us + one.length_us) * 1000)
        begin = bytes_field(_TRACK_EVENT, event + _details(one))
        yield number_field(_TIMESTAMP, begin_ns) + _SEQUENCE + begin
        yield number_field(_TIMESTAMP, end_ns) + _SEQUENCE + end


def _details(one: Slice) -> bytes:
    return b"".join(
        bytes_field(_DEBUG_ANNOTATIONS, text_field(_DETAIL_TEXT, text) + text_field(_DETAIL_NAME, name))
        for name, text in one.details
    )
