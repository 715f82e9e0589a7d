"""The caching allocator's rounding of requests to blocks, as columns.

The rules are those of allocator/allocator_settings.py, which has them for one request and names
their source; the histories of `CONFS` in tests/property/histories.py hold the two together.
"""

from dataclasses import dataclass, field, replace

import numpy as np

from snapconv.allocator.allocator_settings import (
    MIB,
    MIN_BLOCK_BYTES,
    N_ROUNDUP_INTERVALS,
    NPU_PADDING_BYTES,
    SMALL_REQUEST_BYTES,
    AllocatorSettings,
)
from snapconv.columns import BoolColumn, Int64Column, count_of, rows_of, values_of
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.segment_table import BlockTable, SegmentTable
from snapconv.torch_knowledge.backends import NO_ALLOCATOR

NEVER = 1 << 62
_FIRST_INTERVAL_LOG2 = MIB.bit_length() - 1


@dataclass(frozen=True, slots=True)
class ExpandableRanges:
    """Addresses that were ever part of an expandable segment: sorted ranges that do not touch.

    They hold at any time: the driver keeps their addresses reserved, so that no ordinary segment
    is there.
    """

    starts: Int64Column
    ends: Int64Column

    def contain(self, addr: Int64Column) -> BoolColumn:
        """Return the mask of the addresses within a range."""
        _, is_inside = ranges_of(self.starts, self.ends, addr, addr + 1)
        return is_inside


def ranges_of(
    starts: Int64Column, ends: Int64Column, first: Int64Column, after: Int64Column
) -> tuple[Int64Column, BoolColumn]:
    """Return for addresses the last of sorted ranges that begins before, and if it has them all.

    The addresses are those from ``first`` to ``after``, without the latter.
    """
    number = np.searchsorted(starts, first, side="right") - 1
    is_inside = (number >= 0) & (after <= values_of(ends, number))
    return number, is_inside


@dataclass(frozen=True, slots=True)
class RoundingRules:
    """The settings that decide block sizes.

    ``sizes_are_blocks``: the trace has the sizes of blocks, and no request (pinned host memory).
    ``expandable``: where blocks are split as in expandable segments; None: the setting decides.
    """

    settings: AllocatorSettings = field(default_factory=AllocatorSettings)
    sizes_are_blocks: bool = False
    expandable: ExpandableRanges | None = None

    def rounded(self, requested_bytes: Int64Column) -> Int64Column:
        """Return the least block size that serves each request."""
        if self.sizes_are_blocks:
            return requested_bytes
        padded = requested_bytes + self.settings.padding_bytes
        units = (padded + (MIN_BLOCK_BYTES - 1)) & -MIN_BLOCK_BYTES
        block_bytes: Int64Column = np.maximum(units, MIN_BLOCK_BYTES)
        if not any(self.settings.roundup_power2_divisions):
            return block_bytes
        divisions = self._divisions(padded)
        is_divided = (divisions > 1) & (padded > MIN_BLOCK_BYTES * divisions)
        # Each power of two is divided into equal parts of 512 bytes or more: the block ends where
        # the next part begins.
        divided = padded[is_divided]
        part = np.left_shift(1, _log2_floor(divided)) // divisions[is_divided]
        block_bytes[is_divided] = -(-divided // part) * part
        return block_bytes

    def least_remainder(self, rounded_bytes: Int64Column, addr: Int64Column) -> Int64Column:
        """Return for each request the least remainder that is split off a larger free block."""
        is_small = rounded_bytes <= SMALL_REQUEST_BYTES
        if self.expandable:
            is_small |= self.expandable.contain(addr)
        elif self.settings.expandable_segments or self.sizes_are_blocks:
            is_small = np.ones_like(is_small)
        # A large block keeps a remainder of up to 1 MiB: it must exceed that to be split off.
        remainder = np.where(is_small, MIN_BLOCK_BYTES, SMALL_REQUEST_BYTES + 1)
        limit = self.settings.max_split_size_bytes
        if limit is not None:
            is_never_split = ~is_small & (rounded_bytes >= limit)
            remainder = np.where(is_never_split, NEVER, remainder)
        return remainder

    def _divisions(self, size: Int64Column) -> Int64Column:
        table = np.array(self.settings.roundup_power2_divisions, np.int64)
        interval = _log2_floor(size) - _FIRST_INTERVAL_LOG2
        return table[np.clip(interval, 0, N_ROUNDUP_INTERVALS - 1)]


def _log2_floor(size: Int64Column) -> Int64Column:
    # Beyond 2^53 a float may be rounded up to the next power of two, which is where the last part
    # ends too.
    _, exponent = np.frexp(size.astype(np.float64))
    return exponent.astype(np.int64) - 1


def expandable_ranges(segments: SegmentTable, events: EventTable) -> ExpandableRanges:
    """Join the expandable segments of the dump with all that the trace maps or unmaps."""
    is_move = (events.action == Action.SEGMENT_MAP) | (
        events.action == Action.SEGMENT_UNMAP
    )
    grows = segments.is_expandable
    start = np.concatenate((segments.addr[grows], events.addr[is_move]))
    end = start + np.concatenate((segments.total_bytes[grows], events.size[is_move]))
    if not len(start):
        return ExpandableRanges(start, end)
    order = np.argsort(start, kind="stable")
    start = start[order]
    # The furthest end of a range and of those before it: a gap is what none of them reaches.
    furthest = np.maximum.accumulate(end[order])
    is_first = np.ones(len(start), bool)
    is_first[1:] = start[1:] > furthest[:-1]
    first = rows_of(is_first)
    return ExpandableRanges(start[first], np.maximum.reduceat(furthest, first))


# ATen/core/CachingHostAllocator.h, torch 2.14: a block is a segment, is never split, and its
# rounded size stands wherever a request would; the requested size is recorded nowhere.
HOST_RULES = RoundingRules(sizes_are_blocks=True)


def infer_rules(
    settings: AllocatorSettings, blocks: BlockTable, *, backend: str = "cuda"
) -> RoundingRules:
    """Choose the padding that explains more of the live blocks: none, or torch_npu's 32 bytes.

    Where both explain as many (a file without live blocks that show it), the backend decides.
    """
    if backend == NO_ALLOCATOR:
        return HOST_RULES
    # Large blocks of ordinary segments may keep a remainder, which would look like padding.
    has_no_remainder = (
        blocks.block_bytes <= SMALL_REQUEST_BYTES
    ) | settings.expandable_segments
    is_evidence = blocks.is_live & has_no_remainder
    requested = blocks.requested_bytes[is_evidence]
    actual = blocks.block_bytes[is_evidence]
    plain = RoundingRules(settings)
    padded = RoundingRules(replace(settings, padding_bytes=NPU_PADDING_BYTES))

    def n_explained(rules: RoundingRules) -> int:
        return count_of(rules.rounded(requested) == actual)

    candidates = (padded, plain) if backend == "npu" else (plain, padded)
    return max(candidates, key=n_explained)
