"""Functions that make tensors: of data, of files, and of other tensors' memory.

Replaced is what would request a CUDA device from C++ code that it does not have. Factories without data
(zeros, randn, …) need nothing: the operation mode sees their device. Where nothing is computed, a file of
weights needs no more than its header: a tensor of it has its shape and type, and as little memory as any
other tensor without values; what is small is read.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from snapconv.simulation.patches import Patches
from snapconv.simulation.placements import Placement
from snapconv.simulation.tensors import TensorPatches
from snapconv.simulation.tracker import Tracker


def patch_factories(tracker: Tracker, tensors: TensorPatches, patches: Patches) -> None:
    """Replace what makes tensors of data, or of a file, on a device given by name."""
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


def patch_wrappers(tracker: Tracker, tensors: TensorPatches, patches: Patches) -> None:
    """Let tensors that wrap others (quantized, doubled, …) be on a device, without memory of their own.

    The wrapper itself would have C++ code look for a CUDA device, so it is made for the CPU, and only reports
    that it is on the device; what it is made of is tracked as any tensor is.
    """
    import torch

    def make_for(real: Callable[..., Any]) -> Any:
        @wraps(real)
        def make(*args: Any, **kwargs: Any) -> Any:
            device = kwargs.get("device")
            index = None if device is None else tensors.index_of(device)
            if index is None:
                return real(*args, **kwargs)
            made = real(*args, **kwargs | {"device": torch.device("cpu")})
            # Address 0 is that of tensors without bytes: nothing is allocated, and nothing freed.
            tracker.placements.add(made.untyped_storage(), Placement(index, 0, 0, has_values=True))
            return made

        return staticmethod(make)

    patches.wrap(torch.Tensor, "_make_wrapper_subclass", make_for)


def patch_legacy_types(patches: Patches) -> None:
    """Let ``torch.cuda.FloatTensor`` make tensors on the device, and recognise them."""
    import torch

    for name in ("Byte", "Char", "Short", "Int", "Long", "Half", "Float", "Double", "Bool", "BFloat16"):
        cpu_type = getattr(torch, f"{name}Tensor")
        made = _LegacyType(f"{name}Tensor", (), {"__module__": "torch.cuda", "dtype": cpu_type.dtype})
        patches.set_existing(torch.cuda, f"{name}Tensor", made)
    patches.wrap(torch, "set_default_tensor_type", _set_default_type)


def _set_default_type(real: Callable[[Any], None]) -> Callable[[Any], None]:
    """Take torch.cuda.FloatTensor or its name apart: into an element type and a device."""
    import torch

    @wraps(real)
    def set_default_tensor_type(kind: Any) -> None:
        if isinstance(kind, str) and kind.startswith("torch.cuda."):
            kind = getattr(torch.cuda, kind.rpartition(".")[2])
        if isinstance(kind, _LegacyType):
            torch.set_default_dtype(kind.dtype)
            torch.set_default_device("cuda")
        else:
            real(kind)

    return set_default_tensor_type


class _LegacyType(type):
    dtype: Any

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        """Make a tensor of data, or an uninitialised one of a size."""
        import torch

        if len(args) == 1 and not isinstance(args[0], int | torch.Size):
            return torch.as_tensor(args[0], dtype=cls.dtype, device="cuda")
        size = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        return torch.empty(size, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, value: Any) -> bool:
        import torch

        return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype == cls.dtype


def patch_checkpoints(tracker: Tracker, patches: Patches) -> None:
    """Let torch.load and safetensors leave large tensors in their files."""
    import torch

    if tracker.evaluation.fake_storages is None:
        return
    # torch.load reads from its file one storage after the other.
    reader = torch._C.PyTorchFileReader
    patches.wrap(reader, "get_storage_from_record", lambda real: _unread(torch, tracker, real))
    # safetensors maps its file, and makes each tensor by torch.asarray of a piece of it (0.4 to 0.8).
    patches.wrap(torch, "asarray", lambda real: _of_a_file(torch, tracker, real))


def _unread(torch: Any, tracker: Tracker, real: Callable[..., Any]) -> Callable[..., Any]:
    """Make a storage without values where reading it would take memory; torch requests it by its bytes."""

    @wraps(real)
    def get_storage_from_record(reader: Any, name: str, n_bytes: int, kind: Any) -> Any:
        if kind is not torch.UntypedStorage or not tracker.is_large(n_bytes):
            return real(reader, name, n_bytes, kind)
        return torch.empty(n_bytes, dtype=torch.uint8, device="cpu")

    return get_storage_from_record


def _of_a_file(torch: Any, tracker: Tracker, real: Callable[..., Any]) -> Callable[..., Any]:
    """Take the values from a tensor that is made of a storage: its memory is a file's, and is never read."""

    @wraps(real)
    def asarray(data: Any, *args: Any, **kwargs: Any) -> Any:
        made = real(data, *args, **kwargs)
        if isinstance(data, torch.UntypedStorage):
            tracker.take_values(made)
        return made

    return asarray
