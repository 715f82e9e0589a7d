"""Objects that the program builds and copies: modules and their places, optimizers, deep copies.

Modules are referenced weakly. Parameters are not referenced at all, not even weakly: a weak reference to
one makes ``torch.utils.swap_tensors`` refuse it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

from snapconv.recorder.guard import Guard
from snapconv.recorder.program.own_frames import callers_frame, is_ours
from snapconv.recorder.replacements import Replacements
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
        """Return the stack in which a tensor of these places was registered first, leaf first.

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
    """Return the program's frames, leaf first, down to where the recorder called it."""
    found: list[Frame] = []
    while frame is not None and len(found) < _MAX_FRAMES and not is_ours(frame.f_code.co_filename):
        found.append((frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name))
        frame = frame.f_back
    return tuple(found)


def new_optimizers(listener: Callable[[Any], None], guard: Guard) -> Replacements:
    """Return what calls a listener with every optimizer of torch's that is built.

    torch has hooks for those that step, and some never do themselves: a wrapper such as SAM keeps states of
    its own and lets another optimizer step.
    """

    def place(replacements: Replacements) -> None:
        from torch.optim import Optimizer

        replacements.wrap(Optimizer, "__init__", built)

    def built(build: Callable[[], None], optimizer: Any, *_: Any, **__: Any) -> None:
        build()
        listener(optimizer)

    return Replacements(guard, place)


def copies(
    on_tensor: "Callable[[Tensor, Tensor], None]", on_module: "Callable[[Module], object]", guard: Guard
) -> Replacements:
    """Return what calls listeners with what ``copy.deepcopy`` makes: ``on_tensor`` with original and copy.

    Averaged models, target networks, the best weights so far. A copied module, which gets its state from a
    copy or from a pickle, goes through no registration hook, and a copied ``state_dict`` belongs to no module
    at all.
    """

    def place(replacements: Replacements) -> None:
        import torch

        for kind in (torch.Tensor, torch.nn.Parameter):
            replacements.wrap(kind, "__deepcopy__", copied)
        replacements.wrap(torch.nn.Module, "__setstate__", restored)

    def copied(call: Callable[[], Any], tensor: Any, *_: Any, **__: Any) -> Any:
        copy = call()
        if copy is not tensor:
            on_tensor(tensor, copy)
        return copy

    def restored(call: Callable[[], Any], module: Any, *_: Any, **__: Any) -> Any:
        result = call()
        on_module(module)
        return result

    return Replacements(guard, place)
