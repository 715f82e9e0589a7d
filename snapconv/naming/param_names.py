"""Names for weights after the fact: a list of parameters, and the sizes of the weights in order -> names.

Nothing in a bare snapshot links the two but size and order, and neither list need be complete: tied tensors
have one allocation, frozen ones may be elsewhere, buffers are allocated but perhaps not listed. So the two
are aligned, in the order of Module.to or of named_parameters, whichever explains more; a list that was
sorted by name takes a customary order, of which nothing is certain but sizes that occur once. What stays
ambiguous is counted.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from snapconv.columns import BoolColumn, Int8Column, Int32Column, Int64Column, is_among, read_only
from snapconv.naming.alignment import Alignment, align
from snapconv.naming.listed_order import Module, module_tree
from snapconv.naming.weight_table import WeightTable, live_weights, match_weights
from snapconv.notes import Note
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.recorded.metadata import ParameterTable
from snapconv.snapshot.recorded.params_file import ParamList
from snapconv.snapshot.stack_table import StackTable
from snapconv.stacks.stack_roles import frames_of_function
from snapconv.units import counted, format_bytes, format_share

# Module.to, cuda, half and to_empty all go through _apply (torch 2.0 to 2.13).
_APPLY, _MODULE_FILE = "_apply", "nn/modules/module.py"
# half() and bfloat16() convert a whole model, or all but its norms; double() and eight bits all of it.
_MIXED_WIDTHS, _OTHER_WIDTHS = (2, 4), (8, 1)
# An order that explains less than this of what is there in both lists is no order to go by.
_TRUSTED_SHARE, _WHOLE_SHARE = 0.9, 0.99
# The allocator's small pool (kSmallSize), segments of 20 MiB, and segments of a size's own (kMinLargeAlloc).
_POOL_BOUNDS = (0, 1 << 20, (10 << 20) - 1, 1 << 62)
# Frameworks pad vocabularies, and cuDNN the pieces of an LSTM's weights, which it keeps in one allocation.
_MAX_PADDING, _PADDED_BYTES = 0.1, 512


@dataclass(frozen=True, slots=True)
class _Listed:
    """Tensors by name and size, with the tree of their modules.

    ``others`` are sizes that they may have instead, converted to another type. ``is_ordered``: they stand in
    the model's order. ``is_placed``: they were allocated by Module.to, or None where nothing shows it.
    ``is_by_address``: how they were allocated is not known, only where they are.
    """

    tree: Module
    names: Sequence[str]
    sizes: Int64Column
    others: tuple[Int64Column, ...]
    is_ordered: bool
    is_placed: bool | None
    is_by_address: bool


@dataclass(frozen=True, slots=True)
class Naming:
    """Names for some of the weights, one entry per weight.

    ``names`` are empty and ``entry`` (a row of the ParamList) is -1 where there is none. ``is_certain``: size
    and order leave no other choice. Bytes are requested bytes: of all weights, of those with a name, and of
    those whose name is certain. ``n_without_memory``: listed tensors that are none of the weights.
    """

    file_name: str
    names: tuple[str, ...]
    entry: Int64Column
    is_certain: BoolColumn
    n_bytes: int
    named_bytes: int
    certain_bytes: int
    n_listed: int
    n_without_memory: int

    @property
    def n_named(self) -> int:
        """The number of weights that have a name."""
        return len(self.names) - self.names.count("")

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values: how far the list gave the weights their names."""
        return {
            "file_name": self.file_name,
            "n_weights": len(self.names),
            "n_named": self.n_named,
            "weight_bytes": self.n_bytes,
            "named_bytes": self.named_bytes,
            "certain_bytes": self.certain_bytes,
            "n_listed": self.n_listed,
            "n_without_memory": self.n_without_memory,
        }


def listed_weights(
    params: ParamList,
    stacks: StackTable,
    allocations: AllocationTable,
    category: Int8Column,
    *,
    event: int,
    iteration_events: tuple[int, int],
) -> tuple[WeightTable, Naming]:
    """Name the weights live at ``event``; what the list calls frozen or a buffer has a gradient last."""
    rows = live_weights(allocations, category, event)
    n_older = np.count_nonzero(allocations.alloc_event[rows] < 0)
    naming = name_weights(
        params,
        allocations.requested_bytes[rows],
        is_placed=were_placed(stacks, allocations.stack_id[rows]),
        is_by_address=bool(2 * n_older > len(rows)),
    )
    can_be_trained = params.requires_grad & params.is_floating & ~params.is_buffer
    weights = match_weights(
        allocations,
        category,
        event=event,
        iteration_events=iteration_events,
        names=naming.names,
        is_trained=np.append(can_be_trained, np.True_)[naming.entry],
    )
    return weights, naming


def were_placed(stacks: StackTable, stack_ids: Int32Column) -> bool | None:
    """Return whether most of these allocations were made by Module.to; None where no frame shows it."""
    is_apply = frames_of_function(stacks.frames, _APPLY, _MODULE_FILE)
    found, counts = np.unique(stack_ids, return_counts=True)
    n_placed = n_known = 0
    for stack_id, count in zip(found.tolist(), counts.tolist(), strict=True):
        there = stacks.frames_of(stack_id)
        if len(there):
            n_known += count
            n_placed += count * bool(is_apply[there].any())
    return 2 * n_placed >= n_known if n_known else None


def unused_list_note(params: ParamList, recorded: ParameterTable, device: int) -> Note:
    """Report that the names which a recorder read from the model are kept, and how many the list has too."""
    known = set(params.names)
    n_common = sum(not known.isdisjoint(names) for names in recorded.all_names)
    n_names = len(recorded.all_names)
    has_it = "all of them" if n_common == n_names else f"{n_common} of its {counted(n_names, 'name')}"
    return Note(
        "unused-params",
        f"the capture has the names that were read from the model itself, so {params.path.name} was not "
        f"used; it has {has_it}",
        device,
    )


def naming_notes(naming: Naming, params: ParamList, device: int) -> Iterator[Note]:
    """Yield the notes about names that are missing or ambiguous."""
    unnamed = naming.n_bytes - naming.named_bytes
    n_unnamed = naming.names.count("")
    if n_unnamed:
        share = format_share(unnamed, naming.n_bytes)
        missing = counted(naming.n_without_memory, "tensor")
        yield Note(
            "unnamed-weights",
            f"{counted(n_unnamed, 'weight')} ({format_bytes(unnamed)}, {share}) fit no name of "
            f"{params.path.name}, and {missing} of it no weight: they are called by their lines or numbers",
            device,
        )
    ambiguous = naming.named_bytes - naming.certain_bytes
    if ambiguous:
        yield Note(
            "ambiguous-names",
            f"{format_bytes(ambiguous)} of the weights ({format_share(ambiguous, naming.n_bytes)}) have a "
            "name of their size, where another would fit as well"
            + ("" if params.is_ordered else f": {params.path.name} is sorted by name, and not the model"),
            device,
        )


def name_weights(
    params: ParamList, weights: Int64Column, *, is_placed: bool | None, is_by_address: bool = False
) -> Naming:
    """Give weights (their sizes, in the order of allocation) the names of a list.

    ``is_placed``: whether they were allocated by Module.to, None where no frame shows it. ``is_by_address``:
    they are pre-existing, and in the order of their addresses.
    """
    chosen = _in_order(params)
    names = [params.names[i] for i in chosen.tolist()]
    mixed, whole = _widths(params, chosen)
    listed = _Listed(
        tree=module_tree(names, params.is_buffer[chosen].tolist(), is_ordered=True),
        names=names,
        sizes=max((*mixed, *whole), key=lambda sizes: _common_bytes(sizes, weights)),
        others=mixed,
        is_ordered=params.is_ordered,
        is_placed=is_placed,
        is_by_address=is_by_address,
    )
    found, order = _matched(listed, weights)
    matching = _Matching(listed, weights, found)
    matching.pair_padded(order)
    matching.pair_leftovers(order)
    is_named = matching.partner >= 0
    entry = np.full(len(weights), -1, np.int64)
    entry[is_named] = chosen[matching.partner[is_named]]
    given = ["" if i < 0 else params.names[i] for i in entry.tolist()]
    for row in np.flatnonzero(matching.n_more).tolist():
        given[row] += f" + {matching.n_more[row]} more"
    naming = Naming(
        file_name=params.path.name,
        names=tuple(given),
        entry=entry,
        is_certain=matching.is_certain,
        n_bytes=int(weights.sum()),
        named_bytes=int(weights[is_named].sum()),
        certain_bytes=int(weights[is_named & matching.is_certain].sum()),
        n_listed=len(chosen),
        n_without_memory=int(np.count_nonzero(~matching.is_used)),
    )
    return read_only(naming)


def _in_order(params: ParamList) -> Int64Column:
    """Return the rows with memory of their own, in the list's order or, if sorted, in a customary one."""
    rows = np.flatnonzero(~params.is_tied & (params.n_elements > 0))
    if params.is_ordered:
        return rows
    names = [params.names[i] for i in rows.tolist()]
    tree = module_tree(names, params.is_buffer[rows].tolist(), is_ordered=False)
    return np.asarray(rows[np.fromiter(tree.tensors(is_placed=False), np.int64, len(rows))])


def _widths(params: ParamList, chosen: Int64Column) -> tuple[tuple[Int64Column, ...], ...]:
    """Return the sizes as listed and at each width that models mix, and those at each of the others."""
    n_elements, n_bytes = params.n_elements[chosen], params.n_bytes[chosen]
    listed = np.where(n_bytes >= 0, n_bytes, 4 * n_elements)

    def at(width: int) -> Int64Column:
        return np.where(params.is_floating[chosen], width * n_elements, listed)

    return (listed, *map(at, _MIXED_WIDTHS)), tuple(map(at, _OTHER_WIDTHS))


def _common_bytes(first: Int64Column, second: Int64Column) -> int:
    """Return the bytes that two lists of sizes share, each size as often as it is in both."""
    sizes, counts = np.unique(first, return_counts=True)
    others, other_counts = np.unique(second, return_counts=True)
    _, mine, theirs = np.intersect1d(sizes, others, assume_unique=True, return_indices=True)
    return int((sizes[mine] * np.minimum(counts[mine], other_counts[theirs])).sum())


def _matched(listed: _Listed, weights: Int64Column) -> tuple[Alignment, Int64Column]:
    """Return the pairs that the list's order gives, and the order that they go by; none where it was lost."""
    if not len(weights) or not listed.names or not listed.is_ordered:
        none = np.full(len(weights), -1, np.int64)
        return Alignment(none, none >= 0), _order(listed, is_placed=listed.is_placed is not False)
    pairs, order = _aligned(listed, weights)
    n_bytes = _bytes_of(pairs, weights)
    if not _is_complete(pairs, listed, weights):
        mixed = _in_one_order(listed, weights, order, others=listed.others)
        if _bytes_of(mixed, weights) > n_bytes:
            pairs, n_bytes = mixed, _bytes_of(mixed, weights)
    # Where some of the list is missing, addresses do not show what.
    is_trusted = n_bytes >= (
        _WHOLE_SHARE * int(listed.sizes.sum())
        if listed.is_by_address
        else _TRUSTED_SHARE * _common_bytes(listed.sizes, weights)
    )
    return replace(pairs, is_certain=pairs.is_certain & is_trusted), order


def _aligned(listed: _Listed, weights: Int64Column) -> tuple[Alignment, Int64Column]:
    """Align with the order of Module.to and with that of named_parameters: what explains more is kept."""
    first = listed.is_placed is not False
    orders = [_order(listed, is_placed=is_placed) for is_placed in (first, not first)]
    pairs = _in_one_order(listed, weights, orders[0])
    is_enough = listed.is_placed is not None and _is_complete(pairs, listed, weights)
    if is_enough or np.array_equal(orders[0], orders[1]):
        return pairs, orders[0]
    others = _in_one_order(listed, weights, orders[1])
    if _bytes_of(others, weights) > _bytes_of(pairs, weights):
        return others, orders[1]
    if listed.is_placed is None and _bytes_of(others, weights) == _bytes_of(pairs, weights):
        pairs = replace(pairs, is_certain=pairs.is_certain & (pairs.partner == others.partner))
    return pairs, orders[0]


def _order(listed: _Listed, *, is_placed: bool) -> Int64Column:
    return np.fromiter(listed.tree.tensors(is_placed=is_placed), np.int64, len(listed.names))


def _bytes_of(pairs: Alignment, weights: Int64Column) -> int:
    return int(weights[pairs.partner >= 0].sum())


def _is_complete(pairs: Alignment, listed: _Listed, weights: Int64Column) -> bool:
    """Return whether no weight without a partner has, at any width, the size of a tensor without one."""
    is_left = np.ones(len(listed.names), np.bool_)
    is_left[pairs.partner[pairs.partner >= 0]] = False
    sizes = np.stack((listed.sizes, *listed.others))
    return not is_among(weights[pairs.partner < 0], sizes[:, is_left]).any()


def _in_one_order(
    listed: _Listed, weights: Int64Column, order: Int64Column, *, others: tuple[Int64Column, ...] = ()
) -> Alignment:
    """Align with one order of the list; ``others`` are sizes that its tensors may have instead.

    Of pre-existing weights each of the allocator's pools by itself: only there do addresses rise with time,
    since a model that is built on an empty device fills segments from their beginning.
    """
    sizes = [column[order] for column in (listed.sizes, *others)]
    if not listed.is_by_address:
        found = align(sizes[0], weights, *sizes[1:])
    else:
        found = Alignment(np.full(len(weights), -1, np.int64), np.zeros(len(weights), np.bool_))
        for low, high in pairwise(_POOL_BOUNDS):
            rows = np.flatnonzero((weights > low) & (weights <= high))
            pairs = align(sizes[0], weights[rows], *sizes[1:])
            found.partner[rows], found.is_certain[rows] = pairs.partner, pairs.is_certain
    return replace(found, partner=np.where(found.partner >= 0, order[found.partner], -1))


class _Matching:
    """Pairs so far, and the ways to find more among what is left on either side."""

    def __init__(self, listed: _Listed, weights: Int64Column, found: Alignment) -> None:
        self._listed, self._weights = listed, weights
        self.partner = found.partner.copy()
        self.n_more = np.zeros(len(weights), np.int64)
        paired = np.flatnonzero(self.partner >= 0)
        self._once_listed, self._once_there = _occurs_once(listed.sizes), _occurs_once(weights)
        self.is_certain = found.is_certain.copy()
        self.is_certain[paired] |= self._once_there[paired] & self._once_listed[self.partner[paired]]
        self.is_used = np.zeros(len(listed.names), np.bool_)
        self.is_used[self.partner[paired]] = True

    def pair_padded(self, order: Int64Column) -> None:
        """Pair a weight between two that have names with what the list has there, padded or joined."""
        place = np.argsort(order)
        n_weights = len(self.partner)
        for row in np.flatnonzero(self.partner < 0).tolist():
            before = self.partner[row - 1] if row else -1
            after = self.partner[row + 1] if row + 1 < n_weights else -1
            if (row and before < 0) or (row + 1 < n_weights and after < 0):
                continue
            first = place[before] + 1 if row else 0
            entries = order[first : place[after] if row + 1 < n_weights else len(order)]
            entries = entries[~self.is_used[entries]]
            if len(entries) and self._is_padded(row, entries):
                self.partner[row], self.is_certain[row] = entries[0], self._listed.is_ordered
                self.is_used[entries] = True
                self.n_more[row] = len(entries) - 1

    def _is_padded(self, row: int, entries: Int64Column) -> bool:
        """Return whether a weight is one tensor and a little more, or all tensors of one module together."""
        if len({self._listed.names[i].rpartition(".")[0] for i in entries.tolist()}) > 1:
            return False
        total, there = int(self._listed.sizes[entries].sum()), int(self._weights[row])
        return total <= there <= total * (1 + _MAX_PADDING) + _PADDED_BYTES * (len(entries) - 1)

    def pair_leftovers(self, order: Int64Column) -> None:
        """Pair equal sizes in order, wherever they stand; certain where either side has one of them."""
        rows, entries = np.flatnonzero(self.partner < 0), order[~self.is_used[order]]
        by_size: dict[int, list[int]] = {}
        for entry in entries[::-1].tolist():
            by_size.setdefault(int(self._listed.sizes[entry]), []).append(entry)
        for row in rows.tolist():
            if same_size := by_size.get(int(self._weights[row])):
                entry = same_size.pop()
                self.partner[row], self.is_used[entry] = entry, True
                self.is_certain[row] = self._once_there[row] and self._once_listed[entry]


def _occurs_once(values: Int64Column) -> BoolColumn:
    found, counts = np.unique(values, return_counts=True)
    return is_among(values, found[counts == 1])
