"""A tree of memory for the terminal, its largest part, and as JSON-ready values."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from snapconv.answers.memory_tree import MemoryTree, TreeNode
from snapconv.units import counted, device_kind, device_name, format_bytes

MOST_NODES = 30
_WIDTH = 80


def tree_lines(tree: MemoryTree, *, n_most: int = MOST_NODES) -> Iterator[str]:
    """The largest nodes, each below the one that it is part of."""
    where = "" if tree.event is None else f", after event {tree.event}"
    allocated = format_bytes(tree.allocated_bytes)
    yield f"{device_name(tree.device)}  {allocated} at {tree.moment}{where}, by {tree.by}"
    if not tree.nodes:
        return
    yield f"  {'with below':>12} {'itself':>12} {'blocks':>7}"
    shown = _largest(tree.nodes, n_most)
    for number in shown:
        node = tree.nodes[number]
        size = format_bytes(node.block_bytes, like=tree.allocated_bytes)
        itself = format_bytes(node.self_bytes, like=tree.allocated_bytes) if node.self_bytes else ""
        head = f"  {size:>12} {itself:>12} {node.n_blocks:>7}  {' ' * min(node.depth, 20)}"
        yield head + _cut(node.name, _WIDTH - len(head))
    left_out = set(range(len(tree.nodes))) - set(shown)
    if left_out:
        largest = max(tree.nodes[number].block_bytes for number in left_out)
        most = format_bytes(largest, like=tree.allocated_bytes)
        yield f"  {len(left_out)} more of at most {most} each: --rows {len(tree.nodes)} shows all"
    if tree.n_cut_stacks:
        stacks = counted(tree.n_cut_stacks, "stack")
        yield f"  of {stacks} the innermost lines are left out: all would be many times the size of the file"


def _largest(nodes: Sequence[TreeNode], n_most: int) -> list[int]:
    """The positions of the largest nodes, in order; none without the one that it is part of."""
    by_size = sorted(range(len(nodes)), key=lambda number: (-nodes[number].block_bytes, number))
    return sorted(by_size[:n_most])


def _cut(name: str, width: int) -> str:
    return name if len(name) <= width else f"{name[: max(width - 1, 0)]}…"


def tree_values(tree: MemoryTree) -> dict[str, object]:
    """The same for machines, with every node."""
    return {"kind": device_kind(tree.device), **asdict(tree)}
