"""The stacks of a report, and the frames of its entries in proportion to the file that the report is about.

Skyline's schema repeats the frames of a stack for every entry. A file may share one deep stack among all its
allocations, for two bytes each: the report would be thousands of times as large.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import TYPE_CHECKING, TypeVar

import numpy as np

from snapconv.columns import BoolColumn, Int32Column, Int64Column, distinct
from snapconv.files import most_bytes_of_part
from snapconv.notes import Note
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.project_lines import MAX_LINES_OF_AN_END, SourceLine, both_ends
from snapconv.stacks.stack_roles import innermost_frames

if TYPE_CHECKING:  # their reports take their frames from here
    from snapconv.answers.memory_report import ActivationEntry, WeightEntry
    from snapconv.answers.times import RunTimeEntry

_Entry = TypeVar("_Entry", bound="WeightEntry | ActivationEntry | RunTimeEntry")

# Of a row: its id, its place among the frames, its line, and what SQLite needs for them.
_ROW_BYTES = 16
# Of the frames of a stack, how many of each of its ends are tried; with 0 an entry has no frames.
_NUMBERS = (MAX_LINES_OF_AN_END, 32, 16, 8, 4, 2, 1, 0)


@dataclass(frozen=True, slots=True)
class ReportStacks:
    """The stacks that a report has, with the columns of their rows; -1: there is no such frame.

    ``table`` has those of ``stack_id``. ``frame_id`` are the frames in them; ``is_project`` has an entry per
    frame of the file, and so has ``is_of_module`` (its ``self`` is a module), which only times have.
    """

    stack_id: Int64Column
    table: StackTable
    n_frames: Int64Column
    innermost_frame_id: Int32Column
    project_frame_id: Int32Column
    frame_id: Int64Column
    is_project: BoolColumn
    is_of_module: BoolColumn | None = None


def report_stacks(stacks: StackTable, ids: Int64Column, is_project: BoolColumn) -> ReportStacks:
    """Take some of the stacks of a file, and the frames that they have; of all stacks, all frames."""
    table = stacks.take(ids)
    is_whole = len(table) == len(stacks)
    n_frames = np.diff(table.offsets)
    innermost = np.full(len(table), -1, np.int32)
    innermost[n_frames > 0] = table.frame_ids[table.offsets[:-1][n_frames > 0]]
    return ReportStacks(
        stack_id=ids,
        table=table,
        n_frames=n_frames,
        innermost_frame_id=innermost,
        project_frame_id=innermost_frames(table, is_project),
        frame_id=np.arange(len(table.frames)) if is_whole else distinct(table.frame_ids).astype(np.int64),
        is_project=is_project,
    )


def fitting_frames(
    entries: "Sequence[WeightEntry | ActivationEntry | RunTimeEntry]",
    n_bytes: int,
    *,
    n_cut_stacks: int,
    device: int,
) -> tuple[int, tuple[Note, ...]]:
    """Return how many frames of each end of its stack an entry may have, all together in proportion.

    ``n_bytes`` is the size of the file. A note says what is left out, also of ``n_cut_stacks`` deep stacks.
    """
    uses = Counter(entry.frames for entry in entries)
    size_of = cache(_size_of)
    allowed = most_bytes_of_part(n_bytes)

    def total(n: int) -> int:
        return sum(n_uses * sum(map(size_of, both_ends(frames, n))) for frames, n_uses in uses.items())

    n = next(n for n in _NUMBERS if total(n) <= allowed)
    ends = f"the {n} innermost and the {n} outermost" if n else "none"
    message = f"of the frames of an entry {ends} are written: all would be many times the size of the file"
    if n == MAX_LINES_OF_AN_END:
        message = f"of {n_cut_stacks} deep stacks only {ends} lines are shown" if n_cut_stacks else ""
    return n, (Note("left-out", message, device),) if message else ()


def with_fewer_frames(entries: Iterable[_Entry], n_of_an_end: int) -> tuple[_Entry, ...]:
    """Return the entries with no more than so many frames of each end."""
    fewer = cache(lambda frames: tuple(both_ends(frames, n_of_an_end)))
    return tuple(replace(entry, frames=fewer(entry.frames)) for entry in entries)


def _size_of(line: SourceLine) -> int:
    return _ROW_BYTES + len(line.file_path.encode("utf-8", "surrogatepass"))
