"""The memory events of a Chrome trace of torch.profiler -> a snapshot's dictionary.

An instant ``[memory]`` stands for every allocation and free of a tensor, within the slices of
operations and, with ``with_stack=True``, of Python's functions of its thread (torch/csrc/profiler,
2.0 to 2.13). There are no segments.
"""

from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from itertools import pairwise
from string import digits
from typing import Any, NamedTuple

from snapconv.errors import NotASnapshotError
from snapconv.snapshot.fields import ADDRESS, BYTES, DEVICE, Bounds, Rows, expect
from snapconv.snapshot.readers.form import Form
from snapconv.snapshot.readers.text_frames import NO_FILE
from snapconv.units import Device, counted, device_name, format_bytes

Raw = dict[str, Any]

_EVENTS, _BASE = "traceEvents", "baseTimeNanoseconds"
_MEMORY, _FAILED = "[memory]", "[OutOfMemory]"
_BYTES, _ALLOCATED, _RESERVED = "Bytes", "Total Allocated", "Total Reserved"
_NO_MEMORY = (
    "it is a Chrome trace without torch.profiler's memory events; record it with "
    "torch.profiler.profile(profile_memory=True, with_stack=True), or dump "
    "torch.cuda.memory._snapshot() instead: `snapconv export SNAPSHOT --with TRACE` shows both"
)
_TITLE = "a Chrome trace of torch.profiler (export_chrome_trace)"
_LACKS = (
    "it has [memory] events and no segments: bytes are counted from zero, and what was reserved, "
    "and rounding, is not known"
)
_NO_LINES = "it has operations and no lines, which with_stack=True records"
_FIRST_LINES = "a line in its stacks is the one where the function begins"
# c10/core/DeviceType.h. HIP is called cuda, as everywhere in torch.
_CPU = 0
_KINDS = {
    _CPU: "cpu",
    1: "cuda",
    6: "cuda",
    9: "xla",
    12: "xpu",
    13: "mps",
    15: "hpu",
    19: "mtia",
}
_DEVICE_TYPE = Bounds(0, 127, "a type of device from 0 to 127")
_CHANGE = Bounds(-BYTES.high, BYTES.high, "at most 2^48 bytes")
_TOTAL = Bounds(-(1 << 61), 1 << 61, "at most 2^61 bytes")
_MOMENT = Bounds(-(1 << 60), 1 << 60, "microseconds of at most 60 bits", types=(int, float))
_LENGTH = Bounds(0, 1 << 60, _MOMENT.expected, types=(int, float))
_BASE_TIME = Bounds(0, (1 << 63) - 1, "nanoseconds of at most 63 bits")
_PYTHON, _OPERATION, _ANNOTATION = "python_function", "cpu_op", "user_annotation"
# No stack of a real file has more frames.
_MAX_FRAMES = 256
_ATEN, _BACKWARD = "aten::", "Backward"
_ENGINE_CALL = "autograd::engine::evaluate_function: "
_ACCUMULATION = "torch::autograd::AccumulateGrad"
# The file of frames of C++ without debug information.
_CPP_FILE = "??"
# Beyond the addresses of a process, and within the bounds of one.
_NO_ADDRESS = 1 << 58


_DeviceId = tuple[int, int]  # its type and its number, -1 for the CPU


class _Call(NamedTuple):
    """What a slice calls: an operation, a function of Python, or an annotation."""

    category: str
    name: str


class _Slice(NamedTuple):
    """A call from ``begin`` to ``end``."""

    begin: float
    end: float
    call: _Call


class _Before(NamedTuple):
    """Allocs of what a device had before its first event, and the bytes of those without a free.

    ``is_known``: whether the trace has a total, so that there is no more.
    """

    allocs: list[Raw]
    n_lasting_bytes: int
    is_known: bool


class _Change(NamedTuple):
    """A memory event; ``total`` is what its device has allocated after it, if it says so."""

    time: float
    device: _DeviceId
    address: int
    n_bytes: int
    total: int | None
    reserved: int
    frames: list[Raw]


def read_kineto_memory(raw: object) -> tuple[object, Form | None]:
    """Turn a Chrome trace with memory events into a snapshot's value; others stay as they are.

    Raises NotASnapshotError for a Chrome trace without them.
    """
    if not isinstance(raw, dict) or _EVENTS not in raw:
        return raw, None
    base = raw.get(_BASE)
    base_us = 0 if base is None else expect(base, _BASE_TIME, _BASE) // 1000
    events = Rows.of(raw[_EVENTS], _EVENTS)
    devices = _changes_by_device(events)
    if not devices:
        raise NotASnapshotError(f"this is not a memory snapshot: {_NO_MEMORY}")
    positions = _positions(devices)
    earlier = {device: _before(changes) for device, changes in devices.items()}
    traces: list[list[Raw]] = [[] for _ in range(max(positions.values()) + 1)]
    for device, position in positions.items():
        traces[position] = _trace(earlier[device], devices[device], base_us)
    has_lines = _PYTHON in events.values("cat")
    lacks = (_LACKS, _FIRST_LINES if has_lines else _NO_LINES, *_failures(events))
    snapshot = {
        "device_traces": traces,
        "external_annotations": _annotations(events, base_us, min(positions.values())),
    }
    return snapshot, _form(devices, positions, earlier, lacks)


def _form(
    devices: Mapping[_DeviceId, list[_Change]],
    positions: Mapping[_DeviceId, int],
    earlier: Mapping[_DeviceId, _Before],
    lacks: Iterable[str],
) -> Form:
    """Return what the trace is, with what it lacks in all and of each device."""
    n_traces = max(positions.values()) + 1
    kinds, reasons, sentences = ["device"] * n_traces, [""] * n_traces, [*lacks]
    for device, position in positions.items():
        kinds[position] = _KINDS.get(device[0], "device")
        reasons[position] = _reason(device, earlier[device])
        name = device_name(Device(position, kinds[position]))
        sentences += _totals(name, devices[device], earlier[device])
    return Form(_TITLE, "; ".join(sentences), kinds=tuple(kinds), earlier=tuple(reasons))


def _changes_by_device(events: Rows) -> dict[_DeviceId, list[_Change]]:
    """Return the memory events of every device, by time."""
    devices: defaultdict[_DeviceId, list[_Change]] = defaultdict(list)
    for change in sorted(_changes(events), key=lambda change: change.time):
        devices[change.device].append(change)
    return devices


def _positions(devices: Iterable[_DeviceId]) -> dict[_DeviceId, int]:
    """Return the numbers of devices in a snapshot: their own, and of the CPU the one after them."""
    positions: dict[_DeviceId, int] = {}
    n_positions = 0
    for kind, number in sorted(devices, key=lambda device: (device[0] == _CPU, device[1])):
        position = n_positions if kind == _CPU else max(number, n_positions)
        positions[kind, number] = position
        n_positions = position + 1
    return positions


def _trace(before: _Before, changes: list[_Change], base_us: int) -> list[Raw]:
    events = [
        {
            "action": "free" if change.n_bytes < 0 else "alloc",
            "addr": change.address,
            "size": abs(change.n_bytes),
            "time_us": base_us + int(change.time),
            "frames": change.frames,
        }
        for change in changes
    ]
    return [*before.allocs, *events]


# --- memory from before the trace


def _before(changes: list[_Change]) -> _Before:
    """Find what was there before: freed without an alloc, or shown by the totals alone."""
    addresses: set[int] = set()
    sizes: dict[int, int] = {}
    for change in changes:
        if change.n_bytes < 0 and change.address not in addresses:
            sizes[change.address] = -change.n_bytes
        addresses.add(change.address)
    first = changes[0]
    n_lasting_bytes = 0
    if first.total is not None:
        n_lasting_bytes = max(0, first.total - first.n_bytes - sum(sizes.values()))
    if n_lasting_bytes:
        sizes[_NO_ADDRESS] = n_lasting_bytes
    allocs = [
        {"action": "alloc", "addr": addr, "size": size} for addr, size in sizes.items()
    ]
    return _Before(allocs, n_lasting_bytes, is_known=first.total is not None)


def _reason(device: _DeviceId, before: _Before) -> str:
    """Return how the trace of a device is not all of its memory; empty where it is."""
    if before.allocs:
        n_bytes = sum(alloc["size"] for alloc in before.allocs)
        return f"{format_bytes(n_bytes)} were allocated before its first event"
    if device[0] == _CPU:
        return "torch.profiler does not see what the CPU had allocated before it began"
    return (
        ""
        if before.is_known
        else "it has no totals, which would show what was there before"
    )


def _totals(name: str, changes: list[_Change], before: _Before) -> Iterator[str]:
    """Say what the trace's own totals of a device add to its events."""
    if before.n_lasting_bytes:
        n_bytes = format_bytes(before.n_lasting_bytes)
        yield (
            f"{name} had {n_bytes} from before in use all the time, by the trace's totals: "
            "they are one allocation here"
        )
    reserved = max(change.reserved for change in changes)
    if reserved > 0:
        yield f"{name} reserved {format_bytes(reserved)} at most"
    n_gaps = sum(
        change.total - change.n_bytes != previous.total
        for previous, change in pairwise(changes)
        if change.total is not None and previous.total is not None
    )
    if n_gaps:
        yield (
            f"the totals of {name} do not follow from its events in {counted(n_gaps, 'place')}: "
            "events are missing, and figures after them may be wrong"
        )


def _failures(events: Rows) -> Iterator[str]:
    """Name the requests that failed: a trace does not have what was free then."""
    sizes = []
    for i, event in enumerate(events.rows):
        if event.get("name") == _FAILED:
            args = expect(event.get("args"), dict, f"{events.row_path(i)}.args")
            sizes.append(
                expect(args.get(_BYTES), BYTES, f"{events.row_path(i)}.args.{_BYTES}")
            )
    if sizes:
        yield (
            f"memory ran out {counted(len(sizes), 'time')}, the largest request was "
            f"{format_bytes(max(sizes))}"
        )


# --- events, with the calls around them


def _changes(events: Rows) -> Iterator[_Change]:
    """Yield every memory event, with the names of the calls around it as its stack."""
    slices: defaultdict[str, list[_Slice]] = defaultdict(list)
    memory: defaultdict[str, list[tuple[float, int]]] = defaultdict(list)
    for i, event in enumerate(events.rows):
        thread = str((event.get("pid"), event.get("tid")))
        if event.get("name") == _MEMORY and event.get("ph") == "i":
            time = expect(event.get("ts"), _MOMENT, f"{events.row_path(i)}.ts")
            memory[thread].append((time, i))
        elif event.get("ph") == "X" and event.get("cat") in (_PYTHON, _OPERATION):
            slices[thread].append(_slice(event, events.row_path(i)))
    stacks = _Frames()
    for thread, moments in memory.items():
        moments.sort()
        around = _open_calls(slices[thread], [time for time, _ in moments])
        for (time, i), calls in zip(moments, around, strict=True):
            args = events.rows[i].get("args")
            path = f"{events.row_path(i)}.args"
            yield _change(time, expect(args, dict, path), stacks.of(calls), path)


def _change(time: float, args: Raw, frames: list[Raw], path: str) -> _Change:
    kind = expect(args.get("Device Type"), _DEVICE_TYPE, f"{path}.Device Type")
    number = -1
    if kind != _CPU:
        number = expect(args.get("Device Id"), DEVICE, f"{path}.Device Id")
    total = args.get(_ALLOCATED)
    if total is not None:
        total = expect(total, _TOTAL, f"{path}.{_ALLOCATED}")
    return _Change(
        time=time,
        device=(kind, number),
        address=expect(args.get("Addr"), ADDRESS, f"{path}.Addr"),
        n_bytes=expect(args.get(_BYTES), _CHANGE, f"{path}.{_BYTES}"),
        total=total,
        reserved=expect(args.get(_RESERVED, 0), _TOTAL, f"{path}.{_RESERVED}"),
        frames=frames,
    )


def _slice(event: Raw, path: str) -> _Slice:
    begin = expect(event.get("ts"), _MOMENT, f"{path}.ts")
    length = expect(event.get("dur", 0), _LENGTH, f"{path}.dur")
    name = expect(event.get("name"), str, f"{path}.name")
    return _Slice(begin, begin + length, _Call(event["cat"], name))


def _open_calls(slices: list[_Slice], times: list[float]) -> Iterator[tuple[_Call, ...]]:
    """Yield the calls that are open at each time, the innermost first."""
    # Of two that begin together the longer one is the caller.
    waiting = deque(sorted(slices, key=lambda item: (item.begin, -item.end)))
    stack: list[_Slice] = []
    for time in times:
        while waiting and waiting[0].begin <= time:
            inner = waiting.popleft()
            while stack and stack[-1].end < inner.end:
                stack.pop()
            stack.append(inner)
        while stack and stack[-1].end < time:
            stack.pop()
        yield tuple(item.call for item in stack[: -_MAX_FRAMES - 1 : -1])


class _Frames:
    """Frames of stacks, of which equal ones are one list."""

    def __init__(self) -> None:
        self._stacks: dict[tuple[_Call, ...], list[Raw]] = {}
        self._frame = cache(_frame)

    def of(self, calls: tuple[_Call, ...]) -> list[Raw]:
        """Return the frames of calls, the innermost first."""
        stack = self._stacks.get(calls)
        if stack is None:
            stack = self._stacks[calls] = list(map(self._frame, calls))
        return stack


def _frame(call: _Call) -> Raw:
    """Return a call as a frame: an operation is one of C++, as torch's own stacks have it."""
    if call.category == _PYTHON:
        return {"name": call.name, "filename": NO_FILE, "line": 0}
    return {"name": _cpp_name(call.name), "filename": _CPP_FILE, "line": 0}


def _cpp_name(name: str) -> str:
    """Return the function of torch that the stacks of snapshots have for an operation."""
    if name.startswith(_ATEN):
        return f"at::_ops::{name.removeprefix(_ATEN)}::call"
    if name.startswith(_ENGINE_CALL):
        return "torch::autograd::Engine::evaluate_function"
    if name == _ACCUMULATION:
        return f"{name}::apply("
    if name.rstrip(digits).endswith(_BACKWARD):
        return f"torch::autograd::generated::{name}::apply("
    return name


def _annotations(events: Rows, base_us: int, device: int) -> list[Raw]:
    """Return the starts and ends of record_function as snapshots have them.

    Those of one device are taken for those of all.
    """
    marks = []
    for i, event in enumerate(events.rows):
        if event.get("ph") == "X" and event.get("cat") == _ANNOTATION:
            annotation = _slice(event, events.row_path(i))
            marks.append((annotation.begin, "START", annotation.call.name))
            marks.append((annotation.end, "END", annotation.call.name))
    return [
        {"stage": stage, "name": name, "device": device, "time_us": base_us + int(time)}
        for time, stage, name in sorted(marks)
    ]
