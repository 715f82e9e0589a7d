"""Columns of all tables: read-only arrays, with -1 for unknown values."""

from collections.abc import Iterator
from dataclasses import fields, replace
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

Int8Column = NDArray[np.int8]
Int32Column = NDArray[np.int32]
Int64Column = NDArray[np.int64]
# Row numbers of an EventTable, -1 where there is none: no trace has 2^31 events.
EventColumn = Int32Column
BoolColumn = NDArray[np.bool_]
# Milliseconds; NaN where there is no time.
MsColumn = NDArray[np.float64]
ObjectColumn = NDArray[np.object_]

# So many rows at a time, where intermediate values would need as much memory as the result: these
# stay in the cache of the processor.
_CHUNK_ROWS = 1 << 16

# Up to so many numbers, comparing with each is faster than a search.
_FEW = 8
# A table is faster than a search where numbers lie close: up to so many times the rows, as in
# NumPy.
_TABLE_ROWS = 6

_Table = TypeVar("_Table", bound=Any)
_Number = TypeVar("_Number", bound=np.generic)
_Numbers = TypeVar("_Numbers", bound=NDArray[np.integer[Any]])


def read_only(table: _Table) -> _Table:
    """Lock the columns of a table that was just built, and return it."""
    for column in columns_of(table).values():
        column.setflags(write=False)
    return table


def take(table: _Table, rows: Int64Column) -> _Table:
    """Return the table with some of its rows, in the order of ``rows``."""
    columns = {name: column[rows] for name, column in columns_of(table).items()}
    return read_only(replace(table, **columns))


def columns_of(table: Any) -> dict[str, NDArray[Any]]:
    """Return the columns that a table has, by name, and no copies."""
    columns = {}
    for field in fields(table):
        column = getattr(table, field.name)
        if isinstance(column, np.ndarray):
            columns[field.name] = column
    return columns


def values_at(table: Any, row: int) -> Any:
    """Return a row as plain values, by the names of the table's columns."""
    values = {name: column[row].item() for name, column in columns_of(table).items()}
    return SimpleNamespace(**values)


def plain_rows(*columns: NDArray[Any]) -> Iterator[Any]:
    """Yield the rows of some columns as tuples of plain values."""
    return zip(*(column.tolist() for column in columns), strict=True)


def rows_of(mask: NDArray[Any]) -> Int64Column:
    """Return the rows that are marked.

    ``np.flatnonzero`` takes twice as long for a few thousand rows.
    """
    return mask.nonzero()[0]


def values_of(
    column: NDArray[_Number], rows: NDArray[np.integer[Any]], *, missing: int = -1
) -> NDArray[_Number]:
    """Return ``column[rows]``, and ``missing`` where a row is -1."""
    if not len(column):
        return np.full(len(rows), missing, column.dtype)
    values = np.take(column, rows)  # a third faster than brackets
    values[rows < 0] = missing
    return values


def count_of(mask: BoolColumn) -> int:
    """Return how many rows are marked."""
    return int(np.count_nonzero(mask))


def rows_by(key: NDArray[Any], rows: Int64Column) -> Int64Column:
    """Return some rows in the order of a key, which has one entry for every row number."""
    return rows[np.argsort(key[rows], kind="stable")]


def unknown_column(
    n_rows: int, kind: type[np.signedinteger[Any]] = np.int64
) -> NDArray[Any]:
    """Return a column in which nothing is known."""
    return np.full(n_rows, -1, kind)


def chunks(n_rows: int) -> Iterator[slice]:
    """Return the rows in pieces that the processor's cache can hold."""
    for start in range(0, n_rows, _CHUNK_ROWS):
        yield slice(start, min(start + _CHUNK_ROWS, n_rows))


def offsets_of(lengths: NDArray[np.integer[Any]]) -> Int64Column:
    """Return where each of some pieces begins that stand one behind the other, and the end."""
    return np.append(0, np.cumsum(lengths))


def distinct(values: NDArray[_Number]) -> NDArray[_Number]:
    """Return the different values of a column, in order.

    NumPy 2.4's own takes seven times as long for many numbers of which few differ, and imports
    masked arrays.
    """
    ordered = np.sort(values, axis=None)
    return ordered[run_starts(ordered)]


def run_starts(values: NDArray[Any]) -> Int64Column:
    """Return the starts of runs of equal values."""
    is_new = np.ones(len(values), bool)
    is_new[1:] = values[1:] != values[:-1]
    return rows_of(is_new)


def stable_order(values: NDArray[Any]) -> Int64Column:
    """Return the order of values; equal ones keep theirs.

    NumPy sorts 16 bits ten times as fast as more.
    """
    is_number = values.dtype != np.bool_ and len(values) > 0
    if is_number and values.min() >= -(2**15) and values.max() < 2**15:
        values = values.astype(np.int16)
    return np.argsort(values, kind="stable")


def grouped(
    rows: Int64Column, key: NDArray[Any], *, min_rows: int = 1
) -> list[Int64Column]:
    """Return the rows in groups of one key each, by key, those of ``min_rows`` rows and more.

    ``key`` has one entry for every row number.
    """
    order = rows[stable_order(key[rows])]
    bounds = np.append(run_starts(key[order]), len(order))
    large = rows_of(np.diff(bounds) >= min_rows)
    firsts = bounds[large].tolist()
    ends = bounds[large + 1].tolist()
    return [order[first:end] for first, end in zip(firsts, ends, strict=True)]


def number_groups(*keys: NDArray[Any]) -> tuple[Int64Column, Int64Column]:
    """Return the first row of every group of equal keys, and the group of each row.

    Groups are in the order of the keys. ``np.unique`` takes several times as long for more than one
    key.
    """
    order = stable_order(keys[-1])
    for key in keys[-2::-1]:
        order = order[stable_order(key[order])]
    before = order[:-1]
    after = order[1:]
    is_new = np.ones(len(order), bool)
    is_new[1:] = np.any([key[after] != key[before] for key in keys], axis=0)
    group = np.empty(len(order), np.int64)
    group[order] = np.cumsum(is_new) - 1
    return order[is_new], group


def has_code(codes: NDArray[np.integer[Any]], code: int) -> BoolColumn:
    """Return the mask of a code.

    NumPy takes the member of an enum for an int64, and 13 times as long.
    """
    return np.asarray(codes == int(code))


def is_among(values: NDArray[np.integer[Any]], candidates: ArrayLike) -> BoolColumn:
    """Return whether each value is one of the candidates.

    ``np.isin`` sorts all where these differ widely, as sizes do, and imports masked arrays for it.
    """
    numbers = np.asarray(candidates)
    if len(numbers) <= _FEW:
        is_equal = np.zeros(values.shape, bool)
        for number in numbers.tolist():
            is_equal |= values == number
        return is_equal
    numbers = distinct(numbers)
    span = int(numbers[-1]) - int(numbers[0])
    if span <= _TABLE_ROWS * (len(values) + len(numbers)):
        return np.isin(values, numbers, kind="table")
    position = np.minimum(np.searchsorted(numbers, values), len(numbers) - 1)
    return np.asarray(numbers[position] == values)


def sums_by(
    group: NDArray[np.integer[Any]], values: Int64Column, n_groups: int
) -> Int64Column:
    """Return the sum of each group's values. ``np.bincount`` would add them up as float64."""
    sums = np.zeros(n_groups, np.int64)
    np.add.at(sums, group, values)
    return sums


def first_known(first: _Numbers, *fallbacks: _Numbers) -> _Numbers:
    """Return row by row the first value that is known; -1 where none is."""
    values: Any = first
    for fallback in fallbacks:
        values = np.where(values >= 0, values, fallback)
    result: _Numbers = values
    return result


def next_of(
    events: NDArray[np.integer[Any]], after: NDArray[np.integer[Any]], n_events: int
) -> EventColumn:
    """Return for each event in ``after`` (-1: the start) the next one of ``events``.

    ``events`` are in order. ``n_events`` where no event follows. A table of all is faster than a
    search for each of many.
    """
    if not len(events):
        return np.full(len(after), n_events, np.int32)
    following = np.append(events, n_events).astype(np.int32)
    table = np.repeat(following, np.diff(following, prepend=-1))
    row = np.minimum(after, n_events - 1) + 1
    return np.asarray(np.take(table, row))


def last_before(
    events: NDArray[np.integer[Any]], before: NDArray[np.integer[Any]]
) -> EventColumn:
    """Return for each event in ``before`` the last earlier one of ``events``; -1 if there is none.

    ``events`` are in order.
    """
    earlier = np.append(-1, events).astype(np.int32)
    return np.asarray(earlier[np.searchsorted(events, before)])
