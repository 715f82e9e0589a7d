"""Two sequences of sizes -> which of the one is which of the other, by order and size.

The alignment is the common subsequence with most bytes, found exactly up to sequences of 20,000 by 20,000. It
independent of what the sizes belong to.
"""

from bisect import bisect_left
from dataclasses import dataclass

import numpy as np

from snapconv.columns import BoolColumn, Int64Column

# Cells of the table; two bits are kept of each, and a hundred million take a second.
_MAX_CELLS = 400_000_000


@dataclass(frozen=True, slots=True)
class Alignment:
    """For every element of the second sequence, its partner in the first or -1.

    ``is_certain``: the earliest and the latest of all best alignments have this pair. Where all of the second
    sequence is paired, so do the others, which are between the two.
    """

    partner: Int64Column
    is_certain: BoolColumn


def align(first: Int64Column, second: Int64Column, *others: Int64Column) -> Alignment:
    """Pair equal sizes in order, as many bytes of the second sequence as possible.

    ``others`` are sizes that the elements of the first sequence may have instead.
    """
    sizes = np.stack((first, *others))
    partner = _earliest(sizes, second)
    mirrored = _earliest(sizes[:, ::-1], second[::-1])[::-1]
    latest = np.where(mirrored >= 0, len(first) - 1 - mirrored, -1)
    return Alignment(partner, (partner >= 0) & (partner == latest))


def _earliest(first: Int64Column, second: Int64Column) -> Int64Column:
    """The best alignment that pairs as early as it can; ``first`` has a line for every choice of sizes."""
    partner = np.full(len(second), -1, np.int64)
    # Sizes that the other side does not have pair with nothing: without them more ends are equal.
    rows = np.flatnonzero(np.isin(first, second).any(axis=0))
    columns = np.flatnonzero(np.isin(second, first))
    a, b = first[:, rows], second[columns]
    start = _n_alike(a, b)
    # Pairing the ends is as good, but not the earliest: only where the table would be too large otherwise.
    is_large = (len(rows) - start) * (len(columns) - start) > _MAX_CELLS
    end = _n_alike(a[:, start:][:, ::-1], b[start:][::-1]) if is_large else 0
    partner[columns[:start]] = rows[:start]
    inner = _core(a[:, start : len(rows) - end], b[start : len(b) - end])
    paired = np.flatnonzero(inner >= 0)
    partner[columns[start + paired]] = rows[start + inner[paired]]
    if end:
        partner[columns[-end:]] = rows[-end:]
    return partner


def _n_alike(a: Int64Column, b: Int64Column) -> int:
    """How many elements are equal before the first that is not."""
    length = min(a.shape[1], len(b))
    differs = ~(a[:, :length] == b[:length]).any(axis=0)
    return int(differs.argmax()) if differs.any() else length


def _core(a: Int64Column, b: Int64Column) -> Int64Column:
    if a.shape[1] * len(b) <= _MAX_CELLS:
        return _by_table(a, b)
    partner = np.full(len(b), -1, np.int64)
    begin_a = begin_b = 0
    n_cells_left = _MAX_CELLS
    # Too long for a table: sizes that occur once on either side keep the rest in place.
    for i, j in [*_anchors(a[0], b), (a.shape[1], len(b))]:
        n_cells = (i - begin_a) * (j - begin_b)
        if n_cells <= n_cells_left:
            n_cells_left -= n_cells
            found = _by_table(a[:, begin_a:i], b[begin_b:j])
            partner[begin_b:j] = np.where(found >= 0, found + begin_a, -1)
        if j < len(b):
            partner[j] = i
        begin_a, begin_b = i + 1, j + 1
    return partner


def _by_table(a: Int64Column, b: Int64Column) -> Int64Column:
    """Fill the table of best sums line by line, each line as a column of NumPy, and walk back through it."""
    n_lines = a.shape[1]
    partner = np.full(len(b), -1, np.int64)
    if not n_lines or not len(b):
        return partner
    lines = list(map(tuple, a.T.tolist()))
    places = {sizes: np.flatnonzero(np.isin(b, sizes)) for sizes in set(lines)}
    best = np.zeros(len(b) + 1, np.int64)
    n_packed = (len(b) + 7) // 8
    rose_above, rose_left = (np.empty((n_lines, n_packed), np.uint8) for _ in range(2))
    for i, sizes in enumerate(lines):
        at = places[sizes]
        line = best.copy()
        line[at + 1] = np.maximum(best[at + 1], best[at] + b[at])
        np.maximum.accumulate(line, out=line)
        rose_above[i] = np.packbits(line[1:] > best[1:])
        rose_left[i] = np.packbits(line[1:] > line[:-1])
        best = line
    i, j = n_lines - 1, len(b) - 1
    while i >= 0 and j >= 0:
        mask = 128 >> (j & 7)
        if not rose_above[i, j >> 3] & mask:
            i -= 1
        elif not rose_left[i, j >> 3] & mask:
            j -= 1
        else:
            partner[j] = i
            i, j = i - 1, j - 1
    return partner


def _anchors(a: Int64Column, b: Int64Column) -> list[tuple[int, int]]:
    """The longest rising chain of sizes that occur once in either sequence."""
    found, first_a, counts = np.unique(a, return_index=True, return_counts=True)
    at_a = dict(zip(found[counts == 1].tolist(), first_a[counts == 1].tolist(), strict=True))
    found, first_b, counts = np.unique(b, return_index=True, return_counts=True)
    once = zip(found[counts == 1].tolist(), first_b[counts == 1].tolist(), strict=True)
    pairs = sorted((j, at_a[size]) for size, j in once if size in at_a)
    ends: list[int] = []
    chains: list[int] = []
    before = [-1] * len(pairs)
    for number, (_, i) in enumerate(pairs):
        place = bisect_left(ends, i)
        before[number] = chains[place - 1] if place else -1
        ends[place : place + 1] = [i]
        chains[place : place + 1] = [number]
    chain = []
    number = chains[-1] if chains else -1
    while number >= 0:
        chain.append((pairs[number][1], pairs[number][0]))
        number = before[number]
    return chain[::-1]
