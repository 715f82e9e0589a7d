"""Lines of text for ``snapconv fragmentation``."""

from collections.abc import Iterator, Sequence

from snapconv.answers.fragmentation import Fragmentation, FreeMemory, PoolMemory, SegmentHolder
from snapconv.units import counted, device_name, format_bytes
from snapconv.writers.text.size_rows import history_lines, size_rows, where

_LABEL, _COLUMN = 26, 15
_ROWS = (
    ("reserved", "reserved_bytes"),
    ("in use", "active_bytes"),
    ("free", "free_bytes"),
    ("  empty_cache() returns", "returnable_bytes"),
    ("  empty in private pools", "private_bytes"),
    ("  partly used segments", "enclosed_bytes"),
    ("largest free block", "largest_free_bytes"),
    ("rounding within blocks", "rounding_bytes"),
)
_MAY_BE_NOTHING = {"private_bytes"}


def fragmentation_lines(found: Fragmentation) -> Iterator[str]:
    """Show the memory that is reserved and not in use."""
    has_trace = any(column.event is not None for column in found.moments)
    columns = found.moments if has_trace else found.moments[:1]
    first = columns[0]
    free, reserved = format_bytes(first.free_bytes), format_bytes(first.reserved_bytes)
    yield f"{device_name(found.device)}  {free} of {reserved} reserved are free at {first.moment}"
    if len(columns) > 1:
        yield f"{'':<{_LABEL}}" + "".join(f"{_heading(column):>{_COLUMN}}" for column in columns)
    for label, name in _ROWS:
        values = [getattr(column, name) for column in columns]
        if any(values) or name not in _MAY_BE_NOTHING:
            yield f"  {label:<{_LABEL - 2}}" + "".join(f"{format_bytes(v):>{_COLUMN}}" for v in values)
    yield from _event_row(columns)
    yield from _pool_lines(found.pools, found.details_at)
    yield from _holder_lines(found.holders, found.details_at)
    yield from _limits(found)


def _heading(column: FreeMemory) -> str:
    return {"the most reserved and not in use": "worst"}.get(column.moment, column.moment)[: _COLUMN - 1]


def _event_row(columns: Sequence[FreeMemory]) -> Iterator[str]:
    if any(column.event is not None for column in columns):
        events = ["start" if column.event is None else str(column.event) for column in columns]
        yield f"  {'after event':<{_LABEL - 2}}" + "".join(f"{event:>{_COLUMN}}" for event in events)


def _pool_lines(pools: Sequence[PoolMemory], moment: str) -> Iterator[str]:
    yield f"  free at {moment}, by pool and stream (which cannot share free memory)"
    pools = [row for row in pools if row.free_bytes]
    rows = []
    for row in pools:
        size = "small" if row.is_small else "large"
        blocks = f"{counted(row.n_pieces, 'block')}, the largest {format_bytes(row.largest_free_bytes)}"
        pool = "" if row.pool in (None, (0, 0)) else f"pool {row.pool}, "
        rows.append((row.free_bytes, f"{size} requests, {pool}stream {row.stream}: {blocks}"))
    yield from size_rows(rows, "pool and stream", like=None, plural="pools and streams")


def _holder_lines(holders: Sequence[SegmentHolder], moment: str) -> Iterator[str]:
    if not holders:
        return
    yield f"  stuck in partly used segments at {moment}, by the line that owns most of each"
    rows = [(row.enclosed_bytes, _holder(row)) for row in holders]
    yield from size_rows(rows, "line", like=max(row.enclosed_bytes for row in holders))


def _holder(row: SegmentHolder) -> str:
    blocks = f"{counted(row.n_blocks, 'block')} of {format_bytes(row.block_bytes)}"
    return f"{where(row.line, has_stack=row.has_stack)}: {blocks} in {counted(row.n_segments, 'segment')}"


def _limits(found: Fragmentation) -> Iterator[str]:
    """Show the limits of the figures."""
    if found.n_conflicts:
        conflicts = counted(found.n_conflicts, "event or block contradicts", "events or blocks contradict")
        yield f"  approximate: {conflicts} the segments"
    if found.has_expandable:
        yield "  estimated: where the pages of expandable segments lie, which empty_cache() returns whole"
    yield from history_lines(found.history_verdict)
