"""Calls made to the allocator model: the twin of compiled_replay.py, and its specification."""

from collections.abc import Iterator

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.allocator.allocator_trace import PoolId
from snapconv.allocator.blocks import AddressSpace, Block, BlockPool
from snapconv.allocator.caching_allocator import CachingAllocator, ModelOutOfMemory
from snapconv.columns import Int64Column, distinct, plain_rows
from snapconv.hypotheses.allocator_calls import AllocatorCalls, CallKind
from snapconv.hypotheses.trial_outcome import FailedRequest, Outcome
from snapconv.hypotheses.trial_requests import FIRST_ADDR, TrialRequests


class ModelReplay:
    """One replay. Its blocks are at the position of their rows.

    ``sizes`` has the rounded request of each row, and from its malloc on the bytes of its block.
    """

    def __init__(self, requests: TrialRequests) -> None:
        calls = requests.calls
        trial = requests.trial
        self.calls = calls
        self.trial = trial
        self.allocator = CachingAllocator(
            settings=trial.settings,
            capacity=trial.capacity,
            limit=trial.limit,
            addresses=AddressSpace(FIRST_ADDR),
        )
        self.requests = requests
        self.requested = requests.requested
        self.stream = requests.stream
        self.pool_number = requests.pool_number
        self.sizes: list[int] = requests.rounded.tolist()
        self.blocks: list[Block | None] = [None] * len(self.sizes)
        self.outcome = Outcome(
            trial, self.allocator.ledger, is_placed_anew=requests.is_placed_anew
        )
        self.is_full = False

    def start(self) -> bool:
        """Fill the model with the memory before the first call; False where it does not fit."""
        if self.requests.is_placed_anew:
            return self._place_anew()
        layout = self.calls.start
        for addr, block in self.allocator.adopt_layout(layout.segments).items():
            row = layout.rows[addr]
            self.blocks[row] = block
            self.sizes[row] = block.size
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

    def make(self, calls: AllocatorCalls) -> bool:
        """Make some calls; False where memory ran out.

        One flat loop: at millions of events a function call per event would cost as much as the
        rest.
        """
        ledger = self.allocator.ledger
        blocks = self.blocks
        sizes = self.sizes
        take = self.allocator.take
        give_back = self.allocator.give_back
        reserved_after = calls.reserved_after
        is_check = self.trial.is_check
        for (operation, row, event, n_bytes, stream), pool in self._plain_calls(calls):
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
        self, calls: AllocatorCalls
    ) -> Iterator[tuple[tuple[int, int, int, int, int], BlockPool]]:
        """Return calls as plain values (operation, row, event, bytes, stream), with their pools."""
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
