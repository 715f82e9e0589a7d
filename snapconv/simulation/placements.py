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
    """One storage: its device (None for the CPU), its address there, and whether its values are computed.

    ``is_own_memory`` is False for one without memory, whose zeros are shared by all such storages.
    ``likelihood`` is that of True, for truth values that were not computed. ``is_assumed``: its
    values follow from indices or masks that ``routing`` has assumed. ``is_doubtful``: it is on the
    CPU, and C++ code may have meant a device.
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


def has_values(inputs: Iterable[Placement | None]) -> bool:
    """Say whether all of these have values; plain CPU tensors do."""
    return all(placement is None or placement.has_values for placement in inputs)


def has_assumed(inputs: Iterable[Placement | None]) -> bool:
    """Say whether the values of any of these are assumed."""
    return any(placement is not None and placement.is_assumed for placement in inputs)


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

    def of(self, tensor: Any) -> Placement | None:
        """Return a tensor's placement; None for a plain CPU tensor, one without a storage, or a number."""
        try:
            placement = self._by_id.get(self._storage_id(tensor))
        except TypeError:  # a number: the engine calls add(Tensor, 1) in the derivative of atan
            return None
        except (
            RuntimeError
        ):  # wrappers have no storage of their own, and sparse tensors those of their parts
            return self._of_part(tensor)
        if (
            placement is None and type(tensor).__name__ == "DTensor"
        ):  # C++ code makes them, of a part here
            return self.of(tensor._local_tensor)
        return placement

    def _of_part(self, tensor: Any) -> Placement | None:
        if self._functorch.is_functorch_wrapped_tensor(tensor):  # by torch.func, as vmap does
            return self.of(self._functorch.get_unwrapped(tensor))
        if tensor.layout is not torch.sparse_coo:
            return None
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return self.of(tensor._values())

    def of_any_storage(self, storage: Any) -> Placement | None:
        """Return a storage's placement; None for a plain one on the CPU."""
        return self._by_id.get(storage._cdata)

    def of_storage(self, storage: Any) -> Placement | None:
        """Return a storage's placement; None for one on the CPU."""
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


class _OfThread(threading.local):
    """What a thread is about to do: a copy of one must not go where that of another does."""

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
        self._own = _OfThread()

    @contextmanager
    def during(self, **devices: int | None) -> Iterator[None]:
        """Let the next copy end on a device (``target``), and what C++ code makes beside tensors be there.

        That takes ``beside`` for the CPU, which is None.
        """
        before = {name: getattr(self._own, name) for name in devices}
        vars(self._own).update(devices)
        try:
            yield
        finally:
            vars(self._own).update(before)

    def resolve(
        self, operation: Operation, inputs: list[Placement | None], kwargs: dict[str, Any]
    ) -> tuple[int | None, dict[str, Any]]:
        """Return the device of the results (None: the CPU), and the arguments to compute them on the CPU."""
        if operation.name == "_to_copy" and self._own.target is not _NOT_REQUESTED:
            device, self._own.target = self._own.target, _NOT_REQUESTED
            return device, kwargs
        if kwargs.get(
            "pin_memory"
        ):  # only the CPU has pinned memory, also in a hook of a call on the GPU
            return None, kwargs | {"pin_memory": False}
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
                (
                    placed.device
                    for placed in inputs
                    if placed is not None and placed.device is not None
                ),
                None,
            )
            return self._own.recent, kwargs
        return self._implied(), kwargs

    def _call_names_cpu(self) -> bool:
        """Say whether the user's torch call has the CPU as its ``device``."""
        call = self._calls.current
        named = call[2].get("device") if call else None
        return named is not None and torch.device(named).type == "cpu"

    def _implied(self) -> int | None:
        """Find the device for a tensor that C++ code makes out of nothing: that of its caller's tensors."""
        call = self._calls.current
        if call is None:
            return self._own.recent if self._graph_task() != -1 else None
        for tensor in tensors_in((*call[1], *call[2].values())):
            placement = self._placements.of(tensor)
            if placement is not None and placement.device is not None:
                return placement.device
        return None
