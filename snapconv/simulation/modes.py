"""Our functions -> torch's two kinds of modes, whose classes can only be made once torch is there."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from snapconv.recorder.program.own_frames import stands_in
from snapconv.recorder.program.script_signals import deliver_waiting, waiting
from snapconv.simulation.devices.accelerator import is_ordinal

Handler = Callable[[Any, Any, dict[str, Any]], Any]


class Calls:
    """The torch function that the user's code is in, per thread, with its arguments."""

    def __init__(self) -> None:
        self._local = threading.local()

    @property
    def current(self) -> tuple[Any, Any, dict[str, Any]] | None:
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
            is_of_simulation = True

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


def dispatch_mode(handle: Handler) -> Any:
    """Make the TorchDispatchMode that hands every operation to a function.

    In inference mode autograd is not there to take composite operations apart before they come here (`to`,
    `linear`), though a GPU is given their parts. So they go its way after all, by our own kernels too.
    """
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    own = torch.Tensor.__torch_dispatch__

    class OperationMode(TorchDispatchMode):  # type: ignore[misc]
        supports_higher_order_operators = True

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
        ) -> Any:
            kwargs = kwargs or {}
            if any(kind.__torch_dispatch__ is not own for kind in types):
                return NotImplemented  # a wrapper: it takes itself apart, and its parts come here
            if isinstance(func, torch._ops.HigherOrderOperator):
                return _higher(func, args, kwargs, handle)
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
            # True wraps every single operation in torch._disable_dynamo. Our files are not compiled anyway.
            return False

        @classmethod
        def ignore_compile_internals(cls) -> bool:
            # What is compiled is not watched while it is compiled, but when it runs.
            return True

    return OperationMode()


def _higher(func: Any, args: Any, kwargs: dict[str, Any], handle: Handler) -> Any:
    """Handle the operation that compiled code runs with a state of the random numbers: of a checkpoint."""
    import torch

    if func.name() == "run_and_save_rng_state":
        return torch.get_rng_state(), handle(args[0], args[1:], kwargs)
    if func.name() == "run_with_rng_state":
        return handle(args[1], args[2:], kwargs)
    return handle(func, args, kwargs)
