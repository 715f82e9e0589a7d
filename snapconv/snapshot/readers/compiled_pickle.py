"""A pickle through the compiled core: events and stacks as columns, all else as plain values.

The core reads bytes through a window and keeps no object per event, frame or text. What it leaves
of the file is another, small pickle, which Python's own unpickler reads with the same locks as any.
In it a list of one bytes object stands for a stack or a trace (``stack_row``, ``trace_rows``); the
core refuses files with bytes.

Whatever is odd gives OddFile, and the file goes through the twin: plain_pickle and event_table.
Their errors are the only ones that there are, so nothing here has a message of its own.
"""

import ctypes
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.native.library import DONE, MORE, NO_MEMORY, address, random_seed
from snapconv.snapshot.readers.plain_pickle import load_own_pickle

_WINDOW_BYTES = 1 << 18
# A text must fit into the window as a whole.
_MAX_WINDOW_BYTES = 1 << 24
_FIELDS = (
    "action", "addr", "device_free", "size", "stream", "time_us", "frames", "compile_context",
    "user_metadata", "internal_metadata", "pool_id", "category", "forward_frames", "filename",
    "name", "line",
)  # fmt: skip
MISSING_TIME = -(1 << 63)
NO_ID = -1

# Puts the next bytes into a buffer and returns how many; 0 at the end.
Fill = Callable[[memoryview], int]


class OddFile(Exception):
    """The core cannot read this; the twin can, or has the right error for it."""


class _UnknownAction(ctypes.Structure):
    _fields_ = (("text", ctypes.c_uint64), ("count", ctypes.c_uint64))


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


# The fields of the C structure in which the core returns events and stacks.
_RESULT_FIELDS: tuple[tuple[str, Any], ...] = (
    ("n_events", ctypes.c_uint64),
    ("n_rest_bytes", ctypes.c_uint64),
    ("rest", ctypes.c_void_p),
    ("n_unknown", ctypes.c_uint64),
    ("unknown", ctypes.POINTER(_UnknownAction)),
    ("n_frames", ctypes.c_uint64),
    ("frames", ctypes.c_void_p),
    ("n_stacks", ctypes.c_uint64),
    ("stacks", ctypes.c_void_p),
    ("frame_ids", ctypes.c_void_p),
    ("columns", ctypes.c_void_p * len(_COLUMNS)),
)


class _Result(ctypes.Structure):
    _fields_ = _RESULT_FIELDS


@dataclass(frozen=True, slots=True)
class CompiledEvents:
    """The events of all traces of a file, as columns, and all stacks.

    ``columns`` has them by name, None for a column that no event fills. Its column ``frames`` has
    rows of ``stacks``, the columns after that have keys of ``objects``; NO_ID is a missing value.
    ``unknown_actions`` counts those that no torch is known to write, in order of first appearance.
    The first column of ``stacks`` is where a stack's entries in ``frame_ids`` end, and the next
    stack's begin. A row of ``frames`` has the keys of its name and file name, and its line.
    """

    core: ctypes.CDLL
    n_events: int
    columns: Mapping[str, NDArray[Any] | None]
    objects: dict[int, Any]
    unknown_actions: Mapping[str, int]
    frames: NDArray[np.uint32]
    stacks: NDArray[np.int64]
    frame_ids: NDArray[np.int32]


class FirstSeen:
    """Numbers the core's keys in order of first appearance; ``new_id`` may replace a number."""

    def __init__(
        self, core: ctypes.CDLL, n_keys: int, new_id: Callable[[int], int] | None = None
    ) -> None:
        self._core = core
        self._new_id = new_id
        self._numbers = np.full(n_keys, NO_ID, np.int32)
        self._numbered_keys = np.empty(n_keys, np.int32)
        # The last is the id of NO_ID.
        self._new_ids = np.full(n_keys + 1 if new_id else 0, NO_ID, np.int32)
        self.keys = self._numbered_keys[:0]

    def ids(self, keys: NDArray[np.int32]) -> NDArray[np.int32]:
        """Replace many keys by their ids, in place, and return them."""
        n_before = len(self.keys)
        n_keys = self._core.snapconv_number(
            address(keys),
            len(keys),
            address(self._numbers),
            len(self._numbers),
            address(self._numbered_keys),
            n_before,
        )
        if n_keys < 0:
            raise OddFile
        self.keys = self._numbered_keys[:n_keys]
        if self._new_id is not None:
            new_keys = self.keys[n_before:].tolist()
            self._new_ids[n_before:n_keys] = [self._new_id(key) for key in new_keys]
            keys[:] = np.take(self._new_ids, keys)
        return keys


def read_compiled(
    core: ctypes.CDLL, fill: Fill, actions: Mapping[str, int], *, oom: int
) -> tuple[object, CompiledEvents]:
    """Read a pickle: return its value without events and stacks, and these as columns.

    ``actions`` are the codes of the known ones, ``oom`` that of the one whose address is the free
    memory. Raises OddFile, or MemoryError.
    """
    reader = _Reader(core, actions, oom)
    _feed(core, reader.address, fill)
    result = _Result()
    core.snapconv_reader_events(reader.address, ctypes.byref(result))
    small_pickle = ctypes.string_at(result.rest, result.n_rest_bytes)
    try:
        raw, objects = load_own_pickle(small_pickle)
    except Exception as error:
        # A text that is no UTF-8, say: the twin has the words for it.
        raise OddFile from error
    del small_pickle
    unknown = {
        objects[word.text]: word.count for word in result.unknown[: result.n_unknown]
    }
    stacks = _copied(result.stacks, np.int64, result.n_stacks, 2)
    frames = _copied(result.frames, np.uint32, result.n_frames, 3)
    n_frame_ids = int(stacks[-1, 0]) if len(stacks) else 0
    frame_ids = _copied(result.frame_ids, np.int32, n_frame_ids)
    core.snapconv_reader_drop_rest(reader.address)
    columns = {}
    for memory, (name, dtype) in zip(result.columns, _COLUMNS, strict=True):
        columns[name] = reader.column(memory, np.dtype(dtype), result.n_events)
    return raw, CompiledEvents(
        core, result.n_events, columns, objects, unknown, frames, stacks, frame_ids
    )


def stack_row(frames: object) -> int:
    """Return the row of the stack that a placeholder stands for."""
    return _numbers(frames, "<I")[0]


def trace_rows(trace: object) -> slice:
    """Return the rows of the trace that a placeholder stands for."""
    start, n_events = _numbers(trace, "<QQ")
    return slice(start, start + n_events)


def _numbers(raw: object, kind: str) -> tuple[int, ...]:
    """Return the numbers of a placeholder, which is a list of one bytes object."""
    if type(raw) is not list or not raw:
        raise OddFile
    content = raw[0]
    if type(content) is not bytes or len(content) != struct.calcsize(kind):
        raise OddFile
    return struct.unpack(kind, content)


def _copied(address: int | None, dtype: Any, *shape: int) -> NDArray[Any]:
    n_bytes = math.prod(shape) * np.dtype(dtype).itemsize
    content = ctypes.string_at(address or 0, n_bytes)
    return np.frombuffer(content, dtype).reshape(shape)


class _Reader:
    """The core's reader at an address; freed with this object, and so with the last column."""

    address: int = 0  # Ctrl-C may come before there is one

    def __init__(self, core: ctypes.CDLL, actions: Mapping[str, int], oom: int) -> None:
        self._core = core
        self.address = core.snapconv_reader_new(random_seed()) or 0
        if not self.address:
            raise MemoryError
        for word in dict.fromkeys((*_FIELDS, *actions)):
            text = word.encode()
            action = actions.get(word, 0)
            field = _FIELDS.index(word) + 1 if word in _FIELDS else 0
            status = core.snapconv_reader_define(
                self.address, text, len(text), field, action, action == oom
            )
            if status != MORE:
                raise MemoryError

    def __del__(self) -> None:
        if self.address:
            self._core.snapconv_reader_free(self.address)

    def column(
        self, address: int | None, dtype: "np.dtype[Any]", n_rows: int
    ) -> NDArray[Any] | None:
        """Return a column in the core's memory, which is freed with the last of all columns."""
        if address is None:
            return None
        memory: Any = (ctypes.c_uint8 * (n_rows * dtype.itemsize)).from_address(address)
        memory.owner = self
        return np.frombuffer(memory, dtype)


def _feed(core: ctypes.CDLL, reader: int, fill: Fill) -> None:
    """Push the bytes through, a window at a time; a token that is cut off comes again."""
    window = bytearray(_WINDOW_BYTES)
    n_unread = 0
    n_read = ctypes.c_int64()
    while True:
        with memoryview(window) as view:
            n_new = fill(view[n_unread:])
        if not n_new:
            raise OddFile
        n_bytes = n_unread + n_new
        address = ctypes.addressof(ctypes.c_char.from_buffer(window))
        status = core.snapconv_reader_feed(reader, address, n_bytes, ctypes.byref(n_read))
        if status == DONE:
            return
        if status != MORE:
            raise MemoryError if status == NO_MEMORY else OddFile
        n_unread = n_bytes - n_read.value
        if n_unread == len(window):
            if len(window) >= _MAX_WINDOW_BYTES:
                raise OddFile
            window = window + bytes(len(window))
        else:
            window[:n_unread] = window[n_read.value : n_bytes]
