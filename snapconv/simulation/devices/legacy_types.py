"""torch.cuda.FloatTensor and the like: legacy classes that scripts still call and look up."""

from collections.abc import Callable
from functools import wraps
from typing import Any

from snapconv.simulation.patches import Patches


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

        if len(args) == 1 and isinstance(args[0], list | tuple) and not isinstance(args[0], torch.Size):
            return torch.tensor(args[0], dtype=cls.dtype, device="cuda")
        size = args[0] if len(args) == 1 and isinstance(args[0], torch.Size) else args
        return torch.empty(size, dtype=cls.dtype, device="cuda")

    def __instancecheck__(cls, value: Any) -> bool:
        import torch

        return isinstance(value, torch.Tensor) and value.is_cuda and value.dtype == cls.dtype
