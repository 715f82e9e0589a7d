"""A trace that the compiled core read, as an EventTable: with the values, ids and refusals of TraceReader.

A refusal may lack its place here: it sends the file to the twin, which finds it again, with its path.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from snapconv.columns import Int32Column, Int64Column, read_only
from snapconv.snapshot.event_table import CHUNK_EVENTS, EventTable, check_numbers, check_sizes
from snapconv.snapshot.fields import Interner, pool_column
from snapconv.snapshot.readers.compiled_pickle import EMPTY_LIST_ID, MISSING_TIME, NO_ID, CompiledTrace
from snapconv.snapshot.stack_table import StackInterner

_NOT_YET = -3  # below all ids


class _Ids:
    """Our ids for those of the core, given in the order in which they are met."""

    def __init__(self, n_objects: int, new_id: Callable[[int], int]) -> None:
        # The two special ids of the core stand at the end, as -1 and -2.
        self._of_core = np.full(n_objects + 2, _NOT_YET, np.int32)
        self._of_core[NO_ID] = -1
        self._new_id = new_id

    def translate(self, column: Int32Column) -> Int32Column:
        """The ids of a chunk."""
        ids = self._of_core[column]
        if ids.min() == _NOT_YET:
            new = column[ids == _NOT_YET]
            values, first = np.unique(new, return_index=True)
            for value in values[np.argsort(first)].tolist():
                self._of_core[value] = self._new_id(value)
            ids = self._of_core[column]
        return ids


class CompiledTraceReader:
    """Reads traces; what several devices share (stacks, texts, pools) is interned across them."""

    def __init__(self, stacks: StackInterner, texts: Interner, pools: Interner) -> None:
        self._stacks, self._texts, self._pools = stacks, texts, pools
        self._ids: dict[str, _Ids] = {}

    def read(self, trace: CompiledTrace, where: str, progress: Callable[[int], None] | None) -> EventTable:
        """Turn a trace into the table that TraceReader makes of the same bytes."""
        if not self._ids:
            self._start(trace)
        found, n = trace.events, len(trace)
        # In the order of TraceReader, which numbers texts by it.
        columns = {
            "stack_id": (trace.rows(found.frames), "frames"),
            "compile_context_id": (trace.rows(found.compile_context), "text"),
            "user_metadata_id": (trace.rows(found.user_metadata), "text"),
            "pool_id": (trace.rows(found.pool_id), "pool"),
            "internal_metadata_id": (trace.rows(found.internal_metadata), "text"),
        }
        used = {name: both for name, both in columns.items() if _is_used(both[0])}
        # Our ids take the place of the core's, as its columns are not read again.
        ids: dict[str, Any] = {name: used[name][0] if name in used else None for name in columns}
        for rows in _chunks(n):
            for name, (column, kind) in used.items():
                ids[name][rows] = self._ids[kind].translate(column[rows])
            if progress:
                progress(rows.stop)
        action, time_us = trace.rows(found.action), _times(trace.rows(found.time_us))
        addr, size = _or_zeros(trace.rows(found.addr), n), _or_zeros(trace.rows(found.size), n)
        check_numbers(action, addr, size, time_us, path=lambda i: f"{where}[{i}]")
        check_sizes(action, size, where)
        if ids["stack_id"] is None:
            ids["stack_id"] = np.full(n, -1, np.int32)
        ids["stream"] = _or_zeros(trace.rows(found.stream), n)
        return read_only(EventTable(action=action, addr=addr, size=size, time_us=time_us, **ids))

    def _start(self, trace: CompiledTrace) -> None:
        objects = trace.events.objects

        def stack(core_id: int) -> int:
            frames = [] if core_id == EMPTY_LIST_ID else objects[core_id]
            return self._stacks.id(frames, str(core_id))

        def pool(core_id: int) -> int:
            ids = pool_column([{"pool_id": objects[core_id]}], "pool_id", self._pools, path=str)
            return -1 if ids is None else int(ids[0])

        new_ids: dict[str, Callable[[int], int]] = {
            "frames": stack,
            "text": lambda core_id: self._texts.id(objects[core_id]),
            "pool": pool,
        }
        self._ids = {kind: _Ids(len(objects), new_id) for kind, new_id in new_ids.items()}


def _chunks(n_events: int) -> Iterator[slice]:
    for start in range(0, n_events, CHUNK_EVENTS):
        yield slice(start, min(start + CHUNK_EVENTS, n_events))


def _is_used(column: Int32Column | None) -> bool:
    """Whether a trace has at least one value in a column."""
    if column is None or not len(column):
        return False
    return bool(column.min() != NO_ID or column.max() != NO_ID)


def _or_zeros(column: Int64Column | None, n: int) -> Int64Column:
    return np.zeros(n, np.int64) if column is None else column


def _times(column: Int64Column | None) -> Int64Column | None:
    if column is None or not len(column) or column.max() == MISSING_TIME:
        return None
    if column.min() > MISSING_TIME:
        return column
    return np.where(column == MISSING_TIME, -1, column)
