"""Sums that a GPU makes in place, seen here as new tensors, and the block that they take over.

With any dispatch mode active, torch's autograd takes the out-of-place path where it would otherwise
add into memory without other references: InputBuffer::accumulate, AccumulateGrad, the derivatives
of indexing.
"""

import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from snapconv.allocator.allocator_trace import Frames
from snapconv.simulation.machine import Machine
from snapconv.simulation.operations import Operation
from snapconv.simulation.placements import Placement, Placements
from snapconv.simulation.stacks import ENGINE_CALLER, OWN_FOLDER

# A sum that the engine computes, and no Python code in a node, is an accumulation. (The few sums
# inside derivatives written in C++ cannot be distinguished; their operands are mostly kept.)
_SUMS = {"add"}
# Inside a node, these write into fresh zeros on a GPU (torch/csrc/autograd/FunctionsManual.cpp).
_SCATTERS = {
    *"index_put _index_put_impl scatter scatter_add index_add masked_scatter put index_fill".split()
}


@dataclass(slots=True, eq=False)
class _Undecided:
    thread: int
    placement: Placement
    operands: list[Placement]
    frames: Frames | None


class Transfers:
    """Allocations of sums, deferred for a moment, at most one of each thread.

    If the very next thing that the thread does is that the sum's first operand is freed, then the
    sum has that operand's block, and nothing was allocated. What another thread does meanwhile
    decides nothing.
    """

    def __init__(self, machine: Machine, placements: Placements) -> None:
        self._graph_task = torch._C._current_graph_task_id
        self._is_grad_enabled = torch._C.is_grad_enabled
        self._machine = machine
        self._placements = placements
        self._undecided: list[_Undecided] = []
        self._failures: dict[int, BaseException] = {}
        machine.allocate_all_deferred = self._allocate_all_deferred

    def defer_allocation(
        self, operation: Operation, args: Any, placement: Placement
    ) -> bool:
        """Defer a placement's allocation if a GPU may run its operation in place.

        Return whether it is deferred; the caller allocates it otherwise.
        """
        # With create_graph the engine makes new tensors on a GPU too.
        if self._graph_task() == -1 or self._is_grad_enabled():
            return False
        if operation.name in _SCATTERS:
            tensors = args[:1]
        elif operation.name in _SUMS and _is_called_by_engine():
            tensors = args[:2]
        else:
            return False
        device, n_bytes = placement.device, placement.n_bytes
        operands: list[Placement] = []
        for operand in map(self._placements.of, tensors):
            if operand and operand.device == device and operand.n_bytes == n_bytes:
                operands.append(operand)
        if not operands:
            return False
        self.allocate_deferred()
        frames = self._machine.frames()
        self._undecided.append(
            _Undecided(threading.get_ident(), placement, operands, frames)
        )
        return True

    def take_over(self, freed: Placement) -> bool:
        """Give the block of a freed operand to its undecided sum; return whether there is one."""
        for undecided in list(self._undecided):
            # Placements are compared by identity.
            if freed in undecided.operands and self._take(undecided):
                undecided.placement.addr = freed.addr
                return True
        return False

    def allocate_deferred(self) -> None:
        """Allocate what this thread deferred."""
        if self._undecided:
            thread = threading.get_ident()
            for undecided in list(self._undecided):
                if undecided.thread == thread:
                    self._allocate_undecided(undecided)

    def _allocate_all_deferred(self) -> None:
        """Allocate what any thread deferred."""
        for undecided in list(self._undecided):
            self._allocate_undecided(undecided)

    def allocate_if_deferred(self, placements: Iterable[Placement | None]) -> None:
        """Allocate those of these placements that another thread deferred: this one uses them.

        What this thread deferred waits for its next allocation or free, which decides.
        """
        if self._undecided:
            thread = threading.get_ident()
            operands = [*placements]
            for undecided in list(self._undecided):
                if undecided.thread != thread and undecided.placement in operands:
                    self._allocate_undecided(undecided)

    def _take(self, undecided: _Undecided) -> bool:
        """Say whether it is this call that decides; of several threads one does."""
        try:
            self._undecided.remove(undecided)
        except ValueError:
            return False
        return True

    def _allocate_undecided(self, undecided: _Undecided) -> None:
        if self._take(undecided):
            try:
                self.allocate(undecided.placement, undecided.frames)
            except RuntimeError as error:
                # Raised by the next operation: this may be in a deallocation.
                self._failures[undecided.thread] = error

    def allocate(self, placement: Placement, frames: Frames | None = None) -> None:
        """Give a storage on a device its block."""
        assert placement.device is not None
        placement.addr = self._machine.malloc(placement.device, placement.n_bytes, frames)

    def raise_deferred_error(self) -> None:
        """Raise the error that a deferred allocation of this thread has met, once."""
        failure = (
            self._failures.pop(threading.get_ident(), None) if self._failures else None
        )
        if failure is not None:
            raise failure


def _is_called_by_engine() -> bool:
    """Say whether no Python code stands between the running engine and the simulation."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(OWN_FOLDER):
        frame = frame.f_back
    return frame.f_code.co_name == ENGINE_CALLER
