"""The models of a program: modules, where each tensor was registered, and torch's names.

Modules are referenced weakly. Parameters are not referenced at all, not even weakly: a weak
reference to one makes ``torch.utils.swap_tensors`` refuse it. Tensors of no module that an
optimizer steps stand behind those of modules: full-precision copies of half-precision weights are
among them.
"""

import sys
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any

from snapconv.recorder.program.own_frames import program_frames
from snapconv.recorder.torch_surface import Module, Tensor

# A module that stands in many places has a name for each; two such levels multiply.
_MAX_PLACES = 1_000_000
_MAX_FRAMES = 100

Key = tuple[int, str]
Frame = tuple[str, int, str]


@dataclass(frozen=True, slots=True)
class _Registration:
    """When and where a tensor was registered; ``tensor_id`` is that of the object."""

    number: int
    tensor_id: int
    frames: tuple[Frame, ...]


@dataclass(slots=True)
class _Seen:
    number: int
    registrations: dict[str, list[_Registration]] = field(default_factory=dict)


class Registrations:
    """Every live module that the program built while it was observed, in the order of sight."""

    def __init__(self) -> None:
        self._n_seen = self._n_registered = 0
        self.is_changed = True

    @cached_property
    def _seen(self) -> Any:
        from torch.utils.weak import WeakIdKeyDictionary

        return WeakIdKeyDictionary()  # modules may define __eq__

    def add(self, module: "Module") -> int:
        """Make a module known and return its number."""
        seen = self._seen.get(module)
        if seen is None:
            self._n_seen += 1
            self._seen[module] = seen = _Seen(self._n_seen)
            self.is_changed = True
        return int(seen.number)

    def add_tensor(self, owner: "Module", name: str, tensor: "Tensor | None") -> None:
        """See a tensor registered."""
        if tensor is None:
            return
        self.add(owner)
        self.is_changed = True
        self._n_registered += 1
        frames = tuple(
            (frame.f_code.co_filename, frame.f_lineno or 0, frame.f_code.co_name)
            for frame in islice(program_frames(), _MAX_FRAMES)
        )
        registration = _Registration(self._n_registered, id(tensor), frames)
        slot = self._seen[owner].registrations.setdefault(name, [])
        # The first shows where the place was made, the last what is in it now.
        slot[1:] = [registration]

    def add_module(self, owner: "Module", _name: str, child: "Module | None") -> None:
        """See a module registered in another."""
        if child is not None:
            self.add(owner)
            self.add(child)

    def modules(self) -> "list[Module]":
        """All live modules that are known, in the order in which they were seen."""
        return list(self._seen.keys())

    def frames(self, places: "Iterable[tuple[Module, str]]", tensor: "Tensor") -> tuple[Frame, ...]:
        """Return the stack in which a tensor of these places was registered first, leaf first.

        Conversions may put new objects into old places: then the oldest registration of a place
        counts.
        """
        found = [
            registration
            for module, name in places
            if (seen := self._seen.get(module)) is not None
            for registration in seen.registrations.get(name, ())
        ]
        own = [registration for registration in found if registration.tensor_id == id(tensor)]
        first = min(own or found, key=lambda registration: registration.number, default=None)
        return first.frames if first else ()


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a parameter or buffer; the tensor is looked up, as holding it keeps it alive.

    ``name`` is the one that ``named_parameters`` gives, ``key`` stays the same from survey to
    survey. ``is_loose``: an optimizer has it, and no module.
    """

    key: Key
    owner: "weakref.ref[Any]"
    local_name: str
    kind: str
    name: str
    module: str
    frames: tuple[Frame, ...] = ()
    is_loose: bool = False

    def tensor(self) -> "Tensor | None":
        """Return the tensor that stands there now."""
        owner = self.owner()
        if owner is None:
            return None
        if self.is_loose:
            return _tensor_in(owner, self.local_name)
        held = owner._parameters if self.kind == "parameter" else owner._buffers
        return held[self.local_name] if self.local_name in held else None  # noqa: SIM401  # ScriptModule: no get


class Models:
    """The parameters and buffers of a model or of all modules, then those of optimizers alone."""

    def __init__(
        self,
        registrations: Registrations,
        model: "Module | None" = None,
        *,
        optimizers: Callable[[], Iterable[Any]] = tuple,
    ) -> None:
        self._registrations = registrations
        self._optimizers = optimizers
        self._n_stepped = 0
        self._given = weakref.ref(model) if model is not None else None
        self._places: tuple[Place, ...] = ()
        # By the identity of the module; the reference shows whether it is still the same.
        self._paths: dict[int, tuple[weakref.ref[Module], str | None]] = {}

    def places(self) -> tuple[Place, ...]:
        """Return every place in the order of ``named_parameters``; look again if modules changed."""
        if (
            self._registrations.is_changed
            or not self._places
            or self._n_stepped != self._count_stepped()
        ):
            self.survey()
        return self._places

    def path(self, module: Module) -> str | None:
        """Return a module's dotted name, empty for the model itself; None for one in no model."""
        known = None if self._registrations.is_changed else self._paths.get(id(module))
        if known is None or known[0]() is not module:
            self.survey()
            # Of an unknown module too, or every call about it would survey again.
            known = self._paths.setdefault(id(module), (weakref.ref(module), None))
        return known[1]

    def survey(self) -> None:
        """Look at all models anew."""
        self._paths = {}
        found: dict[int, list[tuple[str, str, Module]]] = {}
        tensors: dict[int, tuple[Tensor, str]] = {}
        roots, wrappers = self._roots()
        for path, module in islice(_named_modules(roots), _MAX_PLACES):
            self._paths.setdefault(id(module), (weakref.ref(module), path))
            for kind, held in (("parameter", module._parameters), ("buffer", module._buffers)):
                for name, tensor in held.items():
                    if tensor is not None:
                        tensors.setdefault(id(tensor), (tensor, kind))
                        found.setdefault(id(tensor), []).append((path, name, module))
        for wrapper in wrappers:
            for path, module in wrapper.named_modules():
                self._paths.setdefault(id(module), (weakref.ref(module), path))
        places = [self._place(*tensors[number], where) for number, where in found.items()]
        self._places = (*places, *self._loose_places(set(tensors)))
        # Last: naming makes the parts of models known that were never registered.
        self._registrations.is_changed = False

    def _count_stepped(self) -> int:
        """Count the tensors that the optimizers have: groups may be added at any time."""
        return sum(
            len(group["params"]) for optimizer in self._optimizers() for group in _groups(optimizer)
        )

    def _loose_places(self, known: set[int]) -> Iterator[Place]:
        """Return the first place of each tensor of no module, named ``AdamW.0.3``."""
        import torch

        self._n_stepped = self._count_stepped()
        numbers: Counter[str] = Counter()
        for optimizer in self._optimizers():
            kind = type(optimizer).__name__
            prefix = _numbered(kind, numbers)
            for number, group in enumerate(_groups(optimizer)):
                for i, tensor in enumerate(group["params"]):
                    if isinstance(tensor, torch.Tensor) and id(tensor) not in known:
                        known.add(id(tensor))
                        place = f"{number}.{i}"
                        key = (-id(optimizer), place)  # numbers of modules are positive
                        yield Place(
                            key, weakref.ref(optimizer), place, "parameter", f"{prefix}.{place}", kind,
                            is_loose=True,
                        )  # fmt: skip

    def _place(self, tensor: "Tensor", kind: str, where: "list[tuple[str, str, Module]]") -> Place:
        path, name, module = where[0]
        return Place(
            key=(self._registrations.add(module), name),
            owner=weakref.ref(module),
            local_name=name,
            kind=kind,
            name=f"{path}.{name}" if path else name,
            module=path,
            frames=self._registrations.frames(
                ((holder, local) for _, local, holder in where), tensor
            ),
        )

    def _roots(self) -> tuple[list[Module], list[Module]]:
        """Return the modules inside no other: those with own tensors, and those that only wrap."""
        if self._given is not None:
            given = self._given()
            return ([given] if given is not None else []), []
        kind = sys.modules["torch"].nn.Module  # `buffers` of Megatron's data parallel is a list
        modules = self._registrations.modules()
        children = {id(child) for module in modules for child in module._modules.values()}
        # A child that was never registered itself may have children that were.
        inner = {
            id(part)
            for module in modules
            if id(module) not in children
            for part in islice(kind.modules(module), 1, None)
        }
        known: set[int] = set()
        roots: list[Module] = []
        wrappers: list[Module] = []
        for module in modules:
            if id(module) in children | inner:
                continue
            own = {id(tensor) for tensor in (*kind.parameters(module), *kind.buffers(module))}
            if own:
                (roots if own - known else wrappers).append(module)
            known |= own
        return roots, wrappers


def _groups(optimizer: Any) -> Iterable[dict[str, Any]]:
    return getattr(optimizer, "param_groups", ())


def _tensor_in(optimizer: Any, place: str) -> "Tensor | None":
    import torch

    number, _, i = place.partition(".")
    try:
        found = optimizer.param_groups[int(number)]["params"][int(i)]
    except (IndexError, KeyError):
        return None
    return found if isinstance(found, torch.Tensor) else None


def _named_modules(roots: list[Module]) -> Iterator[tuple[str, Module]]:
    """Return every module with its dotted name.

    Several models (a GAN) would share names: each gets that of its class before them. A model
    beside modules that have only buffers needs none.
    """
    main = [root for root in roots if next(root.parameters(), None) is not None]
    numbers: Counter[str] = Counter()
    for root in roots:
        prefix = ""
        if len(roots) > 1 and main != [root]:
            prefix = _numbered(type(root).__name__, numbers)
        yield from root.named_modules(prefix=prefix, remove_duplicate=False)


def _numbered(name: str, numbers: "Counter[str]") -> str:
    """Return a name, from its second use on with a number: ``AdamW#2``."""
    numbers[name] += 1
    return name if numbers[name] == 1 else f"{name}#{numbers[name]}"
