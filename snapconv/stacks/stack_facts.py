"""Roles, operations and module calls of a file's distinct stacks.

Nothing of allocations is known yet. Many million events share a few thousand stacks, and all
devices of a file share them too.

An operation is named by the user's word for it: ``linear``, ``conv2d``, ``add``. The stack's frames
show it, by the first of these: the Python function of torch nearest to the user's code; the name
under which C++ shows an operation to Python, or the dispatched operation; the file of a module of
torch.nn; the innermost function.

Frames name functions, not classes, so the line of its call identifies a module: ``model.py:35 <
train.py:53`` is the module called at model.py:35, within the one called at train.py:53.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import dropwhile, takewhile

import numpy as np

from snapconv.columns import Int32Column, plain_rows, read_only, rows_of
from snapconv.snapshot.fields import Interner
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.paths import (
    is_generated,
    is_library,
    is_python,
    is_standard_library,
    normal,
)
from snapconv.stacks.project_frames import Project
from snapconv.stacks.stack_roles import StackRoles, assign_roles
from snapconv.torch_knowledge.operation_catalog import (
    UNNAMED,
    dispatched_names,
    name_in_native,
    name_in_node,
)

_COMPILED = "compiled"
# Files of torch.nn's modules that call functions of one kind, which are C++ or a class's, with the
# operation of each.
_MODULE_FILES = {
    "linear.py": "linear", "normalization.py": "layer_norm", "batchnorm.py": "batch_norm",
    "dropout.py": "dropout", "sparse.py": "embedding", "rnn.py": "rnn", "conv.py": "conv",
    "pooling.py": "pool", "instancenorm.py": "instance_norm", "upsampling.py": "interpolate",
    "activation.py": "activation",
}  # fmt: skip
_MODULES = "torch/nn/modules/"
_FUNCTIONAL = re.compile(r"torch/(nn/functional|functional|nn/init)\.py$")
# Functions behind those that the user calls: torch.unique is one of these, by what it returns.
_UNIQUE_VARIANT = re.compile(
    r"^_(?P<consecutive>consecutive_)?return_(?:counts|inverse|inverse_and_counts|output)$"
)
_TENSOR_METHODS = "torch/_tensor.py"
# The operators that are C++ behind a wrapper in Python: `**` is the only one, torch 2.0-2.13.
_WRAPPED, _OPERATOR = "wrapped", "pow"
# Files and functions that stand between an operation and its caller: of modes such as
# `torch.device(…)`, and of subclasses.
_PASSING = ("torch/utils/_device.py", "torch/overrides.py", _TENSOR_METHODS)
_PASSES, _CALLS, _OPS = "__torch_function__", "__call__", "torch/_ops.py"
# What runs the code that torch.compile wrote; beyond it are the callers of the compiled function.
_RUNS_COMPILED = re.compile(r"/torch/(_inductor|_functorch|_dynamo|fx)/")

WITHIN = " < "
# ``Module.__call__`` goes through it (torch 1.6 to 2.13).
_CALL, _MODULE_FILE = "_call_impl", f"{_MODULES}module.py"
_INSTALLED = ("/site-packages/", "/dist-packages/")
# Models nest less deeply, recursion does not; and a path longer than this is none.
_MAX_CALLS, _MAX_PATH = 12, 200

# The function of a frame and its normal path.
_Frame = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of stacks, or of a device's allocations, by name.

    ``names`` are distinct, UNNAMED first; ``name_id`` is a position in them, one per stack or
    allocation.
    """

    names: tuple[str, ...]
    name_id: Int32Column


@dataclass(frozen=True)
class StackFacts:
    """The facts about stacks, by stack id; ``project`` has those about frames."""

    stacks: StackTable
    project: Project

    @cached_property
    def roles(self) -> StackRoles:
        """The roles of every stack."""
        return assign_roles(self.stacks)

    @cached_property
    def project_frame(self) -> Int32Column:
        """The innermost frame of the project of every stack.

        -1: library code only; -2: no stack recorded. The last entry is that of stack -1.
        """
        no_stack = np.int32(-2)
        innermost = self.stacks.only(self.project.is_project).innermost
        return np.append(np.where(self.roles.is_empty, no_stack, innermost), no_stack)

    @cached_property
    def module_calls(self) -> tuple[str, ...]:
        """The lines at which the modules of every stack were called."""
        return find_module_calls(self.stacks, self.project)

    @cached_property
    def operations(self) -> Operations:
        """The operation of every stack."""
        return infer_operations(self.stacks)


# --- operations


def infer_operations(stacks: StackTable) -> Operations:
    """Infer the operation of every stack, by stack id."""
    names = stacks.frames.names
    files = stacks.frames.filenames
    frame_is_python = list(map(is_python, files))
    functions = list(zip(names, map(normal, files), strict=True))
    operations = Interner()
    operations.id(UNNAMED)
    ids = np.zeros(len(stacks), np.int32)
    for stack_id in range(len(stacks)):
        frames = stacks.frames_of(stack_id).tolist()
        python = [frame for frame in frames if frame_is_python[frame]]
        # Beyond the first Python frame the C++ frames belong to outer calls.
        n_native = frames.index(python[0]) if python else len(frames)
        native_names = list(map(names.__getitem__, frames[:n_native]))
        operation = _operation_of(list(map(functions.__getitem__, python)), native_names)
        ids[stack_id] = operations.id(operation)
    return read_only(Operations(operations.values(), ids))


def name_of_node(stacks: StackTable, stack_id: int) -> str:
    """Return the operation whose backward node allocated or freed with this stack, or UNNAMED."""
    return next(filter(None, map(name_in_node, _native_names(stacks, stack_id))), UNNAMED)


def dispatched_in(stacks: StackTable, stack_id: int) -> set[str]:
    """Return every operation that C++ went through within the innermost call of Python."""
    return set(dispatched_names(_native_names(stacks, stack_id)))


def _native_names(stacks: StackTable, stack_id: int) -> list[str]:
    """Return the C++ functions within the first Python frame: others belong to outer calls."""
    files = stacks.frames.filenames
    frames = stacks.frames_of(stack_id).tolist()
    native = takewhile(lambda frame: not is_python(files[frame]), frames)
    return list(map(stacks.frames.names.__getitem__, native))


def _operation_of(python: list[_Frame], native: list[str]) -> str:
    """Infer an operation from its Python frames, innermost first, and the C++ frames within."""
    is_compiled = bool(python) and is_generated(python[0][1])
    if is_compiled:
        python = _original_lines(python)
    else:
        python = list(dropwhile(_is_passing, python))
    library = list(takewhile(_is_library_frame, python))
    functional = _name_of_functional(library)
    module_file = _name_of_module_file(library)
    cpp_name = name_in_native(native)
    if is_compiled:
        # C++ shows the very kernel, and the original line only what it was made from.
        return cpp_name or functional or module_file or _COMPILED
    name = functional or cpp_name or _name_of_tensor_method(library)
    return name or module_file or _name_of_innermost(python) or UNNAMED


def _original_lines(python: list[_Frame]) -> list[_Frame]:
    """Return the lines that generated code was written from: torch puts them behind its frame."""
    for number, (_, path) in enumerate(python):
        if number and _RUNS_COMPILED.search(path):
            return python[1:number]
    return []


def _is_library_frame(frame: _Frame) -> bool:
    _, path = frame
    return is_library(path)


def _is_passing(frame: _Frame) -> bool:
    name, path = frame
    if name == _PASSES:
        return path.endswith(_PASSING)
    return name == _CALLS and path.endswith(_OPS)


def _name_of_functional(library: list[_Frame]) -> str:
    """Return the outermost function of torch.nn.functional below the module that called it."""
    name = ""
    for function, path in library:
        if _FUNCTIONAL.search(path):
            name = function
        elif f"/{_MODULES}" in path and name:
            break
    unique_variant = _UNIQUE_VARIANT.match(name)
    if unique_variant:
        return "unique_consecutive" if unique_variant["consecutive"] else "unique"
    # `_max_pool2d` is behind `max_pool2d`, which is chosen among several by a function called `fn`.
    return "" if name == "fn" else name.lstrip("_")


def _name_of_tensor_method(library: list[_Frame]) -> str:
    """Return the method of a tensor that is written in Python: ``rsub`` for ``1 - x``."""
    name = ""
    for function, path in library:
        if not path.endswith(_TENSOR_METHODS):
            break
        if function != _WRAPPED:
            name = function
        elif not name:
            name = _OPERATOR
    return name.strip("_")


def _name_of_module_file(library: list[_Frame]) -> str:
    for _, path in library:
        if f"/{_MODULES}" in path:
            return _MODULE_FILES.get(path.rpartition("/")[2], "")
    return ""


def _name_of_innermost(python: list[_Frame]) -> str:
    """Return the innermost Python function, be it a library's.

    It at least shows where memory was requested. In real snapshots those of libraries (``clone``,
    ``reshape``, ``sdpa_attention_forward``) show more of the operation than the user's function
    around them (``forward``, ``main``).
    """
    for function, _ in python:
        if function != _WRAPPED:
            return function.strip("<>")
    return ""


# --- calls of modules


def find_module_calls(stacks: StackTable, project: Project) -> tuple[str, ...]:
    """Return the lines at which the modules of every stack were called, by stack id.

    Empty where none was. The outermost calls of a deep recursion are left out.
    """
    frames = stacks.frames
    is_call = np.array([name == _CALL for name in frames.names], bool)
    is_call &= frames.mark_files(_has_module_calls)
    is_line = frames.mark_files(_says_which_module)
    entries = rows_of(stacks.mark_entries(is_call | is_line))
    frame_ids = stacks.frame_ids[entries]
    owners = stacks.owners[entries]
    # The next frame beyond a call of a module is what called it.
    is_caller = is_line[frame_ids]
    is_caller[1:] &= is_call[frame_ids[:-1]] & (owners[1:] == owners[:-1])
    is_caller[:1] = False
    callers: dict[int, list[int]] = defaultdict(list)
    for stack, frame in plain_rows(owners[is_caller], frame_ids[is_caller]):
        callers[stack].append(frame)
    label = cache(partial(_line_label, stacks, project))
    calls = []
    for stack in range(len(stacks)):
        calls.append(WITHIN.join(map(label, callers[stack][:_MAX_CALLS])))
    return tuple(calls)


def _has_module_calls(file: str) -> bool:
    return normal(file).endswith(_MODULE_FILE)


def _says_which_module(file: str) -> bool:
    """Return whether a line of a Python file says which module is called.

    Not torch's own, where a Sequential calls all its modules on one line, and not those of Python's
    library, where every function of a thread is called on one.
    """
    path = normal(file)
    is_of_torch = is_library(path) and "/torch/" in path
    return is_python(path) and not (is_standard_library(path) or is_of_torch)


def _line_label(stacks: StackTable, project: Project, frame: int) -> str:
    path = project.relative_paths[frame]
    for folder in _INSTALLED:
        path = path.rpartition(folder)[2]
    line = int(stacks.frames.lines[frame])
    return path[-_MAX_PATH:] + (f":{line}" if line else "")
