"""What the program builds and copies: modules and where, optimizers, and what ``copy.deepcopy`` makes.

Modules are referenced weakly. Parameters are not referenced at all, not even weakly: a weak reference to
one makes ``torch.utils.swap_tensors`` refuse it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from snapconv.recorder.guard import Guard
from snapconv.recorder.program.own_frames import callers_frame, is_ours
from snapconv.recorder.torch_surface import Module, Tensor

_MAX_FRAMES = 100

Frame = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class Registration:
    """When and where a tensor was registered; ``tensor_id`` is that of the object."""

    number: int
    tensor_id: int
    frames: tuple[Frame, ...]


@dataclass(slots=True)
class _Seen:
    number: int
    registrations: dict[str, list[Registration]] = field(default_factory=dict)


class Registrations:
    """Every live module that the program built since ``start``, in the order in which they were seen."""

    def __init__(self, is_here: Callable[[], bool], guard: Guard) -> None:
        self._is_owner_thread, self._guard = is_here, guard
        self._seen: Any = None  # torch's WeakIdKeyDictionary: modules may define __eq__
        self._n_seen = self._n_registered = 0
        self._handles: list[Any] = []
        self.is_changed = True

    def start(self) -> None:
        """Begin to watch."""
        from torch.nn.modules import module

        def on_tensor(owner: "Module", name: str, tensor: "Tensor | None") -> None:
            if self._is_owner_thread() and tensor is not None:
                self._register(owner, name, tensor)

        def on_module(owner: "Module", _name: str, child: "Module | None") -> None:
            if self._is_owner_thread() and child is not None:
                self.add(owner)
                self.add(child)

        self._handles = [
            module.register_module_parameter_registration_hook(self._guard.hook(on_tensor)),
            module.register_module_buffer_registration_hook(self._guard.hook(on_tensor)),
            module.register_module_module_registration_hook(self._guard.hook(on_module)),
        ]

    def stop(self) -> None:
        """Stop watching; what was seen stays known."""
        while self._handles:
            self._handles.pop().remove()

    def add(self, module: "Module") -> int:
        """Make a module known and return its number."""
        if self._seen is None:
            from torch.utils.weak import WeakIdKeyDictionary

            self._seen = WeakIdKeyDictionary()
        seen = self._seen.get(module)
        if seen is None:
            self._n_seen += 1
            self._seen[module] = seen = _Seen(self._n_seen)
            self.is_changed = True
        return int(seen.number)

    def modules(self) -> "list[Module]":
        """All live modules that are known, in the order in which they were seen."""
        return [] if self._seen is None else list(self._seen.keys())

    def frames(self, places: "Iterable[tuple[Module, str]]", tensor: "Tensor") -> tuple[Frame, ...]:
        """Where a tensor that stands in these places was registered first, leaf first.

        Conversions may put new objects into old places: then the oldest registration of a place counts.
        """
        found = [
            registration
            for module, name in places
            if self._seen is not None and (seen := self._seen.get(module)) is not None
            for registration in seen.registrations.get(name, ())
        ]
        own = [registration for registration in found if registration.tensor_id == id(tensor)]
        first = min(own or found, key=lambda registration: registration.number, default=None)
        return first.frames if first else ()

    def _register(self, owner: "Module", name: str, tensor: "Tensor") -> None:
        self.add(owner)
        self.is_changed = True
        self._n_registered += 1
        # The innermost frame that is not ours is that of torch's register_parameter.
        registration = Registration(self._n_registered, id(tensor), _frames(callers_frame()))
        slot = self._seen[owner].registrations.setdefault(name, [])
        # The first shows where the place was made, the last what is in it now.
        slot[1:] = [registration]


def _frames(frame: FrameType | None) -> tuple[Frame, ...]:
    """The program's frames, leaf first, down to where it was called from the recorder."""
    found: list[Frame] = []
    while frame is not None and len(found) < _MAX_FRAMES and not is_ours(frame.f_code.co_filename):
        found.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(found)


class NewOptimizers:
    """Calls ``listener`` with every optimizer of torch's that is built between ``start`` and ``stop``."""

    def __init__(self, listener: Callable[[Any], None], guard: Guard) -> None:
        self._listener, self._guard = listener, guard
        self._is_on = False
        self._replaced: tuple[Any, Any] | None = None

    def start(self) -> None:
        """Begin to listen."""
        from torch.optim import Optimizer

        self._is_on = True
        if self._replaced is not None:
            return
        original = Optimizer.__init__

        def built(build: Callable[[], None], optimizer: Any, *_: Any, **__: Any) -> None:
            build()
            if self._is_on:
                self._listener(optimizer)

        Optimizer.__init__ = self._guard.wrap_call(original, built)
        self._replaced = original, Optimizer.__init__

    def stop(self) -> None:
        """Put back what was there; what others have put around ours stays, and ours with it, idle."""
        from torch.optim import Optimizer

        self._is_on = False
        if self._replaced is not None and Optimizer.__init__ is self._replaced[1]:
            Optimizer.__init__ = self._replaced[0]
            self._replaced = None


class CopyListener(Protocol):
    """Who wants to know; never to raise."""

    def tensor_copied(self, original: "Tensor", copy: "Tensor") -> None:
        """A tensor was copied with its memory."""

    def module_restored(self, module: "Module") -> None:
        """A module got its state from a copy or from a pickle."""


class Copies:
    """Wraps what ``deepcopy`` and ``pickle`` call of tensors and modules, between ``start`` and ``stop``."""

    def __init__(self, listener: CopyListener, guard: Guard) -> None:
        self._listener, self._guard = listener, guard
        self._is_on = False
        self._replaced: list[tuple[Any, str, Any, Any]] = []

    def start(self) -> None:
        """Begin to listen."""
        import torch

        self._is_on = True
        if self._replaced:
            return
        for kind in (torch.Tensor, torch.nn.Parameter):
            if "__deepcopy__" in vars(kind):
                self._wrap(kind, "__deepcopy__", self._copying)
        if "__setstate__" in vars(torch.nn.Module):
            self._wrap(torch.nn.Module, "__setstate__", self._restoring)

    def stop(self) -> None:
        """Put back what was there; what others have put around ours stays, and ours with it, idle."""
        self._is_on = False
        for place in list(self._replaced):
            kind, name, original, ours = place
            if vars(kind).get(name) is ours:
                setattr(kind, name, original)
                self._replaced.remove(place)

    def _wrap(self, kind: Any, name: str, around: Callable[[Any], Any]) -> None:
        original = vars(kind)[name]
        ours = around(original)
        setattr(kind, name, ours)
        self._replaced.append((kind, name, original, ours))

    def _copying(self, original: Any) -> Any:
        def copied(call: Callable[[], Any], tensor: Any, *_: Any, **__: Any) -> Any:
            copy = call()
            if self._is_on:
                self._listener.tensor_copied(tensor, copy)
            return copy

        return self._guard.wrap_call(original, copied)

    def _restoring(self, original: Any) -> Any:
        def restored(call: Callable[[], Any], module: Any, *_: Any, **__: Any) -> Any:
            result = call()
            if self._is_on:
                self._listener.module_restored(module)
            return result

        return self._guard.wrap_call(original, restored)
