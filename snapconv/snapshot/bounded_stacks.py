"""Stacks as a file has them -> stacks whose size is in proportion to the file.

A pickle repeats a text, a frame or a whole list for two bytes. What follows from stacks is therefore bounded
here, once, for every table and output: how deep a stack is, how many lines of a trace it shows, how long the
texts of all frames are together. No snapshot that a job has written comes near these bounds.
"""

import re
from dataclasses import replace
from functools import cache

import numpy as np

from snapconv.columns import Int64Column, distinct, read_only
from snapconv.notes import Note
from snapconv.snapshot.stack_table import MAX_TEXT, FrameTable, StackTable

# CPython stops at 1,000 calls by default, and no stack of a real file has more than 131 frames.
MAX_DEPTH = 4096
# Lines of the traces in one stack; torch.compile's own traces have some tens.
MAX_TRACED_LINES = 64
# Names and file names of all frames together, in bytes of UTF-8.
_TEXT_BYTES_PER_BYTE = 4
_FREE_TEXT_BYTES = 512 << 10
# A line of a traceback, as the trace of generated code has it.
_TRACED = r'File "([^"\n]+)", line (\d{1,9}), in ([^\n]+)'


def bound_stacks(stacks: StackTable, n_bytes: int) -> tuple[StackTable, tuple[Note, ...]]:
    """Add the lines of the traces of generated code, and leave out what goes beyond the bounds.

    ``n_bytes`` is the size of the file, unpacked. The notes name what was left out.
    """
    traced, n_untraced = _with_traced_lines(stacks)
    shallow, n_deep = _without_middles(traced)
    frames, length = _with_short_texts(shallow.frames, n_bytes)
    messages = (
        (n_untraced, f"of {n_untraced} stacks not all lines are shown that their code was traced from"),
        (n_deep, f"of {n_deep} stacks only the {MAX_DEPTH // 2} innermost and outermost frames are kept"),
        (
            length,
            f"names and file names are cut to {length} bytes: together they are many times the file's size",
        ),
    )
    notes = [Note("left-out", message) for count, message in messages if count]
    return read_only(replace(shallow, frames=frames)), tuple(notes)


# --- lines of traces


def _with_traced_lines(stacks: StackTable) -> tuple[StackTable, int]:
    """Let the lines that generated code was traced from follow its frame, innermost first, as in torch.

    Also returns how many stacks have more such lines than they may show.
    """
    frames = stacks.frames
    has_trace = np.array([bool(text) for text in frames.originals], np.bool_)
    if not has_trace.any():
        return stacks, 0
    lines = _TracedLines(frames)
    wanted = has_trace[stacks.frame_ids]
    owners = distinct(np.searchsorted(stacks.offsets, np.flatnonzero(wanted), side="right") - 1)
    pieces, n_cut, done = [], 0, 0
    lengths = np.diff(stacks.offsets)
    for stack in owners.tolist():
        start, stop = stacks.offsets[stack : stack + 2].tolist()
        shown, is_cut = lines.of_stack(stacks.frame_ids[start:stop].tolist())
        pieces += [stacks.frame_ids[done:start], np.array(shown, np.int32)]
        lengths[stack] = len(shown)
        n_cut += is_cut
        done = stop
    pieces.append(stacks.frame_ids[done:])
    return StackTable(lines.table(), _offsets(lengths), np.concatenate(pieces)), n_cut


class _TracedLines:
    """The frames of the lines in traces; a text is read once, however many frames have it."""

    def __init__(self, frames: FrameTable) -> None:
        columns = (frames.names, frames.filenames, frames.lines.tolist(), frames.originals, frames.targets)
        self._originals = frames.originals
        self._ids = {key: i for i, key in enumerate(zip(*columns, strict=True))}
        self._of = cache(self._read)

    def of_stack(self, frames: list[int]) -> tuple[list[int], bool]:
        """Return the frames of a stack with those of its traces, and whether some of these had no room."""
        shown: list[int] = []
        seen: set[str] = set()
        room = MAX_TRACED_LINES
        is_cut = False
        for frame in frames:
            shown.append(frame)
            text = self._originals[frame]
            if text and text not in seen:
                seen.add(text)
                found = self._of(text)
                shown += found[:room]
                is_cut |= len(found) > room
                room = max(0, room - len(found))
        return shown, is_cut

    def _read(self, text: str) -> list[int]:
        """Return the innermost lines of a trace, which stand last: at most one more than a stack may show."""
        lines: list[tuple[str, str, str]] = re.findall(_TRACED, text)
        keys = [
            (name[:MAX_TEXT], file[:MAX_TEXT], int(line), "", "")
            for file, line, name in reversed(lines[-MAX_TRACED_LINES - 1 :])
        ]
        return [self._ids.setdefault(key, len(self._ids)) for key in keys]

    def table(self) -> FrameTable:
        """Return the frames of the file, and after them those of the traces."""
        names, filenames, lines, originals, targets = zip(*self._ids, strict=True)
        return FrameTable(names, filenames, np.array(lines, np.int64), originals, targets)


# --- deep stacks


def _without_middles(stacks: StackTable) -> tuple[StackTable, int]:
    """Keep both ends of a stack that is too deep; also returns how many were."""
    lengths = np.diff(stacks.offsets)
    n_deep = int(np.count_nonzero(lengths > MAX_DEPTH))
    if not n_deep:
        return stacks, 0
    place = np.arange(len(stacks.frame_ids)) - np.repeat(stacks.offsets[:-1], lengths)
    from_end = np.repeat(lengths, lengths) - 1 - place
    is_kept = (place < MAX_DEPTH // 2) | (from_end < MAX_DEPTH // 2)
    kept = np.minimum(lengths, MAX_DEPTH)
    return StackTable(stacks.frames, _offsets(kept), stacks.frame_ids[is_kept]), n_deep


def _offsets(lengths: Int64Column) -> Int64Column:
    return np.concatenate(([0], np.cumsum(lengths)))


# --- long texts


def _with_short_texts(frames: FrameTable, n_bytes: int) -> tuple[FrameTable, int]:
    """Cut long names and file names; also returns the length that is left, 0 where all are whole."""
    texts = {text: text.encode("utf-8", "surrogatepass") for text in (*frames.names, *frames.filenames)}
    allowed = _TEXT_BYTES_PER_BYTE * n_bytes + _FREE_TEXT_BYTES
    if sum(len(texts[text]) for text in (*frames.names, *frames.filenames)) <= allowed:
        return frames, 0
    length = max(allowed // (2 * len(frames)), 1)
    # A function is known by how its name begins, a file by how its path ends.
    begins = {text: data[:length].decode("utf-8", "ignore") for text, data in texts.items()}
    ends = {text: data[-length:].decode("utf-8", "ignore") for text, data in texts.items()}
    names, filenames = map(begins.__getitem__, frames.names), map(ends.__getitem__, frames.filenames)
    return replace(frames, names=tuple(names), filenames=tuple(filenames)), length
