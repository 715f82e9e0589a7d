"""Selected rows where nothing is computed: assumed indices, and bounds of the memory that depends on them.

``topk`` and its like return indices: which experts take which tokens. They are assumed, evenly spread or the
same in every row, and all that follows from them is computed: masks, counts, lists. Memory for selected rows
is counted apart. Without it, the peak is the lower bound; with as many rows as an index can have, and no more
in all than there are, it is the upper one.
"""

from dataclasses import dataclass, field
from typing import Any

import torch

from snapconv.notes import Note
from snapconv.simulation.branches import shown, users_place
from snapconv.simulation.placements import Placement
from snapconv.units import format_bytes

# Positions of the results that are indices, and whether they all differ along their dimension.
_INDICES = {
    **dict.fromkeys(("topk", "sort", "kthvalue"), 1),
    **dict.fromkeys(("argsort", "argmax", "argmin", "multinomial"), 0),
}
_INDICES_OF_OVERLOAD = {"aten::max.dim": 1, "aten::min.dim": 1}
# Experts are fewer; words of a vocabulary, which would end a text by chance, are more.
_MAX_VALUES = 4096
# Their results have as many rows as values select.
_SELECTING = {
    *("nonzero", "masked_select", "_unique2", "unique_consecutive", "unique_dim", "bincount"),
    *("repeat_interleave", "nms"),
}
# They take rows from their first argument.
_TAKING = {"index", "_unsafe_index", "index_select", "gather", "embedding"}
_ROUNDING = 512


@dataclass(slots=True, eq=False)
class Source:
    """Assumed indices: each value is in at most ``n_rows`` of them, all values in ``n_entries``."""

    n_rows: int
    n_entries: int


@dataclass(slots=True, eq=False)
class Group:
    """What one line selects by one source's indices: together no more than all entries."""

    n_entries: int
    most: int
    alive: "dict[Share, None]" = field(default_factory=dict)
    extra_bytes: int = 0

    def grow(self) -> int:
        """Compute how much more memory the worst selection takes, and return by how much that has grown."""
        costs = sorted(share.n_bytes / share.n for share in self.alive)
        n_full = max(self.n_entries // self.most, 1)
        worst = sum(cost * self.most for cost in costs[-n_full:])
        extra_bytes = max(int(worst) - sum(share.n_bytes for share in self.alive), 0)
        change, self.extra_bytes = extra_bytes - self.extra_bytes, extra_bytes
        return change


@dataclass(slots=True, eq=False)
class Share:
    """``n`` selected rows, and the bytes in memory that there are for them."""

    group: Group
    n: int
    n_bytes: int = 0


@dataclass(slots=True)
class _Bounds:
    """A device's present uncertainty, and the peaks that it allows."""

    absent_bytes: int = 0
    extra_bytes: int = 0
    lowest_peak: int = 0
    highest_peak: int = 0


class Routing:
    """The assumed indices of one run, and what depends on them."""

    def __init__(self, *, is_worst: bool = False) -> None:
        self._is_worst = is_worst
        self._sources: dict[int, Source] = {}
        self._groups: dict[tuple[Source, str], Group] = {}
        self._listed: dict[int, Share] = {}
        self._bounds: dict[int, _Bounds] = {}
        self._next = 0
        self.places: dict[str, None] = {}
        self.selecting: dict[str, None] = {}

    def assume(self, call: Any, results: Any) -> Any:
        """Replace results that are indices by assumed ones."""
        schema = call.func._schema
        name = f"{schema.name}.{schema.overload_name}"
        position = _INDICES_OF_OVERLOAD.get(name, _INDICES.get(call.operation.name))
        if position is None or not call.args:
            return results
        if isinstance(results, torch.Tensor):
            return self._indices(call, results)
        made = self._indices(call, results[position])
        return tuple(made if i == position else item for i, item in enumerate(results))

    def _indices(self, call: Any, index: Any) -> Any:
        """Make indices of a shape: one after the other, or the first in every row; of experts alone."""
        of = call.args[0]
        dim = -1 if call.operation.name == "multinomial" else call.given().get("dim", -1)
        if dim is None or of.dim() == 0:
            return index
        n_values, n_entries = of.size(dim), index.numel()
        is_kept = index.dim() == of.dim()
        if not 0 < n_values <= min(n_entries, _MAX_VALUES):
            return index
        n_each = index.size(dim) if is_kept else 1
        if self._is_worst:
            flat = torch.arange(n_each).repeat(n_entries // n_each)
        else:
            flat = torch.arange(self._next, self._next + n_entries) % n_values
            self._next = (self._next + n_entries) % n_values
        if is_kept:
            made = flat.view([*index.movedim(dim, -1).shape]).movedim(-1, dim).contiguous()
        else:
            made = flat.view(index.shape)
        made = made.to(index.dtype)
        self._sources[made.untyped_storage()._cdata] = Source(n_entries // n_each, n_entries)
        self.places.setdefault(users_place())
        return made

    def note(self, call: Any, tensor: Any, placement: Placement) -> None:
        """Remember of a new tensor whether its values, or its size, are assumed."""
        source = self._sources.pop(tensor.untyped_storage()._cdata, None)
        if source is not None:
            placement.has_values, placement.source = True, source
            return
        inputs = [given for given in call.inputs if given is not None]
        if placement.has_values:
            placement.source = next((given.source for given in inputs if given.source is not None), None)
        if placement.device is not None:
            self._share(call, inputs, tensor, placement)

    def follow_written(self, call: Any) -> None:
        """Remember of what an operation has written that its values follow from assumed ones."""
        target, *others = call.inputs or [None]
        if target is not None and target.source is None and target.has_values:
            target.source = next((given.source for given in others if given and given.source), None)

    def _share(self, call: Any, inputs: list[Placement], tensor: Any, placement: Placement) -> None:
        shared = next((given.share for given in inputs if given.share is not None), None)
        if _is_selecting(call):
            # Of what is selected from, the values are no matter.
            deciding = call.inputs[-1] if call.inputs else None
            if deciding and (deciding.source or not deciding.has_values) and tensor.dim():
                placement.share = self._selected(call, deciding.source, tensor.size(0))
                placement.scales = True
        elif shared is not None:
            first = call.inputs[0]
            # What selected rows are added to is there without them.
            is_update = (
                (first is None or first.share is None)
                and call.operation.name not in _TAKING
                and call.tensors[0].numel() == tensor.numel()
            )
            if not is_update:
                placement.share = shared
                placement.scales = _depends(tensor, shared.n)
        elif self._listed and tensor.dim() and tensor.size(0) in self._listed:
            placement.share, placement.scales = self._listed[tensor.size(0)], True

    def _selected(self, call: Any, source: Source | None, n: int) -> Share:
        """Count rows that are selected by what was assumed, or, where nothing was, all that can be."""
        place = users_place()
        self.selecting.setdefault(place)
        if source is None:
            return Share(Group(n, max(n, 1)), n)
        return Share(self._group(source, place, max(n, min(call.tensors[-1].numel(), source.n_rows))), n)

    def _group(self, source: Source, place: str, most: int) -> Group:
        group = self._groups.get((source, place))
        if group is None:
            self._groups = {key: kept for key, kept in self._groups.items() if kept.alive or key[0] is source}
            group = self._groups[source, place] = Group(source.n_entries, max(most, 1))
        group.most = max(group.most, most)
        return group

    def listed(self, placement: Placement | None, values: Any) -> None:
        """Remember the numbers of a list that the program reads: it may cut rows by them."""
        if placement is None or placement.source is None or placement.device is None:
            return
        if not isinstance(values, list) or not all(isinstance(n, int | float) for n in values):
            return
        source, place = placement.source, users_place()
        self.selecting.setdefault(place)
        for n in {int(n) for n in values if n > 1}:
            self._listed[n] = Share(self._group(source, place, max(source.n_rows, n)), n)

    def count(self, placement: Placement, sign: int) -> None:
        """Count a block that is allocated (1) or freed (-1), if it depends on a selection."""
        share, device = placement.share, placement.device
        if share is None or device is None:
            return
        bounds = self._bounds.setdefault(device, _Bounds())
        n_bytes = sign * -(-placement.n_bytes // _ROUNDING) * _ROUNDING
        bounds.absent_bytes += n_bytes
        if placement.scales and share.n:
            share.n_bytes += n_bytes
            if share.n_bytes:
                share.group.alive[share] = None
            else:
                share.group.alive.pop(share, None)
            bounds.extra_bytes += share.group.grow()

    def sample(self, device: int, allocated_bytes: int, peak_bytes: int) -> None:
        """Take note of how much is allocated, after each allocation."""
        if not self.selecting:
            return
        bounds = self._bounds.get(device)
        if bounds is None:
            bounds = self._bounds[device] = _Bounds(lowest_peak=peak_bytes, highest_peak=peak_bytes)
        bounds.lowest_peak = max(bounds.lowest_peak, allocated_bytes - bounds.absent_bytes)
        bounds.highest_peak = max(bounds.highest_peak, allocated_bytes + bounds.extra_bytes)

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the lowest and the highest peak that another selection may give, by device."""
        return {
            device: (bounds.lowest_peak, bounds.highest_peak)
            for device, bounds in sorted(self._bounds.items())
        }

    def notes(self) -> tuple[Note, ...]:
        """Say what was assumed, and between which bounds the peak lies."""
        if not self.selecting:
            return ()
        between = ", ".join(
            f"{format_bytes(low)} and {format_bytes(high)} on cuda:{device}"
            for device, (low, high) in self.bounds().items()
        )
        message = (
            f"the peak lies between {between}: sizes depend on values that were not computed, at "
            f"{shown(self.selecting)}"
        )
        if self.places:
            how = "spread evenly; `--routing worst` takes the same ones in every row"
            assumed = "the same in every row" if self._is_worst else how
            message += f". The indices chosen at {shown(self.places)} were assumed to be {assumed}"
        return (Note("sizes-assumed", message),)


def _is_selecting(call: Any) -> bool:
    name = call.operation.name
    if name in ("index", "_unsafe_index"):
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in call.args[1])
    return name in _SELECTING


def _depends(tensor: Any, n: int) -> bool:
    """Say whether a tensor's size follows a number of rows: one of its dimensions is a multiple of it."""
    return n > 0 and any(size and size % n == 0 for size in tensor.shape)
