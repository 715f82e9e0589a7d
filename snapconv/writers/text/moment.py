"""The memory of a moment for the terminal: its figures, and its largest part as a tree."""

from collections.abc import Iterator

from snapconv.answers.peak import DeviceMemory, MomentState, group_modules
from snapconv.answers.views.tree import MemoryTree
from snapconv.classification.categories import Evidence
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.units import counted, device_name, format_bytes
from snapconv.writers.text.size_rows import category_lines, names_in_a_line, project_shown, size_rows, where

OUTSIDE = "outside PyTorch (CUDA context, libraries)"


def moment_lines(state: MomentState) -> Iterator[str]:
    """Write the memory at a moment, line by line."""
    allocated = state.allocated_bytes
    yield f"{device_name(state.device)}  {state.moment}, {place_of(state)}"
    reserved = format_bytes(state.reserved_bytes)
    yield f"  allocated {format_bytes(allocated)} ({allocated} bytes), reserved {reserved}"
    pending = state.active_bytes - allocated
    if pending:
        yield f"  freed, but in use by a stream {format_bytes(pending)}"
    yield from outside_line(state.memory)
    if state.annotations:
        yield f"  inside {names_in_a_line(state.annotations, separator=' > ')}"
    yield from category_lines(state.summary_rows, allocated)
    yield f"  project lines, {project_shown(state.project_root, state.project_includes)}"
    rows = [(row.block_bytes, where(row.line)) for row in state.lines]
    yield from size_rows(rows, "line", like=allocated, rest=without_lines(state))
    if state.modules:
        has_paths = any(row.evidence == Evidence.METADATA.label for row in state.modules)
        yield "  modules" + ("" if has_paths else ", by the lines that call them")
        rows = [(group.block_bytes, group.label) for group in group_modules(state.modules)]
        yield from size_rows(rows, "module", like=allocated)
    if state.operations:
        yield "  operations"
        rows = [(row.block_bytes, _counted(row.operation, row.n_allocations)) for row in state.operations]
        yield from size_rows(rows, "operation", like=allocated)
    if len({row.pool for row in state.pools} - {None}) > 1 or len({row.stream for row in state.pools}) > 1:
        yield "  pools and streams"
        rows = [(row.block_bytes, f"{pool_shown(row.pool)}, stream {row.stream}") for row in state.pools]
        yield from size_rows(rows, "pool and stream", like=allocated)
    yield f"  history: {state.history_verdict}: {state.history_reason}"


def without_lines(state: MomentState) -> list[tuple[int, str]]:
    """Return the bytes that no line of the project made, by whether their stacks were recorded."""
    rest = state.allocated_bytes - sum(row.block_bytes for row in state.lines)
    return [(rest - state.no_stack_bytes, LIBRARY_ONLY), (state.no_stack_bytes, NO_STACK)]


def place_of(state: MomentState) -> str:
    """Where in the trace the moment is: its event, its iteration and its phase."""
    if state.event is None:
        return "before the first event" if state.n_events else "in a file without events"
    phase = "" if state.phase in (None, "unknown") else f", {state.phase}"
    return f"after event {state.event} of {state.n_events}: iteration {state.iteration}{phase}"


def outside_line(memory: DeviceMemory) -> Iterator[str]:
    """Say what of the device is not torch's, in a line; where that is not known, the line says so."""
    if memory.is_simulated:
        return
    whole = f" of {format_bytes(memory.total_bytes)}" if memory.total_bytes else ""
    if memory.outside_bytes is not None:
        when = "" if memory.free_bytes is not None else f", at event {memory.measured_event}"
        size = f"{format_bytes(memory.outside_bytes)}{whole}{when}"
    elif memory.at_most_bytes is not None:
        size = f"at most {format_bytes(memory.at_most_bytes)}{whole}"
    else:
        size = "not recorded; pass --device-total"
    yield f"  {OUTSIDE}: {size}"


def pool_shown(pool: tuple[int, int] | None) -> str:
    """Name a memory pool as people know it."""
    if pool is None:
        return "pool not known"
    return "default pool" if pool == (0, 0) else f"private pool {pool}"


def _counted(name: str, n_allocations: int) -> str:
    return f"{name}, {counted(n_allocations, 'allocation')}"


MOST_NODES = 30


def tree_lines(tree: MemoryTree, *, n_most: int = MOST_NODES) -> Iterator[str]:
    """Yield the largest nodes, each below the one that it is part of."""
    where = "" if tree.event is None else f", after event {tree.event}"
    allocated = format_bytes(tree.allocated_bytes)
    yield f"{device_name(tree.device)}  {allocated} at {tree.moment}{where}, by {tree.by}"
    if not tree.nodes:
        return
    yield f"  {'with below':>12} {'itself':>12} {'blocks':>7}"
    shown = tree.largest(n_most).nodes
    for node in shown:
        size = format_bytes(node.block_bytes, like=tree.allocated_bytes)
        itself = format_bytes(node.self_bytes, like=tree.allocated_bytes) if node.self_bytes else ""
        yield f"  {size:>12} {itself:>12} {node.n_blocks:>7}  {' ' * min(node.depth, 20)}{node.name}"
    if len(shown) < len(tree.nodes):
        by_size = sorted((node.block_bytes for node in tree.nodes), reverse=True)
        most = format_bytes(by_size[len(shown)], like=tree.allocated_bytes)
        n_all = len(tree.nodes)
        yield f"  {n_all - len(shown)} more of at most {most} each: --top {n_all} shows all"
    if tree.n_cut_stacks:
        stacks = counted(tree.n_cut_stacks, "stack")
        yield f"  of {stacks} the innermost lines are left out: all would be many times the size of the file"
