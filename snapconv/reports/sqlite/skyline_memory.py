"""Reports -> SQLite files in the schema of ``skyline memory`` (skyline-cli 0.5.0, DeepView.Profile 0.14.5).

The rows mean what docs/schema.md says; the schema, its order and the numbering are Skyline's to
the letter, because its readers are other people's programs. The CREATE statements are therefore
kept as SQLite stores Skyline's, indentation included.
"""

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

from snapconv.reports.memory_report import ActivationEntry, MemoryReport, WeightEntry
from snapconv.reports.sqlite.database import Row, TableRows, create, rows_of
from snapconv.reports.sqlite.extended_memory import extended_rows
from snapconv.reports.sqlite.extended_memory_schema import EXTENDED_TABLES, EXTENDED_VIEWS
from snapconv.reports.sqlite.table_schema import Column, Table
from snapconv.reports.sqlite.writing import Database, write_databases

USER_VERSION = 1
WEIGHT, ACTIVATION = 1, 2
PEAK_KEY = "peak_usage_bytes"

WEIGHT_ENTRIES = Table(
    "weight_entries",
    "One row per weight that is live at the report's moment, the peak of allocated bytes.",
    (
        Column("id", "INTEGER", "1, 2, 3, …"),
        Column("name", "TEXT", "as recorded or listed; else `train.py:48#3`, its line, or `weight_3`"),
        Column("size_bytes", "INTEGER", "requested bytes: elements × bytes per element", "bytes"),
        Column(
            "grad_size_bytes",
            "INTEGER",
            "the same of its gradient in the iteration of the peak; 0: it has none",
            "bytes",
        ),
    ),
    """\
CREATE TABLE weight_entries (
        id INTEGER PRIMARY KEY,
        name TEXT NOT NULL,
        size_bytes INTEGER NOT NULL,
        grad_size_bytes INTEGER NOT NULL
      )""",
)

ACTIVATION_ENTRIES = Table(
    "activation_entries",
    "One row per activation of the iteration that holds the peak, live at that iteration's activation "
    "high-water mark.",
    (
        Column("id", "INTEGER", "1, 2, 3, …"),
        Column("operation_name", "TEXT", "the operation that allocated it"),
        Column("size_bytes", "INTEGER", "block bytes: what the allocator set aside for it", "bytes"),
    ),
    """\
CREATE TABLE activation_entries (
        id INTEGER PRIMARY KEY,
        operation_name TEXT NOT NULL,
        size_bytes INTEGER NOT NULL
      )""",
)

STACK_CORRELATION = Table(
    "stack_correlation",
    "Ties a weight or an activation to its frames: weights first, then activations.",
    (
        Column(
            "correlation_id", "INTEGER", "the weight's id, or the number of weights plus the activation's id"
        ),
        Column("entry_id", "INTEGER", "id in `weight_entries` or in `activation_entries`"),
        Column("entry_type", "INTEGER", "which of the two: see `entry_types`"),
    ),
    """\
CREATE TABLE stack_correlation (
        correlation_id INTEGER PRIMARY KEY,
        entry_id INTEGER NOT NULL,
        entry_type INTEGER NOT NULL,
        UNIQUE (correlation_id, entry_id)
      )""",
)

# Not a table, but it has its place in the order of creation.
ENTRY_TYPE_AND_ID = """\
CREATE UNIQUE INDEX entry_type_and_id
        ON stack_correlation(entry_type, entry_id)
    """

STACK_FRAMES = Table(
    "stack_frames",
    "The frames of the project that allocated the entry; an entry without any has no rows here.",
    (
        Column("correlation_id", "INTEGER", "row of `stack_correlation`"),
        Column("ordering", "INTEGER", "0, 1, 2, …; 0 is the innermost frame"),
        Column("file_path", "TEXT", "relative to the project root"),
        Column("line_number", "INTEGER", "line in that file, from 1"),
    ),
    """\
CREATE TABLE stack_frames (
        correlation_id INTEGER NOT NULL,
        ordering INTEGER NOT NULL,
        file_path TEXT NOT NULL,
        line_number INTEGER NOT NULL,
        PRIMARY KEY (correlation_id, ordering)
      )""",
)

ENTRY_TYPES = Table(
    "entry_types",
    "The two kinds of entries; always these two rows.",
    (
        Column("entry_type", "INTEGER", "1 or 2"),
        Column("name", "TEXT", "`Weight` or `Activation`"),
    ),
    """\
CREATE TABLE entry_types (
        entry_type INTEGER PRIMARY KEY,
        name TEXT NOT NULL
      )""",
)

MISC_SIZES = Table(
    "misc_sizes",
    "Always one row.",
    (
        Column("key", "TEXT", "`peak_usage_bytes`"),
        Column("size_bytes", "INT", "what `torch.cuda.max_memory_allocated()` would have said", "bytes"),
    ),
    """\
CREATE TABLE misc_sizes (
        key TEXT PRIMARY KEY,
        size_bytes INT NOT NULL
      )""",
)

TABLES = (WEIGHT_ENTRIES, ACTIVATION_ENTRIES, STACK_CORRELATION, STACK_FRAMES, ENTRY_TYPES, MISC_SIZES)


def write_memory_reports(
    reports: Sequence[tuple[Path, MemoryReport]],
    *,
    extended: bool,
    force: bool,
    progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write every report to its path: all of them, or none.

    ``progress`` is called with the rows written so far and the rows there are, over all reports.
    Raises OutputError; an output that exists needs ``force``.
    """
    databases = [memory_database(path, report, extended=extended) for path, report in reports]
    write_databases(databases, force=force, progress=progress)


def memory_database(path: Path, report: MemoryReport, *, extended: bool) -> Database:
    """Lay out the file of a memory report; ``write_databases`` writes it."""
    return Database(path, partial(_create_tables, extended=extended), _rows(report, extended=extended))


def _create_tables(connection: sqlite3.Connection, *, extended: bool) -> None:
    """Create Skyline's tables in Skyline's order, which fixes their pages in the file too; then ours."""
    connection.execute(f"PRAGMA user_version = {USER_VERSION}")
    create(connection, (WEIGHT_ENTRIES, ACTIVATION_ENTRIES, STACK_CORRELATION))
    connection.execute(ENTRY_TYPE_AND_ID)
    create(connection, (STACK_FRAMES, ENTRY_TYPES, MISC_SIZES))
    if extended:
        create(connection, (*EXTENDED_TABLES, *EXTENDED_VIEWS))


def _rows(report: MemoryReport, *, extended: bool) -> list[TableRows]:
    entries: tuple[WeightEntry | ActivationEntry, ...] = (*report.weights, *report.activations)
    rows = [
        rows_of(ENTRY_TYPES, ((WEIGHT, "Weight"), (ACTIVATION, "Activation"))),
        rows_of(WEIGHT_ENTRIES, [_weight_row(*numbered) for numbered in enumerate(report.weights, 1)]),
        rows_of(
            ACTIVATION_ENTRIES, [_activation_row(*numbered) for numbered in enumerate(report.activations, 1)]
        ),
        rows_of(STACK_CORRELATION, list(_correlation_rows(len(report.weights), len(report.activations)))),
        rows_of(STACK_FRAMES, [row for numbered in enumerate(entries, 1) for row in _frame_rows(*numbered)]),
        rows_of(MISC_SIZES, ((PEAK_KEY, report.peak_usage_bytes),)),
    ]
    return rows + (extended_rows(report) if extended else [])


def _weight_row(weight_id: int, weight: WeightEntry) -> Row:
    return weight_id, weight.name, weight.size_bytes, weight.grad_size_bytes


def _activation_row(activation_id: int, activation: ActivationEntry) -> Row:
    return activation_id, activation.operation_name, activation.size_bytes


def _correlation_rows(n_weights: int, n_activations: int) -> Iterator[Row]:
    """Number weights, then activations, as one sequence."""
    for weight_id in range(1, n_weights + 1):
        yield weight_id, weight_id, WEIGHT
    for activation_id in range(1, n_activations + 1):
        yield n_weights + activation_id, activation_id, ACTIVATION


def _frame_rows(correlation_id: int, entry: WeightEntry | ActivationEntry) -> Iterator[Row]:
    """Number the frames from 0; a frame whose line is not known (0 or less) has no place here."""
    frames = (frame for frame in entry.frames if frame.line_number >= 1)
    for ordering, frame in enumerate(frames):
        yield correlation_id, ordering, frame.file_path, frame.line_number
