"""One object of a JSON file that nobody has checked: each value is taken with its place and its expectation.

A column is a list of equal values. It is checked as a whole, and only a wrong one value by value.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.errors import MalformedSnapshotError, TruncatedFileError
from snapconv.json_text import JsonError, json_shown, read_json

_NAMES = {dict: "object", list: "array", type(None): "null"}


@dataclass(frozen=True, slots=True)
class Kind:
    """The values that a key may have: their types and, of numbers, the least and the bound above all."""

    types: tuple[type, ...]
    name: str
    low: float = -inf
    below: float = inf

    def or_null(self) -> "Kind":
        """Return the kind that has null too."""
        return replace(self, types=(*self.types, type(None)), name=f"{self.name} | null")

    def fault(self, value: object) -> str | None:
        """Return the expectation that a value does not meet, or None."""
        if type(value) not in self.types:
            return f"{self.name}, got {type_name(value)}"
        number = self.name.removesuffix(" | null")
        if isinstance(value, int | float) and value < self.low:
            return f"{number} >= {self.low}, got {json_shown(value)}"
        if isinstance(value, int | float) and value >= self.below:
            bound = f"< {self.below}" if float in self.types else f"<= {int(self.below) - 1}"
            return f"{number} {bound}, got {json_shown(value)}"
        return None

    def check(self, values: Sequence[Any], path: str) -> None:
        """Raise MalformedSnapshotError for the first value that is wrong, by its index."""
        if self.low == -inf and set(map(type, values)) <= set(self.types):
            return
        for i, value in enumerate(values):
            if (fault := self.fault(value)) is not None:
                raise MalformedSnapshotError(f"{path}[{i}]: expected {fault}")

    def numbers(self, values: Sequence[Any], path: str) -> NDArray[Any]:
        """Return numbers as a column, with NaN for null; raises as ``check`` does."""
        if not set(map(type, values)) <= set(self.types):
            self.check(values, path)
        try:
            column = np.array(values, np.float64 if float in self.types else np.int64)
        except OverflowError:
            self.check(values, path)
            raise
        # A comparison with NaN is false.
        if (column < self.low).any() or (column >= self.below).any():
            self.check(values, path)
        return column


TEXT, FLAG = Kind((str,), "str"), Kind((bool,), "bool")
OBJECT, ARRAY = Kind((dict,), "object"), Kind((list,), "array")
COUNT = Kind((int,), "int", 0, 1 << 62)
MILLISECONDS = Kind((float, int), "float", 0.0, 1e12)


class JsonObject:
    """An object and its place in the file; every method raises MalformedSnapshotError with the place."""

    def __init__(self, value: object, place: str) -> None:
        if type(value) is not dict:
            raise MalformedSnapshotError(f"{place or 'the file'}: expected object, got {type_name(value)}")
        self._values: dict[str, Any] = value
        self._place = place

    def path(self, key: str) -> str:
        """Return the place of a key's value in the file."""
        return f"{self._place}.{key}" if self._place else key

    def value(self, key: str, kind: Kind) -> Any:
        """Return the value of a key that must be there."""
        if key not in self._values:
            raise MalformedSnapshotError(f"{self.path(key)}: is missing")
        value = self._values[key]
        if (fault := kind.fault(value)) is not None:
            raise MalformedSnapshotError(f"{self.path(key)}: expected {fault}")
        return value

    def optional(self, key: str, kind: Kind, missing: Any = None) -> Any:
        """Return the value of a key, or ``missing`` where the key is not there."""
        return self.value(key, kind) if key in self._values else missing

    def items(self, key: str, kind: Kind) -> list[Any]:
        """Return a list whose items are all of one kind."""
        values: list[Any] = self.value(key, ARRAY)
        kind.check(values, self.path(key))
        return values

    def numbers(self, key: str, kind: Kind) -> NDArray[Any]:
        """Return a list of numbers as a column: float64 with NaN for null, or int64."""
        return kind.numbers(self.value(key, ARRAY), self.path(key))

    def child(self, key: str) -> "JsonObject":
        """Return an object in this one."""
        return JsonObject(self.value(key, OBJECT), self.path(key))

    def optional_child(self, key: str) -> "JsonObject | None":
        """Return an object in this one; None for null, and where the key is not there."""
        value = self.optional(key, OBJECT.or_null())
        return None if value is None else JsonObject(value, self.path(key))


def type_name(value: object) -> str:
    """Return the name of a value's type, as JSON or Python calls it."""
    return _NAMES.get(type(value), type(value).__name__)


def read_unchecked_json(text: bytes) -> Any:
    """Read the text of a file; raises MalformedSnapshotError or TruncatedFileError."""
    try:
        return read_json(text)
    except JsonError as error:
        if error.is_truncated:
            raise TruncatedFileError.of("the JSON text", len(text)) from error
        raise MalformedSnapshotError(f"no JSON text: {error}") from error
