"""What the program is doing: forward, backward or an optimizer's step, and when each began and ended.

The outermost call of a module is a model's. torch's two entries to autograd are wrapped, and optimizers have
hooks for their steps. Every phase is written into the trace too, as an annotation ``snapconv:forward`` and
so on.
"""

import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from snapconv.recorder.captured.clock import ClockMarks, now_us
from snapconv.recorder.guard import Guard
from snapconv.recorder.program.own_frames import callers_frame
from snapconv.recorder.torch_surface import Module

FORWARD, BACKWARD, OPTIMIZER = "forward", "backward", "optimizer"

_MAX_PHASES = 100_000
_OPTIMIZER_FILE = str(Path("torch", "optim", "optimizer.py"))


@dataclass(slots=True)
class PhaseRow:
    """One phase; ``ended_us`` is None while it lasts."""

    phase: str
    iteration: int
    began_us: int
    ended_us: int | None = None


class PhaseLog:
    """The phases so far, one at a time."""

    def __init__(self, clock: ClockMarks) -> None:
        self.rows: deque[PhaseRow] = deque(maxlen=_MAX_PHASES)
        self._clock = clock
        self._open: PhaseRow | None = None
        self._range: Any = None

    @property
    def current(self) -> str | None:
        """The phase that lasts."""
        return self._open.phase if self._open else None

    def begin(self, phase: str, iteration: int) -> None:
        """Begin a phase, which ends the one before."""
        self.end()
        import torch

        self._range = torch.autograd.profiler.record_function(f"snapconv:{phase}")
        before = now_us()
        self._range.__enter__()
        after = now_us()
        self._clock.add(f"snapconv:{phase}", before, after)
        self._open = PhaseRow(phase, iteration, before)
        self.rows.append(self._open)

    def end(self) -> None:
        """End the phase that lasts, if one does."""
        phase, self._open = self._open, None
        if phase is None:
            return
        lasting, self._range = self._range, None
        lasting.__exit__(None, None, None)
        phase.ended_us = now_us()


class Listener(Protocol):
    """Who wants to know; called in the program's thread, and never to raise."""

    def backward_begins(self, roots: Any, *, is_grad: bool) -> None:
        """``torch.autograd.backward`` (or ``grad``) is entered; ``roots`` is its first argument."""

    def backward_ends(self, *, is_grad: bool) -> None:
        """It is left, by an exception too."""

    def step_begins(self, optimizer: Any) -> None:
        """An optimizer begins its step."""

    def step_ends(self, optimizer: Any) -> None:
        """An optimizer has finished its step."""


class Interception:
    """Tells a listener of backward passes and optimizer steps, between ``start`` and ``stop``."""

    def __init__(self, listener: Listener, guard: Guard) -> None:
        self._listener, self._guard = listener, guard
        # By name: what torch had, and what stands in for it.
        self._replaced: dict[str, tuple[Any, Any]] = {}
        self._handles: list[Any] = []
        self._is_on = False

    def start(self) -> None:
        """Put everything in place."""
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

        for name in ("backward", "grad"):
            if name not in self._replaced:
                original = getattr(torch.autograd, name)
                self._replaced[name] = original, self._wrapped(original, is_grad=name == "grad")
                setattr(torch.autograd, name, self._replaced[name][1])

        def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._is_on:
                self._listener.step_begins(optimizer)

        def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._is_on:
                self._listener.step_ends(optimizer)

        self._handles = [
            register_optimizer_step_pre_hook(self._guard.hook(before)),
            register_optimizer_step_post_hook(self._guard.hook(after)),
        ]
        self._is_on = True

    def stop(self, *, in_last_hook: bool = False) -> None:
        """Put back what was there.

        What others have put around ours stays, and so ours does, idle, for another ``stop`` to take away.
        torch fails where a hook is removed while it goes through the hooks of a step: called from one that
        is not the last, this leaves hooks that do nothing, for another ``stop`` to remove.
        """
        import torch

        self._is_on = False
        for name, (original, ours) in list(self._replaced.items()):
            if getattr(torch.autograd, name) is ours:
                setattr(torch.autograd, name, original)
                del self._replaced[name]
        if in_last_hook or not _is_in_step():
            while self._handles:
                self._handles.pop().remove()

    def _wrapped(self, original: Callable[..., Any], *, is_grad: bool) -> Callable[..., Any]:
        def listened(call: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
            if not self._is_on:
                return call()
            roots = args[0] if args else kwargs.get("outputs" if is_grad else "tensors")
            self._listener.backward_begins(roots, is_grad=is_grad)
            try:
                return call()
            finally:
                self._listener.backward_ends(is_grad=is_grad)

        return self._guard.wrap_call(original, listened)


def _is_in_step() -> bool:
    """Whether a step of an optimizer is among the callers."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.endswith(_OPTIMIZER_FILE):
            return True
        frame = frame.f_back
    return False


# The warning of torch.compile about hooks such as ours: the program did not cause it.
_WARNING = "Using `torch.compile\\(module\\)` when there are global hooks"


class CallListener(Protocol):
    """Who wants to know of outermost calls; never to raise."""

    def model_call_begins(self, module: "Module", arguments: tuple[Any, Mapping[str, Any]]) -> None:
        """A module is called from outside of all modules."""

    def model_call_ends(self, result: Any) -> None:
        """That call is over, by an exception too: then without a result."""


class ModelCalls:
    """Keeps the stack of running modules of one thread, and notifies a listener of the outermost ones."""

    def __init__(self, listener: CallListener, is_here: Callable[[], bool], guard: Guard) -> None:
        self._listener, self._guard = listener, guard
        self._is_owner_thread = is_here
        self._running: list[Module] = []
        self._handles: list[Any] = []
        self._filter: Any = None

    @property
    def innermost(self) -> "Module | None":
        """The module whose forward runs."""
        return self._running[-1] if self._running else None

    def start(self) -> None:
        """Put the hooks in place."""
        from torch.nn.modules import module as torch_module

        def before(module: "Module", args: Any) -> None:
            if self._is_owner_thread():
                # The frame of torch's own _call_impl, whose arguments live as long as it does.
                self._enter(module, args, {} if self._running else _keywords_of(callers_frame()))

        def after(module: "Module", _args: Any, result: Any) -> None:
            if self._is_owner_thread():
                self._leave(module, result)

        self._handles = [
            torch_module.register_module_forward_pre_hook(self._guard.hook(before)),
            torch_module.register_module_forward_hook(self._guard.hook(after), always_call=True),
        ]
        warnings.filterwarnings("ignore", message=_WARNING, category=UserWarning)
        self._filter = warnings.filters[0]

    def stop(self) -> None:
        """Take the hooks away."""
        self.forget()
        while self._handles:
            self._handles.pop().remove()
        if self._filter in warnings.filters:
            warnings.filters.remove(self._filter)  # type: ignore[attr-defined]  # it is a list

    def forget(self) -> None:
        """Take nothing as running: between iterations nothing is."""
        self._running.clear()

    def _enter(self, module: "Module", args: Any, kwargs: Mapping[str, Any]) -> None:
        self._running.append(module)
        if len(self._running) == 1:
            self._listener.model_call_begins(module, (args, kwargs))

    def _leave(self, module: "Module", result: Any) -> None:
        if not any(running is module for running in self._running):
            return
        while self._running.pop() is not module:
            pass
        if not self._running:
            self._listener.model_call_ends(result)


def _keywords_of(frame: Any) -> Mapping[str, Any]:
    """The keyword arguments of a module's call: global hooks are not given them."""
    kwargs = None if frame is None else frame.f_locals.get("kwargs")
    return kwargs if isinstance(kwargs, Mapping) else {}
