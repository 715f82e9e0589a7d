"""Whose hooks for saved tensors are innermost in a thread.

torch answers that from 2.8 on. Before, torch's two functions that push and pop hooks are followed; hooks that
may have been pushed earlier leave nothing known.
"""

import gc
import threading
from collections.abc import Callable
from typing import Any

# (pack, unpack)
Pair = tuple[Any, Any]
_PUSH, _POP = "_push_saved_tensors_default_hooks", "_pop_saved_tensors_default_hooks"


class HooksInPlace:
    """The hooks of the thread that called ``start``, which alone may ask."""

    def __init__(self) -> None:
        self._pushed: list[Pair] = []
        self._thread = 0
        self._originals: dict[str, Callable[..., Any]] = {}
        self._is_known = False

    def start(self) -> None:
        """Begin to follow, where torch does not answer itself."""
        autograd = _autograd()
        if hasattr(autograd, "_top_saved_tensors_default_hooks"):
            self._is_known = True
            return
        self._thread = threading.get_ident()
        self._pushed.clear()
        self._is_known = not _has_hooks()
        for name, make in ((_PUSH, self._following_push), (_POP, self._following_pop)):
            self._originals[name] = original = getattr(autograd, name)
            setattr(autograd, name, make(original))

    def stop(self) -> None:
        """Follow no more."""
        while self._originals:
            setattr(_autograd(), *self._originals.popitem())

    def are(self, hooks: Pair | None) -> bool:
        """Whether these hooks are known to be innermost, or with None whether there are none."""
        return self._is_known and self._top() == hooks

    def _top(self) -> Pair | None:
        query = getattr(_autograd(), "_top_saved_tensors_default_hooks", None)
        if query is not None:
            found: Pair | None = query(True)  # C function, no keyword
            return found
        return self._pushed[-1] if self._pushed else None

    # Neither has a guard: with a failure elsewhere the list would go on as it was, and be wrong.

    def _following_push(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def push(pack: Any, unpack: Any) -> Any:
            result = original(pack, unpack)
            if threading.get_ident() == self._thread:
                self._pushed.append((pack, unpack))
            return result

        return push

    def _following_pop(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def pop() -> Any:
            result = original()
            if threading.get_ident() == self._thread and self._pushed:
                self._pushed.pop()
            return result

        return pop


def _has_hooks() -> bool:
    """Whether there is any object that puts hooks in place, in use or not."""
    from torch.autograd.graph import saved_tensors_hooks

    # Not isinstance: objects may answer that themselves.
    return any(issubclass(type(found), saved_tensors_hooks) for found in gc.get_objects())


def _autograd() -> Any:
    import torch

    return torch._C._autograd
