"""A pickle through the compiled core: events as columns, and everything else as plain values, as ever.

The core reads bytes through a window and keeps no object per event, frame or text. What it leaves of the file
is another, small pickle, which Python's own unpickler reads with the same locks as any. Traces in it are
placeholders, and become CompiledTrace.

Whatever is odd gives OddFile, and the file goes through the twin: plain_pickle and event_table.
Their errors are the only ones that there are, so nothing here has a message of its own.
"""

import ctypes
import struct
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.native.library import DONE, MORE, NO_MEMORY, random_seed
from snapconv.snapshot.readers.plain_pickle import load_own_pickle

_WINDOW_BYTES = 1 << 18
# A text must fit into the window as a whole.
_MAX_WINDOW_BYTES = 1 << 24
_FIELDS = (
    "action addr device_free size stream time_us frames compile_context user_metadata internal_metadata "
    "pool_id category forward_frames filename"
).split()
MISSING_TIME = -(1 << 63)
NO_ID, EMPTY_LIST_ID = -1, -2

# Puts the next bytes into a buffer and returns how many; 0 at the end.
Fill = Callable[[memoryview], int]


class OddFile(Exception):
    """The core cannot read this; the twin can, or has the right error for it."""


class _UnknownWord(ctypes.Structure):
    _fields_ = (("text", ctypes.c_uint32), ("is_action", ctypes.c_uint32), ("count", ctypes.c_uint64))


_COLUMNS: tuple[tuple[str, Any], ...] = (
    ("action", np.int8),
    ("has_category", np.int8),
    ("addr", np.int64),
    ("size", np.int64),
    ("stream", np.int64),
    ("time_us", np.int64),
    ("frames", np.int32),
    ("compile_context", np.int32),
    ("user_metadata", np.int32),
    ("internal_metadata", np.int32),
    ("pool_id", np.int32),
)


class _Found(ctypes.Structure):
    _fields_ = (
        ("n_events", ctypes.c_uint64),
        ("n_traces", ctypes.c_uint64),
        ("n_rest_bytes", ctypes.c_uint64),
        ("rest", ctypes.c_void_p),
        ("n_unknown", ctypes.c_uint64),
        ("unknown", ctypes.POINTER(_UnknownWord)),
        ("columns", ctypes.c_void_p * len(_COLUMNS)),
    )


@dataclass(frozen=True, slots=True)
class CompiledEvents:
    """The events of all traces of a file: columns by name, None for one that no event fills.

    ``frames`` and the columns after it are keys of ``objects``, NO_ID where there is nothing, EMPTY_LIST_ID
    for an empty list. ``unknown_actions`` counts those that no torch is known to write, in order of first
    appearance.
    """

    columns: Mapping[str, NDArray[Any] | None]
    objects: dict[int, Any]
    unknown_actions: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CompiledTrace:
    """One trace: rows of the columns that all traces share."""

    events: CompiledEvents
    start: int
    n_events: int

    def __len__(self) -> int:
        return self.n_events

    def column(self, name: str) -> Any:
        """Return the rows of a column that are of this trace."""
        column = self.events.columns[name]
        return None if column is None else column[self.start : self.start + self.n_events]

    @property
    def has_category(self) -> bool:
        """Whether the first event has a category, as in what torch's profiler draws."""
        column = self.column("has_category")
        return column is not None and bool(column[0])


def read_compiled(core: ctypes.CDLL, fill: Fill, actions: Mapping[str, int], *, oom: int) -> object:
    """Read a pickle to its raw value, with every trace that stands in its place as a CompiledTrace.

    ``actions`` are the codes of the known ones, ``oom`` that of the one whose address is the free memory.
    Raises OddFile, or MemoryError.
    """
    reader = _Reader(core, actions, oom)
    _feed(core, reader.address, fill)
    found = _Found()
    core.snapconv_reader_events(reader.address, ctypes.byref(found))
    rest = ctypes.string_at(found.rest, found.n_rest_bytes)
    try:
        raw, objects = load_own_pickle(rest)
    except Exception as error:  # a text that is no UTF-8, say: the twin has the words for it
        raise OddFile from error
    del rest
    words = [found.unknown[i] for i in range(found.n_unknown)]
    unknown = {objects[word.text]: word.count for word in words if word.is_action}
    core.snapconv_reader_drop_rest(reader.address)
    columns = {
        name: reader.column(number, found.columns[number], np.dtype(dtype), found.n_events)
        for number, (name, dtype) in enumerate(_COLUMNS)
    }
    if columns["action"] is None:
        columns["action"] = np.empty(0, np.int8)
    events = CompiledEvents(columns, objects, unknown)
    return _with_traces(raw, events, found.n_traces)


class _Reader:
    """The core's reader at an address; it is freed with this, and so with the last of its columns."""

    def __init__(self, core: ctypes.CDLL, actions: Mapping[str, int], oom: int) -> None:
        self._core = core
        self.address: int = core.snapconv_reader_new(random_seed()) or 0
        if not self.address:
            raise MemoryError
        for word in dict.fromkeys((*_FIELDS, *actions)):
            text, action = word.encode(), actions.get(word, 0)
            field = _FIELDS.index(word) + 1 if word in _FIELDS else 0
            is_oom = action == oom
            if core.snapconv_reader_define(self.address, text, len(text), field, action, is_oom) != MORE:
                raise MemoryError

    def __del__(self) -> None:
        if self.address:
            self._core.snapconv_reader_free(self.address)

    def column(
        self, number: int, address: int | None, dtype: "np.dtype[Any]", n_rows: int
    ) -> NDArray[Any] | None:
        """Return a column in the core's memory, which is freed with the last reference to it."""
        if address is None:
            return None
        memory = (ctypes.c_uint8 * (n_rows * dtype.itemsize)).from_address(address)
        weakref.finalize(memory, self._drop, number).atexit = False
        return np.frombuffer(memoryview(memory), dtype)

    def _drop(self, number: int) -> None:
        self._core.snapconv_reader_drop_column(self.address, number)


def _feed(core: ctypes.CDLL, reader: int, fill: Fill) -> None:
    """Push the bytes through, a window at a time; a token that is cut off comes again with the next."""
    window = bytearray(_WINDOW_BYTES)
    n_left, taken = 0, ctypes.c_int64()
    while True:
        with memoryview(window) as view:
            n_new = fill(view[n_left:])
        if not n_new:
            raise OddFile
        n = n_left + n_new
        address = ctypes.addressof(ctypes.c_char.from_buffer(window))
        status = core.snapconv_reader_feed(reader, address, n, ctypes.byref(taken))
        if status == DONE:
            return
        if status != MORE:
            raise MemoryError if status == NO_MEMORY else OddFile
        n_left = n - taken.value
        if n_left == len(window):
            if len(window) >= _MAX_WINDOW_BYTES:
                raise OddFile
            window = window + bytes(len(window))
        else:
            window[:n_left] = window[taken.value : n]


def _with_traces(raw: object, events: CompiledEvents, n_traces: int) -> object:
    """Put the traces in the place of their placeholders; a trace that stands anywhere else is odd."""
    traces: list[CompiledTrace] = []

    def trace_of(value: object) -> object:
        if type(value) is not bytes:  # which no file has that comes here
            return value
        traces.append(CompiledTrace(events, *struct.unpack("<QQ", value)))
        return traces[-1]

    if isinstance(raw, dict):
        key = "device_traces" if "device_traces" in raw else "traces"
        if isinstance(raw.get(key), list):
            raw[key] = [trace_of(value) for value in raw[key]]
        if "host_traces" in raw:
            raw["host_traces"] = trace_of(raw["host_traces"])
    in_order = all(one.start < other.start for one, other in pairwise(traces))
    # What is unknown is counted in the order of the file, and reported in that of the traces.
    if len(traces) != n_traces or (events.unknown_actions and not in_order):
        raise OddFile
    return raw
