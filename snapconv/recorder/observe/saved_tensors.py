"""Tensors that autograd saves for backward, seen without keeping any of them.

torch has one stack of hooks for saved tensors per thread, and only the innermost pair is called. So
ours are put there only where nobody else's are, and taken away before anyone else could take them
for theirs.

Hooks return a new tensor of the same memory. torch's own operations accept it, but a custom
function may need the original object, such as a parameter with the ``main_grad`` that fused kernels
add to. So its tensors are saved without our hooks and recorded afterwards.
"""

import sys
import threading
import weakref
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Any

from snapconv.guest.guard import Guard
from snapconv.guest.own_frames import calls_original, for_program
from snapconv.guest.replacement import replaced
from snapconv.guest.torch_surface import Tensor

# Saves an input of a checkpoint for its second forward pass, since torch 2.13.
_SAVE_INPUT = "_make_saved_tensor"


class _UntilSaved(tuple[Any, ...]):
    """The tuple that a context has for forward mode; it inherits because torch requires a tuple."""

    tensors: tuple[Any, ...]
    when_freed: Callable[[], object]

    def __del__(self) -> None:
        self.when_freed()


class SavedTensors:
    """Calls ``note`` with every tensor saved for backward between ``open`` and ``close``."""

    _is_open = _is_pushed = _is_excluded = False
    # Functions that have named tensors which are not saved yet, and whether to open when they are.
    _n_saving = 0
    _is_waiting = False
    _thread: int | None = None

    def __init__(self, note: Callable[[Tensor], None], guard: Guard) -> None:
        self._note = note
        self._guard = guard
        self._pair: tuple[Any, Any] = self._hooks()
        self._parts = ExitStack()

    def start(self) -> None:
        """Prepare to remove our hooks in custom functions and torch.func, which refuses hooks."""
        import torch

        autograd = torch._C._autograd
        context = torch.autograd.function.FunctionCtx
        before = self._close_after_failure
        self._thread = threading.get_ident()
        self._replace(autograd, "_saved_tensors_hooks_disable", self.close, _call)
        self._replace(context, "save_for_backward", before, self._named_for_backward)
        self._replace(context, "save_for_forward", before, self._named_for_forward)
        checkpoint = torch.utils.checkpoint
        if hasattr(checkpoint, _SAVE_INPUT):
            self._replace(checkpoint, _SAVE_INPUT, before, self._saved_by_checkpoint)

    def _close_after_failure(self) -> None:
        if self._guard.is_off:
            self._make_way()

    def _replace(
        self, holder: Any, name: str, before: Callable[[], object], work: Callable[..., Any]
    ) -> None:
        """Replace a function; ``before`` runs after a failure too: our hooks may be in place."""
        original = getattr(holder, name)

        @calls_original
        def plain(*arguments: Any, **keywords: Any) -> Any:
            self._guard.finish(before)
            return original(*arguments, **keywords)

        wrapper = self._guard.wrap_call(plain, work, like=original)
        self._parts.enter_context(replaced(holder, name, wrapper, even_if_wrapped=True))

    def stop(self) -> None:
        """Close, and leave torch as it was."""
        self.close()
        self._thread = None
        self._parts.close()

    def open(self) -> None:
        """Push our hooks and note tensors, unless others are in place or hooks are disabled."""
        if threading.get_ident() != self._thread:
            return
        self._is_waiting = self._n_saving > 0
        if self._is_waiting:
            return
        autograd = _autograd()
        is_free = not self._is_pushed and _innermost() is None
        if is_free and autograd._saved_tensors_hooks_is_enabled():
            self._keep_from_being_compiled()
            autograd._push_saved_tensors_default_hooks(*self._pair)
            self._is_pushed = True
        self._is_open = self._is_pushed

    def close(self) -> None:
        """Stop noting tensors, and pop our hooks unless others lie above them."""
        self._is_open = self._is_waiting = False
        if self._is_on_top():
            _autograd()._pop_saved_tensors_default_hooks()
            self._is_pushed = False

    def _keep_from_being_compiled(self) -> None:
        """Exclude the hooks from torch.compile once it is loaded, as this takes a second."""
        if not self._is_excluded and "torch._dynamo" in sys.modules:
            disable = sys.modules["torch"].compiler.disable
            pack, unpack = self._hooks()
            self._pair = disable(pack), disable(unpack)
            self._is_excluded = True

    def _hooks(self) -> tuple[Any, Any]:
        pack = self._guard.hook_with_result(
            self._pack, otherwise=lambda tensor: (tensor, None)
        )
        unpack = self._guard.hook_with_result(
            self._unpack, otherwise=lambda packed: packed[0]
        )
        return pack, unpack

    def _is_on_top(self) -> bool:
        """Return whether tensors that this thread saves now come to our hooks."""
        if not self._is_pushed or threading.get_ident() != self._thread:
            return False
        return bool(_innermost() == self._pair)

    def _pack(self, tensor: Tensor) -> tuple[Tensor, int | None]:
        if self._is_open:
            self._note(tensor)
        # A node that saves its own output would hold itself for ever if it got the output back. A
        # detached one has the same memory and version.
        stored = tensor if tensor.is_leaf else tensor.detach()
        return stored, tensor._version

    @staticmethod
    def _unpack(packed: tuple[Tensor, int | None]) -> Tensor:
        tensor, version = packed
        # torch leaves this check to whoever has hooks.
        if version is not None and tensor._version != version:
            description = f"{tensor.type()} {list(tensor.shape)}"
            error = RuntimeError(
                "one of the variables needed for gradient computation has been modified by an "
                f"inplace operation: [{description}] is at version {tensor._version}; "
                f"expected version {version} instead. Hint: enable anomaly detection to find the "
                "operation that failed to compute its gradient, with "
                "torch.autograd.set_detect_anomaly(True)."
            )
            raise for_program(error)
        return tensor

    def _saved_by_checkpoint(
        self, call: Callable[[], Any], tensor: Tensor, *_: Any, **__: Any
    ) -> Any:
        """Save an input without our hooks: the second pass may need the original object too."""
        was_open = self._is_open and self._is_on_top()
        if was_open:
            self.close()
        saved = call()
        if was_open:
            self._note(tensor)
            self.open()
        return saved

    # --- custom functions, which save their tensors without our hooks

    def _named_for_backward(
        self, call: Callable[[], Any], context: Any, *tensors: Any
    ) -> Any:
        import torch

        result = call()
        # Nothing is ever saved of a context that a program made itself.
        if isinstance(context, torch._C._FunctionBase):
            is_waiting = isinstance(context.saved_for_forward, _UntilSaved)
            if is_waiting or self._make_way():
                self._wait(context, tensors)
        return result

    def _named_for_forward(self, call: Callable[[], Any], context: Any, *_: Any) -> Any:
        """Put our tuple back where the program replaces it."""
        former = getattr(context, "saved_for_forward", None)
        result = call()
        if isinstance(former, _UntilSaved):
            self._wait(context, former.tensors)
        return result

    def _make_way(self) -> bool:
        """Close for a custom function unless others' hooks are on top; return whether it closed."""
        was_on_top = self._is_on_top()
        if was_on_top:
            self.close()
            self._is_waiting = True
        return was_on_top

    def _wait(self, context: Any, tensors: tuple[Any, ...]) -> None:
        waiting = _UntilSaved(context.saved_for_forward or ())
        waiting.tensors = tensors
        waiting.when_freed = partial(
            self._guard.run, self._saved, weakref.ref(context), tensors
        )
        self._n_saving += 1
        context.saved_for_forward = waiting

    def _saved(self, context: weakref.ref[Any], tensors: tuple[Tensor | None, ...]) -> None:
        """Note the tensors; a call that failed, or has no gradient, has saved nothing."""
        self._n_saving -= 1
        node = context()
        if node is not None and node._raw_saved_tensors:
            for tensor in tensors:
                if tensor is not None:
                    self._note(tensor)
        if self._is_waiting:
            self.open()


def _call(call: Callable[[], Any], *_: Any, **__: Any) -> Any:
    """Do nothing around a call."""
    return call()


def _innermost() -> Any:
    """Return the pair of hooks that is called in this thread, or None."""
    return _autograd()._top_saved_tensors_default_hooks(True)


def _autograd() -> Any:
    import torch

    return torch._C._autograd
