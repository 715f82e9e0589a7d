"""The models among the modules of a program, and the names of their tensors as torch gives them.

What is trained without a module (see ``loose_tensors``) stands behind them.
"""

import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from snapconv.notes import Note
from snapconv.recorder.observe.built_objects import Frame, Registrations
from snapconv.recorder.observe.loose_tensors import Leaves, tensor_in, tensors_in
from snapconv.recorder.observe.tensors import locate, plain_tensors
from snapconv.recorder.torch_surface import Module, Tensor
from snapconv.units import counted

# A module that stands in many places has a name for each; two such levels multiply.
_MAX_PLACES = 1_000_000
_MAX_NAMES = 100

Key = tuple[int, str]


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a parameter or buffer: it is looked up when needed, as holding it keeps it alive.

    ``names`` begins with the name that ``named_parameters`` gives; the others are those of tied weights.
    ``key`` stays the same from survey to survey. ``is_loose``: no module has it. Without a name it is a
    tensor that only the program references.
    """

    key: Key
    owner: "weakref.ref[Any]"
    local_name: str
    kind: str
    names: tuple[str, ...]
    module: str
    module_class: str
    frames: tuple[Frame, ...] = ()
    is_loose: bool = False

    def tensor(self) -> "Tensor | None":
        """Return the tensor that stands there now."""
        owner = self.owner()
        if owner is None:
            return None
        if self.is_loose:
            return tensor_in(owner, self.local_name) if self.local_name else owner
        held = owner._parameters if self.kind == "parameter" else owner._buffers
        return held[self.local_name] if self.local_name in held else None  # noqa: SIM401  # ScriptModule: no get


class Models:
    """The places of all parameters and buffers: of the given model, or of every module without a parent.

    Those of ``optimizers`` follow, and the parameters among ``leaves``, as far as no module has them.
    """

    def __init__(
        self,
        registrations: Registrations,
        model: "Module | None" = None,
        *,
        optimizers: Callable[[], Iterable[Any]] = tuple,
        leaves: Leaves | None = None,
    ) -> None:
        self._registrations = registrations
        self._optimizers, self._leaves = optimizers, leaves or Leaves()
        self._n_stepped = 0
        self._given = weakref.ref(model) if model is not None else None
        self._places: tuple[Place, ...] = ()
        # By the identity of the module; the reference shows whether it is still the same.
        self._paths: dict[int, tuple[weakref.ref[Module], str | None]] = {}

    def places(self) -> tuple[Place, ...]:
        """Return every place, in the order of ``named_parameters``; anew where modules have changed."""
        if self._registrations.is_changed or not self._places or self._n_stepped != self._count_stepped():
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

    def named_parameters(self) -> Iterator[tuple[str, list[tuple[str, Tensor]]]]:
        """Return every model that has parameters, by the name of its class, with them and their names."""
        for root in self._roots()[0]:
            found = list(islice(root.named_parameters(), _MAX_PLACES))
            if found:
                yield type(root).__name__, found

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
            len(group["params"])
            for optimizer in self._optimizers()
            for group in getattr(optimizer, "param_groups", ())
        )

    def _loose_places(self, known: set[int]) -> Iterator[Place]:
        """Return the places of tensors of no module; of a tensor in several, the first."""
        self._n_stepped = self._count_stepped()
        for optimizer, place, name, tensor in tensors_in(self._optimizers()):
            if id(tensor) not in known:
                known.add(id(tensor))
                yield _loose(optimizer, place, (name,))
        for reference in self._leaves.parameters():
            leaf = reference()
            if leaf is not None and id(leaf) not in known:
                known.add(id(leaf))
                yield _loose(leaf, "", ("",))

    def _place(self, tensor: "Tensor", kind: str, where: "list[tuple[str, str, Module]]") -> Place:
        path, name, module = where[0]
        return Place(
            key=(self._registrations.add(module), name),
            owner=weakref.ref(module),
            local_name=name,
            kind=kind,
            names=tuple(_join(at, local) for at, local, _ in where[:_MAX_NAMES]),
            module=path,
            module_class=type(module).__name__,
            frames=self._registrations.frames(((holder, local) for _, local, holder in where), tensor),
        )

    def _roots(self) -> tuple[list[Module], list[Module]]:
        """Return the modules inside no other: those with tensors, and those that only wrap others'."""
        if self._given is not None:
            given = self._given()
            return ([given] if given is not None else []), []
        modules = self._registrations.modules()
        children = {id(child) for module in modules for child in module._modules.values()}
        # A child that was never registered itself may have children that were.
        inner = {id(part) for module in modules if id(module) not in children for part in _below(module)}
        known: set[int] = set()
        roots: list[Module] = []
        wrappers: list[Module] = []
        for module in modules:
            if id(module) in children | inner:
                continue
            own = {id(tensor) for tensor in (*module.parameters(), *module.buffers())}
            if own:
                (roots if own - known else wrappers).append(module)
            known |= own
        return roots, wrappers


def _loose(owner: Any, place: str, names: tuple[str, ...]) -> Place:
    kind = type(owner).__name__ if place else ""
    # Numbers of modules are positive.
    key = (-id(owner), place)
    return Place(key, weakref.ref(owner), place, "parameter", names, kind, kind, is_loose=True)


def _named_modules(roots: list[Module]) -> Iterator[tuple[str, Module]]:
    """Return every module with its dotted name.

    Several models (a GAN) would share names: each gets that of its class before them. A model beside
    modules that have buffers only needs none.
    """
    main = [root for root in roots if next(root.parameters(), None) is not None]
    numbers: Counter[str] = Counter()
    for root in roots:
        prefix = ""
        if len(roots) > 1 and main != [root]:
            name = type(root).__name__
            numbers[name] += 1
            prefix = name if numbers[name] == 1 else f"{name}#{numbers[name]}"
        yield from root.named_modules(prefix=prefix, remove_duplicate=False)


def _below(module: "Module") -> "Iterator[Module]":
    return islice(module.modules(), 1, None)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_MAX_NAMED = 3


class Elsewhere:
    """Finds where parameters are; ``notes`` has those that were on no device the last time."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._notes: dict[str, Note] = {}

    def look(self) -> None:
        """Look at every model; one with nothing on a device is meant to be elsewhere, or not in use yet."""
        for model, parameters in self._models.named_parameters():
            away = {name: tensor for name, tensor in parameters if not _is_on_a_device(tensor)}
            if away and len(away) < len(parameters):
                self._notes[model] = _note(model, away, len(parameters))
            else:
                self._notes.pop(model, None)

    def notes(self) -> tuple[Note, ...]:
        """One note for each kind of model."""
        return tuple(self._notes.values())


def _is_on_a_device(tensor: Tensor) -> bool:
    """Whether all memory of a tensor is where it can be seen; one without elements, or lazy, has none."""
    return all(locate(piece) is not None or not piece.numel() for piece in plain_tensors(tensor))


def _note(model: str, away: dict[str, Tensor], n_parameters: int) -> Note:
    named = [f"{name} ({_where(tensor)})" for name, tensor in list(away.items())[:_MAX_NAMED]]
    more = [f"{len(away) - _MAX_NAMED} more"] if len(away) > _MAX_NAMED else []
    return Note(
        "parameters-elsewhere",
        f"of the {counted(n_parameters, 'parameter')} of {model}, these are not in the capture: "
        f"{', '.join((*named, *more))}",
    )


def _where(tensor: Tensor) -> str:
    """Say where a tensor claims to be; one that claims a device is of a kind that cannot be looked into."""
    return type(tensor).__name__ if tensor.device.type == "cuda" else f"on {tensor.device}"
