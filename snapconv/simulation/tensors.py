"""Where tensors and storages report to be, and how they move: attributes of torch's classes, replaced.

Class attributes and not a mode, so that the answers are the same in every thread and beneath every other
mode.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

from snapconv.recorder.program.own_frames import for_program
from snapconv.simulation.patches import Patches, name_the_cpu
from snapconv.simulation.placements import Placement, Placements
from snapconv.simulation.tracker import Tracker


def _stay(tensor: Any, device: Any = None, *_: Any, **__: Any) -> Any:
    """Do what is left of ``cuda``: refuse what is no device."""
    if device is not None and not isinstance(device, int):
        type(tensor.device)(device)
    return tensor


def _moved_plainly(real: Callable[..., Any]) -> Callable[..., Any]:
    """Do what ``to`` and ``cpu`` do without devices: what is requested on the CPU is on none any more."""
    from torch.utils._python_dispatch import _disable_current_modes

    def move(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        positional, named = name_the_cpu(args, kwargs)
        is_to_cuda = list(args) != positional or kwargs != named
        with _disable_current_modes():  # which would put the copy where the original is
            made = real(tensor, *positional, **named)
            return made if is_to_cuda or made is not tensor else tensor.clone()

    return move


# Where ours fails: a tensor stays where it is, as a build without CUDA would refuse to move it.
_UNMOVED: dict[str, Callable[..., Any]] = {
    "cuda": _stay,
    "record_stream": lambda tensor, *_, **__: None,
    "is_pinned": lambda tensor, *_, **__: False,
    "pin_memory": lambda tensor, *_, **__: tensor,
}


class TensorPatches:
    """The replaced attributes of torch.Tensor; each is a method here, which is given torch's own first."""

    def __init__(self, tracker: Tracker) -> None:
        import torch

        self._torch = torch
        self._tensor = torch.Tensor
        self._tracker = tracker
        self._of: Callable[[Any], Placement | None] = tracker.placements.of
        self._devices = [torch.device("cuda", i) for i in range(len(tracker.machine.devices))]

    def apply(self, patches: Patches) -> None:
        """Replace the attributes."""
        for name in ("device", "is_cuda", "is_cpu"):
            real = getattr(self._tensor, name)
            patches.set(self._tensor, name, property(getattr(self, f"_{name}")(real)))
        for name in ("get_device", "data_ptr", "numpy", "record_stream", "is_pinned", "pin_memory"):
            self._wrap(patches, name)
        for name in ("to", "cuda", "cpu", "type", "type_as", "tolist"):
            self._wrap(patches, name)
        patches.wrap(
            self._torch._tensor_str,
            "_str",
            lambda real: lambda *args, **kwargs: self._str(real, *args, **kwargs),
        )
        self._allow_without_a_shape(patches)

    def is_placed(self, tensor: Any) -> bool:
        """Say whether a tensor is on a device."""
        return self._placed(tensor) is not None

    def index_of(self, device: Any) -> int | None:
        """Read a device argument: the ordinal of a CUDA device, None for anything else."""
        if isinstance(device, int):
            return self._tracker.machine.checked(device)
        device = self._torch.device(device)
        if device.type != "cuda":
            return None
        machine = self._tracker.machine
        return machine.checked(machine.current_device if device.index is None else device.index)

    def _allow_without_a_shape(self, patches: Patches) -> None:
        """Let lazy modules move: of a parameter without a shape torch checks by identity what works."""
        mixin = self._torch.nn.parameter.UninitializedTensorMixin
        ours = [getattr(self._tensor, name) for name in ("to", "cuda", "cpu", "get_device")]
        patches.set(mixin, "_allowed_methods", [*mixin._allowed_methods, *ours])

    def _wrap(self, patches: Patches, name: str) -> None:
        """Replace a method by ours, visible to other people's function modes as the method it was."""
        real = getattr(self._tensor, name)
        ours: Callable[..., Any] = partial(getattr(self, f"_{name}"), real)
        if name in ("to", "cpu"):
            ours = patches.with_fallback(ours, _moved_plainly(real))
        else:
            ours = patches.guarded(ours, _UNMOVED.get(name, real))
        from torch.overrides import handle_torch_function, has_torch_function_unary

        @wraps(real)
        def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if has_torch_function_unary(tensor):
                return handle_torch_function(method, (tensor,), tensor, *args, **kwargs)
            return ours(tensor, *args, **kwargs)

        patches.set_unguarded(self._tensor, name, method)

    def _placed(self, tensor: Any) -> Placement | None:
        """Return the placement of a tensor on a device, None for one on the CPU."""
        placement = self._of(tensor)
        return None if placement is None or placement.device is None else placement

    # The three properties are read all the time: a closure is called faster.

    def _device(self, real: Any) -> Callable[[Any], Any]:
        def device(tensor: Any) -> Any:
            placed = self._placed(tensor)
            if placed is None or placed.device is None:
                return real.__get__(tensor)
            return self._devices[placed.device]

        return device

    def _is_cuda(self, real: Any) -> Callable[[Any], bool]:
        return lambda tensor: self._placed(tensor) is not None or real.__get__(tensor)

    def _is_cpu(self, real: Any) -> Callable[[Any], bool]:
        return lambda tensor: self._placed(tensor) is None and real.__get__(tensor)

    def _get_device(self, real: Any, tensor: Any) -> int:
        placed = self._placed(tensor)
        return int(real(tensor)) if placed is None or placed.device is None else placed.device

    def _data_ptr(self, real: Any, tensor: Any) -> int:
        placed = self._placed(tensor)
        if placed is None:
            return int(real(tensor))
        self._tracker.machine.settle()
        return placed.addr + int(tensor.storage_offset() * tensor.element_size())

    def _type(self, real: Any, tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> Any:
        placed = self._placed(tensor)
        if dtype is None:
            name: str = real(tensor)
            return name if placed is None else name.replace("torch.", "torch.cuda.", 1)
        if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
            dtype = getattr(self._torch.cuda, dtype.rsplit(".", 1)[1])
        if getattr(dtype, "__module__", None) == "torch.cuda":  # one of the legacy classes
            return tensor.cuda().to(dtype.dtype)
        of_cpu = None if placed is None else self._cpu_type(dtype)
        if of_cpu is not None:
            return self._tracker.copy(tensor, None, dtype=of_cpu)
        return real(tensor, dtype, *args, **kwargs)

    def _cpu_type(self, kind: Any) -> Any:
        """Return the element type of torch.FloatTensor or its name, which mean the CPU; None for others."""
        torch = self._torch
        if isinstance(kind, str) and kind.startswith("torch."):
            kind = getattr(torch, kind.removeprefix("torch."), kind)
        if kind is torch.Tensor:
            return torch.get_default_dtype()
        is_class = isinstance(kind, type(torch.FloatTensor)) and kind.__module__ == "torch"
        return kind.dtype if is_class else None

    def _type_as(self, real: Any, tensor: Any, other: Any) -> Any:
        if self._placed(tensor) is None and self._placed(other) is None:
            return real(tensor, other)
        return tensor.to(other.device, other.dtype)

    def _numpy(self, real: Any, tensor: Any, *, force: bool = False) -> Any:
        if self._placed(tensor) is None:
            self._read(tensor, "numpy()")
            return real(tensor, force=force)
        if not force:
            error = TypeError(
                f"can't convert {tensor.device} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
            raise for_program(error)
        return real(tensor.detach().cpu(), force=True)

    def _tolist(self, real: Any, tensor: Any) -> Any:
        self._read(tensor, "tolist()")
        values = real(tensor)
        if self._tracker.routing is not None:
            self._tracker.routing.listed(self._of(tensor), values)
        return values

    def _str(self, real: Any, tensor: Any, *args: Any, **kwargs: Any) -> str:
        if self._tracker.has_values(tensor):
            return str(real(tensor, *args, **kwargs))
        with self._tracker.values_read.once("str()"):
            return str(real(tensor, *args, **kwargs))

    def _read(self, tensor: Any, what: str) -> None:
        """Record that the program reads a tensor past torch's operations."""
        if not self._tracker.has_values(tensor):
            self._tracker.values_read.add(what)

    def _record_stream(self, _real: Any, tensor: Any, stream: Any) -> None:
        placed = self._placed(tensor)
        if placed is not None and placed.device is not None:
            self._tracker.machine.settle()
            self._tracker.machine.record_stream(placed.device, placed.addr, stream.cuda_stream)

    # Pinning changes nothing that is modelled: host memory is in no snapshot.

    def _is_pinned(self, _real: Any, _tensor: Any, *_: Any, **__: Any) -> bool:
        return False

    def _pin_memory(self, _real: Any, tensor: Any, *_: Any, **__: Any) -> Any:
        return tensor

    def _cpu(self, _real: Any, tensor: Any, memory_format: Any = None) -> Any:
        if self._placed(tensor) is None:
            return tensor
        return self._tracker.copy(tensor, None, memory_format=memory_format)

    def _cuda(
        self,
        _real: Any,
        tensor: Any,
        device: Any = None,
        non_blocking: bool = False,  # noqa: FBT001, FBT002  # torch's signature
        memory_format: Any = None,
    ) -> Any:
        index = self.index_of("cuda" if device is None else device)
        placed = self._placed(tensor)
        if placed is not None and placed.device == index:
            return tensor
        return self._tracker.copy(tensor, index, memory_format=memory_format)

    def _to(self, real: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if (args and isinstance(args[0], self._tensor)) or "other" in kwargs:
            other = kwargs.pop("other") if "other" in kwargs else args[0]
            return self._to(real, tensor, other.device, other.dtype, *args[1:], **kwargs)
        device, dtype, memory_format = _parse_to(args, kwargs)
        copy = kwargs.get("copy", _has_copy(args) and args[-1])
        if device is None or (device.type != "cuda" and self._of(tensor) is None):
            return real(tensor, *args, **kwargs)
        return self._move(tensor, self.index_of(device), dtype, memory_format, copy=copy)

    def _move(self, tensor: Any, index: int | None, dtype: Any, memory_format: Any, *, copy: bool) -> Any:
        """Do what ``to`` with a device does: the same tensor if nothing changes, else a copy."""
        placed = self._placed(tensor)
        is_there = (None if placed is None else placed.device) == index
        is_same = dtype in (None, tensor.dtype) and (
            memory_format in (None, self._torch.preserve_format)
            or tensor.is_contiguous(memory_format=memory_format)
        )
        if is_there and is_same and not copy:
            return tensor
        return self._tracker.copy(tensor, index, dtype=dtype, memory_format=memory_format)


def _parse_to(args: Any, kwargs: dict[str, Any]) -> tuple[Any, Any, Any]:
    """Read ``to``'s overloads with torch's own parser, which supports everything but ``copy``."""
    from torch import _C

    kwargs = {key: value for key, value in kwargs.items() if key != "copy"}
    if _has_copy(args):
        args = args[:-1]
    device, dtype, _, memory_format = _C._nn._parse_to(*args, **kwargs)
    return device, dtype, memory_format


def _has_copy(args: Any) -> bool:
    """Say whether ``copy`` is given by position: it is the second of two trailing booleans."""
    return len(args) >= 3 and isinstance(args[-1], bool) and isinstance(args[-2], bool)


def patch_storages(tracker: Tracker, tensors: TensorPatches, patches: Patches) -> None:
    """Replace attributes of torch.UntypedStorage."""
    import torch

    kind = torch.UntypedStorage
    placed = tracker.placements.of_storage
    real_device, real_pointer, real_clone = kind.device, kind.data_ptr, kind.clone

    def device(storage: Any) -> Any:
        placement = placed(storage)
        if placement is None:
            return real_device.__get__(storage)
        return torch.device("cuda", placement.device)

    @wraps(real_pointer)
    def data_ptr(storage: Any) -> int:
        placement = placed(storage)
        if placement is None:
            return int(real_pointer(storage))
        tracker.machine.settle()
        return placement.addr

    @wraps(real_clone)
    def clone(storage: Any) -> Any:
        placement = placed(storage)
        if placement is None or placement.device is None:
            # A deep copy's own call has the tensors of its memo, which may be on the device.
            with tracker.calls.within(real_clone, storage):
                return real_clone(storage)
        return tracker.clone_storage(storage, placement.device)

    _patch_moves(kind, tracker, tensors, patches)
    patches.set(kind, "device", property(device))
    patches.set(kind, "is_cuda", property(lambda storage: placed(storage) is not None))
    patches.set(kind, "data_ptr", data_ptr)
    patches.wrap(kind, "clone", lambda _: clone, fallback=lambda it: type(it)(it.nbytes()).copy_(it))
    real_resize = kind.resize_

    @wraps(real_resize)
    def resize_(storage: Any, n_bytes: int) -> Any:
        return tracker.resize_storage(real_resize, storage, n_bytes)

    patches.set(kind, "resize_", resize_)
    if tracker.evaluation.fake_storages is not None:
        for name in ("nbytes", "size", "__len__"):
            patches.wrap(kind, name, lambda real: _size_on_device(tracker.placements, real))


def _size_on_device(placements: Placements, real: Callable[[Any], int]) -> Callable[[Any], int]:
    """Return the size that a storage without memory has on its device: resizing changes that alone."""

    @wraps(real)
    def size(storage: Any) -> int:
        placement = placements.of_storage(storage)
        return real(storage) if placement is None or placement.is_own_memory else placement.n_bytes

    return size


def _patch_moves(kind: Any, tracker: Tracker, tensors: TensorPatches, patches: Patches) -> None:
    def moved(storage: Any, index: int) -> Any:
        placement = tracker.placements.of_storage(storage)
        if placement is not None and placement.device == index:
            return storage
        return tracker.clone_storage(storage, index)

    def to_any(real: Any) -> Any:
        @wraps(real)
        def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
            index = tensors.index_of(device)
            if index is None:
                return real(storage, device=device, non_blocking=non_blocking)
            return moved(storage, index)

        return to

    def cuda(storage: Any, device: Any = None, *_: Any, **__: Any) -> Any:
        return moved(storage, tensors.index_of("cuda" if device is None else device) or 0)

    patches.wrap(kind, "to", to_any)
    patches.set(kind, "cuda", cuda)
