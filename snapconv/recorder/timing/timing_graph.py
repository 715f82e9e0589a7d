"""Which call has made which node of autograd's graph.

A sequence number counts the nodes that a thread makes, so a call's nodes are those numbered from what
the counter said before it up to what it said after. Nothing of the graph has to be looked at, or kept
alive, before it runs.
"""

from bisect import bisect_right
from collections.abc import Iterable
from typing import Any

# AccumulateGrad has this number: it runs as soon as it can, and belongs to no call.
_FIRST = (1 << 64) - 1


def holds_tensor(value: object, tensor_type: type) -> bool:
    """Whether what a call returned is a tensor, or a list, tuple or dict with one."""
    if isinstance(value, tensor_type):
        return True
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return any(holds_tensor(item, tensor_type) for item in items)


def nodes_below(roots: Iterable[Any], seen: set[int]) -> list[tuple[int, Any]]:
    """Return the numbers and nodes that these tensors or edges were made by, without AccumulateGrad.

    Nodes whose numbers are in ``seen`` are left out; the others are added to it.
    """
    # As long as they are in this list, a node's wrapper and its identity are its own.
    nodes = [node for node in map(_node_of, roots) if node is not None]
    walked = set(nodes)
    found = []
    for node in nodes:
        number = node._sequence_nr()
        if number != _FIRST and number not in seen:
            seen.add(number)
            found.append((number, node))
        for below, _ in node.next_functions:
            if below is not None and below not in walked:
                walked.add(below)
                nodes.append(below)
    return found


def _node_of(root: Any) -> Any:
    """Return a tensor's node, or that of a GradientEdge; None for a leaf."""
    return root.grad_fn if hasattr(root, "grad_fn") else getattr(root, "node", None)


class Ranges:
    """Which of many ranges of numbers, added in order, a number is in."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._stops: list[int] = []
        self._owners: list[Any] = []

    def add(self, start: int, stop: int, owner: Any) -> None:
        """Add the range of the next owner."""
        self._starts.append(start)
        self._stops.append(stop)
        self._owners.append(owner)

    def owner(self, number: int) -> Any:
        """Return the owner of the range that a number is in, or None."""
        place = bisect_right(self._starts, number) - 1
        return self._owners[place] if place >= 0 and number < self._stops[place] else None
