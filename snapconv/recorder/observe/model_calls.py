"""Which modules are running, seen through torch's global module hooks: the outermost call is a model's."""

import warnings
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from snapconv.recorder.guard import Guard
from snapconv.recorder.program.own_frames import callers_frame
from snapconv.recorder.torch_types import Module

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
