"""On which device an operation's results lie.

torch's C++ code makes tensors "where this one is", and takes ours for CPU tensors. So a CPU device among
an operation's arguments means something only where the user's own call named it.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from snapconv.simulation.devices.machine import Machine
from snapconv.simulation.modes import Calls
from snapconv.simulation.operations.operation_schemas import Operation
from snapconv.simulation.tensors.placements import Placement, Placements, tensors_in

_NOT_REQUESTED: Any = object()


class _OfThread(threading.local):
    """What a thread is about to do: a copy of one must not go where that of another does."""

    target: int | None = _NOT_REQUESTED
    recent: int | None = None
    beside: int | None = None


class DeviceChoice:
    """Finds the device of results, from the arguments and the call that the user made."""

    def __init__(self, machine: Machine, placements: Placements, calls: Calls) -> None:
        import torch

        self._torch = torch
        self._cpu = torch.device("cpu")
        self._graph_task = torch._C._current_graph_task_id
        self._machine = machine
        self._placements = placements
        self._calls = calls
        self._own = _OfThread()

    @contextmanager
    def next_copy_to(self, device: int | None) -> Iterator[None]:
        """Let the next copy end on a device, or with None on the CPU."""
        before, self._own.target = self._own.target, device
        try:
            yield
        finally:
            self._own.target = before

    @contextmanager
    def made_beside(self, device: int | None) -> Iterator[None]:
        """Let what C++ code makes "where this tensor is" be on a device: it takes that for the CPU."""
        before, self._own.beside = self._own.beside, device
        try:
            yield
        finally:
            self._own.beside = before

    def resolve(
        self, operation: Operation, inputs: list[Placement | None], kwargs: dict[str, Any]
    ) -> tuple[int | None, dict[str, Any]]:
        """Return the device of the results (None: the CPU), and the arguments to compute them on the CPU."""
        if operation.name == "_to_copy" and self._own.target is not _NOT_REQUESTED:
            device, self._own.target = self._own.target, _NOT_REQUESTED
            return device, kwargs
        if kwargs.get("pin_memory"):
            kwargs = kwargs | {"pin_memory": False}
        wanted = kwargs.get("device")
        if wanted is not None and wanted.type == "cuda":
            index = self._machine.current_device if wanted.index is None else wanted.index
            return self._machine.checked(index), kwargs | {"device": self._cpu}
        if wanted is not None and self._own.beside is not None:
            return self._own.beside, kwargs
        if wanted is not None and (wanted.type != "cpu" or self._call_names_cpu()):
            return None, kwargs
        if inputs:
            self._own.recent = next(
                (placed.device for placed in inputs if placed is not None and placed.device is not None), None
            )
            return self._own.recent, kwargs
        return self._implied(), kwargs

    def _call_names_cpu(self) -> bool:
        """Say whether the user's torch call has the CPU as its ``device``."""
        call = self._calls.current
        named = call[2].get("device") if call else None
        return named is not None and self._torch.device(named).type == "cpu"

    def _implied(self) -> int | None:
        """Find the device for a tensor that C++ code makes out of nothing: that of its caller's tensors."""
        call = self._calls.current
        if call is None:
            return self._own.recent if self._graph_task() != -1 else None
        for tensor in tensors_in((*call[1], *call[2].values()), self._torch.Tensor):
            placement = self._placements.of(tensor)
            if placement is not None and placement.device is not None:
                return placement.device
        return None
