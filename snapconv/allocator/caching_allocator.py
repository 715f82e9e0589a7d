"""malloc and free -> the segments and events that torch would have, without torch or a GPU.

A model of torch's CUDACachingAllocator (c10/cuda/CUDACachingAllocator.cpp, torch 2.1 to 2.13): same
block sizes, same placement, same events in the same order. Of a device it knows only the capacity.
Left out: graph capture's deferral of frees, checkpointed pools.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES, AllocatorSettings
from snapconv.allocator.allocator_trace import (
    DEFAULT_POOL,
    Frames,
    Ledger,
    PoolId,
    RecordedEvent,
)
from snapconv.allocator.blocks import (
    AddressSpace,
    Block,
    BlockPool,
    SegmentLayout,
    layout_blocks,
    old_segments,
    oversize_segments,
    raw_segment,
    total_size,
)
from snapconv.allocator.expandable_segments import ExpandableMemory, best_candidate
from snapconv.errors import RecorderError


@dataclass(slots=True, eq=False)
class ModelOutOfMemory(RecorderError):
    """The modelled device has no memory left for a request; its text is torch's message."""

    device: int
    segment_bytes: int
    capacity: int
    free_bytes: int
    allocated_bytes: int
    reserved_bytes: int
    allowed_bytes: int | None = None

    def __str__(self) -> str:
        """Write the message as malloc in CUDACachingAllocator.cpp does (2.13).

        ``allowed_bytes`` are those of a memory fraction; None: there is none.
        """
        in_use = self.capacity - self.free_bytes
        unallocated = self.reserved_bytes - self.allocated_bytes
        allowed = ""
        if self.allowed_bytes is not None:
            allowed = f"{_format(self.allowed_bytes)} allowed; "
        return (
            f"CUDA out of memory. Tried to allocate {_format(self.segment_bytes)}. "
            f"GPU {self.device} has a total capacity of {_format(self.capacity)} of which "
            f"{_format(self.free_bytes)} is free. "
            f"Process {os.getpid()} has {_format(in_use)} memory in use. {allowed}"
            f"Of the allocated memory {_format(self.allocated_bytes)} is allocated by PyTorch, and "
            f"{_format(unallocated)} is reserved by PyTorch but unallocated. "
            "If reserved but unallocated memory is large try setting "
            "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
            "See documentation for Memory Management  "
            "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
        )


_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))


def _format(n_bytes: int) -> str:
    """Write bytes as torch's format_size does, which has no unit above GiB."""
    for name, unit in _UNITS:
        if n_bytes > unit:
            return f"{n_bytes / unit:.2f} {name}"
    return f"{n_bytes} bytes"


class CachingAllocator:
    """One device's caching allocator.

    ``capacity`` is what the device has for this process. ``limit`` is what
    ``set_per_process_memory_fraction`` leaves of it, None without a fraction below 1. ``frames``
    arguments are torch's frame dicts, kept by identity; events without any take those of the
    allocation, as in torch. ``listener`` gets every event at once. ``ledger`` has all counters.
    """

    def __init__(
        self,
        *,
        device: int = 0,
        settings: AllocatorSettings | None = None,
        capacity: int | None = None,
        limit: int | None = None,
        clock: Callable[[], int] | None = None,
        addresses: AddressSpace | None = None,
        listener: Callable[[RecordedEvent], None] | None = None,
    ) -> None:
        self.device = device
        self.settings = settings or AllocatorSettings()
        self.limit = limit
        # All memory of the device, where a fraction of it is the ledger's capacity.
        self.total_bytes: int | None = None
        self.ledger = Ledger(clock or (lambda: 0), listener, capacity)
        self._addresses = addresses or AddressSpace()
        self._expandable = ExpandableMemory(self.settings, self.ledger, self._addresses)
        self._pools: dict[tuple[PoolId, bool], BlockPool] = {}
        # Private pools that nobody uses any more.
        self.unused_pools: set[PoolId] = set()
        # Whether a request that finds no room gives all cached segments back, and tries again.
        self.gives_back = True
        self._active: dict[int, Block] = {}
        # Addresses of blocks that other streams use too; freed blocks that are not complete, in the
        # order of their frees. Two of a trial may have one address: expandable segments grow into
        # space that is assumed.
        self._shared: set[int] = set()
        self._waiting: dict[Block, None] = {}

    def malloc(
        self,
        n_bytes: int,
        *,
        stream: int = 0,
        pool: PoolId = DEFAULT_POOL,
        frames: Frames | None = None,
    ) -> int:
        """Allocate and return the address; 0 for 0 bytes, which leaves no trace.

        Raises ModelOutOfMemory after recording an ``oom`` event.
        """
        if n_bytes == 0:
            return 0
        size = self.settings.round_size(n_bytes)
        block_pool = self.pool(pool, is_small=size <= SMALL_REQUEST_BYTES)
        return self.take(block_pool, stream, size, n_bytes, frames).addr

    def take(
        self,
        pool: BlockPool,
        stream: int,
        size: int,
        n_bytes: int,
        frames: Frames | None = None,
    ) -> Block:
        """Allocate a block of ``size`` bytes, rounded already, for a request of ``n_bytes``.

        Raises as ``malloc`` does.
        """
        block = self._best_fit(pool, stream, size)
        if block is None:
            block = self._grow(pool, stream, size, frames)
        if block is None:
            raise self._out_of_memory(pool, stream, size, frames)
        return self._hand_out(block, size, n_bytes, frames)

    def free(self, addr: int, *, frames: Frames | None = None) -> None:
        """Free a block; it completes at once unless another stream was recorded on it."""
        if addr:
            self.give_back(self._block(addr), frames)

    def give_back(self, block: Block, frames: Frames | None = None) -> None:
        """Free an allocated block, as ``free`` does with an address."""
        if block.addr in self._shared:
            self._shared.remove(block.addr)
            self.give_back_later(block, frames)
            return
        self._request_free(block, frames)
        self._complete(block, frames)

    def give_back_later(self, block: Block, frames: Frames | None = None) -> None:
        """Free an allocated block that stays active until its free completes.

        ``complete`` does that, and so does all that completes every pending free.
        """
        self._request_free(block, frames)
        block.is_pending = True
        self._waiting[block] = None

    def _request_free(self, block: Block, frames: Frames | None) -> None:
        block.is_allocated = False
        self.ledger.allocated_bytes -= block.size
        if self.ledger.listener is not None:
            self._record("free_requested", block, frames)

    def complete(self, block: Block, frames: Frames | None = None) -> None:
        """Complete a pending free, where it is not complete yet."""
        if block in self._waiting:
            del self._waiting[block]
            block.is_pending = False
            self._complete(block, frames)

    def record_stream(self, addr: int, stream: int) -> None:
        """Note that another stream uses the block: its free then waits for that stream."""
        if stream != self._block(addr).stream:
            self._shared.add(addr)

    def process_events(self, frames: Frames | None = None) -> None:
        """Let all streams end and complete every pending free (synchronize_and_free_events)."""
        for block in list(self._waiting):
            self.complete(block, frames)

    def empty_cache(self, *, frames: Frames | None = None) -> None:
        """Give unsplit free segments and whole free pages back to the device.

        Those of the default pool, and of private ones (CUDA graphs, MemPools) that nobody uses.
        """
        self.process_events(frames)
        for pool_id in (DEFAULT_POOL, *sorted(self.unused_pools)):
            self._empty(pool_id, frames)

    def empty_pool(self, pool_id: PoolId, *, frames: Frames | None = None) -> None:
        """Give the unsplit free segments of one pool back, after its pending frees."""
        for block in list(self._waiting):
            if block.pool.id == pool_id:
                self.complete(block, frames)
        self._empty(pool_id, frames)

    def _empty(self, pool_id: PoolId, frames: Frames | None) -> None:
        is_private = pool_id != DEFAULT_POOL
        for is_small in (is_private, not is_private):  # torch's order
            free = self.pool(pool_id, is_small=is_small).free_blocks()
            for block in free:
                if block.reservation is None and block.is_whole_segment:
                    self._release_segment(block, frames)
            self._expandable.release(
                [block for block in free if block.reservation is not None], frames
            )

    def adopt_layout(self, layouts: Iterable[SegmentLayout]) -> dict[int, Block]:
        """Take over segments as the present state, recording nothing; return the live blocks.

        They are returned by address. Pending frees wait for ``complete``. The address space of
        expandable segments is assumed: see ExpandableMemory.adopt.
        """
        adopted: list[Block] = []
        expandable: list[list[Block]] = []
        for layout in sorted(layouts, key=attrgetter("is_expandable")):
            pool = self.pool(layout.pool_id, is_small=layout.is_small)
            blocks = layout_blocks(layout, pool)
            adopted += blocks
            if layout.is_expandable and blocks:
                expandable.append(blocks)
        self._expandable.adopt(expandable)
        ledger = self.ledger
        for block in adopted:
            ledger.reserved_bytes += block.size
            if not block.is_active:
                block.pool.insert(block)
                continue
            self._active[block.addr] = block
            if block.is_allocated:
                ledger.block_taken(block.size, block.requested_size)
            else:
                ledger.requested_bytes += block.requested_size
                ledger.active_bytes += block.size
                self._waiting[block] = None
        ledger.max_reserved_bytes = max(ledger.max_reserved_bytes, ledger.reserved_bytes)
        return dict(self._active)

    def all_blocks(self) -> list[Block]:
        """List the free blocks of all pools and those in use or pending."""
        free = [block for pool in self._pools.values() for block in pool.free_blocks()]
        return [*free, *self._active.values()]

    def segments(self) -> list[dict[str, Any]]:
        """List the segments and their blocks as torch's snapshot does, by address."""
        # One segment per contiguous mapped range.
        heads = []
        for block in self.all_blocks():
            if block.before is None or not block.before.is_mapped:
                heads.append(block)
        heads.sort(key=attrgetter("addr"))
        return [raw_segment(head, device=self.device) for head in heads]

    def note_snapshot(self) -> None:
        """Record that a snapshot was taken, with what was active then."""
        self.ledger.record("snapshot", addr=0, size=self.ledger.active_bytes)

    def _block(self, addr: int) -> Block:
        block = self._active.get(addr)
        if block is None or not block.is_allocated:
            raise RecorderError(f"{addr:#x} is not the address of an allocated block")
        return block

    def pool(self, pool_id: PoolId, *, is_small: bool) -> BlockPool:
        """Return one of the two pools with that id; the first use creates it."""
        if (pool_id, is_small) not in self._pools:
            self._pools[pool_id, is_small] = BlockPool(pool_id, is_small=is_small)
        return self._pools[pool_id, is_small]

    def _best_fit(self, pool: BlockPool, stream: int, size: int) -> Block | None:
        """Take the best free block out of the pool, if one may serve (get_free_block)."""
        settings = self.settings
        if self.limit is not None and settings.garbage_collection_threshold:
            pool.n_searches += 1
        block = best_candidate(
            pool, stream, size, may_be_expandable=settings.expandable_segments
        )
        if block is None:
            return None
        if settings.max_split_size_bytes is not None:
            if not settings.is_oversize(size):
                # A block of max_split_size or more is kept for requests of that size.
                if settings.is_oversize(block.size):
                    return None
            elif block.size >= size + settings.max_non_split_rounding_bytes:
                return None
        pool.discard(block)
        return block

    def _grow(
        self, pool: BlockPool, stream: int, size: int, frames: Frames | None
    ) -> Block | None:
        """Get a new segment, at need after giving cached ones back (the middle of malloc)."""
        self._collect_garbage(frames)
        block = self._new_block(pool, stream, size, frames)
        if block is None and self._release_oversize(pool, stream, size, frames):
            block = self._new_block(pool, stream, size, frames)
        if block is None and self.gives_back:
            self.empty_cache(frames=frames)
            block = self._new_block(pool, stream, size, frames)
        return block

    def _collect_garbage(self, frames: Frames | None) -> None:
        """Give back the oldest free segments above the threshold (garbage_collect_cached_blocks).

        As in torch 2.1 to 2.13: only with a memory fraction, only in the default large pool.
        """
        threshold = self.settings.garbage_collection_threshold
        if self.limit is None or not threshold:
            return
        excess = self.ledger.reserved_bytes - int(threshold * self.limit)
        for block in old_segments(self.pool(DEFAULT_POOL, is_small=False), excess):
            self._release_segment(block, frames)

    def _new_block(
        self, pool: BlockPool, stream: int, size: int, frames: Frames | None
    ) -> Block | None:
        """Request memory from the device (alloc_block)."""
        n_bytes = self.settings.segment_size(size)
        if self.limit is not None and self.ledger.reserved_bytes + n_bytes > self.limit:
            return None
        if self.settings.expandable_segments:
            return self._expandable.allocate(pool, stream=stream, size=size, frames=frames)
        if not self.ledger.has_room(n_bytes):
            return None
        addr = self._addresses.take(n_bytes)
        block = Block(addr, n_bytes, stream, pool, segment_frames=frames)
        self.ledger.memory_taken(n_bytes)
        self._record_segment("segment_alloc", block, frames)
        return block

    def _hand_out(
        self, block: Block, size: int, n_bytes: int, frames: Frames | None
    ) -> Block:
        """Split the block if the rule requires it, and mark it allocated (alloc_found_block)."""
        if self.settings.should_split(block.size, size, is_small=block.pool.is_small):
            remainder = block
            block = block.cut_front(size)
            remainder.pool.insert(remainder)
        block.is_allocated = True
        block.requested_size = n_bytes
        block.frames = frames
        self._active[block.addr] = block
        self.ledger.block_taken(block.size, n_bytes)
        if self.ledger.listener is not None:
            self._record("alloc", block, frames)
        return block

    def _complete(self, block: Block, frames: Frames | None) -> None:
        """Make a freed block available and merge it with its free neighbours (free_block)."""
        self.ledger.requested_bytes -= block.requested_size
        self.ledger.active_bytes -= block.size
        if self.ledger.listener is not None:
            self._record("free_completed", block, frames)
        block.frames = None
        self._active.pop(block.addr, None)
        block.rejoin()

    def _release_oversize(
        self, pool: BlockPool, stream: int, size: int, frames: Frames | None
    ) -> bool:
        """Give back oversize blocks until the request may fit (release_available_cached_blocks)."""
        limit = self.settings.max_split_size_bytes
        if limit is None:
            return False
        min_bytes = max(size, limit)
        chosen = oversize_segments(pool, stream, min_bytes=min_bytes, limit=limit)
        for block in chosen:
            self._release_segment(block, frames)
        return total_size(chosen) >= min_bytes

    def _release_segment(self, block: Block, frames: Frames | None) -> None:
        """Give an unsplit segment back to the device (release_block)."""
        block.pool.discard(block)
        self._addresses.give_back(block.addr, block.size)
        self.ledger.reserved_bytes -= block.size
        self._record_segment("segment_free", block, frames)

    def _out_of_memory(
        self, pool: BlockPool, stream: int, size: int, frames: Frames | None
    ) -> ModelOutOfMemory:
        """Record the ``oom`` event, whose size is the rounded request, and build the error."""
        allowed_bytes = self.ledger.capacity or 0
        capacity = allowed_bytes if self.total_bytes is None else self.total_bytes
        free_bytes = max(capacity - self.ledger.reserved_bytes, 0)
        self.ledger.record(
            "oom", addr=free_bytes, size=size, stream=stream, pool=pool.id, frames=frames
        )
        return ModelOutOfMemory(
            device=self.device,
            segment_bytes=self.settings.segment_size(size),
            capacity=capacity,
            free_bytes=free_bytes,
            allocated_bytes=self.ledger.allocated_bytes,
            reserved_bytes=self.ledger.reserved_bytes,
            allowed_bytes=allowed_bytes if allowed_bytes < capacity else None,
        )

    def _record_segment(self, action: str, block: Block, frames: Frames | None) -> None:
        self.ledger.record(
            action,
            addr=block.addr,
            size=block.size,
            stream=block.stream,
            pool=block.pool.id,
            frames=block.segment_frames if frames is None else frames,
        )

    def _record(self, action: str, block: Block, frames: Frames | None) -> None:
        self.ledger.record(
            action,
            addr=block.addr,
            size=block.requested_size,
            stream=block.stream,
            pool=block.pool.id,
            frames=block.frames if frames is None else frames,
            block_bytes=block.size,
        )
