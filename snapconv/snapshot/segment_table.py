"""The allocator's final state as columns: torch's segments and blocks become two tables.

Blocks of torch 2.0 have no address and keep their occupants in ``history``, newest first, whose
``real_size`` is the requested size in spite of its name; blocks of 1.x have no requested size at all.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import chain

import numpy as np

from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, read_only
from snapconv.errors import MalformedSnapshotError
from snapconv.snapshot.fields import (
    ADDRESS,
    BYTES,
    DEVICE,
    Interner,
    Path,
    check_range,
    check_total,
    expect,
    expect_dicts,
    int_column,
    pool_column,
    present_keys,
    raw_column,
    reject_shared,
    required_int_column,
)
from snapconv.snapshot.stack_table import StackInterner
from snapconv.units import shown

_SEGMENT_KEYS = frozenset(
    "device address total_size allocated_size active_size requested_size stream segment_type "
    "segment_pool_id is_expandable frames forward_frames blocks".split()
)
_BLOCK_KEYS = frozenset(
    "size requested_size address state frames forward_frames history cpp_frames category version".split()
)


_MISSING = -(1 << 63)


class BlockState(IntEnum):
    """A block's state at the dump; pending means freed by the user but still used by a stream."""

    INACTIVE = 0
    ACTIVE = 1
    PENDING_FREE = 2


# `active_awaiting_free` stands in torch's docstring only; the C++ side writes `active_pending_free`.
_STATES = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ACTIVE,
    "active_pending_free": BlockState.PENDING_FREE,
    "active_awaiting_free": BlockState.PENDING_FREE,
}


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """Memory obtained from the driver, one row per segment, by address; read-only.

    ``pool_id`` is a position in the Snapshot's ``pools`` (-1: the file does not contain it), ``stack_id`` -1
    where no stack was captured.
    """

    device: Int64Column
    addr: Int64Column
    total_bytes: Int64Column
    stream: Int64Column
    is_small: BoolColumn
    is_expandable: BoolColumn
    pool_id: Int32Column
    stack_id: Int32Column

    def __len__(self) -> int:
        return len(self.addr)


@dataclass(frozen=True, slots=True)
class BlockTable:
    """Pieces of segments, one row per block; ``segment_id`` is a row of the SegmentTable.

    ``requested_bytes`` is 0 for inactive blocks, where torch leaves a stale value.
    """

    segment_id: Int64Column
    addr: Int64Column
    block_bytes: Int64Column
    requested_bytes: Int64Column
    state: Int8Column
    stack_id: Int32Column

    def __len__(self) -> int:
        return len(self.addr)


def read_segments(
    raw: list[object],
    stacks: StackInterner,
    pools: Interner,
    unknown_keys: Counter[str],
    where: str,
    *,
    device: int | None = None,
) -> tuple[SegmentTable, BlockTable, bool]:
    """Turn the raw segments of all devices into columns; if ``device`` is given, all are of that.

    The third value is whether a block lacked its requested size (torch 1.x), so that the block's
    own size replaces it.
    """

    def path(i: int) -> str:
        return f"{where}[{i}]"

    expect_dicts(raw, path)
    rows: list[dict[str, object]] = raw  # type: ignore[assignment]  # checked just above
    present_keys(rows, _SEGMENT_KEYS, unknown_keys)
    types = raw_column(rows, "segment_type")
    pool_ids = pool_column(rows, "segment_pool_id", pools, path=path)
    devices = _filled(int_column(rows, "device", path=path, missing=0), len(rows), 0)
    if device is None:
        check_range(devices, DEVICE, "device", path=path)
    segments = SegmentTable(
        device=devices if device is None else np.full(len(rows), device, np.int64),
        addr=required_int_column(rows, "address", path=path),
        total_bytes=required_int_column(rows, "total_size", path=path),
        stream=_filled(int_column(rows, "stream", path=path, missing=0), len(rows), 0),
        is_small=np.array([kind == "small" for kind in types], np.bool_),
        is_expandable=np.array([flag is True for flag in raw_column(rows, "is_expandable")], np.bool_),
        pool_id=np.full(len(rows), -1, np.int32) if pool_ids is None else pool_ids,
        stack_id=stacks.ids(raw_column(rows, "frames"), path),
    )
    check_range(segments.addr, ADDRESS, "address", path=path)
    check_range(segments.total_bytes, BYTES, "total_size", path=path)
    check_total(segments.total_bytes, where)
    blocks, sizes_missing = _read_blocks(rows, segments, stacks, unknown_keys, path)
    return read_only(segments), read_only(blocks), sizes_missing


def _read_blocks(
    rows: list[dict[str, object]],
    segments: SegmentTable,
    stacks: StackInterner,
    unknown_keys: Counter[str],
    path: Path,
) -> tuple[BlockTable, bool]:
    lists = [[] if blocks is None else blocks for blocks in raw_column(rows, "blocks")]
    for i, blocks in enumerate(lists):
        expect(blocks, list, f"{path(i)}.blocks")
    reject_shared(lists, lambda i: f"{path(i)}.blocks")
    counts = np.fromiter(map(len, lists), np.int64, len(lists))  # type: ignore[arg-type]  # lists, checked
    first = np.concatenate(([0], np.cumsum(counts)))
    segment_id = np.repeat(np.arange(len(lists)), counts)

    def block_path(i: int) -> str:
        segment = int(segment_id[i])
        return f"{path(segment)}.blocks[{i - int(first[segment])}]"

    flat: list[dict[str, object]] = list(chain.from_iterable(lists))  # type: ignore[arg-type]  # checked
    expect_dicts(flat, block_path)
    present_keys(flat, _BLOCK_KEYS, unknown_keys)
    return _block_table(flat, segments, stacks, segment_id, first, block_path)


def _block_table(
    flat: list[dict[str, object]],
    segments: SegmentTable,
    stacks: StackInterner,
    segment_id: Int64Column,
    first: Int64Column,
    path: Path,
) -> tuple[BlockTable, bool]:
    occupants = [_newest_occupant(block, path, i) for i, block in enumerate(flat)]
    size = required_int_column(flat, "size", path=path)
    check_range(size, BYTES, "size", path=path)
    check_total(size, "the blocks")
    state = _states(flat, path)
    requested, sizes_missing = _requested(flat, occupants, state != BlockState.INACTIVE, path)
    requested = np.where(requested == _MISSING, size, requested)
    addr = int_column(flat, "address", path=path)
    check_range(addr, ADDRESS, "address", path=path)
    if addr is None:
        ends = np.cumsum(size)
        start_of_segment = np.concatenate(([0], ends))[first[:-1]]
        addr = segments.addr[segment_id] + ends - size - start_of_segment[segment_id]
    frames = [
        block.get("frames", occupant.get("frames")) for block, occupant in zip(flat, occupants, strict=True)
    ]
    return BlockTable(
        segment_id=segment_id,
        addr=addr,
        block_bytes=size,
        requested_bytes=np.where(state == BlockState.INACTIVE, 0, requested),
        state=state,
        stack_id=stacks.ids(frames, path),
    ), sizes_missing


def _requested(
    flat: list[dict[str, object]], occupants: list[dict[str, object]], is_live: BoolColumn, path: Path
) -> tuple[Int64Column, bool]:
    """Return every block's requested size, or _MISSING, and whether a live block lacks it."""
    requested = _filled(int_column(flat, "requested_size", path=path, missing=_MISSING), len(flat), _MISSING)
    check_range(requested, BYTES, "requested_size", path=path, where=is_live & (requested != _MISSING))

    def history_path(i: int) -> str:
        return f"{path(i)}.history[0]"

    before = _filled(
        int_column(occupants, "real_size", path=history_path, missing=_MISSING), len(flat), _MISSING
    )
    check_range(before, BYTES, "real_size", path=history_path, where=before != _MISSING)
    requested = np.where(requested == _MISSING, before, requested)
    check_total(requested[is_live & (requested != _MISSING)], "the blocks")
    return requested, bool(np.any((requested == _MISSING) & is_live))


def _newest_occupant(block: dict[str, object], path: Path, i: int) -> dict[str, object]:
    history = block.get("history")
    if not history or block.get("state") == "inactive":
        return {}
    expect(history, list, f"{path(i)}.history")
    expect(history[0], dict, f"{path(i)}.history[0]")  # type: ignore[index]  # a list, checked
    return history[0]  # type: ignore[index,no-any-return]


def _states(flat: Sequence[dict[str, object]], path: Path) -> Int8Column:
    values = raw_column(flat, "state")
    for i, value in enumerate(values):
        if type(value) is not str or value not in _STATES:
            got = f"'{shown(value)}'" if isinstance(value, str) else type(value).__name__
            raise MalformedSnapshotError(f"{path(i)}.state: expected one of {', '.join(_STATES)}, got {got}")
    return np.array([_STATES[value] for value in values], np.int8)  # type: ignore[index]  # checked


def _filled(column: Int64Column | None, n_rows: int, value: int) -> Int64Column:
    return np.full(n_rows, value, np.int64) if column is None else column
