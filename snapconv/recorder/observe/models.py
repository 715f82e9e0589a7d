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
from operator import attrgetter
from typing import Any

from snapconv.guest.own_frames import program_frames
from snapconv.guest.torch_surface import Module, Tensor

# A module that stands in several others has a name in each; two such levels multiply.
_MAX_NAMES = 1_000_000
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
class _ModuleRecord:
    """The number of a module, and the registrations of its tensors by their names."""

    number: int
    registrations: dict[str, list[_Registration]] = field(default_factory=dict)


class Registrations:
    """Every live module that the program built while it was observed, in the order of sight."""

    is_changed = True
    _n_modules = _n_registered = 0

    @cached_property
    def _records(self) -> Any:
        from torch.utils.weak import WeakIdKeyDictionary

        return WeakIdKeyDictionary()  # modules may define __eq__

    def add(self, module: Module) -> int:
        """Make a module known and return its number."""
        record = self._records.get(module)
        if record is None:
            self._n_modules += 1
            record = _ModuleRecord(self._n_modules)
            self._records[module] = record
            self.is_changed = True
        return int(record.number)

    def add_tensor(self, owner: Module, name: str, tensor: Tensor | None) -> None:
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
        registrations = self._records[owner].registrations.setdefault(name, [])
        # The first shows where the slot was made, the last what is in it now.
        registrations[1:] = [registration]

    def add_module(self, owner: Module, _name: str, child: Module | None) -> None:
        """See a module registered in another."""
        if child is not None:
            self.add(owner)
            self.add(child)

    def modules(self) -> list[Module]:
        """All live modules that are known, in the order in which they were seen."""
        return list(self._records.keys())

    def frames(
        self, names: Iterable[tuple[Module, str]], tensor: Tensor
    ) -> tuple[Frame, ...]:
        """Return the stack in which a tensor was registered first, leaf first.

        ``names`` has each module that holds it, with its name there. Conversions may put new
        objects under old names: then the oldest registration of a name counts.
        """
        candidates: list[_Registration] = []
        for module, name in names:
            record = self._records.get(module)
            if record is not None:
                candidates += record.registrations.get(name, ())
        exact = [candidate for candidate in candidates if candidate.tensor_id == id(tensor)]
        oldest = min(exact or candidates, key=attrgetter("number"), default=None)
        return oldest.frames if oldest else ()


@dataclass(frozen=True, slots=True)
class Slot:
    """The slot of a parameter or buffer; the tensor is looked up, as holding it keeps it alive.

    ``name`` is the one that ``named_parameters`` gives, ``key`` stays the same from survey to
    survey. ``is_loose``: an optimizer has it, and no module.
    """

    key: Key
    owner: weakref.ref[Any]
    local_name: str
    kind: str
    name: str
    module: str
    frames: tuple[Frame, ...] = ()
    is_loose: bool = False

    def tensor(self) -> Tensor | None:
        """Return the tensor that the slot holds now."""
        owner = self.owner()
        if owner is None:
            return None
        if self.is_loose:
            return _optimizers_tensor(owner, self.local_name)
        tensors = owner._parameters if self.kind == "parameter" else owner._buffers
        if self.local_name not in tensors:  # a ScriptModule has no ``get`` there
            return None
        return tensors[self.local_name]


class Models:
    """The parameters and buffers of a model or of all modules, then those of optimizers alone."""

    _n_stepped = 0
    _slots: tuple[Slot, ...] = ()

    def __init__(
        self,
        registrations: Registrations,
        model: Module | None,
        *,
        optimizers: Callable[[], Iterable[Any]],
    ) -> None:
        self._registrations = registrations
        self._optimizers = optimizers
        self._model = weakref.ref(model) if model is not None else None
        # Paths by the identity of the module; the reference shows whether it is still the same.
        self._paths: dict[int, tuple[weakref.ref[Module], str | None]] = {}

    @property
    def is_changed(self) -> bool:
        """Whether there are other modules, or optimizers have more or fewer tensors, than known."""
        return self._registrations.is_changed or self._n_stepped != self._count_stepped()

    def slots(self) -> tuple[Slot, ...]:
        """Return every slot in the order of ``named_parameters``; look again if modules changed."""
        if self.is_changed or not self._slots:
            self.survey()
        return self._slots

    def path(self, module: Module) -> str | None:
        """Return a module's dotted name, empty for the model itself; None for one in no model."""
        entry = self._paths.get(id(module))
        if self._registrations.is_changed or entry is None or entry[0]() is not module:
            self.survey()
            # An unknown module gets an entry too, or every call about it would survey again.
            entry = self._paths.setdefault(id(module), (weakref.ref(module), None))
        return entry[1]

    def survey(self) -> None:
        """Look at all models anew."""
        self._paths = {}
        names: dict[int, list[tuple[str, str, Module]]] = {}
        tensors: dict[int, tuple[Tensor, str]] = {}
        roots, wrappers = self._roots()
        for path, module in islice(_named_modules(roots), _MAX_NAMES):
            self._paths.setdefault(id(module), (weakref.ref(module), path))
            kinds = (("parameter", module._parameters), ("buffer", module._buffers))
            for kind, module_tensors in kinds:
                for name, tensor in module_tensors.items():
                    if tensor is not None:
                        tensors.setdefault(id(tensor), (tensor, kind))
                        names.setdefault(id(tensor), []).append((path, name, module))
        for wrapper in wrappers:
            for path, module in wrapper.named_modules():
                self._paths.setdefault(id(module), (weakref.ref(module), path))
        slots = [self._slot(*tensors[tensor_id], names[tensor_id]) for tensor_id in tensors]
        self._slots = (*slots, *self._loose_slots(set(tensors)))
        # Last: naming makes the parts of models known that were never registered.
        self._registrations.is_changed = False

    def _count_stepped(self) -> int:
        """Count the tensors that the optimizers have: groups may be added at any time."""
        return sum(
            len(group["params"])
            for optimizer in self._optimizers()
            for group in _groups(optimizer)
        )

    def _loose_slots(self, known_ids: set[int]) -> Iterator[Slot]:
        """Return the first slot of each tensor of no module, named ``AdamW.0.3``."""
        self._n_stepped = self._count_stepped()
        numbers: Counter[str] = Counter()
        for optimizer in self._optimizers():
            kind = type(optimizer).__name__
            prefix = _numbered(kind, numbers)
            for name, tensor in _optimizers_tensors(optimizer):
                if id(tensor) not in known_ids:
                    known_ids.add(id(tensor))
                    yield Slot(
                        key=(-id(optimizer), name),  # numbers of modules are positive
                        owner=weakref.ref(optimizer),
                        local_name=name,
                        kind="parameter",
                        name=f"{prefix}.{name}",
                        module=kind,
                        is_loose=True,
                    )

    def _slot(
        self, tensor: Tensor, kind: str, names: list[tuple[str, str, Module]]
    ) -> Slot:
        path, name, module = names[0]
        holders = [(holder, local_name) for _, local_name, holder in names]
        return Slot(
            key=(self._registrations.add(module), name),
            owner=weakref.ref(module),
            local_name=name,
            kind=kind,
            name=f"{path}.{name}" if path else name,
            module=path,
            frames=self._registrations.frames(holders, tensor),
        )

    def _roots(self) -> tuple[list[Module], list[Module]]:
        """Return the modules inside no other: those with own tensors, and those that only wrap."""
        if self._model is not None:
            model = self._model()
            return ([] if model is None else [model]), []
        # Its methods, not a module's own: `buffers` of Megatron's data parallel is a list.
        kind = sys.modules["torch"].nn.Module
        modules = self._registrations.modules()
        children = {id(child) for module in modules for child in module._modules.values()}
        inner = set(children)
        for module in modules:
            if id(module) not in children:
                # A child that was never registered itself may have children that were.
                inner.update(map(id, islice(kind.modules(module), 1, None)))
        known_ids: set[int] = set()
        roots: list[Module] = []
        wrappers: list[Module] = []
        for module in modules:
            if id(module) in inner:
                continue
            tensor_ids = set(map(id, (*kind.parameters(module), *kind.buffers(module))))
            if tensor_ids - known_ids:
                roots.append(module)
            elif tensor_ids:
                wrappers.append(module)
            known_ids |= tensor_ids
        return roots, wrappers


def _groups(optimizer: Any) -> Iterable[dict[str, Any]]:
    return getattr(optimizer, "param_groups", ())


def _optimizers_tensors(optimizer: Any) -> Iterator[tuple[str, Tensor]]:
    """Return an optimizer's tensors, named by the group and the index in it: ``0.3``."""
    import torch

    for number, group in enumerate(_groups(optimizer)):
        for i, tensor in enumerate(group["params"]):
            if isinstance(tensor, torch.Tensor):
                yield f"{number}.{i}", tensor


def _optimizers_tensor(optimizer: Any, name: str) -> Tensor | None:
    """Return the tensor that has such a name now."""
    import torch

    number, _, i = name.partition(".")
    try:
        tensor = optimizer.param_groups[int(number)]["params"][int(i)]
    except (IndexError, KeyError):
        return None
    return tensor if isinstance(tensor, torch.Tensor) else None


def _named_modules(roots: list[Module]) -> Iterator[tuple[str, Module]]:
    """Return every module with its dotted name.

    Several models (a GAN) would share names: each gets that of its class before them. A model
    beside modules that have only buffers needs none.
    """
    models = [root for root in roots if next(root.parameters(), None) is not None]
    numbers: Counter[str] = Counter()
    for root in roots:
        prefix = ""
        if len(roots) > 1 and models != [root]:
            prefix = _numbered(type(root).__name__, numbers)
        yield from root.named_modules(prefix=prefix, remove_duplicate=False)


def _numbered(name: str, numbers: Counter[str]) -> str:
    """Return a name, from its second use on with a number: ``AdamW#2``."""
    numbers[name] += 1
    return name if numbers[name] == 1 else f"{name}#{numbers[name]}"
