"""What all tables share: the kinds of columns, and that nobody writes to one that is built."""

from dataclasses import fields
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
    """Lock the columns of a table that was just built, and hand it on."""
    for field in fields(table):
        column = getattr(table, field.name)
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
    return table
