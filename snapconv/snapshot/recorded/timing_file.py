"""timing.json -> columns: the times that a capture has of its operations. See docs/reference/capture.md.

The file is as untrusted as a snapshot: every value is checked before anything uses it.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, MsColumn, read_only
from snapconv.errors import InputError, MalformedSnapshotError, TruncatedFileError
from snapconv.files import open_input
from snapconv.json_text import json_shown
from snapconv.notes import Note
from snapconv.snapshot.fields import Interner
from snapconv.snapshot.recorded.json_object import (
    ARRAY,
    COUNT,
    FLAG,
    MILLISECONDS,
    TEXT,
    JsonObject,
    Kind,
    read_unchecked_json,
    type_name,
)
from snapconv.snapshot.stack_table import FrameTable, StackTable

VERSION = 1
PHASES = ("forward", "backward", "optimizer", "other")
CLOCKS = ("cuda", "cpu")
# A call takes 100 bytes: this is millions of them, and as JSON no more than a few GiB of memory.
_MAX_BYTES = 256 << 20
_MAX_TEXT = 4096

_TIMED_PHASES = ("forward", "backward", "optimizer", "bookkeeping")


@dataclass(frozen=True, slots=True)
class TimedIteration:
    """The times measured around the phases of one iteration; None for a phase that did not happen."""

    iteration: int
    forward_ms: float | None = None
    backward_ms: float | None = None
    optimizer_ms: float | None = None
    bookkeeping_ms: float | None = None


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """The counts of calls (or nodes) that the device reached before all their work was queued: it waited.

    ``device_ms`` and ``host_ms`` are what they took together, on either side.
    """

    phase: str
    n_calls: int
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
    """A timing trace as columns; ``n_bytes`` is the size of its file.

    ``is_warm_up``: its one iteration is the timer's warm-up, as the program ended with it. ``is_of_module``
    has for every frame whether its ``self`` is a module.
    """

    path: Path
    n_bytes: int
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


# The columns of the calls as they are written, docs/reference/capture.md.
_OPTIONAL_MS = MILLISECONDS.or_null()
_TEXTS = {"name": TEXT, "phase": TEXT, "module": TEXT.or_null()}
_NUMBERS = {
    "iteration": COUNT,
    "stack": Kind((int,), "int", -1, 1 << 31),
    **dict.fromkeys(("forward_ms", "backward_ms", "backward_strict_ms", "host_ms"), _OPTIONAL_MS),
}
# File, line, function, whether its self is a module.
_FRAME = (TEXT, Kind((int,), "int", 0, 1 << 31), TEXT, FLAG)


def load_timing(path: str | Path) -> tuple[Timing | None, tuple[Note, ...]]:
    """Read a timing.json.

    A version that is not known gives a note and no Timing, and so does what is no regular file. Raises
    InputError (MalformedSnapshotError, TruncatedFileError) with the file and the place in it.
    """
    path = Path(path)
    if os.path.lexists(path) and not path.is_file():
        message = f"{path.name} is no regular file: there are no times"
        return None, (Note("unreadable-times", message),)
    try:
        text = _text_of(path)
        trace = JsonObject(read_unchecked_json(text), "")
        version = trace.value("version", COUNT)
        if version != VERSION:
            message = (
                f"{path.name} is of version {version}, and only {VERSION} is known here: there are no times"
            )
            return None, (Note("unknown-timing-version", message),)
        return _timing(path, len(text), trace), ()
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error
    except MemoryError as error:
        raise InputError(f"{path}: the file does not fit into this machine's memory") from error


def _text_of(path: Path) -> bytes:
    try:
        with open_input(path) as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}; check the path") from error
    if not text.strip():
        raise TruncatedFileError("the file is empty")
    if len(text) > _MAX_BYTES:
        raise MalformedSnapshotError(f"the file is larger than {_MAX_BYTES >> 20} MiB, as no timing trace is")
    return text


def _timing(path: Path, n_bytes: int, trace: JsonObject) -> Timing:
    clock = trace.value("clock", TEXT)
    if clock not in CLOCKS:
        raise MalformedSnapshotError(f"clock: expected cuda or cpu, got {json_shown(clock)}")
    written_by, torch = trace.value("snapconv", TEXT), trace.value("torch", TEXT)
    iterations = _iterations(trace)
    stacks, is_of_module = _stacks(trace)
    texts = Interner()
    calls = _call_table(trace.child("calls"), iterations, len(stacks), texts)
    timing = Timing(
        path=path,
        n_bytes=n_bytes,
        written_by=(written_by[:_MAX_TEXT], torch[:_MAX_TEXT]),
        clock=clock,
        is_simulated=trace.value("simulated", FLAG),
        device=trace.value("device", COUNT),
        device_name=trace.value("device_name", TEXT)[:_MAX_TEXT],
        is_warm_up=trace.optional("warm_up", FLAG, missing=False),
        project_root=trace.value("project_root", TEXT)[:_MAX_TEXT],
        iterations=iterations,
        launch_bound=_launch_counts(trace),
        empty_pair_ms=trace.optional("empty_pair_ms", _OPTIONAL_MS),
        overflowed=trace.optional("overflowed", FLAG, missing=False),
        stacks=stacks,
        is_of_module=is_of_module,
        texts=tuple(map(str, texts.values())),
        calls=calls,
    )
    return read_only(timing)


def _iterations(trace: JsonObject) -> tuple[TimedIteration, ...]:
    raw = trace.value("iterations", ARRAY)
    if not raw:
        raise MalformedSnapshotError("iterations: expected array of length >= 1, got []")
    iterations = []
    for i, value in enumerate(raw):
        row = JsonObject(value, f"iterations[{i}]")
        times = {f"{phase}_ms": row.optional(f"{phase}_ms", _OPTIONAL_MS) for phase in _TIMED_PHASES}
        iterations.append(TimedIteration(iteration=row.value("iteration", COUNT), **times))
    if len({iteration.iteration for iteration in iterations}) < len(iterations):
        raise MalformedSnapshotError("iterations: two have the same number")
    return tuple(iterations)


def _launch_counts(trace: JsonObject) -> tuple[LaunchCounts, ...]:
    bound = trace.optional_child("launch_bound")
    rows = {} if bound is None else {phase: bound.optional_child(phase) for phase in ("forward", "backward")}
    return tuple(
        LaunchCounts(
            phase=phase,
            n_calls=row.value("n", COUNT),
            n_waited_for=row.value("n_waited_for", COUNT),
            device_ms=row.optional("device_ms", MILLISECONDS, missing=0.0),
            host_ms=row.optional("host_ms", MILLISECONDS, missing=0.0),
        )
        for phase, row in rows.items()
        if row
    )


# --- the columns of the calls


def _call_table(
    raw: JsonObject, iterations: Sequence[TimedIteration], n_stacks: int, texts: Interner
) -> CallTable:
    numbers = {key: raw.numbers(key, kind) for key, kind in _NUMBERS.items()}
    names = {key: raw.items(key, kind) for key, kind in _TEXTS.items()}
    n_calls = len(numbers["iteration"])
    for key, n in [(key, len(values)) for columns in (numbers, names) for key, values in columns.items()]:
        if n != n_calls:
            message = f"expected {n_calls} values as in calls.iteration, got {n}"
            raise MalformedSnapshotError(f"calls.{key}: {message}")
    phase_ids = {phase: i for i, phase in enumerate(PHASES)}
    table = CallTable(
        iteration=numbers["iteration"],
        name_id=_text_ids(names["name"], texts),
        phase=np.array([phase_ids.get(phase, -1) for phase in names["phase"]], np.int8),
        module_id=_text_ids(names["module"], texts),
        stack_id=numbers["stack"].astype(np.int32),
        **{key: column for key, column in numbers.items() if key.endswith("_ms")},
    )
    # A call has a time of its own; only a row of phase backward is about nodes that no call made.
    is_untimed = np.isnan(table.forward_ms) & (table.phase != PHASES.index("backward"))
    is_unknown = ~np.isin(table.iteration, [iteration.iteration for iteration in iterations])
    _refuse("phase", table.phase < 0, raw, expected=f"one of {', '.join(PHASES)}")
    _refuse("stack", table.stack_id >= n_stacks, raw, expected=f"-1 or one of {n_stacks} stacks")
    _refuse("forward_ms", is_untimed, raw, expected="a number")
    _refuse("iteration", is_unknown, raw, expected="the number of one of the iterations")
    return read_only(table)


def _refuse(key: str, wrong: BoolColumn, calls: JsonObject, *, expected: str) -> None:
    """Raise for the first value that is marked as wrong."""
    if wrong.any():
        i = int(wrong.argmax())
        raise MalformedSnapshotError(
            f"calls.{key}[{i}]: expected {expected}, got {json_shown(calls.value(key, ARRAY)[i])}"
        )


def _text_ids(values: Sequence[str | None], texts: Interner) -> Int32Column:
    ids = {value: -1 if value is None else texts.id(value[:_MAX_TEXT]) for value in dict.fromkeys(values)}
    return np.fromiter(map(ids.__getitem__, values), np.int32, len(values))


# --- the stacks


def _stacks(trace: JsonObject) -> tuple[StackTable, BoolColumn]:
    raw = trace.items("stacks", ARRAY)
    frames = Interner()
    for i, stack in enumerate(raw):
        for k, frame in enumerate(stack):
            _check_frame(frame, f"stacks[{i}][{k}]")
    stacks = [
        [frames.id((file[:_MAX_TEXT], line, name[:_MAX_TEXT], is_of)) for file, line, name, is_of in stack]
        for stack in raw
    ]
    offsets = np.concatenate(([0], np.cumsum(np.array([len(stack) for stack in stacks], np.int64))))
    frame_ids = np.fromiter(chain.from_iterable(stacks), np.int32, int(offsets[-1]))
    rows: Sequence[Any] = frames.values()
    filenames, lines, names, is_of_module = zip(*rows, strict=True) if rows else ((), (), (), ())
    none = ("",) * len(rows)
    table = read_only(FrameTable(tuple(names), tuple(filenames), np.array(lines, np.int64), none, none))
    return read_only(StackTable(table, offsets, frame_ids)), np.array(is_of_module, np.bool_)


def _check_frame(frame: object, where: str) -> None:
    if type(frame) is not list:
        raise MalformedSnapshotError(f"{where}: expected array, got {type_name(frame)}")
    if len(frame) != len(_FRAME):
        raise MalformedSnapshotError(
            f"{where}: expected array of length {len(_FRAME)}, got {json_shown(frame)}"
        )
    for i, (value, kind) in enumerate(zip(frame, _FRAME, strict=True)):
        if (fault := kind.fault(value)) is not None:
            raise MalformedSnapshotError(f"{where}[{i}]: expected {fault}")
