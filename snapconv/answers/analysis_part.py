"""A range of a device's events -> an analysis of that range alone, which every answer takes.

What was live before the range counts as pre-existing, and the range's end as the dump. Categories,
phases and iterations stay as the whole trace shows them, as do the numbers of iterations; events
count from the range's first, ``first_event`` of the file.
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from snapconv.analysis import Analysis, DeviceAnalysis, find_iterations
from snapconv.answers.event_range import EventRange, find_range
from snapconv.columns import (
    EventColumn,
    Int64Column,
    columns_of,
    read_only,
    rows_of,
    take,
    unknown_column,
    values_of,
)
from snapconv.notes import Note
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.phases.trace_phases import Phases
from snapconv.replay.device_replay import AllocationTable, Curve, Replay
from snapconv.replay.memory_layout import layout_at
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.snapshot.segment_table import BlockState, BlockTable
from snapconv.units import counted


class _Part(NamedTuple):
    """The part's events, and its allocations as rows of the whole table."""

    events: EventRange
    rows: Int64Column

    @property
    def event_rows(self) -> Int64Column:
        return np.arange(self.events.first, self.events.last + 1)

    def moved(self, events: EventColumn) -> EventColumn:
        """Count events from the part's first; -1 for those that are not in it."""
        first, last = self.events
        is_inside = (events >= first) & (events <= last)
        moved: EventColumn = np.where(is_inside, events - np.int32(first), np.int32(-1))
        return moved


def analysis_between(analysis: Analysis, begin: str | None, end: str | None) -> Analysis:
    """Return the analysis of the events between two bounds, of every device.

    Bounds are texts as in ``event_range``, None for the trace's own. Raises what ``find_range``
    raises.
    """
    if begin is None and end is None:
        return analysis
    devices = [
        _device_part(device, find_range(device, begin, end)) for device in analysis.devices
    ]
    return replace(analysis, devices=tuple(devices))


def _device_part(analysis: DeviceAnalysis, events: EventRange) -> DeviceAnalysis:
    allocations = analysis.allocations
    is_open = (allocations.end_event < 0) | (allocations.end_event >= events.first)
    part = _Part(events, rows_of((allocations.alloc_event <= events.last) & is_open))
    live = _allocations(allocations, part)
    phases = _phases(analysis.phases, analysis.device, part)
    replay = _replay(analysis, live, events)
    features = analysis.features
    profiled = features.profiled
    return replace(
        analysis,
        device=_device(analysis, events),
        replay=replay,
        features=replace(
            features,
            allocations=live,
            phases=phases,
            recorded=_recorded(features.recorded, part, len(allocations)),
            n_events=len(part.event_rows),
            sizes=features.sizes[part.rows],
            alloc=live.alloc_event,
            profiled=None if profiled is None else profiled[part.rows],
        ),
        classification=take(analysis.classification, part.rows),
        iterations=tuple(find_iterations(replay.allocated, phases)),
        first_event=events.first,
        n_events_outside=analysis.n_events - len(part.event_rows),
    )


def _allocations(allocations: AllocationTable, part: _Part) -> AllocationTable:
    first, last = part.events
    table = take(allocations, part.rows)
    requested = part.moved(table.free_requested_event)
    # Freed before the part, and still waiting for a stream in it: freed by its first event.
    is_freed_before = (table.free_requested_event >= 0) & (
        table.free_requested_event < first
    )
    requested[is_freed_before] = 0
    is_open = (table.end_event < 0) | (table.end_event > last)
    is_requested = (table.free_requested_event >= 0) & (table.free_requested_event <= last)
    return read_only(
        replace(
            table,
            alloc_event=part.moved(table.alloc_event),
            free_requested_event=requested,
            free_completed_event=part.moved(table.free_completed_event),
            end_event=part.moved(table.end_event),
            is_pending_at_end=table.is_freed_late & is_requested & is_open,
        )
    )


def _phases(phases: Phases, device: DeviceSnapshot, part: _Part) -> Phases:
    first, last = part.events
    rows = part.event_rows
    n_events = len(rows)
    failed = phases.oom_events
    return replace(
        phases,
        certain=phases.certain[rows],
        phase=phases.phase[rows],
        run_end=np.clip(phases.run_end[rows] - np.int32(first), -1, n_events - 1),
        run_last=np.clip(phases.run_last[rows] - np.int32(first), -1, n_events - 1),
        iteration=phases.iteration[rows],
        in_step=phases.in_step[rows],
        in_zero_grad=phases.in_zero_grad[rows],
        oom_events=failed[(failed >= first) & (failed <= last)] - first,
        ends_in_oom=device.events.action[last] == int(Action.OOM),
    )


def _replay(
    analysis: DeviceAnalysis, allocations: AllocationTable, events: EventRange
) -> Replay:
    replay = analysis.replay
    first, last = events

    def part_of(curve: Curve) -> Curve:
        return Curve(curve.at(first - 1), lambda: curve.after[first : last + 1])

    n_events = counted(analysis.n_events, "event")
    sentence = f"the figures are those of events {first} to {last} of {n_events} alone"
    note = Note("range", sentence, analysis.device.device)
    return replace(
        replay,
        allocations=allocations,
        requested=part_of(replay.requested),
        allocated=part_of(replay.allocated),
        active=part_of(replay.active),
        reserved=part_of(replay.reserved),
        notes=(note, *replay.notes),
    )


def _device(analysis: DeviceAnalysis, events: EventRange) -> DeviceSnapshot:
    """Return the device's tables at the end of the part."""
    device = analysis.device
    first, last = events
    part_events = take(device.events, np.arange(first, last + 1))
    if last == analysis.n_events - 1:
        return replace(device, events=part_events)
    layout = layout_at(device, analysis.allocations, last)
    rows = layout.blocks.allocation
    allocations = analysis.allocations
    is_waiting = ~allocations.live_at(last)[rows]
    blocks = BlockTable(
        segment_id=layout.blocks.segment,
        addr=layout.blocks.addr,
        block_bytes=layout.blocks.n_bytes,
        requested_bytes=allocations.requested_bytes[rows],
        state=np.where(is_waiting, BlockState.PENDING_FREE, BlockState.ACTIVE).astype(
            np.int8
        ),
        stack_id=allocations.stack_id[rows],
    )
    return replace(
        device, events=part_events, segments=layout.segments, blocks=read_only(blocks)
    )


def _recorded(
    matches: RecordedMatches | None, part: _Part, n_allocations: int
) -> RecordedMatches | None:
    """Return the records' allocations as rows of the part, -1 for those outside."""
    if matches is None:
        return None
    position = unknown_column(n_allocations)
    position[part.rows] = np.arange(len(part.rows))
    columns: dict[str, Any] = {
        name: values_of(position, rows) for name, rows in columns_of(matches).items()
    }
    return read_only(replace(matches, **columns))
