"""Requests -> addresses, as torch's caching allocator places them: one device, one stream, no limits set.

A model of the default rules only (CUDACachingAllocator.cpp, torch 2.10). It stands on its own, so
that what is measured does not also make the data.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

MIB = 1024 * 1024
ROUNDING_BYTES = 512
SMALL_REQUEST_BYTES = 1 * MIB
SMALL_SEGMENT_BYTES = 2 * MIB
MEDIUM_REQUEST_BYTES = 10 * MIB
MEDIUM_SEGMENT_BYTES = 20 * MIB
SEGMENT_ROUNDING_BYTES = 2 * MIB
FIRST_SEGMENT_ADDR = 0x7F2C_0000_0000


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment; a free one keeps the requested size of its last use, as in torch.

    ``traceback_id`` names the stack that allocated it, and is None while it is free.
    """

    addr: int
    size: int
    requested_bytes: int = 0
    traceback_id: int | None = None

    @property
    def is_live(self) -> bool:
        """Whether the block is in use."""
        return self.traceback_id is not None


@dataclass(slots=True, eq=False)
class Segment:
    """Memory obtained from CUDA, with its blocks in the order of their addresses.

    torch keeps the segment's stack in the first block, and loses it when that block is split.
    """

    addr: int
    size: int
    is_small: bool
    traceback_id: int | None
    blocks: list[Block] = field(default_factory=list)


def round_up(n_bytes: int, granule: int) -> int:
    """Round up to a multiple of the granule."""
    return -(-n_bytes // granule) * granule


def segment_size(block_bytes: int) -> int:
    """How much is requested from CUDA when no free block is large enough."""
    if block_bytes <= SMALL_REQUEST_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < MEDIUM_REQUEST_BYTES:
        return MEDIUM_SEGMENT_BYTES
    return round_up(block_bytes, SEGMENT_ROUNDING_BYTES)


class CachingAllocator:
    """Two pools of free blocks, small and large; best fit, the lowest address of equals."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._free: dict[bool, list[tuple[int, int, Block]]] = {True: [], False: []}
        self._segment_of: dict[int, Segment] = {}
        self._next_addr = FIRST_SEGMENT_ADDR

    def allocate(self, requested_bytes: int, traceback_id: int) -> tuple[Block, Segment | None]:
        """Give a block, and the segment that had to be made for it, if one had to."""
        size = round_up(requested_bytes, ROUNDING_BYTES)
        is_small = size <= SMALL_REQUEST_BYTES
        free = self._free[is_small]
        index = bisect_left(free, (size,))
        if index < len(free):
            segment, block = None, free.pop(index)[2]
        else:
            segment, block = self._new_segment(size, traceback_id, is_small=is_small)
        block = self._split(block, size, is_small=is_small)
        block.requested_bytes = requested_bytes
        block.traceback_id = traceback_id
        return block, segment

    def free(self, block: Block) -> None:
        """Take a block back and merge it with its free neighbours."""
        segment = self._segment_of.pop(block.addr)
        free = self._free[segment.is_small]
        block.traceback_id = None
        index = segment.blocks.index(block)
        for neighbour in (
            segment.blocks[index + 1 : index + 2] + segment.blocks[max(index - 1, 0) : index]
        ):
            if not neighbour.is_live:
                del free[bisect_left(free, (neighbour.size, neighbour.addr))]
                self._segment_of.pop(neighbour.addr)
                segment.blocks.remove(neighbour)
                block.addr = min(block.addr, neighbour.addr)
                block.size += neighbour.size
        self._segment_of[block.addr] = segment
        insort(free, (block.size, block.addr, block))

    def layout(self) -> list[tuple[int, int, bool]]:
        """List every block's address, size and use: equal layouts place the same requests alike."""
        blocks = [block for segment in self.segments for block in segment.blocks]
        return [(block.addr, block.size, block.is_live) for block in blocks]

    def _new_segment(
        self, size: int, traceback_id: int, *, is_small: bool
    ) -> tuple[Segment, Block]:
        segment = Segment(self._next_addr, segment_size(size), is_small, traceback_id)
        block = Block(segment.addr, segment.size)
        segment.blocks.append(block)
        self.segments.append(segment)
        self._segment_of[block.addr] = segment
        self._next_addr += round_up(segment.size, SEGMENT_ROUNDING_BYTES)
        return segment, block

    def _split(self, block: Block, size: int, *, is_small: bool) -> Block:
        """Cut off the front if 512 B are left in a small segment, or more than 1 MiB in a large one."""
        rest = block.size - size
        if not (rest >= ROUNDING_BYTES if is_small else rest > SMALL_REQUEST_BYTES):
            return block
        segment = self._segment_of[block.addr]
        front = Block(block.addr, size)
        index = segment.blocks.index(block)
        segment.blocks.insert(index, front)
        if index == 0:
            segment.traceback_id = None
        block.addr += size
        block.size = rest
        self._segment_of[block.addr] = segment
        insort(self._free[is_small], (block.size, block.addr, block))
        return front
