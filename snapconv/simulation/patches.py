"""How torch is changed while a simulation runs: replaced attributes, and modes in every thread.

What is called of ours in torch's place is guarded: where it fails, the original does the work, for the CPU.
Everything is put back as it was, also what was not there before.
"""

import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import BuiltinFunctionType, FunctionType, MethodType, TracebackType
from typing import Any

from snapconv.errors import RecorderError
from snapconv.recorder.guard import Guard, is_fault
from snapconv.recorder.program.own_frames import stands_in
from snapconv.recorder.program.script_signals import deliver_waiting, waiting
from snapconv.recorder.torch_surface import Feature

Call = tuple[Any, Any, dict[str, Any]]
Handler = Callable[[Any, Any, dict[str, Any]], Any]

_ABSENT = object()
# As a fallback: what torch has there.
KEEP_ORIGINAL = object()


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

    def set(self, owner: Any, name: str, value: Any, *, fallback: Any = KEEP_ORIGINAL) -> None:
        """Replace an attribute, or add one that the owner itself (not its bases) does not have.

        ``fallback`` is the answer of a function of ours that fails, where torch's own would not do.
        """
        guarded = self._guarded(value, inspect.getattr_static(owner, name, None), fallback)
        self.set_unguarded(owner, name, guarded)

    def set_unguarded(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute by what cannot fail, or guards itself."""
        # vars() and not getattr: a class must lose again what it only inherited.
        self._undo.append((owner, name, vars(owner).get(name, _ABSENT)))
        setattr(owner, name, value)

    def set_existing(self, owner: Any, name: str, value: Any, *, fallback: Any = KEEP_ORIGINAL) -> None:
        """Replace an attribute that this torch has; do nothing where it has none of that name."""
        if hasattr(owner, name):
            self.set(owner, name, value, fallback=fallback)

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any], *, fallback: Any = None) -> None:
        """Replace an attribute by ``make(attribute)``; do nothing where there is none.

        ``fallback`` is called where ours fails, if the attribute itself would not do.
        """
        if hasattr(owner, name):
            made = make(getattr(owner, name))
            if fallback is None:
                self.set(owner, name, made)
            else:
                self.set_unguarded(owner, name, self.with_fallback(made, fallback))

    def _guarded(self, value: Any, real: Any, fallback: Any) -> Any:
        if isinstance(value, property):
            return property(self.guarded(value.fget, lambda owner: real.__get__(owner, type(owner))))
        if isinstance(value, FunctionType | MethodType | BuiltinFunctionType):
            if fallback is not KEEP_ORIGINAL:
                return self.guarded(value, lambda *_, **__: fallback)
            return self.guarded(value, real if callable(real) else lambda *_, **__: None)
        return value

    def with_fallback(self, work: Any, fallback: Callable[..., Any]) -> Callable[..., Any]:
        """Have a function of ours done by another where it fails, which is given the same arguments."""
        return with_fallback(self._guard, work, fallback)

    def guarded(self, work: Any, real: Callable[..., Any]) -> Callable[..., Any]:
        """Have a function of ours done by another where it fails, which is given the CPU for a device."""

        def on_the_cpu(*arguments: Any, **named: Any) -> Any:
            positional, by_name = name_the_cpu(arguments, named)
            return real(*positional, **by_name)

        return with_fallback(self._guard, work, on_the_cpu)


def with_fallback(guard: Guard, work: Callable[..., Any], fallback: Callable[..., Any]) -> Callable[..., Any]:
    """Make what is called in a function's place, with another for the case that it fails.

    What neither of them can do is an error of the program's, and so is a refusal of ours.
    """

    @stands_in
    @functools.wraps(work)
    def guarded(*arguments: Any, **named: Any) -> Any:
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
            result = fallback(*arguments, **named)
        except Exception:  # noqa: BLE001  # the first error has more information
            result = _ABSENT
        try:
            if result is _ABSENT:
                raise kept
            guard.keep(kept)
        finally:
            del kept  # it holds this frame, and with it the arguments
        return result

    return guarded


def name_the_cpu(arguments: tuple[Any, ...], named: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
    """Name the CPU where a call names a CUDA device."""
    return [_cpu_for_cuda(value) for value in arguments], {
        name: "cpu" if name == "device" and value is not None else _cpu_for_cuda(value)
        for name, value in named.items()
    }


def _cpu_for_cuda(value: Any) -> Any:
    is_device = type(value).__name__ == "device" and getattr(value, "type", "") == "cuda"
    is_name = isinstance(value, str) and value.partition(":")[0] == "cuda"
    return "cpu" if is_device or is_name else value


def is_ordinal(value: Any) -> bool:
    """Say whether a device argument is a bare number: the accelerator's device of that number."""
    return isinstance(value, int) and not isinstance(value, bool)


def patch_threads(enter_modes: Callable[[], ExitStack], patches: Patches) -> None:
    """Let every new thread of this process enter the modes before its own code: they are per thread."""
    pid = os.getpid()

    def make(real: Callable[[Any], None]) -> Callable[[Any], None]:
        def bootstrap(thread: Any) -> None:
            if os.getpid() != pid:  # a forked worker computes on the CPU
                real(thread)
                return
            with enter_modes():
                real(thread)

        return bootstrap

    # Not `run`, which subclasses override.
    patches.wrap(threading.Thread, "_bootstrap_inner", make)


class Calls:
    """The torch function that the user's code is in, per thread, with its arguments."""

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def current(self) -> Call | None:
        """The innermost torch function call that is seen, or None outside of any."""
        return getattr(self._local, "call", None)

    @contextmanager
    def within(self, func: Any, *args: Any) -> Iterator[None]:
        """Let a call that is no torch function be the current one for as long as the context lasts."""
        before = self.current
        self._local.call = (func, args, {})
        try:
            yield
        finally:
            self._local.call = before

    def mode(self) -> Any:
        """Make the TorchFunctionMode that keeps ``current`` up to date.

        It changes one thing only: a device that is a bare number is the simulated one of that number.
        """
        import torch
        from torch.overrides import TorchFunctionMode

        local = self._local

        class CallMode(TorchFunctionMode):  # type: ignore[misc]
            @stands_in
            def __torch_function__(
                self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
            ) -> Any:
                before = getattr(local, "call", None)
                kwargs = kwargs or {}
                if is_ordinal(kwargs.get("device")):
                    kwargs = kwargs | {"device": torch.device("cuda", kwargs["device"])}
                elif func is torch.device and args and is_ordinal(args[0]):
                    args = ("cuda", *args)
                local.call = (func, args, kwargs)
                try:
                    result = func(*args, **kwargs)
                finally:
                    local.call = before
                if waiting:
                    deliver_waiting()
                return result

        return CallMode()


_OF_TORCH = {"aten", "prim", "prims", "c10d", "_c10d_functional"}


def _written_in_python(func: Any) -> Callable[..., Any] | None:
    """Return the function of a ``torch.library.custom_op``, whose own operations are to be seen."""
    from torch._library.custom_ops import OPDEFS

    definition = OPDEFS.get(func._schema.name)
    return getattr(definition, "_init_fn", None)


def dispatch_mode(handle: Handler) -> Any:
    """Make the TorchDispatchMode that hands every operation to a function.

    In inference mode autograd is not there to take composite operations apart before they come here (`to`,
    `linear`), though a GPU is given their parts. So they go its way after all, by our own kernels too.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    own = torch.Tensor.__torch_dispatch__
    mode_of, fake = torch._C._get_dispatch_mode, torch._C._TorchDispatchModeKey.FAKE

    class OperationMode(TorchDispatchMode):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            if mode_of(fake) is not None:  # it is called after this one, and has no memory (DTensor's shapes)
                return func(*args, **kwargs)
            if any(kind.__torch_dispatch__ is not own for kind in types):
                return NotImplemented  # a wrapper: it takes itself apart, and its parts come here
            if func.namespace not in _OF_TORCH and (own_operation := _written_in_python(func)):
                with self:
                    return own_operation(*args, **kwargs)
            if torch.is_inference_mode_enabled() and getattr(func, "_can_decompose", bool)():
                keys, has_kernel = torch._C.DispatchKey, torch._C._dispatch_has_kernel_for_dispatch_key
                # Of what only Python takes apart (`native_batch_norm`, torch 2.13) there is neither; to call
                # it all the same would crash.
                for key in (keys.AutogradCPU, keys.CompositeImplicitAutograd):
                    if has_kernel(func.name(), key):
                        with self:
                            return func._op_dk(key, *args, **kwargs)
            return handle(func, args, kwargs)

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # True wraps every single operation in torch._disable_dynamo, and nothing is compiled here.
            return False

    return OperationMode()
