"""The frames of a report's entries, in proportion to the file that the report is about.

Skyline's schema repeats the frames of a stack for every entry. A file may share one deep stack among all its
allocations, for two bytes each: the report would be thousands of times as large.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import TypeVar

from snapconv.answers.memory_report import ActivationEntry, WeightEntry
from snapconv.answers.time_report import RunTimeEntry
from snapconv.notes import Note
from snapconv.stacks.project_lines import MAX_LINES_OF_AN_END, SourceLine, both_ends

Entry = WeightEntry | ActivationEntry | RunTimeEntry
_Entry = TypeVar("_Entry", bound=Entry)

# Real reports have less than twice the size of their file, small ones have some kilobytes.
_BYTES_PER_BYTE = 8
_FREE_BYTES = 256 << 10
# Of a row: its id, its place among the frames, its line, and what SQLite needs for them.
_ROW_BYTES = 16
# Of the frames of a stack, how many of each of its ends are tried; with 0 an entry has no frames.
_NUMBERS = (MAX_LINES_OF_AN_END, 32, 16, 8, 4, 2, 1, 0)


def n_frames_of_an_end(entries: Sequence[Entry], n_bytes: int) -> int:
    """How many frames of each end of its stack an entry may have, so that all together are in proportion.

    ``n_bytes`` is the size of the file.
    """
    uses = Counter(entry.frames for entry in entries)
    size_of = cache(_size_of)
    allowed = _BYTES_PER_BYTE * n_bytes + _FREE_BYTES

    def total(n: int) -> int:
        return sum(n_uses * sum(map(size_of, both_ends(frames, n))) for frames, n_uses in uses.items())

    return next(n for n in _NUMBERS if total(n) <= allowed)


def with_fewer_frames(entries: tuple[_Entry, ...], n_of_an_end: int) -> tuple[_Entry, ...]:
    """The entries with no more than so many frames of each end."""
    if n_of_an_end == MAX_LINES_OF_AN_END:
        return entries
    fewer = cache(lambda frames: tuple(both_ends(frames, n_of_an_end)))
    return tuple(replace(entry, frames=fewer(entry.frames)) for entry in entries)


def left_out_note(n_of_an_end: int, *, n_cut_stacks: int, device: int) -> tuple[Note, ...]:
    """Name what was left out of the entries' frames, if anything."""
    if n_of_an_end < MAX_LINES_OF_AN_END:
        which = f"the {n_of_an_end} innermost and the {n_of_an_end} outermost" if n_of_an_end else "none"
        message = (
            f"of the frames of an entry {which} are written: all would be many times the size of the file"
        )
        return (Note("left-out", message, device),)
    if n_cut_stacks:
        n = MAX_LINES_OF_AN_END
        message = (
            f"of {n_cut_stacks} deep stacks only the {n} innermost and the {n} outermost lines are shown"
        )
        return (Note("left-out", message, device),)
    return ()


def _size_of(line: SourceLine) -> int:
    return _ROW_BYTES + len(line.file_path.encode("utf-8", "surrogatepass"))
