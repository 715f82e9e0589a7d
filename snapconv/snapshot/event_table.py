"""One device's trace as columns: torch's list of TraceEntry dictionaries becomes an EventTable."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.columns import Int8Column, Int32Column, Int64Column, has_code, read_only, table_html, take
from snapconv.errors import MalformedSnapshotError
from snapconv.snapshot.fields import (
    ADDRESS,
    BYTES,
    MAX_TOTAL_BYTES,
    TIME,
    Bounds,
    Interner,
    Path,
    are_within,
    check_range,
    check_total,
    expect_dicts,
    int_column,
    pool_column,
    present_keys,
    raw_column,
    text_column,
)
from snapconv.snapshot.stack_table import StackInterner
from snapconv.units import shown

CHUNK_EVENTS = 1 << 16


class Action(IntEnum):
    """What happened; the values are those of EventTable.action. Names as torch writes them."""

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


_KNOWN_KEYS = frozenset(
    "action addr device_free size stream frames time_us compile_context user_metadata internal_metadata "
    "pool_id forward_frames category".split()
)
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

    def _repr_html_(self) -> str:
        return table_html(self)

    def take(self, order: Int64Column) -> "EventTable":
        """The same events in another order."""
        return take(self, order)


@dataclass(slots=True)
class TraceReader:
    """Reads traces; what several devices share (stacks, texts, pools) is interned across them."""

    stacks: StackInterner
    texts: Interner
    pools: Interner
    unknown_actions: Counter[str]
    unknown_keys: Counter[str]
    progress: Callable[[int], None] | None = None

    def read(self, trace: list[object], where: str) -> EventTable:
        """Turn one device's trace into columns, and empty the list on the way to free its memory."""
        parts = []
        for start in range(0, len(trace), CHUNK_EVENTS):
            chunk = trace[start : start + CHUNK_EVENTS]
            trace[start : start + len(chunk)] = repeat(None, len(chunk))
            parts.append(self._read_chunk(chunk, lambda i, start=start: f"{where}[{start + i}]"))  # type: ignore[misc]
            if self.progress:
                self.progress(start + len(chunk))
        trace.clear()
        events = _concatenate(parts)
        check_sizes(events.action, events.size, where)
        return events

    def _read_chunk(self, rows: list[object], path: Path) -> EventTable:
        expect_dicts(rows, path)
        events: list[dict[str, object]] = rows  # type: ignore[assignment]  # checked just above
        keys = present_keys(events, _KNOWN_KEYS, self.unknown_keys)

        def ints(key: str, missing: int) -> Int64Column | None:
            return int_column(events, key, path=path, missing=missing) if key in keys else None

        def texts(key: str) -> Int32Column | None:
            return text_column(events, key, self.texts, path=path) if key in keys else None

        zeros = np.zeros(len(events), np.int64)
        action = self._actions(events, path)
        addr, size, time_us = _or(ints("addr", 0), zeros), _or(ints("size", 0), zeros), ints("time_us", -1)
        check_numbers(action, addr, size, time_us, path=path)
        return EventTable(
            action=action,
            addr=np.where(action == Action.OOM, _or(ints("device_free", 0), zeros), addr),
            size=size,
            stream=_or(ints("stream", 0), zeros),
            stack_id=self.stacks.ids(raw_column(events, "frames"), path),
            time_us=time_us,
            compile_context_id=texts("compile_context"),
            user_metadata_id=texts("user_metadata"),
            pool_id=pool_column(events, "pool_id", self.pools, path=path) if "pool_id" in keys else None,
            internal_metadata_id=texts("internal_metadata"),
        )

    def _actions(self, events: list[dict[str, object]], path: Path) -> Int8Column:
        values = raw_column(events, "action")
        try:
            return np.fromiter(map(ACTION_CODES.__getitem__, values), np.int8, len(values))  # type: ignore[arg-type]
        except (KeyError, TypeError):
            pass
        for i, value in enumerate(values):
            if type(value) is not str:
                got = "nothing" if value is None else type(value).__name__
                raise MalformedSnapshotError(f"{path(i)}.action: expected str, got {got}")
            if value not in ACTION_CODES:
                self.unknown_actions[shown(value)] += 1
        return np.array([ACTION_CODES.get(str(value), 0) for value in values], np.int8)


def check_numbers(
    action: Int8Column, addr: Int64Column, size: Int64Column, time_us: Int64Column | None, *, path: Path
) -> None:
    """Raise MalformedSnapshotError for the first number that cannot be right, column by column."""
    if not (are_within(addr, ADDRESS) and are_within(size, BYTES)):
        moves_memory = _MOVES_MEMORY[action]
        check_range(addr, ADDRESS, "addr", path=path, where=moves_memory)
        check_range(size, BYTES, "size", path=path, where=moves_memory)
    check_range(size, _WANTED_BYTES, "size", path=path, where=has_code(action, Action.OOM))
    check_range(time_us, TIME, "time_us", path=path)


def check_sizes(action: Int8Column, size: Int64Column, where: str) -> None:
    """Raise MalformedSnapshotError if the sizes add up to more than any process can have moved."""
    if len(size) and size.min() >= 0 and float(size.sum(dtype=np.float64)) <= MAX_TOTAL_BYTES:
        return  # then the sum of a part is no larger
    check_total(size[_MOVES_MEMORY[action]], where)


def _or(column: Int64Column | None, otherwise: Int64Column) -> Int64Column:
    return otherwise if column is None else column


def _concatenate(parts: list[EventTable]) -> EventTable:
    empty64, empty32 = np.empty(0, np.int64), np.empty(0, np.int32)
    if not parts:
        return EventTable(np.empty(0, np.int8), empty64, empty64, empty64, empty32, None, None, None, None)
    columns: dict[str, NDArray[Any] | None] = {}
    for name in EventTable.__slots__:
        pieces = [getattr(part, name) for part in parts]
        if all(piece is None for piece in pieces):
            columns[name] = None
            continue
        dtype = next(piece.dtype for piece in pieces if piece is not None)
        filled = [np.full(len(p), -1, dtype) if c is None else c for p, c in zip(parts, pieces, strict=True)]
        columns[name] = np.concatenate(filled)
    return read_only(EventTable(**columns))  # type: ignore[arg-type]  # one column per field
