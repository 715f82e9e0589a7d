"""Columns and values as text for a page: small integers, their bytes apart, deflated, in base64.

``web/src/columns.ts`` reads what this writes. A column's directory entry has its name, its length,
how many bytes a number has, and what the numbers are: themselves, differences to the one before, or
themselves with a sign. A sign is in the lowest bit.
"""

import base64
import hashlib
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.json_text import write_json
from snapconv.units import printable, shortened

# The numbers of a column are themselves, differences to the one before, or signed.
_PLAIN, _DIFFERENCES, _SIGNED = 0, 1, 2
# Columns whose names begin so are written as differences, since each value is close to the one
# before it. Of the others, only _SIGNED_COLUMN has numbers below 0.
_OF_DIFFERENCES = (
    "addr",
    "alloc",
    "iteration_first",
    "level_",
    "named_row",
    "phase_first",
    "segment_addr",
    "span_first",
)
_SIGNED_COLUMN = "kind_rounding"
# zlib's own middle way; 9 takes several times as long and saves a hundredth.
_LEVEL = 6
# Symbols of C++ templates run to thousands of characters, a note may have a million.
MOST_TEXT = 600


@dataclass(frozen=True, slots=True)
class EncodedColumn:
    """One column of a page: ``n`` numbers of ``width`` bytes, deflated."""

    n: int
    width: int
    kind: int
    base64: bytes

    def entry(self) -> list[int]:
        """Return the column's values in the page's directory."""
        return [self.n, self.width, self.kind]


def encode_column(
    values: NDArray[Any], *, differences: bool = False, signed: bool = False
) -> EncodedColumn:
    """Encode whole numbers in few bytes; only ``differences`` or ``signed`` may be below 0."""
    numbers = np.asarray(values).astype(np.int64).reshape(-1)
    kind = _SIGNED if signed else _PLAIN
    if differences:
        kind = _DIFFERENCES
        numbers = np.diff(numbers, prepend=np.int64(0))
    if kind != _PLAIN:
        numbers = (numbers << 1) ^ (numbers >> 63)
    unsigned = numbers.view(np.uint64)
    largest = int(unsigned.max(initial=0))
    width = next(width for width in (1, 2, 4, 8) if largest < 1 << 8 * width)
    number_bytes = unsigned.astype(f"<u{width}").view(np.uint8).reshape(-1, width)
    # The high bytes of neighbours are mostly equal: together they take next to no space.
    return EncodedColumn(len(numbers), width, kind, _packed(number_bytes.T.tobytes()))


def encode_columns(columns: Mapping[str, NDArray[Any]]) -> dict[str, EncodedColumn]:
    """Encode columns, each as its name demands."""
    encoded = {}
    for name, values in columns.items():
        is_alike = name.startswith(_OF_DIFFERENCES)
        is_signed = name == _SIGNED_COLUMN
        encoded[name] = encode_column(values, differences=is_alike, signed=is_signed)
    return encoded


def encode_values(values: object) -> bytes:
    """Encode plain values: JSON, deflated, in base64; all texts as a page shows them."""
    return _packed(write_json(_as_shown(values)))


def _as_shown(value: Any) -> Any:
    if isinstance(value, str):
        return page_text(value)
    if isinstance(value, dict):
        return {page_text(key): _as_shown(item) for key, item in value.items()}
    return list(map(_as_shown, value)) if isinstance(value, (list, tuple)) else value


def page_text(text: str) -> str:
    """Write a text of a file as a page shows it: shortened, and nothing invisible in it."""
    return printable(shortened(text, MOST_TEXT))


def content_hash(content: bytes) -> str:
    """Return the hash by which a page's policy allows a program or a style."""
    return "sha256-" + base64.b64encode(hashlib.sha256(content).digest()).decode()


def _packed(data: bytes) -> bytes:
    return base64.b64encode(zlib.compress(data, _LEVEL))
