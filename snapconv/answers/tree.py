"""The live memory of a moment as a tree of calls: what every line, and all that it called, has allocated.

The lines are the project's, outermost first. By module, operation or category, these are the roots.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.moments import FoundMoment
from snapconv.answers.peak import sums_by_name
from snapconv.classification.categories import Category
from snapconv.files import most_bytes_of_part
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.stacks.stack_facts import WITHIN
from snapconv.torch_knowledge.operation_catalog import UNNAMED
from snapconv.units import Device, shortened

# A stack may have very many frames with long names, and many stacks the same: a tree is in
# proportion to the file. No real file comes near this; of a node, its numbers are that large as
# JSON.
_MOST_OF_NAME, _MOST_OF_MODULES = 200, 64
_NODE_BYTES = 250
NO_MODULE = "no module known"
_Path = tuple[str, ...]


@dataclass(slots=True)
class TreeNode:
    """One place in the tree: ``block_bytes`` and ``n_blocks`` with all below it, ``self_bytes`` without."""

    depth: int
    name: str
    block_bytes: int = 0
    self_bytes: int = 0
    n_blocks: int = 0


@dataclass(frozen=True, slots=True)
class MemoryTree:
    """The tree of one device at a moment; in ``nodes`` stands a node, then what is below it, largest first.

    A node's parent is the last node before it whose depth is one less. Nodes of depth 0 sum to the
    whole. ``n_cut_stacks`` stacks with little memory are cut, as the tree would be many times as
    large as
    the file:
    their memory counts for the last line that is left.
    """

    device: Device
    moment: str
    event: int | None
    by: str
    allocated_bytes: int
    project_root: str | None
    nodes: tuple[TreeNode, ...]
    n_cut_stacks: int = 0

    def largest(self, n_most: int | None) -> "MemoryTree":
        """Return the tree with its largest nodes alone; none is without the one that it is below."""
        if n_most is None:
            return self
        by_size = sorted(
            range(len(self.nodes)), key=lambda number: (-self.nodes[number].block_bytes, number)
        )
        return replace(self, nodes=tuple(self.nodes[number] for number in sorted(by_size[:n_most])))


def find_tree(
    analysis: DeviceAnalysis, moment: FoundMoment, *, by: str = "line", all_frames: bool = False
) -> MemoryTree:
    """Arrange what is live after a moment, by the project's frames, or with ``all_frames`` by all.

    Raises ValueError for levels that there are not.
    """
    live = analysis.allocations.live_at(moment.event)
    stacks = analysis.allocations.stack_id
    groups, path_of = _levels(analysis, by, _lines(analysis, all_frames=all_frames))
    by_stack = np.full(len(stacks), -1) if by == "module" else stacks
    sums = sums_by_name(analysis, live, lambda *key: key, groups, by_stack)
    tree = _Tree(most_bytes_of_part(analysis.snapshot.container.n_unpacked_bytes))
    for (group, stack), one in sorted(sums.items(), key=lambda item: -item[1].block_bytes):
        tree.add(path_of(group, stack), one.block_bytes, one.n_allocations)
    return MemoryTree(
        device=analysis.device.device,
        moment=moment.name,
        event=moment.event if moment.event >= 0 else None,
        by=by,
        allocated_bytes=tree.root.block_bytes,
        project_root=analysis.project.root,
        nodes=tuple(tree.nodes()),
        n_cut_stacks=tree.n_cut_stacks,
    )


class _Tree:
    """The whole tree, which takes new places as long as they have room."""

    def __init__(self, n_bytes: int) -> None:
        self.root = TreeNode(-1, "")
        self._below: dict[int, dict[str, TreeNode]] = defaultdict(dict)  # by the id of a node
        self._room = n_bytes
        self.n_cut_stacks = 0

    def add(self, path: _Path, n_bytes: int, n_blocks: int) -> None:
        """Count memory for every place on a path; without room, it is that of the last one there is."""
        way = [self.root]
        for name in path:
            below = self._below[id(way[-1])]
            if name not in below:
                self._room -= _NODE_BYTES + len(name)
                if self._room < 0 and len(way) > 1:
                    self.n_cut_stacks += 1
                    break
                below[name] = TreeNode(len(way) - 1, name)
            way.append(below[name])
        for place in way:
            place.block_bytes += n_bytes
            place.n_blocks += n_blocks
        way[-1].self_bytes += n_bytes

    def nodes(self) -> Iterator[TreeNode]:
        """All that is below it in order; without recursion, since stacks can be deep."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            if node is not self.root:
                yield node
            below = self._below.get(id(node), {}).values()
            waiting += sorted(below, key=lambda one: (one.block_bytes, one.name))


def _levels(
    analysis: DeviceAnalysis, by: str, lines: Callable[[int], _Path]
) -> tuple[NDArray[np.integer[Any]], Callable[[int, int], _Path]]:
    """Return a number for what every allocation is grouped by; and the names on the way to it and a stack."""
    names = analysis.modules.names
    operations = analysis.operations
    found = analysis.classification
    match by:
        case "line":
            return np.zeros(len(found.category), np.int64), lambda _, stack: lines(stack)
        case "module":
            ids = analysis.modules.module_id
            return ids, lambda group, _: _module_path(names[group]) if group >= 0 else (NO_MODULE,)
        case "operation":
            return analysis.operation_id, lambda group, stack: (
                operations[group] or UNNAMED,
                *lines(stack),
            )
        case "category":
            labels = [f"{one.label}{likely}" for one in Category for likely in ("", " (likely)")]
            codes = 2 * found.category.astype(np.int64) + found.is_likely
            return codes, lambda group, stack: (labels[group], *lines(stack))
    raise ValueError(f"expected line, module, operation or category, got {by!r}")


def _lines(analysis: DeviceAnalysis, *, all_frames: bool) -> Callable[[int], _Path]:
    """Return a function that gives the lines of a stack, outermost first."""
    frames = analysis.snapshot.stacks.frames
    project = analysis.project

    @cache
    def line(frame: int) -> str:
        number = int(frames.lines[frame])
        file = f"{project.relative_paths[frame][-_MOST_OF_NAME:]}{f':{number}' if number else ''}"
        function = shortened(frames.names[frame], _MOST_OF_NAME)
        return f"{file} in {function}" if file not in ("", "??") else function

    def lines(stack: int) -> _Path:
        ids = analysis.snapshot.stacks.frames_of(stack).tolist()[::-1]
        shown = [line(frame) for frame in ids if all_frames or project.is_project[frame]]
        return tuple(shown) or (LIBRARY_ONLY if ids else NO_STACK,)

    return lines


def _module_path(name: str) -> _Path:
    """Return the modules around a module, and itself: by the dots of its path, or the lines of its calls."""
    if ".py" in name:
        return tuple(shortened(part, _MOST_OF_NAME) for part in reversed(name.split(WITHIN)))
    parts = name.split(".", _MOST_OF_MODULES)
    return tuple(
        shortened(".".join(parts[: depth + 1]), _MOST_OF_NAME) for depth in range(len(parts))
    )
