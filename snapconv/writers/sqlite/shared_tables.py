"""What memory reports and run time reports have in common: columns, tables, and the rows of these."""

from collections.abc import Iterator, Sequence
from functools import cache

import numpy as np

from snapconv.answers.memory_report import ActivationEntry, ReportStacks, WeightEntry
from snapconv.answers.times import RunTimeEntry
from snapconv.writers.sqlite.tables import Column, Table, integer, key, row_of, table, text

USER_VERSION = 1

# Skyline's tables count from 1.
ENTRY_KEY = key("0", "1, 2, 3, …")
ORDERING = integer("ordering", "0, 1, 2, …; 0 is the innermost frame", "1")


# Of the frames of entries: records of the entry, the place in it, and the line.
FRAME_OF_ENTRY = (
    ORDERING,
    text("file_path", "relative to the project root", "2.file_path"),
    integer("line_number", "line in that file, from 1", "2.line_number"),
)


class EntryFrames:
    """The frames of entries, made while they are written; those whose line is not known are left out."""

    def __init__(self, entries: Sequence[WeightEntry | ActivationEntry | RunTimeEntry]) -> None:
        known = cache(lambda frames: tuple(frame for frame in frames if frame.line_number >= 1))
        self._frames = [known(entry.frames) for entry in entries]

    def __len__(self) -> int:
        return sum(map(len, self._frames))

    def __iter__(self) -> Iterator[tuple[int, int, object]]:
        for number, frames in enumerate(self._frames, 1):
            for ordering, frame in enumerate(frames):
                yield number, ordering, frame


def _texts(stacks: ReportStacks, texts: Sequence[str]) -> list[str]:
    return [texts[i] for i in stacks.frame_id.tolist()]


FRAMES = table(
    "snapconv_frames",
    "The distinct frames.",
    key("frame_id"),
    text("function", "function, as recorded", lambda s: _texts(s, s.table.frames.names)),
    text("file", "file, as recorded", lambda s: _texts(s, s.table.frames.filenames)),
    Column(
        "line",
        "INTEGER",
        "line in that file",
        null="not known",
        stands_for_null=0,
        at=lambda s: s.table.frames.lines[s.frame_id],
    ),
    integer("is_project", "1: the file is the project's; 0: it is not", lambda s: s.is_project[s.frame_id]),
    arrays=lambda report: report.stacks,
)

STACK_FRAMES = table(
    "snapconv_stack_frames",
    "The frames of every stack: Python's, and in a memory report C++'s.",
    row_of("snapconv_stacks", "stack_id", at=lambda s: np.repeat(s.stack_id, s.n_frames)),
    integer(
        "ordering",
        ORDERING.meaning,
        lambda s: np.arange(len(s.table.frame_ids)) - np.repeat(s.table.offsets[:-1], s.n_frames),
    ),
    row_of("snapconv_frames", "frame_id", at="table.frame_ids"),
    arrays=lambda report: report.stacks,
    constraint="PRIMARY KEY (stack_id, ordering)",
)


def report_table(version: int, *columns: Column, root: str) -> Table:
    """Make the table of facts about the report."""
    of_tables = f"version of the `snapconv_` tables; this page describes {version}"
    of_root = "folder that paths of the project are relative to"
    return table(
        "snapconv_report",
        "What this report is; always one row.",
        integer("schema_version", of_tables, lambda _: version),
        *columns,
        text("project_root", of_root, root, null="none was found"),
        records=lambda report: [report],
    )


SOURCE = table(
    "snapconv_source",
    "Where the numbers come from: the file, and how it was made.",
    text("key", "name of the fact", "0"),
    text("value", "its text", "1"),
    records=lambda report: report.source,
)

NOTES = table(
    "snapconv_notes",
    "Notes on the figures that their reader should know.",
    text("slug", "stable short name of the note"),
    text("message", "a sentence for a person"),
    integer("device", "device that it is about; -1: pinned host memory", null="the whole file"),
    records=lambda report: report.notes,
)
