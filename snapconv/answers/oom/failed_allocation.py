"""A failed allocation: the request, what it needed, what was free and where, and the memory in use then.

Of a file without any it is the memory at the peak, where the request is not known. remedies.py has what would
have helped.
"""

from dataclasses import dataclass, replace

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES, AllocatorSettings
from snapconv.allocator.allocator_trace import DEFAULT_POOL
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.fragmentation import free_memory, pool_memory
from snapconv.answers.moments import find_moment
from snapconv.answers.oom.verdict import FreePieces, OomCause, OomVerdict, Shortage, decide_oom
from snapconv.answers.peak import DeviceMemory, MomentState, state_at, sums_by_name
from snapconv.columns import BoolColumn, Int64Column
from snapconv.replay.memory_layout import MemoryLayout, layout_at
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import format_bytes

_PRIVATE = "the private pool "


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """An allocation that failed for want of memory: an ``oom`` event of the trace.

    ``block_bytes`` is the request rounded up, as torch writes it. ``lines`` are the project's, innermost
    first. ``pool`` None: the event does not name it, and the default pool is assumed. ``segment_bytes``, the
    bytes that were requested from the device for it, and ``module`` are found only where one failed
    allocation is explained.
    """

    event: int
    block_bytes: int
    segment_bytes: int
    stream: int
    pool: tuple[int, int] | None
    operation: str
    module: str
    lines: tuple[SourceLine, ...]
    time_us: int | None
    device_free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    stack_id: int
    has_stack: bool


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """One failed allocation of a device, or its peak (``request`` and ``verdict`` are None).

    ``inside`` is the free memory in torch's segments.
    """

    n_failed: int
    state: MomentState
    request: FailedAllocation | None
    verdict: OomVerdict | None
    inside: FreePieces


def failed_allocations(analysis: DeviceAnalysis) -> tuple[FailedAllocation, ...]:
    """Find the allocations of a device that failed, in their order."""
    events, snapshot, replay = analysis.device.events, analysis.snapshot, analysis.replay
    lines, operations = analysis.lines, analysis.facts.operations
    found = []
    for event in analysis.phases.oom_events.tolist():
        pool = int(events.pool_id[event]) if events.pool_id is not None else -1
        stack = int(events.stack_id[event])
        found.append(
            FailedAllocation(
                event=event,
                block_bytes=int(events.size[event]),
                segment_bytes=0,
                stream=int(events.stream[event]),
                pool=snapshot.pools[pool] if pool >= 0 else None,
                operation=operations.names[operations.name_id[stack]] if stack >= 0 else "",
                module="",
                lines=lines.of(stack),
                time_us=events.time_at(event),
                device_free_bytes=int(events.addr[event]),
                allocated_bytes=replay.allocated.at(event),
                reserved_bytes=replay.reserved.at(event),
                stack_id=stack,
                has_stack=lines.has_frames(stack),
            )
        )
    return tuple(found)


def find_out_of_memory(analysis: DeviceAnalysis, *, device_total: int | None = None) -> OutOfMemory:
    """Explain the first failed allocation, or the peak where there is none."""
    failed = failed_allocations(analysis)
    moment = find_moment(analysis, "oom" if failed else "peak")
    layout = layout_at(analysis.device, analysis.allocations, moment.event)
    state = state_at(analysis, moment, device_total=device_total, layout=layout)
    request = _explained(analysis, failed[0], layout) if failed else None
    return OutOfMemory(
        n_failed=len(failed),
        state=state,
        request=request,
        verdict=_decide(analysis, request, state.memory, layout) if request else None,
        inside=_pieces(layout.free.n_bytes),
    )


def _explained(analysis: DeviceAnalysis, request: FailedAllocation, layout: MemoryLayout) -> FailedAllocation:
    """Add the module of a request, and the bytes that were requested from the device for it."""
    settings = analysis.replay.rules.settings
    segment_bytes = settings.segment_size(request.block_bytes)
    if settings.expandable_segments:
        is_here = _serves(analysis.snapshot, request, layout)
        segment_bytes = _growth(settings, request, layout, is_here)
    return replace(request, segment_bytes=segment_bytes, module=_module(analysis, request.stack_id))


def _module(analysis: DeviceAnalysis, stack: int) -> str:
    """Find the module of a stack: that of allocations with the same stack, else the lines of its call."""
    if stack < 0:
        return ""
    same = np.flatnonzero((analysis.allocations.stack_id == stack) & (analysis.modules.module_id >= 0))
    if len(same):
        return analysis.modules.names[int(analysis.modules.module_id[same[-1]])]
    return analysis.facts.module_calls[stack]


def _decide(
    analysis: DeviceAnalysis, request: FailedAllocation, memory: DeviceMemory, layout: MemoryLayout
) -> OomVerdict:
    settings = analysis.snapshot.settings
    is_here = _serves(analysis.snapshot, request, layout)[layout.free.segment]
    total, fraction = memory.total_bytes, settings.memory_fraction
    other_pool, other_pool_bytes = _other_pool(analysis.snapshot, request, layout)
    found = Shortage(
        block_bytes=request.block_bytes,
        segment_bytes=request.segment_bytes,
        device_free_bytes=memory.free_bytes,
        device_total_bytes=total,
        reserved_bytes=memory.reserved_bytes,
        live_bytes=analysis.replay.active.at(request.event),
        here=_pieces(layout.free.n_bytes[is_here]),
        elsewhere=_pieces(layout.free.n_bytes[~is_here]),
        other_pool=other_pool,
        other_pool_bytes=other_pool_bytes,
        returnable_bytes=free_memory(analysis, layout, "").private_bytes,
        allowed_bytes=int(fraction * total) if total is not None and fraction < 1 else None,
        counted_bytes=memory.reserved_bytes,
        splits_below=settings.max_split_size_bytes,
    )
    verdict = decide_oom(found)
    if total is None and fraction < 1 and (memory.free_bytes or 0) >= request.segment_bytes:
        sentence = f"stopped by per_process_memory_fraction:{fraction:g} of the settings"
        verdict = OomVerdict(OomCause.LIMIT, sentence, verdict.sentence, is_inferred=False)
    no_piece = (OomCause.FULL, OomCause.FRAGMENTED, OomCause.OTHER_POOL)
    if found.other_pool_bytes >= request.segment_bytes and verdict.cause in no_piece:
        verdict = replace(verdict, reason=_stuck(analysis, found, layout) or verdict.reason)
    if request.pool is None and len(analysis.snapshot.pools) > 1 and verdict.cause == OomCause.OTHER_POOL:
        verdict = replace(verdict, is_inferred=True)  # that it was of the default pool is assumed
    return verdict


def _stuck(analysis: DeviceAnalysis, found: Shortage, layout: MemoryLayout) -> str:
    """Say which line keeps the free memory of a private pool there, and what frees it; else empty."""
    wanted = [i for i, pool in enumerate(analysis.snapshot.pools) if f"{_PRIVATE}{pool}" == found.other_pool]
    live, blocks = np.zeros(len(analysis.allocations), np.bool_), layout.blocks
    live[blocks.allocation[np.isin(layout.segments.pool_id[blocks.segment], wanted)]] = True
    if not live.any():
        return ""
    held = sums_by_name(analysis, live, analysis.lines.innermost, analysis.allocations.stack_id)
    line, most = max(held.items(), key=lambda item: item[1].block_bytes)
    keeper = f"{format_bytes(most.block_bytes)} from {line.place if line else 'library code'}"
    size = f"{format_bytes(found.other_pool_bytes)} is stuck in {found.other_pool}"
    return f"{size}, kept by {keeper}: free these tensors, or delete the CUDA graph or MemPool"


def _serves(snapshot: Snapshot, request: FailedAllocation, layout: MemoryLayout) -> BoolColumn:
    """Mark the segments that may serve a request: those of its pool, its stream and its size."""
    segments = layout.segments
    wanted = request.pool or DEFAULT_POOL
    pools = [i for i, pool in enumerate(snapshot.pools) if tuple(pool) == wanted]
    is_pool = (segments.pool_id < 0) | np.isin(segments.pool_id, pools)
    is_size = segments.is_small == (request.block_bytes <= SMALL_REQUEST_BYTES)
    return np.asarray(is_pool & is_size & (segments.stream == request.stream))


def _other_pool(snapshot: Snapshot, request: FailedAllocation, layout: MemoryLayout) -> tuple[str, int]:
    """Name the pool, stream or size with most of the free memory that a request cannot use; and how much."""
    wanted, is_small = request.pool or DEFAULT_POOL, request.block_bytes <= SMALL_REQUEST_BYTES
    free: dict[str, int] = {}
    for row in pool_memory(snapshot, layout):
        if row.pool is not None and row.pool != wanted:
            name = "the default pool" if row.pool == DEFAULT_POOL else f"{_PRIVATE}{row.pool}"
        elif row.stream != request.stream:
            name = f"the pool of stream {row.stream}"
        elif row.is_small != is_small:
            name = f"segments for {'small' if row.is_small else 'large'} requests"
        else:
            continue
        free[name] = free.get(name, 0) + row.free_bytes
    largest = max(free, key=lambda name: free[name], default="another pool or stream")
    return largest, free.get(largest, 0)


def _growth(
    settings: AllocatorSettings, request: FailedAllocation, layout: MemoryLayout, is_here: BoolColumn
) -> int:
    """Return the bytes by which an expandable segment has to grow for a request: its own free end counts."""
    free, segments = layout.free, layout.segments
    end = segments.addr[free.segment] + segments.total_bytes[free.segment]
    is_end = is_here[free.segment] & (free.addr + free.n_bytes == end)
    lacking = max(request.block_bytes - int(free.n_bytes[is_end].max(initial=0)), 1)
    page = settings.page_size(is_small=request.block_bytes <= SMALL_REQUEST_BYTES)
    return -(-lacking // page) * page


def _pieces(n_bytes: Int64Column) -> FreePieces:
    return FreePieces(int(n_bytes.sum()), len(n_bytes), int(n_bytes.max(initial=0)))
