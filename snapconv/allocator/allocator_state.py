"""Linked blocks <-> the segment dicts of torch's snapshot, or a layout: where live blocks are.

Contains torch's keys (those of 2.1 and later) and how blocks are linked; no allocation rules.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from snapconv.allocator.allocator_trace import DEFAULT_POOL, PoolId
from snapconv.allocator.blocks import Block, BlockPool, neighbours_from

ALLOCATED, PENDING_FREE, INACTIVE = "active_allocated", "active_pending_free", "inactive"


@dataclass(frozen=True, slots=True)
class LiveBlock:
    """A block in use, or (``is_pending``) freed while a stream still uses it."""

    addr: int
    size: int
    requested_size: int
    is_pending: bool = False


@dataclass(frozen=True, slots=True)
class SegmentLayout:
    """A segment, or a contiguous mapped range of an expandable one, with its live blocks by address.

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
    blocks = [_raw_block(block) for block in _mapped_from(head)]
    active = [block for block in blocks if block["state"] != INACTIVE]
    return {
        "device": device,
        "address": head.addr,
        "total_size": sum(block["size"] for block in blocks),
        "allocated_size": sum(block["size"] for block in active if block["state"] == ALLOCATED),
        "active_size": sum(block["size"] for block in active),
        "requested_size": sum(block["requested_size"] for block in active),
        "stream": head.stream,
        "segment_type": "small" if head.pool.is_small else "large",
        "segment_pool_id": head.pool.id,
        "is_expandable": head.reservation is not None,
        "frames": head.segment_frames or [],
        "blocks": blocks,
    }


def raw_pool_id(raw: dict[str, Any]) -> PoolId:
    """Read the pool of a segment; files before torch 2.1 have only the default pool."""
    first, second = raw.get("segment_pool_id", DEFAULT_POOL)
    return int(first), int(second)


def read_blocks(raw: dict[str, Any], pool: BlockPool) -> Iterator[Block]:
    """Link up the blocks of a segment, in order; put none of them anywhere.

    A pending free has ``n_events`` 1.
    """
    addr: int = raw["address"]
    before: Block | None = None
    for raw_block in raw["blocks"]:
        block = Block(addr, raw_block["size"], raw["stream"], pool)
        block.requested_size = raw_block.get("requested_size", block.size)
        block.is_allocated = raw_block["state"] == ALLOCATED
        block.n_events = int(raw_block["state"] not in (ALLOCATED, INACTIVE))
        block.frames = raw_block.get("frames") or None
        if before is None:
            block.segment_frames = raw.get("frames") or None
        block.link(before, None)
        yield block
        before = block
        addr += block.size


def layout_blocks(layout: SegmentLayout, pool: BlockPool) -> Iterator[Block]:
    """Link up the live and the free blocks of a segment, in order, as read_blocks does."""
    addr, end = layout.addr, layout.addr + layout.size
    before: Block | None = None
    for live in (*layout.live, None):
        until = end if live is None else live.addr
        if until > addr:
            gap = Block(addr, until - addr, layout.stream, pool)
            gap.link(before, None)
            yield gap
            before = gap
        if live is not None:
            block = Block(live.addr, live.size, layout.stream, pool)
            block.requested_size = live.requested_size
            block.is_allocated = not live.is_pending
            block.n_events = int(live.is_pending)
            block.link(before, None)
            yield block
            before, addr = block, live.addr + live.size


def _mapped_from(head: Block) -> Iterator[Block]:
    for block in neighbours_from(head):
        if not block.is_mapped:
            return
        yield block


def _raw_block(block: Block) -> dict[str, Any]:
    return {
        "address": block.addr,
        "size": block.size,
        "requested_size": block.requested_size,
        "state": ALLOCATED if block.is_allocated else PENDING_FREE if block.is_active else INACTIVE,
        "frames": block.frames or [],
    }
