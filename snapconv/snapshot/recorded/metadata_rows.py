"""One list of the recorder's dictionaries as columns, with the strictness that an untrusted file needs."""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.columns import BoolColumn, Int32Column, Int64Column
from snapconv.errors import MalformedSnapshotError
from snapconv.snapshot.fields import (
    ADDRESS,
    BYTES,
    DEVICE,
    TIME,
    Bounds,
    check_range,
    check_total,
    expect,
    expect_dicts,
    int_column,
    raw_column,
)
from snapconv.snapshot.stack_table import StackInterner

ITERATION = Bounds(0, 1 << 31, "0 to 2^31")
_DIMENSION = Bounds(0, 1 << 62, "0 to 2^62")
# The recorder keeps 200,000 of each kind at most.
_MAX_ROWS = 1_000_000
# A name may stand in a file very many times, and so may a list of names.
_MAX_TEXT, _MAX_LIST, _MAX_IN_LISTS = 2000, 100, 4_000_000
# What the rows take together, each with its texts, for a byte of the file; a recorder's take less than one.
_BYTES_PER_BYTE, _FREE_BYTES, _ROW_BYTES = 4, 512 << 10, 50

Raw = dict[str, object]


@dataclass(frozen=True, slots=True)
class RecordedMemory:
    """The places of memory when it was recorded; read-only columns.

    ``addr`` is the base of the storage, ``n_bytes`` what the tensor itself has; ``noted_us`` is a time of the
    trace's clock.
    """

    device: Int64Column
    addr: Int64Column
    n_bytes: Int64Column
    recorded_us: Int64Column

    def __len__(self) -> int:
        return len(self.addr)


class Rows:
    """The dictionaries of one list; every method raises MalformedSnapshotError with the path of the fault."""

    def __init__(self, rows: list[Raw], where: str) -> None:
        self._rows, self._where = rows, where

    @classmethod
    def of(cls, raw: dict[object, object], key: str) -> "Rows":
        """Return the list under a key of the metadata, empty where there is none."""
        where, rows = f"snapconv.{key}", raw.get(key)
        if rows is None:
            rows = []
        expect(rows, list, where)
        found = cls(rows, where)  # type: ignore[arg-type]  # a list, and of dictionaries as checked below
        if len(found) > _MAX_ROWS:
            raise MalformedSnapshotError(f"{where}: expected at most {_MAX_ROWS} entries, got {len(found)}")
        expect_dicts(found._rows, found._path)
        return found

    def __len__(self) -> int:
        return len(self._rows)

    def ints(self, key: str, bounds: Bounds | None, *, missing: int | None = None) -> Int64Column:
        """Integers; ``missing`` stands in for those that are not there, which is an error without it."""
        column = int_column(self._rows, key, path=self._path, missing=missing)
        if column is None:
            if missing is None and self._rows:
                raise MalformedSnapshotError(f"{self._path(0)}.{key}: expected int, got nothing")
            column = np.full(len(self), missing or 0, np.int64)
        if bounds is not None:
            is_there = None if missing is None else column != missing
            check_range(column, bounds, key, path=self._path, where=is_there)
        return _frozen(column)

    def times(self, key: str, *, missing: int | None = None) -> Int64Column:
        """Return microseconds of the trace's clock."""
        return self.ints(key, TIME, missing=missing)

    def indices(self, key: str, n_rows: int) -> Int64Column:
        """Return rows of another table, -1 for none."""
        return self.ints(key, Bounds(0, n_rows - 1, f"an index below {n_rows}"), missing=-1)

    def bools(self, key: str) -> BoolColumn:
        """Return truth values; False where one is missing."""
        values = raw_column(self._rows, key)
        for i, value in enumerate(values):
            if value is not None:
                expect(value, bool, f"{self._path(i)}.{key}")
        return _frozen(np.array([value is True for value in values], np.bool_))

    def texts(self, key: str, *, missing: str | None = None) -> tuple[str, ...]:
        """Texts, cut where they are too long to be names."""
        values = raw_column(self._rows, key)
        for i, value in enumerate(values):
            if type(value) is not str and not (value is None and missing is not None):
                expect(value, str, f"{self._path(i)}.{key}")
        known = {value: missing if value is None else _cut(value) for value in values}  # type: ignore[arg-type]
        return tuple(map(known.__getitem__, values))  # type: ignore[arg-type]  # texts, by now

    def text_lists(self, key: str) -> tuple[tuple[str, ...], ...]:
        """Return lists of texts, empty where one is missing; of very long ones the beginning."""
        cut: dict[object, str] = {}  # each text once: a long one may stand in very many lists
        return tuple(
            tuple([cut.setdefault(text, _cut(text)) for text in texts if type(text) is str])
            for texts in self._lists(key)
        )

    def shapes(self, key: str) -> tuple[tuple[int, ...], ...]:
        """Return lists of dimensions, empty where one is missing."""
        lists = self._lists(key)
        for i, dimensions in enumerate(lists):
            for n in dimensions:
                if type(n) is not int or not _DIMENSION.low <= n <= _DIMENSION.high:
                    raise MalformedSnapshotError(f"{self._path(i)}.{key}: expected {_DIMENSION.expected}")
        return tuple(tuple(dimensions) for dimensions in lists)  # type: ignore[arg-type]  # integers, checked

    def stacks(self, key: str, interner: StackInterner | None) -> Int32Column:
        """Return ids of stacks, -1 where one is missing; without an interner they all are."""
        if interner is None:
            return _frozen(np.full(len(self), -1, np.int32))
        return _frozen(interner.ids(raw_column(self._rows, key), self._path))

    def memory(self) -> RecordedMemory:
        """Return the place of every row's memory."""
        table = RecordedMemory(
            device=self.ints("device", DEVICE),
            addr=self.ints("addr", ADDRESS),
            n_bytes=self.ints("bytes", BYTES),
            recorded_us=self.times("noted_us"),
        )
        check_total(table.n_bytes, self._where)
        return table

    def _lists(self, key: str) -> list[list[object]]:
        found: list[list[object]] = []
        n_items = 0
        for i, value in enumerate(raw_column(self._rows, key)):
            if value is None:
                found.append([])
                continue
            if not isinstance(value, (list, tuple)):
                expect(value, list, f"{self._path(i)}.{key}")
            items = list(islice(value, _MAX_LIST))  # type: ignore[call-overload]  # a list or a tuple, checked
            n_items += len(items)
            if n_items > _MAX_IN_LISTS:
                raise MalformedSnapshotError(
                    f"{self._where}: the lists under {key} are longer than any model's"
                )
            found.append(items)
        return found

    def _path(self, i: int) -> str:
        return f"{self._where}[{i}]"


def check_size(raw: dict[object, object], n_bytes: int) -> None:
    """Refuse lists that repeat a row or a text so often that all are many times the size of the file.

    A pickle repeats either for two bytes, and reports have them for every row.
    """
    of_list: dict[int, int] = {}

    def size(value: object) -> int:
        if type(value) is str:
            return min(len(value), _MAX_TEXT)
        if type(value) is not list:
            return 0
        if id(value) not in of_list:
            texts = (item for item in islice(value, _MAX_LIST) if type(item) is str)
            of_list[id(value)] = min(len(value), _MAX_LIST) + sum(map(size, texts))
        return of_list[id(value)]

    total = sum(
        _ROW_BYTES + sum(map(size, row.values()))
        for rows in raw.values()
        if isinstance(rows, list)
        for row in rows
        if isinstance(row, dict)
    )
    if total > _BYTES_PER_BYTE * n_bytes + _FREE_BYTES:
        raise MalformedSnapshotError("snapconv: the entries are together many times the size of the file")


def texts_of(values: object) -> tuple[str, ...]:
    """Return the texts in a list, cut as names are; of anything else nothing."""
    if not isinstance(values, (list, tuple)):
        return ()
    texts: Iterable[object] = islice(values, _MAX_LIST)
    return tuple(_cut(text) for text in texts if type(text) is str)


def _cut(text: str) -> str:
    return text if len(text) <= _MAX_TEXT else text[:_MAX_TEXT]


def _frozen(column: NDArray[Any]) -> NDArray[Any]:
    column.setflags(write=False)
    return column
