"""Attributes replaced for a while, and put back as they were: also those that were not there.

What is called of ours in torch's place is guarded: where it fails, what was there does it, for the CPU.
"""

import functools
import inspect
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodType, TracebackType
from typing import Any

from snapconv.errors import RecorderError
from snapconv.recorder.guard import Guard, is_fault
from snapconv.recorder.program.own_frames import stands_in
from snapconv.recorder.program.script_signals import deliver_waiting, waiting
from snapconv.recorder.torch_surface import Feature

_ABSENT = object()
# In place of an answer: what torch has there.
WHAT_IS_THERE = object()


class Patches:
    """A pile of replaced attributes; leaving the context undoes them, last one first."""

    def __init__(self, guard: Guard | None = None) -> None:
        self._guard = guard or Guard(Feature.SIMULATION)
        self._undo: list[tuple[Any, str, Any]] = []

    def __enter__(self) -> "Patches":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._undo:
            owner, name, before = self._undo.pop()
            if before is _ABSENT:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    def set(self, owner: Any, name: str, value: Any, *, otherwise: Any = WHAT_IS_THERE) -> None:
        """Replace an attribute, or add one that the owner itself (not its bases) does not have.

        ``otherwise`` is the answer of a function of ours that fails, where torch's own would not do.
        """
        guarded = self._guarded(value, inspect.getattr_static(owner, name, None), otherwise)
        self.set_unguarded(owner, name, guarded)

    def set_unguarded(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute by what cannot fail, or guards itself."""
        # vars() and not getattr: a class must lose again what it only inherited.
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def set_existing(self, owner: Any, name: str, value: Any, *, otherwise: Any = WHAT_IS_THERE) -> None:
        """Replace an attribute that this torch has; do nothing where it has none of that name."""
        if hasattr(owner, name):
            self.set(owner, name, value, otherwise=otherwise)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any], *, otherwise: Any = None) -> None:
        """Replace an attribute by ``make(attribute)``; do nothing where there is none.

        ``otherwise`` is what to call where ours fails, if the attribute itself would not do.
        """
        if hasattr(owner, name):
            made = make(getattr(owner, name))
            if otherwise is None:
                self.set(owner, name, made)
            else:
                self.set_unguarded(owner, name, self.instead(made, otherwise))

    def _guarded(self, value: Any, real: Any, otherwise: Any) -> Any:
        if isinstance(value, property):
            return property(self.guarded(value.fget, lambda owner: real.__get__(owner, type(owner))))
        if isinstance(value, staticmethod | classmethod):
            return value
        if isinstance(value, FunctionType | MethodType | BuiltinFunctionType):
            if otherwise is not WHAT_IS_THERE:
                return self.guarded(value, lambda *_, **__: otherwise)
            return self.guarded(value, real if callable(real) else lambda *_, **__: None)
        return value

    def instead(self, work: Any, otherwise: Callable[..., Any]) -> Callable[..., Any]:
        """Have a function of ours done by another where it fails, which is given the same arguments."""
        return instead(self._guard, work, otherwise)

    def guarded(self, work: Any, real: Callable[..., Any]) -> Callable[..., Any]:
        """Have a function of ours done by another where it fails, which is given the CPU for a device."""

        def on_the_cpu(*arguments: Any, **named: Any) -> Any:
            positional, by_name = for_the_cpu(arguments, named)
            return real(*positional, **by_name)

        return instead(self._guard, work, on_the_cpu)


# Here, and not with the other guards: torch.compile reads no function of this folder.
def instead(guard: Guard, work: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Make what is called in a function's place, with another for the case that it fails.

    What neither of them can do is an error of the program's, and so is a refusal of ours.
    """

    @stands_in
    @functools.wraps(work)
    def instead(*arguments: Any, **named: Any) -> Any:
        try:
            result = work(*arguments, **named)
        except BaseException as failure:
            if isinstance(failure, RecorderError):
                raise
            if not is_fault(failure):
                guard.takes(failure)
                raise
            kept = failure
        else:
            if waiting:
                deliver_waiting()
            return result
        try:
            result = otherwise(*arguments, **named)
        except Exception:  # noqa: BLE001  # the first error has more information
            result = _ABSENT
        try:
            if result is _ABSENT:
                raise kept
            guard.keep(kept)
        finally:
            del kept  # it holds this frame, and with it the arguments
        return result

    return instead


def for_the_cpu(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Name the CPU where a call names a CUDA device."""
    return [_on_the_cpu(value) for value in arguments], {
        name: "cpu" if name == "device" and value is not None else _on_the_cpu(value)
        for name, value in named.items()
    }


def _on_the_cpu(value: Any) -> Any:
    is_device = type(value).__name__ == "device" and getattr(value, "type", "") == "cuda"
    is_name = isinstance(value, str) and value.partition(":")[0] == "cuda"
    return "cpu" if is_device or is_name else value
