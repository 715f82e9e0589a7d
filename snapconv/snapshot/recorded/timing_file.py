"""timing.json -> columns: the times that a capture has of its operations. See docs/reference/capture.md.

The file is as untrusted as a snapshot: every value is checked before anything uses it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from msgspec import Meta, Struct
from msgspec.json import Decoder
from msgspec.structs import astuple

from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, MsColumn, read_only
from snapconv.errors import InputError, MalformedSnapshotError, TruncatedFileError
from snapconv.notes import Note
from snapconv.snapshot.fields import Interner
from snapconv.snapshot.readers.json_text import json_of, read_json
from snapconv.snapshot.stack_table import FrameTable, StackTable

VERSION = 1
PHASES = ("forward", "backward", "optimizer", "other")
CLOCKS = ("cuda", "cpu")
# A call takes 100 bytes: this is millions of them, and as JSON no more than a few GiB of memory.
_MAX_BYTES = 256 << 20
_MAX_TEXT = 4096

Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Milliseconds = Annotated[float, Meta(ge=0, lt=1e12)]


@dataclass(frozen=True, slots=True)
class TimedIteration:
    """What was measured around the phases of one iteration; None for a phase that did not happen."""

    iteration: Count
    forward_ms: Milliseconds | None = None
    backward_ms: Milliseconds | None = None
    optimizer_ms: Milliseconds | None = None
    bookkeeping_ms: Milliseconds | None = None


@dataclass(frozen=True, slots=True)
class LaunchCounts:
    """How often the device had come to a call (or node) before all its work was queued: it waited.

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


# --- the file as it is written: docs/reference/capture.md


class _Version(Struct):
    version: Count


class _Launches(Struct):
    n: Count
    n_waited_for: Count
    device_ms: Milliseconds = 0.0
    host_ms: Milliseconds = 0.0


class _LaunchBound(Struct):
    forward: _Launches | None = None
    backward: _Launches | None = None


class _Calls(Struct):
    iteration: list[Count]
    name: list[str]
    phase: list[str]
    module: list[str | None]
    stack: list[Annotated[int, Meta(ge=-1, lt=1 << 31)]]
    forward_ms: list[Milliseconds | None]
    backward_ms: list[Milliseconds | None]
    backward_strict_ms: list[Milliseconds | None]
    host_ms: list[Milliseconds | None]


# File, line, function, whether its self is a module.
_Frame = tuple[str, Annotated[int, Meta(ge=0, lt=1 << 31)], str, bool]


class _Trace(Struct):
    snapconv: str
    torch: str
    clock: str
    simulated: bool
    device: Count
    device_name: str
    project_root: str
    iterations: Annotated[tuple[TimedIteration, ...], Meta(min_length=1)]
    stacks: list[list[_Frame]]
    calls: _Calls
    launch_bound: _LaunchBound | None = None
    empty_pair_ms: Milliseconds | None = None
    warm_up: bool = False
    overflowed: bool = False


_VERSION_ALONE, _WHOLE = Decoder(_Version), Decoder(_Trace)


def load_timing(path: str | Path) -> tuple[Timing | None, tuple[Note, ...]]:
    """Read a timing.json.

    A version that is not known gives a note and no Timing. Raises InputError (MalformedSnapshotError,
    TruncatedFileError) with the file and the place in it.
    """
    path = Path(path)
    try:
        text = _text_of(path)
        version = read_json(text, _VERSION_ALONE).version
        if version != VERSION:
            message = (
                f"{path.name} is of version {version}, and only {VERSION} is known here: there are no times"
            )
            return None, (Note("unknown-timing-version", message),)
        return _timing(path, len(text), read_json(text, _WHOLE)), ()
    except InputError as error:
        raise type(error)(f"{path}: {error}") from error
    except MemoryError as error:
        raise InputError(f"{path}: the file does not fit into this machine's memory") from error


def _text_of(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            text = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}; check the path") from error
    if not text.strip():
        raise TruncatedFileError("the file is empty")
    if len(text) > _MAX_BYTES:
        raise MalformedSnapshotError(f"the file is larger than {_MAX_BYTES >> 20} MiB, as no timing trace is")
    return text


def _timing(path: Path, n_bytes: int, trace: _Trace) -> Timing:
    if trace.clock not in CLOCKS:
        raise MalformedSnapshotError(f"clock: expected cuda or cpu, got {json_of(trace.clock)}")
    numbers = [iteration.iteration for iteration in trace.iterations]
    if len(set(numbers)) < len(numbers):
        raise MalformedSnapshotError("iterations: two have the same number")
    stacks, is_of_module = _stacks(trace.stacks)
    texts = Interner()
    calls = _call_table(trace.calls, numbers, len(stacks), texts)
    timing = Timing(
        path=path,
        n_bytes=n_bytes,
        written_by=(trace.snapconv[:_MAX_TEXT], trace.torch[:_MAX_TEXT]),
        clock=trace.clock,
        is_simulated=trace.simulated,
        device=trace.device,
        device_name=trace.device_name[:_MAX_TEXT],
        is_warm_up=trace.warm_up,
        project_root=trace.project_root[:_MAX_TEXT],
        iterations=trace.iterations,
        launch_bound=_launch_counts(trace.launch_bound or _LaunchBound()),
        empty_pair_ms=trace.empty_pair_ms,
        overflowed=trace.overflowed,
        stacks=stacks,
        is_of_module=is_of_module,
        texts=tuple(map(str, texts.values())),
        calls=calls,
    )
    return read_only(timing)


def _launch_counts(found: _LaunchBound) -> tuple[LaunchCounts, ...]:
    phases = (("forward", found.forward), ("backward", found.backward))
    return tuple(LaunchCounts(phase, *astuple(row)) for phase, row in phases if row)


# --- the columns of the calls


def _call_table(calls: _Calls, iterations: Sequence[int], n_stacks: int, texts: Interner) -> CallTable:
    n_calls = len(calls.iteration)
    for key in calls.__struct_fields__:
        if (n := len(getattr(calls, key))) != n_calls:
            message = f"expected {n_calls} values as in calls.iteration, got {n}"
            raise MalformedSnapshotError(f"calls.{key}: {message}")
    phase_ids = {phase: i for i, phase in enumerate(PHASES)}
    table = CallTable(
        iteration=np.array(calls.iteration, np.int64),
        name_id=_text_ids(calls.name, texts),
        phase=np.array([phase_ids.get(phase, -1) for phase in calls.phase], np.int8),
        module_id=_text_ids(calls.module, texts),
        stack_id=np.array(calls.stack, np.int32),
        # NumPy makes NaN of None.
        forward_ms=np.array(calls.forward_ms, np.float64),
        backward_ms=np.array(calls.backward_ms, np.float64),
        backward_strict_ms=np.array(calls.backward_strict_ms, np.float64),
        host_ms=np.array(calls.host_ms, np.float64),
    )
    # A call has a time of its own; only a row of phase backward is about nodes that no call made.
    is_untimed = np.isnan(table.forward_ms) & (table.phase != PHASES.index("backward"))
    is_unknown = ~np.isin(table.iteration, np.array(iterations, np.int64))
    _refuse("phase", table.phase < 0, calls.phase, expected=f"one of {', '.join(PHASES)}")
    _refuse("stack", table.stack_id >= n_stacks, calls.stack, expected=f"-1 or one of {n_stacks} stacks")
    _refuse("forward_ms", is_untimed, calls.forward_ms, expected="a number")
    _refuse("iteration", is_unknown, calls.iteration, expected="the number of one of the iterations")
    return read_only(table)


def _refuse(key: str, wrong: BoolColumn, values: Sequence[object], *, expected: str) -> None:
    """Raise for the first value that is marked as wrong."""
    if wrong.any():
        i = int(wrong.argmax())
        raise MalformedSnapshotError(f"calls.{key}[{i}]: expected {expected}, got {json_of(values[i])}")


def _text_ids(values: Sequence[str | None], texts: Interner) -> Int32Column:
    ids = {value: -1 if value is None else texts.id(value[:_MAX_TEXT]) for value in dict.fromkeys(values)}
    return np.fromiter(map(ids.__getitem__, values), np.int32, len(values))


# --- the stacks


def _stacks(raw: list[list[_Frame]]) -> tuple[StackTable, BoolColumn]:
    frames = Interner()
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
