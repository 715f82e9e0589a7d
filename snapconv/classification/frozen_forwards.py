"""Whether modules that are trained also run without saving anything: a second, frozen copy of a model.

A teacher, a reference, a target network. Or the same model again, in a validation or for a value that is
compared: no file shows which of the two it is.
"""

from collections.abc import Iterator

import numpy as np

from snapconv.classification.features import Features
from snapconv.columns import BoolColumn, Int64Column, run_starts
from snapconv.stacks.frame_matching import FrameMatcher
from snapconv.stacks.paths import is_python
from snapconv.stacks.stack_roles import StackRoles
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES, Role

# Of what it makes, a forward that is trained saves most for its backward. One that is not may return a
# result that the program still has then.
_LEAST_SAVED, _MOST_KEPT = 0.2, 0.1
# A model is more than a few lines, and the shorter forward has most of its lines in common with the other.
_LEAST_LINES = 3
_NEARLY = 0.8


def frozen_modules_ran(features: Features) -> bool:
    """Whether the same lines of modules run from several places, and not all of these save anything."""
    trained: set[int] = set()
    frozen: list[set[int]] = []
    for lines, saved in _forwards(features):
        if saved >= _LEAST_SAVED:
            trained |= lines
        elif saved < _MOST_KEPT and len(lines) >= _LEAST_LINES:
            frozen.append(lines)
    return any(len(lines & trained) >= _NEARLY * len(lines) for lines in frozen)


def _forwards(features: Features) -> Iterator[tuple[set[int], float]]:
    """For every place that calls modules: their lines, and the share of their bytes that backward finds."""
    rows = np.flatnonzero(features.by_module)
    if not len(rows):
        return
    lines, place = _split_stacks(features.roles)
    stack, sizes = features.allocations.stack_id[rows], features.sizes[rows]
    _, called_from = np.unique(place[stack], return_inverse=True)
    total = np.bincount(called_from, sizes)
    saved = np.bincount(called_from, sizes * _is_saved(features)[rows])
    order = np.argsort(called_from, kind="stable")
    begins = run_starts(called_from[order])
    for of_place, here in enumerate(np.split(lines[stack[order]], begins[1:])):
        yield set(here.tolist()), float(saved[of_place] / max(total[of_place], 1.0))


def _is_saved(features: Features) -> BoolColumn:
    if features.phases.free_sites_known:
        return features.is_freed_by_engine
    reaches = (features.next_backward < features.n_events) & (features.end >= features.next_backward)
    return np.asarray(reaches)


def _split_stacks(roles: StackRoles) -> tuple[Int64Column, Int64Column]:
    """Number, for every stack, its Python frames within the outermost call of a module, and the others."""
    frames = roles.stacks.frames
    is_call = np.zeros(len(frames.names), np.bool_)
    matcher = FrameMatcher(frames)
    for rule in FRAME_RULES:
        if rule.role == Role.MODULE_CALL:
            is_call |= matcher.matches(rule)
    python = np.array([is_python(name) for name in frames.filenames], np.bool_)
    numbers: dict[tuple[int, ...], int] = {}
    n_stacks = len(roles.stacks)
    within, around = np.zeros(n_stacks, np.int64), np.zeros(n_stacks, np.int64)
    for stack in np.flatnonzero(roles.has[Role.MODULE_CALL]).tolist():
        ids = roles.stacks.frames_of(stack)
        ids = ids[python[ids]]
        calls = np.flatnonzero(is_call[ids])
        outermost = int(calls[-1]) + 1 if len(calls) else 0
        within[stack] = numbers.setdefault(tuple(ids[:outermost].tolist()), len(numbers))
        around[stack] = numbers.setdefault((-1, *ids[outermost:].tolist()), len(numbers))
    return within, around
