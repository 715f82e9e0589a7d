"""Phases of the program: forward, backward and optimizer steps, and when each began and ended.

The outermost call of a module is a model's. torch's two entries to autograd are wrapped, and optimizers have
hooks for their steps. Every phase is written into the trace too, as an annotation ``snapconv:forward`` and
so on.
"""

import sys
import warnings
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from snapconv.recorder.captured.clock import ClockMarks, now_us
from snapconv.recorder.guard import Guard
from snapconv.recorder.program.own_frames import callers_frame
from snapconv.recorder.replacements import Replacements, step_hooks
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


class Interception:
    """Calls listeners at backward passes and optimizer steps, between ``start`` and ``stop``.

    ``around_backward(call, roots, is_grad)`` runs ``torch.autograd.backward``, or with ``is_grad`` ``grad``;
    ``roots`` is its first argument. The listeners are called in the program's thread, and never raise.
    """

    def __init__(
        self,
        around_backward: Callable[[Callable[[], Any], Any, bool], Any],
        step_begins: Callable[[Any], None],
        step_ends: Callable[[Any], None],
        guard: Guard,
    ) -> None:
        self._around_backward, self._step_begins, self._step_ends = around_backward, step_begins, step_ends
        self._guard = guard
        self._replacements = Replacements(guard, self._place)
        self._hooks = ExitStack()

    def start(self) -> None:
        """Put everything in place."""
        self._replacements.start()

        def before(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._replacements.is_on:
                self._step_begins(optimizer)

        def after(optimizer: Any, _args: Any, _kwargs: Any) -> None:
            if self._replacements.is_on:
                self._step_ends(optimizer)

        self._hooks.enter_context(step_hooks(before, after, self._guard))

    def stop(self, *, in_last_hook: bool = False) -> None:
        """Put back what was there.

        torch fails where a hook is removed while it goes through the hooks of a step: called from one that
        is not the last, this leaves hooks that do nothing, for another ``stop`` to remove.
        """
        self._replacements.stop()
        if in_last_hook or not _is_in_step():
            self._hooks.close()

    def _place(self, replacements: Replacements) -> None:
        import torch

        replacements.wrap(torch.autograd, "backward", self._listening("tensors", is_grad=False))
        replacements.wrap(torch.autograd, "grad", self._listening("outputs", is_grad=True))

    def _listening(self, roots_name: str, *, is_grad: bool) -> Callable[..., Any]:
        def listened(call: Callable[[], Any], *args: Any, **kwargs: Any) -> Any:
            return self._around_backward(call, args[0] if args else kwargs.get(roots_name), is_grad)

        return listened


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


class ModelCalls:
    """The stack of running modules of one thread, seen through torch's global hooks of modules.

    ``begins(module, arguments)`` is called when one is called from outside of all, ``ends(result)`` when that
    call is over: by an exception too, and then without a result. They never raise.
    """

    def __init__(
        self,
        begins: Callable[[Module, tuple[Any, Mapping[str, Any]]], object],
        ends: Callable[[Any], object],
        is_here: Callable[[], bool],
        guard: Guard,
    ) -> None:
        self._begins, self._ends, self._guard = begins, ends, guard
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
            self._begins(module, (args, kwargs))

    def _leave(self, module: "Module", result: Any) -> None:
        if not any(running is module for running in self._running):
            return
        while self._running.pop() is not module:
            pass
        if not self._running:
            self._ends(result)


def _keywords_of(frame: Any) -> Mapping[str, Any]:
    """Return the keyword arguments of a module's call: global hooks are not given them."""
    kwargs = None if frame is None else frame.f_locals.get("kwargs")
    return kwargs if isinstance(kwargs, Mapping) else {}
