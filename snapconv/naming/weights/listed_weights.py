"""The weights of a bare snapshot with the names of a list of parameters, and their gradients."""

from collections.abc import Iterator

import numpy as np

from snapconv.columns import Int8Column
from snapconv.naming.weights.param_names import Naming, name_weights
from snapconv.naming.weights.weight_names import were_placed
from snapconv.naming.weights.weights_by_size import WeightTable, live_weights, match_weights
from snapconv.notes import Note
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.recorded.metadata import ParameterTable
from snapconv.snapshot.recorded.params_file import ParamList
from snapconv.snapshot.stack_table import StackTable
from snapconv.units import counted, format_bytes, format_share


def listed_weights(
    params: ParamList,
    stacks: StackTable,
    allocations: AllocationTable,
    category: Int8Column,
    *,
    event: int,
    iteration_events: tuple[int, int],
) -> tuple[WeightTable, Naming]:
    """Name the weights live at ``event``; what the list calls frozen or a buffer has a gradient last."""
    rows = live_weights(allocations, category, event)
    is_placed = were_placed(stacks, allocations.stack_id[rows])
    n_older = np.count_nonzero(allocations.alloc_event[rows] < 0)
    naming = name_weights(
        params,
        allocations.requested_bytes[rows],
        is_placed=is_placed,
        is_by_address=bool(2 * n_older > len(rows)),
    )
    can_be_trained = params.requires_grad & params.is_floating & ~params.is_buffer
    is_trained = np.append(can_be_trained, np.True_)[naming.entry]
    weights = match_weights(
        allocations,
        category,
        event=event,
        iteration_events=iteration_events,
        names=naming.names,
        is_trained=is_trained,
    )
    return weights, naming


def unused_list_note(params: ParamList, recorded: ParameterTable, device: int) -> Note:
    """Report that the names which a recorder read from the model are kept, and how many the list has too."""
    known = set(params.names)
    n_common = sum(not known.isdisjoint(names) for names in recorded.all_names)
    n_names = len(recorded.all_names)
    has_it = "all of them" if n_common == n_names else f"{n_common} of its {counted(n_names, 'name')}"
    return Note(
        "unused-params",
        f"the capture has the names that were read from the model itself, so {params.path.name} was not "
        f"used; it has {has_it}",
        device,
    )


def naming_notes(naming: Naming, params: ParamList, device: int) -> Iterator[Note]:
    """What is wrong with the names, if anything."""
    unnamed = naming.n_bytes - naming.named_bytes
    n_unnamed = naming.names.count("")
    if n_unnamed:
        share = format_share(unnamed, naming.n_bytes)
        missing = counted(naming.n_without_memory, "tensor")
        yield Note(
            "unnamed-weights",
            f"{counted(n_unnamed, 'weight')} ({format_bytes(unnamed)}, {share}) fit no name of "
            f"{params.path.name}, and {missing} of it no weight: they are called by their lines or numbers",
            device,
        )
    ambiguous = naming.named_bytes - naming.certain_bytes
    if ambiguous:
        yield Note(
            "ambiguous-names",
            f"{format_bytes(ambiguous)} of the weights ({format_share(ambiguous, naming.n_bytes)}) have a "
            "name of their size, where another would fit as well"
            + ("" if params.is_ordered else f": {params.path.name} is sorted by name, and not the model"),
            device,
        )
