"""Operations on tensors -> mallocs and frees on the simulated devices.

Sees every operation below autograd. Decides on which device its results lie, has it computed on the CPU or
by shape alone, and accounts for the memory of its results: new blocks, blocks taken over by sums that a GPU
makes in place, and the workspaces of cuBLAS.
"""

import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from snapconv.allocator.allocator_trace import Frames
from snapconv.errors import RecorderError
from snapconv.recorder.guard import Guard, is_fault
from snapconv.recorder.observe.tensors import Location
from snapconv.recorder.program.own_frames import for_program, has_interrupted
from snapconv.recorder.torch_surface import Feature
from snapconv.simulation.evaluation import NO_MEMORY_FROM_BYTES, Evaluation, Invocation, Run
from snapconv.simulation.machine import Machine
from snapconv.simulation.operations import Kind, Operation, describe
from snapconv.simulation.patches import Calls, with_fallback
from snapconv.simulation.placements import DeviceChoice, Placement, Placements, tensors_in
from snapconv.simulation.routing import Routing
from snapconv.simulation.values import ValuesRead, likelihood_of, users_place


class Tracker:
    """The one that every operation passes through."""

    def __init__(self, machine: Machine, guard: Guard | None = None) -> None:
        import torch

        self.guard = guard or Guard(Feature.SIMULATION)
        self._torch = torch
        self._tensor = torch.Tensor
        self.machine = machine
        self.placements = Placements(with_fallback(self.guard, self._freed, lambda _: None))
        self.transfers = Transfers(machine, self.placements)
        self.calls = Calls()
        self.values_read = ValuesRead(self.calls)
        self.routing = None if machine.options.compute else Routing(machine.options.routing, users_place)
        if self.routing is not None:
            machine.sample = self.routing.sample
            self.transfers.routing = self.routing
        self.evaluation = Evaluation(self.placements, self.values_read, self.routing)
        self._workspaces = BlasWorkspaces(machine) if machine.options.cublas_workspace else None
        self._operations: dict[Any, Operation] = {}
        self._choice = DeviceChoice(machine, self.placements, self.calls)
        self._pid = os.getpid()

    @property
    def workspaces(self) -> "tuple[Workspace, ...]":
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
            self._recover(run, args, kwargs)
            self.guard.keep(error)
        finally:
            # Also where it failed in one type and was run in another: an exception holds the frames that hold
            # it, and with them tensors of the program.
            run.raised = None
        return run.result

    def _recover(self, run: Run, args: Any, kwargs: dict[str, Any]) -> None:
        """Allocate the results of an operation that a fault of ours broke off, or note that they are lost."""
        node = self._torch._C._current_autograd_node()
        what = f"the results of {run.func}" + (f" in {node.name()}" if node is not None else "")
        before = self.guard.cost or f"{what} are allocated without a check: peaks may differ"
        self.guard.cost = f"{what} and of others are missing: peaks are too low"
        with suppress(Exception):
            given = map(self.placements.of, self._tensors(args, kwargs))
            device = next((item.device for item in given if item and item.device is not None), None)
            for tensor in self._with_storages(run.result):
                placement = self.placements.of(tensor)
                if placement is None and device is not None:
                    self.place(tensor.untyped_storage(), device)
                elif placement is not None and placement.device is not None and not placement.addr:
                    self._allocate(placement)
            self.guard.cost = before

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
        device, kwargs = self._choice.resolve(operation, inputs, kwargs)
        if device is not None and operation.not_modelled is not None:
            self.machine.meet(operation.not_modelled)
        call = Invocation(run, operation, func, args, kwargs, tensors, inputs, device)
        result, has_values = self.evaluation.run(call)
        self._account(call, result, has_values=has_values)
        return result

    def _account(self, call: Invocation, result: Any, *, has_values: bool) -> None:
        """Account for the memory of an operation's results, wherever they are."""
        if call.operation.kind is Kind.FRESH:
            if call.device is not None or not has_values:
                self._place(call, result, has_values=has_values)
            if call.device is not None and self._workspaces is not None:
                self._workspaces.note(call.operation.name, call.device)
        elif call.operation.may_resize:
            self._place_resized(result, call.device, has_values=has_values)
        elif self.routing is not None and call.operation.kind is Kind.IN_PLACE:
            self.routing.follow_written(call)

    def _tensors(self, args: Any, kwargs: dict[str, Any]) -> list[Any]:
        """List all tensors among the arguments."""
        found = list(tensors_in(args, self._tensor))
        return [*found, *tensors_in(kwargs.values(), self._tensor)] if kwargs else found

    def _place(self, call: Invocation, result: Any, *, has_values: bool) -> None:
        """Note where the storages of new tensors are."""
        if call.operation.cpu_results:
            result = [value for i, value in enumerate(result) if i not in call.operation.cpu_results]
        for tensor in self._with_storages(result):
            if self.placements.of(tensor) is None:
                storage = tensor.untyped_storage()
                placement = self._placed(storage, call.device, has_values=has_values)
                if self.routing is not None:
                    self.routing.note(call, tensor, placement)
                    if not placement.has_values and tensor.dtype is self._torch.bool:
                        placement.likelihood = likelihood_of(call)
                if call.device is not None and not self.transfers.may_start(
                    call.operation, call.args, placement
                ):
                    self._allocate(placement)

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

    def _allocate(self, placement: Placement) -> None:
        """Give a storage on a device its block."""
        assert placement.device is not None
        self.transfers.settle()
        if self.routing is not None:
            self.routing.allocated(placement)
        placement.addr = self.machine.malloc(placement.device, placement.n_bytes)

    def place(self, storage: Any, device: int, *, has_values: bool | None = None) -> None:
        """Put an existing CPU storage on a device; it has values if it had them."""
        if has_values is None:
            has_values = self.storage_has_values(storage)
        self._allocate(self._placed(storage, device, has_values=has_values))

    def is_large(self, n_bytes: int) -> bool:
        """Whether memory of the CPU is to have no values, since nothing is computed and it would be much."""
        return self.evaluation.fake_storages is not None and n_bytes >= NO_MEMORY_FROM_BYTES

    def take_values(self, tensor: Any) -> None:
        """Count a large tensor on the CPU as one without values from now on."""
        storage = tensor.untyped_storage()
        if self.is_large(storage.nbytes()) and self.placements.of(tensor) is None:
            self.placements.add(storage, Placement(None, 0, storage.nbytes(), has_values=False))

    def storage_has_values(self, storage: Any) -> bool:
        """Say whether a storage's values were computed."""
        placement = self.placements.of_any_storage(storage)
        return placement is None or placement.has_values

    def storage_without_values(self, n_bytes: int) -> Any:
        """Make a storage on the CPU that has no values, and no memory."""
        assert self.evaluation.fake_storages is not None
        storage = self.evaluation.fake_storages.storage(n_bytes)
        self._placed(storage, None, has_values=False)
        return storage

    def copied(self, storage: Any) -> Any:
        """Copy a storage of any device into plain memory of the CPU."""
        return self._torch.UntypedStorage(storage.nbytes()).copy_(storage)

    def clone_storage(self, storage: Any, device: int) -> Any:
        """Copy a storage into new memory on a device."""
        n_bytes, fake_storages = storage.nbytes(), self.evaluation.fake_storages
        if fake_storages is None:
            made = self._torch.UntypedStorage(n_bytes).copy_(storage)
        else:
            made = fake_storages.storage(n_bytes)
        # Copying is an operation too, which may have been seen: then it has its block.
        if self.placements.of_storage(made) is None:
            self.place(made, device, has_values=fake_storages is None)
        return made

    def resize_storage(self, real: Any, storage: Any, n_bytes: int) -> Any:
        """Resize a storage, as FSDP does to free a gathered parameter; on a device with a new block."""
        placement = self.placements.of_storage(storage)
        if placement is None or placement.is_own_memory:
            real(storage, n_bytes)
        if placement is not None and placement.n_bytes != n_bytes:
            self._resize(placement, n_bytes)
        return storage

    def _resize(self, placement: Placement, n_bytes: int) -> None:
        assert placement.device is not None
        self.transfers.settle_used([placement])
        if self.routing is not None:
            self.routing.freed(placement)
        old_addr, placement.n_bytes = placement.addr, n_bytes
        self._allocate(placement)
        self.machine.free(placement.device, old_addr)

    def _place_resized(self, result: Any, device: int | None, *, has_values: bool) -> None:
        """Give storages that an operation has grown, or brought along, their block."""
        for tensor in tensors_in((result,), self._tensor):
            placement = self.placements.of(tensor)
            storage = tensor.untyped_storage()
            if placement is None:
                if device is not None:
                    self.place(storage, device, has_values=has_values)
            elif placement.device is not None and placement.n_bytes != storage.nbytes():
                self._resize(placement, storage.nbytes())

    def _freed(self, placement: Placement) -> None:
        if placement.device is None or os.getpid() != self._pid:
            return
        if self.routing is not None:
            self.routing.freed(placement)
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

    def close(self) -> None:
        """Stop placing and freeing."""
        self.placements.close()


# Sums that a GPU makes in place, seen here as new tensors: with any dispatch mode active, torch's autograd
# takes the out-of-place path where it would otherwise add into memory without other references
# (InputBuffer::accumulate, AccumulateGrad, the derivatives of indexing).
# A sum that the engine computes, and no Python code in a node, is an accumulation. (The few sums inside
# derivatives written in C++ cannot be distinguished; their operands are mostly kept.)
_SUMS = {"add"}
# Inside a node, these write into fresh zeros on a GPU (torch/csrc/autograd/FunctionsManual.cpp).
_SCATTERS = {
    *("index_put", "_index_put_impl", "scatter", "scatter_add", "index_add", "masked_scatter"),
    *("put", "index_fill"),
}
_OWN_FOLDER = str(Path(__file__).parent)
_ENGINE_CALLER = "_engine_run_backward"  # torch/autograd/graph.py


@dataclass(slots=True, eq=False)
class _Undecided:
    thread: int
    placement: Placement
    operands: list[Placement]
    frames: Frames | None


class Transfers:
    """Allocations of sums, deferred for a moment, at most one of each thread.

    If the very next thing that the thread does is that the sum's first operand is freed, then the sum has
    that operand's block, and nothing was allocated. What another thread does meanwhile decides nothing.
    """

    def __init__(self, machine: Machine, placements: Placements) -> None:
        from torch import _C

        self._graph_task = _C._current_graph_task_id
        self._is_grad_enabled = _C.is_grad_enabled
        self._machine = machine
        self._placements = placements
        self._undecided: list[_Undecided] = []
        self._failures: dict[int, BaseException] = {}
        self.routing: Routing | None = None
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
                if self.routing is not None:
                    self.routing.allocated(undecided.placement)
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
        if self.routing is not None:
            self.routing.allocated(placement)
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
    return frame.f_code.co_name == _ENGINE_CALLER


_KIB = 1024
# What torch gives cuBLAS per handle and stream where CUBLAS_WORKSPACE_CONFIG is not set: 32 MiB on compute
# capability 9.0, which is what the simulated device has (:4096:2:16:8, that is 8320 KiB, before it).
# torch's documentation, notes/cuda.rst, "cuBLAS workspaces" (2.13), and parseChosenWorkspaceSize in
# aten/src/ATen/cuda/CublasHandlePool.cpp; a recorded training step on that hardware has 33,554,432 B too.
_DEFAULT_BYTES = 4096 * 8 * _KIB
# What requests it (torch 2.5 to 2.7; CublasHandlePool.cpp).
_FRAMES = ("at::cuda::getNewWorkspace()", "at::cuda::getCurrentCUDABlasHandle()")
_USES_BLAS = {"mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot"}


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace that was given to cuBLAS at its first use; it is never freed."""

    device: int
    addr: int


class BlasWorkspaces:
    """One workspace per device, stream and thread: torch has one handle per thread.

    Backward runs on a thread of its own for each device on a GPU, whoever calls it. ``made``
    has them all, for those who compare what is inferred of a run with what is true.
    """

    def __init__(self, machine: Machine) -> None:
        from torch import _C

        self._graph_task = _C._current_graph_task_id
        self._machine = machine
        self._n_bytes = workspace_bytes(os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
        self._there: dict[tuple[int, int, int | None], object] = {}
        self.made: list[Workspace] = []

    def note(self, operation: str, device: int) -> None:
        """Allocate the workspace if an operation is the first that needs it."""
        if operation not in _USES_BLAS:
            return
        thread = threading.get_ident() if self._graph_task() == -1 else None
        key = (device, self._machine.device(device).stream, thread)
        mine = object()
        if self._there.setdefault(key, mine) is mine:  # of two threads in backward, one makes it
            frames = self._machine.allocation_frames(within=_FRAMES)
            self.made.append(Workspace(device, self._machine.malloc(device, self._n_bytes, frames)))


def workspace_bytes(config: str) -> int:
    """Add up ``:SIZE:COUNT`` pairs, sizes in KiB; the default for anything else."""
    pairs = re.findall(r":(\d+):(\d+)", config)
    if not pairs or "".join(f":{size}:{count}" for size, count in pairs) != config:
        return _DEFAULT_BYTES
    return sum(int(size) * int(count) for size, count in pairs) * _KIB
