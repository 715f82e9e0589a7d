"""What memory reports and run time reports have in common: columns, tables, and the rows of these."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache

import numpy as np

from snapconv.answers.memory_report import ActivationEntry, MemoryReport, WeightEntry
from snapconv.answers.time_report import RunTimeEntry, TimeReport
from snapconv.columns import Int64Column
from snapconv.snapshot.stack_table import StackTable
from snapconv.writers.sqlite.database import ColumnData, Row, TableRows, plain_text, rows_of, rows_of_records
from snapconv.writers.sqlite.table_schema import Column, Table, define_table

USER_VERSION = 1
SET_USER_VERSION = f"PRAGMA user_version = {USER_VERSION}"

KEY = Column("id", "INTEGER PRIMARY KEY", "0, 1, 2, …")
# Those of Skyline's tables count from 1.
ENTRY_KEY = Column("id", "INTEGER", "1, 2, 3, …")
ORDERING = Column("ordering", "INTEGER", "0, 1, 2, …; 0 is the innermost frame")
FILE_PATH = Column("file_path", "TEXT", "relative to the project root")
LINE_NUMBER = Column("line_number", "INTEGER", "line in that file, from 1")
LINE_FUNCTION = Column("function", "TEXT", "function that the line is in")
FRAME_FUNCTION = Column("function", "TEXT", "function, as recorded")
FRAME_FILE = Column("file", "TEXT", "file, as recorded")
FRAME_LINE = Column("line", "INTEGER", "line in that file", null="not known", stands_for_null=0)
IS_PROJECT = Column("is_project", "INTEGER", "1: the file is the project's; 0: it is not")


def id_column(name: str, target: str, null: str | None = None) -> Column:
    """Make a column of ids of another table's rows; ``null`` is what a missing one means."""
    stand_in = None if null is None else -1
    reference = f"INTEGER REFERENCES {target} (id)"
    return Column(name, reference, f"row of `{target}`", null=null, stands_for_null=stand_in)


def report_table(version: int, *columns: Column) -> Table:
    """Make the table of facts about the report."""
    of_tables = f"version of the `snapconv_` tables; this page describes {version}"
    root = "folder that paths of the project are relative to"
    return define_table(
        "snapconv_report",
        "What this report is; always one row.",
        Column("schema_version", "INTEGER", of_tables),
        *columns,
        Column("project_root", "TEXT", root, null="none was found"),
    )


SOURCE = define_table(
    "snapconv_source",
    "Where the numbers come from: the file, and how it was made.",
    Column("key", "TEXT", "name of the fact"),
    Column("value", "TEXT", "its text"),
)

NOTES = define_table(
    "snapconv_notes",
    "Notes on the figures that their reader should know.",
    Column("slug", "TEXT", "stable short name of the note"),
    Column("message", "TEXT", "a sentence for a person"),
    Column("device", "INTEGER", "device that it is about; -1: pinned host memory", null="the whole file"),
)

STACK_FRAMES = define_table(
    "snapconv_stack_frames",
    "The frames of every stack: Python's, and in a memory report C++'s.",
    id_column("stack_id", "snapconv_stacks"),
    ORDERING,
    id_column("frame_id", "snapconv_frames"),
    primary_key="stack_id, ordering",
)


def source_and_notes(report: MemoryReport | TimeReport) -> list[TableRows]:
    """Arrange where a report's numbers come from, and its notes."""
    return [rows_of(SOURCE, report.source), rows_of_records(NOTES, report.notes)]


def frame_columns(report: MemoryReport | TimeReport, rows: Int64Column) -> tuple[ColumnData, ...]:
    """Arrange the columns that the distinct frames of both reports have; ``rows`` are the frames to write."""
    frames, ids = report.stacks.frames, rows.tolist()
    names, files = ([texts[i] for i in ids] for texts in (frames.names, frames.filenames))
    return rows, names, files, frames.lines[rows], report.is_project[rows]


def stack_frame_rows(stacks: StackTable, ids: Int64Column) -> TableRows:
    """Arrange the frames of every stack; ``ids`` has one for each."""

    def chunk(start: int, stop: int) -> Iterable[Row]:
        """Number the frames of the stacks; the chunk may begin and end in the middle of a stack."""
        positions = np.arange(start, stop)
        rows = np.searchsorted(stacks.offsets, positions, side="right") - 1
        columns = (ids[rows], positions - stacks.offsets[rows], stacks.frame_ids[start:stop])
        return zip(*(column.tolist() for column in columns), strict=True)

    return TableRows(STACK_FRAMES, len(stacks.frame_ids), chunk)


def entry_frame_rows(
    table: Table,
    entries: Sequence[WeightEntry | ActivationEntry | RunTimeEntry],
    row: Callable[[int, int, str, int], Row],
) -> TableRows:
    """Arrange the frames of entries, made while they are written; those whose line is not known are left out.

    ``row`` puts the columns in order: the entry from 1, the place in it from 0, the file and the line.
    """
    known = cache(lambda frames: tuple(frame for frame in frames if frame.line_number >= 1))
    offsets = np.cumsum([0, *(len(known(entry.frames)) for entry in entries)])

    def chunk(start: int, stop: int) -> Iterator[Row]:
        """Number the frames; the chunk may begin and end in the middle of an entry."""
        first, last = (np.searchsorted(offsets, (start, stop - 1), side="right") - 1).tolist()
        for number in range(first, last + 1):
            before = int(offsets[number])
            frames = known(entries[number].frames)
            for ordering in range(max(start - before, 0), min(stop - before, len(frames))):
                frame = frames[ordering]
                yield row(number + 1, ordering, plain_text(frame.file_path), int(frame.line_number))

    return TableRows(table, int(offsets[-1]), chunk)
