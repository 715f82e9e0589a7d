"""In which calls of modules every stack stands, by the lines of these calls.

A frame has the name of a function, never of a class. What it does have is the line at which a module is
called, so ``model.py:35 < train.py:53`` is the module called there, within the one called there.
"""

from collections.abc import Iterable

import numpy as np

from snapconv.columns import BoolColumn
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.paths import is_library, is_python, is_standard_library, normal
from snapconv.stacks.project_frames import Project
from snapconv.stacks.stack_roles import frames_of_function

WITHIN = " < "
# ``Module.__call__`` goes through it (torch 1.6 to 2.13).
_CALL, _MODULE_FILE = "_call_impl", "torch/nn/modules/module.py"
_INSTALLED = ("/site-packages/", "/dist-packages/")
# Models nest less deeply, recursion does not; and a path longer than this is none.
_MAX_CALLS, _MAX_PATH = 12, 200


def find_module_calls(stacks: StackTable, project: Project) -> tuple[str, ...]:
    """The lines at which the modules of every stack were called, by stack id; empty where none was."""
    is_call, is_place = frames_of_function(stacks.frames, _CALL, _MODULE_FILE), _places(stacks)
    return tuple(_label(stacks, project, stack, is_call, is_place) for stack in range(len(stacks)))


def _label(
    stacks: StackTable, project: Project, stack: int, is_call: BoolColumn, is_place: BoolColumn
) -> str:
    frames = stacks.frames_of(stack)
    if not is_call[frames].any():
        return ""
    rows = zip(frames.tolist(), is_call[frames].tolist(), is_place[frames].tolist(), strict=True)
    return WITHIN.join(_place(stacks, project, frame) for frame in _callers(rows))


def _places(stacks: StackTable) -> BoolColumn:
    """The Python frames whose line says which module is called.

    Not torch's own, where a Sequential calls all its modules on one line, and not those of Python's library,
    where every function of a thread is called on one.
    """
    return np.array([_is_place(normal(name)) for name in stacks.frames.filenames], np.bool_)


def _is_place(path: str) -> bool:
    is_of_torch = is_library(path) and "/torch/" in path
    return is_python(path) and not is_of_torch and not is_standard_library(path)


def _callers(rows: Iterable[tuple[int, bool, bool]]) -> list[int]:
    """The frames that call modules, innermost first; a deep recursion's outermost calls are left out.

    Of each frame of a stack: whether it is the call of a module, and whether its line says of which.
    """
    found = []
    is_open = False
    for frame, is_call, is_place in rows:
        if is_open and is_place:
            found.append(frame)
            is_open = False
        is_open = is_open or is_call
    return found[:_MAX_CALLS]


def _place(stacks: StackTable, project: Project, frame: int) -> str:
    path = project.relative_paths[frame]
    for folder in _INSTALLED:
        path = path.rpartition(folder)[2]
    line = int(stacks.frames.lines[frame])
    return path[-_MAX_PATH:] + (f":{line}" if line else "")
