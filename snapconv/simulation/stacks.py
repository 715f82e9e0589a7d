"""Where the program stands -> frames as a GPU's snapshot has them.

A stack is captured cheaply and symbolised later, many at a time. The frames of the simulation itself
are left out; beneath the autograd engine, a GPU runs on a thread of its own, so its caller's frames
are cut off and the engine's are put in their place.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from snapconv.allocator.allocator_trace import Frames
from snapconv.recorder.captured.memory_history import name_every_function

# (name, file, line), as a snapshot has a frame
Frame = tuple[str, str, int]

_OWN_FOLDER = str(Path(__file__).parent)
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
_PLUMBING = ("pythonTLSSnapshotFallback", "BoxedKernel", "make_boxed_from_unboxed_functor", "callBoxed")
# The C++ function that calls the simulation: everything nearer to the leaf is its own.
_INTO_MODE = "pythonFallback"
# What runs Python or the engine: the C++ frames beyond it belong to outer calls, or are written by us.
_PYTHON_IN_C = (
    *("_PyEval_", "PyEval_", "_PyFunction_", "PyObject_", "_PyObject_", "_PyFrame_"),
    *("PyVectorcall", "cfunction_", "method_", "THPEngine_"),
)
_INTERPRETER = (
    *_PYTHON_IN_C,
    *("torch::jit::", "pybind11::", "torch::autograd::Node::", "torch::autograd::Engine::"),
)
# What a node frees once it has been applied, unless the graph is to be kept.
_RELEASE = "::release_variables("
_EVALUATE = "torch::autograd::Engine::evaluate_function("
# Where the storage ends that the simulation waits for; torch's objects in Python are passed on the way.
_END_OF_STORAGE = "StorageImpl::decref_pyobject"
_OF_PYTHON_OBJECTS = (
    *("subtype_dealloc", "tupledealloc", "PyInterpreterVTable::decref"),
    "PySavedVariableHooks",  # our own
)
# What the engine does after a node has been applied.
_BETWEEN_NODES = ("torch::autograd::InputBuffer::", "torch::autograd::validate_outputs", _RELEASE)
_ENGINE = (
    "torch::autograd::Node::operator()(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)",
    "torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&, "
    "torch::autograd::Node*, torch::autograd::InputBuffer&, "
    "std::shared_ptr<torch::autograd::ReadyQueue> const&)",
    "torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&)",
)


class Capture(NamedTuple):
    """One captured stack: torch's handle, and the node that the engine was evaluating.

    ``within`` are C++ functions that a GPU's operation calls and the simulated one does not.
    """

    handle: Any
    node: str | None
    within: tuple[str, ...]
    has_cpp: bool


class Stacks:
    """Captures stacks, and fills in their frames later.

    A captured stack is a list of one ``Capture``; ``symbolise`` replaces it, in place, by frame dicts,
    so that a reference to the list keeps the frames.
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
        found = self._symbolise([capture.handle for capture in captures])
        for stack, capture, frames in zip(pending.values(), captures, found, strict=True):
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
    own, is_engine = _without_engine_caller(_without_own(_without_detours(python)))
    result = [(frame["name"], frame["filename"], frame["line"]) for frame in own]
    if not capture.has_cpp:
        return result
    operation = _operation_frames(frames) or _free_frames(frames)
    engine = _engine_frames(capture.node, operation) if is_engine else []
    return [*map(_native, (*capture.within, *operation)), *result, *map(_native, engine)]


def _native(name: str) -> Frame:
    return name, "??", 0


def _engine_frames(node: str | None, operation: list[str]) -> list[str]:
    """Name the functions of the engine's thread; between two nodes it is in none."""
    if node is None or any(function in name for name in operation for function in _BETWEEN_NODES):
        return list(_ENGINE[1:])
    has_node = any("::apply(" in name for name in operation)
    return [*([] if has_node else [node + _APPLY_ARGUMENTS]), *_ENGINE]


_APPLY_ARGUMENTS = "(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)"


def _is_python(frame: dict[str, Any]) -> bool:
    filename: str = frame["filename"]
    return filename.endswith(".py") or filename.startswith("<")


def _is_own(frame: dict[str, Any], *, is_leafward_own: bool) -> bool:
    filename: str = frame["filename"]
    return filename.startswith(_OWN_FOLDER) or (
        is_leafward_own
        and any(frame["name"] == name and filename.endswith(file) for name, file in _MODE_FRAMES)
    )


def _without_own(python: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Leave out the simulation's frames, and torch's through which it calls an operation itself."""
    is_own: list[bool] = []
    for frame in python:
        is_own.append(_is_own(frame, is_leafward_own=bool(is_own) and is_own[-1]))
    is_own.append(False)
    return [
        frame
        for i, frame in enumerate(python)
        if not is_own[i] and not (is_own[i + 1] and frame["filename"].endswith(_CALLED_OPERATION))
    ]


def _without_detours(python: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Undo the detour of a torch function over the function mode: it shows up twice, around the handler."""
    result: list[dict[str, Any]] = []
    frames = iter(python)
    for frame in frames:
        if (frame["name"], frame["filename"][-len(_DETOUR[1]) :]) != _DETOUR:
            result.append(frame)
        else:
            # The call into the handler; the function itself, entered a second time, is there already.
            next(frames, None)
    return result


def _without_engine_caller(python: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], bool]:
    """Cut off what called the engine; return whether the engine is running.

    The outermost call counts: a nested one runs on the engine's own thread.
    """
    name, end = _ENGINE_CALL
    for i in range(len(python) - 1, -1, -1):
        if python[i]["name"] == name and python[i]["filename"].endswith(end):
            return python[:i], True
    return python, False


def _free_frames(frames: list[dict[str, Any]]) -> list[str]:
    """Take the C++ frames between a storage's end and the interpreter or the engine: why memory is freed."""
    start = next((i + 1 for i, frame in enumerate(frames) if _END_OF_STORAGE in frame["name"]), len(frames))
    cause = []
    for frame in frames[start:]:
        name = frame["name"]
        if _is_python(frame) or name.startswith((_EVALUATE, *_PYTHON_IN_C)):
            break
        if not any(part in name for part in _OF_PYTHON_OBJECTS):
            cause.append(name)
    return cause


def _operation_frames(frames: list[dict[str, Any]]) -> list[str]:
    """Take the C++ frames between the simulation and the interpreter that called the operation."""
    start = next((i + 1 for i, frame in enumerate(frames) if _INTO_MODE in frame["name"]), len(frames))
    operation = []
    for frame in frames[start:]:
        if _is_python(frame) or frame["name"].startswith(_INTERPRETER):
            break
        if not any(name in frame["name"] for name in _PLUMBING):
            operation.append(frame["name"])
    return operation
