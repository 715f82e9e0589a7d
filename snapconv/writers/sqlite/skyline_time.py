"""A TimeReport -> an SQLite file in the schema of ``skyline time`` (skyline-cli 0.5.0).

DeepView.Profile 0.14.5 has the same. As in skyline_memory, the CREATE statements are kept as SQLite
stores Skyline's, indentation included. What the rows mean is in docs/reference/time-schema.md.
"""

from pathlib import Path

from snapconv.answers.times import TimeReport
from snapconv.writers.sqlite.database import Database
from snapconv.writers.sqlite.extended_time import (
    EXTENDED_TIME_TABLES,
    EXTENDED_TIME_VIEWS,
    extended_time_rows,
)
from snapconv.writers.sqlite.shared_tables import (
    ENTRY_KEY,
    FILE_PATH,
    LINE_NUMBER,
    ORDERING,
    SET_USER_VERSION,
    entry_frame_rows,
)
from snapconv.writers.sqlite.tables import Column, Table, TableRows, rows_of

RUN_TIME_ENTRIES = Table(
    "run_time_entries",
    "One row per outermost call of a torch function in the forward pass of the reported iteration, in "
    "the order of the calls.",
    (
        ENTRY_KEY,
        Column("operation_name", "TEXT", "the function that was called"),
        Column("forward_ms", "REAL", "from before the call to after it, on the device", "ms"),
        Column(
            "backward_ms",
            "REAL",
            "what autograd ran for it in backward, on the device",
            "ms",
            null="nothing of it ran in backward",
        ),
    ),
    """\
CREATE TABLE run_time_entries (
        id INTEGER PRIMARY KEY,
        operation_name TEXT NOT NULL,
        forward_ms REAL NOT NULL,
        backward_ms REAL
      )""",
)

TIME_STACK_FRAMES = Table(
    "stack_frames",
    "The frames of the project that led to the call; every entry has at least one.",
    (
        ORDERING,
        FILE_PATH,
        LINE_NUMBER,
        Column("entry_id", "INTEGER", "row of `run_time_entries`"),
    ),
    """\
CREATE TABLE stack_frames (
        ordering INTEGER NOT NULL,
        file_path TEXT NOT NULL,
        line_number INTEGER NOT NULL,
        entry_id INTEGER NOT NULL,
        PRIMARY KEY (entry_id, ordering)
      )""",
)

TIME_TABLES = (RUN_TIME_ENTRIES, TIME_STACK_FRAMES)


def time_database(path: Path, report: TimeReport, *, extended: bool) -> Database:
    """Arrange the file of a time report; ``write_databases`` writes it."""
    schema = [table.sql for table in TIME_TABLES]
    rows = _rows(report)
    if extended:
        schema += [table.sql for table in EXTENDED_TIME_TABLES] + [view.sql for view in EXTENDED_TIME_VIEWS]
        rows += extended_time_rows(report)
    return Database(path, (SET_USER_VERSION, *schema), rows)


def _rows(report: TimeReport) -> list[TableRows]:
    entries = [
        (entry_id, entry.operation_name, entry.forward_ms, entry.backward_ms)
        for entry_id, entry in enumerate(report.entries, 1)
    ]
    frames = entry_frame_rows(
        TIME_STACK_FRAMES,
        report.entries,
        lambda entry_id, ordering, file, line: (ordering, file, line, entry_id),
    )
    return [rows_of(RUN_TIME_ENTRIES, entries), frames]
