"""Checks of the values in a file, which raise errors with the path of a wrong value.

Rows takes one key out of many dictionaries at once, as a column. Whatever cannot be right raises
MalformedSnapshotError with its path, such as ``device_traces[0][1523].size: expected int, got
str``.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column
from snapconv.errors import (
    InputError,
    MalformedSnapshotError,
    TruncatedFileError,
    UnsafePickleError,
)
from snapconv.files import open_input
from snapconv.json_text import JsonError, read_json
from snapconv.units import shown

# The path of a row in the file, by the row's number.
RowPath = Callable[[int], str]

_UINT64 = 1 << 64
_INT64_MAX = (1 << 63) - 1


class Bounds(NamedTuple):
    """The range of a number, its description, and its types."""

    low: int
    high: int
    expected: str
    types: tuple[type, ...] = (int,)


# No device has 256 TiB, and no machine addresses beyond 57 bits from either end. Within these
# bounds no sum or difference that the analysis makes overflows int64.
BYTES = Bounds(0, 1 << 48, "0 to 2^48 bytes")
ADDRESS = Bounds(-(1 << 62), 1 << 62, "an address of at most 62 bits from either end")
TIME = Bounds(-(1 << 62), 1 << 62, "microseconds of at most 62 bits")
# torch's DeviceIndex is an int8.
DEVICE = Bounds(0, 127, "a device from 0 to 127")
MAX_TOTAL_BYTES = 1 << 61
# Pools are numbered from 1. Beyond 32 bits, pairs could be chosen so that all have the same hash.
_POOL = Bounds(0, (1 << 32) - 1, "a pair of ints from 0 to 2^32 - 1")


def wrong(path: str, expected: str, actual: object) -> MalformedSnapshotError:
    """Return the error for a value, by what is expected at its path."""
    return MalformedSnapshotError(f"{path}: expected {expected}, got {actual}")


def expect(value: Any, kind: type | Bounds, path: str) -> Any:
    """Return a value of exactly this type, or a number within these bounds."""
    types = kind.types if isinstance(kind, Bounds) else (kind,)
    if type(value) not in types:
        actual = "nothing" if value is None else type(value).__name__
        raise wrong(path, types[0].__name__, actual)
    if isinstance(kind, Bounds) and not kind.low <= value <= kind.high:
        raise wrong(path, kind.expected, shown(str(value)))
    return value


def expect_all(values: object, kind: type | Bounds, path: str) -> list[Any]:
    """Return a list of values, each as ``expect`` returns it."""
    items = expect(values, list, path)
    return [expect(item, kind, f"{path}[{i}]") for i, item in enumerate(items)]


class Interner:
    """Gives equal values the same small id, in order of first appearance."""

    def __init__(self) -> None:
        self._ids: dict[object, int] = {}

    def id(self, value: object) -> int:
        """Return the id of a hashable value, a new one if it is new."""
        return self._ids.setdefault(value, len(self._ids))

    def ids(self, values: Sequence[object]) -> Int32Column:
        """Return the ids of many values, -1 for None."""
        # Ids follow the first appearances: the order of a set of strings changes from run to run.
        ids: dict[object, int] = {}
        for value in dict.fromkeys(values):
            ids[value] = -1 if value is None else self.id(value)
        return np.fromiter(map(ids.__getitem__, values), np.int32, len(values))

    def values(self) -> tuple[Any, ...]:
        """Return all values that have an id, which is the position."""
        return tuple(self._ids)


class Rows:
    """The dictionaries of one list in a file; ``row_path(i)`` is the path of row ``i``."""

    def __init__(self, rows: Sequence[object], row_path: RowPath) -> None:
        if not set(map(type, rows)) <= {dict}:
            for i, row in enumerate(rows):
                expect(row, dict, row_path(i))
        self.rows: Sequence[dict[str, object]] = rows  # type: ignore[assignment]  # checked above
        self.row_path = row_path

    @classmethod
    def of(cls, raw: object, path: str) -> "Rows":
        """Return the rows of a list at a path, none of None."""
        rows = [] if raw is None else expect(raw, list, path)
        return cls(rows, lambda i: f"{path}[{i}]")

    def __len__(self) -> int:
        return len(self.rows)

    def values(self, key: str) -> list[Any]:
        """Return the values of one key, None where it is missing."""
        return list(map(dict.get, self.rows, repeat(key)))

    def ints(
        self, key: str, bounds: Bounds | None = None, *, missing: int | None = None
    ) -> Int64Column:
        """Return the integers under a key, and ``missing`` where a row does not have it.

        Raises MalformedSnapshotError for such a row if ``missing`` is None. Unsigned 64-bit values
        wrap to negative ones. ``missing`` need not be within the bounds.
        """
        column = self.optional_ints(key, bounds, missing=missing)
        if column is None:
            if missing is None and len(self):
                expect(None, int, f"{self.row_path(0)}.{key}")
            column = np.full(len(self), missing or 0, np.int64)
        return column

    def optional_ints(
        self, key: str, bounds: Bounds | None = None, *, missing: int | None = None
    ) -> Int64Column | None:
        """Return the integers under one key, as ``ints`` does; None if no row has it."""
        values = self.values(key)
        kinds = set(map(type, values))
        if kinds <= {type(None)}:
            return None
        column: Int64Column | None = None
        if kinds == {int}:
            with suppress(OverflowError):
                column = np.array(values, np.int64)
        if column is None:
            checked = map(
                self._checked_int, range(len(values)), values, repeat(key), repeat(missing)
            )
            column = np.fromiter(checked, np.int64, len(values))
        if bounds is not None:
            among = None
            if missing is not None and not bounds.low <= missing <= bounds.high:
                among = column != missing
            check_range(column, bounds, key, row_path=self.row_path, among=among)
        return column

    def _checked_int(self, i: int, value: object, key: str, missing: int | None) -> int:
        if value is None and missing is not None:
            return missing
        number: int = expect(value, int, f"{self.row_path(i)}.{key}")
        # Torch's own C++ pickler wraps addresses like this.
        if _INT64_MAX < number < _UINT64:
            number -= _UINT64
        if not -_INT64_MAX - 1 <= number <= _INT64_MAX:
            raise MalformedSnapshotError(
                f"{self.row_path(i)}.{key}: an integer of more than 64 bits"
            )
        return number

    def codes(self, key: str, codes: Mapping[str, int]) -> Int8Column | None:
        """Return the codes of the words under a key; None where one of them has none."""
        values = self.values(key)
        try:
            return np.fromiter(map(codes.__getitem__, values), np.int8, len(values))
        except (KeyError, TypeError):
            return None

    def flags(self, key: str, *, value: object = True) -> BoolColumn:
        """Return where a key has a value, and one of its type."""
        kind = type(value)
        flags = [type(item) is kind and item == value for item in self.values(key)]
        return np.array(flags, bool)

    def texts(self, key: str) -> list[str | None]:
        """Return the texts under a key, None where it is missing."""
        values = self.values(key)
        if not set(map(type, values)) <= {str, type(None)}:
            for i, value in enumerate(values):
                if value is not None:
                    expect(value, str, f"{self.row_path(i)}.{key}")
        return values

    def text_ids(self, key: str, interner: Interner) -> Int32Column | None:
        """Return ids of the texts under a key, -1 where it is missing; None if no row has it."""
        values = self.texts(key)
        return interner.ids(values) if values.count(None) < len(values) else None

    def pool_ids(self, key: str, interner: Interner) -> Int32Column | None:
        """Return ids of the memory pools (pairs of integers) under a key; None if no row has it."""
        values = self.values(key)
        if set(map(type, values)) <= {type(None)}:
            return None
        for i, value in enumerate(values):
            if value is not None and not is_pool(value):
                raise MalformedSnapshotError(
                    f"{self.row_path(i)}.{key}: expected {_POOL.expected}"
                )
        pools = [None if value is None else tuple(value) for value in values]
        return interner.ids(pools)


def is_pool(value: object) -> bool:
    """Return whether a value is the id of a memory pool, a pair of integers."""
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return all(type(part) is int and _POOL.low <= part <= _POOL.high for part in value)


def check_range(
    column: Int64Column | None,
    bounds: Bounds,
    key: str,
    *,
    row_path: RowPath,
    among: BoolColumn | None = None,
) -> None:
    """Raise MalformedSnapshotError for the first value out of bounds in the marked rows."""
    if column is None or are_within(column, bounds):
        return  # as in every file that torch writes
    is_outside = (column < bounds.low) | (column > bounds.high)
    if among is not None:
        is_outside &= among
    if is_outside.any():
        i = int(is_outside.argmax())
        raise wrong(f"{row_path(i)}.{key}", bounds.expected, column[i])


def are_within(column: Int64Column, bounds: Bounds) -> bool:
    """Return whether no value is out of bounds."""
    if not len(column):
        return True
    return bool(column.min() >= bounds.low and column.max() <= bounds.high)


def check_total(column: Int64Column, path: str) -> None:
    """Raise MalformedSnapshotError if the sizes add up to more than any process can have moved."""
    if float(column.sum(dtype=np.float64)) > MAX_TOTAL_BYTES:
        raise MalformedSnapshotError(f"{path}: the sizes add up to more than 2^61 bytes")


def reject_shared(lists: Sequence[Any], row_path: RowPath) -> None:
    """Refuse a non-empty list that is in several places: a small file could mean endless rows."""
    first_rows: dict[int, int] = {}
    for i, rows in enumerate(lists):
        if rows:
            first = first_rows.setdefault(id(rows), i)
            if first != i:
                raise MalformedSnapshotError(
                    f"{row_path(i)} is the same list as {row_path(first)}; torch makes one for "
                    "each: dump torch.cuda.memory._snapshot() as it is"
                )


# --- files of JSON


@contextmanager
def errors_of(path: Path) -> Iterator[None]:
    """Put the file's name before every message, and turn the system's errors into ours."""
    try:
        yield
    except (InputError, UnsafePickleError) as error:
        raise type(error)(f"{path}: {error}") from error
    except OSError as error:
        reason = error.strerror or error
        raise InputError(f"{path}: cannot be read: {reason}; check the path") from error
    except MemoryError as error:
        raise InputError(f"{path}: it does not fit into this machine's memory") from error


def read_json_file(path: Path, max_bytes: int) -> tuple[Any, int]:
    """Read a file of JSON; return its value and its size.

    Raises MalformedSnapshotError for more than ``max_bytes``.
    """
    with open_input(path) as file:
        text = file.read(max_bytes + 1)
    if len(text) > max_bytes:
        raise MalformedSnapshotError(
            f"the file is larger than {max_bytes >> 20} MiB, as none of its kind is"
        )
    return parse_json(text), len(text)


def parse_json(text: bytes, *, is_lenient: bool = False) -> Any:
    """Return the value of a file's JSON text; ``is_lenient`` is that of ``read_json``.

    Raises TruncatedFileError where it breaks off, MalformedSnapshotError where it is no JSON.
    """
    if not text.strip():
        raise TruncatedFileError("the file is empty")
    try:
        return read_json(text.removeprefix(b"\xef\xbb\xbf"), is_lenient=is_lenient)
    except JsonError as error:
        if error.is_truncated:
            raise TruncatedFileError.of("the JSON text", len(text)) from error
        raise MalformedSnapshotError(f"no JSON text: {error}") from error
