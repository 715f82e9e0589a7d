"""Tensors that are trained though no module holds them: an optimizer does, or nothing but the program.

Full-precision copies of half-precision weights are among the former, weights that are stepped by hand among
the latter. What is only differentiated for (a perturbed input) looks the same in one iteration, but not in
two: it does not stay.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from snapconv.recorder.torch_types import Tensor

_MAX_LEAVES = 10_000
_LEAF_NODE = "AccumulateGrad"


def tensors_in(optimizers: Iterable[Any]) -> "Iterator[tuple[Any, str, str, Tensor]]":
    """Every tensor that an optimizer steps, with its place there and a name: ``AdamW.0.3``."""
    import torch

    n_alike: Counter[str] = Counter()
    for optimizer in optimizers:
        kind = type(optimizer).__name__
        n_alike[kind] += 1
        prefix = kind if n_alike[kind] == 1 else f"{kind}#{n_alike[kind]}"
        for number, group in enumerate(getattr(optimizer, "param_groups", ())):
            for place, tensor in enumerate(group["params"]):
                if isinstance(tensor, torch.Tensor):
                    yield optimizer, f"{number}.{place}", f"{prefix}.{number}.{place}", tensor


def tensor_in(optimizer: Any, place: str) -> "Tensor | None":
    """Return what stands in a place of an optimizer now."""
    import torch

    number, _, i = place.partition(".")
    try:
        found = optimizer.param_groups[int(number)]["params"][int(i)]
    except (IndexError, KeyError):
        return None
    return found if isinstance(found, torch.Tensor) else None


class Leaves:
    """The leaf tensors that backward passes give gradients to; held weakly."""

    def __init__(self) -> None:
        # By identity: the tensor, and the iteration in which it was first seen.
        self._seen: dict[int, tuple[weakref.ref[Tensor], int]] = {}
        self._stayed: dict[int, weakref.ref[Tensor]] = {}

    def look(self, roots: Iterable[Any], iteration: int, known: set[int]) -> bool:
        """Find the leaves of a graph whose identities are not known; whether one has stayed from before."""
        n_stayed = len(self._stayed)
        for tensor in _leaves_below(roots):
            number = id(tensor)
            if number in known or len(self._seen) >= _MAX_LEAVES:
                continue
            reference, first = self._seen.get(number, (None, iteration))
            if reference is None or reference() is not tensor:
                self._seen[number] = weakref.ref(tensor), iteration
            elif first < iteration:
                self._stayed.setdefault(number, reference)
        return len(self._stayed) > n_stayed

    def all(self) -> "Iterator[Tensor]":
        """Every leaf that still lives."""
        for number, (reference, _) in list(self._seen.items()):
            tensor = reference()
            if tensor is not None:
                yield tensor
            else:
                del self._seen[number]

    def stayed(self) -> "Iterator[weakref.ref[Tensor]]":
        """Those that were there in more than one iteration."""
        return (reference for reference in self._stayed.values() if reference() is not None)


def _leaves_below(roots: Iterable[Any]) -> "Iterator[Tensor]":
    nodes = [node for node in map(_node_of, roots) if node is not None]
    walked = set(nodes)
    for node in nodes:
        if type(node).__name__ == _LEAF_NODE:
            yield node.variable
        for below, _ in node.next_functions:
            if below is not None and below not in walked:
                walked.add(below)
                nodes.append(below)


def _node_of(root: Any) -> Any:
    """Return a tensor's node, or that of a GradientEdge."""
    return root.grad_fn if hasattr(root, "grad_fn") else getattr(root, "node", None)
