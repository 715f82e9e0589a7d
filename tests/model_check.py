"""Check of the allocator model on a file, block by block: under its own settings it gives its own segments.

The driver's part, the addresses of new segments and when the device is full, comes from the trace;
everything else is the model's: where each block goes, when memory is got and given back, what is
left at the end.
"""

from bisect import bisect_right

import numpy as np

from snapconv.allocator.blocks import AddressSpace
from snapconv.allocator.caching_allocator import CachingAllocator
from snapconv.columns import Int64Column
from snapconv.hypotheses.allocator_calls import AllocatorCalls, CallKind
from snapconv.hypotheses.model_replay import ModelReplay
from snapconv.hypotheses.trial_outcome import Trial
from snapconv.hypotheses.trial_requests import requests_of
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.snapshot.segment_table import BlockState

_Piece = tuple[int, ...]


def find_difference(calls: AllocatorCalls, device: DeviceSnapshot, addr: Int64Column) -> str:
    """Say where a replay of all calls first differs from the trace, and how; empty: nowhere.

    ``addr`` are the addresses of the allocations.
    """
    run, addresses = (
        ModelReplay(requests_of(calls, Trial(calls.file_settings, is_check=True))),
        _TracedAddresses(calls.events),
    )
    run.allocator = CachingAllocator(settings=calls.file_settings, addresses=addresses)
    assert run.start()
    rows = zip(calls.operation.tolist(), calls.row.tolist(), calls.event.tolist(), strict=True)
    for number, (operation, row, event) in enumerate(rows):
        if operation == CallKind.MALLOC:
            addresses.go_on_to(event)
        run.make(calls.select(slice(number, number + 1)))
        if run.outcome.differs_at is not None:
            return (
                f"from event {event} on: the model has {run.allocator.ledger.reserved_bytes} "
                f"bytes reserved"
            )
        block = run.blocks[row] if operation == CallKind.MALLOC else None
        if block is not None and block.addr != addr[row]:
            return (
                f"from event {event} on: the model places a block at {block.addr:#x}, not "
                f"{addr[row]:#x}"
            )
    differing = _pieces_of_file(device) ^ _pieces_of_model(run.allocator)
    return f"at the end: the block at {min(differing)[0]:#x} is another" if differing else ""


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


class _TracedAddresses(AddressSpace):
    """Addresses of new segments: where they lay on the real device."""

    def __init__(self, events: EventTable) -> None:
        super().__init__()
        got = np.flatnonzero(
            (events.action == Action.SEGMENT_ALLOC) | (events.action == Action.SEGMENT_MAP)
        )
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
