"""What all tables share: kinds of columns, -1 for unknown values, and that they are read-only."""

from dataclasses import fields, replace
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

Int8Column = NDArray[np.int8]
Int32Column = NDArray[np.int32]
Int64Column = NDArray[np.int64]
UInt64Column = NDArray[np.uint64]
BoolColumn = NDArray[np.bool_]
# Milliseconds; NaN where there is no time.
MsColumn = NDArray[np.float64]

_Table = TypeVar("_Table", bound=Any)


def read_only(table: _Table) -> _Table:
    """Lock the columns of a table that was just built, and return it."""
    for field in fields(table):
        column = getattr(table, field.name)
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
    return table


def take(table: _Table, rows: Int64Column) -> _Table:
    """The table with these of its rows, in this order."""
    columns = {field.name: getattr(table, field.name) for field in fields(table)}
    taken = {name: column[rows] for name, column in columns.items() if isinstance(column, np.ndarray)}
    return read_only(replace(table, **taken))


def sums_by(group: NDArray[np.integer[Any]], values: Int64Column, n_groups: int) -> Int64Column:
    """The sum of each group's values. ``np.bincount`` would add them up as float64."""
    sums = np.zeros(n_groups, np.int64)
    np.add.at(sums, group, values)
    return sums


def first_known(first: Int64Column, *others: Int64Column) -> Int64Column:
    """Row by row the first value that is known; -1 where none is."""
    for other in others:
        first = np.where(first >= 0, first, other)
    return first
