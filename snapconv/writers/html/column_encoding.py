"""Columns and values as text for a page: small integers, their bytes apart, deflated, in base64.

``web/src/columns.ts`` reads what this writes. A column's directory entry has its name, its length, how many
bytes a number has, and what the numbers are: themselves, differences to the one before, or themselves with a
sign. A sign is in the lowest bit.
"""

import base64
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.json_text import write_json
from snapconv.units import printable, shortened

# What a column's numbers are.
_PLAIN, _DIFFERENCES, _SIGNED = 0, 1, 2
# zlib's own middle way; 9 takes several times as long and saves a hundredth.
_LEVEL = 6
# Of larger columns so many bytes are tried: where nothing repeats, to look for it takes most of the time.
_PROBE_BYTES = 1 << 15
# Symbols of C++ templates run to thousands of characters, a note may have a million.
MOST_TEXT = 600


@dataclass(frozen=True, slots=True)
class EncodedColumn:
    """One column of a page; ``width`` is the number of bytes of a number, ``base64`` the deflated bytes."""

    n: int
    width: int
    kind: int
    base64: bytes

    def entry(self) -> list[int]:
        """Return what the page's directory has of it."""
        return [self.n, self.width, self.kind]


def encode_column(values: NDArray[Any], *, differences: bool = False, signed: bool = False) -> EncodedColumn:
    """Encode whole numbers of 0 and more, or with ``differences`` or ``signed`` any, in few bytes."""
    numbers = np.asarray(values).astype(np.int64).reshape(-1)
    if differences:
        numbers = np.diff(numbers, prepend=np.int64(0))
    if differences or signed:
        numbers = (numbers << 1) ^ (numbers >> 63)
    unsigned = numbers.view(np.uint64)
    most = int(unsigned.max()) if len(unsigned) else 0
    width = next(width for width in (1, 2, 4, 8) if most < 1 << 8 * width)
    narrow = unsigned.astype(f"<u{width}")
    # The high bytes of neighbours are mostly equal: together they take next to no space.
    apart = np.ascontiguousarray(narrow.view(np.uint8).reshape(-1, width).T)
    kind = _DIFFERENCES if differences else _SIGNED if signed else _PLAIN
    return EncodedColumn(len(numbers), width, kind, _packed(apart.tobytes(), _strategy(apart)))


def encode_values(values: object) -> bytes:
    """Encode plain values: JSON, deflated, in base64."""
    return _packed(write_json(values))


def page_text(text: str) -> str:
    """Write a text of a file as a page shows it: no longer than a person reads, nothing invisible in it."""
    return printable(shortened(text, MOST_TEXT))


def _strategy(planes: NDArray[np.uint8]) -> int:
    """How to deflate a column: by what repeats, or where that is no gain, by how often each byte occurs.

    The middle of the lowest bytes that are not all the same decides: the higher ones repeat more.
    """
    n = planes.shape[1]
    if n <= 2 * _PROBE_BYTES:
        return zlib.Z_DEFAULT_STRATEGY
    for plane in planes[:, (n - _PROBE_BYTES) // 2 :][:, :_PROBE_BYTES]:
        if (plane != plane[0]).any():
            probe = plane.tobytes()
            usual, fast = (len(_deflated(probe, way)) for way in (zlib.Z_DEFAULT_STRATEGY, zlib.Z_RLE))
            return zlib.Z_RLE if fast <= 1.02 * usual else zlib.Z_DEFAULT_STRATEGY
    return zlib.Z_DEFAULT_STRATEGY


def _deflated(data: bytes, strategy: int) -> bytes:
    packer = zlib.compressobj(_LEVEL, strategy=strategy)
    return packer.compress(data) + packer.flush()


def _packed(data: bytes, strategy: int = zlib.Z_DEFAULT_STRATEGY) -> bytes:
    return base64.b64encode(_deflated(data, strategy))
