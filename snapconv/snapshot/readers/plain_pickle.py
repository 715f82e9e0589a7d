"""A pickle of plain values, checked token by token before one object is built of it.

Python's C unpickler is fast and trusts its input: a 15-byte file makes it allocate gigabytes for
the memo, and tuples nested in a dictionary's key keep it busy for ever (measured on CPython 3.11).
So the stream is first read as tokens, up to its STOP, and refused at the first that a snapshot has
no use for, by its byte offset. Then the C unpickler builds the values, with both of its doors to
code shut as well; a pickle with tuples that no snapshot has goes through Python's slower one, which
builds lists for them.

Python's pickler writes snapshots with protocols 2 to 5, torch's own with protocol 2
(torch/csrc/jit/serialization/pickler.cpp): containers, strings, numbers and the memo, and nothing
else.
"""

import io
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar

from snapconv.errors import (
    MalformedSnapshotError,
    SnapconvError,
    TruncatedFileError,
    UnsafePickleError,
)
from snapconv.units import shown

# A frame may begin between the numbers of a tuple.
_FRAME = rb"\x95.{8}"
_SCALAR = rb"(?:K.|M..|J.{4}|[N\x88\x89])(?:%b)?" % _FRAME
# Integers of up to 64 bits have 9 bytes.
_COUNTED_BYTES = [rb"%b.{%d}" % (re.escape(bytes([n])), n) for n in range(10)]
_LONG = rb"\x8a(?:%b)" % rb"|".join(_COUNTED_BYTES)
# A snapshot's tuples are pairs of small numbers (pool ids): three scalars at most stand just before
# the opcode. Any other is odd: its hash takes time, exponential where tuples share tuples.
# A memo of 2^19 entries is 4 MiB.
_TOKENS = rb"|".join((
    rb"h.", rb"[\]}aeus)0-2dl\x94\x8f\x90]", rb"j....", rb"[q\x80].", rb"r..[\x00-\x07]\x00", _LONG,
    rb"\((?:(?:%b)?(?:%b){0,3}t)?" % (_FRAME, _SCALAR),
    rb"%b(?:\x85|%b(?:\x86|%b\x87))?" % (_SCALAR, _SCALAR, _SCALAR), rb"[G\x95].{8}",
))  # fmt: skip
# 30 ns a token. The bound is for the memory of the matcher, which remembers the beginning of each.
_RUN = rb"(?:%b){0,4000}" % _TOKENS
_ARGUMENTS = b"hqjrGKMJ\x80\x95"
_LONGS = (pickle.LONG1, pickle.LONG4)
# 64 bits, and a byte for the sign.
_MOST_LONG_BYTES = 9
# The opcodes of values that begin with a count of bytes, and the bytes of the count.
_COUNT_BYTES = {
    pickle.SHORT_BINUNICODE: 1,
    pickle.SHORT_BINBYTES: 1,
    pickle.SHORT_BINSTRING: 1,
    pickle.LONG1: 1,
    pickle.BINUNICODE: 4,
    pickle.BINBYTES: 4,
    pickle.BINSTRING: 4,
    pickle.LONG4: 4,
    pickle.BINUNICODE8: 8,
    pickle.BINBYTES8: 8,
}
_TUPLES = (pickle.TUPLE, pickle.TUPLE1, pickle.TUPLE2, pickle.TUPLE3)
# Opcodes that name, call or build something.
_CODE = b"c\x93io\x81\x92Rb\x82\x83\x84PQ\x97\x98"
# An empty list, dictionary or set takes 70 to 220 bytes for its opcode of one. Torch's own, with
# what is in them, take 15 bytes of the file each at least: a stream with four times as many is
# refused.
_EMPTY_CONTAINERS = (b"]", b"}", b"\x8f")
_MIN_CONTAINER_BYTES = 4
_FEW_CONTAINERS = 1_000_000


@dataclass(frozen=True, slots=True)
class Checked:
    """A safe stream: the offset just after its STOP, and how many of its tuples are odd."""

    end: int
    n_odd_tuples: int


def load_plain_pickle(file: BinaryIO, n_bytes: int) -> object:
    """Build the values of a pickle; bytes after its end are ignored.

    ``file`` is seekable and has ``n_bytes``. Raises what check_pickle raises, and
    MalformedSnapshotError for a stream whose opcodes make no sense together.
    """
    checked = check_pickle(file.read(n_bytes))
    file.seek(0)
    source = _Source(file, n_bytes)
    try:
        return _unpickler(source, has_odd_tuples=checked.n_odd_tuples > 0).load()
    except (SnapconvError, MemoryError):
        raise
    except Exception as error:
        # Damaged streams raise nearly everything: one boundary for all.
        raise MalformedSnapshotError(
            f"the pickle is damaged ({type(error).__name__}: {str(error)[:200]}); dump it again"
        ) from error
    finally:
        source.detach()  # the file stays open


def load_own_pickle(data: bytes) -> tuple[object, dict[int, Any]]:
    """Build the value of a pickle that the compiled core wrote; return it with the memo."""
    unpickler = _unpickler(_Source(io.BytesIO(data), len(data)), has_odd_tuples=False)
    value = unpickler.load()
    # Typeshed has the type of the Python twin of the unpickler.
    memo: Any = unpickler.memo.copy()
    return value, memo


# --- the check


def check_pickle(data: bytes) -> Checked:
    """Read the stream as tokens, up to its STOP.

    Raises UnsafePickleError for an opcode that names, calls or builds anything, or requests absurd
    memory; MalformedSnapshotError for one that no pickler writes in a snapshot; TruncatedFileError
    where the stream ends before its STOP.
    """
    # A run of harmless tokens is matched at once; the token behind it is looked at here.
    run = re.compile(_RUN, re.DOTALL)
    position = n_odd = 0
    while position <= len(data):
        start = position
        position = run.match(data, start).end()  # type: ignore[union-attr]  # it may be empty
        code = data[position : position + 1]
        if code in _COUNT_BYTES:
            position = _skip_counted(data, position)
        elif code == pickle.STOP:
            _refuse_emptiness(data, position + 1)
            return Checked(position + 1, n_odd)
        elif code in _TUPLES:
            n_odd += 1
            position += 1
        elif code == pickle.LONG_BINPUT and position + 5 <= len(data):
            # Every memo entry costs the file a byte at least.
            if int.from_bytes(data[position + 1 : position + 5], "little") > len(data):
                raise UnsafePickleError(
                    f"the opcode at byte {position} requests a memo larger than the file: not read"
                )
            position += 5
        elif start == position:  # no token here matches
            if code in _ARGUMENTS:  # the token is cut off, or the data has ended
                break
            _refuse(data, position, n_odd)
    raise TruncatedFileError.of("the pickle", len(data))


def _skip_counted(data: bytes, position: int) -> int:
    """Return the end of a value that begins with a count of its bytes."""
    code = data[position : position + 1]
    start = position + 1 + _COUNT_BYTES[code]
    count = int.from_bytes(data[position + 1 : start], "little")
    if code in _LONGS and count > _MOST_LONG_BYTES and start <= len(data):
        raise MalformedSnapshotError(f"an integer of more than 64 bits at byte {position}")
    return start + count


def _refuse_emptiness(data: bytes, end: int) -> None:
    """Refuse a stream of too many containers; the compiled core counts them too."""
    n_containers = sum(data.count(opcode, 0, end) for opcode in _EMPTY_CONTAINERS)
    if n_containers > max(end // _MIN_CONTAINER_BYTES, _FEW_CONTAINERS):
        raise UnsafePickleError(
            "the pickle is little more than empty containers, which would take 100 "
            "times the memory of the file: not read"
        )


def _refuse(data: bytes, position: int, n_odd: int) -> None:
    """Raise the error for the token at ``position``, naming what it requests."""
    code = data[position]
    if code not in _CODE:
        raise MalformedSnapshotError(
            f"byte {position} is 0x{code:02x}, an opcode that no snapshot has: the file is "
            "damaged, or was pickled with protocol 0 or 1 (dump it again with protocol 2 to 5)"
        )
    _refuse_emptiness(data, position)
    from pickletools import opcodes  # a large module

    begin = data[: position + 1024]  # a global may be named behind its opcode
    try:
        _unpickler(_Source(io.BytesIO(begin), len(begin)), has_odd_tuples=n_odd > 0).load()
        requested = ""
    except Exception as error:  # noqa: BLE001  # what comes before it may make no sense
        requested = str(error) if isinstance(error, UnsafePickleError) else ""
    requested = requested or "the pickle refers to an object to be built"
    name = next(opcode.name for opcode in opcodes if opcode.code == chr(code))
    raise UnsafePickleError(
        f"{requested} (opcode {name} at byte {position}); a snapshot has plain values "
        "only, and nothing was imported. If the extra object is yours, dump "
        "torch.cuda.memory._snapshot() without it"
    )


# --- the unpicklers


class _NoCode:
    """Refuses what the check refuses already: the second lock."""

    def find_class(self, module_name: str, global_name: str, /) -> object:
        raise UnsafePickleError(
            f"the pickle refers to {shown(f'{module_name}.{global_name}')}"
        )

    def persistent_load(self, pid: object) -> object:
        raise UnsafePickleError("the pickle refers to a persistent id")


class _PlainUnpickler(_NoCode, pickle.Unpickler):
    """Python's C unpickler without globals."""


def _list_of_last(n: int) -> Callable[[Any], None]:
    def load(unpickler: Any) -> None:
        unpickler.stack[-n:] = [unpickler.stack[-n:]]

    return load


class _ListUnpickler(_NoCode, pickle._Unpickler):
    """Python's own unpickler, five times slower, with lists in the place of tuples.

    A tuple can be a dictionary's key, and its hash is worked out anew each time: a file of 300
    bytes, tuples that contain the same tuple twice, 60 levels deep, would take years. A list cannot
    be a key.
    """

    dispatch: ClassVar[dict[int, Any]] = {
        **pickle._Unpickler.dispatch,
        pickle.TUPLE[0]: pickle._Unpickler.dispatch[pickle.LIST[0]],
        pickle.TUPLE1[0]: _list_of_last(1),
        pickle.TUPLE2[0]: _list_of_last(2),
        pickle.TUPLE3[0]: _list_of_last(3),
    }


class _Source(io.BufferedReader):
    """The file; a frame's length is read in one piece, whatever its value, so it is bounded here.

    From a file that it cannot peek into, the unpickler reads every number by a call: four times as
    long.
    """

    def __init__(self, file: BinaryIO, n_bytes: int) -> None:
        super().__init__(file, 1 << 20)  # type: ignore[arg-type]  # it needs readinto only
        self.n_bytes = n_bytes

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            size = self.n_bytes
        return super().read(min(size, self.n_bytes))


def _unpickler(source: _Source, *, has_odd_tuples: bool) -> Any:
    if has_odd_tuples:
        return _ListUnpickler(source)
    return _PlainUnpickler(source)
