"""The modules that dotted names make, and the stretch of allocations that each has, in any order.

The tensors of a module are allocated next to each other. So a module is where the sizes of its tensors are
together, and inside that stretch the same applies to the modules in it. Modules that are not found (one
tensor has no allocation) are searched part by part.
"""

import heapq
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from snapconv.columns import Int64Column, UInt64Column, is_among
from snapconv.naming.alignment import Alignment

# Deeper names are no modules' paths; what is below counts as one name.
_MAX_DEPTH = 64
_NUMBERED = re.compile(r"(\d+)")

# In sorted lists the order of registration is lost. These are the orders of torch's own modules (nn/modules
# of 2.1 to 2.13) and the customs of transformers; siblings in no tuple keep the order of their names.
_TORCH_TENSORS = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
_RECURRENT = re.compile(r"(weight|bias)_(ih|hh|hr)_l(\d{1,9})(_reverse)?$")
_CUSTOMS = (
    _TORCH_TENSORS,
    ("in_proj_weight", "in_proj_bias"),
    ("q", "k", "v", "o"),
    ("q_proj", "k_proj", "v_proj", "o_proj"),
    ("q_proj", "k_proj", "v_proj", "out_proj"),
    ("query", "key", "value"),
    ("wq", "wk", "wv", "wo"),
    ("gate_proj", "up_proj", "down_proj"),
    ("gate", "up", "down"),
    ("w1", "w2", "w3"),
    ("encoder", "decoder"),
)
# Embeddings come first, and what makes the answer last.
_FIRST, _LAST = re.compile(r"emb|^wte$|^wpe$|^tok"), re.compile(r"head|classifier|^logits$|^output$")
_CUSTOMARY_PLACE = {name: place for names in _CUSTOMS for place, name in enumerate(names)}


@dataclass(slots=True)
class Module:
    """A module: the numbers of its own tensors, and the modules in it, in the order of the list."""

    path: tuple[str, ...] = ()
    own: list[int] = field(default_factory=list)
    children: dict[str, "Module"] = field(default_factory=dict)

    def tensors(self, *, is_placed: bool) -> Iterator[int]:
        """Yield all tensors, in the order in which a model allocates them.

        Module.to comes to the modules within first, then to a module's own tensors (_apply of torch 2.1 to
        2.13). A model that is built on the device has them as named_parameters: its own first.
        """
        if not is_placed:
            yield from self.own
        for child in self.children.values():
            yield from child.tensors(is_placed=is_placed)
        if is_placed:
            yield from self.own


def module_tree(names: Sequence[str], is_buffer: Sequence[bool], *, is_ordered: bool) -> Module:
    """Make the tree; where the list is sorted by name, siblings take a customary order."""
    root = Module()
    for number, name in enumerate(names):
        module = root
        for part in name.split(".", _MAX_DEPTH)[:-1]:
            module = module.children.setdefault(part, Module((*module.path, part)))
        module.own.append(number)
    _arrange(root, names, is_buffer, is_ordered=is_ordered)
    return root


def _is_numbered(paths: Sequence[tuple[str, ...]]) -> bool:
    """Return whether modules differ by numbers alone: containers of torch register theirs in order."""
    return len({_NUMBERED.sub("0", ".".join(path)) for path in paths}) == 1


def _is_torch_module(names: Sequence[str]) -> bool:
    """Return whether these are one module's tensors, with the names of torch's own: those have an order."""
    parts = [name.rpartition(".") for name in names]
    is_torchs = (name in _TORCH_TENSORS or _RECURRENT.match(name) for _, _, name in parts)
    return len({owner for owner, _, _ in parts}) == 1 and all(is_torchs)


def _arrange(module: Module, names: Sequence[str], is_buffer: Sequence[bool], *, is_ordered: bool) -> None:
    """Put parameters before buffers, and the siblings of a sorted list in a customary order."""
    if is_ordered:
        module.own.sort(key=lambda number: is_buffer[number])
    else:
        module.own.sort(key=lambda number: (is_buffer[number], _custom(names[number].rpartition(".")[2])))
        module.children = dict(sorted(module.children.items(), key=lambda item: _custom(item[0])))
    for child in module.children.values():
        _arrange(child, names, is_buffer, is_ordered=is_ordered)


def _custom(name: str) -> tuple[int, list[tuple[int, str]]]:
    """Return the customary place, then the name with its numbers counted, not spelled: 2 before 10."""
    if recurrent := _RECURRENT.match(name):
        kind, gate, layer, is_reverse = recurrent.groups()
        return 0, [(int(layer), ""), (len(is_reverse or ""), ""), (kind == "bias", ""), (gate != "ih", gate)]
    place = _CUSTOMARY_PLACE.get(name, len(_CUSTOMS))
    if _FIRST.search(name):
        place = -1
    elif _LAST.search(name):
        place = len(_CUSTOMS) + 1
    parts = _NUMBERED.split(name)
    return place, [(int(part) if part.isdecimal() and len(part) < 19 else -1, part) for part in parts]


@dataclass(frozen=True, slots=True)
class Listed:
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
    is_by_address: bool = False


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


@dataclass(frozen=True, slots=True)
class _Stretch:
    """Allocations from ``first`` up to ``end``; ``is_certain``: whose they are is.

    ``is_in_order``: their sizes stand in the list's order, which is the model's.
    """

    first: int
    end: int
    is_certain: bool
    is_in_order: bool = False


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
    """The stretches of all modules, of several windows the leftmost or the rightmost first."""

    def __init__(self, listed: Listed, rows: Int64Column, *, from_right: bool) -> None:
        self._listed, self._from_right = listed, from_right
        self._is_wanted = is_among(listed.sizes, rows)
        self.rows = np.flatnonzero(is_among(rows, listed.sizes))
        self._row_sizes = rows[self.rows]
        self._marks = _marks(listed.sizes)
        self._sums = np.concatenate((np.zeros(1, np.uint64), np.cumsum(_marks(self._row_sizes))))
        self.partner = np.full(len(self.rows), -1, np.int64)
        self.is_certain = np.zeros(len(self.rows), np.bool_)
        self.torn_bytes = 0
        if len(self.rows):
            self._place(self._parts([listed.tree]), _Stretch(0, len(self.rows), is_certain=True))

    def _parts(self, modules: Iterable[Module], *, is_torn: bool = False) -> Iterator[_Part]:
        """Yield the modules that have tensors of sizes that occur."""
        for module in modules:
            tensors = module.tensors(is_placed=self._listed.is_placed is not False)
            entries = np.fromiter(tensors, np.int64)
            entries = entries[self._is_wanted[entries]]
            if len(entries):
                mark = int(self._marks[entries].sum(dtype=np.uint64))
                yield _Part(module, entries, mark, int(self._listed.sizes[entries].sum()), is_torn)

    def _place(self, parts: Iterable[_Part], stretch: _Stretch) -> None:
        """Give the parts stretches within one, the largest first; then do the same within each."""
        groups: dict[tuple[int, int], list[_Part]] = {}
        order: list[tuple[int, tuple[int, int]]] = []
        windows: dict[int, tuple[UInt64Column, Int64Column]] = {}
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
            same_size = sorted(groups.pop(key), key=lambda part: int(part.entries.min()))
            found = self._stretches_of(same_size, stretch, self._free_windows(windows, stretch, *key))
            for part, inner in zip(same_size, found, strict=False):
                self._settle(part, inner)
            for part in same_size[len(found) :]:
                self.torn_bytes += part.n_bytes
                own += part.module.own
                for smaller in self._parts(part.module.children.values(), is_torn=True):
                    add(smaller)
        self._place_tensors(own, stretch, is_torn=True)

    def _settle(self, part: _Part, stretch: _Stretch) -> None:
        """Place what a module consists of within its stretch."""
        if len(part.entries) == 1:
            self.partner[stretch.first] = part.entries[0]
            self.is_certain[stretch.first] = stretch.is_certain
            return
        # Nothing else may take it, while it is worked on from the inside.
        self._place(self._parts(part.module.children.values()), stretch)
        self._place_tensors(part.module.own, stretch)

    def _free_windows(
        self, known: dict[int, tuple[UInt64Column, Int64Column]], stretch: _Stretch, length: int, mark: int
    ) -> list[int]:
        """Find where windows of free allocations with this mark begin, in order, overlapping ones too."""
        if length not in known:
            sums = self._sums[stretch.first : stretch.end + 1]
            marks = sums[length:] - sums[:-length] if length < len(sums) else sums[:0]
            order = np.argsort(marks, kind="stable")
            known[length] = marks[order], order + stretch.first
        marks, places = known[length]
        low, high = (int(np.searchsorted(marks, np.uint64(mark), side)) for side in ("left", "right"))
        return [p for p in places[low:high].tolist() if (self.partner[p : p + length] < 0).all()]

    def _stretches_of(self, same_size: list[_Part], stretch: _Stretch, places: list[int]) -> list[_Stretch]:
        """Choose a window for each of several modules with the same sizes, as far as there are any."""
        length, wanted = len(same_size[0].entries), self._listed.sizes[same_size[0].entries]
        if self._from_right:
            places.reverse()
        is_exact = {p: np.array_equal(self._row_sizes[p : p + length], wanted) for p in places}
        if self._listed.is_ordered or not same_size[0].module.children:
            # Where there is an order, of the list or of torch's own modules, it shows where a module begins.
            places.sort(key=lambda place: not is_exact[place])
        chosen = _apart(places, length, len(same_size))
        # Parts of what is nowhere as a whole have lost their order, and others may be in their places.
        is_certain = (
            stretch.is_certain
            and len(chosen) == len(same_size)
            and not any(part.is_torn for part in same_size)
            and (
                len(same_size) == 1
                or stretch.is_in_order
                or _is_numbered([part.module.path for part in same_size])
            )
        )
        return [
            _Stretch(first, first + length, is_certain, self._listed.is_ordered and is_exact[first])
            for first in chosen
        ]

    def _place_tensors(self, own: list[int], stretch: _Stretch, *, is_torn: bool = False) -> None:
        """Pair single tensors with what is left of a stretch, equal sizes in the order of both."""
        wanted: dict[int, list[int]] = {}
        for entry in own:
            if self._is_wanted[entry]:
                wanted.setdefault(int(self._listed.sizes[entry]), []).append(entry)
        if not wanted:
            return
        free = stretch.first + np.flatnonzero(self.partner[stretch.first : stretch.end] < 0)
        by_size: dict[int, list[int]] = {}
        for row in free.tolist():
            by_size.setdefault(int(self._row_sizes[row]), []).append(row)
        for size, same_size in wanted.items():
            rows = by_size.get(size, [])
            is_certain = (
                stretch.is_certain
                and len(rows) == len(same_size)
                and not is_torn
                and (
                    len(same_size) == 1
                    or stretch.is_in_order
                    or _is_torch_module([self._listed.names[entry] for entry in same_size])
                )
            )
            for entry, row in zip(same_size, rows, strict=False):
                self.partner[row], self.is_certain[row] = entry, is_certain


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
    """Give each size a number, so that sums distinguish multisets (the mixing of splitmix64)."""
    mixed = sizes.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))
