"""The records of a recorder, matched with the events and the allocations of one device.

A record means: at this time, the storage at this address was a parameter, a gradient, and so on.
Its allocation is the one that was live then at that address: torch's storages begin where their
blocks begin. Records in, rows of the AllocationTable out.
"""

from dataclasses import dataclass, replace

import numpy as np

from snapconv.columns import (
    Int8Column,
    Int32Column,
    Int64Column,
    read_only,
    rows_of,
    unknown_column,
)
from snapconv.json_text import picked
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.event_table import EventTable
from snapconv.snapshot.recorded.metadata import Metadata, RecordedTensors

# The tables of Metadata that have a record of a tensor in each row.
_RECORDS = (
    "parameters",
    "earlier",
    "gradients",
    "states",
    "inputs",
    "saved",
    "copies",
    "attributes",
    "gathered",
    "unreduced",
    "buffers",
)


@dataclass(frozen=True, slots=True)
class RecordedMatches:
    """The allocation of each record of one device, -1 for other devices and where there is none."""

    metadata: Metadata
    parameters: Int64Column
    earlier: Int64Column
    gradients: Int64Column
    states: Int64Column
    inputs: Int64Column
    saved: Int64Column
    copies: Int64Column
    originals: Int64Column
    attributes: Int64Column
    gathered: Int64Column
    unreduced: Int64Column
    buffers: Int64Column


def match_recorded(
    metadata: Metadata, device: int, events: EventTable, allocations: AllocationTable
) -> RecordedMatches:
    """Find the allocations of what was recorded on one device."""
    index = _Index(events, allocations)
    records = picked(metadata, _RECORDS)
    records["originals"] = replace(metadata.copies, addr=metadata.copies.original_addr)
    rows = {name: index.find(table, device) for name, table in records.items()}
    return read_only(RecordedMatches(metadata, **rows))


class _Index:
    """Allocations in the order of their addresses, then of their allocs."""

    def __init__(self, events: EventTable, allocations: AllocationTable) -> None:
        self._allocations = allocations
        self._times = events.time_us
        self._last = len(events) - 1
        self._addrs, addr_id = np.unique(allocations.addr, return_inverse=True)
        self._n_moments = len(events) + 1
        key = addr_id.reshape(-1) * self._n_moments + allocations.alloc_event + 1
        self._order = np.argsort(key, kind="stable")
        self._keys = key[self._order]

    def find(self, recorded: RecordedTensors, device: int) -> Int64Column:
        """Return the row of each record's allocation."""
        matches = unknown_column(len(recorded))
        records = rows_of(recorded.device == device)
        if not len(records) or not len(self._addrs):
            return matches
        addr = recorded.addr[records]
        before, after = self._events_around(recorded.recorded_us[records])
        addr_id = np.minimum(np.searchsorted(self._addrs, addr), len(self._addrs) - 1)
        key = addr_id * self._n_moments + after + 1
        position = np.searchsorted(self._keys, key, side="right") - 1
        row = self._order[np.maximum(position, 0)]
        is_same_addr = (position >= 0) & (self._allocations.addr[row] == addr)
        freed = self._allocations.freed_event[row]
        is_live = is_same_addr & ((freed < 0) | (freed > before))
        matches[records] = np.where(is_live, row, -1)
        return matches

    def _events_around(self, times: Int64Column) -> tuple[Int64Column, Int64Column]:
        """Return the last event before each time, and the last that is not after it.

        The events of the same microsecond may be on either side. Without times, the end of the
        trace stands in.
        """
        if self._times is None:
            last = np.full(len(times), self._last, np.int64)
            return last, last
        before = np.searchsorted(self._times, times, "left") - 1
        after = np.searchsorted(self._times, times, "right") - 1
        return before, after


def recorded_phases(metadata: Metadata | None, events: EventTable) -> Int8Column | None:
    """Return the phase of every event in codes of RecordedPhase.

    Phases follow each other, so that it is the last that began. None where phases cannot be placed.
    """
    time_us = events.time_us
    if metadata is None or time_us is None or not len(metadata.phases.phase):
        return None
    table = metadata.phases
    last_begun = np.searchsorted(table.began_us, time_us, side="right") - 1
    row = np.maximum(last_begun, 0)
    ended_us = table.ended_us[row]
    is_running = (ended_us < 0) | (time_us <= ended_us)
    return table.phase[row] * ((last_begun >= 0) & is_running)


def recorded_iterations(
    metadata: Metadata | None, events: EventTable
) -> Int32Column | None:
    """Return the iteration of every event, from 0 without gaps.

    None where the recorder marked none.
    """
    numbers = None if metadata is None else _iteration_numbers(metadata, events)
    if numbers is None:
        return None
    begins = np.diff(numbers, prepend=numbers[:1]) > 0
    return np.cumsum(begins).astype(np.int32)


def iteration_at(metadata: Metadata, events: EventTable, event: int) -> int:
    """Return the recorder's number of the iteration of an event; -1 where that is not known."""
    numbers = _iteration_numbers(metadata, events)
    return -1 if numbers is None else int(numbers[max(event, 0)])


def _iteration_numbers(metadata: Metadata, events: EventTable) -> Int64Column | None:
    """Return the recorder's iteration numbers, never falling.

    What is before the first belongs to it.
    """
    table = metadata.iterations
    if events.time_us is None or not len(events) or not len(table.iteration):
        return None
    last_begun = np.searchsorted(table.began_us, events.time_us, side="right") - 1
    numbers = table.iteration[np.maximum(last_begun, 0)]
    return np.asarray(np.maximum.accumulate(numbers))
