"""Event rings, stacks and ``memory_stats()`` of the simulated allocators.

A stack is captured cheaply and symbolised later, many at a time. The frames of the simulation
itself are left out; beneath the autograd engine, a GPU runs on a thread of its own, so its caller's
frames are cut off and the engine's are put in their place.
"""

from collections import deque
from collections.abc import Collection, Iterable
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES
from snapconv.allocator.allocator_trace import Frames, RecordedEvent
from snapconv.guest.own_frames import for_program
from snapconv.guest.symbols import name_every_function

_CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}


class EventRings:
    """What is recorded of all devices, from ``_record_memory_history`` on."""

    def __init__(self, n_devices: int) -> None:
        self.is_on = False
        self.has_cpp = False
        self.user_metadata = ""
        self._context = 0
        self._skipped: Collection[str] = ()
        # Each event with the metadata that the user had set, and whether its frames are kept.
        self._rings: list[deque[tuple[RecordedEvent, str, bool]]] = [
            deque() for _ in range(n_devices)
        ]
        self._annotations: deque[dict[str, object]] = deque()

    def wants(self, context: str) -> bool:
        """Return whether stacks are captured at this context level."""
        return self.is_on and self._context >= _CONTEXTS[context]

    def switch(  # torch's signature
        self,
        enabled: str | None,
        context: str | None,
        stacks: str,
        max_entries: int,
        clear_history: bool = False,  # noqa: FBT001, FBT002
        compile_context: bool = False,  # noqa: FBT001, FBT002
        global_record_annotations: bool = False,  # noqa: FBT001, FBT002
        skip_actions: Collection[str] = (),
        *_: Any,
    ) -> None:
        """Turn recording on or off: off forgets the trace, "state" keeps a ring of one entry.

        As torch/csrc/cuda/memory_snapshot.cpp does. The arguments added in torch 2.14 request the
        history of pinned host memory, which is not simulated.
        """
        takes_enabled = enabled in (None, "state", "all")
        takes_stacks = stacks in ("python", "all")
        if not (takes_enabled and takes_stacks and context in _CONTEXTS):
            message = (
                "expected enabled to be 'state', 'all' or None, context 'state', 'alloc', 'all' or "
                "None"
            )
            raise for_program(RuntimeError(f"{message}, and stacks 'python' or 'all'"))
        self.is_on = enabled is not None
        self.has_cpp = stacks == "all"
        self._context = _CONTEXTS[context] if self.is_on else 0
        self._skipped = frozenset(skip_actions)
        # sys.maxsize, torch's default, is more than a deque takes on some platforms.
        size = max(min(max_entries, 1 << 31), 1) if enabled == "all" else 1
        self._rings = [deque(ring, maxlen=size) for ring in self._rings]
        self._annotations = deque(self._annotations, maxlen=size)
        if enabled is None or clear_history:
            self._annotations.clear()
            for ring in self._rings:
                ring.clear()

    def listen(self, device: int, event: RecordedEvent) -> None:
        """Keep one event if recording is on."""
        if self.is_on and event.action not in self._skipped:
            has_frames = self._context >= _CONTEXTS["alloc"]
            self._rings[device].append((event, self.user_metadata, has_frames))

    def annotate(self, name: str, stage: str, *, device: int, time_us: int) -> None:
        """Keep the begin or the end of a ``record_function`` range."""
        if self.is_on:
            self._annotations.append(
                {"name": name, "stage": stage, "device": device, "time_us": time_us}
            )

    def traces(self) -> list[list[dict[str, object]]]:
        """List every device's events as torch's trace entries, oldest first."""
        traces: list[list[dict[str, object]]] = [[] for _ in self._rings]
        for trace, ring in zip(traces, self._rings, strict=True):
            for event, user_metadata, has_frames in ring:
                trace.append(event.as_entry() | {"user_metadata": user_metadata})
                if not has_frames:
                    trace[-1].pop("frames", None)
        return traces

    def annotations(self) -> list[dict[str, Any]]:
        """List the begins and ends of the ranges, oldest first."""
        return [dict(annotation) for annotation in list(self._annotations)]


# The metrics and their figures under their keys in torch's nested dict (DeviceStats in
# c10/core/CachingDeviceAllocator.h): the value, the highest since the last reset, all that went in
# and out.
_METRICS = (
    "allocation segment active allocated_bytes reserved_bytes active_bytes requested_bytes".split()
)
_POOLS = ("all", "small_pool", "large_pool")
_FIGURES = ("current", "peak", "allocated", "freed")
# What an event does to a block: the sign, what counts blocks, and what adds their bytes.
_OF_BLOCKS = {
    "alloc": (1, ("allocation", "active"), ("allocated_bytes", "active_bytes")),
    "free_requested": (-1, ("allocation",), ("allocated_bytes",)),
    "free_completed": (-1, ("active",), ("active_bytes",)),
}
_OF_SEGMENTS = {"segment_alloc": 1, "segment_map": 1, "segment_free": -1, "segment_unmap": -1}


# The figures of one metric, by pool.
_Counters = dict[str, dict[str, int]]


def _counters() -> _Counters:
    return {pool: dict.fromkeys(_FIGURES, 0) for pool in _POOLS}


def _add(counter: dict[str, int], amount: int) -> None:
    counter["current"] += amount
    counter["allocated" if amount > 0 else "freed"] += abs(amount)
    counter["peak"] = max(counter["peak"], counter["current"])


class Statistics:
    """One device's counters, kept up by listening to its allocator."""

    def __init__(self) -> None:
        self._counters = {metric: _counters() for metric in _METRICS}
        self._every = [counter for pools in self._counters.values() for counter in pools.values()]
        self.n_ooms = self.n_retries = self.n_segments_freed = self.n_segments_got = 0

    def listen(self, event: RecordedEvent) -> None:
        """Count one event."""
        if event.action in _OF_BLOCKS:
            sign, counts, sizes = _OF_BLOCKS[event.action]
            block_bytes = event.block_bytes or 0
            amounts = dict.fromkeys(counts, 1) | dict.fromkeys(sizes, block_bytes)
            if "active" in counts:  # CUDACachingAllocator.cpp: malloc, free_block
                amounts["requested_bytes"] = event.size
            is_small = block_bytes <= SMALL_REQUEST_BYTES
        elif event.action in _OF_SEGMENTS:
            sign = _OF_SEGMENTS[event.action]
            self.n_segments_got += sign > 0
            self.n_segments_freed += sign < 0
            amounts = {"segment": 1, "reserved_bytes": event.size}
            is_small = event.size <= SMALL_SEGMENT_BYTES
        else:
            self.n_ooms += event.action == "oom"
            return
        for name, amount in amounts.items():
            pools = self._counters[name]
            _add(pools["all"], sign * amount)
            _add(pools["small_pool" if is_small else "large_pool"], sign * amount)

    def reset_peaks(self) -> None:
        """Let every peak start from the present value."""
        for counter in self._every:
            counter["peak"] = counter["current"]

    def reset_accumulated(self) -> None:
        """Forget what went in and out so far, and the counts of failures."""
        for counter in self._every:
            counter["allocated"] = counter["freed"] = 0
        self.n_ooms = self.n_retries = self.n_segments_freed = self.n_segments_got = 0

    def as_nested_dict(
        self, segments: list[dict[str, Any]], *, max_split_size: int
    ) -> dict[str, Any]:
        """Write what ``torch._C._cuda_memoryStats`` returns, given the allocator's segments."""
        return {
            **deepcopy(self._counters),
            **_inactive_splits(segments),
            "oversize_allocations": dict.fromkeys(_FIGURES, 0),
            "oversize_segments": dict.fromkeys(_FIGURES, 0),
            "num_alloc_retries": self.n_retries,
            "num_ooms": self.n_ooms,
            "num_sync_all_streams": 0,
            "num_device_alloc": self.n_segments_got,
            "num_device_free": self.n_segments_freed,
            "max_split_size": max_split_size,
        }


def _inactive_splits(segments: list[dict[str, Any]]) -> dict[str, _Counters]:
    """Count the free blocks in segments that are split, by pool: present values alone are known."""
    counts = _counters()
    sizes = _counters()
    for segment in segments:
        blocks = segment["blocks"]
        if len(blocks) > 1:
            free = [block["size"] for block in blocks if block["state"] == "inactive"]
            for pool in ("all", f"{segment['segment_type']}_pool"):
                _add(counts[pool], len(free))
                _add(sizes[pool], sum(free))
    return {"inactive_split": counts, "inactive_split_bytes": sizes}


# (name, file, line), as a snapshot has a frame
Frame = tuple[str, str, int]

OWN_FOLDER = str(Path(__file__).parent)
# Files end as the system writes paths: on Windows with other slashes.
_ENGINE_CALL = ("_engine_run_backward", str(Path("torch/autograd/graph.py")))
# What torch puts between a mode and its caller (torch/_compile.py, torch/_dynamo/eval_frame.py).
_MODE_FRAMES = {
    ("inner", str(Path("torch/_compile.py"))),
    ("_fn", str(Path("torch/_dynamo/eval_frame.py"))),
}
_DETOUR = ("handle_torch_function", str(Path("torch/overrides.py")))
_CALLED_OPERATION = str(Path("torch/_ops.py"))
# How a mode's dispatch shows in C++; a GPU's operations are not boxed.
_PLUMBING = (
    "pythonTLSSnapshotFallback",
    "BoxedKernel",
    "make_boxed_from_unboxed_functor",
    "callBoxed",
)
# The C++ function that calls the simulation: everything nearer to the leaf is its own.
_INTO_MODE = "pythonFallback"
# What runs Python or the engine: the C++ frames beyond it belong to outer calls, or are written by
# us.
_PYTHON_IN_C = (
    "_PyEval_",
    "PyEval_",
    "_PyFunction_",
    "PyObject_",
    "_PyObject_",
    "_PyFrame_",
    "PyVectorcall",
    "cfunction_",
    "method_",
    "THPEngine_",
)
_INTERPRETER = (
    *_PYTHON_IN_C,
    "torch::jit::",
    "pybind11::",
    "torch::autograd::Node::",
    "torch::autograd::Engine::",
)
# What a node frees once it has been applied, unless the graph is to be kept.
_RELEASE = "::release_variables("
_APPLY_ARGUMENTS = "(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)"
_EVALUATE = "torch::autograd::Engine::evaluate_function("
# Where the storage ends that the simulation waits for; torch's objects in Python are passed on the
# way.
_END_OF_STORAGE = "StorageImpl::decref_pyobject"
_DEALLOCATION = (
    "subtype_dealloc",
    "tupledealloc",
    "PyInterpreterVTable::decref",
    "PySavedVariableHooks",  # our own
)
# What the engine does after a node has been applied.
_BETWEEN_NODES = ("torch::autograd::InputBuffer::", "torch::autograd::validate_outputs", _RELEASE)
_ENGINE = (
    f"torch::autograd::Node::operator(){_APPLY_ARGUMENTS}",
    "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&, "
    "torch::autograd::Node*, torch::autograd::InputBuffer&, "
    "std::shared_ptr<torch::autograd::ReadyQueue> const&)",
    "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
)


class Capture(NamedTuple):
    """A captured stack: torch's handle, and the node that the autograd engine was evaluating.

    ``within`` are C++ functions that a GPU's operation calls and the simulated one does not.
    """

    handle: Any
    node: str | None
    within: tuple[str, ...]
    has_cpp: bool


class Stacks:
    """Captures stacks, each a list of one ``Capture``, and fills in their frames later.

    ``symbolise`` replaces the ``Capture`` in that list by frame dicts: who has the list has the
    frames then.
    """

    def __init__(self) -> None:
        import torch

        self._gather = torch._C._profiler.gather_traceback
        self._symbolise = torch._C._profiler.symbolize_tracebacks
        self._current_node = torch._C._current_autograd_node
        self._frames: dict[tuple[str, str, int], dict[str, object]] = {}

    def capture(self, *, has_cpp: bool, within: tuple[str, ...] = ()) -> Frames:
        """Note where the program stands."""
        node = self._current_node()
        handle = self._gather(True, False, has_cpp)  # python, script, cpp
        return [Capture(handle, _node_frame(node), within, has_cpp)]  # type: ignore[list-item]

    def symbolise(self, stacks: Iterable[list[Any]]) -> None:
        """Fill in the frames of all stacks that have none yet."""
        pending = {id(stack): stack for stack in stacks if stack and isinstance(stack[0], Capture)}
        captures: list[Any] = [stack[0] for stack in pending.values()]
        if any(capture.has_cpp for capture in captures):
            name_every_function()
        symbolised = self._symbolise([capture.handle for capture in captures])
        for stack, capture, frames in zip(pending.values(), captures, symbolised, strict=True):
            stack[:] = [self._shared(frame) for frame in _gpu_frames(frames, capture)]

    def _shared(self, frame: tuple[str, str, int]) -> dict[str, object]:
        """Return one dict per distinct frame, as torch's snapshots share them."""
        if frame not in self._frames:
            name, filename, line = frame
            self._frames[frame] = {"name": name, "filename": filename, "line": line}
        return self._frames[frame]


def _node_frame(node: Any) -> str | None:
    """Name the C++ function that the engine runs for a node."""
    if node is None:
        return None
    name: str = node.name()
    if name.startswith("torch::autograd::"):
        return f"{name}::apply"
    if hasattr(type(node), "_forward_cls"):  # a function written in Python
        return "torch::autograd::PyNode::apply"
    return f"torch::autograd::generated::{name}::apply"


def _gpu_frames(frames: list[dict[str, Any]], capture: Capture) -> list[Frame]:
    """Choose and order the frames: the operation's C++ ones, Python's, then the engine's."""
    python = [frame for frame in frames if _is_python(frame)]
    program, is_engine = _cut_engine_caller(_drop_simulation(_undo_detours(python)))
    result = [(frame["name"], frame["filename"], frame["line"]) for frame in program]
    if not capture.has_cpp:
        return result
    operation = _cpp_between(frames, _INTO_MODE, ends=_INTERPRETER, skipped=_PLUMBING)
    if not operation:
        # Between a storage's end and the interpreter or the engine is why memory is freed.
        ends = (_EVALUATE, *_PYTHON_IN_C)
        operation = _cpp_between(frames, _END_OF_STORAGE, ends=ends, skipped=_DEALLOCATION)
    engine = _engine_frames(capture.node, operation) if is_engine else []
    return [*map(_native, (*capture.within, *operation)), *result, *map(_native, engine)]


def _native(name: str) -> Frame:
    return name, "??", 0


def _engine_frames(node: str | None, operation: list[str]) -> list[str]:
    """Name the functions of the engine's thread; between two nodes it is in none."""
    if node is None or any(_is_between_nodes(name) for name in operation):
        return list(_ENGINE[1:])
    if any("::apply(" in name for name in operation):
        return list(_ENGINE)
    return [node + _APPLY_ARGUMENTS, *_ENGINE]


def _is_between_nodes(name: str) -> bool:
    return any(function in name for function in _BETWEEN_NODES)


def _is_python(frame: dict[str, Any]) -> bool:
    filename: str = frame["filename"]
    return filename.endswith(".py") or filename.startswith("<")


def _is_function(frame: dict[str, Any], function: tuple[str, str]) -> bool:
    """Say whether a frame is of a function, given by its name and the end of its file."""
    name, file_end = function
    return bool(frame["name"] == name and frame["filename"].endswith(file_end))


def _drop_simulation(python: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the simulation's frames, and torch's through which it calls an operation itself."""
    frames: list[dict[str, Any]] = []
    is_own = False
    for frame in python:
        was_own = is_own
        is_own = frame["filename"].startswith(OWN_FOLDER)
        if was_own and any(_is_function(frame, function) for function in _MODE_FRAMES):
            is_own = True
        if not is_own:
            frames.append(frame)
        elif frames and not was_own and frames[-1]["filename"].endswith(_CALLED_OPERATION):
            frames.pop()
    return frames


def _undo_detours(python: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Undo a function mode's detours.

    ``layer_norm < handle_torch_function < layer_norm`` is one call.
    """
    result: list[dict[str, Any]] = []
    frames = iter(python)
    for frame in frames:
        if not _is_function(frame, _DETOUR):
            result.append(frame)
        else:
            # The call into the handler; the function itself, entered a second time, is there
            # already.
            next(frames, None)
    return result


def _cut_engine_caller(python: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """Cut off the engine's caller and beyond; return whether the engine is running.

    Nested calls are on the engine's own thread.
    """
    for i in range(len(python) - 1, -1, -1):
        if _is_function(python[i], _ENGINE_CALL):
            return python[:i], True
    return python, False


def _cpp_between(
    frames: list[dict[str, Any]], start: str, *, ends: tuple[str, ...], skipped: tuple[str, ...]
) -> list[str]:
    """Name the C++ functions after ``start`` and before ``ends`` or Python, but those ``skipped``.

    Of ``pythonFallback, callBoxed, at::_ops::mm::call, method_vectorcall`` the answer is
    ``at::_ops::mm::call``.
    """
    functions = []
    has_started = False
    for frame in frames:
        name = frame["name"]
        if not has_started:
            has_started = start in name
            continue
        if _is_python(frame) or name.startswith(ends):
            break
        if not any(part in name for part in skipped):
            functions.append(name)
    return functions
