"""Sizes of modules -> the stretch of allocations that each has, in any order of placement.

The tensors of a module are allocated next to each other. So a module is where the sizes of its
tensors are together, and inside that stretch the same applies to the modules in it. Modules that are not
found (one tensor has no allocation) are searched part by part.
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from snapconv.columns import Int64Column, UInt64Column, is_among
from snapconv.naming.weights.alignment import Alignment
from snapconv.naming.weights.param_tree import Module, is_numbered, is_torch_module


@dataclass(frozen=True, slots=True)
class _Part:
    """A module, with its tensors in order; ``mark`` is the same for the same sizes in any order.

    ``is_torn``: the module that it is in was found nowhere as a whole.
    """

    module: Module
    entries: Int64Column
    mark: int
    n_bytes: int
    is_torn: bool

    @property
    def first(self) -> int:
        """What siblings are in order by."""
        return int(self.entries.min())


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Allocations from ``first`` up to ``end``; ``is_certain``: whose they are is.

    ``is_in_order``: their sizes stand in the list's order, which is the model's.
    """

    first: int
    end: int
    is_certain: bool
    is_in_order: bool = False


@dataclass(frozen=True, slots=True)
class Listed:
    """Tensors by name and size, with the tree of their modules.

    ``is_ordered``: they stand in the model's order. ``is_placed``: they were allocated by Module.to, or
    None where nothing shows it. ``is_by_address``: how they were allocated is not known, only where they are.
    """

    tree: Module
    names: Sequence[str]
    sizes: Int64Column
    is_ordered: bool
    is_placed: bool | None
    is_by_address: bool = False


def fit_windows(listed: Listed, rows: Int64Column) -> Alignment:
    """Pair tensors with allocations (``rows`` are their sizes) by the modules that they are in.

    Tensors and allocations of sizes that the other side does not have are left out from the beginning.
    Modules with the same sizes are certain where their order is: by their numbers, or by the list's where all
    around them stands as listed.
    """
    # A norm before a stack of blocks and one after it: the window of the stack may begin with either.
    from_left, from_right = (_Fit(listed, rows, from_right=from_right) for from_right in (False, True))
    better = from_right if from_right.torn_bytes < from_left.torn_bytes else from_left
    is_certain = from_left.is_certain & from_right.is_certain & (from_left.partner == from_right.partner)
    found = Alignment(np.full(len(rows), -1, np.int64), np.zeros(len(rows), np.bool_))
    found.partner[better.rows], found.is_certain[better.rows] = better.partner, is_certain
    return found


class _Fit:
    def __init__(self, listed: Listed, rows: Int64Column, *, from_right: bool) -> None:
        entries = listed.sizes
        self._names, self._is_ordered = listed.names, listed.is_ordered
        self._is_placed = listed.is_placed is not False
        self._sizes, self._from_right = entries, from_right
        self._is_wanted = is_among(entries, rows)
        self.rows = np.flatnonzero(is_among(rows, entries))
        self._row_sizes = rows[self.rows]
        self._marks = _marks(entries)
        self._sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_marks(self._row_sizes))))
        self.partner = np.full(len(self.rows), -1, np.int64)
        self.is_certain = np.zeros(len(self.rows), np.bool_)
        self.torn_bytes = 0
        if len(self.rows):
            self.place(self.parts([listed.tree]), _Stretch(0, len(self.rows), is_certain=True))

    def parts(self, modules: Iterable[Module], *, is_torn: bool = False) -> Iterator[_Part]:
        """The modules that have tensors of sizes that occur."""
        for module in modules:
            entries = np.fromiter(module.tensors(is_placed=self._is_placed), np.int64)
            entries = entries[self._is_wanted[entries]]
            if len(entries):
                mark = int(self._marks[entries].sum(dtype=np.uint64))
                yield _Part(module, entries, mark, int(self._sizes[entries].sum()), is_torn)

    def place(self, parts: Iterable[_Part], stretch: _Stretch) -> None:
        """Give the parts stretches within one, the largest first; then do the same within each."""
        groups: dict[tuple[int, int], list[_Part]] = {}
        order: list[tuple[int, tuple[int, int]]] = []
        windows = _Windows(self._sums, self.partner, stretch)
        own: list[int] = []

        def add(part: _Part) -> None:
            key = (len(part.entries), part.mark)
            if key not in groups:
                groups[key] = []
                heapq.heappush(order, (-part.n_bytes, key))
            groups[key].append(part)

        for part in parts:
            add(part)
        while order:
            key = heapq.heappop(order)[1]
            same_size = sorted(groups.pop(key), key=lambda part: part.first)
            found = self._windows_of(same_size, windows)
            for part, inner in zip(same_size, found, strict=False):
                self._settle(part, inner)
            for part in same_size[len(found) :]:
                self.torn_bytes += part.n_bytes
                own += self._own(part.module)
                for smaller in self.parts(part.module.children.values(), is_torn=True):
                    add(smaller)
        self._place_tensors(own, stretch, is_torn=True)

    def _settle(self, part: _Part, stretch: _Stretch) -> None:
        """Place what a module consists of within its stretch."""
        if len(part.entries) == 1:
            self.partner[stretch.first] = part.entries[0]
            self.is_certain[stretch.first] = stretch.is_certain
            return
        # Nothing else may take it, while it is worked on from the inside.
        self.place(self.parts(part.module.children.values()), stretch)
        self._place_tensors(self._own(part.module), stretch)

    def _own(self, module: Module) -> list[int]:
        return [entry for entry in module.own if self._is_wanted[entry]]

    def _windows_of(self, same_size: list[_Part], windows: "_Windows") -> list[_Stretch]:
        """Find a stretch for each of several modules with the same sizes, as far as there are any."""
        length, wanted = len(same_size[0].entries), self._sizes[same_size[0].entries]
        places = windows.places(length, same_size[0].mark)
        if self._from_right:
            places = places[::-1]
        is_exact = {p: np.array_equal(self._row_sizes[p : p + length], wanted) for p in places.tolist()}
        starts = list(is_exact)
        if self._is_ordered or not same_size[0].module.children:
            # Where there is an order, of the list or of torch's own modules, it shows where a module begins.
            starts.sort(key=lambda place: not is_exact[place])
        chosen = _apart(starts, length, len(same_size))
        is_certain = windows.stretch.is_certain and len(chosen) == len(same_size)
        is_certain = is_certain and self._are_in_order(same_size, windows.stretch)
        return [
            _Stretch(first, first + length, is_certain, self._is_ordered and is_exact[first])
            for first in chosen
        ]

    def _are_in_order(self, same_size: list[_Part], stretch: _Stretch) -> bool:
        """Whether modules with the same sizes were placed one after the other, as they are listed."""
        # Parts of what is nowhere as a whole have lost their order, and others may be in their places.
        if any(part.is_torn for part in same_size):
            return False
        if len(same_size) == 1:
            return True
        return stretch.is_in_order or is_numbered([part.module.path for part in same_size])

    def _has_order(self, same_size: list[int], stretch: _Stretch) -> bool:
        return stretch.is_in_order or is_torch_module([self._names[entry] for entry in same_size])

    def _place_tensors(self, entries: list[int], stretch: _Stretch, *, is_torn: bool = False) -> None:
        """Pair single tensors with what is left of a stretch, equal sizes in the order of both."""
        if not entries:
            return
        free = stretch.first + np.flatnonzero(self.partner[stretch.first : stretch.end] < 0)
        by_size: dict[int, list[int]] = {}
        for row in free.tolist():
            by_size.setdefault(int(self._row_sizes[row]), []).append(row)
        wanted: dict[int, list[int]] = {}
        for entry in entries:
            wanted.setdefault(int(self._sizes[entry]), []).append(entry)
        for size, same_size in wanted.items():
            rows = by_size.get(size, [])
            is_certain = (
                stretch.is_certain
                and len(rows) == len(same_size)
                and not is_torn
                and (len(same_size) == 1 or self._has_order(same_size, stretch))
            )
            for entry, row in zip(same_size, rows, strict=False):
                self.partner[row] = entry
                self.is_certain[row] = is_certain


class _Windows:
    """All windows of free allocations within a stretch, looked up by the mark of their sizes."""

    def __init__(self, sums: UInt64Column, partner: Int64Column, stretch: _Stretch) -> None:
        self._sums, self._partner, self.stretch = sums, partner, stretch
        self._known: dict[int, tuple[UInt64Column, Int64Column]] = {}

    def places(self, length: int, mark: int) -> Int64Column:
        """Where windows of this mark begin, in order, overlapping ones too."""
        if length not in self._known:
            sums = self._sums[self.stretch.first : self.stretch.end + 1]
            marks = sums[length:] - sums[:-length] if length < len(sums) else sums[:0]
            order = np.argsort(marks, kind="stable")
            self._known[length] = marks[order], order + self.stretch.first
        marks, places = self._known[length]
        low, high = (int(np.searchsorted(marks, np.uint64(mark), side)) for side in ("left", "right"))
        found = places[low:high]
        is_free = [bool((self._partner[p : p + length] < 0).all()) for p in found.tolist()]
        return found[np.array(is_free, np.bool_)]


def _apart(places: list[int], length: int, n_wanted: int) -> list[int]:
    """Choose places in the order given, so that no two windows of that length overlap."""
    chosen: list[int] = []
    covered: set[int] = set()
    for place in places:
        if len(chosen) == n_wanted:
            break
        # All windows are of one length: one that overlaps another covers one of its ends.
        if place not in covered and place + length - 1 not in covered:
            chosen.append(place)
            covered.update(range(place, place + length))
    return sorted(chosen)


def _marks(sizes: Int64Column) -> UInt64Column:
    """A number for each size, so that sums of them distinguish multisets (the mixing of splitmix64)."""
    mixed = sizes.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
