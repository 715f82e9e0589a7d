"""Weights by name, with their gradients, as the recorder wrote them: nothing is matched by size."""

from dataclasses import dataclass

import numpy as np

from snapconv.columns import BoolColumn, Int32Column, Int64Column, read_only
from snapconv.naming.weights.weights_by_size import WeightTable
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.phases.recorded_phases import iteration_at
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.load import DeviceSnapshot


@dataclass(frozen=True, slots=True)
class _Places:
    """Per parameter, where it was at the report's moment: the allocation's row, -1 for none, and its bytes.

    ``is_live``: it was there at all: also where its memory is nowhere in the trace.
    """

    row: Int64Column
    n_bytes: Int64Column
    is_live: BoolColumn


def recorded_weights(
    recorded: RecordedMatches, device: DeviceSnapshot, allocations: AllocationTable, *, event: int
) -> WeightTable:
    """The parameters of one device that are live at ``event``, in the model's order, one row each.

    Sizes are those of the tensors. A gradient is that of the iteration around ``event``, or else the last
    one that was recorded. Parameters whose memory is nowhere in the trace are there too, with row -1, unless
    they were last seen before ``event``.
    """
    parameters = recorded.metadata.parameters
    places = _places_at(recorded, device, allocations, event)
    chosen = np.flatnonzero(places.is_live & ~parameters.is_buffer)
    iteration = iteration_at(recorded.metadata, device.events, event)
    record = _gradient_records(recorded, device.device, iteration, len(places.row))[chosen]
    gradients = recorded.metadata.gradients
    has_gradient = record >= 0
    at = np.maximum(record, 0)
    row = np.full(len(chosen), -1, np.int64)
    n_bytes = np.zeros(len(chosen), np.int64)
    row[has_gradient] = recorded.gradients[at[has_gradient]]
    n_bytes[has_gradient] = gradients.memory.n_bytes[at[has_gradient]]
    table = WeightTable(
        row=places.row[chosen],
        gradient_row=row,
        n_unmatched_gradients=0,
        names=tuple(parameters.names[i] for i in chosen.tolist()),
        size_bytes=places.n_bytes[chosen],
        gradient_bytes=n_bytes,
        stack_id=_stacks(recorded, allocations, chosen, places.row[chosen]),
    )
    return read_only(table)


def _places_at(
    recorded: RecordedMatches, device: DeviceSnapshot, allocations: AllocationTable, event: int
) -> _Places:
    """Where each parameter was at ``event``, as far as that is on this device.

    Of several places that are live then (the program may keep the memory that a parameter had before), it
    is the first that was recorded afterwards, or else the last that was recorded before. One whose memory is
    nowhere in the trace counts if it was the first place recorded afterwards.
    """
    parameters, earlier = recorded.metadata.parameters.memory, recorded.metadata.earlier
    moved = np.flatnonzero(earlier.parameter >= 0)
    owner = np.concatenate((earlier.parameter[moved], np.arange(len(parameters))))
    found = np.concatenate((recorded.earlier[moved], recorded.parameters))
    n_bytes = np.concatenate((earlier.memory.n_bytes[moved], parameters.n_bytes))
    recorded_us = np.concatenate((earlier.memory.recorded_us[moved], parameters.recorded_us))
    is_mine = np.concatenate((earlier.memory.device[moved], parameters.device)) == device.device
    times = device.events.time_us
    moment = int(times[event]) if times is not None and event >= 0 else np.iinfo(np.int64).min
    is_after = recorded_us >= moment
    # The best comes last, and overwrites: records from before, oldest first, then later ones, newest first.
    order = np.lexsort((np.where(is_after, -recorded_us, recorded_us), is_after))
    first_after = np.full(len(parameters), -1, np.int64)
    first_after[owner[order]] = np.where(is_after[order], order, -1)
    is_live = is_mine & (found < 0) & is_after & (first_after[owner] == np.arange(len(owner)))
    if len(allocations):
        is_live |= (found >= 0) & allocations.live_at(event)[np.maximum(found, 0)]
    has_left = ~is_mine & ~is_after
    places = _Places(
        row=np.full(len(parameters), -1, np.int64),
        n_bytes=parameters.n_bytes.copy(),
        is_live=np.zeros(len(parameters), np.bool_),
    )
    for i in order[(is_live | has_left)[order]].tolist():
        places.row[owner[i]], places.n_bytes[owner[i]], places.is_live[owner[i]] = (
            found[i],
            n_bytes[i],
            is_live[i],
        )
    return places


def _gradient_records(
    recorded: RecordedMatches, device: int, iteration: int, n_parameters: int
) -> Int64Column:
    """The record of each parameter's gradient: the last one of the iteration, or else the last of all."""
    gradients = recorded.metadata.gradients
    chosen = np.full(n_parameters, -1, np.int64)
    is_mine = (gradients.memory.device == device) & (gradients.parameter >= 0)
    records = np.flatnonzero(is_mine)
    is_wanted = gradients.iteration[records] == iteration
    records = records[np.lexsort((gradients.memory.recorded_us[records], is_wanted))]
    # Later entries overwrite earlier ones: NumPy assigns in order.
    chosen[gradients.parameter[records]] = records
    return chosen


def _stacks(
    recorded: RecordedMatches, allocations: AllocationTable, chosen: Int64Column, rows: Int64Column
) -> Int32Column:
    """Where each was registered, or else where its memory was allocated."""
    registered = recorded.metadata.parameters.stack_ids[chosen]
    if not len(allocations):
        return registered
    allocated = np.where(rows >= 0, allocations.stack_id[np.maximum(rows, 0)], -1)
    return np.where(registered >= 0, registered, allocated).astype(np.int32)
