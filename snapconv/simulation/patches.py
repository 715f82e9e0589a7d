"""How torch is changed while a simulation runs: replaced attributes, and modes in every thread.

Everything is put back as it was, also what was not there before.
"""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from functools import cache, partial, wraps
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from snapconv.errors import RecorderError
from snapconv.guest.guard import Guard, is_fault
from snapconv.guest.own_frames import stands_in
from snapconv.guest.replacement import replaced
from snapconv.guest.script_signals import deliver_waiting, waiting
from snapconv.simulation.higher_order import eager_work

Call = tuple[Any, Any, dict[str, Any]]
Handler = Callable[[Any, Any, dict[str, Any]], Any]

_ABSENT = object()


class Patches(ExitStack):
    """A pile of replaced attributes; leaving the context undoes them, last one first."""

    def __init__(self, guard: Guard) -> None:
        super().__init__()
        self._guard = guard

    def set(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute, or add one that the owner itself (not its bases) does not have."""
        self.enter_context(replaced(owner, name, value, even_if_wrapped=True))

    def set_existing(self, owner: Any, name: str, value: Any) -> None:
        """Replace an attribute that this torch has; do nothing where it has none of that name."""
        if hasattr(owner, name):
            self.set(owner, name, value)

    def wrap(self, owner: Any, name: str, work: Callable[..., Any]) -> None:
        """Have a function's work done by ``work(function, …)``; none stays none."""
        if hasattr(owner, name):
            self.set(owner, name, self.guarded(work, getattr(owner, name)))

    def guarded(
        self, work: Callable[..., Any], real: Callable[..., Any]
    ) -> Callable[..., Any]:
        """Make a function that does ``work(real, …)``; if that fails, torch's does it on the CPU.

        What neither of them can do is an error of the program's, and so is a refusal of ours.
        """
        guard = self._guard

        @stands_in
        @wraps(real)
        def guarded(*args: Any, **kwargs: Any) -> Any:
            try:
                result = work(real, *args, **kwargs)
            except BaseException as failure:
                if isinstance(failure, RecorderError):
                    raise
                if not is_fault(failure):
                    guard.takes(failure)
                    raise
                result = _ABSENT
                with suppress(Exception):  # the first error has more information
                    result = real(*map(_cpu_for_cuda, args), **_cpu_arguments(kwargs))
                if result is _ABSENT:
                    raise
                guard.keep(failure)
            if waiting:
                deliver_waiting()
            return result

        return guarded


def _cpu_arguments(kwargs: dict[str, Any]) -> dict[str, Any]:
    """Name the CPU where a call names a device."""
    arguments = {name: _cpu_for_cuda(value) for name, value in kwargs.items()}
    if arguments.get("device") is not None:
        arguments["device"] = "cpu"
    return arguments


def _cpu_for_cuda(value: Any) -> Any:
    is_device = type(value).__name__ == "device" and getattr(value, "type", "") == "cuda"
    is_name = isinstance(value, str) and value.partition(":")[0] == "cuda"
    return "cpu" if is_device or is_name else value


def answer(value: Any) -> Callable[..., Any]:
    """Make a function that returns one value for any arguments."""
    return lambda *_, **__: value


do_nothing = answer(None)
answer_yes = answer(value=True)
answer_no = answer(value=False)


def is_ordinal(value: Any) -> bool:
    """Say whether a device argument is a bare number: the accelerator's device of that number."""
    return isinstance(value, int) and not isinstance(value, bool)


def patch_threads(enter_modes: Callable[[], ExitStack], patches: Patches) -> None:
    """Let every new thread of this process enter the modes, which are per thread, first of all."""
    pid = os.getpid()
    real = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]

    def bootstrap(thread: Any) -> None:
        is_child = os.getpid() != pid  # a forked worker computes on the CPU
        with nullcontext() if is_child else enter_modes():
            real(thread)

    # Not `run`, which subclasses override.
    patches.set(threading.Thread, "_bootstrap_inner", bootstrap)


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
        """Let a call that is no torch function be the current one within the context."""
        before = self.current
        self._local.call = (func, args, {})
        try:
            yield
        finally:
            self._local.call = before

    def mode(self) -> Any:
        """Make the mode that keeps ``current``; a bare device number becomes a simulated device."""
        local = self._local

        class CallMode(TorchFunctionMode):  # type: ignore[misc]
            @stands_in
            def __torch_function__(
                self,
                func: Any,
                types: Any,
                args: Any = (),
                kwargs: dict[str, Any] | None = None,
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


# The namespaces of torch's own operations, in 2.13 and 2.15.
_OF_TORCH = frozenset(
    "aten prim prims profiler c10d _c10d_functional _c10d_functional_autograd c10d_functional "
    "_dtensor _native _native_aot _quantized coor debugprims export flex_gemm flex_lib fsdp "
    "inductor inductor_prims mempool mkl mkldnn mkldnn_prepacked onednn quantized "
    "quantized_decomposed rngprims sparse streams symm_mem".split()
)


class LibraryKernel(TorchDispatchMode):  # type: ignore[misc]
    """Lets a library's kernel in Python, which no mode of ours watches, make CPU tensors."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        args = [*map(_cpu_for_cuda, args)]
        kwargs = _cpu_arguments(kwargs or {})
        return (
            self.run(func, args, kwargs) if is_of_library(func) else func(*args, **kwargs)
        )

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run a kernel by its key, if there is one: a plain call would leave the mode."""
        keys = torch._C.DispatchKey
        # The key that the kernel is registered for: one in Python for all devices crashes by
        # the CPU's (torch 2.13).
        for key in (keys.CPU, keys.CompositeExplicitAutograd):
            if torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key):
                with self:
                    return func._op_dk(key, *args, **kwargs)
        return func(*args, **kwargs)


def is_of_library(func: Any) -> bool:
    """Say whether an operation is no one of torch's own."""
    return getattr(func, "namespace", "aten") not in _OF_TORCH


def _visible_work(
    func: Any, args: Any, kwargs: dict[str, Any], is_on_device: Callable[[Any], bool]
) -> Callable[[], Any] | None:
    """Return an operation's work where it consists of operations that are to be seen."""
    if func.namespace == "higher_order":
        return eager_work(func, args, kwargs)
    if func.namespace == "fsdp":  # copies into, and views of, what it is given
        keys = torch._C.DispatchKey
        has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), "CPU")
        # Since torch 2.15 one of them is made of others in C++, and has no kernel of the CPU.
        key = keys.CPU if has_kernel else keys.CompositeExplicitAutograd
        return partial(func._op_dk, key, *args, **kwargs)
    if not is_of_library(func):
        return None
    if _is_for_cuda_alone(func) and is_on_device((args, kwargs)):
        return partial(func._op_dk, torch._C.DispatchKey.CUDA, *args, **kwargs)
    if func._schema.name in OPDEFS:  # a torch.library.custom_op
        return partial(OPDEFS[func._schema.name]._init_fn, *args, **kwargs)
    return None


def _is_for_cuda_alone(func: Any) -> bool:
    """Say whether a library has implemented an operation in Python, for CUDA and not for the CPU.

    Where it has both, that for CUDA is often a call of native code, for which there is no GPU.
    """
    name = func.name()
    has_kernel = torch._C._dispatch_has_computed_kernel_for_dispatch_key
    is_in_python = f"{name.replace('::', '/')}/CUDA" in torch.library._impls
    return is_in_python and not has_kernel(name, "CPU")


@cache
def _composite_key(func: Any, *, is_inference: bool) -> Any:
    """Return the key of the kernel that takes an operation apart; None for one that has no parts.

    What only Python takes apart (`native_batch_norm`, torch 2.13) has none; to call it all the same
    would crash. Below autograd, where wrappers are, its own kernels would record the operation.
    """
    if not getattr(func, "_can_decompose", bool)():
        return None
    keys = torch._C.DispatchKey
    has_kernel = partial(torch._C._dispatch_has_kernel_for_dispatch_key, func.name())
    if is_inference and has_kernel(keys.AutogradCPU):
        return keys.AutogradCPU
    # Beside kernels for devices, the parts are for those that have none (`silu_backward`).
    has_parts = has_kernel(keys.CompositeImplicitAutograd) and not has_kernel(keys.CPU)
    return keys.CompositeImplicitAutograd if has_parts else None


def dispatch_mode(handle: Handler, is_on_device: Callable[[Any], bool]) -> Any:
    """Make the TorchDispatchMode that hands every operation to a function.

    In inference mode, and in the code of a wrapper, autograd is not there to take composite
    operations apart before they come here (`to`, `linear`), though a GPU is given their parts. So
    they go its way after all, by our own kernels too.
    """
    plain_dispatch = torch.Tensor.__torch_dispatch__
    find_mode = torch._C._get_dispatch_mode
    fake = torch._C._TorchDispatchModeKey.FAKE

    class OperationMode(TorchDispatchMode):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self,
            func: Any,
            types: Any,
            args: Any = (),
            kwargs: dict[str, Any] | None = None,
        ) -> Any:
            kwargs = kwargs or {}
            if find_mode(fake) is not None:
                # It is called after this one, and has no memory (DTensor's shapes).
                return func(*args, **kwargs)
            if any(kind.__torch_dispatch__ is not plain_dispatch for kind in types):
                return NotImplemented  # a wrapper: it takes itself apart, and its parts come here
            work = _visible_work(func, args, kwargs, is_on_device)
            if work is not None:
                with self:
                    return work()
            key = _composite_key(func, is_inference=torch.is_inference_mode_enabled())
            if key is None:
                return handle(func, args, kwargs)
            with self:
                return func._op_dk(key, *args, **kwargs)

        @classmethod
        def _should_skip_dynamo(cls) -> bool:
            # True wraps every single operation in torch._disable_dynamo, and nothing is compiled
            # here.
            return False

    return OperationMode()
