"""Tensors that are trained though no module has them: an optimizer does, or only the program.

Full-precision copies of half-precision weights are among the former, weights that are stepped by hand among
the latter. What is only differentiated for (a perturbed input, the points of an equation) looks the same to
a backward pass: it is not written from one iteration to the next, or does not stay, or a model is called
with it.
"""

import weakref
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from snapconv.recorder.observe.tensors import graph_nodes, where_memory_lies
from snapconv.recorder.torch_surface import Tensor

_MAX_LEAVES = 10_000
_LEAF_NODE = "AccumulateGrad"
# How many iterations' graphs are searched: a tensor that stays is in both of two.
_N_SEARCHED = 2
# Operations that move numbers and compute none, by their nodes (derivatives.yaml of torch 2.13).
_REARRANGING = frozenset(
    "Alias AsStrided Cat Clone Expand Permute Repeat ReshapeAlias Select Slice Split Squeeze Stack T ToCopy "
    "Transpose Unbind UnsafeView Unsqueeze View".split()
)


def tensors_in(optimizers: Iterable[Any]) -> "Iterator[tuple[Any, str, str, Tensor]]":
    """Find every tensor that an optimizer steps, with its place there and a name: ``AdamW.0.3``."""
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


@dataclass(slots=True)
class _Leaf:
    """A leaf as its first backward pass found it; ``has_stayed``: one of a later iteration found it too."""

    reference: "weakref.ref[Tensor]"
    iteration: int
    version: int
    addrs: tuple[int, ...]
    has_stayed: bool = False

    def is_written(self) -> bool:
        """Whether the program has changed it since, in place or by other memory.

        A write through ``.data`` changes neither: torch gives that a version counter of its own.
        """
        tensor = self.reference()
        return tensor is not None and (tensor._version, _addrs(tensor)) != (self.version, self.addrs)


class Leaves:
    """The leaf tensors that backward passes give gradients to; by weak references.

    A parameter is one that backward passes of two iterations find, that the program writes in between, and
    that no model is called with. Points that are differentiated for again and again are never written.
    """

    def __init__(self) -> None:
        # By identity.
        self._seen: dict[int, _Leaf] = {}
        self._inputs: dict[int, weakref.ref[Tensor]] = {}
        self._written: dict[int, weakref.ref[Tensor]] = {}
        self._iterations: set[int] = set()

    def is_searched(self, iteration: int) -> bool:
        """Whether graphs of an iteration are searched: a walk through a large one takes a while."""
        if len(self._iterations) < _N_SEARCHED:
            self._iterations.add(iteration)
        return iteration in self._iterations

    def search(self, roots: Iterable[Any], iteration: int, known: set[int]) -> None:
        """Find the leaves of a graph whose identities are not known."""
        for tensor in _leaves_below(roots):
            number = id(tensor)
            if number in known:
                continue
            leaf = self._seen.get(number)
            if leaf is not None and leaf.reference() is tensor:
                leaf.has_stayed |= leaf.iteration < iteration
            elif len(self._seen) < _MAX_LEAVES and not tensor.is_inference():
                self._seen[number] = _Leaf(weakref.ref(tensor), iteration, tensor._version, _addrs(tensor))

    def has_new(self) -> bool:
        """Whether one turns out to be a parameter that was none before."""
        n_before = len(self._written)
        for number, leaf in self._seen.items():
            if leaf.has_stayed and not self._is_input(number) and leaf.is_written():
                self._written[number] = leaf.reference
        return len(self._written) > n_before

    def passed(self, tensors: "Iterable[Tensor]") -> None:
        """Take what a model is called with for an input, and what was only rearranged to be passed."""
        for tensor in tensors:
            for leaf in _leaves_of_input(tensor) if tensor.requires_grad else ():
                self._inputs[id(leaf)] = weakref.ref(leaf)

    def all(self) -> "Iterator[Tensor]":
        """Return every leaf that still lives."""
        self._seen = {i: leaf for i, leaf in self._seen.items() if leaf.reference() is not None}
        self._inputs = {i: reference for i, reference in self._inputs.items() if reference() is not None}
        references = {i: leaf.reference for i, leaf in self._seen.items()} | self._inputs
        return (tensor for reference in references.values() if (tensor := reference()) is not None)

    def parameters(self) -> "Iterator[weakref.ref[Tensor]]":
        """Those that are the program's own parameters."""
        living = {i: reference for i, reference in self._written.items() if reference() is not None}
        return (reference for number, reference in living.items() if not self._is_input(number))

    def _is_input(self, number: int) -> bool:
        return number in self._inputs and self._inputs[number]() is not None


def _addrs(tensor: "Tensor") -> tuple[int, ...]:
    return tuple(row["addr"] for row in where_memory_lies(tensor))


def _leaves_of_input(tensor: "Tensor") -> "Iterator[Tensor]":
    if tensor.grad_fn is None:
        yield tensor
    else:
        yield from _leaves_below([tensor], through=_REARRANGING)


def _leaves_below(roots: Iterable[Any], through: "frozenset[str] | None" = None) -> "Iterator[Tensor]":
    """Return the leaves of graphs, or of those parts that are reached through some operations alone."""
    for node in graph_nodes(roots, through=through):
        if type(node).__name__ == _LEAF_NODE:
            yield node.variable
