"""Operations on tensors -> mallocs and frees on the simulated devices.

Sees every operation below autograd. Decides on which device its results lie, has it computed on the
CPU or by shape alone, and notes where the new storages are.
"""

import os
from contextlib import AbstractContextManager
from typing import Any

from snapconv.recorder.addresses import Location
from snapconv.recorder.simulation.attention_values import gpu_operations
from snapconv.recorder.simulation.device_choice import DeviceChoice
from snapconv.recorder.simulation.hollow import Hollow
from snapconv.recorder.simulation.machine import Machine
from snapconv.recorder.simulation.modes import Calls
from snapconv.recorder.simulation.operations import Kind, Operation, describe, written_arguments
from snapconv.recorder.simulation.placements import Placement, Placements, tensors_in
from snapconv.recorder.simulation.shapes import map_tensors, result_shapes
from snapconv.recorder.simulation.transfers import Transfers
from snapconv.recorder.simulation.workspace import BlasWorkspaces

# From this size on, fresh uninitialised CPU memory is hollow too where nothing is computed: a model
# may be built on the CPU before it moves to the device.
_HOLLOW_FROM_BYTES = 1 << 20


class Tracker:
    """The one that every operation passes through."""

    def __init__(self, machine: Machine) -> None:
        import torch

        self._torch = torch
        self._tensor = torch.Tensor
        self.machine = machine
        self.hollow = None if machine.options.compute else Hollow()
        self.placements = Placements(self._freed)
        self.transfers = Transfers(machine, self.placements)
        self.calls = Calls()
        self._workspaces = BlasWorkspaces(machine) if machine.options.cublas_workspace else None
        self._gpu_operations = gpu_operations()
        self._operations: dict[Any, Operation] = {}
        self._choice = DeviceChoice(machine, self.placements, self.calls)
        self._pid = os.getpid()

    def copy(self, tensor: Any, device: int | None, **options: Any) -> Any:
        """Copy a tensor to a device, or with None to the CPU; differentiable."""
        if device is not None and os.getpid() != self._pid:
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")  # as torch does
        with self._choice.next_copy_to(device):
            return self._torch.ops.aten._to_copy.default(tensor, **options)

    def made_beside(self, device: int | None) -> AbstractContextManager[None]:
        """Let what C++ code makes beside tensors of a device be on it, for as long as the context lasts."""
        return self._choice.made_beside(device)

    def handle(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operation and place its results."""
        if os.getpid() != self._pid:  # a forked DataLoader worker: no device there
            return func(*args, **kwargs)
        self.transfers.raise_failure()
        operation = self._operations.get(func)
        if operation is None:
            operation = self._operations[func] = describe(func)
        inputs = self._inputs(args, kwargs)
        device, kwargs = self._choice.resolve(operation, inputs, kwargs)
        if device is not None and operation.not_modelled is not None:
            self.machine.meet(operation.not_modelled)
        is_hollow = self.hollow is not None and (device is not None or _any_hollow(inputs))
        if is_hollow:
            result = self._evaluate(operation, func, args, kwargs)
        elif self.hollow is not None and operation.is_uninitialised:
            result, is_hollow = self._hollow_if_large(func, args, kwargs)
        elif func in self._gpu_operations:
            result = self._compute_gpu_operation(func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if operation.kind is Kind.FRESH:
            if is_hollow and device is None and _any_placed(inputs):
                # What comes back to the CPU has values for whoever looks at them: zeros.
                return map_tensors(result, self._torch.zeros_like, self._tensor)
            if device is not None or is_hollow:
                self._place(operation, args, result, device)
            if device is not None and self._workspaces is not None:
                self._workspaces.note(operation.name, device)
        elif operation.may_resize:
            self._place_resized(result, device)
        return result

    def _inputs(self, args: Any, kwargs: dict[str, Any]) -> list[Placement | None]:
        """List the placements of all tensors among the arguments, None for a plain CPU tensor."""
        of = self.placements.of
        found = [of(tensor) for tensor in tensors_in(args, self._tensor)]
        if kwargs:
            found += [of(tensor) for tensor in tensors_in(kwargs.values(), self._tensor)]
        return found

    def _evaluate(self, operation: Operation, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Do an operation by shape alone: views and values for real, which costs nothing."""
        assert self.hollow is not None
        if operation.kind is Kind.IN_PLACE and not operation.may_resize:
            return written_arguments(operation, args, kwargs)
        if operation.name == "resize_":
            return self.hollow.resize(args[0], args[1])
        if operation.is_out and not self._has_sparse((*args, *kwargs.values())):
            return self._shape_out(operation, func, args, kwargs)
        if operation.kind is not Kind.FRESH or operation.reads_values or self._has_sparse(args):
            return func(*args, **kwargs)
        shapes = result_shapes(func, args, kwargs)
        return func(*args, **kwargs) if self._has_sparse((shapes,)) else self.hollow.fill(shapes)

    def _shape_out(self, operation: Operation, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Give what an operation is to write into the size that it would have then."""
        assert self.hollow is not None
        written = written_arguments(operation, args, kwargs)
        sized = result_shapes(func, args, kwargs)
        for tensor, meta in zip(
            tensors_in((written,), self._tensor), tensors_in((sized,), self._tensor), strict=True
        ):
            if tensor.size() != meta.size():
                self.hollow.resize(tensor, meta.size())
        return written

    def _has_sparse(self, values: Any) -> bool:
        strided = self._torch.strided
        return any(tensor.layout is not strided for tensor in tensors_in(values, self._tensor))

    def _hollow_if_large(self, func: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, bool]:
        """Make uninitialised CPU memory without memory where it would be much."""
        assert self.hollow is not None
        shape = result_shapes(func, args, kwargs)
        if shape.untyped_storage().nbytes() >= _HOLLOW_FROM_BYTES:
            return self.hollow.fill(shape), True
        return func(*args, **kwargs), False

    def _compute_gpu_operation(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Compute on the CPU what only CUDA has, into results of CUDA's shapes."""

        def empty(meta: Any) -> Any:
            return self._torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype)

        results = map_tensors(result_shapes(func, args, kwargs), empty, self._tensor)
        self._gpu_operations[func](results, *args, **kwargs)
        return results

    def _place(self, operation: Operation, args: Any, result: Any, device: int | None) -> None:
        """Note where the storages of new tensors are."""
        if operation.cpu_results:
            result = [value for i, value in enumerate(result) if i not in operation.cpu_results]
        for tensor in tensors_in((result,), self._tensor):
            if tensor.layout is not self._torch.strided or self.placements.of(tensor) is not None:
                continue
            if device is None:
                storage = tensor.untyped_storage()
                self.placements.add(storage, Placement(None, 0, storage.nbytes(), is_hollow=True))
            else:
                self._place_storage(tensor.untyped_storage(), device, operation, args)

    def _place_storage(
        self, storage: Any, device: int, operation: Operation | None = None, args: Any = ()
    ) -> None:
        placement = Placement(device, 0, storage.nbytes(), is_hollow=self.hollow is not None)
        self.placements.add(storage, placement)
        if operation is not None and self.transfers.may_start(operation, args, placement):
            return
        self.transfers.settle()
        placement.addr = self.machine.malloc(device, placement.n_bytes)

    def place(self, storage: Any, device: int) -> None:
        """Put an existing CPU storage on a device."""
        self._place_storage(storage, device)

    def clone_storage(self, storage: Any, device: int) -> Any:
        """Copy a storage into new memory on a device."""
        n_bytes = storage.nbytes()
        if self.hollow is None:
            made = self._torch.UntypedStorage(n_bytes).copy_(storage)
        else:
            made = self.hollow.storage(n_bytes)
        self._place_storage(made, device)
        return made

    def _place_resized(self, result: Any, device: int | None) -> None:
        """Give storages that an operation has grown, or brought along, their block."""
        for tensor in tensors_in((result,), self._tensor):
            placement = self.placements.of(tensor)
            storage = tensor.untyped_storage()
            if placement is None:
                if device is not None:
                    self._place_storage(storage, device)
            elif placement.device is not None and placement.n_bytes != storage.nbytes():
                self.transfers.settle()
                old_addr = placement.addr
                placement.n_bytes = storage.nbytes()
                placement.addr = self.machine.malloc(placement.device, placement.n_bytes)
                self.machine.free(placement.device, old_addr)

    def _freed(self, placement: Placement) -> None:
        if placement.device is None or os.getpid() != self._pid:
            return
        if not self.transfers.take_over(placement):
            self.transfers.settle()
            self.machine.free(placement.device, placement.addr)

    def locate(self, tensor: Any) -> Location | None:
        """Tell where a tensor's storage lies on the simulated devices."""
        self.transfers.settle()
        return self.placements.locate(tensor)

    def close(self) -> None:
        """Stop placing and freeing."""
        self.placements.close()


def _any_hollow(inputs: list[Placement | None]) -> bool:
    return any(placement is not None and placement.is_hollow for placement in inputs)


def _any_placed(inputs: list[Placement | None]) -> bool:
    return any(placement is not None and placement.device is not None for placement in inputs)
