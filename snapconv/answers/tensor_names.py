"""The names of the tensors in allocations: parameters, their gradients, and the states of optimizers."""

from collections.abc import Iterator

from snapconv.analysis import DeviceAnalysis
from snapconv.columns import Int64Column


def tensor_names(analysis: DeviceAnalysis) -> dict[int, str]:
    """The name of the tensor in each row of the AllocationTable, where it is known.

    Of several that used the memory one after the other, the parameter itself goes first, then its gradient.
    """
    names: dict[int, str] = {}
    for rows, texts in _named(analysis):
        for row, text in zip(rows.tolist(), texts, strict=True):
            if row >= 0 and text:
                names.setdefault(row, text)
    return names


def _named(analysis: DeviceAnalysis) -> Iterator[tuple[Int64Column, list[str]]]:
    weights, recorded = analysis.weights, analysis.recorded
    yield weights.row, list(weights.names)
    if recorded is None:
        yield weights.gradient_row, [_gradient(name) for name in weights.names]
        return
    metadata, names = recorded.metadata, recorded.metadata.parameters.names
    yield recorded.parameters, list(names)
    gradients, states = metadata.gradients.parameter.tolist(), metadata.states
    yield recorded.gradients, [_gradient(names[i]) if i >= 0 else "" for i in gradients]
    owners = zip(states.parameter.tolist(), states.states, strict=True)
    yield recorded.states, [f"{names[i]}: {state}" if i >= 0 else "" for i, state in owners]


def _gradient(name: str) -> str:
    return f"{name}.grad" if name else ""
