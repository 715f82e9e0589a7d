"""Fragmentation: reserved memory that is not used, in free segments and in pieces of others, and its lines.

The layout of a moment shows what ``empty_cache()`` would give back, and what it could not. Where in an
expandable segment its pages lie is an inference: they are taken to begin where the segment does.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass

import numpy as np

from snapconv.allocator.allocator_settings import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.moments import FoundMoment
from snapconv.columns import BoolColumn, Int64Column, sums_by
from snapconv.replay.memory_layout import MemoryLayout, layouts
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.project_lines import ProjectLines, SourceLine
from snapconv.units import device_kind

_DEFAULT_POOL = (0, 0)
# A line of the project, or None, and whether a stack was recorded.
_Maker = tuple[SourceLine | None, bool]


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The memory that is reserved and not in use at a moment.

    ``returnable_bytes`` is what ``empty_cache()`` gives back: segments without a block, and whole free pages
    of expandable ones. ``private_bytes`` is the same of private pools, which keep it until their graph or
    MemPool is gone. ``enclosed_bytes`` lie in segments with live blocks. The three sum to ``free_bytes``.
    ``rounding_bytes`` are within blocks in use, beyond what was requested.
    """

    moment: str
    event: int | None
    reserved_bytes: int
    active_bytes: int
    allocated_bytes: int
    free_bytes: int
    returnable_bytes: int
    private_bytes: int
    enclosed_bytes: int
    n_segments: int
    n_free_segments: int
    n_enclosed_pieces: int
    largest_enclosed_bytes: int
    largest_free_bytes: int
    rounding_bytes: int


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """The segments of one pool, stream and size: no block of one is ever cut from the segments of another."""

    pool: tuple[int, int] | None
    stream: int
    is_small: bool
    n_segments: int
    reserved_bytes: int
    active_bytes: int
    free_bytes: int
    n_pieces: int
    largest_free_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentHolder:
    """A line of the project whose blocks keep segments open; None: library code only, or no stack recorded.

    A segment's free bytes count for the line that has the most bytes in it. ``n_alone`` of the segments have
    blocks of no other line.
    """

    line: SourceLine | None
    n_segments: int
    n_alone: int
    n_blocks: int
    block_bytes: int
    enclosed_bytes: int
    has_stack: bool = True


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The fragmentation of a device at some moments; ``pools`` and ``holders`` are those of ``details_at``.

    ``n_conflicts`` counts what in the trace contradicts the segments: with any, figures of moments before
    the dump are approximate. ``has_expandable``: what can be returned depends on where pages lie.
    """

    device: int
    moments: tuple[FreeMemory, ...]
    details_at: str
    pools: tuple[PoolMemory, ...]
    holders: tuple[SegmentHolder, ...]
    n_conflicts: int
    has_expandable: bool
    history_verdict: str
    history_reason: str

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return {"kind": device_kind(self.device), **asdict(self)}


def find_fragmentation(
    analysis: DeviceAnalysis,
    moments: tuple[FoundMoment, ...],
    *,
    details_at: FoundMoment,
) -> Fragmentation:
    """Find what is reserved and not in use at each of the moments, and why at one of them."""
    events = [moment.event for moment in (*moments, details_at)]
    found = layouts(analysis.device, analysis.allocations, events)
    detailed = found[details_at.event]
    lines = ProjectLines(analysis.snapshot.stacks, analysis.project)
    return Fragmentation(
        device=analysis.device.device,
        moments=tuple(free_memory(analysis, found[m.event], m.name) for m in moments),
        details_at=details_at.name,
        pools=tuple(pool_memory(analysis.snapshot, detailed)),
        holders=_holders(analysis, detailed, lines),
        n_conflicts=max(layout.n_conflicts for layout in found.values()),
        has_expandable=any(bool(layout.segments.is_expandable.any()) for layout in found.values()),
        history_verdict=analysis.history.verdict.value,
        history_reason=analysis.history.reason,
    )


def free_memory(analysis: DeviceAnalysis, layout: MemoryLayout, name: str) -> FreeMemory:
    """Sum up the free pieces of a layout by what could become of them."""
    segments, free = layout.segments, layout.free
    n_blocks = np.bincount(layout.blocks.segment, minlength=len(segments))
    enclosed, returnable = _enclosed(layout), _whole_pages(layout)
    is_private = _is_private(analysis.snapshot, layout)[free.segment]
    free_bytes = int(free.n_bytes.sum())
    returned, private = int(returnable[~is_private].sum()), int(returnable[is_private].sum())
    of_blocks = analysis.allocations.requested_bytes[layout.blocks.allocation]
    return FreeMemory(
        moment=name,
        event=layout.event if layout.event >= 0 else None,
        reserved_bytes=int(segments.total_bytes.sum()),
        active_bytes=int(layout.blocks.n_bytes.sum()),
        allocated_bytes=analysis.replay.allocated.at(layout.event),
        free_bytes=free_bytes,
        returnable_bytes=returned,
        private_bytes=private,
        enclosed_bytes=int(enclosed.sum()),
        n_segments=len(segments),
        n_free_segments=int(np.count_nonzero(n_blocks == 0)),
        n_enclosed_pieces=int(np.count_nonzero(enclosed)),
        largest_enclosed_bytes=int(enclosed.max(initial=0)),
        largest_free_bytes=int(free.n_bytes.max(initial=0)),
        rounding_bytes=int(layout.blocks.n_bytes.sum() - of_blocks.sum()),
    )


def pool_memory(snapshot: Snapshot, layout: MemoryLayout) -> Iterator[PoolMemory]:
    """Sum up a layout by pool, stream and size, with the most free bytes first."""
    segments, n_segments = layout.segments, len(layout.segments)
    if not n_segments:
        return
    active = sums_by(layout.blocks.segment, layout.blocks.n_bytes, n_segments)
    free = sums_by(layout.free.segment, layout.free.n_bytes, n_segments)
    n_pieces = np.bincount(layout.free.segment, minlength=n_segments)
    largest = np.zeros(n_segments, np.int64)
    np.maximum.at(largest, layout.free.segment, layout.free.n_bytes)
    keys = np.stack((segments.pool_id.astype(np.int64), segments.stream, segments.is_small.astype(np.int64)))
    found, group = np.unique(keys, axis=1, return_inverse=True)
    group = group.reshape(-1)
    rows = []
    for number, (pool, stream, is_small) in enumerate(found.T.tolist()):
        mine = np.flatnonzero(group == number)
        rows.append(
            PoolMemory(
                pool=snapshot.pools[pool] if pool >= 0 else None,
                stream=stream,
                is_small=bool(is_small),
                n_segments=len(mine),
                reserved_bytes=int(segments.total_bytes[mine].sum()),
                active_bytes=int(active[mine].sum()),
                free_bytes=int(free[mine].sum()),
                n_pieces=int(n_pieces[mine].sum()),
                largest_free_bytes=int(largest[mine].max()),
            )
        )
    yield from sorted(rows, key=lambda row: (-row.free_bytes, -row.reserved_bytes, row.stream))


def _whole_pages(layout: MemoryLayout) -> Int64Column:
    """Of every free piece, the bytes that could be returned: all of a free segment, or whole free pages."""
    segments, free = layout.segments, layout.free
    start = free.addr - segments.addr[free.segment]
    end = start + free.n_bytes
    page = np.where(segments.is_small[free.segment], SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES)
    pages = np.maximum(end // page * page - -(-start // page) * page, 0)
    is_whole = free.n_bytes == segments.total_bytes[free.segment]
    ordinary = np.where(is_whole, free.n_bytes, 0)
    return np.where(segments.is_expandable[free.segment], np.where(is_whole, free.n_bytes, pages), ordinary)


def _enclosed(layout: MemoryLayout) -> Int64Column:
    """Of every free piece, the bytes that stay reserved as long as the blocks beside it are live."""
    return layout.free.n_bytes - _whole_pages(layout)


def _is_private(snapshot: Snapshot, layout: MemoryLayout) -> BoolColumn:
    """Mark the segments of private pools; where the file has no pools, none is known to be."""
    default = [i for i, pool in enumerate(snapshot.pools) if tuple(pool) == _DEFAULT_POOL]
    pool_id = layout.segments.pool_id
    return np.asarray((pool_id >= 0) & ~np.isin(pool_id, default))


def _holders(
    analysis: DeviceAnalysis, layout: MemoryLayout, lines: ProjectLines
) -> tuple[SegmentHolder, ...]:
    """Find the lines whose blocks keep free bytes enclosed, those that keep most first."""
    blocks = layout.blocks
    enclosed = sums_by(layout.free.segment, _enclosed(layout), len(layout.segments))
    kept = np.flatnonzero(enclosed[blocks.segment] > 0)
    stack_ids = analysis.allocations.stack_id[blocks.allocation[kept]]
    in_segment: dict[int, dict[_Maker, list[int]]] = defaultdict(dict)
    columns = (blocks.segment[kept], blocks.n_bytes[kept], stack_ids)
    for segment, n_bytes, stack in zip(*(column.tolist() for column in columns), strict=True):
        maker = lines.innermost(stack), lines.has_frames(stack)
        counts = in_segment[segment].setdefault(maker, [0, 0])
        counts[0] += 1
        counts[1] += n_bytes
    # Per line: segments, segments alone, blocks, bytes of blocks, bytes enclosed.
    totals: dict[_Maker, list[int]] = defaultdict(lambda: [0] * 5)
    for segment, of_lines in in_segment.items():
        maker, (n_blocks, n_bytes) = max(of_lines.items(), key=lambda item: (item[1][1], str(item[0])))
        row = (1, len(of_lines) == 1, n_blocks, n_bytes, int(enclosed[segment]))
        totals[maker] = [before + more for before, more in zip(totals[maker], row, strict=True)]
    rows = [
        SegmentHolder(line, n, alone, n_blocks, n_bytes, stuck, has_stack)
        for (line, has_stack), (n, alone, n_blocks, n_bytes, stuck) in totals.items()
    ]
    return tuple(sorted(rows, key=lambda row: (-row.enclosed_bytes, str(row.line))))
