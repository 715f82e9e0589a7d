"""One device's trace as columns: an EventTable, read in Python or by the compiled core; and the annotations.

TraceReader reads torch's list of TraceEntry dictionaries. CompiledTraceReader takes the columns of the core,
with the values, ids and refusals of TraceReader; a refusal may lack its place, since it sends the file to
TraceReader, which finds it again, with its path.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import repeat
from typing import Any

import numpy as np

from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, chunks, has_code, read_only
from snapconv.snapshot.fields import (
    ADDRESS,
    BYTES,
    MAX_TOTAL_BYTES,
    TIME,
    Bounds,
    Interner,
    Place,
    Rows,
    are_within,
    check_range,
    check_total,
    expect,
)
from snapconv.snapshot.readers.compiled_pickle import (
    EMPTY_LIST_ID,
    MISSING_TIME,
    NO_ID,
    CompiledEvents,
    CompiledTrace,
)
from snapconv.snapshot.stack_table import Collected
from snapconv.units import shown

CHUNK_EVENTS = 1 << 16


class Action(IntEnum):
    """The kind of an event; the values are those of EventTable.action. Names as torch writes them."""

    UNKNOWN = 0
    ALLOC = 1
    FREE_REQUESTED = 2
    FREE_COMPLETED = 3
    SEGMENT_ALLOC = 4
    SEGMENT_FREE = 5
    SEGMENT_MAP = 6
    SEGMENT_UNMAP = 7
    OOM = 8
    SNAPSHOT = 9
    ANNOTATE = 10
    USER_DEFINED = 11
    WORKSPACE_SNAPSHOT = 12
    EMPTY_CACHE = 13
    FREE = 14


# The codes of the actions by their names in a file.
ACTION_CODES = {action.name.lower(): int(action) for action in Action if action is not Action.UNKNOWN}

# The actions whose address and size the analysis reads; elsewhere the file may have any value.
_MOVES_MEMORY = np.zeros(len(Action), np.bool_)
_MOVES_MEMORY[[*range(Action.ALLOC, Action.OOM), Action.SNAPSHOT, Action.FREE]] = True
# What could not be had may be absurd: torch itself draws the line at 2^60 (one_exa_bytes).
_WANTED_BYTES = Bounds(0, 1 << 60, "0 to 2^60 bytes")


@dataclass(frozen=True, slots=True)
class EventTable:
    """A device's events in the order of the trace, one row each; read-only.

    ``size`` in bytes: requested bytes of blocks, real bytes of segments, rounded bytes of an oom.
    ``addr`` of an oom is the driver's free bytes (torch's ``device_free``), of a snapshot 0.
    ``time_us`` (epoch microseconds), ``compile_context_id``, ``user_metadata_id``, ``pool_id`` and
    ``internal_metadata_id`` (the allocator's word on its own events, torch 2.15 on) are None where the file
    does not have them; the ids are positions in the Snapshot's ``texts`` and ``pools``. ``stack_id`` is -1
    where no stack was captured.
    """

    action: Int8Column
    addr: Int64Column
    size: Int64Column
    stream: Int64Column
    stack_id: Int32Column
    time_us: Int64Column | None
    compile_context_id: Int32Column | None
    user_metadata_id: Int32Column | None
    pool_id: Int32Column | None
    internal_metadata_id: Int32Column | None = None

    def __len__(self) -> int:
        return len(self.action)


@dataclass(slots=True)
class TraceReader:
    """Reads traces of torch's dictionaries."""

    collected: Collected

    def read(
        self, trace: list[object], where: str, progress: Callable[[int], None] | None = None
    ) -> EventTable:
        """Turn one device's trace into columns, and empty the list on the way to free its memory."""
        parts = []
        for start in range(0, len(trace) or 1, CHUNK_EVENTS):
            chunk = trace[start : start + CHUNK_EVENTS]
            trace[start : start + len(chunk)] = repeat(None, len(chunk))
            rows = Rows(chunk, lambda i, start=start: f"{where}[{start + i}]")  # type: ignore[misc]
            parts.append(self._read_chunk(rows))
            if progress and chunk:
                progress(start + len(chunk))
        trace.clear()
        events = _concatenate(parts)
        check_sizes(events.action, events.size, where)
        return events

    def _read_chunk(self, rows: Rows) -> EventTable:
        texts, place = self.collected.texts, rows.place
        action = self._actions(rows)
        addr, size = rows.ints("addr", missing=0), rows.ints("size", missing=0)
        time_us = rows.optional_ints("time_us", missing=-1)
        check_numbers(action, addr, size, time_us, place=place)
        return EventTable(
            action=action,
            addr=np.where(action == Action.OOM, rows.ints("device_free", missing=0), addr),
            size=size,
            stream=rows.ints("stream", missing=0),
            stack_id=self.collected.stacks.ids(rows.values("frames"), place),
            time_us=time_us,
            compile_context_id=rows.text_ids("compile_context", texts),
            user_metadata_id=rows.text_ids("user_metadata", texts),
            pool_id=rows.pool_ids("pool_id", self.collected.pools),
            internal_metadata_id=rows.text_ids("internal_metadata", texts),
        )

    def _actions(self, rows: Rows) -> Int8Column:
        values = rows.values("action")
        try:
            return np.fromiter(map(ACTION_CODES.__getitem__, values), np.int8, len(values))
        except (KeyError, TypeError):
            pass
        for i, value in enumerate(values):
            if expect(value, str, f"{rows.place(i)}.action") not in ACTION_CODES:
                self.collected.unknown_actions[shown(value)] += 1
        return np.array([ACTION_CODES.get(value, 0) for value in values], np.int8)


def check_numbers(
    action: Int8Column, addr: Int64Column, size: Int64Column, time_us: Int64Column | None, *, place: Place
) -> None:
    """Raise MalformedSnapshotError for the first number that cannot be right, column by column."""
    if not (are_within(addr, ADDRESS) and are_within(size, BYTES)):
        moves_memory = _MOVES_MEMORY[action]
        check_range(addr, ADDRESS, "addr", place=place, among=moves_memory)
        check_range(size, BYTES, "size", place=place, among=moves_memory)
    check_range(size, _WANTED_BYTES, "size", place=place, among=has_code(action, Action.OOM))
    check_range(time_us, TIME, "time_us", place=place)


def check_sizes(action: Int8Column, size: Int64Column, where: str) -> None:
    """Raise MalformedSnapshotError if the sizes add up to more than any process can have moved."""
    if len(size) and size.min() >= 0 and float(size.sum(dtype=np.float64)) <= MAX_TOTAL_BYTES:
        return  # then the sum of a part is no larger
    check_total(size[_MOVES_MEMORY[action]], where)


def _concatenate(parts: list[EventTable]) -> EventTable:
    columns: dict[str, Any] = {}
    for name in EventTable.__slots__:
        pieces = [getattr(part, name) for part in parts]
        dtype = next((piece.dtype for piece in pieces if piece is not None), None)
        if dtype is not None:
            pieces = [
                np.full(len(p), -1, dtype) if c is None else c for p, c in zip(parts, pieces, strict=True)
            ]
        columns[name] = None if dtype is None else np.concatenate(pieces)
    return read_only(EventTable(**columns))


_NOT_YET = -3  # below all ids
# The columns of ids, in the order of TraceReader, which numbers texts by it, and their names in the core.
_IDS = {
    "stack_id": "frames",
    "compile_context_id": "compile_context",
    "user_metadata_id": "user_metadata",
    "pool_id": "pool_id",
    "internal_metadata_id": "internal_metadata",
}


class CompiledTraceReader:
    """Reads traces of the compiled core; all of one file have the same ids."""

    def __init__(self, collected: Collected) -> None:
        self._collected = collected
        # Our ids by those of the core, given in the order in which they are met.
        self._known: dict[str, Int32Column] = {}
        self._events: CompiledEvents | None = None

    def read(self, trace: CompiledTrace, where: str, progress: Callable[[int], None] | None) -> EventTable:
        """Turn a trace into the table that TraceReader makes of the same bytes."""
        self._events = trace.events
        n, objects = len(trace), trace.events.objects
        # Our ids take the place of the core's, as its columns are not read again.
        columns = {name: trace.column(key) for name, key in _IDS.items()}
        ids: dict[str, Any] = {
            name: None if each is None or not (each != NO_ID).any() else each
            for name, each in columns.items()
        }
        for rows in chunks(n):
            for name, column in ids.items():
                if column is not None:
                    column[rows] = self._translated(column[rows], _IDS[name], objects)
            if progress:
                progress(rows.stop)
        action, time_us = trace.column("action"), _times(trace.column("time_us"))
        addr, size = _or_zeros(trace.column("addr"), n), _or_zeros(trace.column("size"), n)
        check_numbers(action, addr, size, time_us, place=lambda i: f"{where}[{i}]")
        check_sizes(action, size, where)
        if ids["stack_id"] is None:
            ids["stack_id"] = np.full(n, -1, np.int32)
        stream = _or_zeros(trace.column("stream"), n)
        return read_only(EventTable(action, addr, size, stream, time_us=time_us, **ids))

    def finish(self) -> None:
        """Count the unknown actions of all traces, and free the raw values, which hold the traces in turn."""
        if self._events is not None:
            for text, n in self._events.unknown_actions.items():
                self._collected.unknown_actions[shown(text)] += n
            self._events.objects.clear()

    def _translated(self, column: Int32Column, key: str, objects: dict[int, Any]) -> Int32Column:
        kind = key if key in ("frames", "pool_id") else "text"
        if kind not in self._known:
            # The two special ids of the core stand at the end, as -1 and -2.
            self._known[kind] = np.full(len(objects) + 2, _NOT_YET, np.int32)
            self._known[kind][NO_ID] = -1
        known = self._known[kind]
        ids = np.take(known, column)
        if ids.min() == _NOT_YET:
            new = column[ids == _NOT_YET][::-1]
            first = np.full(len(known), -1)
            first[new] = np.arange(len(new))  # of several, what is written last stays
            values = np.flatnonzero(first >= 0)
            for value in values[np.argsort(-first[values])].tolist():
                core_id = value if value < len(objects) else value - len(known)
                known[value] = self._new_id(kind, core_id, objects)
            ids = np.take(known, column)
        return ids

    def _new_id(self, kind: str, core_id: int, objects: dict[int, Any]) -> int:
        collected = self._collected
        if kind == "frames":
            frames = [] if core_id == EMPTY_LIST_ID else objects[core_id]
            return collected.stacks.id(frames, str)
        if kind == "text":
            return collected.texts.id(objects[core_id])
        ids = Rows([{"pool_id": objects[core_id]}], str).pool_ids("pool_id", collected.pools)
        return -1 if ids is None else int(ids[0])


def _or_zeros(column: Int64Column | None, n: int) -> Int64Column:
    return np.zeros(n, np.int64) if column is None else column


def _times(column: Int64Column | None) -> Int64Column | None:
    if column is None or not len(column) or column.max() == MISSING_TIME:
        return None
    if column.min() > MISSING_TIME:
        return column
    return np.where(column == MISSING_TIME, -1, column)


# --- annotations


@dataclass(frozen=True, slots=True)
class AnnotationTable:
    """record_function ranges as they were entered and left; ``name_id`` is a position in ``texts``."""

    name_id: Int32Column
    is_start: BoolColumn
    device: Int64Column
    time_us: Int64Column

    def __len__(self) -> int:
        return len(self.name_id)


def read_annotations(raw: object, texts: Interner, where: str) -> AnnotationTable:
    """Turn ``external_annotations`` (torch >= 2.5) into columns; None means there are none."""
    rows = Rows.of(raw, where)
    names = rows.text_ids("name", texts)
    columns = AnnotationTable(
        name_id=np.full(len(rows), -1, np.int32) if names is None else names,
        is_start=np.array([stage == "START" for stage in rows.values("stage")], np.bool_),
        device=rows.ints("device", missing=0),
        time_us=rows.ints("time_us", TIME, missing=-1),
    )
    return read_only(columns)
