"""The origin of every allocation: its operation and its ``nn.Module``."""

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
    values_of,
)
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.fields import Interner
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.stack_facts import Operations, name_of_node
from snapconv.stop_signals import stage

# A recorder's word for the model itself is the empty path.
_ROOT = "(model)"


@stage
def name_allocations(
    stacks: StackTable, stack_operations: Operations, allocations: AllocationTable
) -> Operations:
    """Name every allocation; ``stack_operations`` has the operation of every stack.

    An allocation that its stack does not name is named by the backward node that freed it.
    """
    numbers = Interner()
    numbers.ids(stack_operations.names)
    ids = values_of(stack_operations.name_id, allocations.stack_id, missing=0)
    rows = (ids == 0) & (allocations.free_stack_id >= 0)
    free_stacks, inverse = np.unique(allocations.free_stack_id[rows], return_inverse=True)
    nodes = [name_of_node(stacks, stack) for stack in free_stacks.tolist()]
    ids[rows] = numbers.ids(nodes)[inverse]
    # A file may have many devices, and many names: they share one tuple where nothing is new.
    names = numbers.values()
    if len(names) == len(stack_operations.names):
        names = stack_operations.names
    return read_only(Operations(names, ids))


# --- modules


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of one device.

    ``module_id`` is a position in them, one entry per allocation, -1: none. ``evidence`` is
    METADATA for a path such as ``blocks.3.attn``, FRAMES for the lines of calls.
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
    numbers = Interner()  # of every module, by its name and the evidence for it
    ids = _modules_by_frames(module_calls, allocations.stack_id, numbers)
    ids[category == Category.WORKSPACE] = -1
    if recorded is not None:
        _set_recorded_paths(ids, recorded, numbers)
    has_module = ids >= 0
    module_numbers, ids[has_module] = np.unique(ids[has_module], return_inverse=True)
    modules = numbers.values()
    used_modules = [modules[number] for number in module_numbers.tolist()]
    names = tuple(name for name, _ in used_modules)
    evidence = tuple(evidence for _, evidence in used_modules)
    return read_only(Modules(names, evidence, ids))


def _modules_by_frames(
    module_calls: Sequence[str], stack_id: Int32Column, numbers: Interner
) -> Int32Column:
    ids = unknown_column(len(module_calls), np.int32)
    for stack in distinct(stack_id[stack_id >= 0]).tolist():
        label = module_calls[stack]
        if label:
            ids[stack] = numbers.id((label, Evidence.FRAMES))
    return values_of(ids, stack_id)


def _set_recorded_paths(
    ids: Int32Column, recorded: RecordedMatches, numbers: Interner
) -> None:
    """Overwrite with the paths that a recorder wrote; those of parameters come last, and win."""
    metadata = recorded.metadata
    saved = _module_ids(metadata.saved.modules, numbers)
    # Backwards, so that the first that saved a tensor has the last word.
    _set(ids, recorded.saved[::-1], saved[::-1])
    parameter_modules = [module or _ROOT for module in metadata.parameters.modules]
    parameter_ids = _module_ids(parameter_modules, numbers)
    _set(ids, recorded.states, values_of(parameter_ids, metadata.states.parameter))
    _set(ids, recorded.gradients, values_of(parameter_ids, metadata.gradients.parameter))
    _set(ids, recorded.parameters[::-1], parameter_ids[::-1])


def _module_ids(modules: Sequence[str], numbers: Interner) -> Int32Column:
    """Return the number of each module; -1 where a record has none."""
    ids = unknown_column(len(modules), np.int32)
    for row, module in enumerate(modules):
        if module:
            ids[row] = numbers.id((module, Evidence.METADATA))
    return ids


def _set(ids: Int32Column, rows: Int64Column, values: Int32Column) -> None:
    is_known = (rows >= 0) & (values >= 0)
    ids[rows[is_known]] = values[is_known]
