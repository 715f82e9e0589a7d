"""A trial: the calls of a trace, made to the allocator model under other settings or memory.

``try_out`` is pure, and the same for every question that a replay can answer. Its uncertainties are
in ``Outcome.assumptions``; without any, the outcome is what torch would have done.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES, AllocatorSettings
from snapconv.allocator.allocator_trace import Ledger, PoolId
from snapconv.allocator.blocks import AddressSpace, Block, BlockPool
from snapconv.allocator.caching_allocator import CachingAllocator, ModelOutOfMemory
from snapconv.columns import Int64Column, distinct, plain_rows
from snapconv.hypotheses.allocator_calls import AllocatorCalls, CallKind
from snapconv.notes import Progress
from snapconv.replay.rounding import RoundingRules
from snapconv.units import counted

_CALLS_PER_STEP = 1 << 16
# Settings that put no block elsewhere, as long as memory does not run out.
_MOVES_NOTHING = ("memory_fraction", "garbage_collection_threshold", "conf", "cuda_conf")
# Above every device address, so that new segments collide with none of the file.
_FIRST_ADDR = 1 << 50


@dataclass(frozen=True, slots=True)
class Trial:
    """The settings that are tried, and the memory that torch can have.

    ``capacity`` None never runs out. A ``memory_fraction`` below 1 is of ``device_bytes``, or of
    the capacity where that is not given; garbage collection needs it. ``is_placed_anew``: the
    blocks of before the trace are placed anew, also where the settings would let them stay where
    they were. ``is_check``: the device is full where it was in the trace, and what is reserved is
    compared with the trace after every request.
    """

    settings: AllocatorSettings
    capacity: int | None = None
    device_bytes: int | None = None
    is_placed_anew: bool = False
    is_check: bool = False

    @property
    def limit(self) -> int | None:
        """The bytes that set_per_process_memory_fraction leaves; None: no such limit."""
        total = self.capacity if self.device_bytes is None else self.device_bytes
        fraction = self.settings.memory_fraction
        return int(fraction * total) if total is not None and fraction < 1 else None


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that found no memory: at which event, for how much, and the memory then.

    ``event`` is -1 where the memory before the first event does not fit, ``row`` the allocation, -1
    for a request that failed in the trace too. ``pool_free_bytes``, the largest block of
    ``pool_largest_bytes``, are what could have served it if it were in one piece: of its pool and
    stream. ``short_bytes`` is what the device, or the limit, lacked for the segment that the
    request needed.
    """

    event: int
    row: int
    requested_bytes: int
    short_bytes: int
    pool_free_bytes: int
    pool_largest_bytes: int
    reserved_bytes: int
    allocated_bytes: int


@dataclass(slots=True)
class Outcome:
    """The outcome of a trial; ``ledger`` has the peaks and the counts of segments.

    ``ran_out`` is the first request that failed; one that failed in the trace too is in
    ``failed_again`` (events) and the replay goes on as the trace does, after another it ends.
    ``served`` are events of requests that failed in the trace and now do not. ``is_placed_anew``:
    the blocks of before the trace were allocated anew, and do not lie where they lay.
    ``differs_at`` is the event of a check at which the trace went on otherwise, None for none.
    """

    trial: Trial
    ledger: Ledger
    ran_out: FailedRequest | None = None
    failed_again: list[int] = field(default_factory=list)
    served: list[int] = field(default_factory=list)
    is_placed_anew: bool = False
    assumptions: tuple[str, ...] = ()
    differs_at: int | None = None

    @property
    def fits(self) -> bool:
        """Whether every request found memory."""
        return self.ran_out is None

    @property
    def reserved_bytes(self) -> int:
        """The most bytes that were reserved."""
        return self.ledger.max_reserved_bytes

    @property
    def n_driver_calls(self) -> int:
        """The number of calls that got segments, or pages of them, from the driver."""
        return self.ledger.n_segment_allocs + self.ledger.n_segment_maps


def try_out(
    calls: AllocatorCalls, trial: Trial, *, progress: Progress | None = None
) -> Outcome:
    """Make the calls of a trace to the allocator model, with a trial's settings and memory.

    The model begins with the memory that the trace begins with: as it was, where the settings place
    blocks as the file's own do, otherwise with the blocks allocated anew in the order of their
    addresses. Frees complete where the trace completed them, or where the device is full.
    """
    run = _Run(calls, trial)
    if run.start():
        run.run(progress)
    run.outcome.assumptions = tuple(run.assumptions())
    return run.outcome


def block_sizes(calls: AllocatorCalls) -> Int64Column:
    """Return the bytes of every block under the file's own settings without a limit.

    The last entry is that of no block. Small pools split off all that is left, as all do with
    expandable segments: the block is the rounded request. So only the others are replayed.
    """
    run = _Run(calls, Trial(calls.file_settings))
    run.start()
    if not calls.file_settings.expandable_segments:
        is_replayed = np.array(run.sizes) > SMALL_REQUEST_BYTES
        run.calls = calls.select(is_replayed[calls.row] | (calls.row < 0))
        run.run(None)
    return np.array(run.sizes, np.int64)


def capacity_at_oom(calls: AllocatorCalls, event: int) -> int:
    """Return the bytes that the device had for torch when a request failed (an ``oom`` event).

    Reserved and free memory together. Where the segment would have fit into what was free, a memory
    fraction was the limit: it lies less than that segment above what was reserved, which is
    returned.
    """
    reserved = int(calls.reserved_after[event])
    free = int(calls.events.addr[event])
    segment = calls.file_settings.segment_size(int(calls.events.size[event]))
    return reserved + free if free < segment else reserved


class _Run:
    """One replay. Its blocks are at the position of their rows.

    ``sizes`` has the rounded request of each row, and from its malloc on the bytes of its block.
    """

    def __init__(self, calls: AllocatorCalls, trial: Trial) -> None:
        self.calls = calls
        self.trial = trial
        self.allocator = CachingAllocator(
            settings=trial.settings,
            capacity=trial.capacity,
            limit=trial.limit,
            addresses=AddressSpace(_FIRST_ADDR),
        )
        # One row more, for calls that are about no allocation.
        self.requested = np.append(calls.requested_bytes, 0)
        self.stream = np.append(calls.stream, 0)
        rounded = RoundingRules(trial.settings).rounded(self.requested)
        pool = np.append(calls.pool, calls.default_pool)
        self.pool_number = pool * 2 + (rounded > SMALL_REQUEST_BYTES)
        self.sizes: list[int] = rounded.tolist()
        self.blocks: list[Block | None] = [None] * len(self.sizes)
        self.outcome = Outcome(trial, self.allocator.ledger)
        self.is_full = False

    def start(self) -> bool:
        """Fill the model with the memory before the first call; False where it does not fit."""
        layout = self.calls.start
        reserved = sum(segment.size for segment in layout.segments)
        limits = (self.trial.capacity, self.trial.limit)
        fits = all(limit is None or reserved <= limit for limit in limits)
        self.outcome.is_placed_anew = self.trial.is_placed_anew or not (
            fits and self._is_alike()
        )
        if self.outcome.is_placed_anew:
            return self._place_anew()
        for addr, block in self.allocator.adopt_layout(layout.segments).items():
            row = layout.rows[addr]
            self.blocks[row] = block
            self.sizes[row] = block.size
        return True

    def _is_alike(self) -> bool:
        """Return whether the settings and the requests place blocks as the trace did."""
        unmoved = {name: getattr(self.calls.file_settings, name) for name in _MOVES_NOTHING}
        if replace(self.trial.settings, **unmoved) != self.calls.file_settings:
            return False
        layout = self.calls.start
        for segment in layout.segments:
            for live in segment.live:
                if live.requested_size != self.requested[layout.rows[live.addr]]:
                    return False
        return True

    def _place_anew(self) -> bool:
        """Allocate the blocks of before the trace in the order of their addresses."""
        pending = []
        for segment in self.calls.start.segments:
            for live in segment.live:
                row = self.calls.start.rows[live.addr]
                block = self._take(
                    -1, row, segment.pool_id, segment.stream, self.sizes[row]
                )
                if block is None:
                    return False
                self.blocks[row] = block
                self.sizes[row] = block.size
                if live.is_pending:
                    pending.append(block)
        for block in pending:
            self.allocator.give_back_later(block)
        return True

    def run(self, progress: Progress | None) -> None:
        """Make all calls, or those until memory runs out."""
        n_calls = len(self.calls)
        for first in range(0, n_calls, _CALLS_PER_STEP):
            if progress:
                progress("replaying", first, n_calls)
            if not self._make(first, min(first + _CALLS_PER_STEP, n_calls)):
                return

    def _make(self, first: int, last: int) -> bool:
        """Make a run of calls; False where memory ran out.

        One flat loop: at millions of events a function call per event would cost as much as the
        rest.
        """
        ledger = self.allocator.ledger
        blocks = self.blocks
        sizes = self.sizes
        take = self.allocator.take
        give_back = self.allocator.give_back
        reserved_after = self.calls.reserved_after
        is_check = self.trial.is_check
        for (operation, row, event, n_bytes, stream), pool in self._plain_calls(
            slice(first, last)
        ):
            if operation == 0:  # MALLOC
                # A full device had as much as the trace has reserved after the call.
                if is_check and self.is_full:
                    ledger.capacity = int(reserved_after[event])
                try:
                    blocks[row] = block = take(pool, stream, sizes[row], n_bytes)
                    sizes[row] = block.size
                except ModelOutOfMemory:
                    self._fail(event, row, pool, stream)
                    self.outcome.differs_at = event
                    return False
                if is_check and self.is_full:
                    self.is_full, ledger.capacity = False, self.trial.capacity
                if is_check and ledger.reserved_bytes != reserved_after[event]:
                    self.outcome.differs_at = event
                    return False
            elif operation == 1:  # FREE
                freed = blocks[row]
                if freed is not None:
                    give_back(freed)
                    blocks[row] = None
            else:
                self._make_rare(operation, row, event)
        return True

    def _plain_calls(
        self, part: slice
    ) -> Iterator[tuple[tuple[int, int, int, int, int], BlockPool]]:
        """Return calls as plain values (operation, row, event, bytes, stream), with their pools."""
        calls = self.calls.select(part)
        row = calls.row
        columns = (calls.operation, row, calls.event, self.requested[row], self.stream[row])
        return zip(plain_rows(*columns), self._pools(row), strict=True)

    def _make_rare(self, operation: int, row: int, event: int) -> None:
        block = self.blocks[row]
        if operation == CallKind.EMPTY_CACHE:
            self.allocator.empty_cache()
        elif operation == CallKind.FAILED_MALLOC:
            self._repeat_failed(event)
        elif operation == CallKind.DEVICE_IS_FULL:
            self.is_full = self.trial.is_check
        elif block is not None and operation == CallKind.REQUEST_FREE:
            self.allocator.give_back_later(block)
        elif block is not None and operation == CallKind.COMPLETE_FREE:
            self.allocator.complete(block)
            self.blocks[row] = None

    def _repeat_failed(self, event: int) -> None:
        """Request what failed in the trace; give it back if it is served, as the trace lacks it."""
        if self.trial.is_check:
            self.allocator.ledger.capacity = int(self.calls.reserved_after[event])
        elif self.trial.capacity is None and self.trial.limit is None:
            self.outcome.served.append(event)
            return
        calls = self.calls
        events = calls.events
        pool = events.pool_at(event)
        pool_id = calls.pools[pool if pool >= 0 else calls.default_pool]
        size = int(events.size[event])
        block = self._take(event, -1, pool_id, int(events.stream[event]), size)
        self.is_full = False
        self.allocator.ledger.capacity = self.trial.capacity
        if block is None:
            self.outcome.failed_again.append(event)
        else:
            self.outcome.served.append(event)
            self.outcome.differs_at = event
            self.allocator.give_back(block)

    def _take(
        self, event: int, row: int, pool_id: PoolId, stream: int, size: int
    ) -> Block | None:
        """Request a block of a rounded size; None where memory runs out."""
        pool = self.allocator.pool(pool_id, is_small=size <= SMALL_REQUEST_BYTES)
        requested = int(self.requested[row]) if row >= 0 else size
        try:
            return self.allocator.take(pool, stream, size, requested)
        except ModelOutOfMemory:
            self._fail(event, row, pool, stream)
            return None

    def _pools(self, row: Int64Column) -> Iterator[BlockPool]:
        """Return the pools of some calls' allocations; no other pool is made."""
        numbers = self.pool_number[row]
        pools = {}
        for number in distinct(numbers).tolist():
            pool_id = self.calls.pools[number // 2]
            pools[number] = self.allocator.pool(pool_id, is_small=number % 2 == 0)
        return map(pools.__getitem__, numbers.tolist())

    def _fail(self, event: int, row: int, pool: BlockPool, stream: int) -> None:
        if self.outcome.ran_out is not None:
            return
        fitting = [size for size, _, _ in pool.free_of(stream)]
        ledger = self.allocator.ledger
        if row >= 0:  # what a trace began with has no event
            requested = int(self.requested[row])
            rounded = self.sizes[row]
        else:
            requested = rounded = int(self.calls.events.size[event])
        limits = (ledger.capacity, self.trial.limit)
        limit = min((limit for limit in limits if limit is not None), default=0)
        room = max(limit - ledger.reserved_bytes, 0)
        self.outcome.ran_out = FailedRequest(
            event=event,
            row=row,
            requested_bytes=requested,
            short_bytes=max(self.trial.settings.segment_size(rounded) - room, 1),
            pool_free_bytes=sum(fitting),
            pool_largest_bytes=max(fitting, default=0),
            reserved_bytes=ledger.reserved_bytes,
            allocated_bytes=ledger.allocated_bytes,
        )

    def assumptions(self) -> Iterator[str]:
        """List what the outcome assumes beside the trace."""
        calls = self.calls
        start = calls.start
        if self.trial.settings.garbage_collection_threshold and self.trial.limit is None:
            yield (
                "garbage_collection_threshold did nothing: it needs per_process_memory_fraction "
                "below 1, and a capacity that this is a part of"
            )
        if start.rows and self.outcome.is_placed_anew:
            placed = (
                f"{counted(len(start.rows), 'block')} from before the trace placed anew"
            )
            yield f"{placed}, in the order of their addresses"
        elif start.n_inexact:
            yield (
                f"{counted(start.n_inexact, 'block')} from before the trace may be "
                f"larger than requested"
            )
        if start.n_outside:
            yield (
                f"left out: {counted(start.n_outside, 'block')} from before the trace "
                f"that no segment has"
            )
        if self.trial.settings.garbage_collection_threshold and start.segments:
            yield "what was free before the trace is taken as free since it began"
        if len(distinct(calls.stream)) > 1:
            yield (
                "on several streams, freed memory becomes reusable at the same events "
                "as in the trace"
            )
        if calls.n_unsure_returns:
            yield (
                f"{calls.n_unsure_returns} times segments were given back just before others were "
                "got: taken as the allocator's doing on a full device, not as empty_cache()"
            )
        if calls.n_missing:
            yield f"{calls.n_missing} allocs or frees are missing in the trace"
