"""Lines of a program that make something for every layer that it builds on the device, before any forward.

An ``__init__`` that runs several times builds layers, and seldom anything else; its lines run equally often.
"""

from dataclasses import dataclass

import numpy as np

from snapconv.classification.features import Features
from snapconv.classification.rule import Decided
from snapconv.columns import BoolColumn, Int64Column, distinct, is_among
from snapconv.phases.trace_phases import Phase

# Two of a kind may be an actor and a critic, each with its data.
_LEAST_LAYERS = 3
_LEAST_LINES = 2


@dataclass(frozen=True, slots=True)
class BuiltInTurn:
    """One bool per allocation.

    ``repeated``: kept, and made by a line that runs for several layers. ``packed``: those of them whose
    ``__init__`` has several such lines, as often as each other, and computes something on the device.
    """

    repeated: BoolColumn
    packed: BoolColumn


def built_in_turn(features: Features, decided: Decided) -> BuiltInTurn:
    """Find the lines, by the names of their functions and by how often they ran."""
    made = (features.outside | features.preexisting_outside) & features.is_live_at_dump & decided.is_open
    line, frames = features.lines(), features.roles.stacks.frames
    rows = np.flatnonzero(made & (features.alloc < features.first(Phase.FORWARD)) & (line >= 0))
    files: dict[str, int] = {}
    # One number for each of the files whose __init__ has made something.
    file_of = {
        frame: files.setdefault(frames.filenames[frame], len(files))
        for frame in distinct(line[rows]).tolist()
        if frames.names[frame] == "__init__"
    }
    rows = rows[is_among(line[rows], list(file_of))]
    found, of_line, n_made = np.unique(line[rows], return_inverse=True, return_counts=True)
    of_line = of_line.ravel()
    repeated = rows[n_made[of_line] >= _LEAST_LAYERS]
    owner = np.array([file_of[frame] for frame in found.tolist()], np.int64)
    packed = _in_turn(features, rows, of_line, owner, n_made)
    return BuiltInTurn(features.mask(repeated), features.mask(packed))


def _in_turn(
    features: Features, rows: Int64Column, of_line: Int64Column, owner: Int64Column, n_made: Int64Column
) -> Int64Column:
    """The rows of lines of one file that ran equally often, if any of these lines computes."""
    if not len(rows) or not features.has_cpp:
        return rows[:0]
    _, group = np.unique(np.stack((owner, n_made)), axis=1, return_inverse=True)
    group = group.ravel()
    computes = np.bincount(of_line, ~features.from_nothing[rows], len(owner)) > 0
    n_lines, n_computing = np.bincount(group), np.bincount(group, computes)
    fits = (n_made >= _LEAST_LAYERS) & ((n_lines >= _LEAST_LINES) & (n_computing > 0))[group]
    return np.asarray(rows[fits[of_line]])
