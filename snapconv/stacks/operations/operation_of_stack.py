"""What a person would call the operation that allocated a block: ``linear``, ``conv2d``, ``add``.

From a stack's frames: the Python function of torch nearest to the user's code, the name under which C++
shows an operation to Python, or the dispatched operation itself; else what the innermost line calls, where
its source is there; else the module of torch.nn; last, the innermost function.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING

from snapconv.snapshot.stack_table import FrameTable, StackTable
from snapconv.stacks.operations.lines_of_modules import name_of_line, releases_of
from snapconv.stacks.paths import is_generated, is_library, is_python, normal
from snapconv.torch_knowledge.operation_catalog import UNNAMED, name_in_native, name_in_node, name_in_target

if TYPE_CHECKING:  # what reads sources is imported where there are some
    from snapconv.stacks.operations.source_lines import Line

COMPILED = "compiled"
BY_SOURCE = "what its line of source calls"
BY_ORDER = "what its line of source calls, by the order of evaluation"
BY_LINE = "one of several operations that its line of source calls"

# Modules of torch.nn whose forward calls one function: file -> its name.
_MODULE_FILES = {
    "linear.py": "linear", "normalization.py": "layer_norm", "batchnorm.py": "batch_norm",
    "dropout.py": "dropout", "sparse.py": "embedding", "rnn.py": "rnn", "conv.py": "conv",
    "pooling.py": "pool", "instancenorm.py": "instance_norm", "upsampling.py": "interpolate",
}  # fmt: skip
_MODULES = "/torch/nn/modules/"
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
class Sources:
    """What is known beyond frames: source ``lines`` by frame, and the ``releases`` that torch may be of."""

    lines: "Mapping[int, Line]"
    releases: frozenset[str]


@dataclass(frozen=True, slots=True)
class StackOperation:
    """The operation of a stack, and what it was inferred from (``source``).

    ``line`` is there, with its ``frame``, where a line has several operations, so that only the order of
    allocations can decide.
    """

    name: str
    source: str
    line: "Line | None" = None
    frame: int = -1


@dataclass(frozen=True, slots=True)
class View:
    """A stack for the naming: ``python`` without frames that only pass a call on, ``native`` before it.

    ``python`` of code that torch.compile wrote (``generated``) is what it was written from. ``is_op``: the
    operation is called through torch.ops.
    """

    python: list[int]
    native: list[str]
    generated: int | None
    is_op: bool


def find_sources(frames: FrameTable, lines: "Mapping[int, Line] | None" = None) -> Sources:
    """Gather the evidence beyond function names: source lines, if any are given, and the release of torch."""
    return Sources(lines or {}, releases_of(frames))


def infer_operations(stacks: StackTable, sources: Sources) -> tuple[StackOperation, ...]:
    """The operation of every stack, by stack id, and what it was inferred from."""
    return tuple(_infer(stacks.frames, stack, sources) for stack in _views(stacks))


def name_of_node(stacks: StackTable, stack_id: int) -> str:
    """The operation whose backward node freed memory with this stack; UNNAMED if none did."""
    names = stacks.frames.names
    found = (name_in_node(names[frame]) for frame in stacks.frames_of(stack_id).tolist())
    return next(filter(None, found), UNNAMED)


def _views(stacks: StackTable) -> Iterator[View]:
    """Every stack as the naming sees it."""
    python_frames = [is_python(name) for name in stacks.frames.filenames]
    for stack_id in range(len(stacks)):
        yield _view(stacks.frames, stacks.frames_of(stack_id).tolist(), python_frames)


def _view(frames: FrameTable, stack: list[int], python_frames: list[bool]) -> View:
    """Sort the frames of a stack: its Python frames, innermost first, and the C++ frames before them."""
    python = [i for i in stack if python_frames[i]]
    # Beyond the first Python frame the C++ frames belong to outer calls.
    first_python = stack.index(python[0]) if python else len(stack)
    native = [frames.names[i] for i in stack[:first_python]]
    if python and is_generated(normal(frames.filenames[python[0]])):
        return View(_originals(frames, python[1:]), native, python[0], is_op=False)
    n_passing = 0
    while n_passing < len(python) and _is_passing(frames, python[n_passing]):
        n_passing += 1
    is_op = any(frames.names[i] == _CALLS for i in python[:n_passing])
    return View(python[n_passing:], native, None, is_op)


def _is_passing(frames: FrameTable, frame: int) -> bool:
    path = normal(frames.filenames[frame])
    name = frames.names[frame]
    return (name == _PASSES and path.endswith(_PASSING)) or (name == _CALLS and path.endswith(_OPS))


def _originals(frames: FrameTable, python: list[int]) -> list[int]:
    """The lines that generated code was written from: torch puts them right behind its frame."""
    runs = (k for k, i in enumerate(python) if _RUNS_COMPILED.search(normal(frames.filenames[i])))
    return python[: next(runs, 0)]


def leaf_frames(stacks: StackTable) -> frozenset[int]:
    """The frames whose line alone can give the operation, since nothing else in their stacks does."""
    return frozenset(
        stack.python[0]
        for stack in _views(stacks)
        if stack.python and not any(operation.name for operation in _without_source(stacks.frames, stack))
    )


def _infer(frames: FrameTable, stack: View, sources: Sources) -> StackOperation:
    candidates = chain(
        _without_source(frames, stack),
        [_from_source(frames, stack, sources)],
        _less_certain(frames, stack, sources),
    )
    return next(operation for operation in candidates if operation.name)


def _without_source(frames: FrameTable, stack: View) -> Iterator[StackOperation]:
    """Candidates that need no source lines, the best evidence first."""
    leaf = _leading_library(frames, stack.python)
    functional = StackOperation(
        _from_functional(frames, leaf), "the function of torch.nn.functional in its stack"
    )
    if stack.generated is None:
        yield functional
    yield StackOperation(name_in_native(stack.native) or "", "the C++ frames of its stack")
    if stack.generated is None:
        yield StackOperation(_from_tensor_method(frames, leaf), "the method of torch.Tensor in its stack")
    else:
        # Here C++ shows the very kernel, and the original line only what it was made from.
        yield StackOperation(
            name_in_target(frames.targets[stack.generated]) or "", "the node of the compiled graph"
        )
        yield functional


def _less_certain(frames: FrameTable, stack: View, sources: Sources) -> Iterator[StackOperation]:
    """Candidates for an operation, or for its caller, without source lines."""
    leaf = _leading_library(frames, stack.python)
    line = name_of_line(frames, leaf[0], sources.releases) if leaf else None
    yield StackOperation(line or "", "the line of torch.nn in its stack")
    yield StackOperation(_from_module_file(frames, leaf), "the module of torch.nn in its stack")
    if stack.generated is not None:
        yield StackOperation(COMPILED, "the code that torch.compile wrote")
    yield StackOperation(_from_innermost(frames, stack.python), "the innermost Python function of its stack")
    yield StackOperation(UNNAMED, "no known frame")


def _leading_library(frames: FrameTable, python: list[int]) -> list[int]:
    """The Python frames between the operation and the user's own code."""
    own = next((k for k, i in enumerate(python) if not is_library(normal(frames.filenames[i]))), len(python))
    return python[:own]


def _from_functional(frames: FrameTable, leaf: list[int]) -> str:
    """The outermost function of torch.nn.functional below the module that called it."""
    name = ""
    for i in leaf:
        path = normal(frames.filenames[i])
        if _FUNCTIONAL.search(path):
            name = frames.names[i]
        elif _MODULES in path and name:
            break
    behind = _BEHIND.match(name)
    if behind:
        return "unique_consecutive" if behind["consecutive"] else "unique"
    # `_max_pool2d` is behind `max_pool2d`, which is chosen among several by a function called `fn`.
    return "" if name == "fn" else name.lstrip("_")


def _from_source(frames: FrameTable, stack: View, sources: Sources) -> StackOperation:
    """What the innermost line calls, where its source is given and the frame itself shows no more."""
    line = sources.lines.get(stack.python[0]) if stack.python else None
    if line is None or _is_wrapped(frames, stack.python[0]):
        return StackOperation("", "")
    steps = tuple(step for step in line.steps if step.is_op == stack.is_op)
    found = tuple(step for step in steps if step.most != 0) or steps[-1:]
    names = {step.name for step in found}
    if len(names) == 1:
        return StackOperation(found[-1].name, BY_SOURCE)
    # Operations that were compiled together do not allocate one after the other.
    if not names or stack.generated is not None:
        return StackOperation("", "")
    # The last that allocates whenever the line runs: its result is what lives on, more often than not.
    certain = [step for step in found if step.least] or found
    return StackOperation(certain[-1].name, BY_LINE, replace(line, steps=found), stack.python[0])


def _is_wrapped(frames: FrameTable, frame: int) -> bool:
    return frames.names[frame] == _WRAPPED and normal(frames.filenames[frame]).endswith(_TENSOR_METHODS)


def _from_tensor_method(frames: FrameTable, leaf: list[int]) -> str:
    """The method of a tensor that is written in Python: ``rsub`` for ``1 - x``."""
    name = ""
    for i in leaf:
        if not normal(frames.filenames[i]).endswith(_TENSOR_METHODS):
            break
        name = frames.names[i] if frames.names[i] != _WRAPPED else name or _OPERATOR
    return name.strip("_")


def _from_module_file(frames: FrameTable, leaf: list[int]) -> str:
    for i in leaf:
        path = normal(frames.filenames[i])
        if _MODULES in path:
            return _MODULE_FILES.get(path.rsplit("/", 1)[1], "")
    return ""


def _from_innermost(frames: FrameTable, python: list[int]) -> str:
    """The innermost Python function, be it a library's, which at least shows where memory was requested.

    In real snapshots those of libraries (``clone``, ``reshape``, ``sdpa_attention_forward``) show more of
    the operation than the user's function around them (``forward``, ``main``).
    """
    name = next((frames.names[i] for i in python if frames.names[i] != _WRAPPED), "")
    return name.strip("<>")
