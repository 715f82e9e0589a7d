"""The operation that allocated a block, by the user's word for it: ``linear``, ``conv2d``, ``add``.

From a stack's frames: the Python function of torch nearest to the user's code, the name under which C++
shows an operation to Python, or the dispatched operation itself; else the file of a module of torch.nn;
last, the innermost function.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from snapconv.columns import Int32Column, read_only
from snapconv.snapshot.stack_table import FrameTable, StackTable
from snapconv.stacks.paths import is_generated, is_library, is_python, normal
from snapconv.torch_knowledge.operation_catalog import UNNAMED, name_in_native, name_in_node

COMPILED = "compiled"

# Files of torch.nn's modules that call functions of one kind, which are C++ or a class's: file -> its name.
_MODULE_FILES = {
    "linear.py": "linear", "normalization.py": "layer_norm", "batchnorm.py": "batch_norm",
    "dropout.py": "dropout", "sparse.py": "embedding", "rnn.py": "rnn", "conv.py": "conv",
    "pooling.py": "pool", "instancenorm.py": "instance_norm", "upsampling.py": "interpolate",
    "activation.py": "activation",
}  # fmt: skip
_MODULES = "torch/nn/modules/"
_FUNCTIONAL = re.compile(r"torch/(nn/functional|functional|nn/init)\.py$")
# Functions behind those that the user calls: torch.unique is one of these, by what it returns.
_BEHIND = re.compile(r"^_(?P<consecutive>consecutive_)?return_(?:counts|inverse|inverse_and_counts|output)$")
_TENSOR_METHODS = "torch/_tensor.py"
# The operators that are C++ behind a wrapper in Python: `**` is the only one, torch 2.0-2.13.
_WRAPPED, _OPERATOR = "wrapped", "pow"
# They stand between an operation and its caller: of modes such as `torch.device(…)`, and of subclasses.
_PASSING = ("torch/utils/_device.py", "torch/overrides.py", _TENSOR_METHODS)
_PASSES, _CALLS, _OPS = "__torch_function__", "__call__", "torch/_ops.py"
# What runs the code that torch.compile wrote; beyond it are the callers of the compiled function.
_RUNS_COMPILED = re.compile(r"/torch/(_inductor|_functorch|_dynamo|fx)/")


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of stacks, or of a device's allocations, by name.

    ``names`` are distinct, UNNAMED first; ``name_id`` is a position in them, one per stack or allocation.
    """

    names: tuple[str, ...]
    name_id: Int32Column


@dataclass(frozen=True, slots=True)
class _LeafFrames:
    """The frames of a stack that show its operation.

    ``python`` without frames that only pass a call on, ``native`` before it. ``python`` of code that
    torch.compile wrote (``generated``) is what it was written from. ``library`` are those of ``python``
    between the operation and the user's own code.
    """

    python: list[int]
    native: list[str]
    generated: int | None
    library: list[int]


def infer_operations(stacks: StackTable) -> Operations:
    """Infer the operation of every stack, by stack id."""
    frames = stacks.frames
    python_frames = [is_python(name) for name in frames.filenames]
    known = {UNNAMED: 0}
    ids = np.zeros(len(stacks), np.int32)
    for stack_id in range(len(stacks)):
        leaf = _leaf_frames(frames, stacks.frames_of(stack_id).tolist(), python_frames)
        found = next(filter(None, _candidates(frames, leaf)), UNNAMED)
        ids[stack_id] = known.setdefault(found, len(known))
    return read_only(Operations(tuple(known), ids))


def name_of_node(stacks: StackTable, stack_id: int) -> str:
    """Return the operation whose backward node freed memory with this stack; UNNAMED if none did."""
    names = stacks.frames.names
    found = (name_in_node(names[frame]) for frame in stacks.frames_of(stack_id).tolist())
    return next(filter(None, found), UNNAMED)


def _leaf_frames(frames: FrameTable, stack: list[int], python_frames: list[bool]) -> _LeafFrames:
    """Sort the frames of a stack: its Python frames, innermost first, and the C++ frames before them."""
    python = [i for i in stack if python_frames[i]]
    # Beyond the first Python frame the C++ frames belong to outer calls.
    native = [frames.names[i] for i in stack[: stack.index(python[0]) if python else len(stack)]]
    generated = python[0] if python and is_generated(normal(frames.filenames[python[0]])) else None
    if generated is not None:
        python = _originals(frames, python[1:])
    else:
        n_passing = 0
        while n_passing < len(python) and _is_passing(frames, python[n_passing]):
            n_passing += 1
        python = python[n_passing:]
    is_own = (k for k, i in enumerate(python) if not is_library(normal(frames.filenames[i])))
    return _LeafFrames(python, native, generated, python[: next(is_own, len(python))])


def _is_passing(frames: FrameTable, frame: int) -> bool:
    path = normal(frames.filenames[frame])
    name = frames.names[frame]
    return (name == _PASSES and path.endswith(_PASSING)) or (name == _CALLS and path.endswith(_OPS))


def _originals(frames: FrameTable, python: list[int]) -> list[int]:
    """Return the lines that generated code was written from: torch puts them right behind its frame."""
    runs = (k for k, i in enumerate(python) if _RUNS_COMPILED.search(normal(frames.filenames[i])))
    return python[: next(runs, 0)]


def _candidates(frames: FrameTable, leaf: _LeafFrames) -> Iterator[str]:
    """Yield candidates for the operation, the best evidence first; an empty name is none."""
    functional, native = _name_of_functional(frames, leaf.library), name_in_native(leaf.native) or ""
    if leaf.generated is None:
        yield from (functional, native, _name_of_tensor_method(frames, leaf.library))
    else:
        # Here C++ shows the very kernel, and the original line only what it was made from.
        yield from (native, functional)
    yield _name_of_module_file(frames, leaf.library)
    if leaf.generated is not None:
        yield COMPILED
    yield _name_of_innermost(frames, leaf.python)


def _name_of_functional(frames: FrameTable, library: list[int]) -> str:
    """Return the outermost function of torch.nn.functional below the module that called it."""
    name = ""
    for i in library:
        path = normal(frames.filenames[i])
        if _FUNCTIONAL.search(path):
            name = frames.names[i]
        elif f"/{_MODULES}" in path and name:
            break
    behind = _BEHIND.match(name)
    if behind:
        return "unique_consecutive" if behind["consecutive"] else "unique"
    # `_max_pool2d` is behind `max_pool2d`, which is chosen among several by a function called `fn`.
    return "" if name == "fn" else name.lstrip("_")


def _name_of_tensor_method(frames: FrameTable, library: list[int]) -> str:
    """Return the method of a tensor that is written in Python: ``rsub`` for ``1 - x``."""
    name = ""
    for i in library:
        if not normal(frames.filenames[i]).endswith(_TENSOR_METHODS):
            break
        name = frames.names[i] if frames.names[i] != _WRAPPED else name or _OPERATOR
    return name.strip("_")


def _name_of_module_file(frames: FrameTable, library: list[int]) -> str:
    for i in library:
        path = normal(frames.filenames[i])
        if f"/{_MODULES}" in path:
            return _MODULE_FILES.get(path.rsplit("/", 1)[1], "")
    return ""


def _name_of_innermost(frames: FrameTable, python: list[int]) -> str:
    """Return the innermost Python function, be it a library's: it at least shows where memory was requested.

    In real snapshots those of libraries (``clone``, ``reshape``, ``sdpa_attention_forward``) show more of
    the operation than the user's function around them (``forward``, ``main``).
    """
    name = next((frames.names[i] for i in python if frames.names[i] != _WRAPPED), "")
    return name.strip("<>")
