"""Live stacks -> the same with fewer frames, for a format that repeats their names in every stack.

A file shares one deep stack, or one long name, for two bytes each time. No real file comes near the bounds
here: of these, all frames are written.
"""

from collections.abc import Sequence
from dataclasses import replace

from snapconv.answers.live_stacks import LiveStacks, StackFrame
from snapconv.notes import Note
from snapconv.stacks.project_lines import MAX_LINES_OF_AN_END, both_ends
from snapconv.units import shortened

_BYTES_PER_BYTE = 12
_FREE_BYTES = 512 << 10
_MOST_OF_NAME = 200
# Of the frames of a stack, how many of each of its ends are tried.
_NUMBERS = (MAX_LINES_OF_AN_END, 32, 16, 8, 4, 2, 1, 0)
_MIDDLE = StackFrame("[frames left out]", "", "", 0)


def with_short_stacks(found: LiveStacks, n_bytes: int) -> tuple[LiveStacks, tuple[Note, ...]]:
    """Shorten the names of frames, and leave out the middles of stacks, where all would be too much.

    ``n_bytes`` is the size of the file, unpacked. The note names what was left out.
    """
    allowed = _BYTES_PER_BYTE * n_bytes + _FREE_BYTES
    if _length(found.frames, [stack.frames for stack in found.stacks]) <= allowed:
        return found, ()
    short = [_short(frame) for frame in found.frames]
    for n in _NUMBERS:
        stacks = [_ends(stack.frames, n, middle=len(short)) for stack in found.stacks]
        if _length([*short, _MIDDLE], stacks) <= allowed:
            break
    which = f"the {n} innermost and the {n} outermost frames" if n else "no frames"
    message = (
        f"of a stack {which} are written, with short names: all would be many times the size of the file"
    )
    shortened_stacks = [
        replace(stack, frames=frames) for stack, frames in zip(found.stacks, stacks, strict=True)
    ]
    bounded = replace(found, frames=(*short, _MIDDLE), stacks=tuple(shortened_stacks))
    return bounded, (Note("left-out", message, found.device),)


def _length(frames: Sequence[StackFrame], stacks: Sequence[Sequence[int]]) -> int:
    """The characters of all stacks as text; escaped, a character takes a few more."""
    lengths = [1 + len(frame.label) for frame in frames]
    return sum(lengths[row] for stack in stacks for row in stack)


def _short(frame: StackFrame) -> StackFrame:
    return StackFrame(shortened(frame.label, _MOST_OF_NAME), "", "", 0)


def _ends(frames: tuple[int, ...], n: int, *, middle: int) -> tuple[int, ...]:
    kept = both_ends(frames, n)
    return frames if len(kept) == len(frames) else (*kept[:n], middle, *kept[n:])
