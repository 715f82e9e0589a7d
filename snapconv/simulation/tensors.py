"""Tensors and storages in a simulation: the device that they report, their moves, their making.

Class attributes are replaced and not watched by a mode, so that the answers are the same in every
thread and beneath every other mode. Of what makes tensors, only what would request a CUDA device
from C++ code that it does not have: of data, of files, of other tensors' memory. Factories without
data (zeros, randn, …) need nothing: the operation mode sees their device.
"""

from collections.abc import Callable
from functools import partial, wraps
from typing import Any

import torch
from torch.jit import _builtins
from torch.overrides import (
    _get_current_function_mode_stack,
    handle_torch_function,
    has_torch_function_unary,
)
from torch.utils import _device
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _get_current_dispatch_mode

from snapconv.guest.own_frames import for_program
from snapconv.simulation.patches import LibraryKernel, Patches
from snapconv.simulation.placements import Placement, are_computed, are_of_others
from snapconv.simulation.tracker import Tracker

_METHODS = ("get_device", "data_ptr", "numpy", "to", "type", "type_as", "tolist")
# What torch cannot do in our place where ours fails.
_OF_DEVICES = ("cuda", "cpu", "record_stream", "is_pinned", "pin_memory")


class TensorPatches:
    """The replaced attributes of torch.Tensor: methods here, which get torch's own first."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker = tracker
        self._placement: Callable[[Any], Placement | None] = tracker.placements.of
        n_devices = tracker.machine.device_count()
        self._devices = [torch.device("cuda", i) for i in range(n_devices)]

    def apply(self, patches: Patches) -> None:
        """Replace the attributes."""
        for name in ("device", "is_cuda", "is_cpu"):
            make_getter = getattr(self, f"_{name}")
            getter = make_getter(getattr(torch.Tensor, name))
            patches.set(torch.Tensor, name, property(getter))
        for name in (*_METHODS, *_OF_DEVICES):
            self._wrap(patches, name)
        patches.wrap(torch._tensor_str, "_str", self._str)
        # Let lazy modules move: of a parameter without a shape torch checks by identity what works.
        mixin = torch.nn.parameter.UninitializedTensorMixin
        tensor = torch.Tensor
        moves = (tensor.to, tensor.cuda, tensor.cpu, tensor.get_device)
        patches.set(mixin, "_allowed_methods", [*mixin._allowed_methods, *moves])

    def _device_of(self, tensor: Any) -> int | None:
        """Return the ordinal of a tensor's device, None for one on the CPU."""
        placement = self._placement(tensor)
        return None if placement is None else placement.device

    def _wrap(self, patches: Patches, name: str) -> None:
        """Replace a method; other people's function modes see it as the method that it was."""
        real = getattr(torch.Tensor, name)
        work = getattr(self, f"_{name}")
        call = patches.guarded(work, real) if name in _METHODS else partial(work, real)

        @wraps(real)
        def method(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            if has_torch_function_unary(tensor):
                return handle_torch_function(method, (tensor,), tensor, *args, **kwargs)
            return call(tensor, *args, **kwargs)

        patches.set(torch.Tensor, name, method)

    # The three properties are read all the time: a closure is called faster.

    def _device(self, real: Any) -> Callable[[Any], Any]:
        ordinal = self._device_of
        devices = self._devices

        def device(tensor: Any) -> Any:
            index = ordinal(tensor)
            return real.__get__(tensor) if index is None else devices[index]

        return device

    def _is_cuda(self, real: Any) -> Callable[[Any], bool]:
        def is_cuda(tensor: Any) -> Any:
            return self._device_of(tensor) is not None or real.__get__(tensor)

        return is_cuda

    def _is_cpu(self, real: Any) -> Callable[[Any], bool]:
        def is_cpu(tensor: Any) -> Any:
            return self._device_of(tensor) is None and real.__get__(tensor)

        return is_cpu

    def _get_device(self, real: Any, tensor: Any) -> int:
        index = self._device_of(tensor)
        return int(real(tensor)) if index is None else index

    def _data_ptr(self, real: Any, tensor: Any) -> int:
        placement = self._placement(tensor)
        # Native code of a library's kernel (bitsandbytes) reads the CPU's memory.
        is_kernel = isinstance(_get_current_dispatch_mode(), LibraryKernel)
        # A wrapper of tensors (DTensor) has no memory; torch.save knows it by that.
        is_wrapper = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        if placement is None or placement.device is None or is_kernel or is_wrapper:
            return int(real(tensor))
        self._tracker.machine.allocate_all_deferred()
        return placement.addr + int(tensor.storage_offset() * tensor.element_size())

    def _type(
        self, real: Any, tensor: Any, dtype: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        is_placed = self._device_of(tensor) is not None
        if dtype is None:
            name: str = real(tensor)
            return name.replace("torch.", "torch.cuda.", 1) if is_placed else name
        if isinstance(dtype, str):
            owner = torch.cuda if dtype.startswith("torch.cuda.") else torch
            dtype = getattr(owner, dtype.rpartition(".")[2], dtype)
        # torch.FloatTensor and the like name a device too.
        is_of_cuda = getattr(dtype, "__module__", None) == "torch.cuda"
        if is_of_cuda or (is_placed and isinstance(dtype, type)):
            element_type = (
                torch.get_default_dtype() if dtype is torch.Tensor else dtype.dtype
            )
            index = self._tracker.machine.current_device if is_of_cuda else None
            return self._move(tensor, index, element_type)
        return real(tensor, dtype, *args, **kwargs)

    def _type_as(self, real: Any, tensor: Any, other: Any) -> Any:
        if self._device_of(tensor) is None and self._device_of(other) is None:
            return real(tensor, other)
        return tensor.to(other.device, other.dtype)

    def _numpy(self, real: Any, tensor: Any, *, force: bool = False) -> Any:
        if self._device_of(tensor) is None:
            self._read(tensor, "numpy()")
            return real(tensor, force=force)
        if not force:
            error = TypeError(
                f"can't convert {tensor.device} device type tensor to numpy. "
                "Use Tensor.cpu() to copy the tensor to host memory first."
            )
            raise for_program(error)
        return self._numpy(real, tensor.detach().cpu(), force=True)

    def _tolist(self, real: Any, tensor: Any) -> Any:
        self._read(tensor, "tolist()")
        return real(tensor)

    def _str(self, real: Any, tensor: Any, *args: Any, **kwargs: Any) -> str:
        placement = self._placement(tensor)
        if placement is None or placement.has_values:
            return str(real(tensor, *args, **kwargs))
        self._tracker.values_read.add("str()")
        placement.has_values = True  # torch reads it in many ways: the zeros that are there
        try:
            return str(real(tensor, *args, **kwargs))
        finally:
            placement.has_values = False

    def _read(self, tensor: Any, method: str) -> None:
        """Record that the program reads a tensor past torch's operations."""
        placement = self._placement(tensor)
        if are_computed([placement]):
            if are_of_others([placement]):
                self._tracker.values_read.add_of_others(method.removesuffix("()"))
            return
        self._tracker.has_given_arrays = True
        self._tracker.values_read.add_numbers(method)
        if placement is not None and placement.is_assumed and tensor.numel() > 1:
            self._tracker.routing.read_list()

    def _record_stream(self, _real: Any, tensor: Any, stream: Any) -> None:
        placement = self._placement(tensor)
        if placement is not None and placement.device is not None:
            machine = self._tracker.machine
            machine.allocate_all_deferred()
            machine.record_stream(placement.device, placement.addr, stream.cuda_stream)

    def _is_pinned(self, _real: Any, tensor: Any, *_: Any, **__: Any) -> bool:
        placement = self._placement(tensor)
        return placement is not None and placement.is_pinned

    def _pin_memory(self, real: Any, tensor: Any, *_: Any, **__: Any) -> Any:
        if self._device_of(tensor) is not None:
            # aten/src/ATen/native/Memory.cpp
            message = f"cannot pin '{tensor.type()}' only dense CPU tensors can be pinned"
            raise for_program(RuntimeError(message))
        is_wrapper = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
        if is_wrapper or tensor.layout is not torch.strided:
            return tensor  # its parts stay where they are
        return tensor if self._is_pinned(real, tensor) else self._tracker.pin(tensor)

    def _cpu(self, _real: Any, tensor: Any, memory_format: Any = None) -> Any:
        return self._move(tensor, None, None, memory_format=memory_format)

    def _cuda(
        self,
        _real: Any,
        tensor: Any,
        device: Any = None,
        *_: Any,
        memory_format: Any = None,
        **__: Any,
    ) -> Any:
        index = self._tracker.machine.ordinal("cuda" if device is None else device)
        return self._move(tensor, index, None, memory_format=memory_format)

    def _to(self, real: Any, tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if "other" in kwargs or (args and isinstance(args[0], torch.Tensor)):
            model = kwargs.pop("other") if "other" in kwargs else args[0]
            return self._to(real, tensor, model.device, model.dtype, *args[1:], **kwargs)
        # torch's own parser supports everything but ``copy``: by position, the second of two
        # booleans.
        positional = args
        options = dict(kwargs)
        copy = options.pop("copy", False)
        if len(args) >= 3 and isinstance(args[-1], bool) and isinstance(args[-2], bool):
            positional = args[:-1]
            copy = kwargs.get("copy", args[-1])
        device, dtype, _, memory_format = torch._C._nn._parse_to(*positional, **options)
        if device is None or device.type == "meta":
            return real(tensor, *args, **kwargs)
        if device.type != "cuda" and self._placement(tensor) is None:
            return real(tensor, *args, **kwargs)
        index = self._tracker.machine.ordinal(device)
        return self._move(tensor, index, dtype, memory_format=memory_format, copy=copy)

    def _move(
        self,
        tensor: Any,
        index: int | None,
        dtype: Any,
        *,
        memory_format: Any = None,
        copy: bool = False,
    ) -> Any:
        """Do what ``to`` with a device does: the same tensor if nothing changes, else a copy."""
        is_there = dtype in (None, tensor.dtype) and self._device_of(tensor) == index
        if is_there and not copy:
            keeps_format = memory_format in (None, torch.preserve_format)
            if keeps_format or tensor.is_contiguous(memory_format=memory_format):
                return tensor
        return self._tracker.copy(tensor, index, dtype=dtype, memory_format=memory_format)


def patch_storages(tracker: Tracker, patches: Patches) -> None:
    """Replace attributes of torch.UntypedStorage."""
    _patch_storage_properties(tracker, patches)
    _patch_storage_methods(tracker, patches)
    make = _storage_maker(tracker, torch.UntypedStorage.__new__)
    patches.set(torch.UntypedStorage, "__new__", staticmethod(make))


def _storage_maker(tracker: Tracker, real: Callable[..., Any]) -> Callable[..., Any]:
    def make(cls: Any, *args: Any, device: Any = None, **options: Any) -> Any:
        """Make a storage of a size or of data, on the device if that is named."""
        index = None if device is None else tracker.machine.ordinal(device)
        if index is None:
            named = {} if device is None else {"device": device}
            return real(cls, *args, **named, **options)
        storage = real(cls, *args, **options)
        if storage.nbytes():
            tracker.place_storage(storage, index)
        return storage

    return make


def _patch_storage_properties(tracker: Tracker, patches: Patches) -> None:
    """Let a storage report its device, and its size there."""
    kind = torch.UntypedStorage
    find = tracker.placements.device_placement
    real_device = kind.device

    def device(storage: Any) -> Any:
        placement = find(storage)
        if placement is None:
            return real_device.__get__(storage)
        return torch.device("cuda", placement.device)

    def is_cuda(storage: Any) -> bool:
        return find(storage) is not None

    def size(real: Any, storage: Any) -> int:
        # Resizing one without memory changes its size on the device alone.
        placement = find(storage)
        if placement is None or placement.is_own_memory:
            return int(real(storage))
        return placement.n_bytes

    patches.set(kind, "device", property(device))
    patches.set(kind, "is_cuda", property(is_cuda))
    if tracker.evaluation.fake_storages is not None:
        for name in ("nbytes", "size", "__len__"):
            patches.wrap(kind, name, size)


def _patch_storage_methods(tracker: Tracker, patches: Patches) -> None:
    """Give a storage on a device its address there, and copy and resize it there."""
    kind = torch.UntypedStorage
    find = tracker.placements.device_placement
    real_pointer = kind.data_ptr
    real_clone = kind.clone
    real_resize = kind.resize_

    def data_ptr(storage: Any) -> int:
        placement = find(storage)
        if placement is None:
            return int(real_pointer(storage))
        tracker.machine.allocate_all_deferred()
        return placement.addr

    def clone(storage: Any) -> Any:
        placement = find(storage)
        if placement is None or placement.device is None:
            # A deep copy's own call has the tensors of its memo, which may be on the device.
            with tracker.calls.within(real_clone, storage):
                return real_clone(storage)
        return tracker.clone_storage(storage, placement.device)

    def cuda(storage: Any, device: Any = None, *_: Any, **__: Any) -> Any:
        index = tracker.machine.ordinal("cuda" if device is None else device) or 0
        placement = find(storage)
        is_there = placement is not None and placement.device == index
        return storage if is_there else tracker.clone_storage(storage, index)

    def resize_(storage: Any, n_bytes: int) -> Any:
        return tracker.resize_storage(real_resize, storage, n_bytes)

    for function in (data_ptr, clone, cuda, resize_):
        patches.set(kind, function.__name__, function)


def patch_factories(tracker: Tracker, patches: Patches) -> None:
    """Replace what makes tensors of data, or of a file, on a device given by name."""
    # Let torch make its table of what a default device is for, before any of it is replaced. It
    # does so once, when it needs it; with ours in it, a default device has no effect on
    # torch.tensor (2.13).
    getattr(_device, "_device_constructors", tuple)()
    for name in ("tensor", "as_tensor", "asarray"):
        operation = _builtins._find_builtin(getattr(torch, name))
        may_share = name != "tensor"
        patches.wrap(torch, name, partial(_tensor_of_data, tracker, may_share=may_share))
        # torch.jit.script knows torch's functions by their identity.
        table = _builtins._get_builtin_table()
        key = id(getattr(torch, name))
        table[key] = operation
        patches.callback(table.pop, key)
    patches.set(torch.Tensor, "new_tensor", _new_tensor)
    patches.wrap(
        torch.serialization, "default_restore_location", partial(_restore, tracker)
    )


def _tensor_of_data(
    tracker: Tracker,
    real: Any,
    data: Any,
    *args: Any,
    may_share: bool,
    device: Any = None,
    **kwargs: Any,
) -> Any:
    options = kwargs if device is None else kwargs | {"device": device}
    if device is None:
        device = data.device if isinstance(data, torch.Tensor) else _default_device()
    index = tracker.machine.ordinal(device)
    is_tensor = isinstance(data, torch.Tensor)
    is_moved = index is not None or (is_tensor and tracker.placements.of(data) is not None)
    if may_share and is_tensor and is_moved:
        copies = bool(kwargs.get("copy"))
        moved = data.to(device=device, dtype=kwargs.get("dtype"), copy=copies)
        return moved.requires_grad_() if kwargs.get("requires_grad") else moved
    if index is None:
        tensor = real(data, *args, **options)
        if isinstance(data, torch.UntypedStorage):
            # safetensors maps its file, and makes each tensor of a piece of it (0.4 to 0.8).
            tracker.drop_large_values(tensor)
        return tensor
    requires_grad = kwargs.pop("requires_grad", False)
    tensor = real(data, *args, **kwargs, device="cpu")
    return tracker.copy(tensor.detach(), index).requires_grad_(requires_grad)


def _default_device() -> Any:
    """Return the default device.

    torch.get_default_device() makes a tensor to find it, and would recurse.
    """
    for mode in reversed(_get_current_function_mode_stack()):
        if isinstance(mode, DeviceContext):
            return mode.device
    return "cpu"


def _new_tensor(self: Any, data: Any, **kwargs: Any) -> Any:
    options = {"dtype": self.dtype, "device": self.device}
    options |= {key: value for key, value in kwargs.items() if value is not None}
    return torch.tensor(data, **options)


def _restore(tracker: Tracker, real: Any, storage: Any, location: str) -> Any:
    """Load a storage that was saved on, or is mapped to, a CUDA device."""
    if not location.startswith("cuda"):
        return real(storage, location)
    index = tracker.machine.ordinal(location)
    untyped = getattr(storage, "_untyped_storage", storage)
    if index is not None and untyped.nbytes():
        tracker.place_storage(untyped, index)
    return storage


def patch_wrappers(tracker: Tracker, patches: Patches) -> None:
    """Let tensors that wrap others (quantized, doubled, …) be on a device, without own memory.

    A wrapper is made for the CPU, since C++ code would look for a CUDA device, and only reports
    that it is on the device. The tensors in it are tracked as any others.
    """
    real = torch.Tensor._make_wrapper_subclass

    def make(*args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        index = None if device is None else tracker.machine.ordinal(device)
        if index is None:
            return real(*args, **kwargs)
        wrapper = real(*args, **kwargs | {"device": torch.device("cpu")})
        # Address 0 is that of tensors without bytes: nothing is allocated, and nothing freed.
        tracker.placements.add(
            wrapper.untyped_storage(), Placement(index, 0, 0, has_values=True)
        )
        return wrapper

    patches.set(torch.Tensor, "_make_wrapper_subclass", staticmethod(make))
