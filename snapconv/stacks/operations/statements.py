"""Stacks whose line has several operations -> the statements that they are of, and all stacks of each.

A statement is one call's: the same lines of a function, called from the same frames. What it calls is of it.
"""

import sys
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.operations.source_lines import Line

# The first line after a statement sorts before every stack that has it.
_NO_STACK = -1
# What no frame has called.
_OUTERMOST = 0
_EVERYWHERE = (0, sys.maxsize - 1)
# A call of a function, by its callers, and the lines of the statement and of its loop.
_Key = tuple[int, str, str, tuple[int, int], tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Statement:
    """The stacks of several operations of one statement, and all stacks of it or ``below`` it.

    ``is_alone``: nothing else of its function, or of its loop, has a stack: nothing separates its visits.
    """

    several: Sequence[int]
    below: Sequence[int]
    is_alone: bool


def statements(
    stacks: StackTable, ran: Sequence[int], several: Mapping[int, tuple[int, Line]]
) -> Iterator[Statement]:
    """The statements of the stacks of ``several``, as far as only stacks in ``ran`` count.

    ``several`` has for its stacks the frame of the line in question, and the line.
    """
    names, files, lines = stacks.frames.names, stacks.frames.filenames, stacks.frames.lines.tolist()
    callers: dict[tuple[int, int], int] = {}
    groups: dict[_Key, list[int]] = defaultdict(list)
    for stack, (frame, line) in several.items():
        here = line.first_line, line.last_line
        place = _place(callers, stacks, stack, frame)
        groups[place, names[frame], files[frame], here, line.loop or _EVERYWHERE].append(stack)
    wanted = {key[0] for key in groups}
    calls: dict[tuple[int, str, str], list[tuple[int, int]]] = defaultdict(list)
    for stack in ran:
        place = _OUTERMOST
        for frame in reversed(stacks.frames_of(stack).tolist()):
            if place in wanted:
                calls[place, names[frame], files[frame]].append((lines[frame], stack))
            if (place, frame) not in callers:
                break
            place = callers[place, frame]
    for at in calls.values():
        at.sort()
    for (place, name, file, here, around), together in groups.items():
        at = calls[place, name, file]
        begin, end = _within(at, here)
        first, last = _within(at, around)
        yield Statement(together, [stack for _, stack in at[begin:end]], last - first <= end - begin)


def _within(at: Sequence[tuple[int, int]], lines: tuple[int, int]) -> tuple[int, int]:
    return bisect_left(at, (lines[0], _NO_STACK)), bisect_left(at, (lines[1] + 1, _NO_STACK))


def _place(callers: dict[tuple[int, int], int], stacks: StackTable, stack: int, frame: int) -> int:
    """A number for the frames that called this one; ``callers`` has it by that of their own callers."""
    frames = stacks.frames_of(stack).tolist()
    place = _OUTERMOST
    for caller in reversed(frames[frames.index(frame) + 1 :]):
        place = callers.setdefault((place, caller), len(callers) + 1)
    return place
