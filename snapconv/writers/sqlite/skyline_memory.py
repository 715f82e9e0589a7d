"""Reports -> SQLite files in the schema of ``skyline memory`` (skyline-cli 0.5.0, DeepView.Profile 0.14.5).

docs/reference/schema.md has the meaning of the rows; the schema, its order and the numbering are Skyline's to
the letter, because its readers are other people's programs. The CREATE statements are therefore
kept as SQLite stores Skyline's, indentation included.
"""

from collections.abc import Iterator
from pathlib import Path

from snapconv.answers.memory_report import MemoryReport
from snapconv.writers.sqlite.allocation_views import EXTENDED_VIEWS
from snapconv.writers.sqlite.database import Database
from snapconv.writers.sqlite.extended_memory import EXTENDED_TABLES, extended_rows
from snapconv.writers.sqlite.shared_tables import (
    ENTRY_KEY,
    FILE_PATH,
    LINE_NUMBER,
    ORDERING,
    SET_USER_VERSION,
    entry_frame_rows,
)
from snapconv.writers.sqlite.tables import Column, Row, Table, TableRows, rows_of

WEIGHT, ACTIVATION = 1, 2
PEAK_KEY = "peak_usage_bytes"

WEIGHT_ENTRIES = Table(
    "weight_entries",
    "One row per weight that is live at the report's moment, the peak of allocated bytes.",
    (
        ENTRY_KEY,
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
    "One row per activation of the iteration with the peak, live at that iteration's activation "
    "high-water mark.",
    (
        ENTRY_KEY,
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
        ORDERING,
        FILE_PATH,
        LINE_NUMBER,
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
        Column("size_bytes", "INT", "what `torch.cuda.max_memory_allocated()` would have returned", "bytes"),
    ),
    """\
CREATE TABLE misc_sizes (
        key TEXT PRIMARY KEY,
        size_bytes INT NOT NULL
      )""",
)

TABLES = (WEIGHT_ENTRIES, ACTIVATION_ENTRIES, STACK_CORRELATION, STACK_FRAMES, ENTRY_TYPES, MISC_SIZES)


def memory_database(path: Path, report: MemoryReport, *, extended: bool) -> Database:
    """Arrange the file of a memory report; ``write_databases`` writes it."""
    # Skyline's order, which fixes their pages in the file too.
    tables = [table.sql for table in TABLES]
    schema = [SET_USER_VERSION, *tables[:3], ENTRY_TYPE_AND_ID, *tables[3:]]
    rows = _rows(report)
    if extended:
        schema += [table.sql for table in EXTENDED_TABLES] + [view.sql for view in EXTENDED_VIEWS]
        rows += extended_rows(report)
    return Database(path, tuple(schema), rows)


def _rows(report: MemoryReport) -> list[TableRows]:
    weights = [(i, w.name, w.size_bytes, w.grad_size_bytes) for i, w in enumerate(report.weights, 1)]
    activations = [(i, a.operation_name, a.size_bytes) for i, a in enumerate(report.activations, 1)]
    return [
        rows_of(ENTRY_TYPES, ((WEIGHT, "Weight"), (ACTIVATION, "Activation"))),
        rows_of(WEIGHT_ENTRIES, weights),
        rows_of(ACTIVATION_ENTRIES, activations),
        rows_of(STACK_CORRELATION, list(_correlation_rows(len(weights), len(activations)))),
        entry_frame_rows(STACK_FRAMES, (*report.weights, *report.activations), lambda *row: row),
        rows_of(MISC_SIZES, ((PEAK_KEY, report.peak_usage_bytes),)),
    ]


def _correlation_rows(n_weights: int, n_activations: int) -> Iterator[Row]:
    """Yield weights, then activations, numbered as one sequence."""
    for weight_id in range(1, n_weights + 1):
        yield weight_id, weight_id, WEIGHT
    for activation_id in range(1, n_activations + 1):
        yield n_weights + activation_id, activation_id, ACTIVATION
