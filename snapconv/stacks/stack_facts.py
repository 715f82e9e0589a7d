"""Roles, module calls and operations of a file's distinct stacks.

One pass, before anything is known of allocations: many million events share a few thousand stacks, and all
devices of a file share them too.

Frames name functions, not classes, so the line of its call identifies a module: ``model.py:35 < train.py:53``
is the module called at model.py:35, within the one called at train.py:53.
"""

from collections import defaultdict
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np

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


@dataclass(frozen=True)
class StackFacts:
    """The facts about stacks, by stack id; ``project`` has those about frames."""

    stacks: StackTable
    project: Project
    roles: StackRoles

    @cached_property
    def module_calls(self) -> tuple[str, ...]:
        """The lines at which the modules of every stack were called."""
        return find_module_calls(self.stacks, self.project)

    @cached_property
    def operations(self) -> Operations:
        """The operation of every stack."""
        return infer_operations(self.stacks)


def find_stack_facts(stacks: StackTable, project: Project) -> StackFacts:
    """Find what the stacks of a file show."""
    return StackFacts(stacks, project, assign_roles(stacks))


def find_module_calls(stacks: StackTable, project: Project) -> tuple[str, ...]:
    """Return the lines at which the modules of every stack were called, by stack id; empty where none was.

    The outermost calls of a deep recursion are left out.
    """
    functions = zip(stacks.frames.names, stacks.frames.filenames, strict=True)
    named = (name == _CALL and normal(path).endswith(_MODULE_FILE) for name, path in functions)
    is_call, is_place = np.array(list(named), np.bool_), np.array(_places(stacks), np.bool_)
    places = np.flatnonzero(stacks.with_frames(is_call | is_place))
    frames, owners = stacks.frame_ids[places], stacks.owners[places]
    # The next frame beyond a call of a module is what called it.
    is_caller = is_place[frames]
    is_caller[1:] &= is_call[frames[:-1]] & (owners[1:] == owners[:-1])
    is_caller[:1] = False
    callers: dict[int, list[int]] = defaultdict(list)
    for stack, frame in zip(owners[is_caller].tolist(), frames[is_caller].tolist(), strict=True):
        callers[stack].append(frame)
    place = cache(lambda frame: _place(stacks, project, frame))
    return tuple(WITHIN.join(map(place, callers[stack][:_MAX_CALLS])) for stack in range(len(stacks)))


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


def _place(stacks: StackTable, project: Project, frame: int) -> str:
    path = project.relative_paths[frame]
    for folder in _INSTALLED:
        path = path.rpartition(folder)[2]
    line = int(stacks.frames.lines[frame])
    return path[-_MAX_PATH:] + (f":{line}" if line else "")
