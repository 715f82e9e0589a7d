"""What memory reports and run time reports have in common: columns, tables, and the rows of these."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from operator import itemgetter
from typing import Any

import numpy as np

from snapconv.answers.memory_report import ActivationEntry, WeightEntry
from snapconv.answers.report_frames import ReportStacks
from snapconv.answers.times import RunTimeEntry
from snapconv.writers.sqlite.tables import Column, Row, Table, TableRows, define_table, plain_text

USER_VERSION = 1
SET_USER_VERSION = f"PRAGMA user_version = {USER_VERSION}"

# Those of Skyline's tables count from 1.
ENTRY_KEY = Column("id", "INTEGER", "1, 2, 3, …")
ORDERING = Column("ordering", "INTEGER", "0, 1, 2, …; 0 is the innermost frame")
FILE_PATH = Column("file_path", "TEXT", "relative to the project root", value=lambda row: row.line.file_path)
LINE_NUMBER = Column(
    "line_number", "INTEGER", "line in that file, from 1", value=lambda row: row.line.line_number
)
LINE_FUNCTION = Column(
    "function", "TEXT", "function that the line is in", value=lambda row: row.line.function
)


def key_column(value: Callable[[Any], Any]) -> Column:
    """Make the column of a table's key."""
    return Column("id", "INTEGER PRIMARY KEY", "0, 1, 2, …", value=value)


# Of the distinct frames: the writer's source is a report's ReportStacks.
FRAME_FUNCTION = Column(
    "function", "TEXT", "function, as recorded", value=lambda s: _texts(s, s.table.frames.names)
)
FRAME_FILE = Column("file", "TEXT", "file, as recorded", value=lambda s: _texts(s, s.table.frames.filenames))
FRAME_LINE = Column(
    "line",
    "INTEGER",
    "line in that file",
    null="not known",
    stands_for_null=0,
    value=lambda s: s.table.frames.lines[s.frame_id],
)
IS_PROJECT = Column(
    "is_project",
    "INTEGER",
    "1: the file is the project's; 0: it is not",
    value=lambda s: s.is_project[s.frame_id],
)


def _texts(stacks: ReportStacks, texts: Sequence[str]) -> list[str]:
    return [texts[i] for i in stacks.frame_id.tolist()]


def id_column(
    name: str, target: str, null: str | None = None, value: Callable[[Any], Any] | None = None
) -> Column:
    """Make a column of ids of another table's rows; ``null`` is what a missing one means."""
    stand_in = None if null is None else -1
    reference = f"INTEGER REFERENCES {target} (id)"
    return Column(name, reference, f"row of `{target}`", null=null, stands_for_null=stand_in, value=value)


def report_table(version: int, *columns: Column, root: Callable[[Any], str | None]) -> Table:
    """Make the table of facts about the report."""
    of_tables = f"version of the `snapconv_` tables; this page describes {version}"
    of_root = "folder that paths of the project are relative to"
    return define_table(
        "snapconv_report",
        "What this report is; always one row.",
        Column("schema_version", "INTEGER", of_tables, value=lambda _: version),
        *columns,
        Column("project_root", "TEXT", of_root, null="none was found", value=root),
        records=lambda report: [report],
    )


SOURCE = define_table(
    "snapconv_source",
    "Where the numbers come from: the file, and how it was made.",
    Column("key", "TEXT", "name of the fact", value=itemgetter(0)),
    Column("value", "TEXT", "its text", value=itemgetter(1)),
    records=lambda report: report.source,
)

NOTES = define_table(
    "snapconv_notes",
    "Notes on the figures that their reader should know.",
    Column("slug", "TEXT", "stable short name of the note"),
    Column("message", "TEXT", "a sentence for a person"),
    Column("device", "INTEGER", "device that it is about; -1: pinned host memory", null="the whole file"),
    records=lambda report: report.notes,
)

STACK_FRAMES = define_table(
    "snapconv_stack_frames",
    "The frames of every stack: Python's, and in a memory report C++'s.",
    id_column("stack_id", "snapconv_stacks"),
    ORDERING,
    id_column("frame_id", "snapconv_frames"),
    primary_key="stack_id, ordering",
)


def stack_frame_rows(found: ReportStacks) -> TableRows:
    """Arrange the frames of every stack of a report, made while they are written."""
    stacks, ids = found.table, found.stack_id

    def chunk(start: int, stop: int) -> Iterable[Row]:
        """Yield the frames of the stacks, numbered; the chunk may begin and end in the middle of a stack."""
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
        """Yield the frames, numbered; the chunk may begin and end in the middle of an entry."""
        first, last = (np.searchsorted(offsets, (start, stop - 1), side="right") - 1).tolist()
        for number in range(first, last + 1):
            before = int(offsets[number])
            frames = known(entries[number].frames)
            for ordering in range(max(start - before, 0), min(stop - before, len(frames))):
                frame = frames[ordering]
                yield row(number + 1, ordering, plain_text(frame.file_path), int(frame.line_number))

    return TableRows(table, int(offsets[-1]), chunk)
