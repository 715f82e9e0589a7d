"""A failed allocation: the request, its needs, the free memory and its place, the memory in use.

Of a file without any it is the memory at the peak, where the request is not known. remedies.py has
what would have helped.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.allocator.allocator_trace import DEFAULT_POOL
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.fragmentation import free_memory
from snapconv.answers.moments import find_moment
from snapconv.answers.oom.verdict import (
    FreePieces,
    OomCause,
    OomVerdict,
    Shortage,
    decide_oom,
)
from snapconv.answers.peak import DeviceMemory, MomentState, state_at, sums_by_name
from snapconv.columns import Int64Column, ObjectColumn, plain_rows
from snapconv.replay.memory_layout import MemoryLayout, layout_at
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import format_bytes

_PRIVATE = "the private pool "


@dataclass(frozen=True, slots=True)
class FailedAllocation:
    """An allocation that failed for want of memory: an ``oom`` event of the trace.

    ``block_bytes`` is the request rounded up, as torch writes it. ``lines`` are the project's,
    innermost first. ``pool`` None: the event does not name it, and the default pool is assumed.
    ``segment_bytes``, the bytes that were requested from the device for it, and ``module`` are
    found only where one failed allocation is explained.
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
    events = analysis.device.events
    replay = analysis.replay
    lines = analysis.lines
    operations = analysis.facts.operations
    requests = []
    for event in analysis.phases.oom_events.tolist():
        pool = events.pool_at(event)
        stack = int(events.stack_id[event])
        operation = operations.names[operations.name_id[stack]] if stack >= 0 else ""
        requests.append(
            FailedAllocation(
                event=event,
                block_bytes=int(events.size[event]),
                segment_bytes=0,
                stream=int(events.stream[event]),
                pool=analysis.snapshot.pools[pool] if pool >= 0 else None,
                operation=operation,
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
    return tuple(requests)


def find_out_of_memory(
    analysis: DeviceAnalysis, *, device_total: int | None = None
) -> OutOfMemory:
    """Explain the first failed allocation, or the peak where there is none."""
    failed = failed_allocations(analysis)
    moment = find_moment(analysis, "oom" if failed else "peak")
    layout = layout_at(analysis.device, analysis.allocations, moment.event)
    state = state_at(analysis, moment, device_total=device_total, layout=layout)
    request = None
    verdict = None
    if failed:
        owners = np.array([*_owners(analysis.snapshot, failed[0], layout)], object)
        request = _complete_request(analysis, failed[0], layout, owners)
        verdict = decide_oom(_shortage(analysis, request, state.memory, layout, owners))
        # Without a name in its event, the request is taken to be of the default pool.
        is_pool_assumed = request.pool is None and len(analysis.snapshot.pools) > 1
        if is_pool_assumed and verdict.cause == OomCause.OTHER_POOL:
            verdict = replace(verdict, is_inferred=True)
    return OutOfMemory(
        len(failed), state, request, verdict, inside=_pieces(layout.free.n_bytes)
    )


def _owners(
    snapshot: Snapshot, request: FailedAllocation, layout: MemoryLayout
) -> Iterator[str]:
    """Name the pool of every segment that a request cannot use; empty where it can use it."""
    request_pool = request.pool or DEFAULT_POOL
    is_small = request.block_bytes <= SMALL_REQUEST_BYTES
    segments = layout.segments
    rows = plain_rows(segments.pool_id, segments.stream, segments.is_small)
    for pool_id, stream, is_for_small in rows:
        pool = tuple(snapshot.pools[pool_id]) if pool_id >= 0 else request_pool
        if pool != request_pool:
            yield "the default pool" if pool == DEFAULT_POOL else f"{_PRIVATE}{pool}"
        elif stream != request.stream:
            yield f"the pool of stream {stream}"
        elif is_for_small != is_small:
            yield f"segments for {'small' if is_for_small else 'large'} requests"
        else:
            yield ""


def _complete_request(
    analysis: DeviceAnalysis,
    request: FailedAllocation,
    layout: MemoryLayout,
    owners: ObjectColumn,
) -> FailedAllocation:
    """Add the module of a request, and the bytes that were requested from the device for it."""
    settings = analysis.replay.rules.settings
    block_bytes = request.block_bytes
    segment_bytes = settings.segment_size(block_bytes)
    if settings.expandable_segments:
        # An expandable segment grows by what its own free end lacks, in whole pages.
        free = layout.free
        segments = layout.segments
        rows = free.segment
        end = segments.addr[rows] + segments.total_bytes[rows]
        is_end = free.addr + free.n_bytes == end
        end_bytes = free.n_bytes[is_end & (owners[rows] == "")].max(initial=0)
        lacking_bytes = max(block_bytes - int(end_bytes), 1)
        page_bytes = settings.page_size(is_small=block_bytes <= SMALL_REQUEST_BYTES)
        segment_bytes = -(-lacking_bytes // page_bytes) * page_bytes
    return replace(
        request, segment_bytes=segment_bytes, module=_module(analysis, request.stack_id)
    )


def _module(analysis: DeviceAnalysis, stack: int) -> str:
    """Find the module of a stack: that of its allocations, else of the lines of its call."""
    if stack < 0:
        return ""
    modules = analysis.modules
    module_ids = modules.module_id[analysis.allocations.stack_id == stack]
    module_ids = module_ids[module_ids >= 0]
    if len(module_ids):
        return modules.names[int(module_ids[-1])]
    return analysis.facts.module_calls[stack]


def _shortage(
    analysis: DeviceAnalysis,
    request: FailedAllocation,
    memory: DeviceMemory,
    layout: MemoryLayout,
    owners: ObjectColumn,
) -> Shortage:
    """Return the figures at a failed request.

    torch empties its cache before a request fails: the free segments that are left are of private
    pools, which keep theirs, so that only these could still be returned. Against a memory fraction
    counts what is reserved.
    """
    free = layout.free
    total = memory.total_bytes
    settings = analysis.snapshot.settings
    fraction = settings.memory_fraction
    owner_of_free = owners[free.segment]
    is_usable = owner_of_free == ""
    pool_bytes = {
        name: int(free.n_bytes[owner_of_free == name].sum())
        for name in sorted({*owner_of_free} - {""})
    }
    other_pool = max(pool_bytes, key=pool_bytes.__getitem__, default="")
    keeper = ""
    if other_pool.startswith(_PRIVATE):
        blocks = layout.blocks
        keeper = _keeper(analysis, blocks.allocation[owners[blocks.segment] == other_pool])
    allowed_bytes = int(fraction * total) if total is not None and fraction < 1 else None
    return Shortage(
        block_bytes=request.block_bytes,
        segment_bytes=request.segment_bytes,
        device_free_bytes=memory.free_bytes,
        device_total_bytes=total,
        reserved_bytes=memory.reserved_bytes,
        live_bytes=analysis.replay.active.at(request.event),
        usable=_pieces(free.n_bytes[is_usable]),
        elsewhere=_pieces(free.n_bytes[~is_usable]),
        other_pool=other_pool,
        other_pool_bytes=pool_bytes.get(other_pool, 0),
        keeper=keeper,
        returnable_bytes=free_memory(analysis, layout, name="").private_bytes,
        allowed_bytes=allowed_bytes,
        fraction=fraction,
        counted_bytes=memory.reserved_bytes,
        splits_below=settings.max_split_size_bytes,
    )


def _keeper(analysis: DeviceAnalysis, rows: Int64Column) -> str:
    """Name the line with the most bytes of some allocations, and these bytes.

    Empty where there are no allocations.
    """
    sums = sums_by_name(
        analysis,
        analysis.features.mask(rows),
        analysis.lines.innermost,
        analysis.allocations.stack_id,
    )
    if not sums:
        return ""
    line = max(sums, key=lambda key: sums[key].block_bytes)
    n_bytes = format_bytes(sums[line].block_bytes)
    return f"{n_bytes} from {line.place if line else 'library code'}"


def _pieces(n_bytes: Int64Column) -> FreePieces:
    return FreePieces(int(n_bytes.sum()), len(n_bytes), int(n_bytes.max(initial=0)))
