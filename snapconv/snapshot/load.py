"""The door of this room: a path goes in, a Snapshot of columns comes out, and no dictionary with it."""

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from snapconv.errors import InputError, MalformedSnapshotError, NotASnapshotError, UnsafePickleError
from snapconv.notes import Note
from snapconv.snapshot.capture import snapshot_file
from snapconv.snapshot.era import Era, Traits, infer_era
from snapconv.snapshot.events import Action, EventTable, TraceReader
from snapconv.snapshot.fields import DEVICE, Interner, reject_shared, shown
from snapconv.snapshot.formats import Container, read_raw
from snapconv.snapshot.metadata import KEY as METADATA_KEY
from snapconv.snapshot.metadata import NOT_RECORDED, Metadata, RecordedProject, read_metadata
from snapconv.snapshot.segments import BlockTable, SegmentTable, read_segments
from snapconv.snapshot.settings import AllocatorSettings, AnnotationTable, read_annotations, read_settings
from snapconv.snapshot.stacks import StackInterner, StackTable
from snapconv.snapshot.unpickle import Progress

_Table = TypeVar("_Table", SegmentTable, BlockTable)

_KNOWN_KEYS = {
    "segments", "device_traces", "traces", "allocator_settings", "external_annotations",
    "trace_alloc_overflowed", "trace_alloc_max_entries", METADATA_KEY,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class DeviceSnapshot:
    """What the file holds of one device. ``blocks.segment_id`` is a row of ``segments``.

    ``history_overflowed`` is what the file itself says of its ring buffer (newer than torch 2.13),
    None where it says nothing.
    """

    device: int
    events: EventTable
    segments: SegmentTable
    blocks: BlockTable
    history_overflowed: bool | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A snapshot as columns. Ids into ``texts``, ``pools`` and ``stacks`` are positions in them.

    ``devices`` are those with memory or events, in order; a file without any has an empty device 0.
    ``metadata`` is what a recorder noted beside it, None where the file has none that can be used.
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
    annotations: AnnotationTable
    notes: tuple[Note, ...]
    metadata: Metadata | None = None

    @property
    def recorded_project(self) -> RecordedProject:
        """The project's folder and the libraries that count too, where a recorder wrote them down."""
        return self.metadata.project if self.metadata else NOT_RECORDED


def load_snapshot(path: str | Path, *, progress: Progress | None = None) -> Snapshot:
    """Read a snapshot of any era and container, offline and without running anything in it.

    ``path`` is its file, or the folder of a capture. ``progress`` is called with (stage, done, total).
    Raises InputError (NotASnapshotError, MalformedSnapshotError, TruncatedFileError) or
    UnsafePickleError, each naming the file.
    """
    path = snapshot_file(Path(path))
    try:
        with _collector_off():
            raw, container = read_raw(path, progress)
            return _Reading(path, container, progress).read(_as_snapshot_dict(raw))
    except (InputError, UnsafePickleError) as error:
        raise type(error)(f"{path}: {error}") from error
    except MemoryError as error:
        raise InputError(f"{path}: the snapshot does not fit into this machine's memory") from error


@contextmanager
def _collector_off() -> Iterator[None]:
    """Keep the cyclic collector from walking millions of dictionaries again and again."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _as_snapshot_dict(raw: object) -> dict[str, object]:
    """Bring the known top-level shapes into one, or say what the value is instead."""
    if isinstance(raw, list):
        if all(isinstance(item, dict) and "blocks" in item for item in raw):
            return {"segments": raw}
        raise NotASnapshotError(f"this is not a memory snapshot: {_describe_list(raw)}")
    if not isinstance(raw, dict):
        raise NotASnapshotError(f"this is not a memory snapshot: it holds a single {type(raw).__name__}")
    if not ({"segments", "device_traces"} & raw.keys()):
        raise NotASnapshotError(f"this is not a memory snapshot: {_describe_dict(raw)}")
    return raw


def _describe_list(raw: list[object]) -> str:
    if len(raw) == 2 and all(isinstance(part, list) for part in raw):
        return "two lists, as the profiler's export_memory_timeline writes; that format has no allocations"
    if isinstance(raw[0], list) and len(raw[0]) == 4:
        return "a raw memory timeline of the profiler's export_memory_timeline"
    return f"a list of {len(raw)} {type(raw[0]).__name__}"


def _describe_dict(raw: dict[object, object]) -> str:
    if "traceEvents" in raw:
        return "a Chrome trace of the profiler; dump torch.cuda.memory._snapshot() instead"
    keys = ", ".join(shown(str(key)) for key in list(raw)[:6])
    return f"a dictionary with the keys {keys or '(none)'}, and no segments or device_traces"


class _Reading:
    """One pass over the raw value; holds what the tables share while they are built."""

    def __init__(self, path: Path, container: Container, progress: Progress | None) -> None:
        self.path = path
        self.container = container
        self.progress = progress
        self.stacks = StackInterner()
        self.texts = Interner()
        self.pools = Interner()
        self.unknown_actions: Counter[str] = Counter()
        self.unknown_keys: Counter[str] = Counter()
        self.notes: list[Note] = []

    def read(self, raw: dict[str, object]) -> Snapshot:
        """Turn the dictionary into a Snapshot; the raw lists are emptied on the way."""
        self.unknown_keys.update(shown(str(key)) for key in raw if key not in _KNOWN_KEYS)
        raw_segments = _list(raw.get("segments"), "segments")
        block_addresses = any(_first_block_has(segment, "address") for segment in raw_segments[:50])
        raw_traces = _list(raw.get("device_traces", raw.get("traces")), "device_traces")
        is_plot = any(_first_has(trace, "category") for trace in raw_traces)
        segments, blocks, sizes_missing = read_segments(
            raw_segments, self.stacks, self.pools, self.unknown_keys, "segments"
        )
        raw_settings = raw.get("allocator_settings")
        settings = read_settings(raw_settings, "allocator_settings")
        has_annotations = "external_annotations" in raw
        annotations = read_annotations(raw.get("external_annotations"), self.texts, "external_annotations")
        traces = self._read_traces(raw_traces)
        recorded, remarks = read_metadata(raw.get(METADATA_KEY), self.stacks)
        self.notes.extend(remarks)
        devices = self._split_devices(traces, segments, blocks, _Overflow(raw, recorded))
        stacks = self.stacks.table()
        traits = Traits(
            block_addresses=block_addresses,
            has_blocks=len(blocks) > 0,
            timed_events=sum(len(t) for t in traces if t.time_us is not None),
            settings_keys=frozenset(key for key, _ in settings.entries),
            has_settings=raw_settings is not None,
            has_annotations=has_annotations,
            is_whole="device_traces" in raw,
            has_compile_context=any(t.compile_context_id is not None for t in traces),
            has_user_metadata=any(t.user_metadata_id is not None for t in traces),
            has_event_pools=any(t.pool_id is not None for t in traces),
            n_events=sum(map(len, traces)),
            is_plot=is_plot,
            backend=_backend(traces, stacks, settings),
        )
        self._note_oddities(traits, stacks, sizes_missing=sizes_missing)
        return Snapshot(
            path=self.path,
            container=self.container,
            era=infer_era(traits),
            n_visible_devices=len(traces),
            devices=devices,
            stacks=stacks,
            texts=tuple(map(str, self.texts.values())),
            pools=self.pools.values(),  # type: ignore[arg-type]  # only pairs are interned
            settings=settings,
            annotations=annotations,
            notes=tuple(self.notes),
            metadata=recorded,
        )

    def _read_traces(self, raw: list[object]) -> list[EventTable]:
        raw = [_list(trace, f"device_traces[{i}]") for i, trace in enumerate(raw)]
        reject_shared(raw, "device_traces[{}]".format)
        if len(raw) > DEVICE.high + 1:
            raise MalformedSnapshotError(
                f"device_traces: expected at most {DEVICE.high + 1} devices, got {len(raw)}"
            )
        n_events, n_read = sum(map(len, raw)), 0  # type: ignore[arg-type]  # lists, checked just above
        traces = []
        for i, trace in enumerate(raw):
            reader = TraceReader(self.stacks, self.texts, self.pools, self.unknown_actions, self.unknown_keys)
            if self.progress:
                reader.progress = _counting_on(self.progress, n_read, n_events)
            table = reader.read(trace, f"device_traces[{i}]")  # type: ignore[arg-type]
            n_read += len(table)
            traces.append(self._in_order(table, i))
        return traces

    def _in_order(self, events: EventTable, device: int) -> EventTable:
        """Undo the shuffling of a ring buffer whose size was changed while it was full."""
        if events.time_us is None or len(events) < 2 or bool((events.time_us < 0).any()):
            return events
        backwards = int(np.count_nonzero(np.diff(events.time_us) < 0))
        if not backwards:
            return events
        self.notes.append(
            Note(
                "reordered-ring",
                f"the events stood out of order in {backwards} places (max_entries was changed while "
                "recording); they were sorted by time, so events of the same microsecond may be swapped",
                device,
            )
        )
        return events.take(np.argsort(events.time_us, kind="stable"))

    def _split_devices(
        self, traces: list[EventTable], segments: SegmentTable, blocks: BlockTable, overflow: "_Overflow"
    ) -> tuple[DeviceSnapshot, ...]:
        with_memory = set(np.unique(segments.device).tolist())
        with_events = {i for i, trace in enumerate(traces) if len(trace)}
        none = TraceReader(self.stacks, self.texts, self.pools, Counter(), Counter()).read([], "")
        devices = []
        for device in sorted(with_memory | with_events) or [0]:
            mine = np.flatnonzero(segments.device == device)
            mine = mine[np.argsort(segments.addr[mine], kind="stable")]
            new_row = np.full(len(segments), -1, np.int64)
            new_row[mine] = np.arange(len(mine))
            kept = np.flatnonzero(new_row[blocks.segment_id] >= 0)
            kept = kept[np.argsort(blocks.addr[kept], kind="stable")]
            device_blocks = _take(replace(blocks, segment_id=new_row[blocks.segment_id]), kept)
            devices.append(
                DeviceSnapshot(
                    device=device,
                    events=traces[device] if device < len(traces) else none,
                    segments=_take(segments, mine),
                    blocks=device_blocks,
                    history_overflowed=overflow.of(device),
                )
            )
        return tuple(devices)

    def _note_oddities(self, traits: Traits, stacks: StackTable, *, sizes_missing: bool) -> None:
        add = self.notes.append
        if self.unknown_actions:
            add(
                Note(
                    "unknown-action",
                    f"actions that are not known were left out: {_counted(self.unknown_actions)}",
                )
            )
        if self.unknown_keys:
            add(Note("unknown-keys", f"keys that are not known were left out: {_counted(self.unknown_keys)}"))
        if traits.n_events and not traits.timed_events:
            add(
                Note(
                    "no-timestamps",
                    "the events have no times (torch before 2.2): order is known, duration is not",
                )
            )
        if not len(stacks.frames):
            add(
                Note(
                    "no-stacks",
                    "no allocation has a stack: record with context='all' and dump before recording is "
                    "switched off to see which line allocated what",
                )
            )
        if sizes_missing:
            add(
                Note(
                    "no-requested-size",
                    "blocks lack the requested size (torch 1.x): the block's own size stands in",
                )
            )
        if self.container.n_embedded > 1:
            add(
                Note(
                    "several-embedded",
                    f"the page embeds {self.container.n_embedded} snapshots: this is the first",
                )
            )
        if not traits.n_events and not traits.has_blocks:
            add(
                Note(
                    "empty-snapshot",
                    "the file has neither memory nor events: the process had not used the device, or had "
                    "no driver (torch writes such a file without complaint)",
                )
            )


def _list(value: object, where: str) -> list[object]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise MalformedSnapshotError(f"{where}: expected list, got {type(value).__name__}")
    return value


def _first_block_has(segment: object, key: str) -> bool:
    return isinstance(segment, dict) and _first_has(segment.get("blocks"), key)


def _first_has(rows: object, key: str) -> bool:
    return isinstance(rows, list) and bool(rows) and isinstance(rows[0], dict) and key in rows[0]


def _take(table: _Table, rows: NDArray[np.int64]) -> _Table:
    columns = {field.name: getattr(table, field.name)[rows] for field in fields(table)}
    for column in columns.values():
        column.setflags(write=False)
    return type(table)(**columns)


def _counting_on(report: Progress, n_before: int, n_events: int) -> Callable[[int], None]:
    """Report the events of one trace as a part of those of all."""
    return lambda done: report("reading", n_before + done, n_events)


@dataclass(frozen=True, slots=True)
class _Overflow:
    """What says whether a ring buffer overflowed: the file (torch newer than 2.13), or else its recorder."""

    raw: dict[str, object]
    recorded: Metadata | None

    def of(self, device: int) -> bool | None:
        """The flag is at the top or in the settings, one or per device; None where nothing says."""
        settings = self.raw.get("allocator_settings")
        places = (self.raw, settings if isinstance(settings, dict) else {})
        for place in places:
            flag = place.get("trace_alloc_overflowed")
            if isinstance(flag, list) and device < len(flag):
                flag = flag[device]
            if isinstance(flag, bool):
                return flag
        return self.recorded.overflowed if self.recorded else None


def _backend(traces: list[EventTable], stacks: StackTable, settings: AllocatorSettings) -> str:
    npu_actions = (Action.WORKSPACE_SNAPSHOT, Action.EMPTY_CACHE)
    if any(np.isin(trace.action, npu_actions).any() for trace in traces):
        return "npu"
    filenames = set(stacks.frames.filenames)
    if any("torch_npu" in filename for filename in filenames):
        return "npu"
    keys = {key for key, _ in settings.entries}
    if "PYTORCH_ALLOC_CONF" in keys or any("torch/xpu/" in filename for filename in filenames):
        return "xpu"
    return "cuda"


def _counted(counts: Counter[str]) -> str:
    shown = ", ".join(f"{name} ({n})" for name, n in counts.most_common(5))
    return shown if len(counts) <= 5 else f"{shown} and {len(counts) - 5} more"
