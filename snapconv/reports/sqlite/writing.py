"""Databases -> files, all of them or none: what is common to the writers of every report."""

import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from snapconv.atomic_files import new_files
from snapconv.reports.sqlite.database import Advance, TableRows, new_database, write_rows


@dataclass(frozen=True, slots=True)
class Database:
    """A file to be made: what creates its tables, and the rows that they get."""

    path: Path
    create: Callable[[sqlite3.Connection], None]
    rows: Sequence[TableRows]


def write_databases(
    databases: Sequence[Database], *, force: bool, progress: Callable[[int, int], None] | None = None
) -> None:
    """Write every database to its path: all of them, or none.

    ``progress`` is called with the rows written so far and the rows there are, over all databases.
    Raises OutputError; an output that exists needs ``force``.
    """
    total = sum(rows.n_rows for database in databases for rows in database.rows)
    advance = _progress_counter(total, progress)
    with new_files([database.path for database in databases], force=force) as temporaries:
        for database, temporary in zip(databases, temporaries, strict=True):
            with new_database(temporary, output=database.path) as connection:
                database.create(connection)
                for rows in database.rows:
                    write_rows(connection, rows, advance=advance)


def _progress_counter(total: int, progress: Callable[[int, int], None] | None) -> Advance:
    """Make a function that adds to the rows done and tells ``progress``."""
    done = 0

    def advance(n_rows: int) -> None:
        nonlocal done
        done += n_rows
        if progress is not None:
            progress(done, total)

    return advance
