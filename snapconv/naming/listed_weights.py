"""Names for weights after the fact: a list of parameters, and the sizes of the weights in order -> names.

Nothing in a bare snapshot links the two but size and order, and neither list need be complete: tied tensors
have one allocation, frozen ones may be elsewhere, buffers are allocated but perhaps not listed. A weight has
a name where size and order leave no other choice: its size occurs once, or it has the same partner however
the two lists are aligned. A list that was sorted by name has lost the order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from snapconv.columns import Int8Column, Int64Column, read_only
from snapconv.naming.weight_table import WeightTable, live_weights, match_weights
from snapconv.notes import Note
from snapconv.replay.device_replay import AllocationTable
from snapconv.snapshot.recorded.params_file import ParamList
from snapconv.units import counted, format_bytes, format_share

# half() and bfloat16() convert a whole model; double() and eight bits, too.
_WIDTHS = (4, 2, 1, 8)
# An order that explains less than this of what is there in both lists is no order to go by. Where some of the
# list is missing, addresses do not show what: they have to explain all of it.
_TRUSTED_SHARE, _WHOLE_SHARE = 0.9, 0.99
# The allocator's small pool (kSmallSize), segments of 20 MiB, and segments of a size's own (kMinLargeAlloc).
_POOL_BOUNDS = (0, 1 << 20, (10 << 20) - 1, 1 << 62)
# Cells of the table of an alignment, two bytes each: lists of 7,000. Longer ones are compared no further than
# their common beginning and end.
_MOST_CELLS = 50_000_000
# Deeper names are no modules' paths; what is below counts as one name.
_MAX_DEPTH = 16


@dataclass(frozen=True, slots=True)
class Naming:
    """Names for some of the weights, one entry per weight.

    ``names`` are empty and ``entry`` (a row of the ParamList) is -1 where there is none. Bytes are requested
    bytes: of all weights, and of those with a name. ``n_without_memory``: listed tensors that have none.
    """

    file_name: str
    names: tuple[str, ...]
    entry: Int64Column
    n_bytes: int
    named_bytes: int
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
            "n_listed": self.n_listed,
            "n_without_memory": self.n_without_memory,
        }


def listed_weights(
    params: ParamList,
    allocations: AllocationTable,
    category: Int8Column,
    *,
    event: int,
    iteration_events: tuple[int, int],
) -> tuple[WeightTable, Naming]:
    """Name the weights live at ``event``; what the list has as integers has a gradient last."""
    rows = live_weights(allocations, category, event)
    n_older = np.count_nonzero(allocations.alloc_event[rows] < 0)
    sizes = allocations.requested_bytes[rows]
    naming = name_weights(params, sizes, is_by_address=bool(2 * n_older > len(rows)))
    weights = match_weights(
        allocations,
        category,
        event=event,
        iteration_events=iteration_events,
        names=naming.names,
        is_trained=np.append(params.is_floating, np.True_)[naming.entry],
    )
    return weights, naming


def naming_note(naming: Naming, device: int) -> Iterator[Note]:
    """Report the weights that the list has no name for."""
    n_unnamed, n_bytes = naming.names.count(""), naming.n_bytes - naming.named_bytes
    if n_unnamed:
        share, missing = format_share(n_bytes, naming.n_bytes), counted(naming.n_without_memory, "tensor")
        yield Note(
            "unnamed-weights",
            f"{counted(n_unnamed, 'weight')} ({format_bytes(n_bytes)}, {share}) fit no name or several of "
            f"{naming.file_name}, and {missing} of it no weight: they are called by their lines or numbers",
            device,
        )


def name_weights(params: ParamList, weights: Int64Column, *, is_by_address: bool = False) -> Naming:
    """Give weights (their sizes, in the order of allocation) the names of a list.

    ``is_by_address``: they are pre-existing, and in the order of their addresses.
    """
    listed = np.flatnonzero(params.n_elements > 0)
    sizes = max(_sizes(params, listed), key=lambda at_width: _common_bytes(at_width, weights))
    partner = np.full(len(weights), -1, np.int64)
    if params.is_ordered and len(weights):
        partner = _in_order(_orders(params, listed), sizes, weights, is_by_address=is_by_address)
    _, n_listed, n_there = _common(sizes, weights)
    _, entries, rows = np.intersect1d(sizes, weights, return_indices=True)
    is_once = (n_listed == 1) & (n_there == 1)
    partner[rows[is_once]] = entries[is_once]
    is_named = partner >= 0
    entry = np.append(listed, -1)[partner]
    naming = Naming(
        file_name=params.path.name,
        names=tuple("" if i < 0 else params.names[i] for i in entry.tolist()),
        entry=entry,
        n_bytes=int(weights.sum()),
        named_bytes=int(weights[is_named].sum()),
        n_listed=len(listed),
        n_without_memory=len(listed) - int(np.count_nonzero(is_named)),
    )
    return read_only(naming)


def _sizes(params: ParamList, listed: Int64Column) -> Iterator[Int64Column]:
    """Yield the sizes as listed, and converted to each width."""
    n_elements, n_bytes = params.n_elements[listed], params.n_bytes[listed]
    n_bytes = np.where(n_bytes >= 0, n_bytes, 4 * n_elements)
    yield n_bytes
    for width in _WIDTHS:
        yield np.where(params.is_floating[listed], width * n_elements, n_bytes)


def _common(first: Int64Column, second: Int64Column) -> tuple[Int64Column, Int64Column, Int64Column]:
    """Return the sizes that are in both lists, and how often each is in either."""
    sizes, counts = np.unique(first, return_counts=True)
    others, other_counts = np.unique(second, return_counts=True)
    common, mine, theirs = np.intersect1d(sizes, others, assume_unique=True, return_indices=True)
    return common, counts[mine], other_counts[theirs]


def _common_bytes(first: Int64Column, second: Int64Column) -> int:
    sizes, n_first, n_second = _common(first, second)
    return int((sizes * np.minimum(n_first, n_second)).sum())


def _orders(params: ParamList, listed: Int64Column) -> list[Int64Column]:
    """Return the orders in which a model may allocate the listed tensors, each as positions in ``listed``.

    A model that is built on the device has them as named_parameters: a module's own before those of the
    modules within. Module.to comes to the modules within first (_apply of torch 2.1 to 2.13).
    """
    first: dict[str, int] = {}
    keys: list[list[tuple[int, ...]]] = []
    for row, name in enumerate(params.names[i] for i in listed.tolist()):
        path = ""
        key: list[tuple[int, ...]] = []
        for part in name.split(".", _MAX_DEPTH)[:-1]:
            path = f"{path}.{part}"
            key.append((1, first.setdefault(path, row)))
        keys.append(key)
    return [
        np.array(sorted(range(len(listed)), key=lambda row: [*keys[row], (place, row)]), np.int64)
        for place in (0, 2)  # of a module's own, where modules within have 1
    ]


def _in_order(
    orders: list[Int64Column], sizes: Int64Column, weights: Int64Column, *, is_by_address: bool
) -> Int64Column:
    """Return each weight's partner by the order that explains most; of equal ones where they agree."""
    found = [_aligned(order, sizes, weights, is_by_address=is_by_address) for order in orders]
    explained = [int(weights[partner >= 0].sum()) for partner, _ in found]
    enough = _WHOLE_SHARE * sizes.sum() if is_by_address else _TRUSTED_SHARE * _common_bytes(sizes, weights)
    agreed, *others = (both for (_, both), n in zip(found, explained, strict=True) if n == max(explained))
    for other in others:
        agreed = np.where(agreed == other, agreed, -1)
    return agreed if max(explained) >= enough else np.full(len(weights), -1, np.int64)


def _aligned(
    order: Int64Column, sizes: Int64Column, weights: Int64Column, *, is_by_address: bool
) -> tuple[Int64Column, Int64Column]:
    """Align weights with one order of the list: partners from the front, and those that the back agrees with.

    Pre-existing weights are aligned within each of the allocator's pools: only there do addresses rise with
    time, since a model that is built on an empty device fills segments from their beginning.
    """
    partner, agreed = np.full((2, len(weights)), -1, np.int64)
    ordered = sizes[order]
    bounds = _POOL_BOUNDS if is_by_address else (0, _POOL_BOUNDS[-1])
    for low, high in pairwise(bounds):
        rows = np.flatnonzero((weights > low) & (weights <= high) & np.isin(weights, sizes))
        entries = np.flatnonzero((ordered > low) & (ordered <= high) & np.isin(ordered, weights))
        front = _matched(ordered[entries], weights[rows])
        back = _matched(ordered[entries[::-1]], weights[rows[::-1]])[::-1]
        back = np.where(back >= 0, len(entries) - 1 - back, -1)
        partner[rows] = np.append(order[entries], -1)[front]
        agreed[rows] = np.where(front == back, partner[rows], -1)
    return partner, agreed


def _matched(listed: Int64Column, weights: Int64Column) -> Int64Column:
    """Pair equal sizes in order, with most bytes: for every weight its position in the list, or -1."""
    length = min(len(listed), len(weights))
    differs = np.append(listed[:length] != weights[:length], np.True_)
    start = int(differs.argmax())
    partner = np.full(len(weights), -1, np.int64)
    partner[:start] = np.arange(start)
    n_listed, n_weights = len(listed) - start, len(weights) - start
    if n_listed * n_weights > _MOST_CELLS:
        return partner
    # A table of best sums, line by line: whether each is more than that above it, and than that to its left.
    above, left = np.zeros((2, n_listed, n_weights), np.bool_)
    best = np.zeros(n_weights + 1, np.int64)
    for line, size in enumerate(listed[start:].tolist()):
        with_it = np.where(weights[start:] == size, best[:-1] + size, 0)
        sums = np.append(0, np.maximum.accumulate(np.maximum(best[1:], with_it)))
        above[line], left[line] = sums[1:] > best[1:], sums[1:] > sums[:-1]
        best = sums
    line, row = n_listed - 1, n_weights - 1
    while line >= 0 and row >= 0:
        if not above[line, row]:
            line -= 1
        elif not left[line, row]:
            row -= 1
        else:
            partner[start + row] = start + line
            line, row = line - 1, row - 1
    return partner
