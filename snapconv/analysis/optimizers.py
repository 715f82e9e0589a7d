"""How many states the optimizers of a trace keep for every parameter: by their names or their files."""

import re
from collections.abc import Iterator

import numpy as np

from snapconv.analysis.paths import normal
from snapconv.analysis.rules import OPTIMIZER_RULES, Role
from snapconv.analysis.stack_roles import StackRoles
from snapconv.snapshot.load import Snapshot

# torch calls a step `Optimizer.step#AdamW.step` (torch/optim/optimizer.py, profile_hook_step).
_STEP = re.compile(r"^Optimizer\.step#(\w+)\.step$")
_FILE = re.compile(r"torch/optim/(?!optimizer|lr_scheduler|swa_utils)\w+\.py$")


def states_per_parameter(snapshot: Snapshot, roles: StackRoles) -> int | None:
    """Tensors of a parameter's size that every optimizer seen keeps beside it.

    None where no optimizer is seen, where one is not known, or where they differ.
    """
    found = set(_by_names(snapshot)) or set(_by_files(snapshot, roles))
    return found.pop() if len(found) == 1 else None


def _by_names(snapshot: Snapshot) -> Iterator[int | None]:
    named = snapshot.annotations.name_id
    for name in np.unique(named[named >= 0]).tolist():
        step = _STEP.match(snapshot.texts[name])
        if step:
            yield next((rule.n_states for rule in OPTIMIZER_RULES if re.search(rule.name, step[1])), None)


def _by_files(snapshot: Snapshot, roles: StackRoles) -> Iterator[int | None]:
    stacks = snapshot.stacks
    in_optimizer = np.repeat(roles.has[Role.OPTIMIZER], np.diff(stacks.offsets))
    for frame in np.unique(stacks.frame_ids[in_optimizer]).tolist():
        path = normal(stacks.frames.filenames[frame])
        if _FILE.search(path):
            yield next((rule.n_states for rule in OPTIMIZER_RULES if re.search(rule.file, path)), None)
