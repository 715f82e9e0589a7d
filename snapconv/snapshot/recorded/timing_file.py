"""timing.json -> columns: the times that a capture has of its operations.

docs/reference/capture.md describes the file. It is as untrusted as a snapshot: every value is
checked before anything uses it.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from snapconv.columns import (
    BoolColumn,
    Int8Column,
    Int32Column,
    Int64Column,
    MsColumn,
    read_only,
)
from snapconv.errors import MalformedSnapshotError
from snapconv.files import timing_file
from snapconv.notes import Note
from snapconv.snapshot.fields import (
    Bounds,
    Interner,
    errors_of,
    expect,
    read_json_file,
    wrong,
)
from snapconv.snapshot.stack_table import StackTable, stack_table
from snapconv.units import shown

VERSION = 1
PHASES = ("forward", "backward", "optimizer", "other")
CLOCKS = ("cuda", "cpu")
# A call takes 100 bytes: this is millions of them, and as JSON no more than a few GiB of memory.
_MAX_BYTES = 256 << 20
_MAX_TEXT = 4096


@dataclass(frozen=True, slots=True)
class TimedIteration:
    """The times measured around the phases of one iteration; None for a missing phase."""

    iteration: int
    forward_ms: float | None = None
    backward_ms: float | None = None
    optimizer_ms: float | None = None


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """The calls (or nodes) of a phase, and the launch-bound ones: the GPU waited for the CPU."""

    phase: str
    n_calls: int
    n_waited_for: int


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
    host_ms: MsColumn

    def __len__(self) -> int:
        return len(self.iteration)


@dataclass(frozen=True, slots=True)
class Timing:
    """A timing trace as columns; ``n_bytes`` is the size of its file.

    ``written_by`` are the versions of snapconv and torch. ``is_of_module`` has for every frame
    whether its ``self`` is a module.
    """

    path: Path
    n_bytes: int
    written_by: tuple[str, str]
    clock: str
    is_simulated: bool
    device: int
    device_name: str
    project_root: str
    iterations: tuple[TimedIteration, ...]
    launch_bound: tuple[LaunchCounts, ...]
    overflowed: bool
    stacks: StackTable
    is_of_module: BoolColumn
    texts: tuple[str, ...]
    calls: CallTable


_COUNT = Bounds(0, (1 << 62) - 1, "0 to 2^62 - 1")
_LINE = Bounds(0, (1 << 31) - 1, "0 to 2^31 - 1")
_MILLISECONDS = Bounds(0, 10**12, "0 to 10^12 milliseconds", (float, int))
# The columns of the calls as they are written, docs/reference/capture.md.
_COLUMNS: dict[str, type | Bounds] = {
    "iteration": _COUNT,
    "stack": Bounds(-1, (1 << 31) - 1, "-1 to 2^31 - 1"),
    "forward_ms": _MILLISECONDS,
    "backward_ms": _MILLISECONDS,
    "host_ms": _MILLISECONDS,
    "name": str,
    "phase": str,
    "module": str,
}
_MAY_BE_NULL = ("forward_ms", "backward_ms", "host_ms", "module")
# File, line, function, whether its self is a module.
_FRAME: tuple[type | Bounds, ...] = (str, _LINE, str, bool)


def load_timing(path: str | Path) -> tuple[Timing | None, tuple[Note, ...]]:
    """Read a timing.json.

    A version that is not known gives a note and no Timing, and so does what is no regular file.
    Raises InputError (MalformedSnapshotError, TruncatedFileError) with the file and the place in
    it.
    """
    path = Path(path)
    if os.path.lexists(path) and not path.is_file():
        message = f"{path.name} is no regular file: there are no times"
        return None, (Note("unreadable-times", message),)
    with errors_of(path):
        raw, n_bytes = read_json_file(path, _MAX_BYTES)
        trace = _Object(raw, "")
        version = trace.value("version", _COUNT)
        if version != VERSION:
            message = (
                f"{path.name} is of version {version}, and only {VERSION} is known "
                f"here: there are no times"
            )
            return None, (Note("unknown-timing-version", message),)
        return _timing(path, n_bytes, trace), ()


class CaptureTimes:
    """The times of the capture at a path, read once: when they are first needed."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _timing_and_notes(self) -> tuple[Timing | None, tuple[Note, ...]]:
        file = timing_file(self._path)
        return (None, ()) if file is None else load_timing(file)

    @property
    def timing(self) -> Timing | None:
        """The times; None for a snapshot, and for a capture that has none that can be read."""
        timing, _ = self._timing_and_notes
        return timing

    @property
    def notes(self) -> tuple[Note, ...]:
        """The notes about times that cannot be read."""
        _, notes = self._timing_and_notes
        return notes

    def of_device(self, number: int | None) -> Timing | None:
        """Return the times, where they are those of a device; None for any device."""
        timing = self.timing
        return timing if timing and number in (None, timing.device) else None


class _Object:
    """A JSON object, and its path in the file."""

    def __init__(self, value: object, path: str) -> None:
        self._values: dict[str, Any] = expect(value, dict, path or "the file")
        self._path = path

    def value(self, key: str, kind: type | Bounds) -> Any:
        """Return the value of a key that must be there."""
        path = f"{self._path}.{key}" if self._path else key
        return expect(self._values.get(key), kind, path)

    def text(self, key: str) -> str:
        """Return the text of a key that must be there, cut where it is very long."""
        text: str = self.value(key, str)
        return text[:_MAX_TEXT]

    def optional(self, key: str, kind: type | Bounds, missing: Any = None) -> Any:
        """Return the value of a key, or ``missing`` for null, and where the key is not there."""
        return missing if self._values.get(key) is None else self.value(key, kind)


def _timing(path: Path, n_bytes: int, trace: _Object) -> Timing:
    clock = trace.value("clock", str)
    if clock not in CLOCKS:
        raise wrong("clock", "cuda or cpu", shown(clock))
    iterations = _iterations(trace)
    stacks, is_of_module = _stacks(trace)
    texts = Interner()
    calls = _call_table(trace.value("calls", dict), iterations, len(stacks), texts)
    timing = Timing(
        path=path,
        n_bytes=n_bytes,
        written_by=(trace.text("snapconv"), trace.text("torch")),
        clock=clock,
        is_simulated=trace.value("simulated", bool),
        device=trace.value("device", _COUNT),
        device_name=trace.text("device_name"),
        project_root=trace.text("project_root"),
        iterations=iterations,
        launch_bound=_launch_counts(trace),
        overflowed=trace.optional("overflowed", bool, missing=False),
        stacks=stacks,
        is_of_module=is_of_module,
        texts=texts.values(),
        calls=calls,
    )
    return read_only(timing)


def _iterations(trace: _Object) -> tuple[TimedIteration, ...]:
    iterations = []
    for i, value in enumerate(trace.value("iterations", list)):
        row = _Object(value, f"iterations[{i}]")
        times = {
            f"{phase}_ms": row.optional(f"{phase}_ms", _MILLISECONDS)
            for phase in PHASES
            if phase != "other"
        }
        iterations.append(TimedIteration(iteration=row.value("iteration", _COUNT), **times))
    if not iterations:
        raise MalformedSnapshotError("iterations: expected one at least")
    if len({iteration.iteration for iteration in iterations}) < len(iterations):
        raise MalformedSnapshotError("iterations: two have the same number")
    return tuple(iterations)


def _launch_counts(trace: _Object) -> tuple[LaunchCounts, ...]:
    raw = trace.optional("launch_bound", dict, missing={})
    counts = []
    for phase in ("forward", "backward"):
        if raw.get(phase) is not None:
            row = _Object(raw[phase], f"launch_bound.{phase}")
            n_calls = row.value("n", _COUNT)
            counts.append(LaunchCounts(phase, n_calls, row.value("n_waited_for", _COUNT)))
    return tuple(counts)


# --- the columns of the calls


def _call_table(
    raw: dict[str, object],
    iterations: Sequence[TimedIteration],
    n_stacks: int,
    texts: Interner,
) -> CallTable:
    columns = _call_columns(raw)
    phase_ids = {phase: i for i, phase in enumerate(PHASES)}
    phase = [phase_ids.get(name, -1) for name in columns["phase"]]
    table = CallTable(
        iteration=columns["iteration"],
        name_id=_text_ids(columns["name"], texts),
        phase=np.array(phase, np.int8),
        module_id=_text_ids(columns["module"], texts),
        stack_id=columns["stack"].astype(np.int32),
        forward_ms=columns["forward_ms"],
        backward_ms=columns["backward_ms"],
        host_ms=columns["host_ms"],
    )
    _check_calls(table, raw, [row.iteration for row in iterations], n_stacks)
    return read_only(table)


def _check_calls(
    table: CallTable, raw: dict[str, Any], iterations: list[int], n_stacks: int
) -> None:
    # A call has a time of its own; only a row of phase backward is about nodes that no call made.
    is_untimed = np.isnan(table.forward_ms) & (table.phase != PHASES.index("backward"))
    is_unknown = ~np.isin(table.iteration, iterations)
    checks = (
        ("phase", table.phase < 0, f"one of {', '.join(PHASES)}"),
        ("stack", table.stack_id >= n_stacks, f"-1 or one of {n_stacks} stacks"),
        ("forward_ms", is_untimed, "a number"),
        ("host_ms", np.isnan(table.host_ms), "a number"),
        ("iteration", is_unknown, "the number of one of the iterations"),
    )
    for key, is_wrong, expected in checks:
        if is_wrong.any():
            i = int(is_wrong.argmax())
            raise wrong(f"calls.{key}[{i}]", expected, shown(str(raw[key][i])))


def _call_columns(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the checked values, all of one length: numbers as columns, texts as they are."""
    for key in _COLUMNS:
        expect(raw.get(key), list, f"calls.{key}")
    n_calls = len(raw["iteration"])
    for key in _COLUMNS:
        if len(raw[key]) != n_calls:
            expected = f"{n_calls} values as in calls.iteration"
            raise wrong(f"calls.{key}", expected, len(raw[key]))
    return {key: _checked(key, raw[key], kind) for key, kind in _COLUMNS.items()}


def _checked(key: str, values: list[Any], kind: type | Bounds) -> Any:
    """Return texts as they are, and numbers as a column: int64, or float64 with NaN for null."""
    may_be_null = key in _MAY_BE_NULL
    types = set(kind.types) if isinstance(kind, Bounds) else {kind}
    if may_be_null:
        types.add(type(None))
    if set(map(type, values)) <= types:
        if not isinstance(kind, Bounds):
            return values
        with suppress(OverflowError):
            column = np.array(values, np.float64 if may_be_null else np.int64)
            # A comparison with NaN is false.
            if not ((column < kind.low) | (column > kind.high)).any():
                return column
    for i, value in enumerate(values):
        if value is not None or not may_be_null:
            expect(value, kind, f"calls.{key}[{i}]")
    raise AssertionError(f"calls.{key} has nothing wrong")


def _text_ids(values: Sequence[str | None], texts: Interner) -> Int32Column:
    return texts.ids([value if value is None else value[:_MAX_TEXT] for value in values])


# --- the stacks


def _stacks(trace: _Object) -> tuple[StackTable, BoolColumn]:
    interner = Interner()
    stacks: list[Int32Column] = []
    for i, stack in enumerate(trace.value("stacks", list)):
        frames = []
        for k, frame in enumerate(expect(stack, list, f"stacks[{i}]")):
            path = f"stacks[{i}][{k}]"
            if len(expect(frame, list, path)) != len(_FRAME):
                raise wrong(path, f"{len(_FRAME)} values", len(frame))
            for n, (value, kind) in enumerate(zip(frame, _FRAME, strict=True)):
                expect(value, kind, f"{path}[{n}]")
            file, line, name, is_of_module = frame
            frames.append((name[:_MAX_TEXT], file[:_MAX_TEXT], line, is_of_module))
        stacks.append(interner.ids(frames))
    rows = interner.values()
    table = stack_table([row[:3] for row in rows], stacks)
    return table, np.array([row[3] for row in rows], bool)
