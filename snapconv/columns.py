"""What all tables of this room share: once built, nobody writes to their columns."""

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

_Table = TypeVar("_Table", bound=Any)


def read_only(table: _Table) -> _Table:
    """Lock the columns of a table that was just built, and hand it on."""
    for field in fields(table):
        column = getattr(table, field.name)
        if isinstance(column, np.ndarray):
            column.setflags(write=False)
    return table
