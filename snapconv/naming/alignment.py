"""Partners between two sequences of sizes, by order and size.

The alignment is the common subsequence with most bytes, found exactly for sequences of up to 20,000 by 20,000
after their common beginning; longer ones have no partners beyond it. It is independent of what the sizes
belong to.
"""

from dataclasses import dataclass

import numpy as np

from snapconv.columns import BoolColumn, Int64Column

# Cells of the table; two bits are kept of each, and a hundred million take a second.
_MAX_CELLS = 400_000_000


@dataclass(frozen=True, slots=True)
class Alignment:
    """The partner of every element of the second sequence in the first, -1 for none.

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
    """Find the best alignment that pairs as early as it can; ``first`` has a line per choice of sizes."""
    partner = np.full(len(second), -1, np.int64)
    # Sizes that the other side does not have pair with nothing: without them more ends are equal.
    rows = np.flatnonzero(np.isin(first, second).any(axis=0))
    columns = np.flatnonzero(np.isin(second, first))
    a, b = first[:, rows], second[columns]
    start = _n_alike(a, b)
    partner[columns[:start]] = rows[:start]
    if (len(rows) - start) * (len(columns) - start) <= _MAX_CELLS:
        inner = _by_table(a[:, start:], b[start:])
        paired = np.flatnonzero(inner >= 0)
        partner[columns[start + paired]] = rows[start + inner[paired]]
    return partner


def _n_alike(a: Int64Column, b: Int64Column) -> int:
    """Count the elements that are equal before the first that is not."""
    length = min(a.shape[1], len(b))
    differs = ~(a[:, :length] == b[:length]).any(axis=0)
    return int(differs.argmax()) if differs.any() else length


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
