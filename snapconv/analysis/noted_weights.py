"""Weights by name, with their gradients, as the recorder noted them: nothing is matched by size."""

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis.columns import read_only
from snapconv.analysis.metadata import Joined
from snapconv.analysis.recorded import iteration_at
from snapconv.analysis.replay import AllocationTable
from snapconv.analysis.weights import WeightTable
from snapconv.snapshot.load import DeviceSnapshot

Int64Column = NDArray[np.int64]


def noted_weights(
    joined: Joined, device: DeviceSnapshot, allocations: AllocationTable, *, event: int
) -> WeightTable:
    """The parameters of one device that are live at ``event`` or stay to the end, in the model's order.

    Sizes are those of the tensors. A gradient is that of the iteration around ``event``, or else the last
    one that was noted. Parameters whose memory is nowhere in the trace are there too, with row -1.
    """
    parameters = joined.metadata.parameters
    found = joined.parameters
    is_mine = (parameters.memory.device == device.device) & ~parameters.is_buffer
    known = np.maximum(found, 0)
    stays = np.ones(len(found), np.bool_)
    if len(allocations):
        stays = (found < 0) | allocations.live_at(event)[known] | (allocations.end_event[known] < 0)
    chosen = np.flatnonzero(is_mine & stays)
    iteration = iteration_at(joined.metadata, device.events, event)
    note = _gradient_notes(joined, device.device, iteration, len(found))[chosen]
    gradients = joined.metadata.gradients
    has_gradient = note >= 0
    at = np.maximum(note, 0)
    row = np.full(len(chosen), -1, np.int64)
    n_bytes = np.zeros(len(chosen), np.int64)
    row[has_gradient] = joined.gradients[at[has_gradient]]
    n_bytes[has_gradient] = gradients.memory.n_bytes[at[has_gradient]]
    table = WeightTable(
        row=found[chosen],
        gradient_row=row,
        n_unmatched_gradients=0,
        names=tuple(parameters.names[i] for i in chosen.tolist()),
        size_bytes=parameters.memory.n_bytes[chosen],
        gradient_bytes=n_bytes,
        stack_id=_stacks(joined, allocations, chosen),
    )
    return read_only(table)


def _gradient_notes(joined: Joined, device: int, iteration: int, n_parameters: int) -> Int64Column:
    """The note of each parameter's gradient: the last one of the iteration, or else the last of all."""
    gradients = joined.metadata.gradients
    chosen = np.full(n_parameters, -1, np.int64)
    is_mine = (gradients.memory.device == device) & (gradients.parameter >= 0)
    notes = np.flatnonzero(is_mine)
    is_asked = gradients.iteration[notes] == iteration
    notes = notes[np.lexsort((gradients.memory.noted_us[notes], is_asked))]
    # Later entries overwrite earlier ones: NumPy assigns in order.
    chosen[gradients.parameter[notes]] = notes
    return chosen


def _stacks(joined: Joined, allocations: AllocationTable, chosen: Int64Column) -> NDArray[np.int32]:
    """Where each was registered, or else where its memory was allocated."""
    registered = joined.metadata.parameters.stack_ids[chosen]
    rows = joined.parameters[chosen]
    if not len(allocations):
        return registered
    allocated = np.where(rows >= 0, allocations.stack_id[np.maximum(rows, 0)], -1)
    return np.where(registered >= 0, registered, allocated).astype(np.int32)
