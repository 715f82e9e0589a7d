"""The tables of an extended report -> CSV, Parquet, or lines of JSON: for who has no SQLite.

The rows, their order and their columns are those of the SQLite report; see docs/reference/schema.md.
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from snapconv.errors import InputError, OutputWriteError
from snapconv.json_text import write_json
from snapconv.writers.sqlite.database import CHUNK_ROWS
from snapconv.writers.sqlite.tables import Column, Row, TableRows, Value


def write_csv(temporary: Path, rows: TableRows, *, is_safe: bool = False) -> None:
    """Write a table with a line of names. Every text is in quotes, so that an empty field is NULL.

    ``is_safe``: an apostrophe stands before each text that a spreadsheet would take for a formula.
    """
    field = _safe_field if is_safe else _field
    with temporary.open("w", encoding="utf-8", newline="") as file:
        file.write(f"{','.join(column.name for column in rows.table.columns)}\r\n")
        for chunk in _chunks(rows):
            file.writelines(f"{','.join(map(field, row))}\r\n" for row in chunk)


def write_json_lines(
    temporary: Path, reports: Sequence[tuple[str, Sequence[TableRows]]], *, n_most_bytes: int
) -> None:
    """Write all tables into one file, a row a line, each with its report and its table.

    Raises InputError where that would be more than ``n_most_bytes``: the names of all columns stand in every
    line, so that no other format has as many bytes for a row.
    """
    n_bytes = 0
    with temporary.open("wb") as file:
        for report, tables in reports:
            for rows in tables:
                names = [column.name for column in rows.table.columns]
                head = {"report": report, "table": rows.table.name}
                for chunk in _chunks(rows):
                    for row in chunk:
                        values = {**head, **dict(zip(names, row, strict=True))}
                        n_bytes += file.write(write_json(values) + b"\n")
                    if n_bytes > n_most_bytes:
                        raise InputError(
                            "as lines of JSON, the tables would be more than 20 times the size of the file: "
                            "use --format csv or parquet, which have the same tables"
                        )


def write_parquet(temporary: Path, rows: TableRows) -> None:
    """Write a table, integers of 64 bits, floating-point numbers and texts; pyarrow does it."""
    arrow, parquet = _pyarrow()
    kinds = {"integer": arrow.int64(), "real": arrow.float64(), "text": arrow.string()}
    schema = arrow.schema([(column.name, kinds[_affinity(column)]) for column in rows.table.columns])
    with parquet.ParquetWriter(temporary, schema) as writer:
        for chunk in _chunks(rows):
            columns = zip(*chunk, strict=True)
            arrays = [arrow.array(list(one), field.type) for one, field in zip(columns, schema, strict=True)]
            writer.write_table(arrow.Table.from_arrays(arrays, schema=schema))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError as error:
        raise OutputWriteError(
            "Parquet is written by pyarrow, which is not installed: pip install '.[parquet]'"
        ) from error
    return pyarrow, pyarrow.parquet


def _affinity(column: Column) -> str:
    """Return what SQLite makes of a declared type (section 3.1 of its page on data types)."""
    declared = column.sql_type.split()[0].upper()
    if "INT" in declared:
        return "integer"
    return "text" if "CHAR" in declared or "TEXT" in declared else "real"


def _chunks(rows: TableRows) -> Iterator[Iterable[Row]]:
    """Yield the rows some at a time, None for NULL."""
    stand_ins = [column.stands_for_null for column in rows.table.columns]
    for start in range(0, rows.n_rows, CHUNK_ROWS):
        chunk = rows.chunk(start, min(start + CHUNK_ROWS, rows.n_rows))
        yield [tuple(map(_or_null, row, stand_ins)) for row in chunk]


def _or_null(value: Value, stand_in: int | None) -> Value:
    """Return the value as SQLite would give it back, which knows no truth values, and no NaN."""
    if (stand_in is not None and value == stand_in) or value != value:
        return None
    return int(value) if isinstance(value, bool) else value


_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")


def _safe_field(value: Value) -> str:
    is_formula = isinstance(value, str) and value.startswith(_FORMULA_STARTS)
    return _field(f"'{value}" if is_formula else value)


def _field(value: Value) -> str:
    if value is None:
        return ""
    return '"' + value.replace('"', '""') + '"' if isinstance(value, str) else repr(value)
