"""Pairing and the walk back in compiled code: the same columns in and out as their twins in NumPy and Python.

Each gives None where the core finds something odd; then the twin does the work from the beginning. A call of
the core is short, for some events, so that Ctrl-C never waits long.
"""

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from snapconv.columns import BoolColumn, Int8Column, Int64Column, chunks
from snapconv.native.library import MORE, NO_MEMORY, random_seed
from snapconv.replay.rounding import RoundingRules
from snapconv.snapshot.segment_table import BlockState, BlockTable, SegmentTable


def pair_compiled(
    core: ctypes.CDLL, kind: Int8Column, addr: Int64Column, is_release: BoolColumn
) -> tuple[list[Int64Column], int, int] | None:
    """Pair events into lifetimes, in the order in which they begin.

    ``kind`` is 1 for an alloc, 2 for a requested free, 3 for a completed one, 4 for both halves at once,
    else 0. Returns the events alloc, requested, completed and end with the address; how many frees have no
    alloc; and how many allocations have no free, but their address is allocated again.
    """
    columns = [np.empty(len(kind), np.int64) for _ in range(5)]
    is_release = np.ascontiguousarray(is_release)
    new = core.snapconv_pairing_new(random_seed(), _at(is_release), *map(_at, columns))
    with _closing(new, core.snapconv_pairing_free) as pairing:
        for part in chunks(len(kind)):
            kinds, addrs = np.ascontiguousarray(kind[part]), np.ascontiguousarray(addr[part])
            status = core.snapconv_pairing_add(pairing, part.start, len(kinds), _at(kinds), _at(addrs))
            if not _goes_on(status):
                return None
        counts = (ctypes.c_int64 * 3)()
        core.snapconv_pairing_finish(pairing, ctypes.byref(counts))
    n_rows, n_orphans, n_implicit = counts
    return [column[:n_rows] for column in columns], n_orphans, n_implicit


def walk_compiled(
    core: ctypes.CDLL,
    kind: Int8Column,
    addr: Int64Column,
    size: Int64Column,
    segments: SegmentTable,
    blocks: BlockTable,
    rules: RoundingRules,
) -> tuple[Int64Column, dict[int, int], int] | None:
    """Undo events last first: block bytes of every alloc, the least space of released blocks, conflicts."""
    live = np.flatnonzero(blocks.state != BlockState.INACTIVE)
    columns = [
        np.ascontiguousarray(column)
        for column in (
            segments.addr,
            segments.total_bytes,
            segments.is_expandable,
            blocks.segment_id[live],
            blocks.addr[live],
        )
    ]
    new = core.snapconv_walk_new(len(segments), *map(_at, columns[:3]), len(live), *map(_at, columns[3:]))
    if new is None:
        return None
    block_bytes = np.zeros(len(kind), np.int64)
    with _closing(new, core.snapconv_walk_free) as walk:
        for part in reversed(list(chunks(len(kind)))):
            rounded = rules.rounded(size[part])
            least_remainder = rules.least_remainder(rounded, addr[part])
            given = (kind[part], addr[part], size[part], rounded, least_remainder)
            inputs = list(map(np.ascontiguousarray, given))
            status = core.snapconv_walk_undo(walk, len(rounded), *map(_at, inputs), _at(block_bytes[part]))
            if not _goes_on(status):
                return None
        least_space = _least_space(core, walk)
        return block_bytes, least_space, core.snapconv_walk_conflicts(walk)


def _least_space(core: ctypes.CDLL, walk: int) -> dict[int, int]:
    n = core.snapconv_walk_least_space(walk, None, None)
    addr, space = np.empty(n, np.int64), np.empty(n, np.int64)
    core.snapconv_walk_least_space(walk, _at(addr), _at(space))
    return dict(np.column_stack((addr, space)).tolist())


def _goes_on(status: int) -> bool:
    if status == NO_MEMORY:
        raise MemoryError
    return status == MORE


@contextmanager
def _closing(made: int | None, free: Callable[[int], None]) -> Iterator[int]:
    if made is None:
        raise MemoryError
    try:
        yield made
    finally:
        free(made)


def _at(column: NDArray[np.generic]) -> int:
    return int(column.ctypes.data)
