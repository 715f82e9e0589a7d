"""Selected rows where nothing is computed: assumed indices, and bounds of the memory that depends on them.

``topk`` and its like return indices: which experts take which tokens; a comparison returns a mask: which
boxes overlap. They are assumed, and all that follows from them is computed: masks, counts, lists. How many
tokens an expert takes is a number that no other size in the program has, so that what is cut by it in plain
Python is found too.

The lower bound of the peak is without all that may not be there: selected rows, gradients and states of
weights that they meet, and what is made on lines that run by a choice. The upper one has the most rows that
the choice allows, at every moment. No expert goes without tokens, so that every gradient and state is there.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import dropwhile, takewhile
from types import CodeType
from typing import Any

import torch

from snapconv.allocator.allocator_trace import Ledger
from snapconv.notes import Note
from snapconv.recorder.program.own_frames import program_frames
from snapconv.simulation.branches import ENGINE_CALLER, likelihood_of, shown, torch_folder, users_place
from snapconv.simulation.operations import FILLING
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
# Larger masks, which are those of activations, have no values: they would need real memory.
_MAX_MASK = 1 << 20
# Where all go to one, of so many rows one goes elsewhere.
_FEW = 16
# So many shares are tried for one that no other size equals.
_MAX_TRIES = 8
# Their results have as many rows as values select.
_SELECTING = {
    *"nonzero masked_select _unique2 unique_consecutive unique_dim bincount repeat_interleave nms".split()
}
# They take rows from their first argument.
_TAKING = {"index", "_unsafe_index", "index_select", "gather", "embedding"}
_ROUNDING = 512
# So much of a block that is larger the allocator leaves unsplit, by what was freed before (kSmallSize).
_WASTE = 1 << 20


@dataclass(slots=True, eq=False)
class Source:
    """Assumed indices or a mask: each value is in at most ``n_rows`` of them, all in ``n_entries``."""

    n_rows: int
    n_entries: int
    n_values: int
    counts: set[int] = field(default_factory=set)
    is_mask: bool = False


def _mask_of(n: int, *counts: int) -> Source:
    # Masks that are made of it may each select any row: no number of entries is divided among them.
    return Source(n, 0, 2, {*counts}, is_mask=True)


@dataclass(slots=True, eq=False)
class Group:
    """What one line selects by one source's indices: together no more than all entries."""

    source: Source
    most: int
    shares: "dict[Any, Share]" = field(default_factory=dict)
    extra_bytes: int = 0

    def grow(self) -> int:
        """Compute how much more memory the worst selection takes, and return by how much that has grown."""
        alive = sorted(
            (share for share in self.shares.values() if share.n_bytes),
            key=lambda share: share.n_bytes / share.n,
            reverse=True,
        )
        # Of the rows that several have, each has any.
        is_divided = sum(share.n for share in self.shares.values()) <= self.source.n_entries
        n_left = self.source.n_entries if is_divided else self.most * len(alive)
        extra_bytes = 0
        for share in alive:
            n = min(self.most, n_left)
            n_left -= n
            extra_bytes += (n - share.n) * share.n_bytes // share.n + share.margin_bytes
        change = max(extra_bytes, 0) - self.extra_bytes
        self.extra_bytes += change
        return change


@dataclass(slots=True, eq=False)
class Share:
    """``n`` selected rows, their bytes in memory, and bytes that do not grow with it: rounding, padding."""

    group: Group
    n: int
    n_bytes: int = 0
    margin_bytes: int = 0


@dataclass(slots=True)
class _Bounds:
    """A device's present uncertainty, and the peaks that it allows."""

    absent_bytes: int = 0
    extra_bytes: int = 0
    lowest_peak: int = 0
    highest_peak: int = 0


class Routing:
    """The assumed indices of one run, and what depends on them."""

    def __init__(self, of: Callable[[Any], Placement | None], *, is_worst: bool = False) -> None:
        self._of = of
        self._is_worst = is_worst
        self._sources: dict[int, Source] = {}
        self._groups: dict[tuple[Source, str], Group] = {}
        self._bounds: dict[int, _Bounds] = {}
        self._next = 0
        # Of what is there whatever is selected, the sizes that differ from 1, sorted.
        self._shapes: set[tuple[int, ...]] = {()}
        self._counted: dict[int, Source] = {}
        # Masks of one size select equally many.
        self._n_selected: dict[int, int] = {}
        self._has_left = False
        self._has_masks = False
        self._conditional = Share(Group(Source(1, 1, 1), 1), 1)
        # What an optimizer makes of weights whose gradients are conditional.
        self._of_gradients = Share(Group(Source(1, 1, 1), 1), 1)
        self._choosing: set[CodeType] = set()
        self._unclear: dict[str, None] = {}
        self.places: dict[str, None] = {}
        self.selecting: dict[str, None] = {}

    def assume(self, call: Any, results: Any) -> Any:
        """Replace results that are indices by assumed ones."""
        schema = call.func._schema
        name = f"{schema.name}.{schema.overload_name}"
        position = _INDICES_OF_OVERLOAD.get(name, _INDICES.get(call.operation.name))
        if is_small_mask(results):
            made, source = self.mask(results.shape, likelihood_of(call))
            self._sources[made.untyped_storage()._cdata] = source
            return made
        if position is None or not call.args:
            return results
        if isinstance(results, torch.Tensor):
            return self._indices(call, results)
        made = self._indices(call, results[position])
        return tuple(made if i == position else item for i, item in enumerate(results))

    def _indices(self, call: Any, index: Any) -> Any:
        """Make indices of a shape: of experts alone."""
        of, given = call.args[0], call.given()
        dim = -1 if call.operation.name == "multinomial" else given.get("dim", -1)
        if dim is None or of.dim() == 0:
            return index
        n_values, n_entries = of.size(dim), index.numel()
        is_kept = index.dim() == of.dim()
        if not 0 < n_values <= min(n_entries, _MAX_VALUES):
            return index
        n_each = index.size(dim) if is_kept else 1
        flat, source = self._spread(n_values, n_entries // n_each, n_each)
        if given.get("replacement"):
            source.n_rows = n_entries
        if is_kept:
            made = flat.view([*index.movedim(dim, -1).shape]).movedim(-1, dim).contiguous()
        else:
            made = flat.view(index.shape)
        made = made.to(index.dtype)
        self._sources[made.untyped_storage()._cdata] = source
        self.places.setdefault(users_place())
        return made

    def mask(self, shape: Any, likelihood: float = 0.5) -> tuple[Any, Source]:
        """Assume a mask's values: evenly spread, or all alike where certain."""
        n = shape.numel()
        n_true = int(likelihood) * n if likelihood in (0, 1) else self.n_taken(n)
        return (torch.arange(n) * n_true % n < n_true).view(shape), _mask_of(n, n_true)

    def n_taken(self, n: int) -> int:
        """Choose how many of so many rows are selected by what nothing is known of."""
        if n not in self._n_selected:
            most = n - n // _FEW if self._is_worst else (n + 1) // 2
            sizes = self._sizes()
            tried = [i for i in range(most, 0, -1)[:_MAX_TRIES] if i % 4 and i not in sizes]
            self._n_selected[n] = tried[0] if tried else most
        return self._n_selected[n]

    def _sizes(self) -> set[int]:
        return {size for shape in self._shapes for size in shape}

    def _spread(self, n_values: int, n_rows: int, n_each: int) -> tuple[Any, Source]:
        """Choose as many different values for each row, evenly, or the same ones but in a few rows.

        Also the first columns alone are evenly spread: a program may sort, and take some of them. How often
        a value comes is a number that no size has, and, so that padding shows, no multiple of 4, if possible.
        """
        sizes = {0, 1, n_values, n_rows, n_each, n_rows * n_each} | self._sizes()
        least = n_values * max(n_rows // (_FEW * n_values), 1)
        tried = range(least, n_rows, n_values) if self._is_worst else range(n_rows, 0, -n_values)
        for n_spread in tried[:_MAX_TRIES] or (n_rows,):
            first = torch.arange(n_rows) * n_each
            first += first // n_values
            first[n_spread:] = 0
            made = (first[:, None] + torch.arange(n_each) + self._next) % n_values
            columns = {1, 2, n_each} & {*range(n_each + 1)}
            counts = {n for i in columns for n in made[:, :i].flatten().bincount().tolist()}
            if counts.isdisjoint(sizes) and all(n % 4 for n in counts):
                break
        if not self._is_worst:
            self._next = (self._next + n_rows * n_each) % n_values
        source = Source(n_rows, n_rows * n_each, n_values, counts - {0})
        self._counted |= dict.fromkeys(counts - sizes, source)
        return made, source

    def note(self, call: Any, tensor: Any, placement: Placement) -> None:
        """Remember of a new tensor whether its values, its size or its existence follow from a choice."""
        source = self._sources.pop(tensor.untyped_storage()._cdata, None)
        if source is not None:
            placement.has_values, placement.source = True, source
        elif placement.has_values and call.operation.name not in FILLING:
            placement.source = next((given.source for given in call.inputs if given and given.source), None)
        if placement.device is not None:
            self._share(call, tensor, placement)

    def follow_written(self, call: Any) -> None:
        """Remember of what an operation has written that its values follow from assumed ones."""
        target, *others = call.inputs or [None]
        if target is not None and target.source is None and target.has_values:
            target.source = next((given.source for given in others if given and given.source), None)

    def _share(self, call: Any, tensor: Any, placement: Placement) -> None:
        shape = tuple(sorted(size for size in tensor.shape if size != 1))
        selected = self._selected(call, tensor) if tensor.dim() and _is_selecting(call, tensor) else None
        if selected is not None:
            placement.share, placement.scales = selected, 1
            return
        share = self._inherited(call, tensor)
        if self._has_left:
            share = self._cut(call, tensor, share)
        # An optimizer may make of nothing what it has of a weight with a gradient.
        is_new = not call.tensors and not torch.is_grad_enabled()
        if share is None and self._choosing and (is_new or not self._choosing.isdisjoint(_codes())):
            share = self._conditional
        if share is None:
            self._shapes.add(shape)
        placement.share = share
        if share not in (None, self._conditional) and shape not in self._shapes:
            # Pairs of rows grow by the square: as much as up to the most in a straight line.
            n_ways = sum(size == share.n for size in shape)
            placement.scales = sum((share.group.most / share.n) ** i for i in range(max(n_ways, 1)))

    def _selected(self, call: Any, tensor: Any) -> Share | None:
        """Count rows that are selected by what was assumed, or, where nothing was, all that can be."""
        # Of what is selected from, the values are no matter; of boxes they are.
        n, last = tensor.size(0), 0 if call.operation.name == "nms" else -1
        deciding = call.inputs[last] if call.inputs else None
        if deciding is None or (deciding.has_values and deciding.source is None):
            return None
        most, source = call.tensors[-1].numel(), deciding.source
        if call.operation.name in ("index", "_unsafe_index") and call.tensors[0].numel():
            n = most * tensor.numel() // call.tensors[0].numel()
        if deciding.share not in (None, self._conditional):  # a selection of selected rows
            most = most * deciding.share.group.most // deciding.share.n
        source = source or _mask_of(most)
        if source.is_mask:
            self._note_counted(source, n)
        elif n in source.counts:
            most = min(most, source.n_rows)
        return self._share_of(source, deciding, n, most)

    def _inherited(self, call: Any, tensor: Any) -> Share | None:
        """Return the share that an operation's result has from its arguments."""
        name = call.operation.name
        shares, others = [], []
        for item, argument in [*zip(call.inputs, call.tensors, strict=True)][name in _TAKING :]:
            # What is made of a weight that has a gradient is there as that is: an optimizer's states.
            has_gradient = argument.is_leaf and argument.grad is not None
            placement = self._of(argument.grad) if has_gradient else item
            if placement is None or placement.share is None:
                others.append(argument)
            elif has_gradient and placement.share is self._conditional and not torch.is_grad_enabled():
                shares.append(self._of_gradients)
            else:
                shares.append(placement.share)
        # Backward follows what was run; forward runs whatever was made before.
        is_backward = torch._C._current_graph_task_id() != -1
        found = [share for share in shares if share is not self._conditional] or shares[: int(is_backward)]
        # What selected rows are added to is there without them; lists may have weights of both kinds.
        is_sum = "mm" not in name and not name.startswith("_foreach")
        is_there = is_sum and any(other.shape == tensor.shape for other in others if found)
        return found[0] if found and not is_there else None

    def _cut(self, call: Any, tensor: Any, inherited: Share | None) -> Share | None:
        """Return the share of rows that the program cut by numbers it was given, else the inherited one."""
        if inherited is not None and inherited.n in tensor.shape:
            return inherited
        rows = [argument for argument in call.tensors if argument.dim() and argument.size(0) in self._counted]
        sizes = [argument.size(0) for argument in rows] + [n for n in tensor.shape if n in self._counted]
        if not sizes:
            return inherited
        n = sizes[0]
        source = inherited.group.source if inherited is not None else self._counted[n]
        if n not in source.counts:
            source = self._counted[n]
        # Where they begin says whose rows they are.
        key = (n, rows[0].storage_offset() // max(rows[0].stride(0), 1)) if rows else object()
        return self._share_of(source, key, n, source.n_rows)

    def _share_of(self, source: Source, key: Any, n: int, most: int) -> Share:
        place = users_place()
        group = self._groups.get((source, place))
        if group is None:
            self.selecting.setdefault(place)
            self.depend()
            self._groups = {
                key: kept
                for key, kept in self._groups.items()
                if key[0] is source or any(share.n_bytes for share in kept.shares.values())
            }
            group = self._groups[source, place] = Group(source, 1)
        group.most = max(group.most, most, n)
        return group.shares.setdefault(key, Share(group, max(n, 1)))

    def read(self, placement: Placement, *, n_numbers: int) -> None:
        """Note that the program reads what follows from a choice: it runs by it, or cuts rows by numbers."""
        source = placement.source
        if source is None:
            return
        self.depend()
        if n_numbers:
            self._note_counted(source, *source.counts)
            # Of selected rows they are indices.
            is_count = n_numbers == source.n_values or (self.selecting and placement.share is None)
            if is_count and not source.counts <= self._counted.keys():
                self._unclear.setdefault(users_place())

    def _note_counted(self, source: Source, *counts: int) -> None:
        """Note that the program has the number of rows that a mask selects."""
        self._has_left = True
        if source.is_mask:
            self._has_masks = True
            source.counts.update(counts)
            self._counted |= dict.fromkeys({*counts} - self._sizes(), source)

    def depend(self) -> None:
        """Note that what runs may depend on a choice: all in the present functions, up to a call by torch."""
        users = dropwhile(_is_of_torch, _codes())
        self._choosing.update(takewhile(lambda code: not _is_of_torch(code), users))

    def count(self, placement: Placement, sign: int) -> None:
        """Count a block that is allocated (1) or freed (-1), if it depends on a selection."""
        share, device = placement.share, placement.device
        if device is None:
            return
        bounds = self._bounds.setdefault(device, _Bounds())
        if sign > 0 and self.selecting:
            most_bytes = placement.n_bytes * (share.group.most / share.n if share and placement.scales else 1)
            placement.waste_bytes = _WASTE if most_bytes > _WASTE else 0
        bounds.extra_bytes += sign * placement.waste_bytes
        if share is None:
            return
        bounds.absent_bytes += sign * placement.n_bytes
        if placement.scales:
            share.n_bytes += sign * int(placement.n_bytes * placement.scales)
            is_padded = placement.n_bytes % share.n > 0
            share.margin_bytes += sign * (_ROUNDING + is_padded * placement.n_bytes)
            bounds.extra_bytes += share.group.grow()

    def sample(self, device: int, ledger: Ledger) -> None:
        """Take note of how much is allocated, after each allocation."""
        bounds = self._bounds.setdefault(device, _Bounds())
        # How many more bytes than were requested blocks have depends on what was freed before.
        bounds.lowest_peak = max(bounds.lowest_peak, ledger.requested_bytes - bounds.absent_bytes)
        bounds.highest_peak = max(bounds.highest_peak, ledger.allocated_bytes + bounds.extra_bytes)

    def bounds(self) -> dict[int, tuple[int, int]]:
        """Return the lowest and the highest peak that another selection may give, by device."""
        return {
            device: (bounds.lowest_peak, bounds.highest_peak)
            for device, bounds in sorted(self._bounds.items())
            if self.selecting and not self._unclear
        }

    def notes(self) -> tuple[Note, ...]:
        """Say what was assumed, and between which bounds the peak lies."""
        if not self.selecting and not self._unclear:
            return ()
        between = ", ".join(
            f"{format_bytes(low)} and {format_bytes(high)} on cuda:{device}"
            for device, (low, high) in self.bounds().items()
        )
        unknown = "the peak may be lower or higher, by how much is unknown"
        peak = unknown if self._unclear else f"the peak lies between {between}"
        where = shown(self._unclear | self.selecting)
        message = f"{peak}: sizes depend on values that were not computed, at {where}"
        if self.places:
            how = "spread evenly; `--routing worst` takes the same ones in most rows"
            assumed = "the same but in one row of 16" if self._is_worst else how
            message += f". The indices chosen at {shown(self.places)} were assumed to be {assumed}"
        if self._has_masks:
            message += f". Of rows that a mask selects, {'15 of 16' if self._is_worst else 'half'} were taken"
        return (Note("sizes-assumed", f"{message}. Without `--no-compute` the peak is computed"),)


def is_small_mask(value: Any) -> bool:
    """Say whether a value is a mask that is small enough to be assumed."""
    return isinstance(value, torch.Tensor) and value.dtype is torch.bool and 1 < value.numel() < _MAX_MASK


def _is_of_torch(code: CodeType) -> bool:
    return code.co_filename.startswith(torch_folder())


def _codes() -> Iterator[CodeType]:
    """List what runs from the innermost on, in backward what it runs itself: it follows what was run."""
    codes = (frame.f_code for frame in program_frames())
    return takewhile(lambda code: code.co_name != ENGINE_CALLER, codes)


def _is_selecting(call: Any, tensor: Any) -> bool:
    name = call.operation.name
    if name == "bincount":
        return bool(tensor.numel() > call.given().get("minlength", 0))
    if name in ("index", "_unsafe_index"):
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in call.args[1])
    return name in _SELECTING
