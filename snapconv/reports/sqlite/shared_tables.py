"""What memory reports and run time reports have in common: columns, tables, and the rows of these."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from snapconv.reports.memory_report import ActivationEntry, MemoryReport, WeightEntry
from snapconv.reports.sqlite.database import ColumnData, Row, TableRows, rows_of, rows_of_records
from snapconv.reports.sqlite.table_schema import Column, Table, define_table
from snapconv.reports.time_report import RunTimeEntry, TimeReport
from snapconv.snapshot.stack_table import StackTable

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


def frame_columns(report: MemoryReport | TimeReport) -> tuple[ColumnData, ...]:
    """Arrange the columns that the distinct frames of both reports have."""
    frames = report.stacks.frames
    return range(len(frames)), frames.names, frames.filenames, frames.lines, report.is_project


def stack_frame_rows(stacks: StackTable) -> TableRows:
    """Arrange the frames of every stack."""

    def chunk(start: int, stop: int) -> Iterable[Row]:
        """Number the frames of the stacks; the chunk may begin and end in the middle of a stack."""
        positions = np.arange(start, stop)
        stack_ids = np.searchsorted(stacks.offsets, positions, side="right") - 1
        columns = (stack_ids, positions - stacks.offsets[stack_ids], stacks.frame_ids[start:stop])
        return zip(*(column.tolist() for column in columns), strict=True)

    return TableRows(STACK_FRAMES, len(stacks.frame_ids), chunk)


def entry_frames(
    entries: Sequence[WeightEntry | ActivationEntry | RunTimeEntry],
) -> Iterator[tuple[int, int, str, int]]:
    """Number the entries from 1 and their frames from 0; a frame whose line is not known has no place."""
    for number, entry in enumerate(entries, 1):
        known = (frame for frame in entry.frames if frame.line_number >= 1)
        for ordering, frame in enumerate(known):
            yield number, ordering, frame.file_path, frame.line_number
