"""Expandable segments: mapping pages to make a block grow, unmapping them to give memory back.

The rules of find_expandable_block, try_allocate_expandable_block, map_block and unmap_block in
c10/cuda/CUDACachingAllocator.cpp. Small pools grow by pages of 2 MiB, large ones by
large_segment_size (20 MiB); a page is backed by memory as a whole or not at all.
"""

from bisect import bisect_left

from snapconv.allocator.allocator_settings import (
    SMALL_SEGMENT_BYTES,
    AllocatorSettings,
    round_up,
)
from snapconv.allocator.allocator_trace import Frames, Ledger
from snapconv.allocator.blocks import (
    AddressSpace,
    Block,
    BlockPool,
    Reservation,
    link_up,
    neighbours_from,
)

UNLIMITED_ADDRESS_SPACE = 1 << 40


class ExpandableMemory:
    """Grows and shrinks the expandable segments of one device."""

    def __init__(
        self, settings: AllocatorSettings, ledger: Ledger, addresses: AddressSpace
    ) -> None:
        self._settings = settings
        self._ledger = ledger
        self._addresses = addresses

    def allocate(
        self, pool: BlockPool, *, stream: int, size: int, frames: Frames | None
    ) -> Block | None:
        """Map pages until one free block has ``size`` bytes; return it, out of its pool.

        None when memory runs out; pages mapped until then stay mapped and free, as in torch.
        """
        block = self._candidate(pool, stream=stream, size=size)
        if block is None:
            return None
        if not block.is_mapped and not self._map(block, min(block.size, size), frames):
            return None
        while block.size < size:
            hole = block.after
            if hole is None:
                return None
            missing = min(size - block.size, hole.size)
            if not self._map(hole, missing, frames):
                return None
            block = hole
        pool.discard(block)
        return block

    def release(self, blocks: list[Block], frames: Frames | None) -> None:
        """Unmap every whole page inside the given free blocks."""
        for block in blocks:
            is_unmapped = self._unmap(block, frames)
            reservation = block.reservation
            if is_unmapped and block.is_whole_segment and reservation is not None:
                block.pool.discard(block)
                self._addresses.give_back(reservation.addr, reservation.size)

    def adopt(self, ranges: list[list[Block]]) -> None:
        """Give adopted mapped ranges, each a run of linked blocks, address space to grow in.

        A snapshot does not contain it. Ranges of one pool and stream are taken as parts of one
        segment if they are whole pages apart, with nothing else between, within the space that
        torch reserves for one. A segment begins with its first mapped page and ends where the next
        one begins.
        """
        groups: list[list[list[Block]]] = []
        for blocks in sorted(ranges, key=_start):
            if groups and self._is_same_segment(groups[-1], blocks):
                groups[-1].append(blocks)
            else:
                groups.append([blocks])
        ends = [_start(group[0]) for group in groups[1:]] + [None]
        for group, end in zip(groups, ends, strict=False):
            self._reserve_around(group, end)

    def _is_same_segment(self, group: list[list[Block]], blocks: list[Block]) -> bool:
        first = group[0][0]
        next_block = blocks[0]
        page_size = self._page_size(group)
        if (first.pool, first.stream) != (next_block.pool, next_block.stream):
            return False
        if (next_block.addr - first.addr) % page_size:
            return False
        return _end(blocks) - first.addr <= self._reserved_size(page_size)

    def _page_size(self, group: list[list[Block]]) -> int:
        """Return the page size of the pool, or 2 MiB where the ranges are no multiples of it."""
        page_size = self._settings.page_size(is_small=group[0][0].pool.is_small)
        fits = all((_end(blocks) - _start(blocks)) % page_size == 0 for blocks in group)
        return page_size if fits else SMALL_SEGMENT_BYTES

    def _reserve_around(self, group: list[list[Block]], end: int | None) -> None:
        page_size = self._page_size(group)
        addr = _start(group[0])
        size = max(self._reserved_size(page_size), _end(group[-1]) - addr)
        if end is not None:
            size = min(size, (end - addr) // page_size * page_size)
        reservation = Reservation(addr, size, page_size)
        next_starts = [_start(blocks) for blocks in group[1:]] + [addr + size]
        first = group[0][0]
        linked: list[Block] = []
        for blocks, next_start in zip(group, next_starts, strict=True):
            for block in blocks:
                block.reservation = reservation
            linked += blocks
            start = _end(blocks)
            gap = next_start - start
            if gap > 0:
                hole = Block(
                    start, gap, first.stream, first.pool, reservation, is_mapped=False
                )
                hole.pool.insert(hole)
                linked.append(hole)
        link_up(linked)

    def _reserved_size(self, page_size: int) -> int:
        """Return the address space of a segment: torch reserves 9/8 of the memory."""
        capacity = self._ledger.capacity
        n_bytes = UNLIMITED_ADDRESS_SPACE if capacity is None else capacity * 9 // 8
        return round_up(n_bytes, page_size)

    def _candidate(self, pool: BlockPool, *, stream: int, size: int) -> Block | None:
        """Find the lowest run of free and unmapped blocks for a size, or reserve a new range."""
        for hole in pool.unmapped_blocks(stream):
            first = hole
            if hole.before is not None and not hole.before.is_active:
                first = hole.before
            if _is_large_enough(first, size):
                return first
        page_size = self._settings.page_size(is_small=pool.is_small)
        n_bytes = self._reserved_size(page_size)
        if n_bytes < size:
            return None
        reservation = Reservation(self._addresses.take(n_bytes), n_bytes, page_size)
        block = Block(reservation.addr, n_bytes, stream, pool, reservation, is_mapped=False)
        pool.insert(block)
        return block

    def _map(self, hole: Block, size: int, frames: Frames | None) -> bool:
        """Back the first ``size`` bytes of a hole, rounded up to pages, and merge neighbours."""
        assert hole.reservation is not None
        page_size = hole.reservation.page_size
        n_bytes = round_up(size, page_size)
        if not self._ledger.has_room(n_bytes):
            return False
        addr = hole.addr
        hole.pool.discard(hole)
        if n_bytes < hole.size:
            hole.pool.insert(hole.cut_back(n_bytes))
        hole.is_mapped = True
        hole.rejoin()
        self._ledger.memory_taken(n_bytes, is_mapped=True)
        self._record("segment_map", hole, range(addr, addr + n_bytes), frames)
        if hole.before is None and hole.segment_frames is None:
            hole.segment_frames = frames
        return True

    def _unmap(self, block: Block, frames: Frames | None) -> bool:
        """Turn the whole pages inside a free block into a hole; the ragged ends stay free."""
        pages = whole_pages(block)
        if not pages:
            return False
        block.pool.discard(block)
        if pages.start > block.addr:
            block.pool.insert(block.cut_front(pages.start - block.addr))
        if block.size > len(pages):
            block.pool.insert(block.cut_back(len(pages)))
        block.is_mapped = False
        block.rejoin()
        self._ledger.reserved_bytes -= len(pages)
        context = block.segment_frames if frames is None else frames
        self._record("segment_unmap", block, pages, context)
        return True

    def _record(
        self, action: str, block: Block, pages: range, frames: Frames | None
    ) -> None:
        self._ledger.record(
            action,
            addr=pages.start,
            size=len(pages),
            stream=block.stream,
            pool=block.pool.id,
            frames=frames,
        )


def whole_pages(block: Block) -> range:
    """Return the addresses of whole pages in a block of an expandable segment.

    A block of another segment has none.
    """
    if block.reservation is None:
        return range(0)
    base = block.reservation.addr
    page_size = block.reservation.page_size
    offset = block.addr - base
    start = base + round_up(offset, page_size)
    end = base + (offset + block.size) // page_size * page_size
    return range(start, max(start, end))


def _start(blocks: list[Block]) -> int:
    return blocks[0].addr


def _end(blocks: list[Block]) -> int:
    return blocks[-1].addr + blocks[-1].size


def best_candidate(
    pool: BlockPool, stream: int, size: int, *, may_be_expandable: bool
) -> Block | None:
    """Choose among free blocks that are large enough, smallest first (the head of get_free_block).

    With expandable segments on, a block counts with the hole behind it, so that the end of a
    segment is used last. With them switched off since, a leading run of expandable blocks is
    skipped.
    """
    free = pool.free_of(stream)
    index = bisect_left(free, (size,))
    if index == len(free):
        return None
    best = free[index][2]
    if best.reservation is not None and not may_be_expandable:
        return next(
            (block for _, _, block in free[index:] if block.reservation is None), None
        )
    while best.reservation is not None and index + 1 < len(free):
        index += 1
        block = free[index][2]
        if _size_after_growth(block) >= _size_after_growth(best):
            break
        best = block
    return best


def _size_after_growth(block: Block) -> int:
    hole = block.after
    if hole is None or hole.is_mapped:
        return block.size
    return block.size + hole.size


def _is_large_enough(first: Block, size: int) -> bool:
    """Return whether the free and unmapped blocks from a first one on add up to ``size``."""
    n_bytes = 0
    for block in neighbours_from(first):
        if block.is_active:
            return False
        n_bytes += block.size
        if n_bytes >= size:
            return True
    return False
