"""What a program copies with ``copy.deepcopy``: averaged models, target networks, the best weights so far.

A copied module goes through no registration hook, and a copied ``state_dict`` belongs to no module at all.
"""

import functools
from collections.abc import Callable
from typing import Any, Protocol

from snapconv.recorder.torch_types import Module, Tensor


class CopyListener(Protocol):
    """Who wants to know; never to raise."""

    def tensor_copied(self, original: "Tensor", copy: "Tensor") -> None:
        """A tensor was copied with its memory."""

    def module_restored(self, module: "Module") -> None:
        """A module got its state from a copy or from a pickle."""


class Copies:
    """Wraps what ``deepcopy`` and ``pickle`` call of tensors and modules, between ``start`` and ``stop``."""

    def __init__(self, listener: CopyListener) -> None:
        self._listener = listener
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
        @functools.wraps(original)
        def deepcopy(tensor: Any, memo: Any) -> Any:
            copy = original(tensor, memo)
            if self._is_on:
                self._listener.tensor_copied(tensor, copy)
            return copy

        return deepcopy

    def _restoring(self, original: Any) -> Any:
        @functools.wraps(original)
        def setstate(module: Any, state: Any) -> Any:
            result = original(module, state)
            if self._is_on:
                self._listener.module_restored(module)
            return result

        return setstate
