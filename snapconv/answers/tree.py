"""The live memory of a moment as a tree of calls, with the bytes of every line and its callees.

The lines are the project's, outermost first. What the tree is arranged by stands above them.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from operator import attrgetter

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.moments import FoundMoment
from snapconv.answers.peak import sums_by_name
from snapconv.answers.tree_levels import Path, find_levels
from snapconv.files import most_bytes_of_part
from snapconv.units import Device

# The bytes of a node's numbers as JSON. A stack may have very many frames, and many stacks the
# same: the bytes of a tree are bounded by those of its file.
_NODE_BYTES = 250


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

    ``by`` has levels of ``tree_levels``, outermost first, with commas between. Raises ValueError
    for levels that there are not.
    """
    live = analysis.allocations.live_at(moment.event)
    levels = find_levels(analysis, by, event=moment.event, all_frames=all_frames)
    sums = sums_by_name(
        analysis, live, lambda *groups: groups, *(level.group for level in levels)
    )
    tree = _Tree(most_bytes_of_part(analysis.snapshot.container.n_unpacked_bytes))
    # Largest first: what finds no room has the least memory.
    for groups in sorted(sums, key=lambda key: -sums[key].block_bytes):
        path: Path = ()
        for level, group in zip(levels, groups, strict=True):
            path += level.path(group)
        tree.add(path, sums[groups].block_bytes, sums[groups].n_allocations)
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

    def add(self, path: Path, n_bytes: int, n_blocks: int) -> None:
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
