"""Fragmentation: reserved memory that is not used, and the lines that keep it reserved.

It lies in free segments and in pieces of partly used ones.
The layout of a moment shows what ``empty_cache()`` would give back, and what it could not. Where in
an expandable segment its pages lie is an inference: they are taken to begin where the segment does.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_SEGMENT_BYTES
from snapconv.allocator.allocator_trace import DEFAULT_POOL
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.moments import find_moment
from snapconv.answers.peak import LineTotal, Sum, sums_by_name, totals_by_line
from snapconv.columns import (
    BoolColumn,
    Int32Column,
    Int64Column,
    is_among,
    number_groups,
    plain_rows,
    sums_by,
    unknown_column,
)
from snapconv.replay.memory_layout import MemoryLayout, layouts
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import Device, format_bytes

# Reserved memory beyond the most in use is a problem from this part of the reserved bytes on, but
# never below the first of these sizes, and always from the second on.
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
    """The segments of one pool, stream and size.

    No block is ever cut from the segments of another pool, stream or size. ``returnable_bytes`` are
    in segments without a block, or in whole free pages of expandable ones.
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
    """A line of the project whose blocks keep segments open.

    ``line`` is None for library code only, and where no stack is recorded. A segment's free bytes
    count for the line that has the most bytes in it.
    """

    line: SourceLine | None
    has_stack: bool
    n_segments: int
    n_blocks: int
    block_bytes: int
    enclosed_bytes: int


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """The fragmentation of a device at some moments.

    ``pools`` and ``holders`` are those of ``details_at``. ``n_conflicts`` counts what in the trace
    contradicts the segments: with any, figures of moments before the dump are approximate.
    ``has_expandable``: what can be returned depends on where pages lie. ``conclusion`` says whether
    memory is wasted, and where it lies.
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


def find_fragmentation(
    analysis: DeviceAnalysis, moment: str | None = None
) -> Fragmentation:
    """Find the memory that is reserved and not in use at a moment, and why.

    Without a moment, find it at several, and why at the first of them. These are the first failed
    request, the dump, the peak, the worst moment. Raises as ``find_moment`` does.
    """
    analysis.require_allocator()
    names = ["end", "peak", "worst"]
    if analysis.ran_out:
        names.insert(0, "oom")
    if moment:
        names = [moment]
    moments = [find_moment(analysis, name) for name in names]
    layout_by_event = layouts(
        analysis.device, analysis.allocations, [moment.event for moment in moments]
    )
    detailed = layout_by_event[moments[0].event]
    rows = tuple(free_memory(analysis, layout_by_event[m.event], m.name) for m in moments)
    all_layouts = layout_by_event.values()
    return Fragmentation(
        device=analysis.device.device,
        conclusion=_conclusion(analysis, rows, is_one_moment=moment is not None),
        moments=rows,
        details_at=moments[0].name,
        pools=tuple(pool_memory(analysis.snapshot, detailed)),
        holders=_holders(analysis, detailed),
        n_conflicts=max(layout.n_conflicts for layout in all_layouts),
        has_expandable=any(
            bool(layout.segments.is_expandable.any()) for layout in all_layouts
        ),
        history_verdict=analysis.history.verdict.value,
        history_reason=analysis.history.reason,
    )


def _conclusion(
    analysis: DeviceAnalysis, moments: Sequence[FreeMemory], *, is_one_moment: bool
) -> str:
    """Say how much more is reserved than ever in use, if that is a problem, and where it lies."""
    replayed = analysis.replay
    first = moments[0]
    unknown = "unknown how much of the reserved memory was not in use"
    if "reserved" in replayed.lower_bounds:
        return (
            f"{unknown}: the file does not show all segments; below are those that its "
            f"trace requests"
        )
    if replayed.allocated.peak > replayed.reserved.peak:
        return f"{unknown}: the trace contradicts the file's segments"
    if analysis.ran_out and not is_one_moment:
        return _failure_sentence(analysis, first)
    if is_one_moment or first.event is None:
        wasted = first.free_bytes
        reserved = first.reserved_bytes
        share = f"{_share(wasted, reserved)} is free at {first.moment}"
        return _waste_sentence(share, wasted, reserved, moments) or (
            f"{share}; most of it was in {_main_location(first)}"
        )
    reserved = replayed.reserved.peak
    wasted = max(reserved - replayed.active.peak, 0)
    excess = format_bytes(wasted, like=reserved)
    share = f"{format_bytes(reserved)} reserved at most, {excess} more than was ever in use at once"
    harmless = _waste_sentence(share, wasted, reserved, moments)
    if harmless:
        return harmless
    # At the worst moment much is free that the peak uses: it shows the waste only if the peak
    # does not.
    peak = moments[1]
    if 2 * peak.free_bytes < wasted:
        worst = max(moments, key=attrgetter("free_bytes"))
        return f"{share}; when most was free, most of it was in {_main_location(worst)}"
    return f"{share}; at the peak, most free memory was in {_main_location(peak)}"


def _waste_sentence(
    share: str, wasted: int, reserved: int, moments: Sequence[FreeMemory]
) -> str | None:
    """Say why wasted memory is no problem, or which memory is one instead; None where it is."""
    limit = much_waste(reserved)
    if wasted >= limit:
        return None
    waiting = max(memory.pending_bytes for memory in moments)
    if waiting < limit:
        return f"{share}: no problem"
    size = format_bytes(waiting, like=reserved)
    return f"{share}; {size} was freed and waited for another stream"


def _main_location(memory: FreeMemory) -> str:
    """Name the kind of segments in which most free memory lies."""
    sizes = (
        (memory.returnable_bytes, "empty segments, which empty_cache() returns"),
        (memory.private_bytes, "empty segments of private pools"),
        (memory.enclosed_bytes, "partly used segments, which empty_cache() cannot return"),
    )
    return max(sizes)[1]


def much_waste(reserved: int) -> float:
    """Return from how many bytes on memory reserved beyond the most in use is a problem."""
    return max(min(_MUCH_WASTED * reserved, _MUCH_WASTED_BYTES), _LEAST_WASTED_BYTES)


def _share(wasted: int, reserved: int) -> str:
    return f"{format_bytes(wasted, like=reserved)} of {format_bytes(reserved)} reserved"


def _failure_sentence(analysis: DeviceAnalysis, memory: FreeMemory) -> str:
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
        waiting_lines=totals_by_line(
            analysis, analysis.allocations.waiting_at(layout.event)
        ),
    )


def pool_memory(snapshot: Snapshot, layout: MemoryLayout) -> list[PoolMemory]:
    """Sum up a layout by pool, stream and size, with the most free bytes first."""
    segments = layout.segments
    free = layout.free
    keys = (segments.pool_id, segments.stream, segments.is_small)
    first, group = number_groups(*keys)
    kinds = plain_rows(*(key[first] for key in keys))
    n = len(first)
    free_group = group[free.segment]
    largest = np.zeros(n, np.int64)
    np.maximum.at(largest, free_group, free.n_bytes)
    columns = (
        sums_by(group, segments.total_bytes, n),
        sums_by(free_group, free.n_bytes, n),
        np.bincount(free_group, minlength=n),
        largest,
        sums_by(free_group, whole_pages(layout), n),
    )
    rows = []
    for (pool_id, stream, is_small), figures in zip(
        kinds, plain_rows(*columns), strict=True
    ):
        pool = snapshot.pools[pool_id] if pool_id >= 0 else None
        rows.append(PoolMemory(pool, stream, is_small, *figures))
    return sorted(rows, key=_pool_order)


def _pool_order(row: PoolMemory) -> tuple[int, int, int]:
    return -row.free_bytes, -row.reserved_bytes, row.stream


def is_of_private_pool(snapshot: Snapshot, pool_id: Int32Column) -> BoolColumn:
    """Mark what is of a private pool; where the file has no pools, none is known to be private."""
    default = [i for i, pool in enumerate(snapshot.pools) if tuple(pool) == DEFAULT_POOL]
    return np.asarray((pool_id >= 0) & ~is_among(pool_id, default))


def whole_pages(layout: MemoryLayout) -> Int64Column:
    """Return how many bytes of every free piece could be returned.

    These are all of a free segment, and the whole free pages of an expandable one.
    """
    segments = layout.segments
    free = layout.free
    start = free.addr - segments.addr[free.segment]
    end = start + free.n_bytes
    is_small = segments.is_small[free.segment]
    page = np.where(is_small, SMALL_SEGMENT_BYTES, layout.large_segment_bytes)
    first_page = -(-start // page)
    n_pages = np.maximum(end // page - first_page, 0)
    is_free = free.n_bytes == segments.total_bytes[free.segment]
    page_bytes = np.where(segments.is_expandable[free.segment], n_pages * page, 0)
    return np.where(is_free, free.n_bytes, page_bytes)


def _holders(analysis: DeviceAnalysis, layout: MemoryLayout) -> tuple[SegmentHolder, ...]:
    """Find the lines whose blocks keep free bytes enclosed, those that keep most first."""
    blocks = layout.blocks
    free = layout.free
    lines = analysis.lines
    enclosed = sums_by(
        free.segment, free.n_bytes - whole_pages(layout), len(layout.segments)
    )
    segment = unknown_column(len(analysis.allocations))
    segment[blocks.allocation] = np.where(enclosed[blocks.segment] > 0, blocks.segment, -1)

    def segment_and_maker(segment: int, stack: int) -> tuple[int, _Maker]:
        return segment, (lines.innermost(stack), lines.has_frames(stack))

    sums = sums_by_name(
        analysis, segment >= 0, segment_and_maker, segment, analysis.allocations.stack_id
    )
    totals: dict[_Maker, Int64Column] = defaultdict(lambda: np.zeros(4, np.int64))
    for number, maker in _largest_makers(sums).items():
        total = sums[number, maker]
        totals[maker] += (1, total.n_allocations, total.block_bytes, enclosed[number])
    rows = [SegmentHolder(*maker, *figures.tolist()) for maker, figures in totals.items()]
    return tuple(sorted(rows, key=_holder_order))


def _largest_makers(sums: dict[tuple[int, _Maker], Sum]) -> dict[int, _Maker]:
    """Return the maker that has most bytes in each segment."""

    def size_and_name(key: tuple[int, _Maker]) -> tuple[int, str]:
        return sums[key].block_bytes, str(key[1])

    return dict(sorted(sums, key=size_and_name))


def _holder_order(row: SegmentHolder) -> tuple[int, str]:
    return -row.enclosed_bytes, str(row.line)
