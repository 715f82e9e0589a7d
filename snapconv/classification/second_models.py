"""Second models: whether trained modules also run frozen, and whether an average of weights is updated.

A teacher, a reference, a target network: it runs in every step. Or the same model again, for a value that is
compared: no file shows which of the two it is. What is left out of some steps is a validation.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from snapconv.classification.features import Features
from snapconv.columns import BoolColumn, Int64Column, grouped
from snapconv.stacks.paths import is_python
from snapconv.stacks.stack_roles import FrameMatcher, StackRoles, frames_of_function
from snapconv.torch_knowledge.frame_patterns import FRAME_RULES
from snapconv.torch_knowledge.frame_roles import Role

# Of what it makes, a forward that is trained saves most for its backward. One that is not may return a
# result that the program still has then.
_LEAST_SAVED, _MOST_KEPT = 0.2, 0.1
# Of one step alone nothing shows that it is not the validation that came before it.
_LEAST_STEPS = 2
# A model is more than a few lines, and the shorter forward has most of its lines in common with the other.
_LEAST_LINES = 3
_NEARLY = 0.8
# A loss that is added up, or a measure.
_SCALAR_BYTES = 8
# The functions that update an average of the weights, from outside of optimizers. They allocate only where
# the average itself is.
_UPDATES = (
    ("update_parameters", "torch/optim/swa_utils.py"),  # AveragedModel; Lightning's callbacks call it
    ("step", "diffusers/training_utils.py"),  # EMAModel
    ("update", "timm/utils/model_ema.py"),  # ModelEma, ModelEmaV2, ModelEmaV3
)


def has_second_model(features: Features) -> bool | None:
    """Whether there is a second model on the device; None where a recording of one step does not show it."""
    frames = features.roles.stacks.frames
    if any(frames_of_function(frames, function, file).any() for function, file in _UPDATES):
        return True
    return frozen_modules_ran(features)


def frozen_modules_ran(features: Features) -> bool | None:
    """Whether the same lines of modules run from several places, of which one saves nothing in any step.

    None where they do in the only step that there is, and nothing shows whether it is a part of it.
    """
    trained: list[_Forwards] = []
    frozen: list[_Forwards] = []
    for forwards in _forwards(features):
        if forwards.saved_bytes >= _LEAST_SAVED * forwards.made_bytes:
            trained.append(forwards)
        elif forwards.saved_bytes < _MOST_KEPT * forwards.made_bytes and len(forwards.lines) >= _LEAST_LINES:
            frozen.append(forwards)
    lines = set[int]().union(*(one.lines for one in trained))
    steps = set[int]().union(*(one.iterations for one in trained))
    in_steps = [
        one
        for one in frozen
        if len(one.lines & lines) >= _NEARLY * len(one.lines)
        and len(one.iterations & steps) >= _NEARLY * len(steps)
    ]
    if len(steps) >= _LEAST_STEPS:
        return bool(in_steps)
    are_parts = {_is_part_of_step(features, one, trained) for one in in_steps}
    return True if True in are_parts else None if None in are_parts else False


@dataclass(frozen=True, slots=True)
class _Forwards:
    """What runs from one place: its lines in modules, and how much of what they make backward finds.

    ``iterations`` are those in which it ran; what runs after the last backward is of an iteration of its own.
    ``rows``: its allocations, in order.
    """

    lines: set[int]
    iterations: set[int]
    made_bytes: float
    saved_bytes: float
    rows: Int64Column


def _is_part_of_step(features: Features, frozen: _Forwards, trained: list[_Forwards]) -> bool | None:
    """Whether a frozen forward is for the backward that comes next; None where nothing shows it.

    A validation is never between a forward and its backward. Before that forward, its batch is another one,
    and nothing that follows from it is still there in backward.
    """
    alloc, next_backward = features.alloc, features.next_backward
    backward = int(next_backward[frozen.rows[0]])
    rows = np.concatenate([one.rows for one in trained if len(one.lines & frozen.lines)])
    rows = rows[next_backward[rows] == backward]
    if not len(rows):
        return None
    begins, first, last = int(alloc[rows].min()), int(alloc[frozen.rows[0]]), int(alloc[frozen.rows[-1]])
    if begins < first:
        return True
    between = features.outside & (alloc > last) & (alloc < begins) & (features.end >= backward)
    if not features.has_cpp:
        return None  # what is copied to the device may as well be computed there
    if np.any(between & features.from_nothing):
        return False
    return True if np.any(between & (features.sizes > _SCALAR_BYTES)) else None


def _forwards(features: Features) -> Iterator[_Forwards]:
    """Go through the places that call modules."""
    rows = np.flatnonzero(features.by_module)
    if not len(rows):
        return
    lines, place = _split_stacks(features.roles)
    stack, sizes = features.allocations.stack_id[rows], features.sizes[rows]
    _, called_from = np.unique(place[stack], return_inverse=True)
    total = np.bincount(called_from, sizes)
    saved = np.bincount(called_from, sizes * _is_saved(features)[rows])
    iteration = features.iteration[rows]
    for of_place, here in enumerate(grouped(np.arange(len(rows)), called_from)):
        in_lines, in_iterations = set(lines[stack[here]].tolist()), set(iteration[here].tolist())
        yield _Forwards(in_lines, in_iterations, float(total[of_place]), float(saved[of_place]), rows[here])


def _is_saved(features: Features) -> BoolColumn:
    if features.phases.free_sites_known:
        return features.is_freed_by_engine
    return features.reaches_backward


def _split_stacks(roles: StackRoles) -> tuple[Int64Column, Int64Column]:
    """Count the Python frames of every stack within the outermost call of a module, and the others."""
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
        around[stack] = numbers.setdefault(tuple(ids[outermost:].tolist()), len(numbers))
    return within, around
