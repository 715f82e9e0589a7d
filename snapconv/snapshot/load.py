"""A path -> a Snapshot, which consists of columns and no dictionaries."""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from ctypes import CDLL
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import NamedTuple

import numpy as np

from snapconv.allocator.allocator_settings import LARGE_SEGMENT_BYTES, AllocatorSettings
from snapconv.columns import (
    columns_of,
    count_of,
    distinct,
    rows_by,
    rows_of,
    take,
    unknown_column,
)
from snapconv.errors import InputError
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
from snapconv.snapshot.fields import DEVICE, errors_of, expect, reject_shared, wrong
from snapconv.snapshot.file_traits import (
    BLOCK_ADDRESSES,
    PLOT,
    Era,
    backend_of,
    infer_era,
    notes_of_file,
    parts_of,
    traits_of_raw,
)
from snapconv.snapshot.readers.compiled_pickle import OddFile
from snapconv.snapshot.readers.containers import Container, as_snapshot_dict, read_raw
from snapconv.snapshot.readers.first_viewer import read_first_viewer
from snapconv.snapshot.readers.form import Form
from snapconv.snapshot.readers.kineto_memory import read_kineto_memory
from snapconv.snapshot.readers.profiles import read_plot, read_timeline
from snapconv.snapshot.recorded.additions import NO_ADDITIONS, Additions, read_additions
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
    Memory,
    SegmentTable,
    are_expandable,
    read_segments,
    read_settings,
)
from snapconv.snapshot.stack_table import (
    Collected,
    CompiledStacks,
    StackTable,
    bound_stacks,
)
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.allocator_options import release_key
from snapconv.torch_knowledge.backends import NO_ALLOCATOR, Backend, backend_of_kind
from snapconv.units import HOST, Device, counted, device_name

_ANNOTATIONS = "external_annotations"


class SegmentSource(Enum):
    """The origin of a device's segments: the file, or its trace, which shows all or some."""

    FILE = "file"
    WHOLE_TRACE = "trace"
    PART_OF_TRACE = "part of the trace"


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """The contents of the file for one device. ``blocks.segment_id`` is a row of ``segments``.

    ``device`` is HOST for pinned host memory (torch 2.14 on), which every CUDA device may read.
    ``history_overflowed`` is the flag of the file itself, or else of its recorder, None where
    neither has it. A file without segments gets them by ``replay.rebuilt_segments``. The pages of
    expandable segments of large pools have ``large_segment_bytes``, by the file's settings.
    """

    device: Device
    events: EventTable
    segments: SegmentTable
    blocks: BlockTable
    history_overflowed: bool | None = None
    source: SegmentSource = SegmentSource.FILE
    large_segment_bytes: int = LARGE_SEGMENT_BYTES

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
    that can be used. ``form`` is what the file is where no allocator wrote it, ``additions`` are
    those of other recorders.
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
    additions: Additions = NO_ADDITIONS

    def __repr__(self) -> str:
        """Return a line: the file, and what each device has in it."""
        return f"Snapshot({str(self.path)!r}: {', '.join(map(repr, self.devices))})"

    def settings_of(self, device: DeviceSnapshot) -> AllocatorSettings:
        """Return the settings that the file has, or else those that the device's segments show."""
        if "expandable_segments" in dict(self.settings_entries):
            return self.settings
        is_expandable = are_expandable(device.segments, [device.events])
        return replace(self.settings, expandable_segments=is_expandable)

    @property
    def is_simulated(self) -> bool:
        """Whether a recorder simulated the device."""
        return self.metadata is not None and self.metadata.is_simulated

    @property
    def facts(self) -> dict[str, str]:
        """The plain values that a recorder wrote."""
        return dict(self.metadata.facts) if self.metadata else {}

    @property
    def recorded_source(self) -> Mapping[str, Sequence[str]]:
        """The lines of the source files that a recorder wrote, by the path of the file."""
        recorded = {} if self.metadata is None else self.metadata.sources
        return {**self.additions.sources, **recorded}

    @property
    def written_by(self) -> str:
        """The torch that wrote the file: as recorded in it, or else inferred from its keys."""
        if self.form:
            return self.form.writer
        recorded = self.facts.get("torch")
        return f"torch {recorded}" if recorded else str(self.era)

    @property
    def earliest_release(self) -> str:
        """The earliest release of torch, or of its backend's library, that can write the file."""
        recorded = self.facts.get("torch", "")
        return recorded if len(release_key(recorded)) == 2 else self.era.first

    @property
    def backend(self) -> Backend:
        """The row of the devices' kind in the table of backends."""
        return backend_of_kind(self.era.backend)

    @property
    def recorded_project(self) -> RecordedProject:
        """The project's folder, and libraries that count too, where a recorder wrote them down."""
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
            # What the core cannot read, its twin in Python reads anew, and has the errors.
            with suppress(OddFile, InputError):
                return _load(path, progress, compiled)
        return _load(path, progress)


def _load(path: Path, progress: Progress | None, compiled: CDLL | None = None) -> Snapshot:
    """Read a file with the compiled core, or with its twin in Python."""
    raw, container, events = read_raw(path, progress, compiled)
    collected = Collected(CompiledStacks(events)) if events else Collected()
    raw, timeline = read_timeline(raw)
    raw, page = read_first_viewer(raw)
    raw, trace = read_kineto_memory(raw)
    snapshot = as_snapshot_dict(raw)
    collected.form = timeline or page or trace
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
    tables = _read_tables(raw, collected, progress)
    recorded = _read_recorders(raw, path, collected, tables.memory, n_bytes)
    metadata, additions, recorder_notes = recorded
    stacks, stack_notes = bound_stacks(collected.stacks.table(), n_bytes)
    traits = tables.traits
    backend = NO_ALLOCATOR
    if not form:
        backend = backend_of(tables.traces.values(), stacks, traits, tables.memory)
    notes = (
        *_reordered_notes(collected.n_backwards, backend),
        *recorder_notes,
        *stack_notes,
        *notes_of_file(
            collected,
            tables.memory.segments,
            stacks,
            traits,
            tables.parts,
            n_embedded=container.n_embedded,
        ),
    )
    kinds = form.kinds if form else (backend,)
    return Snapshot(
        path=path,
        container=container,
        era=infer_era(traits, tables.parts, backend),
        n_visible_devices=len(tables.traces) - 1,
        devices=tuple(_devices(raw, metadata, tables, kinds=kinds)),
        stacks=stacks,
        texts=collected.texts.values(),
        pools=collected.pools.values(),
        settings=tables.settings,
        settings_entries=tables.entries,
        annotations=tables.annotations,
        notes=notes,
        metadata=metadata,
        form=form,
        additions=additions,
    )


def _read_recorders(
    raw: dict[str, object], path: Path, collected: Collected, memory: Memory, n_bytes: int
) -> tuple[Metadata | None, Additions, tuple[Note, ...]]:
    """Read what recorders, ours and others, wrote beside a file of so many bytes."""
    recorded = raw.get(METADATA_KEY)
    metadata, notes = read_metadata(recorded, collected.stacks, n_bytes=n_bytes)
    additions, added_notes = read_additions(raw, path, memory, n_bytes=n_bytes)
    return metadata, additions, (*notes, *added_notes, *read_ending(path))


class _Tables(NamedTuple):
    """What a file has but its stacks; ``traces`` are by device, the host's last."""

    memory: Memory
    host_memory: Memory
    annotations: AnnotationTable
    traces: dict[int, EventTable]
    traits: set[str]
    parts: set[str]
    settings: AllocatorSettings
    entries: Entries


def _read_tables(
    raw: dict[str, object], collected: Collected, progress: Progress | None
) -> _Tables:
    """Read segments, annotations and traces, in the order in which ids are numbered, and settings.

    A setting that the file does not have, its segments may show.
    """
    memory = read_segments(_list(raw.get("segments"), "segments"), collected, "segments")
    traits = traits_of_raw(raw)
    if collected.has_addresses:
        traits.add(BLOCK_ADDRESSES)
    if collected.form:
        traits.add(PLOT)
    host_segments = _list(raw.get("host_segments"), "host_segments")
    host_memory = read_segments(host_segments, collected, "host_segments", device=HOST)
    annotations = read_annotations(raw.get(_ANNOTATIONS), collected.texts, _ANNOTATIONS)
    traces = _read_traces(raw, collected, progress)
    for trace in traces.values():
        if len(trace):
            traits |= columns_of(trace).keys()
    parts = parts_of(raw, traces.values(), memory=memory, host_memory=host_memory)
    settings, entries = read_settings(raw.get("allocator_settings"), "allocator_settings")
    keys = dict(entries).keys()
    if "expandable_segments" not in keys:
        is_expandable = are_expandable(memory.segments, traces.values())
        settings = replace(settings, expandable_segments=is_expandable)
    return _Tables(
        memory, host_memory, annotations, traces, traits | keys, parts, settings, entries
    )


def _read_traces(
    raw: dict[str, object], collected: Collected, progress: Progress | None
) -> dict[int, EventTable]:
    """Read the trace of every CUDA device, and last the one of pinned host memory."""
    device_traces = _list(raw.get("device_traces", raw.get("traces")), "device_traces")
    n_devices = len(device_traces)
    if n_devices > DEVICE.high + 1:
        raise wrong("device_traces", f"at most {DEVICE.high + 1} devices", n_devices)
    lists: dict[str, list[object]] = {}
    for i, trace in enumerate(device_traces):
        path = f"device_traces[{i}]"
        lists[path] = _list(trace, path)
    lists["host_traces"] = _list(raw.get("host_traces"), "host_traces")
    reject_shared(list(lists.values()), list(lists).__getitem__)
    stacks = collected.stacks
    compiled = None
    if isinstance(stacks, CompiledStacks):
        compiled = CompiledTraceReader(collected, stacks)
    traces: dict[int, EventTable] = {}
    devices = (*range(n_devices), HOST)
    for device, (path, rows) in zip(devices, lists.items(), strict=True):
        table = compiled.read(rows, path) if compiled else read_trace(rows, path, collected)
        traces[device] = _sorted(table, device, collected)
        if progress:
            progress("reading", len(traces), len(lists))
    if compiled and sum(map(len, traces.values())) != compiled.n_events:
        raise OddFile  # a trace stands somewhere else in the file
    return traces


def _sorted(events: EventTable, device: int, collected: Collected) -> EventTable:
    """Undo the shuffling of a ring buffer whose size was changed while it was full."""
    if events.time_us is None or len(events) < 2 or events.time_us.min() < 0:
        return events
    backwards = count_of(events.time_us[1:] < events.time_us[:-1])
    if not backwards:
        return events
    # Threads enter events of the host without a common lock, so that neighbours may change places.
    if device != HOST:
        collected.n_backwards[device] = backwards
    return take(events, np.argsort(events.time_us, kind="stable"))


def _reordered_notes(n_backwards: dict[int, int], kind: str) -> Iterator[Note]:
    """Say of which devices the events were sorted; their kind is known when all is read."""
    for device, n_places in n_backwards.items():
        yield Note(
            "reordered-ring",
            f"the events stood out of order in {counted(n_places, 'place')} (max_entries was "
            "changed while recording); they were sorted by time, so events of the same "
            "microsecond may be swapped",
            Device(device, kind),
            is_minor=True,
        )


def _devices(
    raw: dict[str, object],
    metadata: Metadata | None,
    tables: _Tables,
    *,
    kinds: Sequence[str],
) -> Iterator[DeviceSnapshot]:
    """Yield the devices with memory or events, the host last, or else an empty one."""
    numbers = {number for number, trace in tables.traces.items() if len(trace)}
    for memory in (tables.memory, tables.host_memory):
        numbers.update(distinct(memory.segments.device).tolist())
    numbers = numbers or {0}
    no_events = read_trace([], "", Collected())
    for number in (*sorted(numbers - {HOST}), *numbers & {HOST}):
        device = Device(number, kinds[min(number, len(kinds) - 1)])
        events = tables.traces.get(number, no_events)
        if number == HOST:
            overflowed = _host_overflowed(metadata, len(events))
            memory = tables.host_memory
        else:
            overflowed = _overflowed(raw, metadata, number)
            memory = tables.memory
        snapshot = _device(device, events, *memory, overflowed=overflowed)
        yield replace(snapshot, large_segment_bytes=tables.settings.large_segment_bytes)


def _device(
    device: Device,
    events: EventTable,
    segments: SegmentTable,
    blocks: BlockTable,
    *,
    overflowed: bool | None,
) -> DeviceSnapshot:
    """Pick the segments and blocks of one device, by address."""
    rows = rows_of(segments.device == device)
    rows = rows_by(segments.addr, rows)
    new_row = unknown_column(len(segments))
    new_row[rows] = np.arange(len(rows))
    segment_id = new_row[blocks.segment_id]
    block_rows = rows_of(segment_id >= 0)
    block_rows = rows_by(blocks.addr, block_rows)
    device_blocks = take(replace(blocks, segment_id=segment_id), block_rows)
    return DeviceSnapshot(device, events, take(segments, rows), device_blocks, overflowed)


def _overflowed(
    raw: dict[str, object], metadata: Metadata | None, device: int
) -> bool | None:
    """Return whether a device's ring buffer overwrote its oldest events; None if that is unknown.

    The flag of the file (torch newer than 2.13) is at the top or in the settings, one or per
    device; else the recorder's counts decide.
    """
    settings = raw.get("allocator_settings")
    for values in (raw, settings if isinstance(settings, dict) else {}):
        flag = values.get("trace_alloc_overflowed")
        if isinstance(flag, list) and device < len(flag):
            flag = flag[device]
        if isinstance(flag, bool):
            return flag
    return metadata.overflowed if metadata else None


def _host_overflowed(metadata: Metadata | None, n_events: int) -> bool | None:
    """Return whether the ring of pinned host memory was full; None if that is unknown.

    The file has no flag for it. A recorder's ring has one length for all memory.
    """
    length = dict(metadata.facts).get("max_entries", "") if metadata else ""
    return n_events >= int(length) if length.isdecimal() else None


def _list(value: object, path: str) -> list[object]:
    rows: list[object] = [] if value is None else expect(value, list, path)
    return rows


@contextmanager
def collector_off() -> Iterator[None]:
    """Switch off Python's cyclic collector, which would walk millions of dictionaries in vain."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
