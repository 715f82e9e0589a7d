"""Where tensors lie: which storages are on a simulated device, and on which one results are to be.

Every storage of the simulation is an ordinary CPU storage; lying on a device is a note about it
here, which lasts as long as the storage does. torch's C++ code makes tensors "where this one is",
and takes ours for CPU tensors: so a CPU device among arguments means something only where the
program's own call named it.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from snapconv.simulation.machine import Machine
from snapconv.simulation.operations import Operation
from snapconv.simulation.patches import Calls


@dataclass(slots=True, eq=False)
class Placement:
    """One storage: its device (None for the CPU), its address there, and whether it has values.

    ``is_own_memory`` is False for one without memory, whose zeros are shared by all such storages.
    ``likelihood`` is that of True, for truth values that were not computed. ``is_assumed``: its
    values follow from indices or masks that ``routing`` has assumed. ``is_doubtful``: it is on the
    CPU, and C++ code may have meant a device. ``is_pinned``: it is pinned memory of the CPU.
    ``is_of_others``: its values follow from what other ranks of a simulated job would have.
    """

    device: int | None
    addr: int
    n_bytes: int
    has_values: bool
    is_own_memory: bool = True
    reference: Any = None
    likelihood: float = 0.5
    is_assumed: bool = False
    is_doubtful: bool = False
    is_pinned: bool = False
    is_of_others: bool = False


def has_values(inputs: Iterable[Placement | None]) -> bool:
    """Say whether all of these have values; plain CPU tensors do."""
    return all(placement is None or placement.has_values for placement in inputs)


def first_device(placements: Iterable[Placement | None]) -> int | None:
    """Return the device of the first one that is on any; None where all are on the CPU."""
    for placement in placements:
        if placement is not None and placement.device is not None:
            return placement.device
    return None


def has_assumed(inputs: Iterable[Placement | None]) -> bool:
    """Say whether the values of any of these are assumed."""
    return any(placement is not None and placement.is_assumed for placement in inputs)


def are_of_others(inputs: Iterable[Placement | None]) -> bool:
    """Say whether the values of any of these follow from those of other ranks."""
    return any(placement is not None and placement.is_of_others for placement in inputs)


def are_computed(inputs: Iterable[Placement | None]) -> bool:
    """Say whether all of these have values that follow from no assumed ones."""
    return has_values(inputs) and not has_assumed(inputs)


class Placements:
    """The placed storages, found by the identity of the storage that a tensor views."""

    def __init__(self, when_freed: Callable[[Placement], None]) -> None:
        self._storage_id = torch._C._storage_id
        self._functorch = torch._C._functorch
        self._when_freed = when_freed
        self._by_id: dict[int, Placement] = {}
        self._is_open = True
        self._hiding_thread: int | None = None

    @contextmanager
    def hidden(self) -> Iterator[None]:
        """Let all tensors be the CPU's for this thread, as they are for torch's C++ code."""
        before = self._hiding_thread
        self._hiding_thread = threading.get_ident()
        try:
            yield
        finally:
            self._hiding_thread = before

    def of(self, tensor: Any) -> Placement | None:
        """Return a tensor's placement; None for a plain CPU tensor, or what has no storage."""
        if self._hiding_thread is not None and self._hiding_thread == threading.get_ident():
            return None
        try:
            placement = self._by_id.get(self._storage_id(tensor))
        except (
            TypeError
        ):  # a number: the engine calls add(Tensor, 1) in the derivative of atan
            return None
        except RuntimeError:
            # Wrappers have no storage of their own, and sparse tensors those of their parts.
            return self._part_placement(tensor)
        if placement is None and type(tensor).__name__ == "DTensor":
            # C++ code makes them, of a part here.
            return self.of(tensor._local_tensor)
        return placement

    def _part_placement(self, tensor: Any) -> Placement | None:
        if self._functorch.is_functorch_wrapped_tensor(
            tensor
        ):  # by torch.func, as vmap does
            return self.of(self._functorch.get_unwrapped(tensor))
        if tensor.layout is not torch.sparse_coo:
            return None
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return self.of(tensor._values())

    def storage_placement(self, storage: Any) -> Placement | None:
        """Return a storage's placement; None for a plain one on the CPU."""
        return self._by_id.get(storage._cdata)

    def device_placement(self, storage: Any) -> Placement | None:
        """Return the placement of a storage on a device; None for any on the CPU."""
        placement = self._by_id.get(storage._cdata)
        return None if placement is None or placement.device is None else placement

    def add(self, storage: Any, placement: Placement) -> None:
        """Note a storage's placement, until the storage dies."""
        key = storage._cdata
        self._by_id[key] = placement

        def forget(_: object) -> None:
            if self._is_open and self._by_id.get(key) is placement:
                del self._by_id[key]
                self._when_freed(placement)

        # torch keeps a storage's Python object for as long as its memory lives, so that this is
        # called when the memory is freed (checked with 2.13).
        placement.reference = weakref.ref(storage, forget)

    def close(self) -> None:
        """Forget everything; tensors that are still alive count as CPU tensors from here on."""
        self._is_open = False
        self._by_id.clear()


def tensors_in(values: Iterable[Any]) -> Iterator[Any]:
    """List the tensors among arguments, also those in lists, tuples and dicts."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value)
        elif isinstance(value, dict):
            yield from tensors_in(value.values())


_NOT_REQUESTED: Any = object()


class _ThreadState(threading.local):
    """The devices that a thread is about to use: a copy must not go where another thread's does."""

    target: int | None = _NOT_REQUESTED
    recent: int | None = None
    beside: int | None = None


class DeviceChoice:
    """Finds the device of results, from the arguments and the call that the user made."""

    def __init__(self, machine: Machine, placements: Placements, calls: Calls) -> None:
        self._cpu = torch.device("cpu")
        self._graph_task = torch._C._current_graph_task_id
        self._machine = machine
        self._placements = placements
        self._calls = calls
        self._state = _ThreadState()

    @contextmanager
    def during(self, **devices: int | None) -> Iterator[None]:
        """Let the next copy end on the device ``target``, and C++ code's tensors lie on ``beside``.

        C++ code takes the latter for the CPU, which is None.
        """
        before = {name: getattr(self._state, name) for name in devices}
        vars(self._state).update(devices)
        try:
            yield
        finally:
            vars(self._state).update(before)

    def resolve(
        self, operation: Operation, inputs: list[Placement | None], kwargs: dict[str, Any]
    ) -> tuple[int | None, dict[str, Any]]:
        """Return the device of the results (None: the CPU), and the arguments for the CPU."""
        state = self._state
        if operation.name == "_to_copy" and state.target is not _NOT_REQUESTED:
            target = state.target
            state.target = _NOT_REQUESTED
            return target, kwargs
        if kwargs.get("pin_memory"):
            # Only the CPU has pinned memory, also in a hook of a call on the GPU.
            return None, kwargs | {"pin_memory": False}
        device = kwargs.get("device")
        if device is None:
            return self._implied(inputs), kwargs
        if device.type == "cuda":
            index = self._machine.current_device if device.index is None else device.index
            return self._machine.checked(index), kwargs | {"device": self._cpu}
        if state.beside is not None:
            return state.beside, kwargs
        if device.type != "cpu" or self._call_names_cpu():
            return None, kwargs
        return self._implied(inputs), kwargs

    def _call_names_cpu(self) -> bool:
        """Say whether the user's torch call has the CPU as its ``device``."""
        call = self._calls.current
        device = call[2].get("device") if call else None
        return device is not None and torch.device(device).type == "cpu"

    def _implied(self, inputs: list[Placement | None]) -> int | None:
        """Find the device of results by the inputs; without any, by the tensors of the call."""
        if inputs:
            self._state.recent = first_device(inputs)
            return self._state.recent
        # C++ code makes a tensor out of nothing.
        call = self._calls.current
        if call is None:
            return self._state.recent if self._graph_task() != -1 else None
        return first_device(map(self._placements.of, tensors_in(call[1:])))
