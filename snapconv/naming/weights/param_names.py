"""Names for weights after the fact: a list of parameters, and the sizes of the weights in order -> names.

Nothing in a bare snapshot links the two but size and order, and neither list need be complete: tied tensors
have one allocation, frozen ones may be elsewhere, buffers are allocated but perhaps not listed. So the two
are aligned, in the order of Module.to or of named_parameters, whichever explains more; or, where a list was
sorted by name or a model was placed part by part, fitted module by module. What stays ambiguous is counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from snapconv.columns import BoolColumn, Int64Column, is_among, read_only
from snapconv.naming.weights.alignment import Alignment, align
from snapconv.naming.weights.param_tree import module_tree
from snapconv.naming.weights.param_windows import Listed, fit_windows
from snapconv.snapshot.recorded.params_file import ParamList

# half(), bfloat16(), float() and double() convert a whole model; eight-bit floats are converted one by one.
_WIDTHS = (2, 4, 8, 1)
# An order that explains less than this of what is there in both lists is no order to go by.
_TRUSTED_SHARE, _WHOLE_SHARE = 0.9, 0.99
# The allocator's small pool (kSmallSize), segments of 20 MiB, and segments of a size's own (kMinLargeAlloc).
_POOL_BOUNDS = (0, 1 << 20, (10 << 20) - 1, 1 << 62)
# Frameworks pad vocabularies, and cuDNN the pieces of an LSTM's weights, which it keeps in one allocation.
_MAX_PADDING, _PADDED_BYTES = 0.1, 512


@dataclass(frozen=True, slots=True)
class Naming:
    """Names for some of the weights, one entry per weight.

    ``names`` are empty and ``entry`` (a row of the ParamList) is -1 where there is none. ``is_certain``: size
    and order leave no other choice. ``n_without_memory``: listed tensors that are none of the weights.
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


def name_weights(
    params: ParamList, weights: Int64Column, *, is_placed: bool | None, is_by_address: bool = False
) -> Naming:
    """Give weights (their sizes, in the order of allocation) the names of a list.

    ``is_placed``: whether they were allocated by Module.to, None where no frame shows it. ``is_by_address``:
    they are pre-existing, and in the order of their addresses.
    """
    chosen = _in_order(params)
    widths = _Widths(params, chosen)
    listed = Listed(
        tree=module_tree(
            [params.names[i] for i in chosen.tolist()], params.is_buffer[chosen].tolist(), is_ordered=True
        ),
        names=[params.names[i] for i in chosen.tolist()],
        sizes=widths.fitting(weights),
        is_ordered=params.is_ordered,
        is_placed=is_placed,
        is_by_address=is_by_address,
    )
    found, order = _matched(listed, weights, widths.columns())
    matching = _Matching(listed, widths, weights, found)
    matching.fill_gaps(order)
    matching.pair_leftovers()
    return _naming(params, chosen, matching, weights)


def _in_order(params: ParamList) -> Int64Column:
    """The rows with memory of their own, in the list's order or, where that is sorted, in a customary one."""
    rows = np.flatnonzero(~params.is_tied & (params.n_elements > 0))
    if params.is_ordered:
        return rows
    names = [params.names[i] for i in rows.tolist()]
    tree = module_tree(names, params.is_buffer[rows].tolist(), is_ordered=False)
    return np.asarray(rows[np.fromiter(tree.tensors(is_placed=False), np.int64, len(rows))])


class _Widths:
    """The sizes that listed tensors have, as listed or converted to other floating point types."""

    def __init__(self, params: ParamList, chosen: Int64Column) -> None:
        self._n_elements, self._is_floating = params.n_elements[chosen], params.is_floating[chosen]
        n_bytes = params.n_bytes[chosen]
        self._listed = np.where(n_bytes >= 0, n_bytes, 4 * self._n_elements)

    def at(self, width: int) -> Int64Column:
        """The sizes with all floating point numbers of so many bytes."""
        return np.where(self._is_floating, width * self._n_elements, self._listed)

    def columns(self) -> tuple[Int64Column, ...]:
        """The sizes as listed, and at every width that training uses."""
        return (self._listed, *map(self.at, _WIDTHS[:2]))

    def fitting(self, weights: Int64Column) -> Int64Column:
        """The sizes that have most bytes in common with the weights."""
        return max((self._listed, *map(self.at, _WIDTHS)), key=lambda sizes: _common_bytes(sizes, weights))


def _common_bytes(first: Int64Column, second: Int64Column) -> int:
    """The bytes that two lists of sizes share, each size as often as it is in both."""
    sizes, counts = np.unique(first, return_counts=True)
    others, other_counts = np.unique(second, return_counts=True)
    _, mine, theirs = np.intersect1d(sizes, others, assume_unique=True, return_indices=True)
    return int((sizes[mine] * np.minimum(counts[mine], other_counts[theirs])).sum())


def _matched(
    listed: Listed, weights: Int64Column, widths: tuple[Int64Column, ...]
) -> tuple[Alignment, Int64Column]:
    """The pairs that order and modules give, and the order of the list that they go by."""
    if not len(weights) or not listed.names:
        none = np.full(len(weights), -1, np.int64)
        return Alignment(none, none >= 0), np.arange(len(listed.names))
    common = _common_bytes(listed.sizes, weights)
    if not listed.is_ordered:
        return _matched_without_order(listed, weights, common)
    by_order, order, is_placed = _aligned(listed, weights, common)
    if listed.is_by_address:
        # Where some of the list is missing, addresses do not show what.
        is_whole = _bytes_of(by_order, weights) >= _WHOLE_SHARE * int(listed.sizes.sum())
        return replace(by_order, is_certain=by_order.is_certain & is_whole), order
    if _bytes_of(by_order, weights) == common and not _may_be_mixed(by_order, weights, widths):
        return by_order, order
    mixed = _in_one_order(listed, weights, order, widths)
    if _bytes_of(mixed, weights) > _bytes_of(by_order, weights):
        by_order = mixed
    if _bytes_of(by_order, weights) < _TRUSTED_SHARE * common:
        by_order = replace(by_order, is_certain=np.zeros(len(weights), np.bool_))
    by_module = fit_windows(replace(listed, is_placed=is_placed), weights)
    is_better = weights[by_module.is_certain].sum() > weights[by_order.is_certain].sum()
    return by_module if is_better else by_order, order


def _matched_without_order(
    listed: Listed, weights: Int64Column, common: int
) -> tuple[Alignment, Int64Column]:
    """Fit a sorted list; where something is missing on either side, its customary order may do better."""
    order = _order(listed, is_placed=listed.is_placed is not False)
    by_module = fit_windows(listed, weights)
    if listed.is_by_address:
        return replace(by_module, is_certain=np.zeros(len(weights), np.bool_)), order
    n_bytes = (int(one[is_among(one, other)].sum()) for one, other in _both_ways(listed.sizes, weights))
    if all(n == common for n in n_bytes):
        return by_module, order
    by_order = _in_one_order(listed, weights, order)
    if _bytes_of(by_order, weights) < _TRUSTED_SHARE * common:
        return by_module, order
    is_same = by_order.partner == by_module.partner
    return replace(by_order, is_certain=by_module.is_certain & is_same), order


def _both_ways(first: Int64Column, second: Int64Column) -> tuple[tuple[Int64Column, Int64Column], ...]:
    return (first, second), (second, first)


def _aligned(listed: Listed, weights: Int64Column, common: int) -> tuple[Alignment, Int64Column, bool]:
    """Align with the order of Module.to and with that of named_parameters: what explains more is kept."""
    first = listed.is_placed is not False
    orders = [_order(listed, is_placed=is_placed) for is_placed in (first, not first)]
    pairs = _in_one_order(listed, weights, orders[0])
    is_enough = listed.is_placed is not None and _bytes_of(pairs, weights) == common
    if is_enough or np.array_equal(orders[0], orders[1]):
        return pairs, orders[0], first
    others = _in_one_order(listed, weights, orders[1])
    if _bytes_of(others, weights) > _bytes_of(pairs, weights):
        return others, orders[1], not first
    if listed.is_placed is None and _bytes_of(others, weights) == _bytes_of(pairs, weights):
        pairs = replace(pairs, is_certain=pairs.is_certain & (pairs.partner == others.partner))
    return pairs, orders[0], first


def _order(listed: Listed, *, is_placed: bool) -> Int64Column:
    return np.fromiter(listed.tree.tensors(is_placed=is_placed), np.int64, len(listed.names))


def _bytes_of(pairs: Alignment, weights: Int64Column) -> int:
    return int(weights[pairs.partner >= 0].sum())


def _may_be_mixed(pairs: Alignment, weights: Int64Column, widths: tuple[Int64Column, ...]) -> bool:
    """Whether tensors without a partner have, at some width, the sizes of weights without one.

    Norms stay in float32 when the rest of a model is made half.
    """
    is_left = np.ones(len(widths[0]), np.bool_)
    is_left[pairs.partner[pairs.partner >= 0]] = False
    return bool(is_among(weights[pairs.partner < 0], np.stack(widths)[:, is_left]).any())


def _in_one_order(
    listed: Listed, weights: Int64Column, order: Int64Column, others: tuple[Int64Column, ...] = ()
) -> Alignment:
    sizes = [listed.sizes[order], *(column[order] for column in others)]
    pairs = _align_pools(sizes[0], weights) if listed.is_by_address else align(sizes[0], weights, *sizes[1:])
    return replace(pairs, partner=np.where(pairs.partner >= 0, order[pairs.partner], -1))


def _align_pools(sizes: Int64Column, weights: Int64Column) -> Alignment:
    """Align the weights of each of the allocator's pools: only there do addresses rise with time.

    A model that is built on an empty device fills segments from their beginning.
    """
    found = Alignment(np.full(len(weights), -1, np.int64), np.zeros(len(weights), np.bool_))
    for low, high in pairwise(_POOL_BOUNDS):
        rows = np.flatnonzero((weights > low) & (weights <= high))
        pairs = align(sizes, weights[rows])
        found.partner[rows], found.is_certain[rows] = pairs.partner, pairs.is_certain
    return found


class _Matching:
    """Pairs so far, and the ways to find more among what is left on either side."""

    def __init__(self, listed: Listed, widths: _Widths, weights: Int64Column, found: Alignment) -> None:
        self._listed, self._widths, self._weights = listed, widths, weights
        self.partner = found.partner.copy()
        self.n_more = np.zeros(len(weights), np.int64)
        paired = np.flatnonzero(self.partner >= 0)
        self._once_listed, self._once_there = _occurs_once(listed.sizes), _occurs_once(weights)
        self.is_certain = found.is_certain.copy()
        self.is_certain[paired] |= self._once_there[paired] & self._once_listed[self.partner[paired]]
        self.is_used = np.zeros(len(listed.names), np.bool_)
        self.is_used[self.partner[self.partner >= 0]] = True

    def _pair(self, row: int, entry: int, *, is_certain: bool) -> None:
        self.partner[row], self.is_certain[row] = entry, is_certain
        self.is_used[entry] = True

    def fill_gaps(self, order: Int64Column) -> None:
        """Pair what is between the same neighbours in both lists and was converted, padded or joined."""
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        others = [self._widths.at(width) for width in _WIDTHS]
        for rows, first, last in self._gaps(place):
            entries = order[first:last]
            entries = entries[~self.is_used[entries]]
            if not len(entries):
                continue
            for sizes in others:
                found = align(sizes[entries], self._weights[rows])
                for i in np.flatnonzero(found.partner >= 0).tolist():
                    is_certain = bool(found.is_certain[i]) and self._listed.is_ordered
                    self._pair(int(rows[i]), int(entries[found.partner[i]]), is_certain=is_certain)
                rows = rows[self.partner[rows] < 0]
                entries = entries[~self.is_used[entries]]
            if len(rows) == 1 and len(entries) and self._is_padded(int(rows[0]), entries):
                self._pair(int(rows[0]), int(entries[0]), is_certain=self._listed.is_ordered)
                self.is_used[entries] = True
                self.n_more[rows[0]] = len(entries) - 1

    def _gaps(self, place: Int64Column) -> Iterator[tuple[Int64Column, int, int]]:
        """Weights without a name that stand together, and the listed ones between their neighbours' names."""
        free = np.flatnonzero(self.partner < 0)
        for rows in np.split(free, np.flatnonzero(np.diff(free) > 1) + 1):
            if len(rows):
                before, after = int(rows[0]) - 1, int(rows[-1]) + 1
                first = int(place[self.partner[before]]) + 1 if before >= 0 else 0
                last = int(place[self.partner[after]]) if after < len(self.partner) else len(place)
                if first < last:
                    yield rows, first, last

    def _is_padded(self, row: int, entries: Int64Column) -> bool:
        """Whether an allocation is one tensor and a little more, or all tensors of one module together."""
        if len({self._listed.names[i].rpartition(".")[0] for i in entries.tolist()}) > 1:
            return False
        total, there = int(self._listed.sizes[entries].sum()), int(self._weights[row])
        return total <= there <= total * (1 + _MAX_PADDING) + _PADDED_BYTES * (len(entries) - 1)

    def pair_leftovers(self) -> None:
        """Pair equal sizes in order, wherever they stand; certain where either side has one of them."""
        rows, entries = np.flatnonzero(self.partner < 0), np.flatnonzero(~self.is_used)
        by_size: dict[int, list[int]] = {}
        for entry in entries[::-1].tolist():
            by_size.setdefault(int(self._listed.sizes[entry]), []).append(entry)
        for row in rows.tolist():
            if same_size := by_size.get(int(self._weights[row])):
                entry = same_size.pop()
                self._pair(row, entry, is_certain=bool(self._once_there[row] and self._once_listed[entry]))


def _occurs_once(values: Int64Column) -> BoolColumn:
    found, counts = np.unique(values, return_counts=True)
    return is_among(values, found[counts == 1])


def _naming(params: ParamList, chosen: Int64Column, matching: _Matching, weights: Int64Column) -> Naming:
    is_named = matching.partner >= 0
    entry = np.full(len(weights), -1, np.int64)
    entry[is_named] = chosen[matching.partner[is_named]]
    names = ["" if i < 0 else params.names[i] for i in entry.tolist()]
    for row in np.flatnonzero(matching.n_more).tolist():
        names[row] += f" + {matching.n_more[row]} more"
    naming = Naming(
        file_name=params.path.name,
        names=tuple(names),
        entry=entry,
        is_certain=matching.is_certain,
        n_bytes=int(weights.sum()),
        named_bytes=int(weights[is_named].sum()),
        certain_bytes=int(weights[is_named & matching.is_certain].sum()),
        n_listed=len(chosen),
        n_without_memory=int(np.count_nonzero(~matching.is_used)),
    )
    return read_only(naming)
