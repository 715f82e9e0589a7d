"""The names of the tensors in allocations: parameters, their gradients, and the states of optimizers."""

from collections.abc import Iterator

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.naming.weight_table import weight_names
from snapconv.phases.recorded_matches import RecordedMatches
from snapconv.stacks.project_lines import ProjectLines

# What a tensor is to the parameter that it belongs to; a state of an optimizer has its own name in its place.
_ITSELF, _GRADIENT = "", ".grad"
_OF_PARAMETERS = (_ITSELF, _GRADIENT)


def tensor_names(analysis: DeviceAnalysis) -> dict[int, str]:
    """Return the name of the tensor in each row of the AllocationTable, where it is known.

    Of several that used the memory one after the other, the parameter itself goes first, then its gradient.
    """
    names: dict[int, str] = {}
    for row, owner, part in _tensors(analysis):
        if row >= 0 and owner is not None and (owner or part not in _OF_PARAMETERS):
            names.setdefault(row, f"{owner}{part}" if part in _OF_PARAMETERS else f"{owner}: {part}")
    return names


def owner_names(analysis: DeviceAnalysis) -> dict[int, str]:
    """Return the name of the weight that each row is, or is the gradient or a state of, as in the report.

    A state has its own name behind that of its weight. Memory that only the program keeps has no name.
    """
    weights = analysis.weights
    names = weight_names(
        weights.names, weights.stack_id, ProjectLines(analysis.snapshot.stacks, analysis.project)
    )
    rows = np.concatenate((weights.row, weights.gradient_row))
    known = dict(zip(rows.tolist(), names * 2, strict=True))
    if analysis.recorded is not None:
        recorded = {
            row: owner if part in _OF_PARAMETERS else f"{owner} ({part})"
            for row, owner, part in _recorded_tensors(analysis.recorded)
            if owner is not None
        }
        known |= {row: name for row, name in recorded.items() if name}
    return known


def _tensors(analysis: DeviceAnalysis) -> Iterator[tuple[int, str | None, str]]:
    weights = analysis.weights
    yield from ((row, name, _ITSELF) for row, name in zip(weights.row.tolist(), weights.names, strict=True))
    if analysis.recorded is not None:
        yield from _recorded_tensors(analysis.recorded)
        return
    gradients = zip(weights.gradient_row.tolist(), weights.names, strict=True)
    yield from ((row, name, _GRADIENT) for row, name in gradients)


def _recorded_tensors(recorded: RecordedMatches) -> Iterator[tuple[int, str | None, str]]:
    """Yield what a recorder wrote: row, the name of its parameter (None: of none), what it is to it."""
    metadata = recorded.metadata
    names, states = metadata.parameters.names, metadata.states

    def owner(parameter: int) -> str | None:
        return names[parameter] if parameter >= 0 else None

    for row, name in zip(recorded.parameters.tolist(), names, strict=True):
        yield row, name, _ITSELF
    for row, parameter in zip(
        recorded.gradients.tolist(), metadata.gradients.parameter.tolist(), strict=True
    ):
        yield row, owner(parameter), _GRADIENT
    for row, parameter, state in zip(
        recorded.states.tolist(), states.parameter.tolist(), states.states, strict=True
    ):
        yield row, owner(parameter), state
