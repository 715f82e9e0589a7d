"""Stacks and frames, interned: many million events share a few thousand stacks.

torch shares one dictionary per frame and often one list per stack, so identity finds nearly every
repetition without looking inside; content settles the rest (after a JSON round trip nothing is shared).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import chain

import numpy as np

from snapconv.columns import Int32Column, Int64Column, read_only
from snapconv.snapshot.fields import Interner, Place, expect

_MAX_LINE = 2**31 - 1
# Longer names are no paths, and C++ symbols of which this much is enough; one text may stand in a
# file very many times.
MAX_TEXT = 4096
# Of a longer trace the end counts, which has the innermost lines.
_MAX_TRACE = 2**16
# The nodes that are operations.
_CALLS = ("call_function", "call_method")


def _cut(text: str, length: int = MAX_TEXT) -> str:
    """Return the beginning of a text, or with a negative length its end."""
    return text[:length] if length > 0 else text[length:]


@dataclass(frozen=True, slots=True)
class FrameTable:
    """Distinct frames. ``lines`` (int64) is 0 where the file has no usable line number.

    ``originals`` has, for frames of code that torch.compile generated, the source that torch
    traced it from (``fx_original_trace``, torch >= 2.10), and is empty otherwise; ``targets`` what the
    frame's node calls (``aten.addmm.default``).
    """

    names: tuple[str, ...]
    filenames: tuple[str, ...]
    lines: Int64Column
    originals: tuple[str, ...]
    targets: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)


@dataclass(frozen=True, slots=True)
class StackTable:
    """Distinct stacks: stack ``i`` is ``frame_ids[offsets[i]:offsets[i + 1]]``, leaf first."""

    frames: FrameTable
    offsets: Int64Column
    frame_ids: Int32Column

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def frames_of(self, stack_id: int) -> Int32Column:
        """Return the frame ids of one stack, leaf first; empty for -1 (no stack captured)."""
        if stack_id < 0:
            return self.frame_ids[:0]
        return self.frame_ids[self.offsets[stack_id] : self.offsets[stack_id + 1]]

    def take(self, stack_ids: Int64Column) -> "StackTable":
        """Return these stacks alone, numbered from 0; the frames keep their ids."""
        lengths = np.diff(self.offsets)
        is_wanted = np.zeros(len(self), np.bool_)
        is_wanted[stack_ids] = True
        offsets = np.concatenate(([0], np.cumsum(lengths[is_wanted])))
        return read_only(StackTable(self.frames, offsets, self.frame_ids[np.repeat(is_wanted, lengths)]))


class StackInterner:
    """Collects frames and stacks while a file is read, then becomes a StackTable.

    Identities stay unique during one reading because the raw objects were all built before it began.
    """

    def __init__(self) -> None:
        self._frames: dict[tuple[str, str, int, str, str], int] = {}
        self._frame_by_identity: dict[int, int] = {}
        self._stacks: dict[tuple[int | None, ...], int] = {}
        self._cut = cache(_cut)
        self._stack_by_list: dict[int, int] = {}
        self._stack_by_identities: dict[tuple[int, ...], int] = {}

    @property
    def has_frames(self) -> bool:
        """Whether any stack so far has a frame."""
        return bool(self._frames)

    def ids(self, stacks: Sequence[object], place: Place) -> Int32Column:
        """Return the ids of many raw stacks (lists of frame dictionaries), -1 for None.

        ``place(i)`` names the owner of stack ``i``. Raises MalformedSnapshotError with the path of the
        first frame that cannot be right.
        """
        by_list = self._stack_by_list
        ids = []
        for i, frames in enumerate(stacks):
            known = by_list.get(id(frames))
            ids.append(self._add(frames, place, i) if known is None else known)
        return np.array(ids, np.int32)

    def _add(self, frames: object, place: Place, owner: int) -> int:
        if frames is None:
            return -1
        if not isinstance(frames, list):
            expect(frames, list, f"{place(owner)}.frames")
            return -1
        identities = tuple(map(id, frames))
        stack_id = self._stack_by_identities.get(identities)
        if stack_id is None:
            key = tuple(map(self._frame_by_identity.get, identities))
            if None in key:
                where = f"{place(owner)}.frames"
                for i, known in enumerate(key):
                    if known is None:
                        self._add_frame(frames[i], f"{where}[{i}]")
                key = tuple(map(self._frame_by_identity.get, identities))
            stack_id = self._stacks.setdefault(key, len(self._stacks))
            self._stack_by_identities[identities] = stack_id
        self._stack_by_list[id(frames)] = stack_id
        return stack_id

    def _add_frame(self, frame: object, where: str) -> None:
        expect(frame, dict, where)
        name, filename, line = (frame.get(key) for key in ("name", "filename", "line"))  # type: ignore[attr-defined]
        for part, value, kind in (("name", name, str), ("filename", filename, str), ("line", line, int)):
            if value is not None:
                expect(value, kind, f"{where}.{part}")
        # CPython 3.13 reports unknown lines as -1, which torch's unsigned field shows as 2^64 - 1.
        usable = line if line is not None and 0 < line <= _MAX_LINE else 0
        original, op, target = map(frame.get, ("fx_original_trace", "fx_node_op", "fx_node_target"))  # type: ignore[attr-defined]
        # The target of another node is the name of a module or of an argument.
        texts = (name, filename, original, target if op in _CALLS else "")
        name, filename, original, target = (text if type(text) is str else "" for text in texts)
        cut = self._cut
        key = (cut(name), cut(filename), usable, cut(original, -_MAX_TRACE), cut(target))
        self._frame_by_identity[id(frame)] = self._frames.setdefault(key, len(self._frames))

    def table(self) -> StackTable:
        """Return everything collected so far, as read-only columns."""
        columns = zip(*self._frames, strict=True) if self._frames else ((),) * 5
        names, filenames, lines, originals, targets = columns
        lengths = np.fromiter(map(len, self._stacks), np.int64, len(self._stacks))
        offsets = np.concatenate(([0], np.cumsum(lengths)))
        frame_ids = np.fromiter(chain.from_iterable(self._stacks), np.int32, int(offsets[-1]))
        frames = FrameTable(names, filenames, np.array(lines, np.int64), originals, targets)
        return read_only(StackTable(read_only(frames), offsets, frame_ids))


@dataclass(slots=True)
class Collected:
    """Values that the tables of a file share, and what is not known in it, while it is read."""

    stacks: StackInterner = field(default_factory=StackInterner)
    texts: Interner = field(default_factory=Interner)
    pools: Interner = field(default_factory=Interner)
    unknown_actions: Counter[str] = field(default_factory=Counter)
    unknown_keys: Counter[str] = field(default_factory=Counter)
