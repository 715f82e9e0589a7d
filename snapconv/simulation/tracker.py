"""Operations on tensors -> mallocs and frees on the simulated devices.

Sees every operation below autograd. Decides on which device its results lie, has it computed on the
CPU or by shape alone, and accounts for the memory of its results: new blocks, blocks taken over by
sums that a GPU makes in place, and the workspaces of cuBLAS.
"""

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from snapconv.errors import RecorderError
from snapconv.guest.guard import Guard, is_fault
from snapconv.guest.locations import Location
from snapconv.guest.own_frames import for_program, has_interrupted
from snapconv.guest.torch_surface import Feature
from snapconv.simulation.blas_workspaces import BlasWorkspaces
from snapconv.simulation.branches import ValuesRead
from snapconv.simulation.cuda_types import check_type
from snapconv.simulation.evaluation import NO_MEMORY_FROM_BYTES, Evaluation, Invocation
from snapconv.simulation.generators import DeviceGenerators
from snapconv.simulation.likelihoods import likelihood_of
from snapconv.simulation.machine import Machine
from snapconv.simulation.operations import (
    FILLING,
    OVERWRITING,
    FakeStorages,
    Kind,
    Operation,
    describe,
)
from snapconv.simulation.patches import Calls
from snapconv.simulation.placements import (
    DeviceChoice,
    Placement,
    Placements,
    are_of_others,
    first_device,
    has_assumed,
    has_values,
    tensors_in,
)
from snapconv.simulation.routing import Routing
from snapconv.simulation.same_device import SameDevice
from snapconv.simulation.same_type import check_types
from snapconv.simulation.transfers import Transfers


class Tracker:
    """Handles every operation of the program; holds the parts of the simulation that do so."""

    def __init__(self, machine: Machine) -> None:
        self.guard = Guard(Feature.SIMULATION)
        self.machine = machine
        self.placements = Placements(self._freed)
        self.routing = Routing(is_worst=machine.options.is_routing_worst)
        self.transfers = Transfers(machine, self.placements)
        self.calls = Calls()
        self.generators = DeviceGenerators(machine.device_count())
        self.values_read = ValuesRead(self.calls)
        fake_storages = None if machine.options.compute else FakeStorages()
        self.evaluation = Evaluation(
            self.placements, self.values_read, self.routing, fake_storages
        )
        self.workspaces = (
            BlasWorkspaces(machine) if machine.options.cublas_workspace else None
        )
        self._operations: dict[Any, Operation] = {}
        self.choice = DeviceChoice(machine, self.placements, self.calls)
        self.same_device = SameDevice(self.placements, self.calls)
        self._pid = os.getpid()
        # Whether the program has read uncomputed values by other ways than torch's operations.
        self.has_given_arrays = False

    def copy(self, tensor: Any, device: int | None, **options: Any) -> Any:
        """Copy a tensor to a device, or with None to the CPU; differentiable."""
        if device is not None and os.getpid() != self._pid:
            # As torch does.
            raise for_program(
                RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
            )
        placement = self.placements.of(tensor)
        source = None if placement is None else placement.device
        with self.choice.during(target=device):
            copy = torch.ops.aten._to_copy.default(tensor, **options)
        is_plain = type(tensor).__torch_dispatch__ is torch.Tensor.__torch_dispatch__
        # To torch both are on the CPU: it would leave the gradient where it is.
        if source != device and is_plain and copy.grad_fn is not None:
            copy.grad_fn.register_hook(partial(self._gradients_copied, source))
        return copy

    def _gradients_copied(self, device: int | None, gradients: Any, _outputs: Any) -> Any:
        """Bring the gradients of a copy to the device of its original."""

        def brought(gradient: Any) -> Any:
            placement = None if gradient is None else self.placements.of(gradient)
            is_there = gradient is None or (placement and placement.device) == device
            return gradient if is_there else self.copy(gradient, device)

        return tuple(map(brought, gradients))

    def handle(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operation and allocate its results; after a fault of ours, without a check.

        The program gets what the operation itself raised, and errors of ours that are for it. A
        fault of ours costs checks only, where the operation has run or still runs on the CPU.
        """
        if os.getpid() != self._pid:  # a forked DataLoader worker: no device there
            return func(*args, **kwargs)
        if func not in self._operations:
            self._operations[func] = describe(func)
        tensors = list(tensors_in((args, kwargs)))
        call = Invocation(func, args, kwargs, self._operations[func], tensors)
        try:
            return self._handle(call)
        except Exception as error:  # noqa: BLE001  # handed on, or kept
            is_ours = error is not call.raised and is_fault(error)
            if has_interrupted(error):
                # The program's exception broke our work off: the guard keeps that as a failure,
                # and the exception itself passes below.
                self.guard.takes(error)
            is_refusal = isinstance(error, RecorderError)
            if not is_ours or is_refusal or not self._has_run(call, args, kwargs):
                raise for_program(error)  # noqa: B904  # it is the very error
            # A fault of ours, and the operation has run: the program gets its result. The guard
            # keeps the first fault for a note, and the checks of devices end with it.
            self._recover(call)
            self.guard.keep(error)
        finally:
            # Also where it failed in one type and was run in another: an exception holds the frames
            # that hold it, and with them tensors of the program.
            call.raised = None
        return call.result

    def _has_run(self, call: Invocation, args: Any, kwargs: dict[str, Any]) -> bool:
        """Run an operation on the CPU, unless it has run; return whether it has now."""
        if not call.is_done:
            if kwargs.get("device") is not None:
                kwargs = kwargs | {"device": torch.device("cpu")}
            with suppress(Exception):
                call.run(args, kwargs)
            call.raised = None
        return call.is_done

    def _recover(self, call: Invocation) -> None:
        """Allocate the results, as far as that goes, after a fault of ours."""
        if not self.guard.cost:
            node = torch._C._current_autograd_node()
            backward = "" if node is None else f" in {node.name()}"
            results = f"the results of {call.func}{backward}"
            self.guard.cost = f"{results} are allocated without a check: peaks may differ"
        with suppress(Exception):
            device = first_device(map(self.placements.of, call.tensors))
            for tensor in self._tensors_stored(call.result):
                placement = self.placements.of(tensor)
                if placement is None and device is not None:
                    self.place_storage(tensor.untyped_storage(), device)
                elif (
                    placement is not None
                    and placement.device is not None
                    and not placement.addr
                ):
                    self._allocate(placement)

    def _handle(self, call: Invocation) -> Any:
        """Find the device of an operation, run it, and account for its results."""
        # A deferred allocation may have failed in a deallocation, where nothing can be raised.
        self.transfers.raise_deferred_error()
        call.inputs = [self.placements.of(tensor) for tensor in call.tensors]
        # This thread uses what another one may have deferred: that is allocated now, and takes no
        # block over.
        self.transfers.allocate_if_deferred(call.inputs)
        # After a fault of ours a tensor may be on the CPU that the program has put on a device.
        if self.guard.failure is None:
            devices = {placement and placement.device for placement in call.inputs}
            if len(devices) > 1:
                self.same_device.check(call)
        call.is_pinned = bool(call.kwargs.get("pin_memory"))
        call.device, call.kwargs = self.choice.resolve(
            call.operation, call.inputs, call.kwargs
        )
        if call.device is not None:
            check_type(call)
            check_types(call)
            if call.operation.not_modelled is not None:
                self.machine.note_not_modelled(call.operation.not_modelled)
        result, has_values = self._run(call)
        self._account(call, result, has_values=has_values)
        return result

    def _run(self, call: Invocation) -> tuple[Any, bool]:
        """Return an operation's results, and whether they have values."""
        if call.device is None or not call.operation.is_random:
            return self.evaluation.run(call)
        with self.generators.drawing_from(call.device):
            return self.evaluation.run(call)

    def _account(self, call: Invocation, result: Any, *, has_values: bool) -> None:
        """Account for the memory of an operation's results, wherever they are."""
        operation = call.operation
        if operation.kind is Kind.FRESH:
            self._account_fresh(call, result, has_values=has_values)
        elif operation.may_resize:
            self._place_resized(result, call.device, has_values=has_values)
        elif operation.kind is Kind.IN_PLACE and has_values:
            self._mark_written(call)

    def _mark_written(self, call: Invocation) -> None:
        """Remember what the values follow from that an operation has written."""
        if has_assumed(call.inputs) and call.inputs[0] is not None:
            # Indices or masks that routing.py has assumed.
            call.inputs[0].is_assumed = True
        if self.machine.options.job is not None:
            is_overwritten = call.operation.name in OVERWRITING
            if are_of_others(call.inputs[1:] if is_overwritten else call.inputs):
                self.mark_of_others(call.tensors[:1])
            elif is_overwritten and call.inputs[0] is not None:
                call.inputs[0].is_of_others = False

    def mark_of_others(self, tensors: Any) -> None:
        """Remember that the values of tensors follow from what other ranks would have."""
        for tensor in self._tensors_stored(tensors):
            placement = self.placements.of(tensor)
            if placement is None:
                placement = self._placed(tensor.untyped_storage(), None, has_values=True)
            placement.is_of_others = True

    def _account_fresh(self, call: Invocation, result: Any, *, has_values: bool) -> None:
        """Note where new results are: all on a device, and those on the CPU that are not plain.

        These are without values, assumed or doubtful. A result on the CPU is doubtful where C++
        code may have meant a device: an input is doubtful, or no call of the program's is seen. C++
        code takes every tensor for one of the CPU, as all storages are the CPU's here.
        """
        if call.device is not None:
            self._place_results(call, result, has_values=has_values)
            if self.workspaces is not None:
                self.workspaces.note(call.operation.name, call.device)
            return
        has_doubt = any(placement and placement.is_doubtful for placement in call.inputs)
        call.is_doubtful = has_doubt or self.calls.current is None
        is_plain = has_values and not (call.is_doubtful or call.is_pinned)
        if not is_plain or has_assumed(call.inputs) or are_of_others(call.inputs):
            self._place_results(call, result, has_values=has_values)

    def _place_results(self, call: Invocation, result: Any, *, has_values: bool) -> None:
        indices_on_cpu = call.operation.cpu_results
        if indices_on_cpu:
            result = [value for i, value in enumerate(result) if i not in indices_on_cpu]
        is_of_others = call.operation.name not in FILLING and are_of_others(call.inputs)
        for tensor in self._tensors_stored(result):
            if self.placements.of(tensor) is not None:
                continue
            storage = tensor.untyped_storage()
            placement = self._placed(storage, call.device, has_values=has_values)
            placement.is_doubtful = call.is_doubtful
            placement.is_pinned = call.is_pinned
            placement.is_of_others = is_of_others
            if self.evaluation.fake_storages is not None:
                self.routing.note(call, tensor, placement)
                if tensor.dtype is torch.bool:
                    placement.likelihood = likelihood_of(call)
            if call.device is None:
                continue
            if not self.transfers.defer_allocation(call.operation, call.args, placement):
                self._allocate(placement)

    def _tensors_stored(self, result: Any) -> Iterator[Any]:
        """List the new tensors that have storages; of a sparse one its indices and values."""
        for tensor in tensors_in((result,)):
            if tensor.layout is torch.strided:
                yield tensor
            elif tensor.layout is torch.sparse_coo:
                yield from (tensor._indices(), tensor._values())

    def _placed(self, storage: Any, device: int | None, *, has_values: bool) -> Placement:
        """Note where a storage is, before it has an address there."""
        fake_storages = self.evaluation.fake_storages
        is_own = has_values or fake_storages is None or not fake_storages.has(storage)
        placement = Placement(
            device, 0, storage.nbytes(), has_values=has_values, is_own_memory=is_own
        )
        self.placements.add(storage, placement)
        return placement

    def _allocate(self, placement: Placement) -> None:
        self.transfers.allocate_deferred()
        self.transfers.allocate(placement)

    def place_storage(self, storage: Any, device: int) -> None:
        """Put an existing CPU storage on a device; it has values if it had them."""
        self._allocate(self._placed(storage, device, has_values=self.has_values(storage)))

    def pin(self, tensor: Any) -> Any:
        """Copy a tensor of the CPU into pinned memory, which is in no snapshot."""
        pinned = tensor.clone()
        placement = self.placements.of(pinned)
        if placement is None:
            placement = self._placed(pinned.untyped_storage(), None, has_values=True)
        placement.is_pinned = True
        return pinned

    def mark_doubtful(self, values: Any) -> None:
        """Mark tensors on the CPU that C++ code may have meant for a device.

        The results of scripts and of what shares memory: same_device.patch_doubts wraps these.
        """
        for tensor in self._tensors_stored(values):
            if self.placements.of(tensor) is None:
                self._placed(
                    tensor.untyped_storage(), None, has_values=True
                ).is_doubtful = True

    def is_on_device(self, values: Any) -> bool:
        """Say whether any of an operation's arguments is on a device, or names one."""
        tensors = tensors_in(values)
        if first_device(map(self.placements.of, tensors)) is not None:
            return True
        args, kwargs = values
        return any(
            getattr(value, "type", "") == "cuda" for value in (*args, *kwargs.values())
        )

    def is_large(self, n_bytes: int) -> bool:
        """Say whether so much memory of the CPU gets no values, where nothing is computed."""
        return self.evaluation.fake_storages is not None and n_bytes >= NO_MEMORY_FROM_BYTES

    def drop_large_values(self, tensor: Any) -> None:
        """Count a CPU tensor as one without values, if it is large and nothing is computed.

        It stays as it is; operations on it are evaluated by shape alone from now on.
        """
        storage = tensor.untyped_storage()
        if self.is_large(storage.nbytes()) and self.placements.of(tensor) is None:
            self.placements.add(
                storage, Placement(None, 0, storage.nbytes(), has_values=False)
            )

    def has_values(self, storage: Any) -> bool:
        """Say whether a storage's values were computed."""
        return has_values([self.placements.storage_placement(storage)])

    def storage_without_values(self, n_bytes: int) -> Any:
        """Make a storage on the CPU that has no values, and no memory."""
        assert self.evaluation.fake_storages is not None
        storage = self.evaluation.fake_storages.storage(n_bytes)
        self._placed(storage, None, has_values=False)
        return storage

    def clone_storage(self, storage: Any, device: int) -> Any:
        """Copy a storage into new memory on a device."""
        n_bytes = storage.nbytes()
        fake_storages = self.evaluation.fake_storages
        if fake_storages is None:
            copy = torch.UntypedStorage(n_bytes).copy_(storage)
        else:
            copy = fake_storages.storage(n_bytes)
        # Copying is an operation too, which may have been seen: then it has its block.
        if self.placements.device_placement(copy) is None:
            self._allocate(self._placed(copy, device, has_values=fake_storages is None))
        return copy

    def resize_storage(self, real: Any, storage: Any, n_bytes: int) -> Any:
        """Resize a storage, as FSDP does to free a gathered parameter; on a device it moves."""
        placement = self.placements.device_placement(storage)
        if placement is None or placement.is_own_memory:
            real(storage, n_bytes)
        if placement is not None and placement.n_bytes != n_bytes:
            self._resize(placement, n_bytes)
        return storage

    def _resize(self, placement: Placement, n_bytes: int) -> None:
        assert placement.device is not None
        self.transfers.allocate_if_deferred([placement])
        old_addr = placement.addr
        placement.n_bytes = n_bytes
        self._allocate(placement)
        self.machine.free(placement.device, old_addr)

    def _place_resized(self, result: Any, device: int | None, *, has_values: bool) -> None:
        """Give storages that an operation has grown, or brought along, their block."""
        for tensor in tensors_in((result,)):
            placement = self.placements.of(tensor)
            storage = tensor.untyped_storage()
            if placement is None:
                if device is not None:
                    self._allocate(self._placed(storage, device, has_values=has_values))
            elif placement.device is not None and placement.n_bytes != storage.nbytes():
                self._resize(placement, storage.nbytes())

    def _freed(self, placement: Placement) -> None:
        try:
            self._free(placement)
        except BaseException as error:  # Python lets none of ours pass from here
            if not self.guard.takes(error):
                raise

    def _free(self, placement: Placement) -> None:
        if placement.device is None or os.getpid() != self._pid:
            return
        if not self.transfers.take_over(placement):
            self.transfers.allocate_deferred()
            self.transfers.allocate_if_deferred([placement])
            self.machine.free(placement.device, placement.addr)

    def locate(self, tensor: Any) -> Location | None:
        """Answer ``snapconv.guest.locations.locate`` for the simulated devices."""
        placement = self.placements.of(tensor)
        self.transfers.allocate_deferred()
        self.transfers.allocate_if_deferred([placement])
        if placement is None or placement.device is None:
            return None
        return Location(placement.device, placement.addr, placement.n_bytes)
