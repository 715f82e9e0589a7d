"""A window of a device's events -> a snapshot of its own, a pickle that torch's viewer opens.

Protocol 4, because the viewer knows no newer one. The dictionaries are torch's own, and have the keys that
the file had: columns that it lacks are in no entry.
"""

import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.event_window import EventWindow, window_notes
from snapconv.columns import BoolColumn, sums_by, take
from snapconv.files import new_files
from snapconv.notes import Note
from snapconv.snapshot.event_table import ACTION_CODES, Action
from snapconv.snapshot.load import load_snapshot
from snapconv.stacks.paths import is_native
from snapconv.writers.exports.redaction import Redaction

PROTOCOL = 4

Raw = dict[str, Any]
_ACTION_NAMES = {code: name for name, code in ACTION_CODES.items()}


@dataclass(frozen=True, slots=True)
class SnapshotOptions:
    """What goes into the smaller snapshot; ``cpp_frames``: frames of C++ code too.

    ``redact``: no name of the job, and times and addresses begin at fixed values, and keep their distances.
    """

    cpp_frames: bool = True
    redact: bool = False


def write_snapshot(
    output: Path, analysis: DeviceAnalysis, window: EventWindow, options: SnapshotOptions, *, force: bool
) -> tuple[Note, ...]:
    """Write the window as a snapshot, and read it again: a part of a trace may show less than the whole.

    Raises OutputError.
    """
    with new_files([output], force=force) as (temporary,):
        with temporary.open("wb") as file:
            pickle.dump(snapshot_of(analysis, window, options), file, protocol=PROTOCOL)
        return window_notes(analysis, window, load_snapshot(temporary))


def snapshot_of(analysis: DeviceAnalysis, window: EventWindow, options: SnapshotOptions) -> Raw:
    """Return the dictionary of the smaller snapshot, as torch would have written it just after the window."""
    writing = _Writing(analysis, window, options)
    device = analysis.device
    traces: list[list[Raw]] = [[] for _ in range(device.device)]
    raw: Raw = {"segments": writing.all_segments(), "device_traces": [*traces, writing.events()]}
    if analysis.snapshot.settings_entries:
        raw["allocator_settings"] = writing.settings()
    if len(analysis.snapshot.annotations):
        raw["external_annotations"] = writing.annotations()
    overflowed = True if window.first > 0 else device.history_overflowed
    if overflowed is not None:  # what was before the window is lost to its readers
        raw["trace_alloc_overflowed"] = overflowed
    if options.redact:
        _shift(raw)
    return raw


_FIRST_TIME_US, _FIRST_ADDRESS = 1_000_000, 2 << 20


def _shift(raw: Raw) -> None:
    """Move all times and addresses, and number the streams; 0 is no address, and no stream's handle.

    Addresses keep their place in a page.
    """
    events = [event for trace in raw["device_traces"] for event in trace]
    blocks = [block for segment in raw["segments"] for block in segment["blocks"]]
    addressed = [
        *((row, "address") for row in (*raw["segments"], *blocks)),
        *((row, "addr") for row in events),
    ]
    timed = [(row, "time_us") for row in (*events, *raw.get("external_annotations", ()))]
    for places, first, unit in ((addressed, _FIRST_ADDRESS, _FIRST_ADDRESS), (timed, _FIRST_TIME_US, 1)):
        there = [(row, key) for row, key in places if row.get(key, 0) > 0]
        lowest = min((row[key] for row, key in there), default=0)
        distance = max(lowest // unit * unit - first, 0)
        for row, key in there:
            row[key] -= distance
    numbers = {0: 0}
    for row in (*raw["segments"], *events):
        row["stream"] = numbers.setdefault(row["stream"], len(numbers))


class _Writing:
    """One snapshot while it is written; stacks and their frames are shared, as torch shares them."""

    def __init__(self, analysis: DeviceAnalysis, window: EventWindow, options: SnapshotOptions) -> None:
        self._snapshot, self._analysis, self._window = analysis.snapshot, analysis, window
        self._cpp_frames = options.cpp_frames
        self._redaction = Redaction() if options.redact else None
        self._frames: dict[int, Raw] = {}
        self._stacks: dict[int, list[Raw]] = {}
        self._texts: dict[int, str] = {}

    def events(self) -> list[Raw]:
        """Return the trace of the window."""
        events = take(self._analysis.device.events, self._window.rows)
        optional: list[tuple[str, Any, Callable[[int], object]]] = [
            ("time_us", events.time_us, int),
            ("compile_context", events.compile_context_id, self._text),
            ("user_metadata", events.user_metadata_id, self._text),
            ("internal_metadata", events.internal_metadata_id, self._text),
            ("pool_id", events.pool_id, self._pool),
        ]
        there = [(key, column.tolist(), make) for key, column, make in optional if column is not None]
        columns = (events.action, events.addr, events.size, events.stream, events.stack_id)
        rows = zip(*(column.tolist() for column in columns), strict=True)
        entries = []
        for row, (action, addr, size, stream, stack) in enumerate(rows):
            where = "device_free" if action == Action.OOM else "addr"
            entry: Raw = {"action": _ACTION_NAMES[action], where: addr, "size": size, "stream": stream}
            if stack >= 0:
                entry["frames"] = self._stack(stack)
            for key, values, make in there:
                if key == "time_us" or values[row] >= 0:
                    entry[key] = make(values[row])
            entries.append(entry)
        return entries

    def all_segments(self) -> list[Raw]:
        """Return the segments just after the window, with their blocks."""
        layout, rows = self._window.layout, self._analysis.allocations
        segments, blocks = layout.segments, layout.blocks
        in_use = np.where(self._is_pending()[blocks.allocation], 0, blocks.n_bytes)
        requested = rows.requested_bytes[blocks.allocation]
        sums = (
            sums_by(blocks.segment, column, len(segments)) for column in (in_use, blocks.n_bytes, requested)
        )
        columns: dict[str, Any] = {
            "address": segments.addr,
            "total_size": segments.total_bytes,
            **dict(zip(("allocated_size", "active_size", "requested_size"), sums, strict=True)),
            "stream": segments.stream,
            "segment_type": np.where(segments.is_small, "small", "large"),
            "is_expandable": segments.is_expandable,
        }
        inside: list[list[Raw]] = [[] for _ in range(len(segments))]
        for segment, block in self._blocks():
            inside[segment].append(block)
        more = zip(segments.stack_id.tolist(), segments.pool_id.tolist(), inside, strict=True)
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        return [
            {
                "device": self._analysis.device.device,
                **dict(zip(columns, own, strict=True)),
                "frames": self._stack(stack),
                "blocks": mine,
                **({"segment_pool_id": self._pool(pool)} if pool >= 0 else {}),
            }
            for own, (stack, pool, mine) in zip(values, more, strict=True)
        ]

    def settings(self) -> Raw:
        """Return the allocator's settings, of the types that torch gives them."""
        entries = self._snapshot.settings_entries
        entries = self._redaction.settings(entries) if self._redaction else entries
        return {key: _typed(key, value) for key, value in entries}

    def annotations(self) -> list[Raw]:
        """Return the ranges of record_function that have a part in the window, with both of their ends."""
        notes, times = self._snapshot.annotations, self._analysis.device.events.time_us
        if times is None or self._window.last < 0:
            return []
        since, until = int(times[self._window.first]), int(times[self._window.last])
        columns = (notes.name_id, notes.is_start, notes.device, notes.time_us)
        rows = list(zip(*(column.tolist() for column in columns), strict=True))
        return [
            {
                "name": self._text(name) if name >= 0 else "",
                "stage": "START" if is_start else "END",
                "device": device,
                "time_us": time,
            }
            for name, is_start, device, time in _overlapping(rows, since, until)
        ]

    def _is_pending(self) -> BoolColumn:
        """Which allocations wait for a stream just after the window, if they are not free."""
        rows, freed = self._analysis.allocations, self._analysis.allocations.freed_event
        unrequested = rows.is_pending_at_end & (rows.free_requested_event < 0)
        return np.asarray(((freed >= 0) & (freed <= self._window.last)) | unrequested)

    def _blocks(self) -> Iterator[tuple[int, Raw]]:
        """All blocks by address with the rows of their segments: in use, waiting for a stream, or free."""
        layout, rows = self._window.layout, self._analysis.allocations
        is_pending = self._is_pending()
        pieces = [(part, row) for part in (layout.blocks, layout.free) for row in range(len(part))]
        pieces.sort(key=lambda piece: (int(piece[0].segment[piece[1]]), int(piece[0].addr[piece[1]])))
        for part, row in pieces:
            allocation, segment = int(part.allocation[row]), int(part.segment[row])
            block: Raw = {"address": int(part.addr[row]), "size": int(part.n_bytes[row])}
            if allocation < 0:
                yield segment, block | {"requested_size": 0, "state": "inactive", "frames": []}
                continue
            state = "active_pending_free" if is_pending[allocation] else "active_allocated"
            requested, stack = int(rows.requested_bytes[allocation]), int(rows.stack_id[allocation])
            frames = self._stack(stack)
            yield segment, block | {"requested_size": requested, "state": state, "frames": frames}

    def _stack(self, stack_id: int) -> list[Raw]:
        if stack_id not in self._stacks:
            ids = self._snapshot.stacks.frames_of(stack_id).tolist()
            files = self._snapshot.stacks.frames.filenames
            shown = [i for i in ids if self._cpp_frames or not is_native(files[i])]
            self._stacks[stack_id] = [self._frame(i) for i in shown]
        return self._stacks[stack_id]

    def _frame(self, frame_id: int) -> Raw:
        if frame_id not in self._frames:
            frames = self._snapshot.stacks.frames
            name, filename = frames.names[frame_id], frames.filenames[frame_id]
            if self._redaction:
                name, filename = self._redaction.frame(name, filename)
            line = int(frames.lines[frame_id])
            self._frames[frame_id] = {"name": name, "filename": filename, "line": line}
        return self._frames[frame_id]

    def _text(self, text_id: int) -> str:
        if text_id not in self._texts:
            text = self._snapshot.texts[text_id]
            self._texts[text_id] = self._redaction.text(text) if self._redaction else text
        return self._texts[text_id]

    def _pool(self, pool_id: int) -> tuple[int, int]:
        return self._snapshot.pools[pool_id]


_Annotation = tuple[int, bool, int, int]


def _overlapping(rows: list[_Annotation], since: int, until: int) -> list[_Annotation]:
    """Return the starts and ends of the ranges that are not over before a time, or begin after another."""
    open_at: dict[int, list[int]] = {}
    kept: set[int] = set()
    for i, (name, is_start, _, time) in enumerate(rows):
        if is_start:
            open_at.setdefault(name, []).append(i)
            continue
        start = open_at[name].pop() if open_at.get(name) else i
        if time >= since and (start == i or rows[start][3] <= until):
            kept |= {start, i}
    kept |= {i for starts in open_at.values() for i in starts if rows[i][3] <= until}
    return [rows[i] for i in sorted(kept)]


_INTEGER, _FRACTION = re.compile(r"-?\d{1,20}"), re.compile(r"\d+\.\d*|\.\d+")


def _typed(key: str, value: str) -> object:
    """Turn the text of a setting into a value as torch writes it; what looks like none stays text."""
    if key.endswith("ALLOC_CONF"):
        return value
    if value in ("True", "False"):
        return value == "True"
    if key == "roundup_power2_divisions":
        pairs = (pair.partition(":") for pair in value.split(",") if pair)
        return {bound: int(n) for bound, _, n in pairs if _INTEGER.fullmatch(n)}
    if _INTEGER.fullmatch(value):
        return int(value)
    return float(value) if _FRACTION.fullmatch(value) else value
