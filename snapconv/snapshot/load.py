"""The entry point of this package: a path in, a Snapshot of columns out, and no dictionary with it."""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from ctypes import CDLL
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import numpy as np

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.columns import columns_of, count_of, distinct, rows_by, rows_of, take, unknown_column
from snapconv.errors import InputError, MalformedSnapshotError
from snapconv.files import snapshot_file
from snapconv.native.library import core
from snapconv.notes import Note, Progress
from snapconv.snapshot.event_table import (
    AnnotationTable,
    CompiledTraceReader,
    EventTable,
    read_annotations,
    read_trace,
)
from snapconv.snapshot.fields import DEVICE, errors_of, expect, reject_shared
from snapconv.snapshot.file_traits import (
    BLOCK_ADDRESSES,
    PLOT,
    Era,
    Memory,
    backend_of,
    infer_era,
    notes_of_file,
    notes_of_form,
    places_of,
    traits_of_raw,
)
from snapconv.snapshot.readers.compiled_pickle import OddFile
from snapconv.snapshot.readers.containers import Container, as_snapshot_dict, read_raw
from snapconv.snapshot.readers.first_viewer import read_first_viewer
from snapconv.snapshot.readers.form import Form
from snapconv.snapshot.readers.profiles import read_plot, read_timeline
from snapconv.snapshot.recorded.metadata import KEY as METADATA_KEY
from snapconv.snapshot.recorded.metadata import (
    NOT_RECORDED,
    Metadata,
    RecordedProject,
    read_ending,
    read_metadata,
)
from snapconv.snapshot.segment_table import (
    BlockTable,
    Entries,
    SegmentTable,
    are_expandable,
    read_segments,
    read_settings,
)
from snapconv.snapshot.stack_table import Collected, CompiledStacks, StackTable, bound_stacks
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.backends import NO_ALLOCATOR, Backend, backend_of_kind, release_key
from snapconv.units import HOST, Device, counted, device_name

_ANNOTATIONS = "external_annotations"


class SegmentSource(Enum):
    """Where the segments of a device come from: the file, or its trace, which shows all or a part of them."""

    FILE = "file"
    WHOLE_TRACE = "trace"
    PART_OF_TRACE = "part of the trace"


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """The contents of the file for one device. ``blocks.segment_id`` is a row of ``segments``.

    ``device`` is HOST for pinned host memory (torch 2.14 on), which every CUDA device may read.
    ``history_overflowed`` is the flag of the file itself, or else of its recorder, None where
    neither has it. A file without segments gets them by ``replay.rebuilt_segments``.
    """

    device: Device
    events: EventTable
    segments: SegmentTable
    blocks: BlockTable
    history_overflowed: bool | None = None
    source: SegmentSource = SegmentSource.FILE

    def __repr__(self) -> str:
        """Return a line: the device, and how much of it the file has."""
        n_events = counted(len(self.events), "event")
        n_blocks = counted(len(self.blocks), "block")
        return f"{device_name(self.device)} {n_events}, {n_blocks} at the dump"

    @property
    def has_segments(self) -> bool:
        """Whether the segments are the file's, and not made from its trace."""
        return self.source is SegmentSource.FILE

    @property
    def is_host(self) -> bool:
        """Whether this is pinned host memory."""
        return self.device == HOST


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as columns. Ids into ``texts``, ``pools`` and ``stacks`` are positions in them.

    ``devices`` are those with memory or events, in order, pinned host memory last; a file without
    any has an empty device 0. ``settings_entries`` are the allocator's settings as the file has
    them, as text. ``metadata`` is what a recorder wrote beside it, None where the file has none
    that can be used. ``form`` is what the file is where no allocator wrote it.
    """

    path: Path
    container: Container
    era: Era
    n_visible_devices: int
    devices: tuple[DeviceSnapshot, ...]
    stacks: StackTable
    texts: tuple[str, ...]
    pools: tuple[tuple[int, int], ...]
    settings: AllocatorSettings
    settings_entries: Entries
    annotations: AnnotationTable
    notes: tuple[Note, ...]
    metadata: Metadata | None = None
    form: Form | None = None

    def __repr__(self) -> str:
        """Return a line: the file, and what each device has in it."""
        return f"Snapshot({str(self.path)!r}: {', '.join(map(repr, self.devices))})"

    def settings_of(self, device: DeviceSnapshot) -> AllocatorSettings:
        """Return the settings as the file has them, or else as the device's own segments show them."""
        if "expandable_segments" in dict(self.settings_entries):
            return self.settings
        return replace(
            self.settings, expandable_segments=are_expandable(device.segments, [device.events])
        )

    @property
    def is_simulated(self) -> bool:
        """Whether a recorder simulated the device."""
        return self.metadata is not None and self.metadata.is_simulated

    @property
    def facts(self) -> dict[str, str]:
        """The plain values that a recorder wrote."""
        return dict(self.metadata.facts) if self.metadata else {}

    @property
    def written_by(self) -> str:
        """The torch that wrote the file: as recorded in it, or else inferred from its keys."""
        if self.form:
            return self.form.writer
        recorded = self.facts.get("torch")
        return f"torch {recorded}" if recorded else str(self.era)

    @property
    def earliest_release(self) -> str:
        """The earliest release of torch, or of its backend's library, that can have written the file."""
        recorded = self.facts.get("torch", "")
        return recorded if len(release_key(recorded)) == 2 else self.era.first

    @property
    def backend(self) -> Backend:
        """What is known of the devices' kind."""
        return backend_of_kind(self.era.backend)

    @property
    def recorded_project(self) -> RecordedProject:
        """The project's folder and the libraries that count too, where a recorder wrote them down."""
        return self.metadata.project if self.metadata else NOT_RECORDED


@stage
def load_snapshot(path: str | Path, *, progress: Progress | None = None) -> Snapshot:
    """Read a snapshot of any era and container, offline and without running anything in it.

    ``path`` is its file, or the folder of a capture, ``-`` the standard input. ``progress`` is
    called with (stage, done, total). Raises InputError (NotASnapshotError, MalformedSnapshotError,
    TruncatedFileError) or UnsafePickleError, each naming the file.
    """
    path = snapshot_file(Path(path))
    with errors_of(path), collector_off():
        if compiled := core():
            with suppress(OddFile, InputError):  # the twin reads it anew, and has the errors
                return _load(path, progress, compiled)
        return _load(path, progress)


def _load(path: Path, progress: Progress | None, compiled: CDLL | None = None) -> Snapshot:
    """Read a file with the compiled core, or with its twin in Python."""
    raw, container, events = read_raw(path, progress, compiled)
    collected = Collected(CompiledStacks(events)) if events else Collected()
    raw, timeline = read_timeline(raw)
    raw, page = read_first_viewer(raw)
    snapshot = as_snapshot_dict(raw)
    collected.form = timeline or page
    if not collected.form and not events:
        snapshot, collected.form = read_plot(snapshot)
    return _read(snapshot, path, container, collected, progress)


def _read(
    raw: dict[str, object],
    path: Path,
    container: Container,
    collected: Collected,
    progress: Progress | None,
) -> Snapshot:
    """Turn the dictionary into a Snapshot; the raw lists are emptied on the way."""
    form = collected.form
    n_bytes = container.n_unpacked_bytes
    notes: list[Note] = []
    memory = read_segments(_list(raw, "segments"), collected, "segments")
    traits = traits_of_raw(raw) | ({BLOCK_ADDRESSES} if collected.has_addresses else set())
    host_memory = read_segments(
        _list(raw, "host_segments"), collected, "host_segments", device=HOST
    )
    annotations = read_annotations(raw.get(_ANNOTATIONS), collected.texts, _ANNOTATIONS)
    traces = _read_traces(raw, collected, notes, progress)
    settings, entries = read_settings(raw.get("allocator_settings"), "allocator_settings")
    if "expandable_segments" not in dict(entries):
        settings = replace(settings, expandable_segments=are_expandable(memory[0], traces[:-1]))
    recorded, recorder_notes = read_metadata(
        raw.get(METADATA_KEY), collected.stacks, n_bytes=n_bytes
    )
    stacks, left_out = bound_stacks(collected.stacks.table(), n_bytes)
    traits |= dict(entries).keys() | {
        name for trace in traces if len(trace) for name in columns_of(trace)
    }
    traits |= {PLOT} if form else set()
    places = places_of(raw, traces, blocks=memory[1], host_blocks=host_memory[1])
    backend = NO_ALLOCATOR if form else backend_of(traces[:-1], stacks, traits, memory)
    notes += [*recorder_notes, *read_ending(path), *left_out]
    notes += notes_of_form(form, memory[0], collected.pools.values())
    notes += notes_of_file(collected, stacks, traits, places, n_embedded=container.n_embedded)
    kinds = form.kinds if form else (backend,)
    return Snapshot(
        path=path,
        container=container,
        era=infer_era(traits, places, backend),
        n_visible_devices=len(traces) - 1,
        devices=_devices(raw, recorded, traces, memory, host_memory, kinds=kinds),
        stacks=stacks,
        texts=collected.texts.values(),
        pools=collected.pools.values(),
        settings=settings,
        settings_entries=entries,
        annotations=annotations,
        notes=tuple(_of_kind(note, backend) for note in notes),
        metadata=recorded,
        form=form,
    )


def _read_traces(
    raw: dict[str, object], collected: Collected, notes: list[Note], progress: Progress | None
) -> list[EventTable]:
    """Read the trace of every CUDA device, and last the one of pinned host memory."""
    given = {"device_traces": raw.get("device_traces", raw.get("traces"))}
    named = {f"device_traces[{i}]": trace for i, trace in enumerate(_list(given, "device_traces"))}
    if len(named) > DEVICE.high + 1:
        raise MalformedSnapshotError(
            f"device_traces: expected at most {DEVICE.high + 1} devices, got {len(named)}"
        )
    lists = {where: _list(named, where) for where in named} | {
        "host_traces": _list(raw, "host_traces")
    }
    reject_shared(list(lists.values()), list(lists).__getitem__)
    stacks = collected.stacks
    traces = []
    compiled = (
        CompiledTraceReader(collected, stacks) if isinstance(stacks, CompiledStacks) else None
    )
    for where, trace in lists.items():
        table = compiled.read(trace, where) if compiled else read_trace(trace, where, collected)
        traces.append(table)
        if progress:
            progress("reading", len(traces), len(lists))
    if compiled and sum(map(len, traces)) != compiled.n_events:
        raise OddFile  # a trace stands somewhere else in the file
    devices = [*range(len(named)), HOST]
    return [_in_order(trace, device, notes) for trace, device in zip(traces, devices, strict=True)]


def _in_order(events: EventTable, device: int, notes: list[Note]) -> EventTable:
    """Undo the shuffling of a ring buffer whose size was changed while it was full."""
    if events.time_us is None or len(events) < 2 or events.time_us.min() < 0:
        return events
    backwards = count_of(events.time_us[1:] < events.time_us[:-1])
    if not backwards:
        return events
    # Threads enter events of the host without a common lock, so that neighbours may change places.
    if device != HOST:
        notes.append(
            Note(
                "reordered-ring",
                f"the events stood out of order in {counted(backwards, 'place')} (max_entries was "
                "changed while recording); they were sorted by time, so events of the same "
                "microsecond "
                "may be swapped",
                Device(device),
                is_minor=True,
            )
        )
    return take(events, np.argsort(events.time_us, kind="stable"))


def _of_kind(note: Note, kind: str) -> Note:
    """Return a note with its device's kind, which is known when all of the file is read."""
    return note if note.device is None else replace(note, device=Device(note.device, kind))


def _devices(
    raw: dict[str, object],
    recorded: Metadata | None,
    traces: list[EventTable],
    memory: Memory,
    host_memory: Memory,
    *,
    kinds: Sequence[str],
) -> tuple[DeviceSnapshot, ...]:
    """Return the devices with memory or events, or else an empty one; the last trace is that of the host."""
    *traces, host_trace = traces
    with_events = {i for i, trace in enumerate(traces) if len(trace)}
    ordinals = sorted(with_events.union(distinct(memory[0].device).tolist()))
    has_host = len(host_trace) > 0 or len(host_memory[0]) > 0
    devices = [
        _device(
            Device(i, kinds[min(i, len(kinds) - 1)]),
            traces[i] if i < len(traces) else read_trace([], "", Collected()),
            *memory,
            overflowed=_overflowed(raw, recorded, i),
        )
        for i in ordinals or ([] if has_host else [0])
    ]
    if has_host:
        is_over = _host_overflowed(recorded, len(host_trace))
        devices.append(_device(Device(HOST), host_trace, *host_memory, overflowed=is_over))
    return tuple(devices)


def _device(
    device: Device,
    events: EventTable,
    segments: SegmentTable,
    blocks: BlockTable,
    *,
    overflowed: bool | None,
) -> DeviceSnapshot:
    """Pick what is of one device, by address."""
    mine = rows_of(segments.device == device)
    mine = rows_by(segments.addr, mine)
    new_row = unknown_column(len(segments))
    new_row[mine] = np.arange(len(mine))
    kept = rows_of(new_row[blocks.segment_id] >= 0)
    kept = rows_by(blocks.addr, kept)
    device_blocks = take(replace(blocks, segment_id=new_row[blocks.segment_id]), kept)
    return DeviceSnapshot(device, events, take(segments, mine), device_blocks, overflowed)


def _overflowed(raw: dict[str, object], recorded: Metadata | None, device: int) -> bool | None:
    """Return whether the ring buffer of a device overwrote its oldest events; None where it is not known.

    The flag of the file (torch newer than 2.13) is at the top or in the settings, one or per
    device; else the recorder's counts.
    """
    settings = raw.get("allocator_settings")
    for place in (raw, settings if isinstance(settings, dict) else {}):
        flag = place.get("trace_alloc_overflowed")
        if isinstance(flag, list) and device < len(flag):
            flag = flag[device]
        if isinstance(flag, bool):
            return flag
    return recorded.overflowed if recorded else None


def _host_overflowed(recorded: Metadata | None, n_events: int) -> bool | None:
    """Return the same for pinned host memory, which has no flag; a recorder's ring has one length for all."""
    length = dict(recorded.facts).get("max_entries", "") if recorded else ""
    return n_events >= int(length) if length.isdecimal() else None


def _list(raw: dict[str, object], key: str) -> list[object]:
    value = raw.get(key)
    rows: list[object] = [] if value is None else expect(value, list, key)
    return rows


@contextmanager
def collector_off() -> Iterator[None]:
    """Switch Python's cyclic collector off, which would walk millions of dictionaries and free none."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
