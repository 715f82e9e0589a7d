"""When a custom function saves tensors for backward: from ``save_for_backward`` until they are saved.

``ctx.save_for_backward`` only names the tensors. They are saved in C, after ``forward`` has returned, and
nothing in Python is called there; nor, since torch 2.14, at the call of an ``apply`` that the program kept
under a name of its own. But what a context has for forward mode is freed right after the saving (seen in
torch 2.8 to 2.15): in its place stands an equal tuple that reports its end.
"""

import weakref
from collections.abc import Callable
from functools import partial
from typing import Any

from snapconv.recorder.guard import Guard
from snapconv.recorder.program.own_frames import calls_original


class CustomFunctions:
    """Calls ``begin`` when a function has named tensors, and ``end`` with those that were saved.

    ``begin`` returns whether ``end`` is wanted; while one is to come, ``is_saving``.
    """

    def __init__(
        self, begin: Callable[[], bool], end: Callable[[tuple[Any, ...]], None], guard: Guard
    ) -> None:
        self._begin, self._end, self._guard = begin, end, guard
        self._originals: dict[str, Any] = {}
        self._n_saving = 0

    @property
    def is_saving(self) -> bool:
        """Whether a function has named tensors that are not saved yet."""
        return self._n_saving > 0

    def start(self) -> None:
        """Replace the methods of a context that name tensors."""
        self._replace("save_for_backward", self._named_for_backward)
        self._replace("save_for_forward", self._named_for_forward)

    def stop(self) -> None:
        """Restore them."""
        while self._originals:
            setattr(_context_type(), *self._originals.popitem())

    def _replace(self, name: str, work: Callable[..., Any]) -> None:
        context_type = _context_type()
        original = getattr(context_type, name)

        @calls_original
        def plain(*arguments: Any) -> Any:
            if self._guard.is_off:
                self._guard.finish(self._begin)  # after a failure of ours too
            return original(*arguments)

        self._originals[name] = original
        setattr(context_type, name, self._guard.wrap_call(plain, work, like=original))

    def _named_for_backward(self, call: Callable[[], Any], context: Any, *tensors: Any) -> Any:
        result = call()
        # Nothing is ever saved of a context that a program made itself.
        if isinstance(context, _node_type()) and (
            isinstance(context.saved_for_forward, _UntilSaved) or self._begin()
        ):
            self._wait(context, tensors)
        return result

    def _named_for_forward(self, call: Callable[[], Any], context: Any, *_: Any) -> Any:
        """Wait on where the program replaces the tuple."""
        replaced = getattr(context, "saved_for_forward", None)
        result = call()
        if isinstance(replaced, _UntilSaved):
            self._wait(context, replaced.tensors)
        return result

    def _wait(self, context: Any, tensors: tuple[Any, ...]) -> None:
        waiting = _UntilSaved(context.saved_for_forward or ())
        waiting.tensors = tensors
        waiting.when_freed = partial(self._guard.run, self._saved, weakref.ref(context), tensors)
        self._n_saving += 1
        context.saved_for_forward = waiting

    def _saved(self, context: "weakref.ref[Any]", tensors: tuple[Any, ...]) -> None:
        """Report the end. A call that failed, or for which there is no gradient, has saved nothing."""
        self._n_saving -= 1
        node = context()
        self._end(tensors if node is not None and node._raw_saved_tensors else ())


class _UntilSaved(tuple[Any, ...]):
    """What a context has for forward mode; it inherits because torch requires a tuple."""

    tensors: tuple[Any, ...]
    when_freed: Callable[[], object]

    def __del__(self) -> None:
        self.when_freed()


def _context_type() -> Any:
    from torch.autograd.function import FunctionCtx

    return FunctionCtx


def _node_type() -> Any:
    import torch

    return torch._C._FunctionBase
