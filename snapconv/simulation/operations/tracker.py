"""Operations on tensors -> mallocs and frees on the simulated devices.

Sees every operation below autograd. Decides on which device its results lie, has it computed on the
CPU or by shape alone, and notes where the new storages are.
"""

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, suppress
from typing import Any

from snapconv.errors import RecorderError
from snapconv.recorder.guard import Guard, is_fault
from snapconv.recorder.observe.tensors import Location
from snapconv.recorder.program.own_frames import for_program, has_interrupted
from snapconv.recorder.torch_surface import Feature
from snapconv.simulation.devices.machine import Machine
from snapconv.simulation.devices.workspace import BlasWorkspaces, Workspace
from snapconv.simulation.modes import Calls
from snapconv.simulation.operations.evaluation import (
    NO_MEMORY_FROM_BYTES,
    Evaluation,
    Invocation,
    Run,
)
from snapconv.simulation.operations.in_place_sums import Transfers
from snapconv.simulation.operations.operation_schemas import Kind, Operation, describe
from snapconv.simulation.operations.values_read import ValuesRead
from snapconv.simulation.patches import instead
from snapconv.simulation.tensors.device_choice import DeviceChoice
from snapconv.simulation.tensors.doubts import Doubts
from snapconv.simulation.tensors.placements import Placement, Placements, tensors_in
from snapconv.simulation.tensors.same_device import SameDevice


class Tracker:
    """The one that every operation passes through."""

    def __init__(self, machine: Machine, guard: Guard | None = None) -> None:
        import torch

        self.guard = guard or Guard(Feature.SIMULATION)
        self._torch = torch
        self._tensor = torch.Tensor
        self.machine = machine
        self.placements = Placements(instead(self.guard, self._freed, lambda _: None))
        self.transfers = Transfers(machine, self.placements)
        self.calls = Calls()
        self.values_read = ValuesRead(self.calls)
        self.evaluation = Evaluation(self.placements, self.values_read, compute=machine.options.compute)
        self._workspaces = BlasWorkspaces(machine) if machine.options.cublas_workspace else None
        self._operations: dict[Any, Operation] = {}
        self._choice = DeviceChoice(machine, self.placements, self.calls)
        self.doubts = Doubts(self.placements, self.calls)
        self._same_device = SameDevice(self.placements, self.calls, self.doubts)
        self._pid = os.getpid()

    @property
    def workspaces(self) -> tuple[Workspace, ...]:
        """The workspaces of cuBLAS that were allocated so far."""
        return tuple(self._workspaces.made) if self._workspaces else ()

    def copy(self, tensor: Any, device: int | None, **options: Any) -> Any:
        """Copy a tensor to a device, or with None to the CPU; differentiable."""
        if device is not None and os.getpid() != self._pid:
            raise for_program(
                RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
            )  # as torch does
        with self._choice.next_copy_to(device):
            return self._torch.ops.aten._to_copy.default(tensor, **options)

    def made_beside(self, device: int | None) -> AbstractContextManager[None]:
        """Let what C++ code makes beside tensors of a device be on it, for as long as the context lasts."""
        return self._choice.made_beside(device)

    def handle(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operation and place its results; after a fault of ours, do without memory for them."""
        if os.getpid() != self._pid:  # a forked DataLoader worker: no device there
            return func(*args, **kwargs)
        run = Run(func)
        try:
            return self._handle(run, args, kwargs)
        except Exception as error:  # noqa: BLE001  # handed on, or kept
            is_theirs = error is run.raised or not is_fault(error) or isinstance(error, RecorderError)
            if has_interrupted(error):
                self.guard.takes(error)
            if is_theirs or not self._has_run(run, args, kwargs):
                raise for_program(error)  # noqa: B904  # it is the very error
            self.guard.keep(error)
        finally:
            # Also where it failed in one type and was run in another: an exception holds the frames that hold
            # it, and with them tensors of the program.
            run.raised = None
        return run.result

    def _has_run(self, run: Run, args: Any, kwargs: dict[str, Any]) -> bool:
        """Run an operation on the CPU, if it has not been; what cannot be is an error of the program's."""
        if not run.is_done:
            if kwargs.get("device") is not None:
                kwargs = kwargs | {"device": self._torch.device("cpu")}
            with suppress(Exception):
                run(args, kwargs)
            run.raised = None
        return run.is_done

    def _handle(self, run: Run, args: Any, kwargs: dict[str, Any]) -> Any:
        func = run.func
        self.transfers.raise_failure()
        operation = self._operations.get(func)
        if operation is None:
            operation = self._operations[func] = describe(func)
        tensors = self._tensors(args, kwargs)
        inputs = [self.placements.of(tensor) for tensor in tensors]
        self.transfers.settle_used(inputs)
        # After a fault of ours, a tensor may be on the CPU that the program has put on a device.
        if len(tensors) > 1 and self.guard.failure is None and _differ(inputs):
            self._same_device.check(operation, func, args, tensors)
        device, kwargs = self._choice.resolve(operation, inputs, kwargs)
        if device is not None and operation.not_modelled is not None:
            self.machine.meet(operation.not_modelled)
        call = Invocation(run, operation, func, args, kwargs, tensors, inputs, device)
        result, is_computed = self.evaluation.run(call)
        if operation.kind is Kind.FRESH:
            if device is not None or not is_computed:
                self._place(operation, args, result, device, has_values=is_computed)
            if device is None:
                self.doubts.made(result, tensors, inputs)
            elif self._workspaces is not None:
                self._workspaces.note(operation.name, device)
        elif operation.may_resize:
            self._place_resized(result, device, has_values=is_computed)
        return result

    def _tensors(self, args: Any, kwargs: dict[str, Any]) -> list[Any]:
        """List all tensors among the arguments."""
        found = list(tensors_in(args, self._tensor))
        return [*found, *tensors_in(kwargs.values(), self._tensor)] if kwargs else found

    def _place(
        self, operation: Operation, args: Any, result: Any, device: int | None, *, has_values: bool
    ) -> None:
        """Note where the storages of new tensors are."""
        if operation.cpu_results:
            result = [value for i, value in enumerate(result) if i not in operation.cpu_results]
        for tensor in self._with_storages(result):
            if self.placements.of(tensor) is not None:
                continue
            if device is None:
                self._placed(tensor.untyped_storage(), None, has_values=has_values)
            else:
                self._place_storage(tensor.untyped_storage(), device, operation, args, has_values=has_values)

    def _with_storages(self, result: Any) -> Iterator[Any]:
        """List the new tensors that have storages; of a sparse one its indices and values."""
        for tensor in tensors_in((result,), self._tensor):
            if tensor.layout is self._torch.strided:
                yield tensor
            elif tensor.layout is self._torch.sparse_coo:
                yield from (tensor._indices(), tensor._values())

    def _placed(self, storage: Any, device: int | None, *, has_values: bool) -> Placement:
        """Note where a storage is, before it has an address there."""
        fake_storages = self.evaluation.fake_storages
        is_own = has_values or fake_storages is None or not fake_storages.has(storage)
        placement = Placement(device, 0, storage.nbytes(), has_values=has_values, is_own_memory=is_own)
        self.placements.add(storage, placement)
        return placement

    def _place_storage(
        self,
        storage: Any,
        device: int,
        operation: Operation | None = None,
        args: Any = (),
        *,
        has_values: bool = True,
    ) -> None:
        placement = self._placed(storage, device, has_values=has_values)
        if operation is not None and self.transfers.may_start(operation, args, placement):
            return
        self.transfers.settle()
        placement.addr = self.machine.malloc(device, placement.n_bytes)

    def place(self, storage: Any, device: int) -> None:
        """Put an existing CPU storage on a device."""
        self._place_storage(storage, device)

    def is_large(self, n_bytes: int) -> bool:
        """Whether memory of the CPU is to have no values, since nothing is computed and it would be much."""
        return self.evaluation.fake_storages is not None and n_bytes >= NO_MEMORY_FROM_BYTES

    def take_values(self, tensor: Any) -> None:
        """Count a large tensor on the CPU as one without values from now on."""
        storage = tensor.untyped_storage()
        if self.is_large(storage.nbytes()) and self.placements.of(tensor) is None:
            self.placements.add(storage, Placement(None, 0, storage.nbytes(), has_values=False))

    def clone_storage(self, storage: Any, device: int) -> Any:
        """Copy a storage into new memory on a device."""
        n_bytes, fake_storages = storage.nbytes(), self.evaluation.fake_storages
        if fake_storages is None:
            made = self._torch.UntypedStorage(n_bytes).copy_(storage)
        else:
            made = fake_storages.storage(n_bytes)
        # Copying is an operation too, which may have been seen: then it has its block.
        if self.placements.of_storage(made) is None:
            self._place_storage(made, device, has_values=fake_storages is None)
        return made

    def _place_resized(self, result: Any, device: int | None, *, has_values: bool) -> None:
        """Give storages that an operation has grown, or brought along, their block."""
        for tensor in tensors_in((result,), self._tensor):
            placement = self.placements.of(tensor)
            storage = tensor.untyped_storage()
            if placement is None:
                if device is not None:
                    self._place_storage(storage, device, has_values=has_values)
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
            self.transfers.settle_used([placement])
            self.machine.free(placement.device, placement.addr)

    def locate(self, tensor: Any) -> Location | None:
        """Tell where a tensor's storage lies on the simulated devices."""
        self.transfers.settle()
        self.transfers.settle_used([self.placements.of(tensor)])
        return self.placements.locate(tensor)

    def has_values(self, tensor: Any) -> bool:
        """Say whether a tensor's values were computed."""
        placement = self.placements.of(tensor)
        return placement is None or placement.has_values

    def forget_values(self, tensor: Any) -> None:
        """Let a tensor have no values from here on."""
        self.evaluation.known.forget(tensor)

    def close(self) -> None:
        """Stop placing and freeing."""
        self.placements.close()


def _differ(inputs: list[Placement | None]) -> bool:
    """Say whether tensors are on several devices, the CPU being one."""
    first, *others = (None if placement is None else placement.device for placement in inputs)
    return any(device != first for device in others)
