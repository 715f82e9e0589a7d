"""The live memory of a moment as a tree of calls: what every line, and all that it called, has allocated.

The lines are the project's, outermost first. By module, operation or category, these are the roots.
"""

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import Enum

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.category_totals import codes_with_likely, label_with_likely
from snapconv.answers.moments import FoundMoment
from snapconv.columns import Int64Column, sums_by
from snapconv.files import most_bytes_of_part
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.stacks.stack_facts import WITHIN
from snapconv.torch_knowledge.operation_catalog import UNNAMED
from snapconv.units import device_kind, shortened

# A stack may have very many frames with long names, and many stacks the same: a tree is in proportion to the
# file. No real file comes near this; of a node, its numbers are that large as JSON.
_MOST_OF_NAME, _MOST_OF_MODULES = 200, 64
_NODE_BYTES = 250
NO_MODULE = "no module known"


class TreeBy(Enum):
    """What the tree's levels are."""

    LINE = "line"
    MODULE = "module"
    OPERATION = "operation"
    CATEGORY = "category"


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One place in the tree: ``block_bytes`` and ``n_blocks`` with all below it, ``self_bytes`` without."""

    depth: int
    name: str
    block_bytes: int
    self_bytes: int
    n_blocks: int


@dataclass(frozen=True, slots=True)
class MemoryTree:
    """The tree of one device at a moment; in ``nodes`` stands a node, then what is below it, largest first.

    A node is below the last one before it with a depth of one less. Those of depth 0 sum to the whole. Of
    ``n_cut_stacks`` stacks with little memory the innermost lines are left out, which would be many times the
    file's size; their memory is that of the last line that is there.
    """

    device: int
    moment: str
    event: int | None
    by: str
    allocated_bytes: int
    project_root: str | None
    nodes: tuple[TreeNode, ...]
    n_cut_stacks: int = 0

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values, with every node."""
        return {"kind": device_kind(self.device), **asdict(self)}

    def largest(self, n_most: int | None) -> "MemoryTree":
        """Return the tree with its largest nodes alone; none is without the one that it is below."""
        if n_most is None:
            return self
        by_size = sorted(range(len(self.nodes)), key=lambda number: (-self.nodes[number].block_bytes, number))
        return replace(self, nodes=tuple(self.nodes[number] for number in sorted(by_size[:n_most])))


def find_tree(
    analysis: DeviceAnalysis,
    moment: FoundMoment,
    *,
    by: TreeBy = TreeBy.LINE,
    all_frames: bool = False,
) -> MemoryTree:
    """Arrange what is live after a moment, by the project's frames, or with ``all_frames`` by all."""
    rows = np.flatnonzero(analysis.allocations.live_at(moment.event))
    root = _Root(most_bytes_of_part(analysis.snapshot.container.n_unpacked_bytes))
    path_of = _paths(analysis, by, all_frames=all_frames)
    for group, stack, n_bytes, n_blocks in sorted(_sums(analysis, rows, by), key=lambda one: -one[2]):
        root.add(path_of(group, stack), n_bytes, n_blocks)
    return MemoryTree(
        device=analysis.device.device,
        moment=moment.name,
        event=moment.event if moment.event >= 0 else None,
        by=by.value,
        allocated_bytes=root.block_bytes,
        project_root=analysis.project.root,
        nodes=tuple(root.nodes()),
        n_cut_stacks=root.n_cut_stacks,
    )


class _Place:
    """A node while the tree is built."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.block_bytes = self.self_bytes = self.n_blocks = 0
        self.below: dict[str, _Place] = {}

    def nodes(self) -> Iterator[TreeNode]:
        """All that is below it in order; without recursion, since stacks can be deep."""
        waiting = [(0, place) for place in self._sorted()]
        while waiting:
            depth, place = waiting.pop()
            yield TreeNode(depth, place.name, place.block_bytes, place.self_bytes, place.n_blocks)
            waiting += [(depth + 1, below) for below in place._sorted()]

    def count(self, n_bytes: int, n_blocks: int) -> None:
        """Count memory that is at this place or below it."""
        self.block_bytes += n_bytes
        self.n_blocks += n_blocks

    def _sorted(self) -> list["_Place"]:
        """Return the places right below it, smallest first."""
        return sorted(self.below.values(), key=lambda place: (place.block_bytes, place.name))


class _Root(_Place):
    """The whole tree, which takes new places as long as they have room."""

    def __init__(self, n_bytes: int) -> None:
        super().__init__("")
        self._room = n_bytes
        self.n_cut_stacks = 0

    def add(self, path: tuple[str, ...], n_bytes: int, n_blocks: int) -> None:
        """Count memory for every place on a path; without room, it is that of the last one there is."""
        place: _Place = self
        place.count(n_bytes, n_blocks)
        for name in path:
            if name not in place.below:
                self._room -= _NODE_BYTES + len(name)
                if self._room < 0 and place is not self:
                    self.n_cut_stacks += 1
                    break
                place.below[name] = _Place(name)
            place = place.below[name]
            place.count(n_bytes, n_blocks)
        place.self_bytes += n_bytes


def _sums(analysis: DeviceAnalysis, rows: Int64Column, by: TreeBy) -> Iterator[tuple[int, int, int, int]]:
    """Bytes and blocks of every pair of a group (what the tree is by) and a stack."""
    stack = analysis.allocations.stack_id[rows].astype(np.int64)
    group = np.zeros(len(rows), np.int64)
    if by is TreeBy.MODULE:
        group, stack = analysis.modules.module_id[rows].astype(np.int64), np.full(len(rows), -1, np.int64)
    elif by is TreeBy.OPERATION:
        group = analysis.operation_id[rows].astype(np.int64)
    elif by is TreeBy.CATEGORY:
        group = codes_with_likely(analysis.classification)[rows]
    pairs, inverse = np.unique(np.stack((group, stack)), axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    n_bytes = sums_by(inverse, analysis.allocations.block_bytes[rows], pairs.shape[1])
    counts = np.bincount(inverse, minlength=pairs.shape[1])
    yield from zip(pairs[0].tolist(), pairs[1].tolist(), n_bytes.tolist(), counts.tolist(), strict=True)


def _paths(
    analysis: DeviceAnalysis, by: TreeBy, *, all_frames: bool
) -> Callable[[int, int], tuple[str, ...]]:
    """Return a function that gives the names on the way to a group and a stack, outermost first."""
    names: dict[int, str] = {}
    frames = analysis.snapshot.stacks.frames

    def line(frame: int) -> str:
        if frame not in names:
            number = int(frames.lines[frame])
            file = (
                f"{analysis.project.relative_paths[frame][-_MOST_OF_NAME:]}{f':{number}' if number else ''}"
            )
            function = shortened(frames.names[frame], _MOST_OF_NAME)
            names[frame] = f"{file} in {function}" if file not in ("", "??") else function
        return names[frame]

    def lines(stack: int) -> tuple[str, ...]:
        if stack < 0:
            return (NO_STACK,)
        ids = analysis.snapshot.stacks.frames_of(stack).tolist()[::-1]
        shown = [line(frame) for frame in ids if all_frames or analysis.project.is_project[frame]]
        return tuple(shown) or (LIBRARY_ONLY if ids else NO_STACK,)

    def path(group: int, stack: int) -> tuple[str, ...]:
        if by is TreeBy.MODULE:
            return _module_path(analysis.modules.names[group]) if group >= 0 else (NO_MODULE,)
        if by is TreeBy.OPERATION:
            return analysis.operations[group] or UNNAMED, *lines(stack)
        if by is TreeBy.CATEGORY:
            return label_with_likely(group), *lines(stack)
        return lines(stack)

    return path


def _module_path(name: str) -> tuple[str, ...]:
    """Return the modules around a module, and itself: by the dots of its path, or the lines of its calls."""
    if ".py" in name:
        return tuple(shortened(part, _MOST_OF_NAME) for part in reversed(name.split(WITHIN)))
    parts = name.split(".", _MOST_OF_MODULES)
    return tuple(shortened(".".join(parts[: depth + 1]), _MOST_OF_NAME) for depth in range(len(parts)))
