"""Tables built by hand, of the columns that a test is about, and rows of a report's tables."""

import sqlite3
from contextlib import closing
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from snapconv.columns import Int64Column
from snapconv.snapshot.event_table import Action, EventTable

_Table = TypeVar("_Table")
_INT8 = {"action", "state"}
_OPTIONAL = {"time_us", "compile_context_id", "user_metadata_id"} | {
    field.name for field in fields(EventTable) if field.default is not MISSING
}


def int64(*values: int) -> Int64Column:
    return np.array(values, np.int64)


def table(cls: type[_Table], n_rows: int, **given: Any) -> _Table:
    """Make a table of the given columns; all others are 0, -1 where they are ids, or missing in a trace."""
    columns: dict[str, Any] = {}
    for name in (field.name for field in fields(cls)):  # type: ignore[arg-type]  # tables are dataclasses
        is_id = name.endswith("_id") and name != "segment_id"
        kind: Any = np.int32 if is_id else np.bool_ if name.startswith("is_") else np.int64
        kind = np.int8 if name in _INT8 else kind
        if name in given:
            columns[name] = np.broadcast_to(np.array(given[name], kind), n_rows).copy()
        elif cls is EventTable and (name in _OPTIONAL or name == "pool_id"):
            columns[name] = None
        else:
            columns[name] = np.full(n_rows, -1 if is_id else 0, kind)
    return cls(**columns)


def trace(*rows: tuple[Any, ...]) -> EventTable:
    """Make the events of (action, address) or (action, address, size); a size is 512 by default."""
    actions = [row[0] if isinstance(row[0], Action) else Action[row[0].upper()] for row in rows]
    sizes = [row[2] if len(row) > 2 else 512 for row in rows]
    return table(EventTable, len(rows), action=actions, addr=[row[1] for row in rows], size=sizes)


def ask(report: Path | str, sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query to a report."""
    with closing(sqlite3.connect(report)) as connection:
        return connection.execute(sql).fetchall()
