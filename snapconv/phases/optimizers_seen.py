"""The number of states that the optimizers of a trace keep for every parameter, by name or by file."""

import re
from collections.abc import Iterator

import numpy as np

from snapconv.columns import BoolColumn, distinct
from snapconv.snapshot.load import Snapshot
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.paths import normal
from snapconv.stacks.stack_roles import StackRoles
from snapconv.torch_knowledge.frame_patterns import Role
from snapconv.torch_knowledge.optimizers import AMSGRAD, OPTIMIZER_RULES, OptimizerRule

# torch calls a step `Optimizer.step#AdamW.step` (torch/optim/optimizer.py, profile_hook_step).
_STEP = re.compile(r"^Optimizer\.step#(\w+)\.step$")
# What is between a step and the line that calls it: a wrapper, a schedule of learning rates, a GradScaler.
_OWN = re.compile(r"torch/(optim|amp|cuda/amp|utils/_contextlib|autograd/profiler)[/.\w]{0,255}\.py$")
_FILE = re.compile(r"torch/optim/(?!optimizer|lr_scheduler|swa_utils)\w+\.py$")
# The two averages of Adam, and the largest ones of the second.
_OF_ADAM, _WITH_AMSGRAD = (2, 2), (3, 3)


def states_per_parameter(snapshot: Snapshot, roles: StackRoles) -> tuple[int, int] | None:
    """Count the tensors of a parameter's size that each optimizer seen keeps, at least and at most.

    None where no optimizer is seen, where one is not known, or where they differ.
    """
    seen = _optimizers(snapshot, roles)
    found = {None if rule is None else (rule.least_states, rule.most_states) for rule in seen}
    if len(found) != 1:
        return None
    return _WITH_AMSGRAD if found == {_OF_ADAM} and _runs_amsgrad(snapshot, roles) else found.pop()


def optimizer_names(snapshot: Snapshot) -> tuple[str, ...]:
    """Return the classes of the optimizers that torch has written into its annotations."""
    named = snapshot.annotations.name_id
    steps = (_STEP.match(snapshot.texts[name]) for name in distinct(named[named >= 0]).tolist())
    return tuple(sorted({step[1] for step in steps if step}))


def states_are_built(snapshot: Snapshot, roles: StackRoles) -> bool:
    """Return whether every optimizer seen makes its states when built, and so before the first gradients."""
    seen = _optimizers(snapshot, roles)
    return bool(seen) and all(rule is not None and rule.is_built for rule in seen)


def steps_on_several_lines(snapshot: Snapshot, roles: StackRoles) -> bool:
    """Return whether there may be several optimizers: an iteration then has one model's gradients of several.

    A step is called by the first frame outside of the optimizers' own files.
    """
    stacks = snapshot.stacks
    found: set[int] = set()
    for stack in np.flatnonzero(roles.has[Role.OPTIMIZER]).tolist():
        frames = stacks.frames_of(stack).tolist()
        own = [place for place, frame in enumerate(frames) if _OWN.search(_file(stacks, frame))]
        outside = frames[own[-1] + 1 :] if own else []
        found.update(next(([f] for f in outside if _file(stacks, f).endswith(".py")), []))
    return len(found) > 1


def _optimizers(snapshot: Snapshot, roles: StackRoles) -> set[OptimizerRule | None]:
    """Return the rules of the optimizers seen, None for an unknown one."""
    by_name = {
        next((rule for rule in OPTIMIZER_RULES if re.search(rule.name, name)), None)
        for name in optimizer_names(snapshot)
    }
    return by_name or set(_by_files(snapshot, roles))


def _by_files(snapshot: Snapshot, roles: StackRoles) -> Iterator[OptimizerRule | None]:
    stacks = snapshot.stacks
    for frame in distinct(stacks.frame_ids[_in_optimizer(stacks, roles)]).tolist():
        path = _file(stacks, frame)
        if _FILE.search(path):
            yield next((rule for rule in OPTIMIZER_RULES if rule.file and re.search(rule.file, path)), None)


def _runs_amsgrad(snapshot: Snapshot, roles: StackRoles) -> bool:
    stacks = snapshot.stacks
    frames, found = stacks.frames, distinct(stacks.frame_ids[_in_optimizer(stacks, roles)])
    return any(
        int(frames.lines[frame]) in AMSGRAD.get(frames.names[frame], ())
        and _FILE.search(_file(stacks, frame))
        for frame in found.tolist()
    )


def _in_optimizer(stacks: StackTable, roles: StackRoles) -> BoolColumn:
    return np.repeat(roles.has[Role.OPTIMIZER], np.diff(stacks.offsets))


def _file(stacks: StackTable, frame: int) -> str:
    return normal(stacks.frames.filenames[frame])
