"""Check of the allocator model on a file, block by block: under its own settings it gives its own segments.

The driver's part, the addresses of new segments and when the device is full, comes from the trace; everything
else is the model's: where each block goes, when memory is got and given back, what is left at the end.
"""

from bisect import bisect_right

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.allocator.allocator_trace import PoolId
from snapconv.allocator.blocks import Block
from snapconv.allocator.caching_allocator import CachingAllocator, ModelOutOfMemory
from snapconv.answers.what_if.calls import AllocatorCalls, Operation
from snapconv.columns import Int64Column
from snapconv.replay.rounding import RoundingRules
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.snapshot.segment_table import BlockState

_RETURNS = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_Piece = tuple[int, ...]


class _Difference(Exception):
    """The model differs from the trace."""


def find_difference(calls: AllocatorCalls, device: DeviceSnapshot, addr: Int64Column) -> str:
    """Say where a replay of all calls first differs from the trace, and how; empty: nowhere.

    ``addr`` are the addresses of the allocations.
    """
    run, event = _Check(calls, addr), -1
    rows = zip(calls.operation.tolist(), calls.row.tolist(), calls.event.tolist(), strict=True)
    try:
        for operation, row, event in rows:
            run.call(operation, row, event)
    except _Difference as difference:
        return f"from event {event} on: {difference}"
    differing = _pieces_of_file(device) ^ _pieces_of_model(run.allocator)
    return f"at the end: the block at {min(differing)[0]:#x} is another" if differing else ""


class _Check:
    """The replay, beside the trace."""

    def __init__(self, calls: AllocatorCalls, addr: Int64Column) -> None:
        self.calls = calls
        self.addr: list[int] = addr.tolist()
        self.addresses = _TracedAddresses(calls.events)
        self.allocator = CachingAllocator(settings=calls.own, addresses=self.addresses)
        self.rounded: list[int] = RoundingRules(calls.own).rounded(calls.requested_bytes).tolist()
        self.blocks: dict[int, Block] = {
            calls.start.rows[addr]: block
            for addr, block in self.allocator.adopt_layout(calls.start.segments).items()
        }
        # Where the trace gives segments back because the next malloc finds the device full; -1: it does not.
        self.full_event = -1

    def call(self, operation: int, row: int, event: int) -> None:
        """Make one call, and compare what can be compared."""
        block = self.blocks.get(row)
        if operation in (Operation.MALLOC, Operation.FAILED_MALLOC):
            self._request(row, event)
        elif operation == Operation.EMPTY_CACHE:
            returned = self._returned_from(event)
            self._release_pools(returned)
            self.allocator.empty_cache()
            event = returned[-1] if returned else event
        elif operation == Operation.DEVICE_IS_FULL:
            self.full_event = event
        elif block is None:
            return
        elif operation == Operation.REQUEST_FREE:
            self.allocator.give_back_later(block)
        else:
            free = self.allocator.give_back if operation == Operation.FREE else self.allocator.complete
            free(block)
            del self.blocks[row]
        expected, got = int(self.calls.reserved_after[event]), self.allocator.ledger.reserved_bytes
        if self.full_event < 0 and got != expected:
            raise _Difference(f"the model has {got} bytes reserved, the trace {expected}")

    def _request(self, row: int, event: int) -> None:
        """Make a request; ``row`` -1 is one that failed."""
        calls = self.calls
        if row >= 0:
            self.addresses.go_on_to(event)
            stream, pool_id = int(calls.stream[row]), calls.pools[int(calls.pool[row])]
            size, n_bytes = self.rounded[row], int(calls.requested_bytes[row])
        else:
            stream, pool_id = int(calls.events.stream[event]), calls.pool_of_event(event)
            size = n_bytes = int(calls.events.size[event])
        pool = self.allocator.pool(pool_id, is_small=size <= SMALL_REQUEST_BYTES)
        # Where the device was full, it had as much as the trace has reserved afterwards.
        is_full = self._give_back(pool_id) or row < 0
        self.allocator.capacity = int(calls.reserved_after[event]) if is_full else None
        try:
            block = self.allocator.take(pool, stream, size, n_bytes)
        except ModelOutOfMemory:
            if row >= 0:
                raise _Difference("the model has no memory for a request that was served") from None
            self.allocator.capacity = None
            return
        self.allocator.capacity = None
        if row < 0:
            raise _Difference("the model serves a request that failed")
        if block.addr != self.addr[row]:
            raise _Difference(
                f"the model places a block at {block.addr:#x}, the trace at {self.addr[row]:#x}"
            )
        self.blocks[row] = block

    def _give_back(self, pool: PoolId) -> bool:
        """Give segments back before a malloc in that pool; True where the malloc has to do it by itself.

        Where the trace gives back all that ``empty_cache()`` does, it is the same which of the two it was.
        """
        event, self.full_event = self.full_event, -1
        if event < 0:
            return False
        returned = self._returned_from(event)
        self._release_pools(returned, besides=pool)
        events = self.calls.events
        traced = {(int(events.addr[i]), int(events.size[i])) for i in returned}
        if traced != set(self.allocator.releasable_ranges()):
            return True
        self.allocator.empty_cache()
        return False

    def _returned_from(self, event: int) -> list[int]:
        """Find the events that give memory back, in the run that begins at an event."""
        action, returned = self.calls.events.action, []
        while event < len(action) and action[event] in (*_RETURNS, Action.FREE_COMPLETED):
            if action[event] in _RETURNS:
                returned.append(event)
            event += 1
        return returned

    def _release_pools(self, returned: list[int], *, besides: PoolId | None = None) -> None:
        """Let private pools be emptied whose segments are given back by these events.

        The graph or MemPool that such a pool was for is gone. ``besides`` is one that is still used: a malloc
        gives oversize segments of its own pool back.
        """
        if len(self.calls.pools) == 1:
            return
        free = sorted((block.addr, block.size, block) for block in self.allocator.free_blocks())
        for event in returned:
            addr = int(self.calls.events.addr[event])
            place = bisect_right(free, addr, key=lambda found: found[0]) - 1
            block = free[place][2] if place >= 0 else None
            if block is not None and addr < block.addr + block.size and block.pool.id != besides:
                self.allocator.release_pool(block.pool.id)


def _pieces_of_file(device: DeviceSnapshot) -> set[_Piece]:
    """Return the final blocks: address, size, state, stream, and whether its segment is small, and begins."""
    blocks, segments, of = device.blocks, device.segments, device.blocks.segment_id
    columns = (segments.stream[of], segments.is_small[of], blocks.addr == segments.addr[of])
    both = (blocks.addr, blocks.block_bytes, blocks.state, *columns)
    return set(zip(*(column.tolist() for column in both), strict=True))


def _pieces_of_model(allocator: CachingAllocator) -> set[_Piece]:
    pending, free = BlockState.PENDING_FREE, BlockState.INACTIVE
    return {
        (
            block.addr,
            block.size,
            int(BlockState.ACTIVE if block.is_allocated else pending if block.is_active else free),
            block.stream,
            block.pool.is_small,
            block.before is None or not block.before.is_mapped,
        )
        for block in allocator.all_blocks()
    }


class _TracedAddresses:
    """Addresses of new segments: where they lay on the real device."""

    def __init__(self, events: EventTable) -> None:
        got = np.flatnonzero((events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP))
        self._events: list[int] = got.tolist()
        self._addrs: list[int] = events.addr[got].tolist()
        self._since = self._until = -1

    def go_on_to(self, event: int) -> None:
        """Let what the trace got since the last such event, up to this one, be what is got now."""
        self._since, self._until = self._until, event

    def take(self, n_bytes: int) -> int:
        """Return the address of the first segment that was got just now, 0 if there is none."""
        first = bisect_right(self._events, self._since)
        if first == len(self._events) or self._events[first] > self._until:
            return 0
        return self._addrs[first]

    def give_back(self, addr: int, n_bytes: int) -> None:
        """Do nothing: the trace has the next address too."""
