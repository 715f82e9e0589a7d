"""Segments and blocks of a device whose file has none: its trace, replayed forward.

torch writes the trace and the segments. Other tools write traces alone, or gather those of several
ranks in one file. Where every free has its alloc, and every alloc lies in a segment that the trace
obtained, nothing was there before the first event, and all figures are exact. Otherwise they are
lower bounds: of memory that was there before, only what the trace frees or uses is known.
"""

from dataclasses import replace

import numpy as np

from snapconv.allocator.address_ranges import AddressRanges
from snapconv.columns import EventColumn, read_only, rows_by, rows_of
from snapconv.replay.block_sizes import derive_block_sizes, segment_moves
from snapconv.replay.lifetimes import Lifetimes, pair_events, real_events
from snapconv.replay.memory_layout import (
    SegmentFacts,
    are_joined,
    move_segments,
    segment_table,
    segments_of,
)
from snapconv.replay.rounding import infer_rules
from snapconv.snapshot.event_table import EventTable
from snapconv.snapshot.load import DeviceSnapshot, SegmentSource, Snapshot
from snapconv.snapshot.segment_table import BlockState, BlockTable, SegmentTable


def rebuild_segments(snapshot: Snapshot, device: DeviceSnapshot) -> DeviceSnapshot:
    """Return a device without segments with those, and the blocks, that its trace leaves.

    A trace that returns all its segments agrees with a file without segments: the device stays as
    it is.
    """
    if len(device.segments) or not len(device.events) or device.is_host:
        return device
    events = real_events(device.events)
    moves = segment_moves(events)
    ranges = AddressRanges[SegmentFacts]([], [], [], are_joined=are_joined)
    move_segments(ranges, events, moves, device.large_segment_bytes, is_undone=False)
    lifetimes = pair_events(events, device.blocks)
    segments = segment_table(ranges, device.device)
    if len(moves) and not len(segments) and np.all(lifetimes.end_event >= 0):
        return device
    blocks, alloc = _open_blocks(events, lifetimes, segments)
    rules = infer_rules(snapshot.settings_of(device), blocks, backend=snapshot.era.backend)
    sizes = derive_block_sizes(events, segments, blocks, rules)
    n_conflicts = ranges.n_conflicts
    if len(moves):
        n_conflicts += sizes.n_conflicts
    has_earlier = lifetimes.n_orphan_frees or (lifetimes.alloc_event < 0).any()
    source = SegmentSource.WHOLE_TRACE
    if has_earlier or n_conflicts:
        source = SegmentSource.PART_OF_TRACE
    sized_blocks = read_only(replace(blocks, block_bytes=sizes.event_bytes[alloc]))
    return replace(device, segments=segments, blocks=sized_blocks, source=source)


def _open_blocks(
    events: EventTable, lifetimes: Lifetimes, segments: SegmentTable
) -> tuple[BlockTable, EventColumn]:
    """Return the blocks that are live at the end within a segment, and their allocs.

    They do not have their sizes yet.
    """
    rows = rows_of((lifetimes.end_event < 0) & (lifetimes.alloc_event >= 0))
    rows = rows_by(lifetimes.addr, rows)
    alloc = lifetimes.alloc_event[rows]
    segment, is_inside = segments_of(segments, lifetimes.addr[rows], events.size[alloc])
    rows = rows[is_inside]
    alloc = alloc[is_inside]
    is_pending = lifetimes.free_requested_event[rows] >= 0
    state = np.where(is_pending, BlockState.PENDING_FREE, BlockState.ACTIVE)
    blocks = BlockTable(
        segment_id=segment[is_inside],
        addr=lifetimes.addr[rows],
        block_bytes=np.zeros(len(rows), np.int64),
        requested_bytes=events.size[alloc],
        state=state.astype(np.int8),
        stack_id=events.stack_id[alloc],
    )
    return blocks, alloc
