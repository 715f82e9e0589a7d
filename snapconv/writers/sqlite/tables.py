"""Tables and views as data, and the SQLite files that are made of them, all or none.

A table has its columns, each with its SQL, its meaning and where a report has its values. Files are
created and filled from it, and docs/reference/schema.md is printed from it, so that they cannot
differ. The same report gives the
same bytes with the same SQLite version: the pragmas are fixed, and everything happens in one
transaction.
"""

import operator
import sqlite3
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice, repeat
from pathlib import Path
from typing import Any

import numpy as np

from snapconv.errors import OutputWriteError
from snapconv.files import new_files, os_errors
from snapconv.native.library import core
from snapconv.writers.sqlite.table_pages import NumberRows, append_rows

Value = int | float | str | None
# The values of a record, or of a table column by column, in the order of a table's columns.
Row = tuple[object, ...]
Rows = Iterable[Row]
Arrays = Sequence[Any]

# Stands in place of a path for the number of a record.
NUMBER = "#"

# Rows that are Python objects at a time: of the widest table 6 MB. Four times as many take no less
# time.
CHUNK_ROWS = 16_384

# SQLite before 3.32 takes no more than 999 values in one statement: 16 rows of up to 62 columns.
_GROUP_ROWS = 16

# The file is new and temporary until it is complete: no journal, no locks, no sync but the last.
_PRAGMAS = (
    "PRAGMA page_size = 4096",
    "PRAGMA encoding = 'UTF-8'",
    "PRAGMA auto_vacuum = NONE",
    "PRAGMA journal_mode = OFF",
    "PRAGMA synchronous = OFF",
    "PRAGMA locking_mode = EXCLUSIVE",
)

# The letters of NumPy for the columns of numbers of each type; others have whole numbers.
_KINDS_OF_NUMBERS = {"REAL": "f", "TEXT": ""}
_ROOT_OF_TABLE = "SELECT rootpage FROM sqlite_master WHERE name = ?"

# SQLITE_ERROR: the statement itself is wrong, which is a bug of ours and keeps its traceback.
_SQL_IS_WRONG = 1


@dataclass(frozen=True, slots=True)
class Column:
    """A column; ``null`` is what NULL means, or is None where NULL cannot be.

    ``stands_for_null`` is the value with the same meaning in a report's column, which has no NULL.
    ``path`` is that of the value in a record, or of all values in a report: by default its name.
    """

    name: str
    meaning: str
    null: str | None = None
    unit: str = ""
    sql_type: str = "INTEGER"
    stands_for_null: int | None = None
    path: str = ""

    @property
    def declaration(self) -> str:
        """The line of the CREATE statement."""
        needs_not_null = self.null is None and "PRIMARY KEY" not in self.sql_type
        return f"{self.name} {self.sql_type}{' NOT NULL' if needs_not_null else ''}"


integer = Column
text = partial(Column, sql_type="TEXT")
size = partial(Column, unit="bytes")
# SQLite stores the NaN of a time that is not there as NULL.
milliseconds = partial(Column, sql_type="REAL", unit="ms")


def key(meaning: str = "0, 1, 2, …", name: str = "id", path: str = NUMBER) -> Column:
    """Make the column of a table's key: by default the numbers of its records."""
    return Column(name, meaning, sql_type="INTEGER PRIMARY KEY", path=path)


def row_of(
    table: str,
    name: str,
    null: str | None = None,
    meaning: str = "",
    path: str = "",
) -> Column:
    """Make a column of ids of another table's rows; ``null`` is what a missing one means."""
    reference = f"INTEGER REFERENCES {table} (id)"
    stand_in = None if null is None else -1
    meaning = meaning or f"row of `{table}`"
    return Column(name, meaning, null, "", reference, stand_in, path)


@dataclass(frozen=True, slots=True)
class Table:
    """A table, and where a report has its rows.

    ``rows`` gives a tuple per row. A table of millions has ``arrays``: the values of all rows,
    column by column; None is a column of NULL alone. ``constraint`` is the last line of the CREATE
    statement; the rows of a table of ours are then stored in the order of that key. A table of
    Skyline's is written as SQLite stores Skyline's, indentation included; ``index`` is created
    after it.
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    arrays: Callable[[Any], Arrays]
    rows: Callable[[Any], Rows] | None = None
    constraint: str = ""
    is_skylines: bool = False
    index: str = ""

    @property
    def sql(self) -> str:
        """The CREATE statement."""
        lines = [column.declaration for column in self.columns]
        indent, ending = (" " * 8, " " * 6 + ")") if self.is_skylines else ("  ", ")")
        if self.constraint:
            lines.append(self.constraint)
            if not self.is_skylines:
                ending += " WITHOUT ROWID"
        body = f",\n{indent}".join(lines)
        return f"CREATE TABLE {self.name} (\n{indent}{body}\n{ending}"

    def insert_sql(self, n_rows: int) -> str:
        """Return the statement that inserts so many rows, with NULL for its stand-ins."""
        stand_ins = (column.stands_for_null for column in self.columns)
        values = (
            "?" if stand_in is None else f"nullif(?, {stand_in})" for stand_in in stand_ins
        )
        row = f"({', '.join(values)})"
        return f"INSERT INTO {self.name} VALUES {', '.join([row] * n_rows)}"

    def rows_of(self, report: object) -> tuple[int, Iterator[Row]]:
        """Return the number of a report's rows, and the rows, each made when it is written."""
        if self.rows is not None:
            rows: Any = self.rows(report)
            sized_rows = rows if hasattr(rows, "__len__") else list(rows)
            return len(sized_rows), map(_plain_row, sized_rows)
        columns = self.arrays(report)
        assert len(columns) == len(self.columns), self.name
        n_rows = len(columns[-1])  # the first may be numbers without an end
        return n_rows, _rows_of_columns(columns, n_rows)


def _rows_of_columns(columns: Sequence[Any], n_rows: int) -> Iterator[Row]:
    for start in range(0, n_rows, CHUNK_ROWS):
        stop = min(start + CHUNK_ROWS, n_rows)
        yield from zip(*(_slice(column, start, stop) for column in columns), strict=True)


def table(
    name: str,
    meaning: str,
    *columns: Column,
    records: Callable[[Any], Iterable[object]] | None = None,
    **fields: Any,
) -> Table:
    """Declare a table; ``fields`` are those besides its name, meaning and columns.

    ``records`` gives an object per row that has its values, at the paths of the columns. A table
    without records, rows and arrays has its arrays in the report, at these paths.
    """
    fields.setdefault("arrays", partial(_values_of, columns, range(sys.maxsize)))
    if records:
        first = int("is_skylines" in fields)  # Skyline's tables count from 1
        fields["rows"] = partial(_rows_of_records, columns, records, first)
    return Table(name, meaning, columns, **fields)


def _rows_of_records(
    columns: Sequence[Column],
    records: Callable[[Any], Iterable[object]],
    first: int,
    report: object,
) -> Iterator[Row]:
    for number, record in enumerate(records(report), first):
        yield tuple(_values_of(columns, number, record))


def _values_of(columns: Sequence[Column], number: int | range, record: object) -> list[Any]:
    """Take values out of a record, or arrays out of a report; what is below None is None."""
    values: list[Any] = []
    for column in columns:
        value: Any = number
        if column.path != NUMBER:
            value = record
            for name in (column.path or column.name).split("."):
                value = None if value is None else getattr(value, name)
        values.append(value)
    return values


def picked(values: Sequence[Any], numbers: Any) -> list[Any]:
    """Return the values with these numbers; None for -1."""
    return [values[number] if number >= 0 else None for number in numbers.tolist()]


@dataclass(frozen=True, slots=True)
class View:
    """A view with the exact text of its CREATE statement.

    ``continued_by`` is a view whose columns it has too.
    """

    name: str
    meaning: str
    columns: tuple[Column, ...]
    sql: str
    continued_by: "View | None" = None


@dataclass(frozen=True, slots=True)
class Database:
    """A file to be made of a report; ``version`` is its ``PRAGMA user_version``."""

    path: Path
    version: int
    report: object
    tables: tuple[Table, ...]
    views: tuple[View, ...] = ()


def _slice(column: Any, start: int, stop: int) -> Iterable[Value]:
    if column is None:  # the file lacks it: every value is NULL
        return repeat(None, stop - start)
    part = column[start:stop]
    if isinstance(part, np.ndarray):
        values: list[Value] = part.tolist()
        return values
    return part if isinstance(part, range) else map(_plain, part)


def _plain_row(row: Row) -> tuple[Value, ...]:
    return tuple(map(_plain, row))


def _plain(value: object) -> Value:
    """Turn a value into one that SQLite stores as meant: it would store np.int64 as a BLOB."""
    if value is None or isinstance(value, float):
        return value
    # Lone surrogates and NUL become Python's escapes, which SQLite can store.
    if isinstance(value, str):
        return (
            value.encode("utf-8", "backslashreplace").decode("utf-8").replace("\0", "\\x00")
        )
    return operator.index(value)  # type: ignore[arg-type]  # what is no integer raises TypeError


def write_databases(
    databases: Sequence[Database],
    *,
    force: bool,
    progress: Callable[[int, int], None] | None = None,
    token: str = "",
) -> None:
    """Write every database to its path: all of them, or none.

    ``progress`` is called with the rows written so far and the rows there are, over all databases;
    ``token`` is a part of the names of temporary files. Raises OutputError; an output that exists
    needs ``force``.
    """
    contents = []
    total = 0
    for database in databases:
        tables = [_content(table, database.report) for table in database.tables]
        contents.append(tables)
        total += sum(content.n_rows for content in tables)
    n_rows_written = 0
    with new_files(
        [database.path for database in databases], force=force, token=token
    ) as temporaries:
        for database, tables, temporary in zip(
            databases, contents, temporaries, strict=True
        ):
            for n_written in _write_database(database, tables, temporary):
                n_rows_written += n_written
                if progress is not None:
                    progress(n_rows_written, total)


@dataclass(frozen=True, slots=True)
class _Content:
    """The rows of a table: ``numbers`` where the compiled core writes them."""

    table: Table
    n_rows: int
    rows: Iterator[Row]
    numbers: NumberRows | None = None


def _content(table: Table, report: object) -> _Content:
    """Return a report's rows of a table, each made when it is written."""
    numbers = _numbers_of(table, report) if core() else None
    if numbers:
        return _Content(table, numbers.n_rows, iter(()), numbers)
    return _Content(table, *table.rows_of(report))


def _numbers_of(table: Table, report: object) -> NumberRows | None:
    """Return the rows of a long table of numbers, whose key counts from 0; None for others."""
    key_column, *columns = table.columns
    is_counted = key_column.path == NUMBER and "PRIMARY KEY" in key_column.sql_type
    is_plain = not (table.rows or table.constraint or table.index)
    kinds = [_KINDS_OF_NUMBERS.get(column.sql_type, "bi") for column in columns]
    if not (is_counted and is_plain and all(kinds)):
        return None
    _, *arrays = table.arrays(report)
    if not isinstance(arrays[-1], np.ndarray) or len(arrays[-1]) < CHUNK_ROWS:
        return None
    for array, kind in zip(arrays, kinds, strict=True):
        if array is not None and np.asarray(array).dtype.kind not in kind:
            return None
    return NumberRows(
        arrays, [column.stands_for_null for column in columns], len(arrays[-1])
    )


def _write_database(
    database: Database, tables: Sequence[_Content], temporary: Path
) -> Iterator[int]:
    """Fill a new file, and yield the number of rows written each time."""
    roots = []
    with _new_database(temporary, output=database.path) as connection:
        for statement in _schema(database):
            connection.execute(statement)
        for content in tables:
            if content.numbers:
                name = content.table.name
                roots.append(connection.execute(_ROOT_OF_TABLE, (name,)).fetchone()[0])
            else:
                yield from write_rows(
                    connection, content.table, content.rows, content.n_rows
                )
    compiled = core()
    number_tables = [content.numbers for content in tables if content.numbers]
    for root, numbers in zip(roots, number_tables, strict=True):
        assert compiled is not None
        with os_errors(database.path):
            yield from append_rows(compiled, temporary, root, numbers)


def _schema(database: Database) -> Iterator[str]:
    yield f"PRAGMA user_version = {database.version}"
    for table in database.tables:
        yield table.sql
        if table.index:
            yield table.index
    yield from (view.sql for view in database.views)


@contextmanager
def _new_database(temporary: Path, *, output: Path) -> Iterator[sqlite3.Connection]:
    """Open an empty file as a database, in one transaction that is committed at the end.

    ``temporary`` is absolute; ``output`` is the name for messages. No other process has the file,
    so SQLite is set to take no locks: some cluster file systems have none. Its errors about the
    file or the disk become an OutputWriteError.
    """
    uri = f"{temporary.as_uri()}?nolock=1"
    try:
        with closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as connection:
            for pragma in _PRAGMAS:
                connection.execute(pragma)
            connection.execute("BEGIN")
            yield connection
            connection.execute("COMMIT")
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorcode", None) == _SQL_IS_WRONG:
            raise
        reason = (
            f"SQLite reports '{error}'; check the free space, quota and permissions of "
            f"{output.parent}"
        )
        raise OutputWriteError(f"cannot write {output}: {reason}") from error


def write_rows(
    connection: sqlite3.Connection, table: Table, rows: Iterator[Row], n_rows: int
) -> Iterator[int]:
    """Insert all rows of a table, a chunk at a time, and yield the number each time.

    Groups of rows are 1.6 times as fast as single rows, which are the remainder of a chunk.
    """
    for start in range(0, n_rows, CHUNK_ROWS):
        n = min(CHUNK_ROWS, n_rows - start)
        n_remaining = n % _GROUP_ROWS
        values = chain.from_iterable(islice(rows, n - n_remaining))
        groups = zip(*[values] * (_GROUP_ROWS * len(table.columns)), strict=True)
        connection.executemany(table.insert_sql(_GROUP_ROWS), groups)
        connection.executemany(table.insert_sql(1), islice(rows, n_remaining))
        yield n
