"""The weights that are live at the report's moment, each with its gradient and its name.

A recorder wrote which they are; nothing in a bare snapshot links a weight with its gradient but
their size.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import repeat

import numpy as np

from snapconv.classification.categories import Category
from snapconv.classification.parameters import counted, most_at_once
from snapconv.columns import (
    Int8Column,
    Int32Column,
    Int64Column,
    count_of,
    read_only,
    rows_of,
    unknown_column,
)
from snapconv.phases.recorded_matches import RecordedMatches, iteration_at
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.load import DeviceSnapshot
from snapconv.stacks.project_lines import ProjectLines


@dataclass(frozen=True, slots=True)
class WeightTable:
    """The weights live at the report's moment: in the order of allocation, or as they were recorded.

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
    given: Sequence[str], stack_ids: Int32Column, lines: ProjectLines
) -> tuple[str, ...]:
    """Name every weight: as given, or else by its line, ``train.py:48#3``, or else by its number.

    The line is the innermost one of the project that it was allocated from, with its number there.
    """
    names = []
    numbers: Counter[str] = Counter()
    for number, (name, stack_id) in enumerate(zip(given, stack_ids.tolist(), strict=True), 1):
        line = lines.innermost(stack_id)
        if line:
            numbers[line.place] += 1
        names.append(
            name or (f"{line.place}#{numbers[line.place]}" if line else f"weight_{number}")
        )
    return tuple(names)


def tensor_names(
    weights: WeightTable, recorded: RecordedMatches | None, lines: ProjectLines
) -> dict[int, str]:
    """Return the name of the tensor in each row of the AllocationTable, where it is known.

    A weight has that of the report, its gradient ``NAME.grad``, a state ``NAME: STATE``. Of several
    that used the memory one after the other, the parameter itself goes first, then its gradient.
    """
    known = weight_names(weights.names, weights.stack_id, lines)
    gradients = zip(weights.gradient_row.tolist(), known, strict=True)
    found = list(zip(weights.row.tolist(), known, strict=True))
    found += (
        _recorded_names(recorded)
        if recorded
        else ((row, f"{name}.grad") for row, name in gradients)
    )
    names: dict[int, str] = {}
    for row, name in found:
        if row >= 0:
            names.setdefault(row, name)
    return names


def _recorded_names(recorded: RecordedMatches) -> Iterator[tuple[int, str]]:
    """Yield the rows and names of what a recorder wrote: parameters, their gradients, their states."""
    metadata = recorded.metadata
    names = metadata.parameters.names
    states = metadata.states
    tensors = (
        (recorded.parameters, np.arange(len(names)), repeat("")),
        (recorded.gradients, metadata.gradients.parameter, repeat(".grad")),
        (recorded.states, states.parameter, (f": {name}" for name in states.names)),
    )
    for rows, parameters, parts in tensors:
        for row, parameter, part in zip(rows.tolist(), parameters.tolist(), parts, strict=False):
            if parameter >= 0 and names[parameter]:
                yield row, names[parameter] + part


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
    weights = rows_of(live & (category == Category.WEIGHT))
    first, last = iteration_events
    begun = allocations.alloc_event <= last
    not_ended = (allocations.end_event < 0) | (allocations.end_event >= first)
    candidates = rows_of((category == Category.GRADIENT) & begun & not_ended)
    candidates = candidates[np.argsort(~live[candidates], kind="stable")]
    sizes = allocations.requested_bytes
    n_at_once = _most_at_once(allocations, candidates, first)
    gradient = _pair(sizes[weights], sizes[candidates], n_at_once)
    gradient[gradient >= 0] = candidates[gradient[gradient >= 0]]
    unmatched = live.copy()
    unmatched[gradient[gradient >= 0]] = False
    n_unmatched = count_of(unmatched & (category == Category.GRADIENT))
    table = WeightTable(
        row=weights,
        gradient_row=gradient,
        n_unmatched_gradients=n_unmatched,
        names=("",) * len(weights),
        size_bytes=sizes[weights],
        gradient_bytes=np.where(gradient >= 0, np.append(sizes, 0)[gradient], 0),
        stack_id=allocations.stack_id[weights],
    )
    return read_only(table)


def _most_at_once(allocations: AllocationTable, rows: Int64Column, first: int) -> dict[int, int]:
    """Count the gradients of each size that an iteration has which begins at ``first``.

    As many as are live together, or are made in it: an optimizer may free each when it has used it.
    Those of the iteration before, which live on until zero_grad, must not count beside their
    successors: a batch norm's buffers have the size of its weights.
    """
    sizes = allocations.requested_bytes[rows]
    made = allocations.alloc_event[rows]
    end = allocations.end_event[rows]
    end = np.where(end >= 0, end, np.iinfo(end.dtype).max)
    return counted(sizes[made >= first]) | most_at_once(sizes, made, end)


def _pair(weights: Int64Column, gradients: Int64Column, n_at_once: dict[int, int]) -> Int64Column:
    """Return the number of a gradient of the same size for every weight, each given once; -1 for none."""
    free: dict[int, list[int]] = {}
    for number, size in enumerate(gradients.tolist()):
        free.setdefault(size, []).append(number)
    for size, same_size in free.items():
        del same_size[n_at_once[size] :]
        same_size.reverse()
    paired = unknown_column(len(weights))
    for i, size in enumerate(weights.tolist()):
        if left := free.get(size):
            paired[i] = left.pop()
    return paired


def recorded_weights(
    recorded: RecordedMatches, device: DeviceSnapshot, allocations: AllocationTable, *, event: int
) -> WeightTable:
    """Return the parameters of one device that are live at ``event``, in the model's order.

    Sizes are those of the tensors. A gradient is that of the iteration around ``event``, or else
    the last one that was recorded. Parameters whose memory is nowhere in the trace are there too,
    with row -1, unless they were last seen before ``event``.
    """
    parameters = recorded.metadata.parameters
    gradients = recorded.metadata.gradients
    places = _places_at(recorded, device, allocations, event)
    chosen, rows, sizes = (column[~parameters.is_buffer[places[0]]] for column in places)
    iteration = iteration_at(recorded.metadata, device.events, event)
    record = _gradient_records(recorded, device.device, iteration)[chosen]
    registered = parameters.stack_ids[chosen]
    allocated = np.append(allocations.stack_id, np.int32(-1))[rows]
    table = WeightTable(
        row=rows,
        gradient_row=np.append(recorded.gradients, -1)[record],
        n_unmatched_gradients=0,
        names=tuple(parameters.names[i] for i in chosen.tolist()),
        size_bytes=sizes,
        gradient_bytes=np.append(gradients.n_bytes, 0)[record],
        stack_id=np.where(registered >= 0, registered, allocated).astype(np.int32),
    )
    return read_only(table)


def _places_at(
    recorded: RecordedMatches, device: DeviceSnapshot, allocations: AllocationTable, event: int
) -> tuple[Int64Column, Int64Column, Int64Column]:
    """Find the parameters on this device at ``event``: each with its row, -1 for none, and its bytes.

    Of several places that are live then (the program may keep the memory that a parameter had
    before), it is the first that was recorded afterwards, or else the last that was recorded
    before. One whose memory is nowhere in the trace counts if it was the first place recorded
    afterwards.
    """
    parameters = recorded.metadata.parameters
    earlier = recorded.metadata.earlier
    moved = rows_of(earlier.parameter >= 0)
    owner = np.concatenate((earlier.parameter[moved], np.arange(len(parameters))))
    found = np.concatenate((recorded.earlier[moved], recorded.parameters))
    n_bytes = np.concatenate((earlier.n_bytes[moved], parameters.n_bytes))
    recorded_us = np.concatenate((earlier.recorded_us[moved], parameters.recorded_us))
    is_mine = np.concatenate((earlier.device[moved], parameters.device)) == device.device
    times = device.events.time_us
    moment = int(times[event]) if times is not None and event >= 0 else np.iinfo(np.int64).min
    is_after = recorded_us >= moment
    # The best comes last, and overwrites, as NumPy assigns in order: records from before, oldest
    # first, then later ones, newest first.
    order = np.lexsort((np.where(is_after, -recorded_us, recorded_us), is_after))
    first_after = unknown_column(len(parameters))
    first_after[owner[order]] = np.where(is_after[order], order, -1)
    is_live = is_mine & (found < 0) & is_after & (first_after[owner] == np.arange(len(owner)))
    is_live |= np.append(allocations.live_at(event), np.False_)[found]
    has_left = ~is_mine & ~is_after
    last = unknown_column(len(parameters))
    known = order[(is_live | has_left)[order]]
    last[owner[known]] = known
    there = rows_of((last >= 0) & is_live[last])
    return there, found[last[there]], n_bytes[last[there]]


def _gradient_records(recorded: RecordedMatches, device: int, iteration: int) -> Int64Column:
    """Return the record of each parameter's gradient: the iteration's last one, or else the last of all."""
    gradients = recorded.metadata.gradients
    chosen = unknown_column(len(recorded.metadata.parameters))
    records = rows_of((gradients.device == device) & (gradients.parameter >= 0))
    is_wanted = gradients.iteration[records] == iteration
    records = records[np.lexsort((gradients.recorded_us[records], is_wanted))]
    # Later entries overwrite earlier ones: NumPy assigns in order.
    chosen[gradients.parameter[records]] = records
    return chosen
