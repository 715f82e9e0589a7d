"""Rows of numbers -> pages of a SQLite file, made by the compiled core.

SQLite takes a microsecond for every row. So a table of millions is created empty, and gets its rows
when the file is closed: leaves behind the other pages, and above them pages of references, up to
the root that SQLite gave it. The format is https://www.sqlite.org/fileformat2.html; the twin is
SQLite itself.
"""

import ctypes
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from snapconv.columns import Int64Column, count_of
from snapconv.native.library import address

PAGE_BYTES = 4096
# A piece of so many rows takes the core a millisecond, and two megabytes.
CHUNK_ROWS = 4096
# SQLite has its locks in this page, and nothing else.
_LOCK_PAGE = (1 << 30) // PAGE_BYTES + 1
# A page has room for 272 references of up to 15 bytes.
_MOST_CHILDREN = 256
_PAGE_OF_REFERENCES = 5
_N_PAGES_AT = 28
_NULL, _INTEGER, _REAL = range(3)
_NUMBER_BYTES = 8
# The bytes of a row beside its numbers: sizes and key in front, and its place in the page.
_ROW_BYTES = 20
# The number of a page, and that of its last row.
_Child = tuple[int, int]


@dataclass(frozen=True, slots=True)
class NumberRows:
    """The columns of a table but for its key, which counts from 0; None is a column of NULL alone.

    ``stand_ins`` has the number that means NULL in each column.
    """

    columns: Sequence[NDArray[np.generic] | None]
    stand_ins: Sequence[int | None]
    n_rows: int

    def cells(self, start: int, stop: int) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        """Return the values of some rows, row by row, and their kinds as in core.h."""
        shape = stop - start, len(self.columns)
        values = np.zeros(shape, np.int64)
        kinds = np.full(shape, _INTEGER, np.uint8)
        for i, (column, stand_in) in enumerate(
            zip(self.columns, self.stand_ins, strict=True)
        ):
            if column is None:
                kinds[:, i] = _NULL
                continue
            part = column[start:stop]
            if part.dtype.kind == "f":
                # Most probabilities are 1, which takes no byte as a whole number.
                reals = part.astype(np.float64)
                values[:, i] = np.where(reals == 1, 1, reals.view(np.int64))
                known_kinds = np.where(reals == 1, _INTEGER, _REAL)
                kinds[:, i] = np.where(np.isnan(reals), _NULL, known_kinds)
            else:
                values[:, i] = part
            if stand_in is not None:
                kinds[part == stand_in, i] = _NULL
        return values, kinds


def append_rows(
    compiled: ctypes.CDLL, path: Path, root: int, rows: NumberRows
) -> Iterator[int]:
    """Write the rows of a table that a closed file has empty; yield how many, a piece at a time.

    ``root`` is the number of its page.
    """
    with path.open("r+b") as file:
        pages = _Pages(file)
        children: list[_Child] = []
        start = 0
        while start < rows.n_rows:
            stop = min(start + CHUNK_ROWS, rows.n_rows)
            leaves, row_ends = _leaves(compiled, rows, start, stop)
            if stop < rows.n_rows:  # the last page has room for rows of the next piece
                leaves = leaves[:-1]
                row_ends = row_ends[:-1]
            numbers = pages.append(leaves)
            last_rows = start + row_ends - 1
            children += zip(numbers.tolist(), last_rows.tolist(), strict=True)
            yield int(row_ends[-1])
            start += int(row_ends[-1])
        while len(children) > _MOST_CHILDREN:
            children = list(_next_level(pages, children))
        pages.finish(root, _page_of_references(children))


def _leaves(
    compiled: ctypes.CDLL, rows: NumberRows, start: int, stop: int
) -> tuple[NDArray[np.uint8], Int64Column]:
    """Return pages with some rows, and how many of these are in each and those before it."""
    values, kinds = rows.cells(start, stop)
    n_rows, n_columns = values.shape
    most_bytes = n_columns * (_NUMBER_BYTES + 1) + _ROW_BYTES
    n_pages = n_rows // (PAGE_BYTES // most_bytes - 1) + 1
    pages = np.zeros((n_pages, PAGE_BYTES), np.uint8)
    row_ends = np.zeros(n_pages, np.int64)
    cells = address(values), address(kinds)
    n_used = compiled.snapconv_table_pages(
        n_rows, n_columns, *cells, start, n_pages, address(pages), address(row_ends)
    )
    return pages[:n_used], row_ends[:n_used]


class _Pages:
    """The pages of a file, to which others are added."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._n_pages = file.seek(0, 2) // PAGE_BYTES

    def append(self, pages: NDArray[np.uint8]) -> Int64Column:
        """Write new pages, and return their numbers."""
        first = self._n_pages + 1
        numbers = np.arange(first, first + len(pages))
        if first <= _LOCK_PAGE:
            numbers += numbers >= _LOCK_PAGE
        n_before = count_of(numbers < _LOCK_PAGE)
        for part in (slice(n_before), slice(n_before, None)):
            if len(numbers[part]):
                self.write(int(numbers[part][0]), pages[part].tobytes())
        self._n_pages = int(numbers[-1])
        return numbers

    def write(self, number: int, content: bytes) -> None:
        """Write pages, from the one with a number on."""
        self._file.seek((number - 1) * PAGE_BYTES)
        self._file.write(content)

    def finish(self, root: int, content: bytes) -> None:
        """Write the root of the new pages, and into the file's header how many there are."""
        self.write(root, content)
        self._file.seek(_N_PAGES_AT)
        self._file.write(struct.pack(">I", self._n_pages))


def _next_level(pages: _Pages, children: Sequence[_Child]) -> Iterator[_Child]:
    """Write pages that refer to others, as many to each, and yield them in their place."""
    n_parents = -(-len(children) // _MOST_CHILDREN)
    for parent in range(n_parents):
        bounds = (len(children) * n // n_parents for n in (parent, parent + 1))
        part = children[slice(*bounds)]
        content = np.frombuffer(_page_of_references(part), np.uint8)
        yield int(pages.append(content[None])[0]), part[-1][1]


def _page_of_references(children: Sequence[_Child]) -> bytes:
    """Return a page that refers to others: the last in its header, the rest with their last row."""
    page = bytearray(PAGE_BYTES)
    end = PAGE_BYTES
    offsets = []
    for number, last_row in children[:-1]:
        cell = struct.pack(">I", number) + _varint(last_row)
        page[end - len(cell) : end] = cell
        end -= len(cell)
        offsets.append(end)
    header = (_PAGE_OF_REFERENCES, 0, len(offsets), end, 0, children[-1][0])
    struct.pack_into(f">BHHHBI{len(offsets)}H", page, 0, *header, *offsets)
    return bytes(page)


def _varint(value: int) -> bytes:
    """Return seven bits in a byte, the highest first."""
    groups = [value & 0x7F]
    while value := value >> 7:
        groups.append(value & 0x7F | 0x80)
    return bytes(reversed(groups))
