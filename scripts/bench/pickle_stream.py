"""Turns values, given piece by piece, into the bytes that CPython's C pickler writes with protocol 4.

Nothing is kept but the open frame and the texts, so a file may be larger than the memory. Two
pieces of text are one object only if the caller says so: sharing is given, not found. Knows nothing
of snapshots.
"""

import io
import pickletools
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

# Modules/_pickle.c, Python 3.10 to 3.13: FRAME_SIZE_TARGET, FRAME_SIZE_MIN, BATCHSIZE.
FRAME_TARGET_BYTES = 64 * 1024
FRAME_MIN_BYTES = 4
BATCH_LENGTH = 1000

# Opcodes that complete an object begun before, so that the pickler ends no frame in front of them.
_COMPLETING = {"MEMOIZE", "MARK", "SETITEM", "SETITEMS", "APPEND", "APPENDS", "TUPLE2", "STOP"}


def integer(value: int) -> bytes:
    """Encode an integer in the shortest of the pickler's forms."""
    if 0 <= value <= 0xFF:
        return b"K" + value.to_bytes(1, "little")
    if 0 <= value <= 0xFFFF:
        return b"M" + value.to_bytes(2, "little")
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + value.to_bytes(4, "little", signed=True)
    n_bytes = (value.bit_length() >> 3) + 1
    return b"\x8a" + bytes([n_bytes]) + value.to_bytes(n_bytes, "little", signed=True)


def fetch(memo_id: int) -> bytes:
    """Encode a reference to an object that stands in the memo."""
    if memo_id < 256:
        return b"h" + bytes([memo_id])
    return b"j" + memo_id.to_bytes(4, "little")


def _object_starts(opcodes: bytes) -> Iterator[int]:
    """Find where in some whole opcodes the pickler begins to save an object."""
    for opcode, _, position in pickletools.genops(io.BytesIO(opcodes + b".")):
        if opcode.name not in _COMPLETING and position is not None:
            yield position


class PickleStream:
    """A pickle that is being written: its memo numbering, its shared texts and its open frame.

    The methods that return bytes number the memo as they are called, so their results must be
    written in that order.
    """

    def __init__(self, file: BinaryIO) -> None:
        file.write(b"\x80\x04")
        self._file = file
        self._frame = bytearray()
        self._texts: dict[str, int] = {}
        self.n_memoised = 0

    def write(self, opcodes: bytes) -> None:
        """Append whole opcodes, ending the frame before the first object that finds it full."""
        if len(self._frame) + len(opcodes) < FRAME_TARGET_BYTES:
            self._frame += opcodes
            return
        n_written = 0
        for position in _object_starts(opcodes):
            if len(self._frame) + position - n_written >= FRAME_TARGET_BYTES:
                self._frame += opcodes[n_written:position]
                n_written = position
                self._end_frame()
        self._frame += opcodes[n_written:]

    def close(self) -> None:
        """End the pickle; the file stays open."""
        self._frame += b"."
        self._end_frame()

    def _end_frame(self) -> None:
        if len(self._frame) >= FRAME_MIN_BYTES:
            self._file.write(b"\x95" + struct.pack("<Q", len(self._frame)))
        self._file.write(self._frame)
        self._frame.clear()

    def memoise(self) -> bytes:
        """Give the object begun last the next number of the memo."""
        self.n_memoised += 1
        return b"\x94"

    def text(self, text: str) -> bytes:
        """Encode a text that is one object wherever it stands, such as a dictionary's key."""
        memo_id = self._texts.get(text)
        if memo_id is not None:
            return fetch(memo_id)
        self._texts[text] = self.n_memoised
        return self._define(text)

    def new_text(self, text: str) -> bytes:
        """Encode a text that is an object of its own; CPython has the shortest ones only once."""
        return self._define(text) if len(text) > 1 else self.text(text)

    def _define(self, text: str) -> bytes:
        encoded = text.encode("utf-8", "surrogatepass")
        if len(encoded) < 256:
            return b"\x8c" + bytes([len(encoded)]) + encoded + self.memoise()
        return b"X" + struct.pack("<I", len(encoded)) + encoded + self.memoise()

    def begin_dict(self) -> bytes:
        """Begin a dictionary of two keys or more; keys and values follow, and ``u`` ends it."""
        return b"}" + self.memoise() + b"("

    def pair(self, first: int, second: int) -> bytes:
        """Encode a tuple of two numbers."""
        return integer(first) + integer(second) + b"\x86" + self.memoise()

    def settings(self, value: object) -> bytes:
        """Encode flags, numbers, texts and dictionaries of them, which share their texts."""
        if isinstance(value, dict):
            parts = [self.begin_dict()]
            for key, item in value.items():
                parts += [self.text(key), self.settings(item)]
            return b"".join(parts) + b"u"
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            return integer(value)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        return self.text(str(value))

    def list_pieces(self, length: int, items: Iterable[bytes]) -> Iterator[bytes]:
        """Encode a list in pieces; every item is fetched just before its turn to be numbered."""
        yield b"]" + self.memoise()
        if length == 1:
            yield b"".join(items) + b"a"
            return
        for n_before, item in enumerate(items):
            if n_before % BATCH_LENGTH == 0:
                item = b"(" + item
            if (n_before + 1) % BATCH_LENGTH == 0 or n_before + 1 == length:
                item += b"e"
            yield item
