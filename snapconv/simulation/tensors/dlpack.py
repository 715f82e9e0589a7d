"""DLPack between tensors of the simulated devices: a real capsule would come back as one of the CPU."""

from dataclasses import dataclass
from functools import wraps
from typing import Any

from snapconv.simulation.patches import Patches


@dataclass(frozen=True)
class _Capsule:
    """What stands for a tensor on the device."""

    tensor: Any


def patch_dlpack(patches: Patches) -> None:
    """Share the memory of a tensor on the device through torch's functions for DLPack."""
    import torch
    from torch.utils import dlpack

    for module in (torch, dlpack):
        patches.wrap(module, "to_dlpack", _exported)
        patches.wrap(module, "from_dlpack", lambda real: _imported(torch, real), otherwise=_shared)
    patches.wrap(torch.Tensor, "__dlpack__", _exported)


def _shared(given: Any, *_: Any, **__: Any) -> Any:
    """Return what lies in a capsule of ours, or is a tensor itself."""
    return getattr(given, "tensor", given).detach()


def _exported(real: Any) -> Any:
    @wraps(real)
    def to_dlpack(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return _Capsule(tensor.detach()) if tensor.is_cuda else real(tensor, *args, **kwargs)

    return to_dlpack


def _imported(torch: Any, real: Any) -> Any:
    @wraps(real)
    def from_dlpack(given: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(given, _Capsule):
            return given.tensor.detach()
        if isinstance(given, torch.Tensor) and given.is_cuda:
            return given.detach()
        return real(given, *args, **kwargs)

    return from_dlpack
