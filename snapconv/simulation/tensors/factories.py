"""Functions that make tensors of data, or of a file, on a device given by name."""

from functools import wraps
from typing import Any

from snapconv.simulation.operations.tracker import Tracker
from snapconv.simulation.patches import Patches
from snapconv.simulation.tensors.tensor_attributes import TensorPatches


def patch_factories(tracker: Tracker, tensors: TensorPatches, patches: Patches) -> None:
    """Replace what would request a CUDA device from C++ code that it does not have.

    Factories without data (zeros, randn, …) need nothing: the operation mode sees their device.
    """
    import torch

    _list_constructors()
    patches.wrap(torch, "tensor", lambda real: _from_data(torch, tracker, tensors, real))
    patches.wrap(torch, "as_tensor", lambda real: _from_data(torch, tracker, tensors, real, may_share=True))
    patches.wrap(torch, "asarray", lambda real: _from_data(torch, tracker, tensors, real, may_share=True))
    patches.set(torch.Tensor, "new_tensor", _new_tensor(torch))
    patches.wrap(torch.Tensor, "new", lambda real: _new(torch, real))
    patches.set(torch, "Generator", _generator_class(torch, tracker))
    patches.wrap(
        torch.serialization, "default_restore_location", lambda real: _restore(tracker, tensors, real)
    )


def _list_constructors() -> None:
    """Let torch make its table of what a default device is for, before any of it is replaced.

    It does so once, when it needs it; with ours in it, a default device has no effect on torch.tensor (2.13).
    """
    from torch.utils import _device

    getattr(_device, "_device_constructors", tuple)()


def _from_data(
    torch: Any, tracker: Tracker, tensors: TensorPatches, real: Any, *, may_share: bool = False
) -> Any:
    @wraps(real)
    def make(data: Any, *args: Any, **kwargs: Any) -> Any:
        device = kwargs.get("device")
        if device is None:
            device = data.device if isinstance(data, torch.Tensor) else _default_device()
        index = tensors.index_of(device)
        if index is None:
            return real(data, *args, **kwargs)
        if may_share and isinstance(data, torch.Tensor):
            return data.to(device=device, dtype=kwargs.get("dtype"))
        requires_grad = kwargs.pop("requires_grad", False)
        made = real(data, *args, **kwargs | {"device": "cpu"})
        return tracker.copy(made.detach(), index).requires_grad_(requires_grad)

    return make


def _default_device() -> Any:
    """Return the device of torch.set_default_device or ``with torch.device(…)``.

    torch.get_default_device() makes a tensor to find out, and so would end here again.
    """
    from torch.overrides import _get_current_function_mode_stack
    from torch.utils._device import DeviceContext

    contexts = (
        mode for mode in reversed(_get_current_function_mode_stack()) if isinstance(mode, DeviceContext)
    )
    context = next(contexts, None)
    return "cpu" if context is None else context.device


def _new_tensor(torch: Any) -> Any:
    def new_tensor(self: Any, data: Any, **kwargs: Any) -> Any:
        defaults = {"dtype": self.dtype, "device": self.device}
        given = {key: value for key, value in kwargs.items() if value is not None}
        return torch.tensor(data, **defaults | given)

    return new_tensor


def _new(torch: Any, real: Any) -> Any:
    """Make ``x.new(data)`` a tensor beside ``x``; of a size, the operation mode sees it."""

    @wraps(real)
    def new(self: Any, *args: Any, **kwargs: Any) -> Any:
        no_data = torch.Size | torch.Tensor | torch.UntypedStorage | torch.TypedStorage
        is_data = len(args) == 1 and hasattr(args[0], "__len__") and not isinstance(args[0], no_data)
        if is_data and not kwargs and self.is_cuda:
            return torch.tensor(args[0], dtype=self.dtype, device=self.device)
        return real(self, *args, **kwargs)

    return new


def _generator_class(torch: Any, tracker: Tracker) -> type:
    """Make a torch.Generator that takes a CUDA device; the CPU's algorithm is behind all of them."""
    real = torch.Generator

    class OfAnyKind(type(real)):  # type: ignore[misc]
        def __instancecheck__(cls, value: Any) -> bool:
            # torch.default_generator is older than this class.
            return isinstance(value, real) if cls is Generator else super().__instancecheck__(value)

    class Generator(real, metaclass=OfAnyKind):  # type: ignore[misc,valid-type]
        def __new__(cls, device: Any = "cpu") -> Any:
            made = super().__new__(cls, device="cpu")
            made._named_device = torch.device(device)
            return made

        @property
        def device(self) -> Any:
            named = self._named_device
            if named.type == "cuda" and named.index is None:
                return torch.device("cuda", tracker.machine.current_device)
            return named

    return Generator


def _restore(tracker: Tracker, tensors: TensorPatches, real: Any) -> Any:
    """Load storages that were saved on, or are mapped to, a CUDA device."""

    @wraps(real)
    def restore(storage: Any, location: str) -> Any:
        if not location.startswith("cuda"):
            return real(storage, location)
        index = tensors.index_of(location)
        untyped = getattr(storage, "_untyped_storage", storage)
        if index is not None and untyped.nbytes():
            tracker.place(untyped, index)
        return storage

    return restore
