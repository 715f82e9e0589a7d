"""The operation of every allocation: by its stack, or the backward node that freed it."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from snapconv.columns import BoolColumn, Int32Column, read_only
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.operations import StackOperation, StackOperations, name_of_node
from snapconv.stop_signals import stage
from snapconv.torch_knowledge.operation_catalog import UNNAMED

BY_NODE = "the node of backward that freed it"


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of one device: each a name and its source; ``id`` has one entry per allocation.

    ``names`` are distinct, that of position 0 is UNNAMED; ``name_id`` is a position in them.
    """

    names: tuple[str, ...]
    name_id: Int32Column
    found: tuple[StackOperation, ...]
    id: Int32Column


@stage
def name_allocations(
    stacks: StackTable,
    by_stack: StackOperations,
    allocations: AllocationTable,
) -> Operations:
    """Name every allocation, with the source of each name; ``by_stack`` has the operation of every stack."""
    more: dict[StackOperation, int] = {}  # of this device alone: a file may have many devices, and many names

    def id_of(operation: StackOperation) -> int:
        known = by_stack.number_of.get(operation)
        return more.setdefault(operation, len(by_stack.found) + len(more)) if known is None else known

    id_of_stack = by_stack.ids if len(by_stack.ids) else np.zeros(1, np.int32)
    has_stack = allocations.stack_id >= 0
    ids = np.where(has_stack, id_of_stack[np.where(has_stack, allocations.stack_id, 0)], 0).astype(np.int32)
    is_unnamed = (by_stack.name_ids[ids] == 0) & (allocations.free_stack_id >= 0)
    _name_by_node(ids, is_unnamed, id_of, stacks, allocations)
    if not more:
        return read_only(Operations(by_stack.names, by_stack.name_ids[ids], by_stack.found, ids))
    names = dict(by_stack.number_of_name)
    more_ids = np.array([names.setdefault(operation.name, len(names)) for operation in more], np.int32)
    name_of = np.concatenate((by_stack.name_ids, more_ids))
    return read_only(Operations(tuple(names), name_of[ids], (*by_stack.found, *more), ids))


def _name_by_node(
    ids: Int32Column,
    rows: BoolColumn,
    id_of: Callable[[StackOperation], int],
    stacks: StackTable,
    allocations: AllocationTable,
) -> None:
    """Name these rows by the backward nodes that freed them."""
    freed_by, inverse = np.unique(allocations.free_stack_id[rows], return_inverse=True)
    nodes = [name_of_node(stacks, stack) for stack in freed_by.tolist()]
    found = [0 if name == UNNAMED else id_of(StackOperation(name, BY_NODE)) for name in nodes]
    ids[rows] = np.array(found, np.int32)[inverse]
