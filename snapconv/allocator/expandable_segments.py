"""Expandable segments: mapping pages to make a block grow, unmapping them to give memory back.

The rules of find_expandable_block, try_allocate_expandable_block, map_block and unmap_block in
c10/cuda/CUDACachingAllocator.cpp. Small pools grow by pages of 2 MiB, large ones by
large_segment_size (20 MiB); a page is backed by memory as a whole or not at all.
"""

from snapconv.allocator.allocator_trace import Frames, Ledger
from snapconv.allocator.blocks import AddressSource, Block, BlockPool, Reservation, neighbours_from

UNLIMITED_ADDRESS_SPACE = 1 << 40


class ExpandableMemory:
    """Grows and shrinks the expandable segments of one device."""

    def __init__(self, ledger: Ledger, addresses: AddressSource, *, capacity: int | None) -> None:
        self._ledger = ledger
        self._addresses = addresses
        self._capacity = capacity

    def allocate(
        self, pool: BlockPool, *, stream: int, size: int, page_size: int, frames: Frames | None
    ) -> Block | None:
        """Map pages until one free block has ``size`` bytes; return it, out of its pool.

        None when memory runs out; pages mapped until then stay mapped and free, as in torch.
        """
        block: Block | None = self._candidate(pool, stream=stream, size=size, page_size=page_size)
        if block is None:
            return None
        if not block.is_mapped and not self._map(block, min(block.size, size), frames):
            return None
        while block.size < size:
            hole = block.after
            if hole is None or not self._map(hole, min(size - block.size, hole.size), frames):
                return None
            block = hole
        pool.discard(block)
        return block

    def release(self, blocks: list[Block], frames: Frames | None) -> None:
        """Unmap every whole page inside the given free blocks."""
        for block in blocks:
            if self._unmap(block, frames) and block.is_whole_segment and block.reservation is not None:
                block.pool.discard(block)
                self._addresses.give_back(block.reservation.addr, block.reservation.size)

    def _candidate(self, pool: BlockPool, *, stream: int, size: int, page_size: int) -> Block | None:
        """Find the lowest run of free and unmapped blocks that is large enough, or reserve a new range."""
        for hole in pool.unmapped_blocks(stream):
            first = hole.before if hole.before is not None and not hole.before.is_active else hole
            if _is_large_enough(first, size):
                return first
        # torch reserves 9/8 of the device's memory, in whole pages.
        wanted = UNLIMITED_ADDRESS_SPACE if self._capacity is None else self._capacity * 9 // 8
        n_bytes = -(-wanted // page_size) * page_size
        if n_bytes < size:
            return None
        reservation = Reservation(self._addresses.take(n_bytes), n_bytes, page_size)
        block = Block(reservation.addr, n_bytes, stream, pool, reservation, is_mapped=False)
        pool.insert(block)
        return block

    def _map(self, hole: Block, size: int, frames: Frames | None) -> bool:
        """Back the first ``size`` bytes of a hole, rounded up to pages, and merge with neighbours."""
        assert hole.reservation is not None
        page_size = hole.reservation.page_size
        n_bytes = -(-size // page_size) * page_size
        if self._capacity is not None and self._ledger.reserved_bytes + n_bytes > self._capacity:
            return False
        addr = hole.addr
        hole.pool.discard(hole)
        if n_bytes < hole.size:
            rest = Block(
                addr + n_bytes,
                hole.size - n_bytes,
                hole.stream,
                hole.pool,
                hole.reservation,
                is_mapped=False,
            )
            rest.link(hole, hole.after)
            hole.pool.insert(rest)
            hole.size = n_bytes
        hole.is_mapped = True
        hole.absorb(hole.before)
        hole.absorb(hole.after)
        hole.pool.insert(hole)
        self._ledger.reserved_bytes += n_bytes
        self._record("segment_map", hole, addr, n_bytes, frames)
        if hole.before is None and hole.segment_frames is None:
            hole.segment_frames = frames
        return True

    def _unmap(self, block: Block, frames: Frames | None) -> bool:
        """Turn the whole pages inside a free block into a hole; the ragged ends stay free."""
        assert block.reservation is not None
        base, page_size = block.reservation.addr, block.reservation.page_size
        start = base + -(-(block.addr - base) // page_size) * page_size
        end = base + (block.addr + block.size - base) // page_size * page_size
        if start >= end:
            return False
        block.pool.discard(block)
        if start > block.addr:
            block.pool.insert(block.cut_front(start - block.addr))
        if block.addr + block.size > end:
            tail = Block(end, block.addr + block.size - end, block.stream, block.pool, block.reservation)
            tail.link(block, block.after)
            block.pool.insert(tail)
            block.size = end - start
        block.is_mapped = False
        block.absorb(block.before)
        block.absorb(block.after)
        block.pool.insert(block)
        self._ledger.reserved_bytes -= end - start
        context = block.segment_frames if frames is None else frames
        self._record("segment_unmap", block, start, end - start, context)
        return True

    def _record(self, action: str, block: Block, addr: int, size: int, frames: Frames | None) -> None:
        self._ledger.record(
            action, addr=addr, size=size, stream=block.stream, pool=block.pool.id, frames=frames
        )


def best_candidate(candidates: list[Block], *, may_be_expandable: bool) -> Block | None:
    """Choose among free blocks that are large enough, smallest first (the head of get_free_block).

    With expandable segments on, a block counts with the hole behind it, so that the end of a
    segment is used last. With them switched off since, a leading run of expandable blocks is skipped.
    """
    if not candidates:
        return None
    if may_be_expandable:
        best = candidates[0]
        for block in candidates[1:]:
            if best.reservation is None or _size_after_growth(block) >= _size_after_growth(best):
                break
            best = block
        return best
    return next((block for block in candidates if block.reservation is None), None)


def _size_after_growth(block: Block) -> int:
    hole = block.after
    return block.size + (hole.size if hole is not None and not hole.is_mapped else 0)


def _is_large_enough(first: Block, size: int) -> bool:
    """Return whether the free and unmapped blocks from here on add up to ``size``."""
    n_bytes = 0
    for block in neighbours_from(first):
        if n_bytes >= size or block.is_active:
            break
        n_bytes += block.size
    return n_bytes >= size
