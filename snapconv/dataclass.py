"""``dataclasses.dataclass`` without a compiler: its methods are closures over the fields' names.

The standard decorator compiles up to six methods of each class while a module is imported. For the
classes that a command needs, that was more time than all else that a small file takes.
"""

import dataclasses
import sys
from collections.abc import Callable, Sequence
from functools import cache
from operator import attrgetter
from reprlib import recursive_repr
from types import CellType, CodeType, FunctionType
from typing import TYPE_CHECKING, Any

Method = Callable[..., Any]

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:

    def dataclass(
        *, frozen: bool = False, slots: bool = False, eq: bool = True, order: bool = False
    ) -> Method:
        """Return the decorator for these options, which mean the same in the standard library."""

        def decorate(cls: type[Any]) -> type[Any]:
            if order or any(map(dataclasses.is_dataclass, cls.__bases__)):
                options = {"frozen": frozen, "slots": slots, "eq": eq, "order": order}
                return dataclasses.dataclass(**options)(cls)
            return _complete_class(cls, frozen=frozen, slots=slots, eq=eq)

        return decorate


_MISSING = dataclasses.MISSING


class _FromFactory:
    """The default of a field whose factory makes a value for each object."""

    def __repr__(self) -> str:
        return "<factory>"


_FROM_FACTORY = _FromFactory()
_ASSIGN = object.__setattr__  # also where the class is frozen


def _complete_class(cls: type[Any], *, frozen: bool, slots: bool, eq: bool) -> type[Any]:
    """Make a class with its fields, and with each method that it does not define itself."""
    written = {name for name, value in vars(cls).items() if value is not None}
    cls = dataclasses.dataclass(init=False, repr=False, eq=False, slots=slots)(cls)
    fields = dataclasses.fields(cls)
    methods: dict[str, Any] = {"__init__": _initializer(cls, fields), "__repr__": _repr}
    if eq:
        methods |= _comparing([field.name for field in fields if field.compare])
    if eq and not frozen:
        methods["__hash__"] = None
    if frozen:
        methods |= _refusing(cls, {field.name for field in fields})
    if frozen and slots:
        methods |= {"__getstate__": _state, "__setstate__": _set_state}
    for name, method in methods.items():
        if name not in written:
            setattr(cls, name, method)
    cls.__dataclass_params__ = _parameters(frozen=frozen, slots=slots, eq=eq)
    return cls


@cache
def _parameters(**options: bool) -> Any:
    """Return the note of its options that the standard decorator reads where a class inherits."""
    decorate: Method = dataclasses.dataclass
    return vars(decorate(**options)(type("Example", (), {})))["__dataclass_params__"]


def _initializer(cls: type[Any], fields: Sequence[Any]) -> Method:
    """Return the ``__init__`` that takes the fields in order."""
    names = [field.name for field in fields]
    factories = [
        (field.name, field.default_factory)
        for field in fields
        if field.default_factory is not _MISSING
    ]
    is_finished_by_class = hasattr(cls, "__post_init__")

    def assign(self: Any, values: Sequence[Any]) -> None:
        for name, value in zip(names, values, strict=True):
            _ASSIGN(self, name, value)
        for name, factory in factories:
            if getattr(self, name) is _FROM_FACTORY:
                _ASSIGN(self, name, factory())
        if is_finished_by_class:
            self.__post_init__()

    defaults = []
    for field in fields:
        if field.default_factory is not _MISSING:
            defaults.append(_FROM_FACTORY)
        elif field.default is not _MISSING:
            defaults.append(field.default)
    initializer = FunctionType(
        _initializer_code(len(names)).replace(
            co_name="__init__", co_varnames=("self", *names), co_filename="<dataclass>"
        ),
        vars(sys.modules[cls.__module__]),
        "__init__",
        tuple(defaults),
        (CellType(assign),),
    )
    initializer.__qualname__ = f"{cls.__qualname__}.__init__"
    types = {field.name: field.type for field in fields}
    initializer.__annotations__ = types | {"return": None}
    return initializer


@cache
def _initializer_code(n_fields: int) -> CodeType:
    """Compile the ``__init__`` of a class with so many fields; only the names differ in another."""
    names = "".join(f"field_{number}, " for number in range(n_fields))
    make: Method = eval(f"lambda assign: lambda self, {names}: assign(self, ({names}))")
    code: CodeType = make(None).__code__
    return code


@recursive_repr()
def _repr(self: Any) -> str:
    values = (
        f"{field.name}={getattr(self, field.name)!r}"
        for field in dataclasses.fields(self)
        if field.repr
    )
    return f"{type(self).__qualname__}({', '.join(values)})"


def _comparing(names: Sequence[str]) -> dict[str, Method]:
    """Return the methods that compare the values of these fields."""
    # With the class before them, one field is a tuple too.
    values = (
        attrgetter("__class__", *names) if names else lambda record: (record.__class__,)
    )

    def __eq__(self: Any, value: object) -> bool:
        if value.__class__ is not self.__class__:
            return NotImplemented
        is_equal: bool = values(self) == values(value)
        return is_equal

    def __hash__(self: Any) -> int:
        return hash(values(self)[1:])

    return {"__eq__": __eq__, "__hash__": __hash__}


def _refusing(cls: type[Any], names: set[str]) -> dict[str, Method]:
    """Return the methods that refuse to change fields; what a class below adds may change."""

    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise dataclasses.FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    return {"__setattr__": __setattr__, "__delattr__": __delattr__}


def _state(self: Any) -> list[Any]:
    return [getattr(self, field.name) for field in dataclasses.fields(self)]


def _set_state(self: Any, state: Sequence[Any]) -> None:
    for field, value in zip(dataclasses.fields(self), state, strict=True):
        _ASSIGN(self, field.name, value)
