"""Features that a recording can have: the table of torch's insides compared with the torch that is there.

A feature whose part of torch has changed is left out, with a note that names what; the rest is recorded.
"""

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from types import ClassMethodDescriptorType, FunctionType, ModuleType
from typing import Any

from snapconv.errors import RecorderError
from snapconv.notes import Note
from snapconv.recorder.torch_surface import OLDEST, SURFACE, Feature, Kind, Row, Version

_ABSENT, _NOT_IMPORTED = object(), object()
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_MANY = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


class ChangedFeatures:
    """The features that are left out, each with what differs; all others are there."""

    def __init__(self, changed: dict[Feature, str] | None = None) -> None:
        self.changed = changed or {}

    def __contains__(self, feature: Feature) -> bool:
        return feature not in self.changed

    def notes(self) -> tuple[Note, ...]:
        """Name what is left out."""
        return tuple(
            Note("torch-changed", _sentence(feature, what)) for feature, what in self.changed.items()
        )


def probe(wanted: Callable[[Feature], bool]) -> ChangedFeatures:
    """Compare torch with the table, for the features that are wanted; nothing is imported and nothing run.

    Raises RecorderError where torch is too old, or a feature differs without which there is no recording.
    """
    if _version() < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        raise RecorderError(
            f"torch {_torch().__version__} is too old to record with: use torch {oldest} or newer"
        )
    changed = {}
    for feature in filter(wanted, SURFACE):
        what = next(differences(SURFACE[feature]), None)
        if what is not None:
            if feature.is_essential:
                raise RecorderError(f"{_sentence(feature, what)}; use an older torch, or a newer snapconv")
            changed[feature] = what
    return ChangedFeatures(changed)


def is_for_recording(feature: Feature) -> bool:
    """Whether a recording on a GPU and a simulated one have a feature."""
    return not feature.is_of_simulation


def is_for_simulation(feature: Feature) -> bool:
    """Whether only a simulation has a feature."""
    return feature.is_of_simulation


def differences(rows: Iterable[Row]) -> Iterator[str]:
    """Say of every row that this torch does not meet how it differs."""
    version = _version()
    for row in rows:
        if row.since <= version < row.before:
            what = _difference(row)
            if what is not None:
                yield f"{row.name} {what}"


def _sentence(feature: Feature, what: str) -> str:
    verb = "simulated" if feature.is_of_simulation else "recorded"
    return f"torch {_torch().__version__}: {feature.value} are not {verb}: {what}"


def _difference(row: Row) -> str | None:
    """Say how an attribute differs from its row, None where it does not."""
    found = _found(row.name)
    if found is _NOT_IMPORTED:
        return None
    if found is _ABSENT:
        return None if row.is_optional else "is not there"
    if not _IS_KIND[row.kind](found):
        return f"is of type {type(found).__name__}, and was {row.kind.value}"
    return _other_signature(row, found) if row.kind is Kind.FUNCTION else None


def _found(name: str) -> Any:
    """Return what torch has by a dotted name: of a class as it stands there, and not bound."""
    parts = name.split(".")
    n_modules = max(n for n in range(1, len(parts)) if ".".join(parts[:n]) in sys.modules)
    module = ".".join(parts[:n_modules])
    found: Any = sys.modules[module]
    for part in parts[n_modules:]:
        # torch.backends.cudnn is an object that stands for its module.
        is_plain = not isinstance(found, ModuleType) or type(found) is ModuleType
        owner, found = found, (inspect.getattr_static if is_plain else getattr)(found, part, _ABSENT)
        if found is _ABSENT:
            is_module = owner is sys.modules[module] and hasattr(owner, "__path__")
            return _NOT_IMPORTED if is_module and find_spec(f"{module}.{part}") else _ABSENT
    return found


_IS_KIND: dict[Kind, Callable[[Any], bool]] = {
    Kind.FUNCTION: lambda found: isinstance(found, FunctionType),
    Kind.CLASS_METHOD: lambda found: isinstance(found, classmethod | ClassMethodDescriptorType),
    Kind.CALLABLE: lambda found: callable(found) or isinstance(found, classmethod | staticmethod),
    Kind.CLASS: lambda found: isinstance(found, type),
    Kind.VALUE: lambda _: True,
}


def _other_signature(row: Row, function: Callable[..., Any]) -> str | None:
    parameters = inspect.signature(function).parameters
    given = [name for name, parameter in parameters.items() if parameter.kind in _POSITIONAL]
    takes_any = {parameter.kind for parameter in parameters.values()} & set(_MANY)
    if tuple(given[: len(row.parameters)]) != row.parameters:
        return f"has the parameters {_listed(parameters)}, and had {_listed(row.parameters)} first"
    missing = [name for name in row.keywords if name not in parameters]
    if missing and inspect.Parameter.VAR_KEYWORD not in takes_any:
        return f"has no parameter {missing[0]}"
    known = {*row.parameters, *row.keywords}
    for name, parameter in parameters.items():
        is_required = parameter.default is inspect.Parameter.empty and parameter.kind not in _MANY
        if is_required and name not in known:
            return f"has a new parameter {name}, which must be given"
    return None


def _listed(names: Iterable[str]) -> str:
    return f"({', '.join(names)})"


def _version() -> Version:
    major, minor = str(_torch().__version__).split(".")[:2]
    return int(major), int(minor)


def _torch() -> Any:
    return sys.modules["torch"]
