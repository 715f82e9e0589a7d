"""Everything that the distinct stacks of a file show by themselves: roles, calls of modules, operations.

One pass, before anything is known of allocations: many million events share a few thousand stacks, and all
devices of a file share them too.

A frame has the name of a function, never of a class. What it does have is the line at which a module is
called, so ``model.py:35 < train.py:53`` is the module called there, within the one called there.
"""

from dataclasses import dataclass
from functools import cache

from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.operations import Operations, infer_operations
from snapconv.stacks.paths import is_library, is_python, is_standard_library, normal
from snapconv.stacks.project_frames import Project
from snapconv.stacks.stack_roles import StackRoles, assign_roles

WITHIN = " < "
# ``Module.__call__`` goes through it (torch 1.6 to 2.13).
_CALL, _MODULE_FILE = "_call_impl", "torch/nn/modules/module.py"
_INSTALLED = ("/site-packages/", "/dist-packages/")
# Models nest less deeply, recursion does not; and a path longer than this is none.
_MAX_CALLS, _MAX_PATH = 12, 200


@dataclass(frozen=True, slots=True)
class StackFacts:
    """The facts about stacks, by stack id: their roles, calls of modules, and operations.

    ``project`` has those about frames.
    """

    stacks: StackTable
    project: Project
    roles: StackRoles
    module_calls: tuple[str, ...]
    operations: Operations


def find_stack_facts(stacks: StackTable, project: Project) -> StackFacts:
    """Find what the stacks of a file show."""
    return StackFacts(
        stacks=stacks,
        project=project,
        roles=assign_roles(stacks),
        module_calls=find_module_calls(stacks, project),
        operations=infer_operations(stacks),
    )


def find_module_calls(stacks: StackTable, project: Project) -> tuple[str, ...]:
    """Return the lines at which the modules of every stack were called, by stack id; empty where none was."""
    functions = zip(stacks.frames.names, stacks.frames.filenames, strict=True)
    is_call = [name == _CALL and normal(path).endswith(_MODULE_FILE) for name, path in functions]
    is_place = _places(stacks)
    place = cache(lambda frame: _place(stacks, project, frame))

    def label(stack: int) -> str:
        callers = _callers(stacks.frames_of(stack).tolist(), is_call, is_place)
        return WITHIN.join(map(place, callers))

    return tuple(map(label, range(len(stacks))))


def _places(stacks: StackTable) -> list[bool]:
    """Mark the Python frames whose line says which module is called.

    Not torch's own, where a Sequential calls all its modules on one line, and not those of Python's library,
    where every function of a thread is called on one.
    """
    paths = (normal(name) for name in stacks.frames.filenames)
    return [
        is_python(path) and not is_standard_library(path) and not (is_library(path) and "/torch/" in path)
        for path in paths
    ]


def _callers(frames: list[int], is_call: list[bool], is_place: list[bool]) -> list[int]:
    """Return the frames that call modules, innermost first, without a deep recursion's outermost calls."""
    found = []
    is_open = False
    for frame in frames:
        if is_open and is_place[frame]:
            found.append(frame)
            is_open = False
        is_open = is_open or is_call[frame]
    return found[:_MAX_CALLS]


def _place(stacks: StackTable, project: Project, frame: int) -> str:
    path = project.relative_paths[frame]
    for folder in _INSTALLED:
        path = path.rpartition(folder)[2]
    line = int(stacks.frames.lines[frame])
    return path[-_MAX_PATH:] + (f":{line}" if line else "")
