"""torch.cuda.FloatTensor, torch.cuda.FloatStorage and others: types with a device of their own."""

from collections.abc import Callable
from typing import Any

import torch

from snapconv.simulation.patches import Patches
from snapconv.simulation.tracker import Tracker

# torch.cuda.sparse has types of the same names.
TENSOR_TYPES = (
    "ByteTensor",
    "CharTensor",
    "ShortTensor",
    "IntTensor",
    "LongTensor",
    "HalfTensor",
    "FloatTensor",
    "DoubleTensor",
    "BoolTensor",
    "BFloat16Tensor",
)


def patch_legacy_types(tracker: Tracker, patches: Patches) -> None:
    """Let these types make tensors and storages on the device, and recognise such tensors."""
    for name in TENSOR_TYPES:
        members = {"__module__": "torch.cuda", "dtype": getattr(torch, name).dtype}
        patches.set_existing(torch.cuda, name, _TensorType(name, (), members))
    patches.wrap(torch, "set_default_tensor_type", _set_default_type)
    storages = torch.cuda.FloatStorage.__base__  # torch.cuda has no name for it
    make = _storage_maker(tracker, storages.__new__)
    patches.set(storages, "__new__", staticmethod(make))


def _set_default_type(real: Callable[[Any], None], kind: Any) -> None:
    """Take torch.cuda.FloatTensor or its name apart: into an element type and a device."""
    if isinstance(kind, str) and kind.startswith("torch.cuda."):
        kind = getattr(torch.cuda, kind.rpartition(".")[2])
    if isinstance(kind, _TensorType):
        torch.set_default_dtype(kind.dtype)
        torch.set_default_device("cuda")
    else:
        real(kind)


class _TensorType(type):
    dtype: Any

    def __call__(cls, *args: Any) -> Any:
        """Make a tensor of data, or an uninitialised one of a size."""
        is_data = len(args) == 1 and not isinstance(args[0], int | torch.Size)
        if is_data:
            return torch.as_tensor(args[0], dtype=cls.dtype, device="cuda")
        size = args or (0,)
        return torch.empty(*size, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, value: Any) -> bool:
        return (
            isinstance(value, torch.Tensor) and value.is_cuda and value.dtype == cls.dtype
        )


def _storage_maker(tracker: Tracker, real: Callable[..., Any]) -> Callable[..., Any]:
    def make(cls: Any, *args: Any, wrap_storage: Any = None, **options: Any) -> Any:
        """Make a storage of a size or of data on the current device."""
        if wrap_storage is not None or options:
            return real(cls, *args, wrap_storage=wrap_storage, **options)
        storage = torch.TypedStorage(*args, dtype=cls._dtype, _internal=True)
        untyped = storage._untyped_storage
        if untyped.nbytes():
            tracker.place_storage(untyped, tracker.machine.current_device)
        return storage

    return make
