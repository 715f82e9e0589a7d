"""Tensors on the CPU that might be on a device: made where the intended device is not visible.

C++ code takes the simulated tensors for CPU tensors. What TorchScript, torch.func or an extension makes
"where this one is" is therefore on the CPU here, and so is what is made of it: no error of the program.
"""

import weakref
from collections.abc import Callable
from functools import wraps
from typing import Any

from snapconv.simulation.modes import Calls
from snapconv.simulation.patches import Patches
from snapconv.simulation.tensors.placements import Placement, Placements, tensors_in


class Doubts:
    """The storages on the CPU that are not certain to be the program's own choice."""

    def __init__(self, placements: Placements, calls: Calls) -> None:
        import torch

        self._torch = torch
        self._tensor = torch.Tensor
        self._placements = placements
        self._calls = calls
        self._transform = _current_transform()
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


def _current_transform() -> Callable[[], Any]:
    """Return torch's function for the innermost transform of torch.func, None where there is none."""
    from torch import _C

    return getattr(getattr(_C, "_functorch", None), "peek_interpreter_stack", lambda: None)


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
