"""Where tensors lie: which storages are on a simulated device, and on which one results are to be.

Every storage of the simulation is an ordinary CPU storage; lying on a device is a note about it here, which
lasts as long as the storage does. torch's C++ code makes tensors "where this one is", and takes ours for CPU
tensors: so a CPU device among an operation's arguments means something only where the program's own call
named it, and what TorchScript, torch.func or an extension makes is in doubt.
"""

import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from snapconv.recorder.observe.tensors import Location
from snapconv.recorder.program.own_frames import for_program
from snapconv.simulation.machine import Machine
from snapconv.simulation.operations import Kind, Operation
from snapconv.simulation.patches import Calls, Patches


@dataclass(slots=True, eq=False)
class Placement:
    """One storage: its device (None for the CPU), its address there, and whether its values are computed.

    ``is_own_memory`` is False for one without memory, whose zeros are shared by all such storages.
    """

    device: int | None
    addr: int
    n_bytes: int
    has_values: bool
    is_own_memory: bool = True
    reference: Any = None


class Placements:
    """The placed storages, found by the identity of the storage that a tensor views."""

    def __init__(self, when_freed: Callable[[Placement], None]) -> None:
        from torch import _C

        self._storage_id = _C._storage_id
        self._sparse, self._values = _sparse_layout()
        self._is_wrapped = _C._functorch.is_functorch_wrapped_tensor
        self._unwrapped = _C._functorch.get_unwrapped
        self._when_freed = when_freed
        self._by_id: dict[int, Placement] = {}
        self._is_open = True

    def of(self, tensor: Any) -> Placement | None:
        """Return a tensor's placement; None for a plain CPU tensor, or one without a storage."""
        try:
            placement = self._by_id.get(self._storage_id(tensor))
            if (
                placement is None and type(tensor).__name__ == "DTensor"
            ):  # C++ code makes them, of a part here
                return self.of(tensor._local_tensor)
            return placement
        except RuntimeError:  # wrappers have no storage of their own, and sparse tensors those of their parts
            if self._is_wrapped(tensor):  # by torch.func, as vmap does
                return self.of(self._unwrapped(tensor))
            return self.of(self._values(tensor)) if tensor.layout is self._sparse else None

    def key(self, tensor: Any) -> int | None:
        """Return what all views of the same memory have in common; None for a tensor without a storage."""
        try:
            return int(self._storage_id(tensor))
        except RuntimeError:
            return None

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

        # torch keeps a storage's Python object for as long as its memory lives, so that this is called
        # when the memory is freed (checked with 2.13).
        placement.reference = weakref.ref(storage, forget)

    def close(self) -> None:
        """Forget everything; tensors that are still alive count as CPU tensors from here on."""
        self._is_open = False
        self._by_id.clear()

    def locate(self, tensor: Any) -> Location | None:
        """Answer ``snapconv.recorder.observe.tensors.locate`` for the simulated devices."""
        placement = self.of(tensor)
        if placement is None or placement.device is None:
            return None
        return Location(placement.device, placement.addr, placement.n_bytes)


def _sparse_layout() -> tuple[Any, Callable[[Any], Any]]:
    """Return torch's sparse layout, and a function for the values of such a tensor, unseen by modes."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    def values(tensor: Any) -> Any:
        with _disable_current_modes(), torch._C.DisableTorchFunction():
            return tensor._values()

    return torch.sparse_coo, values


def tensors_in(values: Iterable[Any], tensor_type: type) -> Iterator[Any]:
    """List the tensors among arguments, also those in lists, tuples and dicts."""
    for value in values:
        if isinstance(value, tensor_type):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(value, tensor_type)
        elif isinstance(value, dict):
            yield from tensors_in(value.values(), tensor_type)


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


class Doubts:
    """The storages on the CPU that are not certain to be the program's own choice."""

    def __init__(self, placements: Placements, calls: Calls) -> None:
        import torch

        self._torch = torch
        self._tensor = torch.Tensor
        self._placements = placements
        self._calls = calls
        self._transform = torch._C._functorch.peek_interpreter_stack
        self._doubtful: dict[int, Any] = {}

    def has(self, tensor: Any) -> bool:
        """Say whether a tensor on the CPU might be on a device."""
        return bool(self._doubtful) and self._placements.key(tensor) in self._doubtful

    def add(self, values: Any) -> None:
        """Doubt where the CPU tensors among some values are."""
        for tensor in tensors_in((values,), self._tensor):
            if tensor.layout is self._torch.strided and not self._is_on_device(tensor):
                key = self._placements.key(tensor)
                if key is not None and key not in self._doubtful:
                    self._add_storage(key, tensor.untyped_storage())

    def _add_storage(self, key: int, storage: Any) -> None:
        def forget(reference: object) -> None:
            if self._doubtful.get(key) is reference:
                del self._doubtful[key]

        self._doubtful[key] = weakref.ref(storage, forget)

    def made(self, result: Any, tensors: list[Any], inputs: list[Placement | None]) -> None:
        """Decide about what an operation made on the CPU of some tensors."""
        if any(placement is not None and placement.device is not None for placement in inputs):
            return  # only a call that names the CPU leads back to it
        if any(map(self.has, tensors)) or self.is_transforming or self._is_call_doubtful():
            self.add(result)

    @property
    def is_transforming(self) -> bool:
        """Whether one of torch.func's transforms is running: its tensors are wrapped."""
        return self._transform() is not None

    def _is_call_doubtful(self) -> bool:
        """Say whether the program's call may have meant a device, or is not to be seen."""
        call = self._calls.current
        if call is None:
            return True
        named = call[2].get("device")
        if named is not None and self._torch.device(named).type == "cpu":
            return False
        given = tensors_in((*call[1], *call[2].values()), self._tensor)
        return any(self._is_on_device(tensor) or self.has(tensor) for tensor in given)

    def _is_on_device(self, tensor: Any) -> bool:
        placement = self._placements.of(tensor)
        return placement is not None and placement.device is not None


def patch_scripts(doubts: Doubts, patches: Patches) -> None:
    """Doubt what TorchScript returns: there, ``y.to(x.device)`` is ``y`` itself."""
    from torch import _C

    def returning_doubts(real: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(real)
        def call(script: Any, *args: Any, **kwargs: Any) -> Any:
            result = real(script, *args, **kwargs)
            doubts.add(result)
            return result

        return call

    for kind in (_C.ScriptFunction, _C.ScriptMethod):
        patches.wrap(kind, "__call__", returning_doubts)


# They take tensors of several devices, or check what they take in ways of their own; the last row's copy.
_ANY_DEVICE = set(
    """
    copy_ _to_copy _copy_from set_ resize_as_ record_stream is_same_size is_set_to _pack_padded_sequence
    _pad_packed_sequence _ctc_loss _use_cudnn_ctc_loss _cudnn_ctc_loss normal bernoulli bernoulli_
    repeat_interleave _embedding_bag _embedding_bag_forward_only _cudnn_rnn
    slice_scatter select_scatter diagonal_scatter as_strided_scatter
    """.split()
)
_ANY_DEVICE_PREFIXES = (
    *("_foreach_", "_fused_", "_amp_", "_nested_", "_sparse_", "sparse_", "_scaled_dot_product_"),
    *("_flash_attention_", "_efficient_attention_", "fake_quantize_", "_fake_quantize_"),
)
_INDEXING = {"index", "_unsafe_index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index_put"}


class SameDevice:
    """Raises an error where an operation's tensors are on two devices, and CUDA's would.

    CUDA's operations check their arguments in three ways (torch 2.13): generated code
    (aten/src/ATen/core/adaption.cpp), element-wise kernels (aten/src/ATen/TensorIterator.cpp), and a few by
    themselves; all have one text here. A number without dimensions may come from the CPU. To refuse a correct
    program would be worse than to miss an error: so a tensor is refused only if the program itself handed it
    over in this call, and it is certain to be on the CPU.
    """

    def __init__(self, placements: Placements, calls: Calls, doubts: Doubts) -> None:
        import torch

        self._torch = torch
        self._tensor = torch.Tensor
        self._placements = placements
        self._calls = calls
        self._doubts = doubts
        self._graph_task = torch._C._current_graph_task_id

    def check(self, operation: Operation, func: Any, args: Any, tensors: list[Any]) -> None:
        """Raise the error for an operation that CUDA would refuse; one of its tensors is on a device."""
        if operation.kind is Kind.VIEW or self._graph_task() != -1 or not func.name().startswith("aten::"):
            return
        if self._doubts.is_transforming:
            return
        if operation.name in _ANY_DEVICE or operation.name.startswith(_ANY_DEVICE_PREFIXES):
            return
        if operation.name in _INDEXING:
            tensors = self._check_indices(args, tensors)
        devices = [tensor.device for tensor in tensors]
        on_device = next((device for device in devices if device.type == "cuda"), None)
        if on_device is None:
            return
        misplaced = [
            tensor
            for tensor, device in zip(tensors, devices, strict=True)
            if self._is_misplaced(tensor, device, on_device)
        ]
        if misplaced and self._is_handed_over(misplaced):
            error = RuntimeError(
                "Expected all tensors to be on the same device, but found at least two devices, "
                f"{on_device} and {misplaced[0].device}!"
            )
            raise for_program(error)

    def _is_misplaced(self, tensor: Any, device: Any, other: Any) -> bool:
        """Say whether a tensor cannot be where it is; what has no elements or no storage always can."""
        if device == other or tensor.numel() == 0 or tensor.layout is not self._torch.strided:
            return False
        if device.type == "cpu":
            return bool(tensor.dim() > 0 and not self._doubts.has(tensor))
        return bool(device.type == "cuda")

    def _is_handed_over(self, misplaced: list[Any]) -> bool:
        """Say whether one of these is an argument of the program's own call, or a view of one.

        What torch made inside the call may be on the CPU here alone.
        """
        call = self._calls.current
        if call is None:
            return False
        key = self._placements.key
        given = {key(tensor) for tensor in tensors_in((*call[1], *call[2].values()), self._tensor)} - {None}
        return any(key(tensor) in given for tensor in misplaced)

    def _check_indices(self, args: Any, tensors: list[Any]) -> list[Any]:
        """Check that indices are on the CPU or with what they index; return what is left to be checked."""
        indexed, indices = args[0], [index for index in args[1] if index is not None]
        if not self._doubts.has(indexed) and any(
            index.device not in (indexed.device, self._torch.device("cpu")) for index in indices
        ):
            error = RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor "
                f"({indexed.device})"
            )
            raise for_program(error)
        return [tensor for tensor in tensors if all(tensor is not index for index in indices)]
