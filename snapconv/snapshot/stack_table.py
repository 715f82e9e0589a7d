"""Stacks and frames, interned: many million events share a few thousand stacks.

torch shares one dictionary per frame and often one list per stack, so identity finds nearly every
repetition without looking inside; content settles the rest (after a JSON round trip nothing is
shared).
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np

from snapconv.columns import (
    BoolColumn,
    Int32Column,
    Int64Column,
    count_of,
    offsets_of,
    read_only,
    rows_of,
    values_of,
)
from snapconv.notes import Note
from snapconv.snapshot.fields import Interner, RowPath, expect
from snapconv.snapshot.readers.compiled_pickle import (
    NO_ID,
    CompiledEvents,
    FirstSeen,
    stack_row,
)
from snapconv.snapshot.readers.form import Form
from snapconv.snapshot.readers.text_frames import NO_FILE, split_frame

_MAX_LINE = 2**31 - 1
# Longer names are no paths, and C++ symbols of which this much is enough; one text may stand in a
# file very many times.
MAX_TEXT = 4096
# CPython stops at 1,000 calls by default, and no stack of a real file has more than 131 frames.
MAX_DEPTH = 4096
# Names and file names of all frames together, in bytes of UTF-8.
_TEXT_BYTES_PER_BYTE, _FREE_TEXT_BYTES = 4, 512 << 10


@dataclass(frozen=True)
class FrameTable:
    """Distinct frames. ``lines`` (int64) is 0 where the file has no usable line number."""

    names: tuple[str, ...]
    filenames: tuple[str, ...]
    lines: Int64Column

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def files(self) -> tuple[str, ...]:
        """The distinct file names: many frames share a few."""
        return tuple(dict.fromkeys(self.filenames))

    @cached_property
    def file_id(self) -> Int32Column:
        """The position of every frame's file among ``files``."""
        positions = {file: number for number, file in enumerate(self.files)}
        return np.fromiter(map(positions.__getitem__, self.filenames), np.int32, len(self))

    def mark_files(self, is_match: Callable[[str], bool]) -> BoolColumn:
        """Mark the frames whose file matches; each file is tested once."""
        matches = np.array([is_match(file) for file in self.files], bool)
        return matches[self.file_id]


@dataclass(frozen=True)
class StackTable:
    """Distinct stacks: stack ``i`` is ``frame_ids[offsets[i]:offsets[i + 1]]``, leaf first."""

    frames: FrameTable
    offsets: Int64Column
    frame_ids: Int32Column

    @cached_property
    def owners(self) -> Int32Column:
        """The stack of every entry of ``frame_ids``."""
        stack_ids = np.arange(len(self), dtype=np.int32)
        return np.repeat(stack_ids, np.diff(self.offsets))

    @cached_property
    def innermost(self) -> Int32Column:
        """The innermost frame of every stack, -1 without one."""
        return self._frame_at(self.offsets[:-1])

    @cached_property
    def outermost(self) -> Int32Column:
        """The outermost frame of every stack, -1 without one."""
        return self._frame_at(self.offsets[1:] - 1)

    def _frame_at(self, entries: Int64Column) -> Int32Column:
        has_frames = np.diff(self.offsets) > 0
        return values_of(self.frame_ids, np.where(has_frames, entries, -1))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def frames_of(self, stack_id: int) -> Int32Column:
        """Return the frame ids of one stack, leaf first; empty for -1 (no stack captured)."""
        if stack_id < 0:
            return self.frame_ids[:0]
        start = self.offsets[stack_id]
        end = self.offsets[stack_id + 1]
        return self.frame_ids[start:end]

    def take(self, stack_ids: Int64Column) -> "StackTable":
        """Return some stacks alone, numbered from 0; the frames keep their ids."""
        lengths = np.diff(self.offsets)
        is_taken = np.zeros(len(self), bool)
        is_taken[stack_ids] = True
        offsets = offsets_of(lengths[is_taken])
        frame_ids = self.frame_ids[np.repeat(is_taken, lengths)]
        return read_only(StackTable(self.frames, offsets, frame_ids))

    def mark_entries(self, frames: BoolColumn) -> BoolColumn:
        """Mark the entries of ``frame_ids`` whose frame is marked."""
        # Brackets take three times as long for numbers of 32 bits.
        return np.take(frames, self.frame_ids)

    def only(self, frames: BoolColumn) -> "StackTable":
        """Return the stacks with some of their frames alone; stacks and frames keep their ids."""
        entries = rows_of(self.mark_entries(frames))
        offsets = np.searchsorted(entries, self.offsets)
        return read_only(StackTable(self.frames, offsets, self.frame_ids[entries]))


def stack_table(
    frames: Collection[tuple[str, str, int]], stacks: Collection[Iterable[int | None]]
) -> StackTable:
    """Return stacks of positions in ``frames`` as columns; a frame is a name, a file and a line."""
    names, filenames, lines = zip(*frames, strict=True) if frames else ((),) * 3
    table = read_only(FrameTable(names, filenames, np.array(lines, np.int64)))
    stack_frames = list(map(tuple, stacks))
    offsets = np.cumsum([0, *map(len, stack_frames)])
    frame_ids = np.array(list(chain.from_iterable(stack_frames)), np.int32)
    return read_only(StackTable(table, offsets, frame_ids))


class StackInterner:
    """Collects frames and stacks while a file is read, then becomes a StackTable.

    Identities stay unique during one reading because the raw objects were all built before it
    began.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[str, str, int], int] = {}
        # Every raw frame gets its number under a key of ours: a look-up for each entry of each
        # stack.
        self._key = object()
        self._number_of = itemgetter(self._key)
        self._stacks: dict[tuple[int | None, ...], int] = {}
        # Each text is stored once: a long one may stand in very many frames.
        self._short_texts: dict[str, str] = {}
        self._id_of_list = {id(None): -1}

    @property
    def has_frames(self) -> bool:
        """Whether any stack so far has a frame."""
        return bool(self._frames)

    def ids(self, stacks: Sequence[object], row_path: RowPath) -> Int32Column:
        """Return the ids of many raw stacks (lists of frame dictionaries), -1 for None.

        ``row_path(i)`` names the owner of stack ``i``. Raises MalformedSnapshotError with the path
        of the first frame that cannot be right.
        """
        for i, frames in enumerate(stacks):
            if id(frames) not in self._id_of_list:
                self._id_of_list[id(frames)] = self._id(frames, f"{row_path(i)}.frames")
        ids = map(self._id_of_list.__getitem__, map(id, stacks))
        return np.fromiter(ids, np.int32, len(stacks))

    def _id(self, frames: Any, path: str) -> int:
        try:
            key = tuple(map(self._number_of, expect(frames, list, path)))
        except (KeyError, TypeError):
            for i, frame in enumerate(frames):
                if type(frame) is not dict or self._key not in frame:
                    self._add_frame(frame, f"{path}[{i}]")
            key = tuple(map(self._number_of, frames))
        return self._stacks.setdefault(key, len(self._stacks))

    def _add_frame(self, frame: object, path: str) -> None:
        values: dict[object, Any] = expect(frame, dict, path)
        for key, kind in (("name", str), ("filename", str), ("line", int)):
            value = values.get(key)
            if type(value) is not kind and value is not None:
                expect(value, kind, f"{path}.{key}")
        name = values.get("name") or ""
        filename = values.get("filename") or ""
        line = values.get("line") or 0
        if filename == NO_FILE:
            name, filename, line = split_frame(name)
        # CPython 3.13 reports unknown lines as -1, which torch's unsigned field shows as 2^64 - 1.
        if not 0 < line <= _MAX_LINE:
            line = 0
        content = (self._shortened(name), self._shortened(filename), line)
        values[self._key] = self._frames.setdefault(content, len(self._frames))

    def _shortened(self, text: str) -> str:
        return self._short_texts.setdefault(text, text[:MAX_TEXT])

    def table(self) -> StackTable:
        """Return everything collected so far, as read-only columns."""
        return stack_table(self._frames, self._stacks)


class CompiledStacks:
    """Collects the stacks that the compiled core has read, with the ids of StackInterner."""

    def __init__(self, events: CompiledEvents) -> None:
        self.events = events
        self._ends = np.append(0, events.stacks[:, 0])
        self._seen = FirstSeen(events.core, len(events.stacks))
        self.ids_of_rows = self._seen.ids

    @property
    def has_frames(self) -> bool:
        """Whether any stack so far has a frame."""
        lengths = np.diff(self._ends)
        return bool(lengths[self._seen.keys].any())

    def ids(self, stacks: Sequence[object], row_path: RowPath) -> Int32Column:
        """Return the ids of many raw stacks, -1 for None.

        Raises OddFile for a stack that the core did not read.
        """
        rows = [NO_ID if stack is None else stack_row(stack) for stack in stacks]
        return self.ids_of_rows(np.array(rows, np.int32))

    def table(self) -> StackTable:
        """Return everything collected so far, as read-only columns."""
        events = self.events
        rows = self._seen.keys
        ends = self._ends
        lengths = np.diff(ends)[rows]
        offsets = offsets_of(lengths)
        shift = ends[rows] - offsets[:-1]
        entries = np.arange(offsets[-1]) + np.repeat(shift, lengths)
        frame_numbers = FirstSeen(events.core, len(events.frames))
        frame_ids = frame_numbers.ids(events.frame_ids[entries])
        name_keys, filename_keys, lines = events.frames[frame_numbers.keys].T
        text_at = events.objects.__getitem__
        names = tuple(map(text_at, name_keys.tolist()))
        filenames = tuple(map(text_at, filename_keys.tolist()))
        frames = FrameTable(names, filenames, lines.astype(np.int64))
        return read_only(StackTable(read_only(frames), offsets, frame_ids))


Stacks = StackInterner | CompiledStacks


@dataclass(slots=True)
class Collected:
    """Values that the tables of a file share, and facts for its notes, while it is read.

    ``sizes_missing``: a live block has no requested size (torch 1.x), and its own size replaces it.
    ``has_addresses``: blocks have addresses (torch 2.1 on).
    ``form``: no allocator wrote the traces; they have a few keys of their own in every release.
    ``n_backwards``: in so many places the events of a device stood out of order.
    """

    stacks: Stacks = field(default_factory=StackInterner)
    texts: Interner = field(default_factory=Interner)
    pools: Interner = field(default_factory=Interner)
    unknown_actions: Counter[str] = field(default_factory=Counter)
    sizes_missing: bool = False
    has_addresses: bool = False
    form: Form | None = None
    n_backwards: dict[int, int] = field(default_factory=dict)


# --- bounds


def bound_stacks(stacks: StackTable, n_bytes: int) -> tuple[StackTable, tuple[Note, ...]]:
    """Leave out what goes beyond the bounds, with notes that name it.

    ``n_bytes`` is the size of the file, unpacked. A pickle repeats a text, a frame or a whole list
    for two bytes. What follows from stacks is therefore bounded here, once, for every table and
    output. No snapshot of a job comes near these bounds.
    """
    notes = []
    shallow, n_deep = _cut_deep_stacks(stacks)
    if n_deep:
        message = (
            f"of {n_deep} stacks only the {MAX_DEPTH // 2} innermost and outermost frames "
            f"are kept"
        )
        notes.append(Note("left-out", message))
    frames, length = _cut_texts(shallow.frames, n_bytes)
    if length:
        message = (
            f"names and file names are cut to {length} bytes: together they are many times the "
            "file's size"
        )
        notes.append(Note("left-out", message))
    return read_only(replace(shallow, frames=frames)), tuple(notes)


def _cut_deep_stacks(stacks: StackTable) -> tuple[StackTable, int]:
    """Keep both ends of a stack that is too deep; also return the number of such stacks."""
    lengths = np.diff(stacks.offsets)
    n_deep = count_of(lengths > MAX_DEPTH)
    if not n_deep:
        return stacks, 0
    start = np.repeat(stacks.offsets[:-1], lengths)
    depth = np.arange(len(stacks.frame_ids)) - start
    height = np.repeat(lengths, lengths) - 1 - depth
    is_end = (depth < MAX_DEPTH // 2) | (height < MAX_DEPTH // 2)
    offsets = offsets_of(np.minimum(lengths, MAX_DEPTH))
    return StackTable(stacks.frames, offsets, stacks.frame_ids[is_end]), n_deep


def _cut_texts(frames: FrameTable, n_bytes: int) -> tuple[FrameTable, int]:
    """Cut long names and file names; also return the new length, 0 where nothing is cut."""
    max_bytes = _TEXT_BYTES_PER_BYTE * n_bytes + _FREE_TEXT_BYTES
    texts = (*frames.names, *frames.filenames)
    if 4 * sum(map(len, texts)) <= max_bytes:
        return frames, 0  # a character has 4 bytes at most
    encoded = {text: text.encode("utf-8", "surrogatepass") for text in texts}
    if sum(len(encoded[text]) for text in texts) <= max_bytes:
        return frames, 0
    length = max(max_bytes // (2 * len(frames)), 1)
    # A function is known by how its name begins, a file by how its path ends.
    names = [encoded[name][:length] for name in frames.names]
    filenames = [encoded[name][-length:] for name in frames.filenames]
    return replace(frames, names=_decoded(names), filenames=_decoded(filenames)), length


def _decoded(texts: list[bytes]) -> tuple[str, ...]:
    return tuple(text.decode("utf-8", "ignore") for text in texts)
