"""Pull one field out of many of torch's dictionaries at once, as a column.

Every function takes the dictionaries, a key, and the path of the list in the file, and raises
MalformedSnapshotError with the full path of the first value that cannot be right, such as
``device_traces[0][1523].size: expected int, got str``.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat
from typing import NamedTuple

import numpy as np

from snapconv.columns import BoolColumn, Int32Column, Int64Column
from snapconv.errors import MalformedSnapshotError
from snapconv.units import shown

Path = Callable[[int], str]

_UINT64 = 1 << 64
_INT64_MAX = (1 << 63) - 1
_MANY_KEYS = 100


class Bounds(NamedTuple):
    """The range of a number, and its description."""

    low: int
    high: int
    expected: str


# No device has 256 TiB, and no machine addresses beyond 57 bits from either end. Within these bounds
# no sum or difference that the analysis makes overflows int64.
BYTES = Bounds(0, 1 << 48, "0 to 2^48 bytes")
ADDRESS = Bounds(-(1 << 62), 1 << 62, "an address of at most 62 bits from either end")
TIME = Bounds(-(1 << 62), 1 << 62, "microseconds of at most 62 bits")
# torch's DeviceIndex is an int8.
DEVICE = Bounds(0, 127, "a device from 0 to 127")
MAX_TOTAL_BYTES = 1 << 61
# Pools are numbered from 1. Beyond 32 bits, pairs could be chosen so that all have the same hash.
_POOL = Bounds(0, (1 << 32) - 1, "a pair of ints from 0 to 2^32 - 1")


def wrap_int64(value: int) -> int:
    """Map an unsigned 64-bit value into int64, as torch's own C++ pickler does for addresses."""
    return value - _UINT64 if _INT64_MAX < value < _UINT64 else value


def expect(value: object, kind: type, path: str) -> None:
    """Raise MalformedSnapshotError unless the value is of exactly this type."""
    if type(value) is not kind:
        raise MalformedSnapshotError(f"{path}: expected {kind.__name__}, got {type(value).__name__}")


def expect_dicts(rows: Sequence[object], path: Path) -> None:
    """Raise MalformedSnapshotError unless every element is a dictionary."""
    if set(map(type, rows)) <= {dict}:
        return
    for i, row in enumerate(rows):
        expect(row, dict, path(i))


def raw_column(rows: Sequence[dict[str, object]], key: str) -> list[object]:
    """Return the values of one key, None where it is missing."""
    return list(map(dict.get, rows, repeat(key)))


def present_keys(
    rows: Sequence[dict[str, object]], known: frozenset[str], unknown: Counter[str]
) -> set[object]:
    """Return all keys that occur; those that are not known are counted."""
    if max(map(len, rows), default=0) > _MANY_KEYS:
        # One huge dictionary may stand in the list many times over; torch repeats none.
        rows = list({id(row): row for row in rows}.values())
    keys: set[object] = set().union(*rows)
    if not keys <= known:
        unknown.update(shown(key) for row in rows for key in row if key not in known and type(key) is str)
    return keys


def int_column(
    rows: Sequence[dict[str, object]], key: str, *, path: Path, missing: int | None = None
) -> Int64Column | None:
    """Return the integers under one key; None if no row has it.

    ``missing`` fills the rows that lack the key; without it a row that lacks the key is an error
    when another has it. Unsigned 64-bit values wrap to negative ones.
    """
    values = raw_column(rows, key)
    kinds = set(map(type, values))
    if kinds <= {type(None)}:
        return None
    if kinds == {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass
    return np.fromiter(
        map(_checked_ints(key, path, missing), range(len(values)), values), np.int64, len(values)
    )


def _checked_ints(key: str, path: Path, missing: int | None) -> Callable[[int, object], int]:
    def check(i: int, value: object) -> int:
        if value is None and missing is not None:
            return missing
        if type(value) is not int:
            got = "nothing" if value is None else type(value).__name__
            raise MalformedSnapshotError(f"{path(i)}.{key}: expected int, got {got}")
        wrapped = wrap_int64(value)
        if not -_INT64_MAX - 1 <= wrapped <= _INT64_MAX:
            raise MalformedSnapshotError(f"{path(i)}.{key}: an integer of more than 64 bits")
        return wrapped

    return check


def check_range(
    column: Int64Column | None,
    bounds: Bounds,
    key: str,
    *,
    path: Path,
    where: BoolColumn | None = None,
) -> None:
    """Raise MalformedSnapshotError for the first value out of bounds, among the rows marked in ``where``."""
    if column is None or not len(column):
        return
    if are_within(column, bounds):
        return  # as in every file that torch writes
    wrong = (column < bounds.low) | (column > bounds.high)
    if where is not None:
        wrong &= where
    if wrong.any():
        i = int(wrong.argmax())
        raise MalformedSnapshotError(f"{path(i)}.{key}: expected {bounds.expected}, got {int(column[i])}")


def are_within(column: Int64Column, bounds: Bounds) -> bool:
    """Return whether no value is out of bounds."""
    return not len(column) or bool(column.min() >= bounds.low and column.max() <= bounds.high)


def check_total(column: Int64Column, what: str) -> None:
    """Raise MalformedSnapshotError if the sizes add up to more than any process can have moved."""
    if float(column.sum(dtype=np.float64)) > MAX_TOTAL_BYTES:
        raise MalformedSnapshotError(f"{what}: the sizes add up to more than 2^61 bytes")


def required_int_column(rows: Sequence[dict[str, object]], key: str, *, path: Path) -> Int64Column:
    """Return the integers under a key that every row must have."""
    column = int_column(rows, key, path=path)
    if column is None:
        if rows:
            raise MalformedSnapshotError(f"{path(0)}.{key}: expected int, got nothing")
        return np.empty(0, np.int64)
    return column


class Interner:
    """Gives equal values the same small id, in order of first appearance."""

    def __init__(self) -> None:
        self._ids: dict[object, int] = {}

    def id(self, value: object) -> int:
        """Return the id of a hashable value, a new one if it is new."""
        return self._ids.setdefault(value, len(self._ids))

    def ids(self, values: Iterable[object], n_values: int) -> Int32Column:
        """Return the ids of many values."""
        return np.fromiter(map(self.id, values), np.int32, n_values)

    def values(self) -> tuple[object, ...]:
        """Return all values seen; the position is the id."""
        return tuple(self._ids)


def text_column(
    rows: Sequence[dict[str, object]], key: str, interner: Interner, *, path: Path
) -> Int32Column | None:
    """Return ids of the strings under one key, -1 where it is missing; None if no row has it."""
    values = raw_column(rows, key)
    kinds = set(map(type, values))
    if kinds <= {type(None)}:
        return None
    if not kinds <= {str, type(None)}:
        for i, value in enumerate(values):
            if value is not None:
                expect(value, str, f"{path(i)}.{key}")
    # In order of first appearance: the order of a set of strings changes from run to run.
    ids = {value: -1 if value is None else interner.id(value) for value in dict.fromkeys(values)}
    return np.fromiter(map(ids.__getitem__, values), np.int32, len(values))


def pool_column(
    rows: Sequence[dict[str, object]], key: str, interner: Interner, *, path: Path
) -> Int32Column | None:
    """Return ids of the memory pools (pairs of integers) under one key; None if no row has it."""
    values = raw_column(rows, key)
    if set(map(type, values)) <= {type(None)}:
        return None
    ids = np.empty(len(values), np.int32)
    for i, value in enumerate(values):
        if value is None:
            ids[i] = -1
            continue
        if not _is_pool(value):
            raise MalformedSnapshotError(f"{path(i)}.{key}: expected {_POOL.expected}")
        ids[i] = interner.id(tuple(value))  # type: ignore[arg-type]  # a pair, checked above
    return ids


def _is_pool(value: object) -> bool:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return False
    return all(type(part) is int and _POOL.low <= part <= _POOL.high for part in value)


def reject_shared(lists: Sequence[object], path: Path) -> None:
    """Refuse one non-empty list standing in several places: a small file could mean endless rows."""
    first: dict[int, int] = {}
    for i, rows in enumerate(lists):
        if rows and first.setdefault(id(rows), i) != i:
            raise MalformedSnapshotError(
                f"{path(i)} is the same list as {path(first[id(rows)])}; torch makes one for each: dump "
                "torch.cuda.memory._snapshot() as it is"
            )
