"""Sums that a GPU makes in place, seen here as new tensors.

With any dispatch mode active, torch's autograd takes the out-of-place path where it would otherwise add
into memory without other references (InputBuffer::accumulate, AccumulateGrad, the derivatives of indexing).
Such a result's allocation is deferred for a moment: if the very next thing that its thread does is that its
first operand is freed, then it has that operand's block, and nothing was allocated.
"""

import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapconv.allocator.allocator_trace import Frames
from snapconv.simulation.devices.machine import Machine
from snapconv.simulation.operations.operation_schemas import Operation
from snapconv.simulation.tensors.placements import Placement, Placements

# A sum that the engine computes, and no Python code in a node, is an accumulation. (The few sums inside
# derivatives written in C++ cannot be distinguished; their operands are mostly kept.)
_SUMS = {"add"}
# Inside a node, these write into fresh zeros on a GPU (torch/csrc/autograd/FunctionsManual.cpp).
_SCATTERS = {"index_put", "_index_put_impl", "scatter", "scatter_add", "index_add", "masked_scatter"}


_OWN_FOLDER = str(Path(__file__).parents[1])
# Who calls the engine: the first since torch 2.3, the others before.
_ENGINE_FOLDER = f"{os.sep}autograd{os.sep}"
_ENGINE_CALLERS = {"_engine_run_backward", "backward", "grad"}


@dataclass(slots=True, eq=False)
class _Undecided:
    thread: int
    placement: Placement
    operands: list[Placement]
    frames: Frames | None


class Transfers:
    """At most one deferred allocation of each thread: what another thread does meanwhile decides nothing."""

    def __init__(self, machine: Machine, placements: Placements) -> None:
        from torch import _C

        self._graph_task = _C._current_graph_task_id
        self._is_grad_enabled = _C.is_grad_enabled
        self._machine = machine
        self._placements = placements
        self._undecided: list[_Undecided] = []
        self._failures: dict[int, BaseException] = {}
        machine.settle = self.settle_all

    def may_start(self, operation: Operation, args: Any, placement: Placement) -> bool:
        """Hold a new placement's allocation back if its operation may have been in place on a GPU."""
        # With create_graph the engine makes new tensors on a GPU too.
        if self._graph_task() == -1 or self._is_grad_enabled() or not self._is_candidate(operation):
            return False
        operands = [
            operand
            for operand in map(self._placements.of, args[: 2 if operation.name in _SUMS else 1])
            if operand is not None
            and operand.device == placement.device
            and operand.n_bytes == placement.n_bytes
        ]
        if not operands:
            return False
        self.settle()
        frames = self._machine.allocation_frames()
        self._undecided.append(_Undecided(threading.get_ident(), placement, operands, frames))
        return True

    def _is_candidate(self, operation: Operation) -> bool:
        if operation.name in _SCATTERS:
            return True
        return operation.name in _SUMS and _is_called_by_engine()

    def take_over(self, freed: Placement) -> bool:
        """Let the undecided result have the block of an operand that is freed; return whether it does."""
        for undecided in list(self._undecided):
            if any(operand is freed for operand in undecided.operands) and self._take(undecided):
                undecided.placement.addr = freed.addr
                return True
        return False

    def settle(self) -> None:
        """Allocate what this thread deferred."""
        if self._undecided:
            thread = threading.get_ident()
            for undecided in list(self._undecided):
                if undecided.thread == thread:
                    self._allocate(undecided)

    def settle_used(self, placements: Iterable[Placement | None]) -> None:
        """Allocate what another thread deferred and this one uses."""
        if self._undecided:
            thread, used = threading.get_ident(), [*placements]
            for undecided in list(self._undecided):
                if undecided.thread != thread and undecided.placement in used:
                    self._allocate(undecided)

    def settle_all(self) -> None:
        """Allocate what any thread deferred."""
        for undecided in list(self._undecided):
            self._allocate(undecided)

    def _take(self, undecided: _Undecided) -> bool:
        """Say whether it is this call that decides; of several threads one does."""
        try:
            self._undecided.remove(undecided)
        except ValueError:
            return False
        return True

    def _allocate(self, undecided: _Undecided) -> None:
        if not self._take(undecided):
            return
        placement = undecided.placement
        assert placement.device is not None
        try:
            placement.addr = self._machine.malloc(placement.device, placement.n_bytes, undecided.frames)
        except RuntimeError as error:  # raised by the next operation: this may be inside a deallocation
            self._failures[undecided.thread] = error

    def raise_failure(self) -> None:
        """Raise the error of a deferred allocation of this thread."""
        failure = self._failures.pop(threading.get_ident(), None) if self._failures else None
        if failure is not None:
            raise failure


def _is_called_by_engine() -> bool:
    """Say whether no Python code stands between the running engine and the simulation."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OWN_FOLDER):
        frame = frame.f_back
    return frame.f_code.co_name in _ENGINE_CALLERS and _ENGINE_FOLDER in frame.f_code.co_filename
