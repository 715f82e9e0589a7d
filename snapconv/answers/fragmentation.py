"""Fragmentation: reserved memory that is not used, in free segments and in pieces of others, and its lines.

The layout of a moment shows what ``empty_cache()`` would give back, and what it could not. Where in
an expandable segment its pages lie is an inference: they are taken to begin where the segment does.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from snapconv.allocator.allocator_settings import LARGE_SEGMENT_BYTES, SMALL_SEGMENT_BYTES
from snapconv.allocator.allocator_trace import DEFAULT_POOL
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.moments import find_moment
from snapconv.answers.peak import LineTotal, sums_by_name, totals_by_line
from snapconv.columns import (
    BoolColumn,
    Int32Column,
    Int64Column,
    number_groups,
    plain_rows,
    sums_by,
    unknown_column,
)
from snapconv.replay.memory_layout import MemoryLayout, layouts
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import Device, format_bytes

# Of what is reserved: from here on, more than is ever in use at once is a problem; so much is one
# in any job.
_MUCH_WASTED = 0.1
_LEAST_WASTED_BYTES = 256 << 20
_MUCH_WASTED_BYTES = 2 << 30
# A line of the project, or None, and whether a stack was recorded.
_Maker = tuple[SourceLine | None, bool]


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """The memory that is reserved and not in use at a moment.

    ``returnable_bytes`` is what ``empty_cache()`` gives back: segments without a block, and whole
    free pages of expandable ones. ``private_bytes`` is the same of private pools, which keep it
    until their graph or MemPool is gone. ``enclosed_bytes`` lie in segments with live blocks. The
    three sum to ``free_bytes``. ``rounding_bytes`` are within blocks in use, beyond what was
    requested. ``waiting_lines`` allocated what the program has freed and another stream still uses.
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
    largest_free_bytes: int
    rounding_bytes: int
    waiting_lines: tuple[LineTotal, ...]

    @property
    def pending_bytes(self) -> int:
        """The bytes of freed blocks that a stream still uses."""
        return self.active_bytes - self.allocated_bytes


@dataclass(frozen=True, slots=True)
class PoolMemory:
    """The segments of one pool, stream and size: no block of one is ever cut from the segments of another.

    ``returnable_bytes`` are in segments without a block, or in whole free pages of expandable ones.
    """

    pool: tuple[int, int] | None
    stream: int
    is_small: bool
    reserved_bytes: int
    free_bytes: int
    n_pieces: int
    largest_free_bytes: int
    returnable_bytes: int


@dataclass(frozen=True, slots=True)
class SegmentHolder:
    """A line of the project whose blocks keep segments open; None: library code only, or no stack recorded.

    A segment's free bytes count for the line that has the most bytes in it.
    """

    line: SourceLine | None
    has_stack: bool
    n_segments: int
    n_blocks: int
    block_bytes: int
    enclosed_bytes: int


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The fragmentation of a device at some moments; ``pools`` and ``holders`` are those of ``details_at``.

    ``n_conflicts`` counts what in the trace contradicts the segments: with any, figures of moments
    before the dump are approximate. ``has_expandable``: what can be returned depends on where pages
    lie. ``conclusion`` says whether memory is wasted, and where it lies.
    """

    device: Device
    conclusion: str
    moments: tuple[FreeMemory, ...]
    details_at: str
    pools: tuple[PoolMemory, ...]
    holders: tuple[SegmentHolder, ...]
    n_conflicts: int
    has_expandable: bool
    history_verdict: str
    history_reason: str


def find_fragmentation(analysis: DeviceAnalysis, moment: str | None = None) -> Fragmentation:
    """Find what is reserved and not in use at a moment, and why; by default at several, and why at the first.

    These are the first failed request, the dump, the peak, the worst moment. Raises as
    ``find_moment`` does.
    """
    analysis.require_allocator()
    usual = ("oom", "end", "peak", "worst")[not analysis.ran_out :]
    moments = [find_moment(analysis, each) for each in ((moment,) if moment else usual)]
    found = layouts(analysis.device, analysis.allocations, [moment.event for moment in moments])
    detailed = found[moments[0].event]
    rows = tuple(free_memory(analysis, found[m.event], m.name) for m in moments)
    return Fragmentation(
        device=analysis.device.device,
        conclusion=_conclusion(analysis, rows, is_one_moment=moment is not None),
        moments=rows,
        details_at=moments[0].name,
        pools=tuple(pool_memory(analysis.snapshot, detailed)),
        holders=_holders(analysis, detailed),
        n_conflicts=max(layout.n_conflicts for layout in found.values()),
        has_expandable=any(bool(layout.segments.is_expandable.any()) for layout in found.values()),
        history_verdict=analysis.history.verdict.value,
        history_reason=analysis.history.reason,
    )


def _conclusion(
    analysis: DeviceAnalysis, moments: Sequence[FreeMemory], *, is_one_moment: bool
) -> str:
    """Say how much more is reserved than ever in use, whether that is a problem, and where most lies."""
    replayed = analysis.replay
    first = moments[0]
    most = "most of it"
    unknown = "unknown how much of the reserved memory was not in use"
    if "reserved" in replayed.at_least:
        return (
            f"{unknown}: the file does not show all segments; below are those that its trace "
            f"requests"
        )
    if replayed.allocated.peak > replayed.reserved.peak:
        return f"{unknown}: the trace contradicts the file's segments"
    if analysis.ran_out and not is_one_moment:
        return _at_failure(analysis, first)
    if is_one_moment or first.event is None:
        worst = first
        wasted = first.free_bytes
        reserved = first.reserved_bytes
        share = f"{_share(wasted, reserved)} is free at {first.moment}"
    else:
        reserved = replayed.reserved.peak
        wasted = max(reserved - replayed.active.peak, 0)
        more = format_bytes(wasted, like=reserved)
        share = (
            f"{format_bytes(reserved)} reserved at most, {more} more than was ever in use at once"
        )
        # At the worst moment much is free that the peak uses: it shows the waste only if the peak
        # does not.
        worst = moments[1]
        most = "at the peak, most free memory"
        if 2 * worst.free_bytes < wasted:
            worst = max(moments, key=attrgetter("free_bytes"))
            most = "when most was free, most of it"
    much = much_waste(reserved)
    waiting = max(memory.pending_bytes for memory in moments)
    if wasted < much <= waiting:
        return (
            f"{share}; {format_bytes(waiting, like=reserved)} was freed and waited for another "
            f"stream"
        )
    if wasted < much:
        return f"{share}: no problem"
    parts = (
        (worst.returnable_bytes, "empty segments, which empty_cache() returns"),
        (worst.private_bytes, "empty segments of private pools"),
        (worst.enclosed_bytes, "partly used segments, which empty_cache() cannot return"),
    )
    return f"{share}; {most} was in {max(parts)[1]}"


def much_waste(reserved: int) -> float:
    """Return from how many bytes on memory reserved beyond the most in use is a problem."""
    return max(min(_MUCH_WASTED * reserved, _MUCH_WASTED_BYTES), _LEAST_WASTED_BYTES)


def _share(wasted: int, reserved: int) -> str:
    return f"{format_bytes(wasted, like=reserved)} of {format_bytes(reserved)} reserved"


def _at_failure(analysis: DeviceAnalysis, memory: FreeMemory) -> str:
    """Say whether what was free inside would have served the request that failed."""
    requested = int(analysis.device.events.size[analysis.phases.oom_events[0]])
    share = _share(memory.free_bytes, memory.reserved_bytes)
    share = f"{share} was free when a request of {format_bytes(requested)} failed"
    if memory.free_bytes < requested:
        return f"{share}: too little for it, so fragmentation is not the reason"
    return f"{share}: enough for it, but not in one usable piece"


def free_memory(analysis: DeviceAnalysis, layout: MemoryLayout, name: str) -> FreeMemory:
    """Sum up the free pieces of a layout by what could become of them."""
    segments = layout.segments
    blocks = layout.blocks
    free = layout.free
    returnable = whole_pages(layout)
    is_private = is_of_private_pool(analysis.snapshot, segments.pool_id)[free.segment]
    rows = blocks.allocation
    active = int(blocks.n_bytes.sum())
    padding = blocks.n_bytes - analysis.allocations.requested_bytes[rows]
    is_allocated = analysis.allocations.live_at(layout.event)[rows]
    return FreeMemory(
        moment=name,
        event=layout.event if layout.event >= 0 else None,
        reserved_bytes=int(segments.total_bytes.sum()),
        active_bytes=active,
        allocated_bytes=int(blocks.n_bytes[is_allocated].sum()),
        free_bytes=int(free.n_bytes.sum()),
        returnable_bytes=int(returnable[~is_private].sum()),
        private_bytes=int(returnable[is_private].sum()),
        enclosed_bytes=int(free.n_bytes.sum() - returnable.sum()),
        largest_free_bytes=int(free.n_bytes.max(initial=0)),
        rounding_bytes=int(np.maximum(padding, 0).sum()),
        waiting_lines=totals_by_line(analysis, analysis.allocations.waiting_at(layout.event)),
    )


def pool_memory(snapshot: Snapshot, layout: MemoryLayout) -> list[PoolMemory]:
    """Sum up a layout by pool, stream and size, with the most free bytes first."""
    segments = layout.segments
    free = layout.free
    keys = (segments.pool_id, segments.stream, segments.is_small)
    first, group = number_groups(*keys)
    kinds = plain_rows(*(key[first] for key in keys))
    n = len(first)
    of_free = group[free.segment]
    largest = np.zeros(n, np.int64)
    np.maximum.at(largest, of_free, free.n_bytes)
    columns = (
        sums_by(group, segments.total_bytes, n),
        sums_by(of_free, free.n_bytes, n),
        np.bincount(of_free, minlength=n),
        largest,
        sums_by(of_free, whole_pages(layout), n),
    )
    figures = plain_rows(*columns)
    rows = [
        PoolMemory(snapshot.pools[pool] if pool >= 0 else None, stream, is_small, *more)
        for (pool, stream, is_small), more in zip(kinds, figures, strict=True)
    ]
    return sorted(rows, key=lambda row: (-row.free_bytes, -row.reserved_bytes, row.stream))


def is_of_private_pool(snapshot: Snapshot, pool_id: Int32Column) -> BoolColumn:
    """Mark what is of a private pool; where the file has no pools, none is known to be private."""
    default = [i for i, pool in enumerate(snapshot.pools) if tuple(pool) == DEFAULT_POOL]
    return np.asarray((pool_id >= 0) & ~np.isin(pool_id, default))


def whole_pages(layout: MemoryLayout) -> Int64Column:
    """Of every free piece, the bytes that could be returned: all of a free segment, or whole free pages."""
    segments = layout.segments
    free = layout.free
    start = free.addr - segments.addr[free.segment]
    end = start + free.n_bytes
    page = np.where(segments.is_small[free.segment], SMALL_SEGMENT_BYTES, LARGE_SEGMENT_BYTES)
    pages = np.maximum(end // page * page - -(-start // page) * page, 0)
    of_others = np.where(segments.is_expandable[free.segment], pages, 0)
    return np.where(free.n_bytes == segments.total_bytes[free.segment], free.n_bytes, of_others)


def _holders(analysis: DeviceAnalysis, layout: MemoryLayout) -> tuple[SegmentHolder, ...]:
    """Find the lines whose blocks keep free bytes enclosed, those that keep most first."""
    blocks = layout.blocks
    free = layout.free
    lines = analysis.lines
    enclosed = sums_by(free.segment, free.n_bytes - whole_pages(layout), len(layout.segments))
    segment = unknown_column(len(analysis.allocations))
    segment[blocks.allocation] = np.where(enclosed[blocks.segment] > 0, blocks.segment, -1)

    def maker(segment: int, stack: int) -> tuple[int, _Maker]:
        return segment, (lines.innermost(stack), lines.has_frames(stack))

    sums = sums_by_name(analysis, segment >= 0, maker, segment, analysis.allocations.stack_id)
    ascending = sorted(sums.items(), key=lambda item: (item[1].block_bytes, str(item[0][1])))
    largest = {number: (one, found) for (number, one), found in ascending}
    totals: dict[_Maker, Int64Column] = defaultdict(lambda: np.zeros(4, np.int64))
    for number, (one, found) in largest.items():
        totals[one] += (1, found.n_allocations, found.block_bytes, enclosed[number])
    rows = [SegmentHolder(*one, *figures.tolist()) for one, figures in totals.items()]
    return tuple(sorted(rows, key=lambda row: (-row.enclosed_bytes, str(row.line))))
