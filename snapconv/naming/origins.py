"""The origin of every allocation: its operation, by stack or backward node, and its ``nn.Module``."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.columns import (
    Int8Column,
    Int32Column,
    Int64Column,
    distinct,
    read_only,
    unknown_column,
)
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.stack_facts import Operations, name_of_node
from snapconv.stop_signals import stage

# A recorder's word for the model itself is the empty path.
_ROOT = "(model)"

_Known = dict[tuple[str, Evidence], int]


@stage
def name_allocations(
    stacks: StackTable, by_stack: Operations, allocations: AllocationTable
) -> Operations:
    """Name every allocation; ``by_stack`` has the operation of every stack.

    An allocation that its stack does not name is named by the backward node that freed it.
    """
    numbers = {name: number for number, name in enumerate(by_stack.names)}
    ids = np.append(by_stack.name_id, np.int32(0))[
        allocations.stack_id
    ]  # the last is that of stack -1
    rows = (ids == 0) & (allocations.free_stack_id >= 0)
    freed_by, inverse = np.unique(allocations.free_stack_id[rows], return_inverse=True)
    nodes = [name_of_node(stacks, stack) for stack in freed_by.tolist()]
    found = [numbers.setdefault(node, len(numbers)) for node in nodes]
    ids[rows] = np.array(found, np.int32)[inverse]
    is_new = len(numbers) > len(by_stack.names)  # a file may have many devices, and many names
    return read_only(Operations(tuple(numbers) if is_new else by_stack.names, ids))


# --- modules


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of one device; ``module_id`` is a position in them, one entry per allocation, -1: none.

    ``evidence`` is METADATA for a path such as ``blocks.3.attn``, FRAMES for the lines of calls.
    """

    names: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    module_id: Int32Column


def find_modules(
    module_calls: Sequence[str],
    allocations: AllocationTable,
    category: Int8Column,
    recorded: RecordedMatches | None,
) -> Modules:
    """Find the module that every allocation was made in, or that a parameter is of.

    A gradient and the states of an optimizer go with their parameter; what autograd saved goes with
    the module that saved it first. A workspace is a library's, whichever module ran when it was
    made.
    """
    known: _Known = {}
    ids = _by_frames(module_calls, allocations.stack_id, known)
    ids[category == Category.WORKSPACE] = -1
    if recorded is not None:
        _by_recorded_paths(ids, recorded, known)
    used, ids[ids >= 0] = np.unique(ids[ids >= 0], return_inverse=True)
    every = list(known)
    kept = [every[number] for number in used.tolist()]
    return read_only(
        Modules(tuple(name for name, _ in kept), tuple(evidence for _, evidence in kept), ids)
    )


def _by_frames(module_calls: Sequence[str], stack_id: Int32Column, known: _Known) -> Int32Column:
    ids = unknown_column(len(module_calls) + 1, np.int32)  # the last is that of stack -1
    for stack in distinct(stack_id[stack_id >= 0]).tolist():
        if label := module_calls[stack]:
            ids[stack] = known.setdefault((label, Evidence.FRAMES), len(known))
    return ids[stack_id]


def _by_recorded_paths(ids: Int32Column, recorded: RecordedMatches, known: _Known) -> None:
    """Overwrite with the paths that a recorder wrote; those of the parameters come last, and win."""
    metadata = recorded.metadata
    saved = _ids_of(metadata.saved.modules, known)
    # Backwards, so that the first that saved a tensor has the last word.
    _set(ids, recorded.saved[::-1], saved[::-1])
    of_parameter = _ids_of([module or _ROOT for module in metadata.parameters.modules], known)
    for rows, parameter in (
        (recorded.states, metadata.states.parameter),
        (recorded.gradients, metadata.gradients.parameter),
    ):
        has_one = parameter >= 0
        _set(ids, rows[has_one], of_parameter[parameter[has_one]])
    _set(ids, recorded.parameters[::-1], of_parameter[::-1])


def _ids_of(modules: tuple[str, ...] | list[str], known: _Known) -> Int32Column:
    ids = [known.setdefault((m, Evidence.METADATA), len(known)) if m else -1 for m in modules]
    return np.array(ids, np.int32)


def _set(ids: Int32Column, rows: Int64Column, values: Int32Column) -> None:
    there = (rows >= 0) & (values >= 0)
    ids[rows[there]] = values[there]
