"""The phases and iterations that a recorder marked, brought from its times to the events of a trace."""

import numpy as np

from snapconv.columns import Int8Column, Int32Column, Int64Column
from snapconv.snapshot.event_table import EventTable
from snapconv.snapshot.recorded.metadata import Metadata, PhaseTable, RecordedPhase


def recorded_phases(metadata: Metadata, events: EventTable) -> Int8Column | None:
    """The phase of every event in codes of RecordedPhase; None where phases cannot be placed."""
    if events.time_us is None or not len(metadata.phases.phase):
        return None
    return _phase_at(metadata.phases, events.time_us)


def recorded_iterations(metadata: Metadata, events: EventTable) -> Int32Column | None:
    """The iteration of every event, counted from 0 without gaps; None where the recorder marked none."""
    numbers = _iteration_numbers(metadata, events)
    if numbers is None or not len(numbers):
        return None
    return (np.cumsum(np.diff(numbers, prepend=numbers[:1]) > 0)).astype(np.int32)


def iteration_at(metadata: Metadata, events: EventTable, event: int) -> int:
    """The recorder's number of the iteration that an event is in; -1 where that is not known."""
    numbers = _iteration_numbers(metadata, events)
    if numbers is None or not len(numbers):
        return -1
    return int(numbers[max(event, 0)])


def _iteration_numbers(metadata: Metadata, events: EventTable) -> Int64Column | None:
    """The recorder's iteration numbers, never falling; what is before the first belongs to it."""
    table = metadata.iterations
    if events.time_us is None or not len(table.iteration):
        return None
    place = np.searchsorted(table.began_us, events.time_us, side="right") - 1
    return np.asarray(np.maximum.accumulate(table.iteration[np.maximum(place, 0)]))


def _phase_at(table: PhaseTable, time_us: Int64Column) -> Int8Column:
    """The phase that each time is in; phases follow each other, so it is the last that began."""
    place = np.searchsorted(table.began_us, time_us, side="right") - 1
    row = np.maximum(place, 0)
    ended = table.ended_us[row]
    is_inside = (place >= 0) & ((ended < 0) | (time_us <= ended))
    return np.where(is_inside, table.phase[row], np.int8(RecordedPhase.OTHER)).astype(np.int8)
