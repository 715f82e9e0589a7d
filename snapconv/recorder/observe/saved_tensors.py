"""What autograd saves for backward, seen without keeping any of it.

torch has one stack of hooks for saved tensors per thread, and only the innermost pair is called. So ours
are put there only where nobody else's are, and taken away before anyone else could take them for theirs.

What passes through hooks comes back as a new tensor of the same memory. To torch's own operations that is
all the same, but a custom function may ask its parameter for more, such as the ``main_grad`` that fused
kernels add to: it saves its tensors without our hooks, and reports them itself (custom_functions.py).
"""

import sys
import threading
from collections.abc import Callable
from typing import Any

from snapconv.recorder.guard import Guard
from snapconv.recorder.observe.custom_functions import CustomFunctions
from snapconv.recorder.observe.hooks_in_place import HooksInPlace
from snapconv.recorder.program.own_frames import for_program
from snapconv.recorder.torch_types import Tensor


class SavedTensors:
    """Calls ``note`` with every tensor that is saved for backward between ``open`` and ``close``."""

    def __init__(self, note: "Callable[[Tensor], None]", guard: Guard) -> None:
        self._note, self._guard = note, guard
        self._pair: tuple[Any, Any] = self._hooks()
        self._is_open = self._is_there = self._is_kept_from_it = False
        # To be opened when a custom function has saved its tensors.
        self._is_waiting = False
        self._thread = 0
        self._disable: Any = None
        self._in_place = HooksInPlace()
        self._functions = CustomFunctions(self._make_way, self._saved_by_function, guard)

    def start(self) -> None:
        """Make way for whoever switches hooks off, as torch.func does: it refuses to run above any."""
        autograd = _autograd()
        self._thread = threading.get_ident()
        self._disable = disable = getattr(autograd, "_saved_tensors_hooks_disable", None)
        if disable is None:
            return
        self._in_place.start()

        def disable_without_ours(*args: Any, **kwargs: Any) -> Any:
            # After a failure of ours too: torch would refuse with our hooks in place.
            self._guard.finish(self.close)
            return disable(*args, **kwargs)

        autograd._saved_tensors_hooks_disable = self._guard.wrap_call(
            disable_without_ours, lambda call, *_, **__: call(), like=disable
        )
        self._functions.start()

    def stop(self) -> None:
        """Close, and leave torch as it was."""
        self.close()
        if self._disable is not None:
            _autograd()._saved_tensors_hooks_disable = self._disable
            self._disable = None
            self._functions.stop()
            self._in_place.stop()

    def open(self) -> None:
        """Begin, unless other hooks are in place or hooks are switched off."""
        if self._disable is None or threading.get_ident() != self._thread:
            return
        self._is_waiting = self._functions.is_saving
        if self._is_waiting:
            return
        if not self._is_there and self._in_place.are(None) and _autograd()._saved_tensors_hooks_is_enabled():
            self._keep_from_being_compiled()
            _autograd()._push_saved_tensors_default_hooks(*self._pair)
            self._is_there = True
        self._is_open = self._is_there

    def close(self) -> None:
        """End. Under hooks that were put above ours, ours stay where they are and note nothing."""
        self._is_open = self._is_waiting = False
        if self._is_on_top():
            _autograd()._pop_saved_tensors_default_hooks()
            self._is_there = False

    def _keep_from_being_compiled(self) -> None:
        """Called in the middle of compiled code, the hooks would be compiled as well.

        Only where something may be: to say so takes a second, and a little of every call.
        """
        if not self._is_kept_from_it and "torch._dynamo" in sys.modules:
            not_compiled = _torch().compiler.disable
            pack, unpack = self._hooks()
            self._pair = not_compiled(pack), not_compiled(unpack)
            self._is_kept_from_it = True

    def _hooks(self) -> tuple[Any, Any]:
        return (
            self._guard.hook_with_result(self._pack, otherwise=lambda tensor: (tensor, None)),
            self._guard.hook_with_result(self._unpack, otherwise=lambda packed: packed[0]),
        )

    def _is_on_top(self) -> bool:
        """Whether what is saved in this thread now comes to our hooks."""
        return self._is_there and threading.get_ident() == self._thread and self._in_place.are(self._pair)

    def _make_way(self) -> bool:
        """Close for a custom function, and return whether it closed: not where others' hooks are on top."""
        was_on_top = self._is_on_top()
        if was_on_top:
            self.close()
            self._is_waiting = True
        return was_on_top

    def _saved_by_function(self, tensors: "tuple[Tensor | None, ...]") -> None:
        for tensor in tensors:
            if tensor is not None:
                self._note(tensor)
        if self._is_waiting:
            self.open()

    def _pack(self, tensor: "Tensor") -> "tuple[Tensor, int | None]":
        if self._is_open:
            self._note(tensor)
        # A node that saves its own output would hold itself for ever if it got the output back. A detached
        # one has the same memory and version.
        kept = tensor if tensor.is_leaf else tensor.detach()
        return kept, tensor._version

    @staticmethod
    def _unpack(packed: "tuple[Tensor, int | None]") -> "Tensor":
        tensor, version = packed
        # torch leaves this check to whoever has hooks.
        if version is not None and tensor._version != version:
            error = RuntimeError(
                "one of the variables needed for gradient computation has been modified by an inplace "
                f"operation: [{tensor.type()} {list(tensor.shape)}] is at version {tensor._version}; "
                f"expected version {version} instead. Hint: enable anomaly detection to find the operation "
                "that failed to compute its gradient, with torch.autograd.set_detect_anomaly(True)."
            )
            raise for_program(error)
        return tensor


def _torch() -> Any:
    import torch

    return torch


def _autograd() -> Any:
    return _torch()._C._autograd
