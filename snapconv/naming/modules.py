"""Which ``nn.Module`` every allocation is of: its path where a recorder wrote it, else the lines of its call.

A frame has the name of a function, never of a class. What it does have is the line at which a module is
called, so ``model.py:35 < train.py:53`` is the module called there, within the one called there.
"""

from dataclasses import dataclass

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, read_only
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.paths import is_library, is_python, normal
from snapconv.stacks.project_frames import Project

_Known = dict[tuple[str, Evidence], int]

WITHIN = " < "
# A recorder's word for the model itself is the empty path.
_ROOT = "(model)"
_CALL, _MODULE_FILE = "_call_impl", "torch/nn/modules/module.py"
_INSTALLED = ("/site-packages/", "/dist-packages/")
# Models nest less deeply, recursion does not; and a path longer than this is none.
_MAX_CALLS, _MAX_PATH = 12, 200


@dataclass(frozen=True, slots=True)
class Modules:
    """The modules of one device; ``module_id`` is a position in them, one entry per allocation, -1: none.

    ``evidence`` is METADATA for a path such as ``blocks.3.attn``, FRAMES for the lines of calls.
    """

    names: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    module_id: Int32Column


def find_modules(
    stacks: StackTable,
    project: Project,
    allocations: AllocationTable,
    category: Int8Column,
    recorded: RecordedMatches | None,
) -> Modules:
    """Find the module that every allocation was made in, or that a parameter is of.

    A gradient and the states of an optimizer go with their parameter; what autograd saved goes with the
    module that saved it first. A workspace is a library's, whichever module ran when it was made.
    """
    known: _Known = {}
    ids = _by_frames(stacks, project, allocations.stack_id, known)
    ids[category == Category.WORKSPACE] = -1
    if recorded is not None:
        _by_recorded_paths(ids, recorded, known)
    used, ids[ids >= 0] = np.unique(ids[ids >= 0], return_inverse=True)
    every = list(known)
    kept = [every[number] for number in used.tolist()]
    return read_only(Modules(tuple(name for name, _ in kept), tuple(evidence for _, evidence in kept), ids))


def _by_frames(stacks: StackTable, project: Project, stack_id: Int32Column, known: _Known) -> Int32Column:
    is_call, is_place = _calls(stacks), _places(stacks)
    found, inverse = np.unique(stack_id, return_inverse=True)
    ids = np.full(len(found), -1, np.int32)
    for number, stack in enumerate(found.tolist()):
        frames = stacks.frames_of(stack)
        if is_call[frames].any():
            callers = _callers(frames.tolist(), is_call, is_place)
            label = WITHIN.join(_place(stacks, project, frame) for frame in callers)
            if label:
                ids[number] = known.setdefault((label, Evidence.FRAMES), len(known))
    return ids[inverse.reshape(-1)]


def _calls(stacks: StackTable) -> BoolColumn:
    """The frames of ``Module.__call__``, which goes through ``_call_impl`` (torch 1.6 to 2.13)."""
    frames = stacks.frames
    is_call = [
        name == _CALL and normal(filename).endswith(_MODULE_FILE)
        for name, filename in zip(frames.names, frames.filenames, strict=True)
    ]
    return np.array(is_call, np.bool_)


def _places(stacks: StackTable) -> BoolColumn:
    """The Python frames that are not torch's own: a Sequential calls all that it holds on one line."""
    paths = map(normal, stacks.frames.filenames)
    return np.array([is_python(p) and not (is_library(p) and "/torch/" in p) for p in paths], np.bool_)


def _callers(frames: list[int], is_call: BoolColumn, is_place: BoolColumn) -> list[int]:
    """The frames that call modules, innermost first; a deep recursion's outermost calls are left out."""
    found = []
    is_open = False
    for frame in frames:
        if is_open and is_place[frame]:
            found.append(frame)
            is_open = False
        is_open = is_open or bool(is_call[frame])
    return found[:_MAX_CALLS]


def _place(stacks: StackTable, project: Project, frame: int) -> str:
    path = project.relative_paths[frame]
    for folder in _INSTALLED:
        path = path.rpartition(folder)[2]
    line = int(stacks.frames.lines[frame])
    return path[-_MAX_PATH:] + (f":{line}" if line else "")


def _by_recorded_paths(ids: Int32Column, recorded: RecordedMatches, known: _Known) -> None:
    """Overwrite with the paths that a recorder wrote; those of the parameters come last, and win."""
    metadata = recorded.metadata
    saved = _ids_of(metadata.saved.modules, known)
    # Backwards, so that the first that saved a tensor has the last word.
    _set(ids, recorded.saved[::-1], saved[::-1])
    of_parameter = _ids_of([module or _ROOT for module in metadata.parameters.modules], known)
    for rows, parameter in (
        (recorded.states, metadata.states.parameter),
        (recorded.gradients, metadata.gradients.parameter),
    ):
        has_one = parameter >= 0
        _set(ids, rows[has_one], of_parameter[parameter[has_one]])
    _set(ids, recorded.parameters[::-1], of_parameter[::-1])


def _ids_of(modules: tuple[str, ...] | list[str], known: _Known) -> Int32Column:
    ids = [known.setdefault((m, Evidence.METADATA), len(known)) if m else -1 for m in modules]
    return np.array(ids, np.int32)


def _set(ids: Int32Column, rows: Int64Column, values: Int32Column) -> None:
    there = (rows >= 0) & (values >= 0)
    ids[rows[there]] = values[there]
