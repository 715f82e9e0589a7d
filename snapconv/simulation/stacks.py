"""Stacks of the simulated devices, with the frames that they have on a GPU.

A stack is captured cheaply and symbolised later, many at a time. The frames of the simulation
itself are left out; beneath the autograd engine, a GPU runs on a thread of its own, so its caller's
frames are cut off and the engine's are put in their place.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from snapconv.allocator.allocator_trace import Frames
from snapconv.guest.symbols import name_every_function

# (name, file, line), as a snapshot has a frame
Frame = tuple[str, str, int]

OWN_FOLDER = str(Path(__file__).parent)
# Files end as the system writes paths: on Windows with other slashes.
ENGINE_CALLER = "_engine_run_backward"
_ENGINE_CALL = (ENGINE_CALLER, str(Path("torch/autograd/graph.py")))
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
_BETWEEN_NODES = (
    "torch::autograd::InputBuffer::",
    "torch::autograd::validate_outputs",
    _RELEASE,
)
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
        pending = {
            id(stack): stack for stack in stacks if stack and isinstance(stack[0], Capture)
        }
        captures: list[Any] = [stack[0] for stack in pending.values()]
        if any(capture.has_cpp for capture in captures):
            name_every_function()
        symbolised = self._symbolise([capture.handle for capture in captures])
        # Loops capture equal stacks again and again; torch has one dict per distinct frame here.
        distinct: dict[Any, list[dict[str, object]]] = {}
        for stack, capture, frames in zip(
            pending.values(), captures, symbolised, strict=True
        ):
            key = (*map(id, frames), capture.node, capture.within, capture.has_cpp)
            if key not in distinct:
                gpu_frames = _gpu_frames(frames, capture)
                distinct[key] = [self._shared(frame) for frame in gpu_frames]
            stack[:] = distinct[key]

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
    """Leave out the simulation's frames, and torch's on either side of them.

    Nearer to the leaf it calls an operation itself, through ``torch/_ops.py``; its own callers are
    what torch puts between a mode and the program.
    """
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
    frames: list[dict[str, Any]],
    start: str,
    *,
    ends: tuple[str, ...],
    skipped: tuple[str, ...],
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
