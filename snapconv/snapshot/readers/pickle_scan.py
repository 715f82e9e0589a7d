"""Check a pickle opcode by opcode, before a single object is built from it.

The C unpickler is fast and trusts its input: a 15-byte file can make it allocate gigabytes for the
memo, and tuples nested in a dictionary key overflow its stack, or keep it busy for ever (measured on
CPython 3.11). So the stream is first read as tokens, whole and in order, and refused at the first
opcode that a snapshot has no use for; the error names it with its byte offset.

Finding where tokens begin is a walk from each to the next. Many stretches ("lanes") of the file are
walked at once, as NumPy columns: a lane's first token is estimated by walking a little from before it,
which falls into step within a few tokens, and an estimate counts only if the true walk arrives at exactly
that token; where it does not, the lane is walked again alone. Measured: 10 to 15 ns a token.

Turns bytes into "may be loaded, and ends here" or an error; independent of snapshots.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from snapconv.columns import BoolColumn, Int64Column
from snapconv.errors import MalformedSnapshotError, TruncatedFileError, UnsafePickleError
from snapconv.snapshot.readers import opcodes as op
from snapconv.units import shown

_MIN_LANE_BYTES, _MAX_LANE_BYTES = 128, 2048
_LEAD_BYTES = 128
_CHUNK_BYTES = 8192 * _MAX_LANE_BYTES
_LOOKAHEAD_BYTES = 16
_HUGE = 1 << 62
_HUGE_COUNT = np.uint64(_HUGE)
# The bytes after an opcode, and which of them are its count, by its width.
_EIGHT_BYTES = np.arange(1, 9)
_LOW_BYTES = np.array([(1 << 8 * width) - 1 for width in range(9)], "<u8")
_MAX_INTEGER_BYTES = 9
# An empty list, dictionary or set takes 70 to 220 bytes for its opcode of one. Torch's own, with what is
# in them, take 15 bytes of the file each at least: a chunk with four times as many is refused.
_EMPTY_CONTAINERS, _MIN_CONTAINER_BYTES, _FEW_CONTAINERS = (b"]", b"}", b"\x8f"), 4, 1_000_000
_MARKED = 1 << 40
_MEMO_INDEX_BYTES = {ord("q"): 1, ord("r"): 4, ord("h"): 1, ord("j"): 4}

# One gather per token: bits 0-4 head bytes, 5-7 role, bit 8 scalar, bit 9 mark.
_SCALAR_BIT, _MARK_BIT = 1 << 8, 1 << 9
_PACKED = (op.HEAD_BYTES | (op.ROLE.astype(np.int64) << 5)).astype(np.int32)
_PACKED[(op.ROLE == op.SCALAR) | (op.ROLE == op.FRAME)] |= _SCALAR_BIT
_PACKED[ord("(")] |= _MARK_BIT

# A snapshot's tuples are pairs of small numbers (pool ids): that many scalars stand just before the
# opcode. Any other tuple is odd: its hash takes time, exponential where tuples share tuples.
_LEAST_RUN, _MOST_RUN = (np.zeros(256, np.int64) for _ in range(2))
for _code, _least, _most in (
    (0x85, 1, _HUGE),
    (0x86, 2, _HUGE),
    (0x87, 3, _HUGE),
    (ord("t"), _MARKED, _MARKED + 3),
):
    _LEAST_RUN[_code], _MOST_RUN[_code] = _least, _most

_MAX_ARGUMENT_BYTES = np.full(256, _HUGE, np.int64)
_MAX_ARGUMENT_BYTES[list(op.INTEGER_PREFIX_BYTES)] = _MAX_INTEGER_BYTES


def _as_counted(run: int) -> int:
    """Limit a run of scalars to what a tuple after it depends on: all of more than three are the same."""
    return run if run % _MARKED <= 3 else 4


@dataclass(slots=True)
class _Walk:
    """The findings of a walk over some lanes, one row per lane; -1 where nothing was."""

    exit: Int64Column
    scalar_run: Int64Column
    first_stop: Int64Column
    first_refused: Int64Column
    n_odd_tuples: Int64Column

    def rows(self) -> Iterator[tuple[int, int, int, int, int]]:
        """One tuple per lane: exit, scalar run, first STOP, first refusal, odd tuples."""
        columns = (self.exit, self.scalar_run, self.first_stop, self.first_refused, self.n_odd_tuples)
        return zip(*(column.tolist() for column in columns), strict=True)


@dataclass(frozen=True, slots=True)
class Checked:
    """A safe stream: the offset just after its STOP, and how many of its tuples are odd.

    An odd tuple is one that is not made of three numbers at most, of 32 bits at most, or None or bool.
    """

    end: int
    n_odd_tuples: int


def check_pickle(
    file: BinaryIO, n_bytes: int, *, progress: Callable[[int, int], None] | None = None
) -> Checked:
    """Read the whole stream as tokens, up to its STOP.

    ``file`` is seekable and positioned anywhere. Raises UnsafePickleError for an opcode that names,
    calls or builds anything, or requests absurd memory; MalformedSnapshotError for one that no
    pickler writes in a snapshot; TruncatedFileError where the stream ends before its STOP.
    """
    entry, n_odd, scalar_run = 0, 0, 0
    while entry < n_bytes:
        file.seek(entry)
        data = file.read(_CHUNK_BYTES + _LOOKAHEAD_BYTES)
        if len(data) < min(_CHUNK_BYTES, n_bytes - entry):
            raise TruncatedFileError(
                f"the file ends at byte {entry + len(data)}, and had {n_bytes} bytes when it was opened: "
                "convert it when the job has written all of it"
            )
        chunk = _Chunk(data, entry, min(_CHUNK_BYTES, n_bytes - entry), n_bytes)
        entry, scalar_run, stop, found = chunk.check(scalar_run)
        n_odd += found
        if stop >= 0:
            return Checked(stop + 1, n_odd)
        if progress:
            progress(min(entry, n_bytes), n_bytes)
    raise TruncatedFileError.of("the pickle", n_bytes)


class _Chunk:
    """A stretch of the stream in memory, whose first byte is known to begin a token."""

    def __init__(self, data: bytes, base: int, n_bytes: int, n_stream_bytes: int) -> None:
        self.data = data
        self.base = base
        self.n_bytes = n_bytes
        self.n_stream_bytes = n_stream_bytes
        self.codes = np.frombuffer(data + bytes(_LOOKAHEAD_BYTES), np.uint8)

    def check(self, scalar_run: int) -> tuple[int, int, int, int]:
        """Walk the chunk: (offset of the next token, scalar run, STOP or -1, odd tuples)."""
        n_lane_bytes = min(max(self.n_bytes // 8192, _MIN_LANE_BYTES), _MAX_LANE_BYTES)
        starts = np.arange(0, self.n_bytes, n_lane_bytes, dtype=np.int64)
        ends = np.minimum(starts + n_lane_bytes, self.n_bytes)
        estimates, runs = self._estimate_entries(starts)
        runs[0] = scalar_run
        walk = self._walk(estimates, ends, runs)
        found = self._follow(walk, estimates, runs, ends)
        self._refuse_emptiness((found[0] if found[2] < 0 else found[2] + 1) - self.base)
        return found

    def _refuse_emptiness(self, end: int) -> None:
        """Refuse a chunk of too many containers, up to its last token; the compiled core counts the same."""
        end = min(end, _CHUNK_BYTES)
        n_containers = sum(self.data.count(opcode, 0, end) for opcode in _EMPTY_CONTAINERS)
        if n_containers > max(end // _MIN_CONTAINER_BYTES, _FEW_CONTAINERS):
            raise UnsafePickleError(
                f"from byte {self.base} on, the pickle is little more than empty containers, which would "
                "take 100 times the memory of the file: not read"
            )

    def _estimate_entries(self, starts: Int64Column) -> tuple[Int64Column, Int64Column]:
        leads = np.maximum(starts - _LEAD_BYTES, 0)
        walk = self._walk(leads, starts, np.zeros_like(leads))
        return walk.exit, walk.scalar_run

    def _follow(
        self, walk: _Walk, estimates: Int64Column, runs: Int64Column, ends: Int64Column
    ) -> tuple[int, int, int, int]:
        """Chain the lanes from the chunk's first token; walk wrongly estimated ones again."""
        position, n_odd, run = 0, 0, int(runs[0])
        lanes = zip(ends.tolist(), estimates.tolist(), runs.tolist(), walk.rows(), strict=True)
        for end, estimate, estimated_run, found in lanes:
            if position >= end:
                continue
            if position != estimate or _as_counted(run) != _as_counted(estimated_run):
                found = self._walk_alone(position, end, run)
            position, run, stop, refused, odd = found
            n_odd += odd
            if refused >= 0 and (stop < 0 or refused < stop):
                self._refuse(refused)
            if stop >= 0:
                return self.base + position, run, self.base + stop, n_odd
        return self.base + position, run, -1, n_odd

    def _walk_alone(self, position: int, end: int, run: int) -> tuple[int, int, int, int, int]:
        """Walk one lane token by token, up to its first STOP or refusal; what _walk finds."""
        n_odd = 0
        for at, code, following in _tokens(self.codes, position, end):
            role = int(op.ROLE[code])
            n_argument = following - at - int(op.HEAD_BYTES[code])
            if role == op.STOP:
                return following, run, at, -1, n_odd
            if (
                role == op.REFUSED
                or (role == op.MEMO_INDEX and _count(self.codes, at + 1, 4) > self.n_stream_bytes)
                or (code in op.INTEGER_PREFIX_BYTES and n_argument > _MAX_INTEGER_BYTES)
            ):
                return following, run, -1, at, n_odd
            n_odd += role == op.TUPLE and not _LEAST_RUN[code] <= run <= _MOST_RUN[code]
            packed = int(_PACKED[code])
            run -= role == op.FRAME
            run = (run + 1 if packed & _SCALAR_BIT else 0) + (_MARKED if packed & _MARK_BIT else 0)
            position = following
        return position, run, -1, -1, n_odd

    def _walk(self, start: Int64Column, end: Int64Column, run: Int64Column) -> _Walk:
        """Walk every lane from ``start`` until at or beyond ``end``, all in step."""
        n = len(start)
        none = np.full(n, -1, np.int64)
        found = _Walk(start.copy(), run.copy(), none, none.copy(), np.zeros(n, np.int64))
        lanes = np.flatnonzero(start < end)
        position, end, run = start[lanes], end[lanes], run[lanes]
        while len(lanes):
            packed = _PACKED.take(self.codes.take(position, mode="clip"))
            step = (packed & 31).astype(np.int64)
            special = np.flatnonzero(packed & 0xE0 >= op.COUNTED << 5)
            if len(special):
                self._visit(found, lanes[special], position[special], step, special, run)
            run = (run + 1) * ((packed & _SCALAR_BIT) != 0) + _MARKED * ((packed & _MARK_BIT) != 0)
            position = position + step
            done = position >= end
            if done.any():
                found.exit[lanes[done]] = position[done]
                found.scalar_run[lanes[done]] = run[done]
                going = ~done
                lanes, position, end, run = lanes[going], position[going], end[going], run[going]
        return found

    def _visit(
        self,
        found: _Walk,
        lanes: Int64Column,
        position: Int64Column,
        step: Int64Column,
        rows: Int64Column,
        run: Int64Column,
    ) -> None:
        """Handle the tokens of one step that are more than a fixed number of bytes."""
        code = self.codes.take(position, mode="clip")
        role = op.ROLE[code]
        refused = role == op.REFUSED
        counted = role == op.COUNTED
        if counted.any():
            n_argument = self._counts(position[counted], op.PREFIX_BYTES[code[counted]])
            step[rows[counted]] += n_argument
            refused[counted] |= n_argument > _MAX_ARGUMENT_BYTES[code[counted]]
        memo = role == op.MEMO_INDEX
        if memo.any():
            # Every memo entry costs the file a byte at least.
            refused[memo] |= self._counts(position[memo], np.full(memo.sum(), 4)) > self.n_stream_bytes
        _keep_first(found.first_stop, lanes, position, role == op.STOP)
        _keep_first(found.first_refused, lanes, position, refused)
        tuples = np.flatnonzero(role == op.TUPLE)
        if len(tuples):
            before, opcode = run[rows[tuples]], code[tuples]
            is_odd = (before < _LEAST_RUN[opcode]) | (before > _MOST_RUN[opcode])
            found.n_odd_tuples[lanes[tuples]] += is_odd & (found.first_stop[lanes[tuples]] < 0)
        # A frame may begin between the numbers of a tuple; it counts as a scalar, so take it off again.
        run[rows[role == op.FRAME]] -= 1

    def _counts(self, position: Int64Column, width: Int64Column) -> Int64Column:
        """Read the little-endian counts of 1, 4 or 8 bytes that follow the opcodes."""
        following = self.codes.take(position[:, None] + _EIGHT_BYTES, mode="clip")
        count: NDArray[np.uint64] = following.view("<u8")[:, 0] & _LOW_BYTES[width]
        return np.asarray(np.minimum(count, _HUGE_COUNT), np.int64)

    def _refuse(self, position: int) -> None:
        """Raise the error for the refused token at ``position``, naming what it requests."""
        code = self.data[position]
        offset = self.base + position
        if bytes([code]) in op.CODE_OPCODES:
            name = op.CODE_OPCODES[bytes([code])]
            requested = self._requested_name(position)
            raise UnsafePickleError(
                f"the pickle refers to {requested} (opcode {name} at byte {offset}); a snapshot has plain "
                "values only, and nothing was imported. If the extra object is yours, dump "
                "torch.cuda.memory._snapshot() without it"
            )
        if op.ROLE[code] == op.MEMO_INDEX:
            raise UnsafePickleError(
                f"the opcode at byte {offset} requests a memo larger than the file: not read"
            )
        if code in op.INTEGER_PREFIX_BYTES:
            raise MalformedSnapshotError(f"an integer of more than 64 bits at byte {offset}")
        raise MalformedSnapshotError(
            f"byte {offset} is 0x{code:02x}, an opcode that no snapshot has: the file is damaged, or "
            "was pickled with protocol 0 or 1 (dump it again with protocol 2 to 5)"
        )

    def _requested_name(self, position: int) -> str:
        if self.data[position : position + 1] in (b"c", b"i"):
            lines = self.data[position + 1 : position + 513].split(b"\n")
            return ".".join(_shown(line) for line in lines[:2])
        if self.data[position : position + 1] == b"\x93":
            return ".".join(self._strings_before(position)) or "a global"
        if self.data[position : position + 1] in (b"P", b"Q"):
            return "a persistent id"
        return "an object to be built"

    def _strings_before(self, position: int) -> list[str]:
        """Return the two strings on top of the stack, from the memo too; empty without both in the chunk."""
        top: list[str | None] = [None, None]
        memo: dict[int, str | None] = {}
        for at, code, end in _tokens(self.codes, 0, position):
            width = _MEMO_INDEX_BYTES.get(code)
            index = len(memo) if width is None else _count(self.codes, at + 1, width)
            if code in op.STRING_PREFIX_BYTES:
                top = [top[1], _shown(self.data[at + 1 + op.STRING_PREFIX_BYTES[code] : end])]
            elif code in b"\x94qr":
                memo[index] = top[1]
            elif code in b"hj":
                # MEMOIZE counts from the stream's beginning, which is in the first chunk only.
                top = [top[1], None if self.base else memo.get(index)]
            elif code != ord("\x95"):
                top = [None, None]
        known = [text for text in top if text is not None]
        return known if len(known) == 2 else []


def _keep_first(first: Int64Column, lanes: Int64Column, position: Int64Column, mask: BoolColumn) -> None:
    if mask.any():
        new = mask & (first[lanes] < 0)
        first[lanes[new]] = position[new]


def _count(codes: NDArray[np.uint8], position: int, n_bytes: int) -> int:
    return int.from_bytes(codes[position : position + n_bytes].tobytes(), "little")


def _tokens(codes: NDArray[np.uint8], position: int, end: int) -> Iterator[tuple[int, int, int]]:
    """Walk one stretch token by token: (offset, opcode, offset of the next)."""
    while position < end:
        code = int(codes[position])
        following = position + int(op.HEAD_BYTES[code])
        width = int(op.PREFIX_BYTES[code])
        if width:
            following += _count(codes, position + 1, width)
        yield position, code, following
        position = following


def _shown(text: bytes) -> str:
    return shown(text[:1000].decode("utf-8", "backslashreplace"))
