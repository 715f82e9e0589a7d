"""Check of the allocator model on a file: its trace under its own settings must give its own segments.

The driver's part, the addresses of new segments and when the device is full, comes from the trace; everything
else is the model's: where each block goes, when memory is got and given back, what is left at the end.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.allocator.allocator_trace import PoolId
from snapconv.allocator.blocks import Block
from snapconv.allocator.caching_allocator import CachingAllocator, ModelOutOfMemory
from snapconv.answers.what_if.calls import AllocatorCalls, Operation
from snapconv.columns import Int64Column
from snapconv.notes import Progress
from snapconv.replay.rounding import RoundingRules
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.snapshot.segment_table import BlockState


@dataclass(frozen=True, slots=True)
class ModelCheck:
    """The outcome of the model's replay of a trace.

    ``event`` is the first where it differs from the trace, -1 if none; ``reason`` says how it differs there
    or in the final segments, and is empty where all is equal.
    """

    n_events: int
    event: int
    reason: str

    @property
    def is_exact(self) -> bool:
        """Whether every block lies where the trace has it, and the final segments are those of the file."""
        return not self.reason


_CALLS_PER_STEP = 1 << 16
_RETURNS = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)


class Difference(Exception):
    """The model differs from the trace; for this module alone."""


def check_model(
    calls: AllocatorCalls,
    device: DeviceSnapshot,
    addr: Int64Column,
    *,
    first: int = 0,
    after: int | None = None,
    progress: Progress | None = None,
) -> ModelCheck:
    """Replay all calls of a device under its own settings; ``addr`` are those of its allocations.

    The calls are those from the event ``first`` on and before ``after``; where the trace goes on, its final
    segments are not compared.
    """
    run = _Check(calls, device, addr, first)
    n_events = len(calls.events)
    event = -1
    try:
        rows = zip(calls.operation.tolist(), calls.row.tolist(), calls.event.tolist(), strict=True)
        for number, (operation, row, event) in enumerate(rows):
            if progress and not number % _CALLS_PER_STEP:
                progress("checking the model", number, len(calls))
            run.call(operation, row, event)
        event = -1
        if after in (None, n_events):
            run.compare_end()
    except Difference as difference:
        return ModelCheck(n_events, event, str(difference))
    return ModelCheck(n_events, -1, "")


class _Check:
    """The replay, beside the trace."""

    def __init__(self, calls: AllocatorCalls, device: DeviceSnapshot, addr: Int64Column, first: int) -> None:
        self.calls = calls
        self.device = device
        self.addr: list[int] = addr.tolist()
        self.addresses = TracedAddresses(calls.events, first)
        self.allocator = CachingAllocator(settings=calls.own, record=False, addresses=self.addresses)
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
        if operation == Operation.MALLOC:
            self._malloc(row, event)
        elif operation == Operation.EMPTY_CACHE:
            returned = self._returned_from(event)
            self._release_pools(returned)
            self.allocator.empty_cache()
            event = returned[-1] if returned else event
        elif operation == Operation.DEVICE_IS_FULL:
            self.full_event = event
        elif operation == Operation.FAILED_MALLOC:
            self._fail(event)
        elif block is None:
            return
        elif operation == Operation.COMPLETE_FREE:
            self.allocator.complete(block)
            del self.blocks[row]
        elif operation == Operation.REQUEST_FREE:
            self.allocator.give_back_later(block)
        else:
            self.allocator.give_back(block)
            del self.blocks[row]
        if self.full_event < 0:
            self._compare_reserved(event)

    def _malloc(self, row: int, event: int) -> None:
        calls, size = self.calls, self.rounded[row]
        pool = self.allocator.pool(calls.pools[int(calls.pool[row])], is_small=size <= SMALL_REQUEST_BYTES)
        self.addresses.go_on_to(event)
        # Where the device was full, it had as much as the trace has reserved afterwards.
        is_full = self._give_back(pool.id)
        self.allocator.capacity = int(calls.reserved_after[event]) if is_full else None
        try:
            block = self.allocator.take(pool, int(calls.stream[row]), size, int(calls.requested_bytes[row]))
        except ModelOutOfMemory:
            raise Difference("the model has no memory for a request that was served") from None
        self.allocator.capacity = None
        if block.addr != self.addr[row]:
            raise Difference(f"the model places a block at {block.addr:#x}, the trace at {self.addr[row]:#x}")
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

    def _fail(self, event: int) -> None:
        events = self.calls.events
        size = int(events.size[event])
        found = int(events.pool_id[event]) if events.pool_id is not None else -1
        pool_id = self.calls.pools[found if found >= 0 else self.calls.default_pool]
        pool = self.allocator.pool(pool_id, is_small=size <= SMALL_REQUEST_BYTES)
        self._give_back(pool_id)
        self.allocator.capacity = int(self.calls.reserved_after[event])
        try:
            self.allocator.take(pool, int(events.stream[event]), size, size)
        except ModelOutOfMemory:
            self.allocator.capacity = None
            return
        raise Difference("the model serves a request that failed")

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

    def _compare_reserved(self, event: int) -> None:
        expected, got = int(self.calls.reserved_after[event]), self.allocator.reserved_bytes
        if got != expected:
            raise Difference(f"the model has {got} bytes reserved, the trace {expected}")

    def compare_end(self) -> None:
        """Compare the segments and their blocks with those of the file."""
        expected, got = _of_file(self.device), _of_model(self.allocator)
        for addr in sorted(expected.keys() | got.keys()):
            if expected.get(addr) != got.get(addr):
                raise Difference(
                    f"at {addr:#x} the file has {expected.get(addr, 'no block')}, "
                    f"the model {got.get(addr, 'no block')}"
                )


@dataclass(frozen=True, slots=True)
class _Piece:
    """A block and the segment that it is in, as far as both sides have them."""

    size: int
    state: str
    stream: int
    is_small: bool
    is_first: bool

    def __str__(self) -> str:
        return f"{self.size} bytes {self.state} in a {'small' if self.is_small else 'large'} segment"


def _of_file(device: DeviceSnapshot) -> dict[int, _Piece]:
    blocks, segments = device.blocks, device.segments
    states = {BlockState.INACTIVE: "free", BlockState.ACTIVE: "in use", BlockState.PENDING_FREE: "pending"}
    return {
        int(blocks.addr[i]): _Piece(
            size=int(blocks.block_bytes[i]),
            state=states[BlockState(int(blocks.state[i]))],
            stream=int(segments.stream[segment]),
            is_small=bool(segments.is_small[segment]),
            is_first=bool(blocks.addr[i] == segments.addr[segment]),
        )
        for i, segment in enumerate(blocks.segment_id.tolist())
    }


def _of_model(allocator: CachingAllocator) -> dict[int, _Piece]:
    return {
        block.addr: _Piece(
            size=block.size,
            state="in use" if block.is_allocated else "pending" if block.is_active else "free",
            stream=block.stream,
            is_small=block.pool.is_small,
            is_first=block.before is None or not block.before.is_mapped,
        )
        for block in allocator.all_blocks()
    }


class TracedAddresses:
    """New segments lie where they lay on the real device."""

    def __init__(self, events: EventTable, first: int) -> None:
        got = np.flatnonzero((events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP))
        self._events: list[int] = got.tolist()
        self._addrs: list[int] = events.addr[got].tolist()
        self._since = self._until = first - 1

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
        """Nothing to do: the trace has the next address too."""
