"""Functions of torch that the timer replaces while it measures.

* A torch function mode sees the calls, outside of all modes that the user has entered: so those
  end as they would without it, whenever the timer begins and ends.
* ``Function.apply``, whose calls no mode sees, is replaced for the whole run, since scripts keep
  it under names of their own (``square = Square.apply``).
* ``torch.compile`` is replaced for the same reason, and the calls of compiled and scripted
  modules are. Each is one call, in which the mode is taken off.

Between timed iterations only the wrappers of ``Function.apply`` and of compiled functions are
called.
"""

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from types import FunctionType
from typing import Any, TypeAlias

from snapconv.guest.guard import Guard
from snapconv.guest.own_frames import calls_original, stands_in
from snapconv.guest.replacement import replaced

# (name, function, args, kwargs, module=None) -> result: a call that is made and recorded
Around: TypeAlias = Callable[..., Any]

# Questions about a tensor: they do no work, and there are many of them.
_QUESTIONS = frozenset(
    "__set__ __delete__ __len__ __hash__ __repr__ __format__ size dim ndimension "
    "stride numel nelement element_size storage_offset is_floating_point is_complex "
    "is_contiguous is_pinned get_device data_ptr untyped_storage storage has_names "
    "register_hook retain_grad requires_grad_ backward grad".split()
)
_PROPERTIES_THAT_WORK = frozenset("T mT H mH real imag".split())


def modes_now() -> list[Any]:
    """Return the function modes that are active in this thread, the outermost first."""
    import torch

    n_modes = torch._C._len_torch_function_stack()
    return [torch._C._get_function_stack_at(index) for index in range(n_modes)]


def change_modes(change: Callable[[list[Any]], Iterable[Any]]) -> None:
    """Replace the stack of modes by what ``change`` makes of it.

    It must keep the program's own modes in their order: a mode that ends takes the innermost one
    off.
    """
    import torch

    modes = modes_now()
    for _ in modes:
        torch._C._pop_torch_function_stack()
    for mode in change(modes):
        torch._C._push_on_torch_function_stack(mode)


@contextmanager
def function_mode(around: Around, guard: Guard, *, inside: Sequence[Any]) -> Iterator[None]:
    """Hand torch functions called in this thread, within ``inside``, to ``around``.

    ``around`` guards itself.
    """
    listener = _mode_type()()
    listener.around = around
    listener.name_of = guard.hook_with_result(name_of, otherwise=lambda _: None)

    def add(modes: list[Any]) -> list[Any]:
        index = _n_outer(modes, inside)
        return [*modes[:index], listener, *modes[index:]]

    change_modes(add)
    try:
        yield
    finally:
        change_modes(lambda modes: [other for other in modes if other is not listener])


def _n_outer(modes: list[Any], outer: Sequence[Any]) -> int:
    """Count the modes that must stay outermost: ``outer``, and that of torch's default device.

    Where ``torch.set_default_device`` ends it, torch takes the outermost mode for it. The mode of
    ``with torch.device(…)`` may be anywhere: it ends by taking the innermost one off.
    """
    import torch

    context = getattr(torch, "_GLOBAL_DEVICE_CONTEXT", None)
    default = getattr(context, "device_context", None)
    n_outer = 0
    while n_outer < len(modes) and (modes[n_outer] in outer or modes[n_outer] is default):
        n_outer += 1
    return n_outer


@functools.cache
def _mode_type() -> Any:
    """Make the type of our modes. It inherits because torch requires that of a mode."""
    from torch.overrides import TorchFunctionMode

    class TimerMode(TorchFunctionMode):  # type: ignore[misc]  # torch counts as Any
        around: Around
        name_of: Callable[[Any], str | None]

        @stands_in
        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            name = self.name_of(func)
            if name is None:
                return func(*args, **(kwargs or {}))
            return self.around(name, func, args, kwargs or {})

    return TimerMode


def name_of(function: Any) -> str | None:
    """Return a torch function's name as in Skyline (``rsub``); None if it answers a question."""
    name = str(getattr(function, "__name__", type(function).__name__))
    if name == "__get__":
        descriptor = getattr(function, "__self__", None)
        name = str(getattr(descriptor, "__name__", name))
        return name if name in _PROPERTIES_THAT_WORK else None
    if name in _QUESTIONS or name.startswith("is_"):
        return None
    return name[2:-2] if name.startswith("__") and name.endswith("__") else name


def patch_function_apply(around: Around, guard: Guard) -> AbstractContextManager[None]:
    """Hand every ``apply`` of a custom autograd function to ``around``, named after its class."""
    import torch

    # A classmethod, and since torch 2.14 a method in C: both are bound to their class by
    # ``__get__``.
    original = torch.autograd.Function.__dict__["apply"]

    @calls_original
    def plain(cls: Any, *args: Any, **kwargs: Any) -> Any:
        return original.__get__(None, cls)(*args, **kwargs)

    def apply(call: Callable[[], Any], cls: Any, *_: Any, **__: Any) -> Any:
        return around(cls.__name__, call, (), {})

    wrapper = classmethod(guard.wrap_call(plain, apply, like=original))
    return replaced(torch.autograd.Function, "apply", wrapper, even_if_wrapped=True)


def compiled_functions(around: Around, guard: Guard) -> AbstractContextManager[None]:
    """Hand every call of what torch.compile makes of a function or a method to ``around``."""
    import torch

    def compile_(call: Callable[[], Any], *_: Any, **__: Any) -> Any:
        result = call()
        # A module is no function; a decorator, or a function returned as it was, is not compiled.
        if isinstance(result, FunctionType) and hasattr(
            result, "_torchdynamo_orig_callable"
        ):
            return _opaque_function(result, around, guard)
        return result

    return guard.replaced(torch, "compile", compile_, even_if_wrapped=True)


def _opaque_function(compiled: Any, around: Around, guard: Guard) -> Callable[..., Any]:
    original = compiled._torchdynamo_orig_callable
    module = getattr(original, "__self__", None)
    if module is None:
        name = f"compiled:{getattr(original, '__name__', '')}"
    else:
        name = _module_name("compiled", module)

    def timed(call: Callable[[], Any], *_: Any, **__: Any) -> Any:
        return around(name, _outside_mode(call), (), {}, module)

    # The wrapper has the attributes of what it wraps: by ``_torchdynamo_orig_callable``, dynamo
    # inlines a compiled function into another that calls it.
    return guard.wrap_call(compiled, timed)


@contextmanager
def opaque_modules(around: Around, guard: Guard) -> Iterator[None]:
    """Hand every call of a compiled or scripted module to ``around``."""
    import torch

    kinds = {"scripted": torch.jit.ScriptModule}
    # Where nothing was compiled it is not there, and importing it takes seconds.
    dynamo = sys.modules.get("torch._dynamo.eval_frame")
    if dynamo is not None:
        kinds["compiled"] = dynamo.OptimizedModule
    with ExitStack() as stack:
        for prefix, kind in kinds.items():
            timed = _opaque_call(prefix, around)
            call = guard.replaced(kind, "__call__", timed, even_if_wrapped=True)
            stack.enter_context(call)
        yield


def _opaque_call(prefix: str, around: Around) -> Callable[..., Any]:
    def timed(call: Callable[[], Any], self: Any, *_: Any, **__: Any) -> Any:
        module = getattr(self, "_orig_mod", self)
        return around(_module_name(prefix, module), _outside_mode(call), (), {}, module)

    return timed


def _module_name(prefix: str, module: Any) -> str:
    """Name a row after the class that the user wrote."""
    return f"{prefix}:{getattr(module, 'original_name', type(module).__name__)}"


def _outside_mode(function: Callable[..., Any]) -> Callable[..., Any]:
    """Take our mode off in a call: in torch.compile's guards it would compile everything anew."""

    @calls_original
    def call(*args: Any, **kwargs: Any) -> Any:
        all_modes = modes_now()
        own_modes = [mode for mode in all_modes if isinstance(mode, _mode_type())]
        index = all_modes.index(own_modes[0]) if own_modes else 0
        change_modes(lambda modes: [mode for mode in modes if mode not in own_modes])
        try:
            return function(*args, **kwargs)
        finally:
            change_modes(lambda modes: [*modes[:index], *own_modes, *modes[index:]])

    return call
