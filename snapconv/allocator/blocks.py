"""Blocks, the pools that keep the free ones in order, and the device's address space.

Contains the order, splitting and merging of blocks, the choice of segments to release, and their
shape in torch's snapshot (the keys are those of 2.1 and later); the allocator decides when any of
it happens.
"""

from bisect import bisect_left, insort
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise, takewhile
from operator import attrgetter
from typing import Any, TypeAlias

from snapconv.allocator.address_ranges import AddressRanges
from snapconv.allocator.allocator_settings import SEGMENT_GRANULE_BYTES, round_up
from snapconv.allocator.allocator_trace import Frames, PoolId


@dataclass(frozen=True, slots=True)
class Reservation:
    """The address range that one expandable segment may grow in."""

    addr: int
    size: int
    page_size: int


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment (struct Block); neighbours in the same segment are linked.

    ``requested_size`` stays as it was when the block becomes free, as in torch: snapshots show it.
    An unmapped block is a hole in an expandable segment: address space without memory. ``gc_base``
    is the pool's ``n_searches`` when the block became free: its age counts from there.
    """

    addr: int
    size: int
    stream: int
    pool: "BlockPool"
    reservation: Reservation | None = None
    requested_size: int = 0
    is_allocated: bool = False
    is_mapped: bool = True
    is_pending: bool = False
    gc_base: int = 0
    before: "Block | None" = None
    after: "Block | None" = None
    frames: Frames | None = None
    segment_frames: Frames | None = None

    def __lt__(self, _block: "Block") -> bool:
        """Order blocks of one size and address: only a file that contradicts itself has such."""
        return False

    @property
    def is_active(self) -> bool:
        """Whether the block is in use, or freed while another stream may still use it."""
        return self.is_allocated or self.is_pending

    @property
    def is_whole_segment(self) -> bool:
        """Whether nothing was split off the segment (the opposite of Block::is_split)."""
        return self.before is None and self.after is None

    def link(self, before: "Block | None", after: "Block | None") -> None:
        """Put the block between two neighbours (Block::splice)."""
        self.before = before
        self.after = after
        if before is not None:
            before.after = self
        if after is not None:
            after.before = self

    def _piece(self, addr: int, size: int) -> "Block":
        """Return a part of this block, which is linked to none yet."""
        return Block(
            addr, size, self.stream, self.pool, self.reservation, is_mapped=self.is_mapped
        )

    def cut_front(self, size: int) -> "Block":
        """Split off and return the first ``size`` bytes; this block keeps the rest."""
        front = self._piece(self.addr, size)
        front.link(self.before, self)
        self.addr += size
        self.size -= size
        return front

    def cut_back(self, size: int) -> "Block":
        """Split off and return the bytes behind the first ``size``, which this block keeps."""
        back = self._piece(self.addr + size, self.size - size)
        back.link(self, self.after)
        self.size = size
        return back

    def absorb(self, neighbour: "Block | None") -> None:
        """Merge a free neighbour, if both are mapped or neither is (try_merge_blocks)."""
        if (
            neighbour is None
            or neighbour.is_active
            or neighbour.is_mapped != self.is_mapped
        ):
            return
        neighbour.pool.discard(neighbour)
        if self.before is neighbour:
            self.addr = neighbour.addr
            self.segment_frames = neighbour.segment_frames
            self.link(neighbour.before, self.after)
        else:
            self.link(self.before, neighbour.after)
        self.size += neighbour.size

    def rejoin(self) -> None:
        """Merge the free neighbours into this block, and put it into its pool."""
        self.absorb(self.before)
        self.absorb(self.after)
        self.pool.insert(self)


# A block behind its size and its address; the size of an unmapped one does not count, and is 0.
_Ranked: TypeAlias = tuple[int, int, Block]


class BlockPool:
    """The free blocks of one pool, small or large (struct BlockPool).

    Per stream, mapped blocks are ordered by size, then address: the first that is large enough is
    the best fit, the lowest of equals. Unmapped blocks are ordered by address. ``n_searches``
    counts the searches for a free block while garbage collection is on
    (get_free_blocks_call_count).
    """

    def __init__(self, pool_id: PoolId, *, is_small: bool) -> None:
        self.id = pool_id
        self.is_small = is_small
        self.n_searches = 0
        # The lists of mapped and of unmapped blocks of each stream.
        self._blocks: defaultdict[tuple[bool, int], list[_Ranked]] = defaultdict(list)

    def insert(self, block: Block) -> None:
        """Take in a free or unmapped block."""
        block.gc_base = self.n_searches
        insort(self._blocks[block.is_mapped, block.stream], _ranked(block))

    def discard(self, block: Block) -> None:
        """Take out a block, whose address and size must be as they were at insertion."""
        blocks = self._blocks[block.is_mapped, block.stream]
        del blocks[bisect_left(blocks, _ranked(block))]

    def free_of(self, stream: int) -> list[_Ranked]:
        """Return the stream's free blocks with sizes and addresses, best fit first.

        Callers do not change the list.
        """
        return self._blocks[True, stream]

    def free_blocks(self) -> list[Block]:
        """List all free blocks by stream, size and address: the order in which torch frees them."""
        blocks: list[Block] = []
        for is_mapped, stream in sorted(self._blocks):
            if is_mapped:
                blocks += [block for _, _, block in self.free_of(stream)]
        return blocks

    def unmapped_blocks(self, stream: int) -> list[Block]:
        """List the stream's unmapped blocks by address."""
        return [block for _, _, block in self._blocks[False, stream]]


def _ranked(block: Block) -> _Ranked:
    """Return a block behind what it is ordered by."""
    return block.size if block.is_mapped else 0, block.addr, block


def total_size(blocks: Iterable[Block]) -> int:
    """Return the bytes of some blocks."""
    return sum(block.size for block in blocks)


def neighbours_from(block: Block) -> Iterator[Block]:
    """Walk from a block to the end of its segment."""
    current: Block | None = block
    while current is not None:
        yield current
        current = current.after


class AddressSpace:
    """The driver's part: ranges of whole granules of 2 MiB, from the lowest gap that has room.

    So an address is soon used again. The real driver's choice is unknown and irrelevant to the
    allocator; re-use and neighbouring segments are what readers of a trace must cope with.
    """

    def __init__(self, base_addr: int = 0x7F00_0000_0000) -> None:
        self._end = base_addr
        # Gaps that touch are one: the fact of each is that it may be joined.
        self._gaps: AddressRanges[bool] = AddressRanges([], [], [])

    def take(self, n_bytes: int) -> int:
        """Return the address of a range of that size."""
        size = round_up(n_bytes, SEGMENT_GRANULE_BYTES)
        for addr, end in zip(self._gaps.starts, self._gaps.ends, strict=True):
            if end - addr >= size:
                self._gaps.take_away(addr, addr + size)
                return addr
        addr = self._end
        self._end += size
        return addr

    def give_back(self, addr: int, n_bytes: int) -> None:
        """Make a range available again, joined with the gaps beside it."""
        self._gaps.give_back(addr, addr + round_up(n_bytes, SEGMENT_GRANULE_BYTES), True)


def old_segments(pool: BlockPool, min_bytes: int) -> list[Block]:
    """Choose the oldest unsplit free segments of a pool until they have enough bytes.

    A block's age is the number of searches in its pool since it was freed; those of average age and
    more go at once.
    """

    def age(block: Block) -> int:
        return pool.n_searches - block.gc_base

    candidates = [block for block in pool.free_blocks() if block.is_whole_segment]
    chosen: list[Block] = []
    while candidates and total_size(chosen) < min_bytes:
        average = sum(map(age, candidates)) / len(candidates)
        young = []
        n_chosen = len(chosen)
        for block in candidates:
            if block.reservation is None and age(block) >= average:
                chosen.append(block)
            else:
                young.append(block)
        if len(chosen) == n_chosen:
            break
        candidates = young
    return chosen


def oversize_segments(
    pool: BlockPool, stream: int, *, min_bytes: int, limit: int
) -> list[Block]:
    """Choose oversize blocks of a stream: the smallest that is enough, else the largest ones.

    ``limit`` is max_split_size. The chosen blocks together may have less than ``min_bytes``.
    """
    free = [block for _, _, block in pool.free_of(stream)]
    candidates = [block for block in free if block.size >= min_bytes][:1]
    if not candidates or candidates[0].reservation is not None:
        candidates = [block for block in reversed(free) if limit <= block.size < min_bytes]
    chosen: list[Block] = []
    for block in candidates:
        # torch counts on oversize blocks being whole segments; expandable ones it skips since 2.5.
        can_go = block.reservation is None and block.is_whole_segment
        if can_go and total_size(chosen) < min_bytes:
            chosen.append(block)
    return chosen


# --- layouts, and the dicts of segments

_is_mapped, _is_allocated = attrgetter("is_mapped"), attrgetter("is_allocated")


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block in use, or (``is_pending``) freed while a stream still uses it."""

    addr: int
    size: int
    requested_size: int
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """A segment, or a contiguous mapped range of an expandable one, with its live blocks.

    What lies between the live blocks is free.
    """

    addr: int
    size: int
    stream: int
    pool_id: PoolId
    is_small: bool
    is_expandable: bool
    live: tuple[LiveBlock, ...]


def raw_segment(head: Block, *, device: int) -> dict[str, Any]:
    """Write the contiguous mapped range that starts with a block."""
    blocks = list(takewhile(_is_mapped, neighbours_from(head)))
    active = [block for block in blocks if block.is_active]
    return {
        "device": device,
        "address": head.addr,
        "total_size": total_size(blocks),
        "allocated_size": total_size(filter(_is_allocated, active)),
        "active_size": total_size(active),
        "requested_size": sum(block.requested_size for block in active),
        "stream": head.stream,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": head.pool.id,
        "is_expandable": head.reservation is not None,
        "frames": head.segment_frames or [],
        "blocks": list(map(_raw_block, blocks)),
    }


def layout_blocks(layout: SegmentLayout, pool: BlockPool) -> list[Block]:
    """Link up the live and the free blocks of a segment, in order; put none into a pool."""
    blocks = []
    addr = layout.addr
    for live in layout.live:
        if live.addr > addr:
            blocks.append(Block(addr, live.addr - addr, layout.stream, pool))
        block = Block(live.addr, live.size, layout.stream, pool)
        block.requested_size = live.requested_size
        block.is_allocated = not live.is_pending
        block.is_pending = live.is_pending
        blocks.append(block)
        addr = live.addr + live.size
    n_left = layout.addr + layout.size - addr
    if n_left > 0:
        blocks.append(Block(addr, n_left, layout.stream, pool))
    link_up(blocks)
    return blocks


def link_up(blocks: Iterable[Block]) -> None:
    """Make blocks neighbours, in their order."""
    for before, after in pairwise(blocks):
        before.after = after
        after.before = before


def _raw_block(block: Block) -> dict[str, Any]:
    state = "inactive"
    if block.is_allocated:
        state = "active_allocated"
    elif block.is_pending:
        state = "active_pending_free"
    return {
        "address": block.addr,
        "size": block.size,
        "requested_size": block.requested_size,
        "state": state,
        "frames": block.frames or [],
    }
