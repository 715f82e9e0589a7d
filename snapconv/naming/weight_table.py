"""The weights that are live at the report's moment, each with its gradient and its name.

A recorder wrote which they are; nothing in a bare snapshot links a weight with its gradient but
their size.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.parameters import counted, most_at_once
from snapconv.columns import (
    BoolColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    count_of,
    first_known,
    read_only,
    rows_of,
    unknown_column,
    values_of,
)
from snapconv.phases.recorded_matches import RecordedMatches, iteration_at
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.stacks.project_lines import ProjectLines


@dataclass(frozen=True, slots=True)
class WeightTable:
    """The weights live at the report's moment, in the order of allocation, or as recorded.

    ``row`` is their row in the AllocationTable, ``gradient_row`` that of their gradient; -1 for
    none. ``names`` are empty where there is none. ``n_unmatched_gradients``: gradients that fit no
    weight.
    """

    row: Int64Column
    gradient_row: Int64Column
    n_unmatched_gradients: int
    names: tuple[str, ...]
    size_bytes: Int64Column
    gradient_bytes: Int64Column
    stack_id: Int32Column


def weight_names(
    names: Sequence[str], stack_ids: Int32Column, lines: ProjectLines
) -> tuple[str, ...]:
    """Name every weight: as given, or else by its line, ``train.py:48#3``, or else by its number.

    The line is the innermost one of the project that it was allocated from, with its number there.
    """
    all_names = []
    n_of_line: Counter[str] = Counter()
    for number, (name, stack_id) in enumerate(
        zip(names, stack_ids.tolist(), strict=True), 1
    ):
        line = lines.innermost(stack_id)
        default = f"weight_{number}"
        if line:
            n_of_line[line.place] += 1
            default = f"{line.place}#{n_of_line[line.place]}"
        all_names.append(name or default)
    return tuple(all_names)


def tensor_names(
    weights: WeightTable, recorded: RecordedMatches | None, lines: ProjectLines
) -> dict[int, str]:
    """Return the name of the tensor in each row of the AllocationTable, where it is known.

    A weight has that of the report, its gradient ``NAME.grad``, a state ``NAME: STATE``. Of several
    that used the memory one after the other, the parameter itself goes first, then its gradient.
    """
    weight_rows = weights.row.tolist()
    all_names = weight_names(weights.names, weights.stack_id, lines)
    tensors = list(zip(weight_rows, all_names, strict=True))
    if recorded:
        tensors += _recorded_names(recorded)
    else:
        gradients = zip(weights.gradient_row.tolist(), all_names, strict=True)
        tensors += [(row, f"{name}.grad") for row, name in gradients]
    names: dict[int, str] = {}
    for row, name in tensors:
        if row >= 0:
            names.setdefault(row, name)
    return names


def _recorded_names(recorded: RecordedMatches) -> Iterator[tuple[int, str]]:
    """Yield the rows and names of what a recorder wrote: parameters, gradients, states."""
    names = recorded.metadata.parameters.names
    gradients = recorded.metadata.gradients
    states = recorded.metadata.states
    kinds = (
        (recorded.parameters, np.arange(len(names)), [""] * len(names)),
        (recorded.gradients, gradients.parameter, [".grad"] * len(gradients)),
        (recorded.states, states.parameter, [f": {name}" for name in states.names]),
    )
    for rows, parameters, suffixes in kinds:
        for row, parameter, suffix in zip(rows, parameters.tolist(), suffixes, strict=True):
            if parameter >= 0 and names[parameter]:
                yield int(row), names[parameter] + suffix


def match_weights(
    allocations: AllocationTable,
    category: Int8Column,
    *,
    event: int,
    iteration_events: tuple[int, int],
) -> WeightTable:
    """Pair each weight live at ``event`` with a gradient that lives during the iteration around it.

    Of equal sizes, any is as good as another: the sum is right, and a row is right where its size
    is unique. Gradients that live at ``event`` itself go first; there is one per weight at most,
    and of a size no more than one iteration has.
    """
    live = allocations.live_at(event)
    sizes = allocations.requested_bytes
    is_gradient = category == Category.GRADIENT
    weights = rows_of(live & (category == Category.WEIGHT))
    first, last = iteration_events
    is_begun = allocations.alloc_event <= last
    is_not_ended = (allocations.end_event < 0) | (allocations.end_event >= first)
    candidates = rows_of(is_gradient & is_begun & is_not_ended)
    candidates = candidates[np.argsort(~live[candidates], kind="stable")]
    n_at_once = _most_at_once(allocations, candidates, first)
    paired = _pair(sizes[weights], sizes[candidates], n_at_once)
    gradient = values_of(candidates, paired)
    unmatched = live & is_gradient
    unmatched[gradient[gradient >= 0]] = False
    table = WeightTable(
        row=weights,
        gradient_row=gradient,
        n_unmatched_gradients=count_of(unmatched),
        names=("",) * len(weights),
        size_bytes=sizes[weights],
        gradient_bytes=values_of(sizes, gradient, missing=0),
        stack_id=allocations.stack_id[weights],
    )
    return read_only(table)


def _most_at_once(
    allocations: AllocationTable, rows: Int64Column, first: int
) -> dict[int, int]:
    """Count the gradients of each size that an iteration has which begins at ``first``.

    As many as are live together, or are made in it: an optimizer may free each when it has used it.
    Those of the iteration before, which live on until zero_grad, must not count beside their
    successors: a batch norm's buffers have the size of its weights.
    """
    sizes = allocations.requested_bytes[rows]
    alloc = allocations.alloc_event[rows]
    end = allocations.end_event[rows]
    end = np.where(end >= 0, end, np.iinfo(end.dtype).max)
    return counted(sizes[alloc >= first]) | most_at_once(sizes, alloc, end)


def _pair(
    weights: Int64Column, gradients: Int64Column, n_at_once: dict[int, int]
) -> Int64Column:
    """Return the number of a gradient of the same size for every weight; -1 for none.

    Each gradient is given once.
    """
    free: dict[int, list[int]] = {}
    for number, size in enumerate(gradients.tolist()):
        free.setdefault(size, []).append(number)
    for size, same_size in free.items():
        del same_size[n_at_once[size] :]
        same_size.reverse()
    paired = unknown_column(len(weights))
    for row, size in enumerate(weights.tolist()):
        if free.get(size):
            paired[row] = free[size].pop()
    return paired


def recorded_weights(
    recorded: RecordedMatches,
    device: DeviceSnapshot,
    allocations: AllocationTable,
    *,
    event: int,
) -> WeightTable:
    """Return the parameters of one device that are live at ``event``, in the model's order.

    Sizes are those of the tensors. A gradient is that of the iteration around ``event``, or else
    the last one that was recorded. Parameters whose memory is nowhere in the trace are there too,
    with row -1, unless they were last seen before ``event``.
    """
    parameters = recorded.metadata.parameters
    gradients = recorded.metadata.gradients
    chosen, rows, sizes = _live_parameters(recorded, device, allocations, event)
    iteration = iteration_at(recorded.metadata, device.events, event)
    record = _gradient_records(recorded, device.device, iteration)[chosen]
    registered = parameters.stack_ids[chosen]
    allocated = values_of(allocations.stack_id, rows)
    table = WeightTable(
        row=rows,
        gradient_row=values_of(recorded.gradients, record),
        n_unmatched_gradients=0,
        names=tuple(map(parameters.names.__getitem__, chosen.tolist())),
        size_bytes=sizes,
        gradient_bytes=values_of(gradients.n_bytes, record, missing=0),
        stack_id=first_known(registered, allocated),
    )
    return read_only(table)


@dataclass(frozen=True, slots=True)
class _Records:
    """Records of the memory of parameters: of each the parameter, its row, and its bytes.

    ``is_here``: on the device that is asked for. ``is_after``: recorded after the event.
    """

    parameter: Int64Column
    row: Int64Column
    n_bytes: Int64Column
    recorded_us: Int64Column
    is_here: BoolColumn
    is_after: BoolColumn


def _live_parameters(
    recorded: RecordedMatches,
    device: DeviceSnapshot,
    allocations: AllocationTable,
    event: int,
) -> tuple[Int64Column, Int64Column, Int64Column]:
    """Find the parameters on this device at ``event``, without buffers.

    Returns each with its row, -1 for none, and its bytes. Of several records that are live then
    (the program may keep the memory that a parameter had before), it is the first that was recorded
    afterwards, or else the last that was recorded before. One whose memory is nowhere in the trace
    counts if it was the first recorded afterwards.
    """
    is_buffer = recorded.metadata.parameters.is_buffer
    n_parameters = len(is_buffer)
    records = _records(recorded, device, event)
    # The best comes last, and overwrites, as NumPy assigns in order: records from before, oldest
    # first, then later ones, newest first.
    is_after = records.is_after
    time = np.where(is_after, -records.recorded_us, records.recorded_us)
    order = np.lexsort((time, is_after))
    # The record of each parameter that comes first after the event; -1 if there is none.
    first_after = unknown_column(n_parameters)
    first_after[records.parameter[order]] = np.where(is_after[order], order, -1)
    is_first_after = first_after[records.parameter] == np.arange(len(records.parameter))
    is_live = records.is_here & (records.row < 0) & is_after & is_first_after
    is_live |= values_of(allocations.live_at(event), records.row, missing=False)
    # Recorded on another device before the event: it has moved there, unless a later record says
    # that it lives here.
    has_left = ~(records.is_here | is_after)
    deciding = order[(is_live | has_left)[order]]
    last = unknown_column(n_parameters)
    last[records.parameter[deciding]] = deciding
    parameters = rows_of((last >= 0) & is_live[last] & ~is_buffer)
    chosen = last[parameters]
    return parameters, records.row[chosen], records.n_bytes[chosen]


def _records(recorded: RecordedMatches, device: DeviceSnapshot, event: int) -> _Records:
    """Return the records of earlier memory of parameters, then those of their last."""
    parameters = recorded.metadata.parameters
    earlier = recorded.metadata.earlier
    moved = rows_of(earlier.parameter >= 0)

    def join(earlier_column: Int64Column, column: Int64Column) -> Int64Column:
        return np.concatenate((earlier_column[moved], column))

    recorded_us = join(earlier.recorded_us, parameters.recorded_us)
    parameter = join(earlier.parameter, np.arange(len(parameters)))
    row = join(recorded.earlier, recorded.parameters)
    n_bytes = join(earlier.n_bytes, parameters.n_bytes)
    devices = join(earlier.device, parameters.device)
    moment = device.events.time_at(event)
    if moment is None:
        moment = np.iinfo(np.int64).min
    is_here = devices == device.device
    return _Records(parameter, row, n_bytes, recorded_us, is_here, recorded_us >= moment)


def _gradient_records(
    recorded: RecordedMatches, device: int, iteration: int
) -> Int64Column:
    """Return the record of each parameter's gradient.

    The iteration's last one, or else the last of all.
    """
    gradients = recorded.metadata.gradients
    chosen = unknown_column(len(recorded.metadata.parameters))
    records = rows_of((gradients.device == device) & (gradients.parameter >= 0))
    is_of_iteration = gradients.iteration[records] == iteration
    records = records[np.lexsort((gradients.recorded_us[records], is_of_iteration))]
    # Later entries overwrite earlier ones: NumPy assigns in order.
    chosen[gradients.parameter[records]] = records
    return chosen
