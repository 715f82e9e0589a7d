"""One device's trace as an EventTable, read in Python or by the compiled core; its annotations.

read_trace reads torch's list of TraceEntry dictionaries. CompiledTraceReader takes the columns of
the core, with the values, ids and refusals of read_trace. A refusal may lack its path: it sends the
file to read_trace, which refuses it again, with the path.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from snapconv.columns import (
    BoolColumn,
    EventColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    chunks,
    has_code,
    read_only,
    unknown_column,
    values_of,
)
from snapconv.snapshot.fields import (
    ADDRESS,
    BYTES,
    MAX_TOTAL_BYTES,
    TIME,
    Bounds,
    Interner,
    RowPath,
    Rows,
    are_within,
    check_range,
    check_total,
    expect,
    is_pool,
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
    """The kind of an event: names as torch writes them, values as in EventTable.action."""

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
ACTION_CODES = {action.name.lower(): int(action) for action in Action if action}

# The actions whose address and size the analysis reads; elsewhere the file may have any value.
_MOVES_MEMORY = np.zeros(len(Action), bool)
_MOVES_MEMORY[Action.ALLOC : Action.OOM] = True
_MOVES_MEMORY[[Action.SNAPSHOT, Action.FREE]] = True
# A request that fails may be absurd: torch itself draws the line at 2^60 (one_exa_bytes).
_FAILED_BYTES = Bounds(0, 1 << 60, "0 to 2^60 bytes")


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
        if event < 0 or self.time_us is None:
            return None
        return int(self.time_us[event])

    def pools(self, rows: Int64Column | EventColumn) -> Int32Column:
        """Return the pools of some events; -1 for the row -1, and where the file has no pools."""
        if self.pool_id is None:
            return unknown_column(len(rows), np.int32)
        return values_of(self.pool_id, rows)

    def pool_at(self, event: int) -> int:
        """Return the pool of an event; -1 where the file has no pools."""
        return -1 if self.pool_id is None else int(self.pool_id[event])


def read_trace(trace: list[object], path: str, collected: Collected) -> EventTable:
    """Turn one device's trace into columns, and empty the list, which frees its memory."""
    rows = Rows(trace, lambda i: f"{path}[{i}]")
    texts = collected.texts
    action = _actions(rows, collected)
    addr = rows.ints("addr", missing=0)
    size = rows.ints("size", missing=0)
    device_free = rows.ints("device_free", missing=0)
    addr = np.where(action == Action.OOM, device_free, addr)
    time_us = rows.optional_ints("time_us", missing=-1)
    check_numbers(action, addr, size, time_us, row_path=rows.row_path)
    events = EventTable(
        action=action,
        addr=addr,
        size=size,
        stream=rows.ints("stream", missing=0),
        stack_id=collected.stacks.ids(rows.values("frames"), rows.row_path),
        time_us=time_us,
        compile_context_id=rows.text_ids("compile_context", texts),
        user_metadata_id=rows.text_ids("user_metadata", texts),
        pool_id=rows.pool_ids("pool_id", collected.pools),
        internal_metadata_id=rows.text_ids("internal_metadata", texts),
        profiler_category=_profiler_categories(rows) if collected.form else None,
    )
    check_sizes(action, size, path)
    trace.clear()
    return read_only(events)


def _profiler_categories(rows: Rows) -> Int8Column:
    """Return the categories of allocs; a name that is not known counts as the first of them."""
    positions: dict[str | None, int] = {name: i for i, name in enumerate(CATEGORIES)}
    positions[None] = positions[""] = -1
    return np.array([positions.get(text, 0) for text in rows.texts("category")], np.int8)


def _actions(rows: Rows, collected: Collected) -> Int8Column:
    codes = rows.codes("action", ACTION_CODES)
    if codes is not None:
        return codes
    values = rows.values("action")
    for i, value in enumerate(values):
        if expect(value, str, f"{rows.row_path(i)}.action") not in ACTION_CODES:
            collected.unknown_actions[shown(value)] += 1
    return np.array([ACTION_CODES.get(value, 0) for value in values], np.int8)


def check_numbers(
    action: Int8Column,
    addr: Int64Column,
    size: Int64Column,
    time_us: Int64Column | None,
    *,
    row_path: RowPath,
) -> None:
    """Raise MalformedSnapshotError for the first number that cannot be right, column by column."""
    if not (are_within(addr, ADDRESS) and are_within(size, BYTES)):
        moves_memory = _MOVES_MEMORY[action]
        check_range(addr, ADDRESS, "addr", row_path=row_path, among=moves_memory)
        check_range(size, BYTES, "size", row_path=row_path, among=moves_memory)
    is_failed = has_code(action, Action.OOM)
    check_range(size, _FAILED_BYTES, "size", row_path=row_path, among=is_failed)
    check_range(addr, _FAILED_BYTES, "device_free", row_path=row_path, among=is_failed)
    check_range(time_us, TIME, "time_us", row_path=row_path)


def check_sizes(action: Int8Column, size: Int64Column, path: str) -> None:
    """Raise MalformedSnapshotError if the sizes add up to more than any process can have moved."""
    if (
        len(size)
        and size.min() >= 0
        and float(size.sum(dtype=np.float64)) <= MAX_TOTAL_BYTES
    ):
        return  # then the sum of a part is no larger
    check_total(size[_MOVES_MEMORY[action]], path)


# The columns of ids and their names in the core. The order is that of read_trace, since texts are
# numbered in it.
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
        n_objects = len(stacks.events.objects)
        self._ids = dict.fromkeys(_IDS, FirstSeen(core, n_objects, self._text_id).ids)
        self._ids["stack_id"] = stacks.ids_of_rows
        self._ids["pool_id"] = FirstSeen(core, n_objects, self._pool_id).ids
        self.n_events = stacks.events.n_events
        self._n_read = 0
        for text, n in stacks.events.unknown_actions.items():
            collected.unknown_actions[shown(text)] += n

    def read(self, trace: list[object], path: str) -> EventTable:
        """Turn a trace into the table that read_trace makes of the same bytes."""
        if not trace or type(trace[0]) is dict:
            return read_trace(trace, path, self._collected)
        rows = trace_rows(trace)
        if self._events.unknown_actions and rows.start < self._n_read:
            # unknown actions are reported in the order of the traces, not of the file
            raise OddFile
        self._n_read = rows.stop
        n_rows = rows.stop - rows.start
        columns: dict[str, Any] = {}
        for name, column in self._events.columns.items():
            columns[name] = column if column is None else column[rows]
        ids = {
            name: self._our_ids(name, columns[key], n_rows) for name, key in _IDS.items()
        }
        action = columns["action"]
        time_us = _times(columns["time_us"])
        addr, size, stream = (
            _or_zeros(columns[name], n_rows) for name in ("addr", "size", "stream")
        )
        check_numbers(action, addr, size, time_us, row_path=lambda i: f"{path}[{i}]")
        check_sizes(action, size, path)
        has_category = columns["has_category"]
        if has_category is not None and has_category.any():
            raise OddFile  # a page of torch.profiler, perhaps: its categories are read in Python
        return read_only(EventTable(action, addr, size, stream, time_us=time_us, **ids))

    def _our_ids(self, name: str, column: Any, n_rows: int) -> Any:
        """Replace the core's ids by ours, in place; None for a column of texts without any."""
        if column is None or not (column != NO_ID).any():
            return unknown_column(n_rows, np.int32) if name == "stack_id" else None
        for part in chunks(n_rows):
            self._ids[name](column[part])
        return column

    def _text_id(self, key: int) -> int:
        return self._collected.texts.id(self._events.objects[key])

    def _pool_id(self, key: int) -> int:
        pool = self._events.objects[key]
        if pool is None:
            return -1
        if not is_pool(pool):
            raise OddFile
        return self._collected.pools.id(tuple(pool))


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
    """The starts and ends of record_function; ``name_id`` is a position in ``texts``."""

    name_id: Int32Column
    is_start: BoolColumn
    device: Int64Column
    time_us: Int64Column

    def __len__(self) -> int:
        return len(self.name_id)


def read_annotations(raw: object, texts: Interner, path: str) -> AnnotationTable:
    """Turn ``external_annotations`` (torch >= 2.5) into columns; None means there are none."""
    rows = Rows.of(raw, path)
    name_id = rows.text_ids("name", texts)
    if name_id is None:
        name_id = unknown_column(len(rows), np.int32)
    table = AnnotationTable(
        name_id=name_id,
        is_start=rows.flags("stage", value="START"),
        device=rows.ints("device", missing=0),
        time_us=rows.ints("time_us", TIME, missing=-1),
    )
    return read_only(table)
