"""A range of a file's events -> a snapshot as PyTorch writes them, with the segments at its end."""

import pickle
from collections.abc import Sequence
from functools import cache
from operator import itemgetter
from pathlib import Path
from typing import Any

from snapconv.analysis import Analysis, DeviceAnalysis
from snapconv.answers.event_range import EventRange
from snapconv.columns import values_at
from snapconv.errors import InputError
from snapconv.files import new_files
from snapconv.replay.memory_layout import MemoryLayout, layout_at
from snapconv.snapshot.raw_cut import DevicePart, cut_snapshot
from snapconv.snapshot.stack_table import StackTable

_PROTOCOL = 4
_Raw = dict[str, Any]


def write_cut(
    output: Path, analysis: Analysis, ranges: Sequence[EventRange], *, force: bool
) -> None:
    """Write the ranges of a file's devices as a pickle of plain values.

    Raises InputError for a file that no allocator wrote.
    """
    if analysis.snapshot.form:
        title = analysis.snapshot.form.title
        raise InputError(
            f"{analysis.path}: {title} is no allocator's snapshot: it cannot be cut"
        )
    parts = {}
    for device, event_range in zip(analysis.devices, ranges, strict=True):
        parts[int(device.device.device)] = _part(device, event_range)
    snapshot = cut_snapshot(analysis.path, parts)
    with new_files([output], force=force) as (temporary,), temporary.open("wb") as file:
        pickle.dump(snapshot, file, protocol=_PROTOCOL)


def _part(analysis: DeviceAnalysis, event_range: EventRange) -> DevicePart:
    first, last = event_range
    times = analysis.device.events.time_us
    is_dump = last == analysis.n_events - 1 and analysis.device.has_segments
    segments = None
    if not is_dump:
        layout = layout_at(analysis.device, analysis.allocations, last)
        segments = _raw_segments(analysis, layout)
    times_us = None if times is None else (int(times[first]), int(times[last]))
    return DevicePart(first, last + 1, segments, times_us)


def _raw_segments(analysis: DeviceAnalysis, layout: MemoryLayout) -> list[_Raw]:
    """Return the segments of a moment as PyTorch has them, with their blocks by address."""
    stacks = analysis.snapshot.stacks
    frames_of = _raw_frames(stacks)
    blocks = _raw_blocks(analysis, layout, frames_of)
    segments = []
    for i, segment_blocks in enumerate(blocks):
        segment = values_at(layout.segments, i)
        live = [block for block in segment_blocks if block["state"] != "inactive"]
        allocated = [block for block in live if block["state"] == "active_allocated"]
        values = {
            "device": segment.device,
            "address": segment.addr,
            "total_size": segment.total_bytes,
            "allocated_size": sum(block["size"] for block in allocated),
            "active_size": sum(block["size"] for block in live),
            "requested_size": sum(map(itemgetter("requested_size"), live)),
            "stream": segment.stream,
            "segment_type": "small" if segment.is_small else "large",
            "is_expandable": segment.is_expandable,
            "frames": frames_of(segment.stack_id),
            "blocks": segment_blocks,
        }
        if segment.pool_id >= 0:
            values["segment_pool_id"] = analysis.snapshot.pools[segment.pool_id]
        segments.append(values)
    return segments


def _raw_blocks(
    analysis: DeviceAnalysis, layout: MemoryLayout, frames_of: Any
) -> list[list[_Raw]]:
    """Return the blocks of every segment: those in use, and the free pieces between."""
    allocations = analysis.allocations
    is_allocated = allocations.live_at(layout.event)
    blocks: list[list[_Raw]] = [[] for _ in range(len(layout.segments))]
    for pieces in (layout.blocks, layout.free):
        for i in range(len(pieces.addr)):
            piece = values_at(pieces, i)
            block = {
                "address": piece.addr,
                "size": piece.n_bytes,
                "requested_size": 0,
                "state": "inactive",
                "frames": [],
            }
            if piece.allocation >= 0:
                is_in_use = bool(is_allocated[piece.allocation])
                block["requested_size"] = int(allocations.requested_bytes[piece.allocation])
                block["state"] = "active_allocated" if is_in_use else "active_pending_free"
                block["frames"] = frames_of(int(allocations.stack_id[piece.allocation]))
            blocks[piece.segment].append(block)
    for segment_blocks in blocks:
        segment_blocks.sort(key=lambda block: block["address"])
    return blocks


def _raw_frames(stacks: StackTable) -> Any:
    """Return a function from stacks to lists of frames, one of each, as a pickle shares them."""
    table = stacks.frames

    @cache
    def frame(number: int) -> _Raw:
        return {
            "name": table.names[number],
            "filename": table.filenames[number],
            "line": int(table.lines[number]),
        }

    @cache
    def frames(stack_id: int) -> list[_Raw]:
        return [frame(number) for number in stacks.frames_of(stack_id).tolist()]

    return frames
