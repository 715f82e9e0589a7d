"""Building a model of any size without its memory: whatever is made or moved goes to one device.

That is torch's meta device, where tensors have shapes and types but no values, or the CPU. A program that
names CUDA devices need not be changed, and needs no CUDA.
"""

from collections.abc import Callable
from typing import Any


def building_on(device: str) -> Any:
    """Return a context in which every new tensor, and every one that is moved, is on ``device``."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils import _device

    constructors = _device._device_constructors()
    stays = {torch.Tensor.cuda, torch.Tensor.cpu, torch.Tensor.pin_memory}

    class BuildingOn(TorchFunctionMode):  # type: ignore[misc]  # torch counts as Any
        def __torch_function__(
            self,
            function: Callable[..., Any],
            _types: Any,
            args: tuple[Any, ...] = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            named = dict(kwargs or {})
            if function in stays:
                return args[0]
            if function is torch.Tensor.to:
                args = (args[0], *(device if _is_device(value) else value for value in args[1:]))
            if function in constructors or named.get("device") is not None:
                named["device"] = device
            return function(*args, **named)

    def _is_device(value: object) -> bool:
        return isinstance(value, (str, torch.device)) or type(value) is int

    return BuildingOn()
