"""The live memory of a moment as a tree of calls, with the bytes of every line and its callees.

The lines are the project's, outermost first. By module, operation or category, these are the roots.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate
from operator import attrgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.moments import FoundMoment
from snapconv.answers.peak import sums_by_name
from snapconv.classification.categories import Category
from snapconv.columns import unknown_column
from snapconv.files import most_bytes_of_part
from snapconv.stacks.paths import UNKNOWN_FILES
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.stacks.stack_facts import WITHIN
from snapconv.torch_knowledge.operation_catalog import UNNAMED
from snapconv.units import Device, optional, shortened

# Characters of a name, and modules around a module; no real file comes near.
_MOST_OF_NAME, _MOST_OF_MODULES = 200, 64
# The bytes of a node's numbers as JSON. A stack may have very many frames, and many stacks the
# same: the bytes of a tree are bounded by those of its file.
_NODE_BYTES = 250
NO_MODULE = "no module known"
_Path = tuple[str, ...]


@dataclass(slots=True)
class TreeNode:
    """A node: ``block_bytes`` and ``n_blocks`` count all below it, ``self_bytes`` do not."""

    depth: int
    name: str
    block_bytes: int = 0
    self_bytes: int = 0
    n_blocks: int = 0


@dataclass(frozen=True, slots=True)
class MemoryTree:
    """The tree of one device at a moment.

    In ``nodes`` stands a node, then the nodes below it, largest first. A node's parent is the last
    node before it whose depth is one less. Nodes of depth 0 sum to the whole. ``n_cut_stacks``
    stacks with little memory are cut, as the tree would be many times as large as the file: their
    memory counts for the last line that is left.
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
        """Return the tree with its largest nodes alone, none of them without its parent.

        A parent is at least as large as a node below it, and of equal nodes the first are kept.
        """
        if n_most is None:
            return self
        order = sorted(
            range(len(self.nodes)), key=lambda number: -self.nodes[number].block_bytes
        )
        return replace(
            self, nodes=tuple(self.nodes[number] for number in sorted(order[:n_most]))
        )


def find_tree(
    analysis: DeviceAnalysis,
    moment: FoundMoment,
    *,
    by: str = "line",
    all_frames: bool = False,
) -> MemoryTree:
    """Arrange what is live after a moment, by the project's frames, or with ``all_frames`` by all.

    Raises ValueError for levels that there are not.
    """
    live = analysis.allocations.live_at(moment.event)
    stacks = analysis.allocations.stack_id
    groups, path_of = _levels(analysis, by, _lines(analysis, all_frames=all_frames))
    if by == "module":
        # Its path has no lines: one sum for all its stacks is enough.
        stacks = unknown_column(len(stacks))
    sums = sums_by_name(analysis, live, lambda *keys: keys, groups, stacks)
    tree = _Tree(most_bytes_of_part(analysis.snapshot.container.n_unpacked_bytes))
    # Largest first: what finds no room has the least memory.
    for group, stack in sorted(sums, key=lambda key: -sums[key].block_bytes):
        total = sums[group, stack]
        tree.add(path_of(group, stack), total.block_bytes, total.n_allocations)
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
    """The tree, which takes new nodes up to a number of bytes."""

    def __init__(self, n_bytes: int) -> None:
        self.root = TreeNode(-1, "")
        # By the id() of a node, which has no hash: the nodes below it, by name.
        self._below: dict[int, dict[str, TreeNode]] = defaultdict(dict)
        self._remaining_bytes = n_bytes
        self.n_cut_stacks = 0

    def add(self, path: _Path, n_bytes: int, n_blocks: int) -> None:
        """Count memory for every node on a path.

        Where the tree is full, it counts for the nodes that there are, and for a new node of depth
        0: there the whole memory is.
        """
        nodes = [self.root]
        for depth, name in enumerate(path):
            below = self._below[id(nodes[-1])]
            if name not in below:
                self._remaining_bytes -= _NODE_BYTES + len(name)
                if self._remaining_bytes < 0 and depth > 0:
                    self.n_cut_stacks += 1
                    break
                below[name] = TreeNode(depth, name)
            nodes.append(below[name])
        for node in nodes:
            node.block_bytes += n_bytes
            node.n_blocks += n_blocks
        nodes[-1].self_bytes += n_bytes

    def nodes(self) -> Iterator[TreeNode]:
        """Yield all nodes in order; without recursion, since stacks can be deep."""
        waiting = [self.root]
        while waiting:
            node = waiting.pop()
            if node is not self.root:
                yield node
            below = self._below.get(id(node), {}).values()
            waiting += sorted(below, key=attrgetter("block_bytes", "name"))


def _levels(
    analysis: DeviceAnalysis, by: str, lines: Callable[[int], _Path]
) -> tuple[NDArray[np.integer[Any]], Callable[[int, int], _Path]]:
    """Return the group of every allocation, and a function: group and stack -> path."""
    names = analysis.modules.names
    operations = analysis.operations
    classification = analysis.classification

    def line_path(group: int, stack: int) -> _Path:
        return lines(stack)

    def module_path(group: int, stack: int) -> _Path:
        return _module_path(names[group]) if group >= 0 else (NO_MODULE,)

    def operation_path(group: int, stack: int) -> _Path:
        return operations[group] or UNNAMED, *lines(stack)

    def category_path(group: int, stack: int) -> _Path:
        code, is_likely = divmod(group, 2)
        certainty = " (likely)" if is_likely else ""
        return f"{Category(code).label}{certainty}", *lines(stack)

    match by:
        case "line":
            return np.zeros(len(classification.category), np.int64), line_path
        case "module":
            return analysis.modules.module_id, module_path
        case "operation":
            return analysis.operation_id, operation_path
        case "category":
            codes = 2 * classification.category.astype(np.int64) + classification.is_likely
            return codes, category_path
    raise ValueError(f"expected line, module, operation or category, got {by!r}")


def _lines(analysis: DeviceAnalysis, *, all_frames: bool) -> Callable[[int], _Path]:
    """Return a function that gives the lines of a stack, outermost first."""
    frames = analysis.snapshot.stacks.frames
    project = analysis.project

    @cache
    def line(frame: int) -> str:
        function = shortened(frames.names[frame], _MOST_OF_NAME)
        path = project.relative_paths[frame]
        number = int(frames.lines[frame])
        if path in UNKNOWN_FILES and not number:
            return function
        # The end of a path says most.
        file = path[-_MOST_OF_NAME:]
        return f"{file}{optional(':{}', number or None)} in {function}"

    def lines(stack: int) -> _Path:
        ids = analysis.snapshot.stacks.frames_of(stack).tolist()[::-1]
        shown = [line(frame) for frame in ids if all_frames or project.is_project[frame]]
        return tuple(shown) or (LIBRARY_ONLY if ids else NO_STACK,)

    return lines


def _module_path(name: str) -> _Path:
    """Return the modules around a module, and itself.

    They follow from the dots of its path. A module of unknown path has the lines of its calls for a
    name.
    """
    is_of_lines = ".py" in name
    if is_of_lines:
        modules = name.split(WITHIN)[::-1]
    else:
        modules = list(accumulate(name.split(".", _MOST_OF_MODULES), "{}.{}".format))
    return tuple(shortened(module, _MOST_OF_NAME) for module in modules)
