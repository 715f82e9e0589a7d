"""One moment of a device for the terminal, and as JSON-ready values."""

from collections.abc import Iterator
from dataclasses import asdict

from snapconv.answers.device_memory import DeviceMemory
from snapconv.answers.peak import MomentState, group_modules
from snapconv.units import counted, device_kind, device_name, format_bytes
from snapconv.writers.text.category_lines import category_lines
from snapconv.writers.text.size_rows import names_in_a_line, project_shown, size_rows, where

NOT_IN_FILE = "not in this file (context, libraries)"


def moment_lines(state: MomentState) -> Iterator[str]:
    """The memory at a moment, line by line."""
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
    yield from category_lines(state.categories, allocated)
    yield f"  project lines, {project_shown(state.project_root, state.project_includes)}"
    rest = allocated - sum(row.block_bytes for row in state.lines)
    rows = [(row.block_bytes, where(row.line)) for row in state.lines]
    yield from size_rows(rows, "line", like=allocated, rest=(rest, "without a line of the project"))
    if state.modules:
        yield "  modules"
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
    yield f"  history: {state.history_verdict} ({state.history_reason})"


def place_of(state: MomentState) -> str:
    """Where in the trace the moment is: its event, its iteration and its phase."""
    if state.event is None:
        return "before the first event" if state.n_events else "the file has no events"
    phase = "" if state.phase in (None, "unknown") else f", {state.phase}"
    return f"after event {state.event} of {state.n_events}: iteration {state.iteration}{phase}"


def outside_line(memory: DeviceMemory) -> Iterator[str]:
    """What of the device is not torch's, in a line; where that is not known, the line says so."""
    if memory.is_simulated:
        return
    whole = f" of {format_bytes(memory.total_bytes)}" if memory.total_bytes else ""
    if memory.outside_bytes is not None:
        when = "" if memory.free_bytes is not None else f", at event {memory.measured_event}"
        size = f"{format_bytes(memory.outside_bytes)}{whole}{when}"
    elif memory.at_most_bytes is not None:
        size = f"at most {format_bytes(memory.at_most_bytes)}{whole}"
    else:
        size = "not known without --device-total"
    yield f"  {NOT_IN_FILE}: {size}"


def pool_shown(pool: tuple[int, int] | None) -> str:
    """A memory pool as people know it."""
    if pool is None:
        return "pool not known"
    return "default pool" if pool == (0, 0) else f"private pool {pool}"


def moment_values(state: MomentState) -> dict[str, object]:
    """The same for machines."""
    return {"kind": device_kind(state.device), **asdict(state)}


def _counted(name: str, n_allocations: int) -> str:
    return f"{name}, {counted(n_allocations, 'allocation')}"
