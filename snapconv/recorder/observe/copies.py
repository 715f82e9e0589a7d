"""What a program copies with ``copy.deepcopy``: averaged models, target networks, the best weights so far.

A copied module goes through no registration hook, and a copied ``state_dict`` belongs to no module at all.
"""

from collections.abc import Callable
from typing import Any, Protocol

from snapconv.recorder.guard import Guard
from snapconv.recorder.torch_types import Module, Tensor


class CopyListener(Protocol):
    """Who wants to know; never to raise."""

    def tensor_copied(self, original: "Tensor", copy: "Tensor") -> None:
        """A tensor was copied with its memory."""

    def module_restored(self, module: "Module") -> None:
        """A module got its state from a copy or from a pickle."""


class Copies:
    """Wraps what ``deepcopy`` and ``pickle`` call of tensors and modules, between ``start`` and ``stop``."""

    def __init__(self, listener: CopyListener, guard: Guard) -> None:
        self._listener, self._guard = listener, guard
        self._is_on = False
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def start(self) -> None:
        """Begin to listen."""
        import torch

        self._is_on = True
        if self._replaced:
            return
        for kind in (torch.Tensor, torch.nn.Parameter):
            if "__deepcopy__" in vars(kind):
                self._wrap(kind, "__deepcopy__", self._copying)
        if "__setstate__" in vars(torch.nn.Module):
            self._wrap(torch.nn.Module, "__setstate__", self._restoring)

    def stop(self) -> None:
        """Put back what was there; what others have put around ours stays, and ours with it, idle."""
        self._is_on = False
        for place in list(self._replaced):
            kind, name, original, ours = place
            if vars(kind).get(name) is ours:
                setattr(kind, name, original)
                self._replaced.remove(place)

    def _wrap(self, kind: Any, name: str, around: Callable[[Any], Any]) -> None:
        original = vars(kind)[name]
        ours = around(original)
        setattr(kind, name, ours)
        self._replaced.append((kind, name, original, ours))

    def _copying(self, original: Any) -> Any:
        def copied(call: Callable[[], Any], tensor: Any, *_: Any, **__: Any) -> Any:
            copy = call()
            if self._is_on:
                self._listener.tensor_copied(tensor, copy)
            return copy

        return self._guard.wrap_call(original, copied)

    def _restoring(self, original: Any) -> Any:
        def restored(call: Callable[[], Any], module: Any, *_: Any, **__: Any) -> Any:
            result = call()
            if self._is_on:
                self._listener.module_restored(module)
            return result

        return self._guard.wrap_call(original, restored)
