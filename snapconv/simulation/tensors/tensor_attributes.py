"""Where tensors report to be, and how they move: torch.Tensor's own attributes, replaced.

Class attributes and not a mode, so that the answers are the same in every thread and beneath every
other mode.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from threading import get_ident
from typing import Any

from snapconv.recorder.program.own_frames import for_program
from snapconv.simulation.operations.tracker import Tracker
from snapconv.simulation.patches import Patches, for_the_cpu
from snapconv.simulation.tensors.placements import Placement


def _stay(tensor: Any, device: Any = None, *_: Any, **__: Any) -> Any:
    """Do what is left of ``cuda``: refuse what is no device."""
    if device is not None and not isinstance(device, int):
        type(tensor.device)(device)
    return tensor


def _moved_plainly(real: Callable[..., Any]) -> Callable[..., Any]:
    """Do what ``to`` and ``cpu`` do without devices: what is requested on the CPU is on none any more."""
    from torch.utils._python_dispatch import _disable_current_modes

    def move(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        positional, named = for_the_cpu(args, kwargs)
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
    """The replaced attributes of torch.Tensor."""

    def __init__(self, tracker: Tracker) -> None:
        import torch

        self._torch = torch
        self._tensor = torch.Tensor
        self._tracker = tracker
        self._of: Callable[[Any], Placement | None] = tracker.placements.of
        # By thread, how often it is compiling.
        self._n_bare: Counter[int] = Counter()
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
        patches.wrap(self._torch._tensor_str, "_str", self._str)
        self._allow_without_a_shape(patches)

    @contextmanager
    def as_they_are(self) -> Iterator[None]:
        """Let tensors report for a while, in this thread, that they are on the CPU."""
        with self._counting(1):
            yield

    @contextmanager
    def as_on_the_device(self) -> Iterator[None]:
        """Let them report again that they are on the device, in the middle of that."""
        with self._counting(-self._n_bare[get_ident()]):
            yield

    @contextmanager
    def _counting(self, change: int) -> Iterator[None]:
        me = get_ident()
        self._n_bare[me] += change
        self._of = self._of_elsewhere
        try:
            yield
        finally:
            self._n_bare[me] -= change
            if not any(self._n_bare.values()):
                self._of = self._tracker.placements.of

    def _of_elsewhere(self, tensor: Any) -> Placement | None:
        return None if self.is_compiling else self._tracker.placements.of(tensor)

    @property
    def is_compiling(self) -> bool:
        """Whether tensors report in this thread that they are on the CPU."""
        return self._n_bare[get_ident()] > 0

    def takes_gpu_way(self, tensor: Any) -> bool:
        """Whether an operation is to be done as CUDA does it; what is compiled is for the device."""
        return self.is_compiling or self._placed(tensor) is not None

    def _allow_without_a_shape(self, patches: Patches) -> None:
        """Let lazy modules move: of a parameter without a shape torch checks by identity what works."""
        mixin = self._torch.nn.parameter.UninitializedTensorMixin
        ours = [getattr(self._tensor, name) for name in ("to", "cuda", "cpu", "get_device")]
        patches.set(mixin, "_allowed_methods", [*mixin._allowed_methods, *ours])

    def _wrap(self, patches: Patches, name: str) -> None:
        """Replace a method by ours, visible to other people's function modes as the method it was."""
        real = getattr(self._tensor, name)
        ours = getattr(self, f"_{name}")(real)
        if name in ("to", "cpu"):
            ours = patches.instead(ours, _moved_plainly(real))
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

    def _get_device(self, real: Any) -> Callable[[Any], int]:
        def get_device(tensor: Any) -> int:
            placed = self._placed(tensor)
            return int(real(tensor)) if placed is None or placed.device is None else placed.device

        return get_device

    def _data_ptr(self, real: Any) -> Callable[[Any], int]:
        def data_ptr(tensor: Any) -> int:
            placed = self._placed(tensor)
            if placed is None:
                return int(real(tensor))
            self._tracker.machine.settle()
            return placed.addr + int(tensor.storage_offset() * tensor.element_size())

        return data_ptr

    def _type(self, real: Any) -> Callable[..., Any]:
        def type_of(tensor: Any, dtype: Any = None, non_blocking: bool = False, **kwargs: Any) -> Any:  # noqa: FBT001, FBT002
            placed = self._placed(tensor)
            if dtype is None:
                name: str = real(tensor)
                return name if placed is None else name.replace("torch.", "torch.cuda.", 1)
            if isinstance(dtype, str) and dtype.startswith("torch.cuda."):
                dtype = getattr(self._torch.cuda, dtype.rsplit(".", 1)[1])
            if getattr(dtype, "__module__", None) == "torch.cuda":  # one of the classes of old
                return tensor.cuda().to(dtype.dtype)
            of_cpu = None if placed is None else self._cpu_type(dtype)
            if of_cpu is not None:
                return self._tracker.copy(tensor, None, dtype=of_cpu)
            return real(tensor, dtype, non_blocking, **kwargs)

        return type_of

    def _cpu_type(self, kind: Any) -> Any:
        """Return the element type of torch.FloatTensor or its name, which mean the CPU; None for others."""
        torch = self._torch
        if isinstance(kind, str) and kind.startswith("torch."):
            kind = getattr(torch, kind.removeprefix("torch."), kind)
        if kind is torch.Tensor:
            return torch.get_default_dtype()
        is_class = isinstance(kind, type(torch.FloatTensor)) and kind.__module__ == "torch"
        return kind.dtype if is_class else None

    def _type_as(self, real: Any) -> Callable[..., Any]:
        def type_as(tensor: Any, other: Any) -> Any:
            if self._placed(tensor) is None and self._placed(other) is None:
                return real(tensor, other)
            return tensor.to(other.device, other.dtype)

        return type_as

    def _numpy(self, real: Any) -> Callable[..., Any]:
        def numpy(tensor: Any, *, force: bool = False) -> Any:
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

        return numpy

    def _tolist(self, real: Any) -> Callable[..., Any]:
        def tolist(tensor: Any) -> Any:
            self._read(tensor, "tolist()")
            return real(tensor)

        return tolist

    def _str(self, real: Any) -> Callable[..., str]:
        @wraps(real)
        def as_text(tensor: Any, *args: Any, **kwargs: Any) -> str:
            if self._tracker.has_values(tensor):
                return str(real(tensor, *args, **kwargs))
            with self._tracker.values_read.once("str()"):
                return str(real(tensor, *args, **kwargs))

        return as_text

    def _read(self, tensor: Any, what: str) -> None:
        """Record that the program reads a tensor past torch's operations."""
        if not self._tracker.has_values(tensor):
            self._tracker.values_read.add(what)

    def forget_values(self, tensor: Any) -> None:
        """Let a tensor have no values: what is to fill it does not run."""
        self._tracker.forget_values(tensor)

    def _record_stream(self, real: Any) -> Callable[..., None]:
        def record_stream(tensor: Any, stream: Any) -> None:
            placed = self._placed(tensor)
            if placed is not None and placed.device is not None:
                self._tracker.machine.settle()
                self._tracker.machine.record_stream(placed.device, placed.addr, stream.cuda_stream)

        return record_stream

    def _is_pinned(self, real: Any) -> Callable[..., bool]:
        # Pinning changes nothing that is modelled: host memory is in no snapshot.
        return lambda tensor, *args, **kwargs: False

    def _pin_memory(self, real: Any) -> Callable[..., Any]:
        return lambda tensor, *args, **kwargs: tensor

    def _cpu(self, real: Any) -> Callable[..., Any]:
        def cpu(tensor: Any, memory_format: Any = None) -> Any:
            if self._placed(tensor) is None:
                return tensor
            return self._tracker.copy(tensor, None, memory_format=memory_format)

        return cpu

    def _cuda(self, real: Any) -> Callable[..., Any]:
        def cuda(
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

        return cuda

    def index_of(self, device: Any) -> int | None:
        """Read a device argument: the ordinal of a CUDA device, None for anything else."""
        if isinstance(device, int):
            return self._tracker.machine.checked(device)
        device = self._torch.device(device)
        if device.type != "cuda":
            return None
        machine = self._tracker.machine
        return machine.checked(machine.current_device if device.index is None else device.index)

    def _to(self, real: Any) -> Callable[..., Any]:
        def to(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if (args and isinstance(args[0], self._tensor)) or "other" in kwargs:
                other = kwargs.pop("other") if "other" in kwargs else args[0]
                return to(tensor, other.device, other.dtype, *args[1:], **kwargs)
            device, dtype, memory_format = _parse_to(args, kwargs)
            copy = kwargs.get("copy", _copy_argument(args))
            if device is None or (device.type != "cuda" and self._of(tensor) is None):
                return real(tensor, *args, **kwargs)
            return self._move(tensor, self.index_of(device), dtype, memory_format, copy=copy)

        return to

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
    if args and _copy_argument(args):
        args = args[:-1]
    device, dtype, _, memory_format = _C._nn._parse_to(*args, **kwargs)
    return device, dtype, memory_format


def _copy_argument(args: Any) -> bool:
    """Find a positional ``copy``: the second of two trailing booleans."""
    return len(args) >= 3 and isinstance(args[-1], bool) and isinstance(args[-2], bool) and args[-1]
