"""Tables and views as data: their SQL, what every column means, and where its values come from, side by side.

A writer creates and fills tables from it and docs/reference/schema.md is printed from it, so they cannot
differ: a column is one row here.
"""

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

Value = int | float | str | None
Row = tuple[Value, ...]
ColumnData = NDArray[Any] | Sequence[Value] | None


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``null`` is what NULL means, or is None where NULL cannot be.

    ``stands_for_null`` is the value with the same meaning in a Report's column, which has no NULL.
    ``value`` gets the column's value out of a record, or all of its values out of what has them as columns;
    None: it is the attribute of the column's name.
    """

    name: str
    sql_type: str
    meaning: str
    unit: str = ""
    null: str | None = None
    stands_for_null: int | None = None
    value: Callable[[Any], Any] | None = None

    def of(self, source: object) -> Any:
        """Get the column's value out of a record, or its values out of what has them as columns."""
        return self.value(source) if self.value else getattr(source, self.name)


@dataclass(frozen=True, slots=True)
class Table:
    """A table with the exact text of its CREATE statement.

    Of a report, ``records`` gives an object per row, for tables of tens or thousands of rows; ``arrays``
    one object with all columns, for tables of millions.
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    sql: str
    records: Callable[[Any], Iterable[object]] | None = None
    arrays: Callable[[Any], object] | None = None

    def insert_sql(self, n_rows: int) -> str:
        """Return the statement that inserts so many rows, and turns what stands for NULL into NULL."""
        stand_ins = (column.stands_for_null for column in self.columns)
        values = ("?" if stand_in is None else f"nullif(?, {stand_in})" for stand_in in stand_ins)
        row = f"({', '.join(values)})"
        return f"INSERT INTO {self.name} VALUES {', '.join([row] * n_rows)}"


@dataclass(frozen=True, slots=True)
class View:
    """A view with the exact text of its CREATE statement.

    After its own ``columns`` come those of ``continued_by``, another view.
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    sql: str
    continued_by: "View | None" = None


def define_table(
    name: str,
    meaning: str,
    *columns: Column,
    primary_key: str = "",
    records: Callable[[Any], Iterable[object]] | None = None,
    arrays: Callable[[Any], object] | None = None,
) -> Table:
    """Make a table whose CREATE statement follows from its columns.

    ``primary_key`` names the columns of a key of several; the rows are then stored in its order.
    """
    lines = [_declaration(column) for column in columns]
    if primary_key:
        lines.append(f"PRIMARY KEY ({primary_key})")
    body = ",\n  ".join(lines)
    ending = ") WITHOUT ROWID" if primary_key else ")"
    sql = f"CREATE TABLE {name} (\n  {body}\n{ending}"
    return Table(name, meaning, columns, sql, records, arrays)


def _declaration(column: Column) -> str:
    needs_not_null = column.null is None and "PRIMARY KEY" not in column.sql_type
    return f"{column.name} {column.sql_type}{' NOT NULL' if needs_not_null else ''}"


@dataclass(frozen=True, slots=True)
class TableRows:
    """The rows of one table: ``chunk(start, stop)`` makes those from ``start`` up to ``stop``."""

    table: Table
    n_rows: int
    chunk: Callable[[int, int], Iterable[Row]]


def table_rows(table: Table, report: object) -> TableRows:
    """Arrange a table's rows as its columns say; those of long tables are made chunk by chunk on demand."""
    if table.records:
        return rows_of(table, [[column.of(row) for column in table.columns] for row in table.records(report)])
    if table.arrays is None:
        raise TypeError(f"{table.name} does not say where its rows come from")
    source = table.arrays(report)
    columns = [column.of(source) for column in table.columns]
    return rows_of_columns(table, len(columns[0]), columns)


def rows_of(table: Table, rows: Sequence[Sequence[Value]]) -> TableRows:
    """Take the rows as they are: for tables of tens or thousands of rows."""
    return TableRows(
        table, len(rows), lambda start, stop: (tuple(map(plain_value, row)) for row in rows[start:stop])
    )


def rows_of_columns(table: Table, n_rows: int, columns: Sequence[ColumnData]) -> TableRows:
    """Take one array per column, None for a column of NULLs: for tables of millions of rows."""
    return TableRows(
        table,
        n_rows,
        lambda start, stop: zip(*(_slice(column, start, stop) for column in columns), strict=True),
    )


def _slice(column: ColumnData, start: int, stop: int) -> Iterable[Value]:
    if column is None:
        return repeat(None, stop - start)
    if isinstance(column, range):
        return column[start:stop]
    if isinstance(column, np.ndarray):
        values: list[Value] = column[start:stop].tolist()
        return values
    return map(plain_value, column[start:stop])


def plain_value(value: object) -> Value:
    """Turn a value into one that SQLite stores as meant: it would store np.int64 as a BLOB."""
    if value is None or isinstance(value, float):
        return value
    if isinstance(value, str):
        return plain_text(value)
    return operator.index(value)  # type: ignore[arg-type]  # what is no integer raises TypeError


def plain_text(text: str) -> str:
    r"""Write what SQLite cannot store as text in Python's escapes: lone surrogates, NUL as ``\x00``."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
