"""timing.json -> columns: the times that a capture has of its operations. docs/timing.md has the schema.

The file is as little trusted as a snapshot: every value is checked before anything uses it.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, MsColumn
from snapconv.errors import InputError, MalformedSnapshotError, TruncatedFileError
from snapconv.notes import Note
from snapconv.snapshot.fields import Interner, shown
from snapconv.snapshot.stack_table import FrameTable, StackTable

VERSION = 1
PHASES = ("forward", "backward", "optimizer", "other")
CLOCKS = ("cuda", "cpu")
_COLUMNS = (
    "iteration", "name", "phase", "module", "stack",
    "forward_ms", "backward_ms", "backward_strict_ms", "host_ms",
)  # fmt: skip

# A call takes 100 bytes: this is millions of them, and as JSON no more than a few GiB of memory.
_MAX_BYTES = 256 << 20
# A list takes 60 bytes of memory and may take 2 of the file. Ours have 8 characters each at least.
_MIN_CONTAINER_BYTES, _FEW_CONTAINERS = 8, 1_000_000
_MAX_MS = 1e12
_MAX_LINE = 2**31 - 1
_MAX_INT = 2**62
_MAX_TEXT = 4096


@dataclass(frozen=True, slots=True)
class TimedIteration:
    """What was measured around the phases of one iteration; None for a phase that did not happen."""

    iteration: int
    forward_ms: float | None
    backward_ms: float | None
    optimizer_ms: float | None
    bookkeeping_ms: float | None


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """How often the device had come to a call (or node) before all its work was queued: it waited.

    ``n`` calls in all; ``device_ms`` and ``host_ms`` are what they took together, on either side.
    """

    phase: str
    n: int
    n_waited_for: int
    device_ms: float
    host_ms: float


@dataclass(frozen=True, slots=True)
class CallTable:
    """One row per call, in the order of calls; NaN and -1 where there is nothing.

    ``name_id`` and ``module_id`` are positions in Timing.texts, ``phase`` one in PHASES.
    """

    iteration: Int64Column
    name_id: Int32Column
    phase: Int8Column
    module_id: Int32Column
    stack_id: Int32Column
    forward_ms: MsColumn
    backward_ms: MsColumn
    backward_strict_ms: MsColumn
    host_ms: MsColumn

    def __len__(self) -> int:
        return len(self.iteration)


@dataclass(frozen=True, slots=True)
class Timing:
    """A timing trace as columns.

    ``is_warm_up``: its one iteration is the timer's warm-up, as the program ended with it. ``is_of_module``
    says of every frame whether its ``self`` is a module.
    """

    path: Path
    written_by: tuple[str, str]
    clock: str
    is_simulated: bool
    device: int
    device_name: str
    is_warm_up: bool
    project_root: str
    iterations: tuple[TimedIteration, ...]
    launch_bound: tuple[LaunchCounts, ...]
    empty_pair_ms: float | None
    overflowed: bool
    stacks: StackTable
    is_of_module: BoolColumn
    texts: tuple[str, ...]
    calls: CallTable


def load_timing(path: str | Path) -> tuple[Timing | None, tuple[Note, ...]]:
    """Read a timing.json.

    A version that is not known gives a note and no Timing. Raises InputError (MalformedSnapshotError,
    TruncatedFileError) with the file and the place in it.
    """
    path = Path(path)
    try:
        raw = _expect(_read_json(path), dict, "the file")
        version = _int(raw, "version", "")
        if version != VERSION:
            message = (
                f"{path.name} is of version {version}, and only {VERSION} is known here: there are no times"
            )
            return None, (Note("unknown-timing-version", message),)
        return _timing(path, raw), ()
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error
    except MemoryError as error:
        raise InputError(f"{path}: the file does not fit into this machine's memory") from error


def _read_json(path: Path) -> object:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}; check the path") from error
    if not data.strip():
        raise TruncatedFileError("the file is empty")
    if len(data) > _MAX_BYTES:
        raise MalformedSnapshotError(f"the file is larger than {_MAX_BYTES >> 20} MiB, as no timing trace is")
    if data.count(b"[") + data.count(b"{") > max(len(data) // _MIN_CONTAINER_BYTES, _FEW_CONTAINERS):
        raise MalformedSnapshotError("the file is little more than empty lists: not read")
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        if error.pos >= len(data.decode("utf-8", "replace").rstrip()) - 1:
            raise TruncatedFileError(f"the JSON text breaks off at byte {len(data)}") from error
        raise MalformedSnapshotError(f"no JSON text: character {error.pos}: {shown(error.msg)}") from error


def _timing(path: Path, raw: dict[str, Any]) -> Timing:
    stacks, is_of_module = _stacks(_list(raw, "stacks", ""))
    texts = Interner()
    calls = _calls(_expect(raw.get("calls"), dict, "calls"), len(stacks), texts)
    clock = _text(raw, "clock", "")
    if clock not in CLOCKS:
        raise MalformedSnapshotError(f"clock: expected cuda or cpu, got {shown(clock)}")
    iterations = _iterations(_list(raw, "iterations", ""))
    numbers = np.array([iteration.iteration for iteration in iterations], np.int64)
    unknown = ~np.isin(calls.iteration, numbers)
    if unknown.any():
        i = int(unknown.argmax())
        raise MalformedSnapshotError(f"calls.iteration[{i}]: {int(calls.iteration[i])} is in no iteration")
    return Timing(
        path=path,
        written_by=(_text(raw, "snapconv", ""), _text(raw, "torch", "")),
        clock=clock,
        is_simulated=_expect(raw.get("simulated"), bool, "simulated"),
        device=_int(raw, "device", ""),
        device_name=_text(raw, "device_name", ""),
        is_warm_up=_expect(raw.get("warm_up", False), bool, "warm_up"),
        project_root=_text(raw, "project_root", ""),
        iterations=iterations,
        launch_bound=_launch_bound(raw.get("launch_bound")),
        empty_pair_ms=_ms(raw, "empty_pair_ms", ""),
        overflowed=_expect(raw.get("overflowed", False), bool, "overflowed"),
        stacks=stacks,
        is_of_module=is_of_module,
        texts=tuple(map(str, texts.values())),
        calls=calls,
    )


def _iterations(raw: list[Any]) -> tuple[TimedIteration, ...]:
    if not raw:
        raise MalformedSnapshotError("iterations: expected at least one")
    found = tuple(_iteration(row, f"iterations[{i}]") for i, row in enumerate(raw))
    if len({iteration.iteration for iteration in found}) < len(found):
        raise MalformedSnapshotError("iterations: two have the same number")
    return found


def _iteration(raw: object, where: str) -> TimedIteration:
    row = _expect(raw, dict, where)
    times = (_ms(row, f"{name}_ms", where) for name in ("forward", "backward", "optimizer", "bookkeeping"))
    return TimedIteration(_int(row, "iteration", where), *times)


def _launch_bound(raw: object) -> tuple[LaunchCounts, ...]:
    if raw is None:
        return ()
    phases = _expect(raw, dict, "launch_bound")
    return tuple(
        _launch_counts(phase, _expect(phases[phase], dict, f"launch_bound.{phase}"))
        for phase in PHASES
        if phase in phases
    )


def _launch_counts(phase: str, row: dict[str, Any]) -> LaunchCounts:
    where = f"launch_bound.{phase}"
    counts = (_int(row, key, where) for key in ("n", "n_waited_for"))
    times = (_ms(row, key, where) or 0.0 for key in ("device_ms", "host_ms"))
    return LaunchCounts(phase, *counts, *times)


# --- the columns of the calls


def _calls(raw: dict[str, Any], n_stacks: int, texts: Interner) -> CallTable:
    columns = {key: _list(raw, key, "calls") for key in _COLUMNS}
    n_calls = len(columns["iteration"])
    for key, values in columns.items():
        if len(values) != n_calls:
            message = f"expected {n_calls} values as in calls.iteration, got {len(values)}"
            raise MalformedSnapshotError(f"calls.{key}: {message}")
    for key, is_right in (
        ("iteration", _is_count),
        ("phase", PHASES.__contains__),
        ("stack", lambda value: type(value) is int and -1 <= value < n_stacks),
    ):
        _check(key, columns[key], is_right)
    table = CallTable(
        iteration=np.array(columns["iteration"], np.int64),
        name_id=_text_ids("name", columns["name"], texts),
        phase=np.array([PHASES.index(phase) for phase in columns["phase"]], np.int8),
        module_id=_text_ids("module", columns["module"], texts, may_be_missing=True),
        stack_id=np.array(columns["stack"], np.int32),
        forward_ms=_ms_column("forward_ms", columns),
        backward_ms=_ms_column("backward_ms", columns),
        backward_strict_ms=_ms_column("backward_strict_ms", columns),
        host_ms=_ms_column("host_ms", columns),
    )
    _check_forward(table)
    for column in (getattr(table, field.name) for field in fields(table)):
        column.setflags(write=False)
    return table


def _check_forward(table: CallTable) -> None:
    """A call has a time of its own; only a row of phase backward is about nodes that no call made."""
    wrong = np.isnan(table.forward_ms) & (table.phase != PHASES.index("backward"))
    if wrong.any():
        raise MalformedSnapshotError(f"calls.forward_ms[{int(wrong.argmax())}]: expected a number, got null")


def _check(key: str, values: list[Any], is_right: Callable[[Any], bool]) -> None:
    """Raise for the first value that cannot be right."""
    for i, value in enumerate(values):
        if not is_right(value):
            raise MalformedSnapshotError(f"calls.{key}[{i}]: {shown(repr(value))} cannot be right")


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MAX_INT


def _is_ms(value: object) -> bool:
    return type(value) in (int, float) and 0 <= value < _MAX_MS  # type: ignore[operator]  # a number


def _ms_column(key: str, columns: dict[str, list[Any]]) -> MsColumn:
    values = columns[key]
    _check(key, values, lambda value: value is None or _is_ms(value))
    return np.array([math.nan if value is None else value for value in values], np.float64)


def _text_ids(key: str, values: list[Any], texts: Interner, *, may_be_missing: bool = False) -> Int32Column:
    _check(key, values, lambda value: type(value) is str or (value is None and may_be_missing))
    ids = (-1 if value is None else texts.id(value[:_MAX_TEXT]) for value in values)
    return np.fromiter(ids, np.int32, len(values))


# --- the stacks


def _stacks(raw: list[Any]) -> tuple[StackTable, BoolColumn]:
    frames = Interner()
    stacks: list[list[int]] = []
    for i, stack in enumerate(raw):
        where = f"stacks[{i}]"
        stacks.append(
            [
                frames.id(_frame(frame, f"{where}[{place}]"))
                for place, frame in enumerate(_expect(stack, list, where))
            ]
        )
    offsets = np.concatenate(([0], np.cumsum(np.array([len(stack) for stack in stacks], np.int64))))
    frame_ids = np.fromiter(chain.from_iterable(stacks), np.int32, int(offsets[-1]))
    rows: Sequence[Any] = frames.values()
    filenames, lines, names, is_of_module = zip(*rows, strict=True) if rows else ((), (), (), ())
    columns = (
        np.array(lines, np.int64),
        offsets.astype(np.int64),
        frame_ids,
        np.array(is_of_module, np.bool_),
    )
    for column in columns:
        column.setflags(write=False)
    none = ("",) * len(rows)
    table = FrameTable(tuple(names), tuple(filenames), columns[0], none, none)
    return StackTable(table, columns[1], columns[2]), columns[3]


def _frame(raw: object, where: str) -> tuple[str, int, str, bool]:
    if isinstance(raw, list) and tuple(map(type, raw)) == (str, int, str, bool):
        filename, line, name, is_of_module = raw
        if 0 <= line <= _MAX_LINE:
            return filename[:_MAX_TEXT], line, name[:_MAX_TEXT], is_of_module
    raise MalformedSnapshotError(f"{where}: expected [file, line, function, whether self is a module]")


# --- single values


def _expect(value: Any, kind: type, where: str) -> Any:
    if type(value) is not kind:
        got = "nothing" if value is None else type(value).__name__
        raise MalformedSnapshotError(f"{where}: expected {kind.__name__}, got {got}")
    return value


def _at(where: str, key: str) -> str:
    return f"{where}.{key}" if where else key


def _list(raw: dict[str, Any], key: str, where: str) -> list[Any]:
    found: list[Any] = _expect(raw.get(key), list, _at(where, key))
    return found


def _text(raw: dict[str, Any], key: str, where: str) -> str:
    return str(_expect(raw.get(key), str, _at(where, key)))[:_MAX_TEXT]


def _int(raw: dict[str, Any], key: str, where: str) -> int:
    value = _expect(raw.get(key), int, _at(where, key))
    if not _is_count(value):
        raise MalformedSnapshotError(f"{_at(where, key)}: {value} cannot be right")
    return int(value)


def _ms(raw: dict[str, Any], key: str, where: str) -> float | None:
    value = raw.get(key)
    if value is None:
        return None
    if not _is_ms(value):
        raise MalformedSnapshotError(f"{_at(where, key)}: {shown(repr(value))} cannot be right")
    return float(value)
