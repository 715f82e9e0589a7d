"""The allocator's final state: a table of segments, a table of blocks, and its settings.

Blocks of torch 2.0 have no address and keep their occupants in ``history``, newest first, whose
``real_size`` is the requested size in spite of its name; blocks of 1.x have no requested size at
all.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import IntEnum
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from snapconv.allocator.allocator_settings import ROUNDUP_KEYS, AllocatorSettings
from snapconv.columns import (
    BoolColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    is_among,
    read_only,
    unknown_column,
)
from snapconv.errors import SettingError
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.fields import (
    ADDRESS,
    BYTES,
    DEVICE,
    Bounds,
    RowPath,
    Rows,
    check_range,
    check_total,
    expect,
    reject_shared,
    wrong,
)
from snapconv.snapshot.stack_table import Collected
from snapconv.units import shown

_MISSING = -(1 << 63)


class BlockState(IntEnum):
    """A block's state at the dump; pending means freed by the user but still used by a stream."""

    INACTIVE = 0
    ACTIVE = 1
    PENDING_FREE = 2


# torch's docstring alone has `active_awaiting_free`; the C++ side writes `active_pending_free`.
_STATES = {
    "inactive": BlockState.INACTIVE,
    "active_allocated": BlockState.ACTIVE,
    "active_pending_free": BlockState.PENDING_FREE,
    "active_awaiting_free": BlockState.PENDING_FREE,
}


@dataclass(frozen=True, slots=True)
class SegmentTable:
    """Memory obtained from the driver, one row per segment, by address; read-only.

    ``pool_id`` is a position in the Snapshot's ``pools`` (-1: the file does not contain it),
    ``stack_id`` -1 where no stack was captured.
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

    @property
    def ends(self) -> Int64Column:
        """The addresses behind the segments."""
        return self.addr + self.total_bytes


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

    @property
    def is_live(self) -> BoolColumn:
        """Those in use, or waiting for a stream."""
        return np.asarray(self.state != int(BlockState.INACTIVE))


class Memory(NamedTuple):
    """The segments of all devices, and the blocks in them."""

    segments: SegmentTable
    blocks: BlockTable


def read_segments(
    raw: list[object], collected: Collected, path: str, *, device: int | None = None
) -> Memory:
    """Turn raw segments into columns.

    All are of ``device``; if that is None, each is of the device that it names.
    """
    rows = Rows.of(raw, path)
    pool_id = rows.pool_ids("segment_pool_id", collected.pools)
    if pool_id is None:
        pool_id = unknown_column(len(rows), np.int32)
    if device is None:
        devices = rows.ints("device", DEVICE, missing=0)
    else:
        devices = np.full(len(rows), device, np.int64)
    segments = SegmentTable(
        device=devices,
        addr=rows.ints("address", ADDRESS),
        total_bytes=rows.ints("total_size", BYTES),
        stream=rows.ints("stream", missing=0),
        is_small=rows.flags("segment_type", value="small"),
        is_expandable=rows.flags("is_expandable"),
        pool_id=pool_id,
        stack_id=collected.stacks.ids(rows.values("frames"), rows.row_path),
    )
    check_total(segments.total_bytes, path)
    blocks = _read_blocks(rows, segments, collected)
    return Memory(read_only(segments), read_only(blocks))


def _block_rows(segments: Rows) -> tuple[Rows, Int64Column]:
    """Return the blocks of all segments, and the segment of each."""

    def list_path(i: int) -> str:
        return f"{segments.row_path(i)}.blocks"

    lists = []
    for i, blocks in enumerate(segments.values("blocks")):
        lists.append([] if blocks is None else expect(blocks, list, list_path(i)))
    reject_shared(lists, list_path)
    first = np.cumsum([0, *map(len, lists)])
    segment_id = np.repeat(np.arange(len(lists)), np.diff(first))

    def block_path(i: int) -> str:
        segment = int(segment_id[i])
        return f"{list_path(segment)}[{i - int(first[segment])}]"

    rows = Rows(list(chain.from_iterable(lists)), block_path).rows
    completed = [_add_occupant(row, block_path, i) for i, row in enumerate(rows)]
    return Rows(completed, block_path), segment_id


def _read_blocks(rows: Rows, segments: SegmentTable, collected: Collected) -> BlockTable:
    blocks, segment_id = _block_rows(rows)
    size = blocks.ints("size", BYTES)
    check_total(size, "the blocks")
    state = _states(blocks)
    is_live = state != BlockState.INACTIVE
    requested = blocks.ints("requested_size", missing=_MISSING)
    is_known = requested != _MISSING
    check_range(
        requested,
        BYTES,
        "requested_size",
        row_path=blocks.row_path,
        among=is_live & is_known,
    )
    collected.sizes_missing |= bool(np.any(is_live & ~is_known))
    check_total(requested[is_live & is_known], "the blocks")
    addr = blocks.optional_ints("address", ADDRESS)
    collected.has_addresses |= addr is not None
    if addr is None:
        start = np.cumsum(size) - size
        first_block = np.searchsorted(segment_id, segment_id)
        addr = segments.addr[segment_id] + start - start[first_block]
    live_bytes = np.where(is_known, requested, size)
    return BlockTable(
        segment_id=segment_id,
        addr=addr,
        block_bytes=size,
        requested_bytes=np.where(is_live, live_bytes, 0),
        state=state,
        stack_id=collected.stacks.ids(blocks.values("frames"), blocks.row_path),
    )


def _add_occupant(block: dict[str, object], row_path: RowPath, i: int) -> dict[str, object]:
    """Return a block with what torch 2.0 wrote of its newest occupant."""
    history = block.get("history")
    if not history or block.get("state") == "inactive":
        return block
    path = f"{row_path(i)}.history"
    newest = expect(expect(history, list, path)[0], dict, f"{path}[0]")
    size = newest.get("real_size")
    if size is not None:
        expect(size, BYTES, f"{path}[0].real_size")
    return {"requested_size": size, "frames": newest.get("frames")} | block


def _states(blocks: Rows) -> Int8Column:
    codes = blocks.codes("state", _STATES)
    if codes is not None:
        return codes
    for i, value in enumerate(blocks.values("state")):
        is_text = type(value) is str
        if not is_text or value not in _STATES:
            actual = f"'{shown(value)}'" if is_text else type(value).__name__
            raise wrong(
                f"{blocks.row_path(i)}.state", f"one of {', '.join(_STATES)}", actual
            )
    raise AssertionError("every state is known")


# --- settings

# torch writes a dozen settings of a few words; one text may stand in a file very many times.
_MAX_ENTRIES, _MAX_TEXT = 200, 2000
# torch reads them with stoi.
_DIVISIONS = Bounds(0, (1 << 31) - 1, "0 to 2^31 - 1")


Entries = tuple[tuple[str, str], ...]


def read_settings(raw: object, path: str) -> tuple[AllocatorSettings, Entries]:
    """Turn ``allocator_settings`` (torch >= 2.3) into settings, and all entries into texts.

    A setting that is not in the file has torch's default.
    """
    if raw is None:
        return AllocatorSettings(), ()
    values = {}
    for key, value in expect(raw, dict, path).items():
        # Only numbers are compared: a value may be a table as large as the file.
        is_nan = isinstance(value, float) and value != value
        if not is_nan:
            values[key] = value
    entries = tuple(
        (key[:_MAX_TEXT], _as_text(value))
        for key, value in islice(values.items(), _MAX_ENTRIES)
        if type(key) is str
    )
    # Each backend has a key of its own for it.
    conf = next((text for key, text in entries if key.endswith("ALLOC_CONF")), "")
    settings = AllocatorSettings().changed(conf, skipped=(SettingError,))
    return replace(settings, **_settings_by_keys(values, path)), entries


def _settings_by_keys(values: dict[object, Any], path: str) -> dict[str, Any]:
    """Return the settings that a snapshot has under keys of their own, by their fields."""
    threshold = values.get("garbage_collection_threshold")
    if not isinstance(threshold, float) or not 0 <= threshold < 1:
        threshold = 0.0
    limit = values.get("max_split_size")
    # Unlimited is -1, or SIZE_MAX where an unsigned type was written.
    if (
        limit is not None
        and not 0 <= expect(limit, int, f"{path}.max_split_size") < 1 << 63
    ):
        limit = None
    divisions = values.get("roundup_power2_divisions")
    path = f"{path}.roundup_power2_divisions"
    counts = {} if divisions is None else expect(divisions, dict, path)
    return {
        "max_split_size_bytes": limit,
        "garbage_collection_threshold": threshold,
        "expandable_segments": values.get("expandable_segments") is True,
        "roundup_power2_divisions": tuple(
            expect(counts.get(key, 0), _DIVISIONS, f"{path}.{key}") for key in ROUNDUP_KEYS
        ),
    }


def are_expandable(segments: SegmentTable, traces: Iterable[EventTable]) -> bool:
    """Return whether segments grow, for a file without that setting (torch before 2.3, torch_npu).

    One device that shows it is enough: the setting is the process's own.
    """
    if segments.is_expandable.any():
        return True
    actions = (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)
    return any(is_among(trace.action, actions).any() for trace in traces)


def _as_text(value: object) -> str:
    if isinstance(value, dict):
        items = islice(value.items(), _MAX_ENTRIES)
        parts = (
            f"{key}:{_scalar_as_text(item)}" for key, item in items if type(key) is str
        )
        return ",".join(parts)[:_MAX_TEXT]
    return _scalar_as_text(value)


def _scalar_as_text(value: object) -> str:
    if isinstance(value, (str, int, float, bool)):
        return str(value)[:_MAX_TEXT]
    return type(value).__name__
