"""One device's trace as columns: an EventTable, read in Python or by the compiled core; and the annotations.

read_trace reads torch's list of TraceEntry dictionaries. CompiledTraceReader takes the columns of
the core, with the values, ids and refusals of read_trace; a refusal may lack its place, since it
sends the file to read_trace, which finds it again, with its path.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from snapconv.columns import (
    BoolColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    chunks,
    has_code,
    read_only,
    unknown_column,
)
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
    MISSING_TIME,
    NO_ID,
    FirstSeen,
    OddFile,
    trace_rows,
)
from snapconv.snapshot.stack_table import Collected, CompiledStacks
from snapconv.torch_knowledge.profiler_categories import CATEGORIES
from snapconv.units import shown


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
ACTION_CODES = {
    action.name.lower(): int(action) for action in Action if action is not Action.UNKNOWN
}

# The actions whose address and size the analysis reads; elsewhere the file may have any value.
_MOVES_MEMORY = np.zeros(len(Action), bool)
_MOVES_MEMORY[[*range(Action.ALLOC, Action.OOM), Action.SNAPSHOT, Action.FREE]] = True
# What could not be had may be absurd: torch itself draws the line at 2^60 (one_exa_bytes).
_WANTED_BYTES = Bounds(0, 1 << 60, "0 to 2^60 bytes")


@dataclass(frozen=True, slots=True)
class EventTable:
    """A device's events in the order of the trace, one row each; read-only.

    ``size`` in bytes: requested bytes of blocks, real bytes of segments, rounded bytes of an oom.
    ``addr`` of an oom is the driver's free bytes (torch's ``device_free``), of a snapshot 0.
    ``time_us`` (epoch microseconds), ``compile_context_id``, ``user_metadata_id``, ``pool_id`` and
    ``internal_metadata_id`` (the allocator's word on its own events, torch 2.15 on) are None where
    the file does not have them; the ids are positions in the Snapshot's ``texts`` and ``pools``.
    ``stack_id`` is -1 where no stack was captured. ``profiler_category`` is a position in
    ``profiler_categories.CATEGORIES``, -1 where torch.profiler gave none; None where it did not
    write the file.
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
    profiler_category: Int8Column | None = None

    def __len__(self) -> int:
        return len(self.action)

    def time_at(self, event: int) -> int | None:
        """Return the time of an event; None before the first, and where the file has no times."""
        return int(self.time_us[event]) if event >= 0 and self.time_us is not None else None


def read_trace(trace: list[object], where: str, collected: Collected) -> EventTable:
    """Turn one device's trace into columns, and empty the list, which frees its memory."""
    rows = Rows(trace, lambda i: f"{where}[{i}]")
    texts = collected.texts
    action = _actions(rows, collected)
    addr = rows.ints("addr", missing=0)
    size = rows.ints("size", missing=0)
    addr = np.where(action == Action.OOM, rows.ints("device_free", missing=0), addr)
    time_us = rows.optional_ints("time_us", missing=-1)
    check_numbers(action, addr, size, time_us, place=rows.place)
    events = EventTable(
        action=action,
        addr=addr,
        size=size,
        stream=rows.ints("stream", missing=0),
        stack_id=collected.stacks.ids(rows.values("frames"), rows.place),
        time_us=time_us,
        compile_context_id=rows.text_ids("compile_context", texts),
        user_metadata_id=rows.text_ids("user_metadata", texts),
        pool_id=rows.pool_ids("pool_id", collected.pools),
        internal_metadata_id=rows.text_ids("internal_metadata", texts),
        profiler_category=_profiler_categories(rows) if collected.form else None,
    )
    check_sizes(action, size, where)
    trace.clear()
    return read_only(events)


def _profiler_categories(rows: Rows) -> Int8Column:
    """Return the categories of allocs; those that are new since stand for what has none."""
    positions = {name: position for position, name in enumerate(CATEGORIES)} | {None: -1, "": -1}
    return np.array([positions.get(text, 0) for text in rows.texts("category")], np.int8)


def _actions(rows: Rows, collected: Collected) -> Int8Column:
    values = rows.values("action")
    try:
        return np.fromiter(map(ACTION_CODES.__getitem__, values), np.int8, len(values))
    except (KeyError, TypeError):
        pass
    for i, value in enumerate(values):
        if expect(value, str, f"{rows.place(i)}.action") not in ACTION_CODES:
            collected.unknown_actions[shown(value)] += 1
    return np.array([ACTION_CODES.get(value, 0) for value in values], np.int8)


def check_numbers(
    action: Int8Column,
    addr: Int64Column,
    size: Int64Column,
    time_us: Int64Column | None,
    *,
    place: Place,
) -> None:
    """Raise MalformedSnapshotError for the first number that cannot be right, column by column."""
    if not (are_within(addr, ADDRESS) and are_within(size, BYTES)):
        moves_memory = _MOVES_MEMORY[action]
        check_range(addr, ADDRESS, "addr", place=place, among=moves_memory)
        check_range(size, BYTES, "size", place=place, among=moves_memory)
    for column, name in ((size, "size"), (addr, "device_free")):
        check_range(column, _WANTED_BYTES, name, place=place, among=has_code(action, Action.OOM))
    check_range(time_us, TIME, "time_us", place=place)


def check_sizes(action: Int8Column, size: Int64Column, where: str) -> None:
    """Raise MalformedSnapshotError if the sizes add up to more than any process can have moved."""
    if len(size) and size.min() >= 0 and float(size.sum(dtype=np.float64)) <= MAX_TOTAL_BYTES:
        return  # then the sum of a part is no larger
    check_total(size[_MOVES_MEMORY[action]], where)


# The columns of ids, in the order of read_trace, which numbers texts by it, and their names in the
# core.
_IDS = {
    "stack_id": "frames",
    "compile_context_id": "compile_context",
    "user_metadata_id": "user_metadata",
    "pool_id": "pool_id",
    "internal_metadata_id": "internal_metadata",
}


class CompiledTraceReader:
    """Reads traces of the compiled core; all of one file have the same ids."""

    def __init__(self, collected: Collected, stacks: CompiledStacks) -> None:
        self._collected = collected
        self._events = stacks.events
        core = stacks.events.core
        objects = stacks.events.objects
        texts = FirstSeen(core, len(objects), lambda key: collected.texts.id(objects[key])).ids
        pools = FirstSeen(core, len(objects), self._pool_id).ids
        self._ids = dict.fromkeys(_IDS, texts) | {"stack_id": stacks.ids_of_rows, "pool_id": pools}
        self.n_events = stacks.events.n_events
        self._n_read = 0
        for text, n in stacks.events.unknown_actions.items():
            collected.unknown_actions[shown(text)] += n

    def read(self, trace: list[object], where: str) -> EventTable:
        """Turn a trace into the table that read_trace makes of the same bytes."""
        if not trace or type(trace[0]) is dict:
            return read_trace(trace, where, self._collected)
        of_trace = trace_rows(trace)
        if self._events.unknown_actions and of_trace.start < self._n_read:
            # unknown actions are reported in the order of the traces, not of the file
            raise OddFile
        self._n_read = of_trace.stop
        n = of_trace.stop - of_trace.start
        columns: dict[str, Any] = {
            name: column if column is None else column[of_trace]
            for name, column in self._events.columns.items()
        }
        ids = {
            name: columns[key] for name, key in _IDS.items()
        }  # our ids replace the core's in place
        for name, column in ids.items():
            if column is None or not (column != NO_ID).any():
                ids[name] = unknown_column(n, np.int32) if name == "stack_id" else None
                continue
            for rows in chunks(n):
                self._ids[name](column[rows])
        action = columns["action"]
        time_us = _times(columns["time_us"])
        addr, size, stream = (_or_zeros(columns[name], n) for name in ("addr", "size", "stream"))
        check_numbers(action, addr, size, time_us, place=lambda i: f"{where}[{i}]")
        check_sizes(action, size, where)
        if columns["has_category"] is not None and columns["has_category"].any():
            raise OddFile  # a page of torch.profiler, perhaps: its categories are read in Python
        return read_only(EventTable(action, addr, size, stream, time_us=time_us, **ids))

    def _pool_id(self, key: int) -> int:
        pools = self._collected.pools
        ids = Rows([{"pool_id": self._events.objects[key]}], str).pool_ids("pool_id", pools)
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
        name_id=unknown_column(len(rows), np.int32) if names is None else names,
        is_start=np.array([stage == "START" for stage in rows.values("stage")], bool),
        device=rows.ints("device", missing=0),
        time_us=rows.ints("time_us", TIME, missing=-1),
    )
    return read_only(columns)
