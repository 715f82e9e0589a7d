"""Assumed indices and masks where nothing is computed, and the lines where sizes follow from them.

``topk`` and its like return indices: which experts take which tokens. A comparison returns a mask:
which boxes overlap. Both are assumed, spread evenly, or nearly all the same (``--routing worst``),
and everything that follows from them is computed: masks, counts, lists. No expert goes without
tokens, so that every weight has its gradient and its states.
"""

from typing import Any

import torch
from torch import arange

from snapconv.notes import Note
from snapconv.simulation.likelihoods import likelihood_of
from snapconv.simulation.operations import FILLING, is_mask
from snapconv.simulation.placements import Placement, are_computed, has_assumed
from snapconv.simulation.places import shown, users_place

# Positions of the results that are indices.
_INDICES = {
    "topk": 1,
    "sort": 1,
    "kthvalue": 1,
    "argsort": 0,
    "argmax": 0,
    "argmin": 0,
    "multinomial": 0,
}
_INDICES_OF_OVERLOAD = {"aten::max.dim": 1, "aten::min.dim": 1}
# Experts are fewer; words of a vocabulary, which would end a text by chance, are more.
_MAX_VALUES = 4096
# Larger masks, which are those of activations, have no values: they would need real memory.
_MAX_MASK = 1 << 20
# Under `--routing worst`, one row of so many goes elsewhere.
_FEW = 16
# Their results have as many rows as values select.
_SELECTING = {
    "nonzero",
    "masked_select",
    "_unique2",
    "unique_consecutive",
    "unique_dim",
    "repeat_interleave",
    "nms",
}
_INDEXING = {"index", "_unsafe_index"}
# The values of their first argument decide no size: rows are taken from it.
_TAKING = {*_INDEXING, "masked_select"}


class Routing:
    """The assumed indices and masks of one run, and the lines where sizes depend on them."""

    def __init__(self, *, is_worst: bool = False) -> None:
        self._is_worst = is_worst
        # Storages with assumed values that have no placement yet.
        self._assumed: set[int] = set()
        self._next = 0
        # The sizes that tensors have, and the numbers that the program was given and no tensor had
        # as a size.
        self._sizes: set[int] = set()
        self._numbers: set[int] = set()
        # Lines of the program, in the order in which they came.
        self._choosing: dict[str, None] = {}
        self._selecting: dict[str, None] = {}
        self._listing: dict[str, None] = {}
        self._has_masks = False

    def assume(self, call: Any, results: Any) -> Any:
        """Replace results that are indices or a mask by assumed ones."""
        if is_small_mask(results):
            mask = self.mask(results.shape, likelihood_of(call))
            return self._assumed_values(mask)
        schema = call.func._schema
        name = f"{schema.name}.{schema.overload_name}"
        position = _INDICES_OF_OVERLOAD.get(name, _INDICES.get(call.operation.name))
        if position is None or not call.args:
            return results
        if isinstance(results, torch.Tensor):
            return self._indices(call, results)
        assumed = [*results]
        assumed[position] = self._indices(call, results[position])
        return tuple(assumed)

    def _assumed_values(self, tensor: Any) -> Any:
        """Let a tensor's placement, which it gets later, say that its values are assumed."""
        self._assumed.add(tensor.untyped_storage()._cdata)
        return tensor

    def _indices(self, call: Any, index: Any) -> Any:
        """Make indices of a shape, if they can be those of experts."""
        source = call.args[0]
        is_multinomial = call.operation.name == "multinomial"
        dim = -1 if is_multinomial else call.named_arguments().get("dim", -1)
        if dim is None or source.dim() == 0:
            return index
        n_values = source.size(dim)
        if not 0 < n_values <= min(index.numel(), _MAX_VALUES):
            keeps_dim = index.dim() == source.dim()
            return self._distinct(index, dim, n_values) if keeps_dim else index
        self._choosing.setdefault(users_place())
        if index.dim() != source.dim():  # the dimension is gone
            indices = self._spread(n_values, index.numel(), 1).view(index.shape)
        else:
            n_each = index.size(dim)
            rows = self._spread(n_values, index.numel() // n_each, n_each)
            shape = index.movedim(dim, -1).shape
            indices = rows.view(shape).movedim(-1, dim).contiguous()
        return self._assumed_values(indices.to(index.dtype))

    def _distinct(self, index: Any, dim: int, n_values: int) -> Any:
        """Choose different values for each row, as the best words of a vocabulary are.

        They are from its middle: a tokenizer has the words that end a text at its ends.
        """
        n_each = index.size(dim)
        if not 1 < n_each <= n_values or index.numel() > _MAX_MASK:
            return index
        row = (torch.arange(n_each, dtype=index.dtype) + n_values // 2) % n_values
        shape = index.movedim(dim, -1).shape
        return self._assumed_values(row.expand(shape).movedim(-1, dim).contiguous())

    def _spread(self, n_values: int, n_rows: int, n_each: int) -> Any:
        """Choose as many different values for each row, evenly, or the same ones but in a few rows.

        The first columns alone are evenly spread too: a program may sort, and take some of them.
        """
        first = arange(n_rows, device="cpu") * n_each
        first += first // n_values
        if self._is_worst:
            n_spread = n_values * max(n_rows // (_FEW * n_values), 1)
            first[n_spread:] = 0
        indices = (first[:, None] + arange(n_each, device="cpu") + self._next) % n_values
        if not self._is_worst:
            self._next = (self._next + n_rows * n_each) % n_values
        return indices

    def mask(self, shape: Any, likelihood: float = 0.5) -> Any:
        """Assume a mask's values: evenly spread, or all alike where certain."""
        n = shape.numel()
        n_true = int(likelihood) * n if likelihood in (0, 1) else self.n_selected(n)
        return (arange(n, device="cpu") * n_true % n < n_true).view(shape)

    def n_selected(self, n: int) -> int:
        """Return how many of so many rows a mask selects about which nothing is known."""
        self._has_masks = True
        return n - n // _FEW if self._is_worst else (n + 1) // 2

    def note(self, call: Any, tensor: Any, placement: Placement) -> None:
        """Remember whether a new tensor's values are assumed, and the line if its size follows."""
        key = tensor.untyped_storage()._cdata
        if key in self._assumed:
            self._assumed.remove(key)
            placement.has_values = placement.is_assumed = True
        elif placement.has_values and call.operation.name not in FILLING:
            placement.is_assumed = has_assumed(call.inputs)
        if placement.device is None:
            return
        if _is_selected(call, tensor) or not self._numbers.isdisjoint(tensor.shape):
            self._selecting.setdefault(users_place())
        else:
            self._sizes.update(tensor.shape)

    def read_number(self, number: Any) -> None:
        """Remember a number that follows from assumed values, to notice a size that equals it."""
        if isinstance(number, int) and number > 1 and number not in self._sizes:
            self._numbers.add(number)

    def read_list(self) -> None:
        """Note that the program reads a list of assumed values, in which it may count."""
        self._listing.setdefault(users_place())

    def notes(self) -> tuple[Note, ...]:
        """Say what was assumed, and where the peak depends on it."""
        reasons = []
        if self._selecting:
            lines = shown(self._selecting)
            reasons.append(f"sizes depend on values that were not computed, at {lines}")
        if self._listing:
            lines = shown(self._listing)
            reasons.append(f"sizes may depend on lists of assumed values, read at {lines}")
        if not reasons:
            return ()
        message = f"the peak may be lower or higher: {', and '.join(reasons)}"
        indices = "spread evenly; `--routing worst` takes the same ones in most rows"
        share = "half"
        if self._is_worst:
            indices = "the same but in one row of 16"
            share = "15 of 16"
        if self._choosing:
            lines = shown(self._choosing)
            message += f". The indices chosen at {lines} were assumed to be {indices}"
        if self._has_masks:
            message += f". Of rows that a mask selects, {share} were taken"
        return (
            Note(
                "sizes-assumed", f"{message}. Without `--no-compute` the peak is computed"
            ),
        )


def is_small_mask(value: Any) -> bool:
    """Say whether a value is a mask that is small enough to be assumed."""
    if not isinstance(value, torch.Tensor) or value.dtype is not torch.bool:
        return False
    return bool(1 < value.numel() < _MAX_MASK)


def _is_selected(call: Any, tensor: Any) -> bool:
    """Say whether values that were not computed decide how many rows an operation's result has."""
    name = call.operation.name
    if name == "bincount":
        is_selecting = tensor.numel() > call.named_arguments().get("minlength", 0)
    elif name in _INDEXING:
        is_selecting = any(map(is_mask, call.args[1]))
    else:
        is_selecting = name in _SELECTING
    first = 1 if name in _TAKING else 0
    return is_selecting and not are_computed(call.inputs[first:])
