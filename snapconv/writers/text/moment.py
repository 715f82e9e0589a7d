"""Memory at a moment for the terminal: verdict, figures, a tree, unused memory; what conversions print."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from snapconv.answers.moments import FEW_EVENTS
from snapconv.answers.peak import WAITING_LABEL, DeviceMemory, MomentState, group_modules
from snapconv.classification.categories import Evidence
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.torch_knowledge.backends import backend_of_kind
from snapconv.units import (
    Device,
    counted,
    curve_bytes,
    device_kind,
    device_name,
    format_bytes,
    format_duration_us,
    optional,
    shortened,
)
from snapconv.writers.text.size_rows import (
    MOST_ROWS,
    category_lines,
    history_lines,
    next_line,
    position,
    project_shown,
    size_row,
    size_rows,
    where,
)

if TYPE_CHECKING:  # each command loads its own answer
    from snapconv.answers.fragmentation import Fragmentation, PoolMemory, SegmentHolder
    from snapconv.answers.memory_report import MemoryReport
    from snapconv.answers.times import IterationTimes, TimeReport
    from snapconv.answers.tree import MemoryTree
    from snapconv.answers.verdict import FileVerdict

_OUTSIDE = {"cuda": "outside PyTorch (CUDA context, libraries)"}
_OUTSIDE_OTHERS = "outside PyTorch (the device's context, libraries)"
# A single line that calls the model adds nothing to the lines of the project.
_LEAST_MODULES = 2
MOST_NODES = 30
_MOST_OF_NAME = 60
_LABEL = 26
_COLUMN = 13
_ROWS = (
    ("reserved", "reserved_bytes"),
    ("allocated", "allocated_bytes"),
    ("waiting for a stream", "pending_bytes"),
    ("free", "free_bytes"),
    ("  empty_cache() returns", "returnable_bytes"),
    ("  empty in private pools", "private_bytes"),
    ("  partly used segments", "enclosed_bytes"),
    ("largest free block", "largest_free_bytes"),
    ("rounding within blocks", "rounding_bytes"),
)
_MAY_BE_NOTHING = {"private_bytes", "pending_bytes"}
_SHOWN = ("allocated", "reserved")


def moment_lines(state: MomentState) -> Iterator[str]:
    """Write the memory at a moment, line by line."""
    allocated = state.allocated_bytes
    moment = "" if state.moment == f"event {state.event}" else f"{state.moment}: "
    yield f"{device_name(state.device)}  {moment}{place_of(state)}"
    shown, reserved = (
        curve_bytes(name, getattr(state, f"{name}_bytes"), state.at_least) for name in _SHOWN
    )
    yield f"  allocated {shown} ({allocated} bytes), reserved {reserved}"
    if state.waiting_bytes:
        yield f"  {WAITING_LABEL} {format_bytes(state.waiting_bytes)}"
    yield from outside_line(state.memory, state.device)
    if state.annotations:
        names = [shortened(name, _MOST_OF_NAME) for name in state.annotations[:MOST_ROWS]]
        more = len(state.annotations) - len(names)
        yield f"  inside {' > '.join(names)}{f' and {more} more' if more else ''}"
    yield from live_lines(state)
    rows = [
        (row.block_bytes, f"{row.operation}, {counted(row.n_allocations, 'allocation')}")
        for row in state.operations
    ]
    yield from size_rows(rows, "operation", title="operations")
    if (
        len({row.pool for row in state.pools} - {None}) > 1
        or len({row.stream for row in state.pools}) > 1
    ):
        rows = [
            (row.block_bytes, f"{pool_shown(row.pool)}, stream {row.stream}") for row in state.pools
        ]
        yield from size_rows(rows, "pool and stream", title="pools and streams")
    yield f"  history: {state.history_verdict}: {state.history_reason}"


def live_lines(state: MomentState) -> Iterator[str]:
    """Show what is live by category, by line of the project, and by module or the lines that call these."""
    allocated = state.allocated_bytes
    yield from category_lines(state.summary_rows, allocated)
    yield f"  project lines, {project_shown(state.project_root, state.project_includes)}"
    rows, rest = rows_by_line(state)
    yield from size_rows(rows, "line", rest=rest)
    if len(state.modules) >= _LEAST_MODULES:
        has_paths = any(row.evidence == Evidence.METADATA.label for row in state.modules)
        noun = "module" if has_paths else "call path"
        yield from size_rows(group_modules(state.modules), noun, title=f"{noun}s")


def rows_by_line(state: MomentState) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return the bytes of every line of the project, and of what has none: allocated, or waiting."""
    sums, waits = (
        Counter({row.line: row.block_bytes for row in rows})
        for rows in (state.lines, state.waiting_lines)
    )
    rows = []
    for line in {**sums, **waits}:
        waiting = f" ({format_bytes(waits[line])} of it {WAITING_LABEL})" if waits[line] else ""
        rows.append((sums[line] + waits[line], f"{where(line)}{waiting}"))
    rest = [
        (state.allocated_bytes - sums.total() - state.no_stack_bytes, LIBRARY_ONLY),
        (state.no_stack_bytes, NO_STACK),
        (state.waiting_bytes - waits.total(), WAITING_LABEL),
    ]
    return sorted(rows, key=itemgetter(0), reverse=True), rest


def place_of(state: MomentState) -> str:
    """Where in the trace the moment is: its event, its iteration and its phase."""
    if state.event is None:
        return "before the first event" if state.n_events else "the file has no events"
    phase = "" if state.phase in (None, "unknown") else f", {state.phase}"
    iteration = optional(", iteration {}", state.iteration)
    return f"{position(state.event, state.n_events)}{iteration}{phase}"


def outside_line(memory: DeviceMemory, device: Device) -> Iterator[str]:
    """Say what of the device is not torch's, in a line; where that is not known, the line says so."""
    if memory.is_simulated or not backend_of_kind(device_kind(device)).monitor:
        return
    whole = f" of {format_bytes(memory.total_bytes)}" if memory.total_bytes else ""
    if memory.outside_bytes is not None:
        when = "" if memory.free_bytes is not None else f", at event {memory.measured_event}"
        size = f"{format_bytes(memory.outside_bytes)}{whole}{when}"
    elif memory.at_most_bytes is not None:
        size = f"at most {format_bytes(memory.at_most_bytes)}{whole}"
    else:
        size = "not recorded; pass --device-total"
    yield f"  {_OUTSIDE.get(device_kind(device), _OUTSIDE_OTHERS)}: {size}"


def pool_shown(pool: tuple[int, int] | None) -> str:
    """Name a memory pool as people know it."""
    if pool is None:
        return "pool not known"
    return "default pool" if pool == (0, 0) else f"private pool {pool}"


def verdict_lines(found: "FileVerdict", file: str) -> Iterator[str]:
    """Show the verdict, the largest causes, and the next command."""
    yield f"{device_name(found.device)}  {found.sentence}"
    yield from (f"  {sentence}" for sentence in found.also)
    if found.causes:
        yield f"  the largest causes {found.moment}"
    for cause in found.causes:
        place = cause.library or where(cause.line, has_stack=cause.has_stack)
        yield size_row(cause.block_bytes, f"{cause.purpose}, {place}")
    yield from history_lines(found.history_verdict)
    yield next_line(found.command, file, kind=device_kind(found.device))


def tree_lines(tree: "MemoryTree", *, n_most: int = MOST_NODES) -> Iterator[str]:
    """Yield the largest nodes, each below the one that it is part of."""
    after = optional(" (event {})", tree.event)
    n_all = len(tree.nodes)
    allocated = f"{format_bytes(tree.allocated_bytes)} allocated at {tree.moment}{after}"
    yield f"{device_name(tree.device)}  {allocated}, by {tree.by}"
    if not tree.nodes:
        return
    yield f"  {'total':>12} {'own':>12} {'blocks':>7}"
    shown = tree.largest(n_most).nodes
    for node in shown:
        total = format_bytes(node.block_bytes)
        own = format_bytes(node.self_bytes) if node.self_bytes else ""
        yield f"  {total:>12} {own:>12} {node.n_blocks:>7}  {' ' * min(node.depth, 20)}{node.name}"
    if len(shown) < n_all:
        most = format_bytes(sorted(node.block_bytes for node in tree.nodes)[-len(shown) - 1])
        yield f"  {n_all - len(shown)} more of at most {most} each: --top {n_all} shows all"
    if tree.n_cut_stacks:
        stacks = counted(tree.n_cut_stacks, "stack")
        yield (
            f"  of {stacks} the innermost lines are left out: all would be many times the size "
            f"of the file"
        )


def fragmentation_lines(found: "Fragmentation", file: str) -> Iterator[str]:
    """Show the memory that is reserved and not in use, and what to do about it."""
    has_trace = any(column.event is not None for column in found.moments) and not found.n_conflicts
    columns = found.moments if has_trace else found.moments[:1]
    yield f"{device_name(found.device)}  {found.conclusion}"
    if len(columns) > 1:
        names = [
            one.moment.replace("the moment with most unused memory", "most unused")
            for one in columns
        ]
        yield _row("", [name[: _COLUMN - 1] for name in names])
    for label, name in _ROWS:
        values = [getattr(column, name) for column in columns]
        if any(values) or name not in _MAY_BE_NOTHING:
            yield _row(label, map(format_bytes, values))
    if has_trace:
        yield _row("after event", ["start" if one.event is None else one.event for one in columns])
    for column in columns:
        for row in column.waiting_lines[:1]:
            waiting = f"{where(row.line)}: {format_bytes(row.block_bytes)}"
            yield f"  waiting for a stream at {column.moment}, most of it of {waiting}"
    yield from _pool_lines(found.pools, found.details_at)
    yield from _holder_lines(found.holders, found.details_at)
    if found.n_conflicts:
        conflicts = counted(
            found.n_conflicts, "event or block contradicts", "events or blocks contradict"
        )
        shown = "only the dump is shown" if found.details_at == "the dump" else "approximate"
        yield f"  {conflicts} the segments: {shown}"
    if found.has_expandable:
        yield (
            "  estimated: where the pages of expandable segments lie, which empty_cache() "
            "returns whole"
        )
    yield from history_lines(found.history_verdict)
    has_events = any((one.event or 0) >= FEW_EVENTS for one in found.moments)
    if found.moments[0].enclosed_bytes and not found.has_expandable and has_events:
        yield next_line("what-if --search", file)


def _row(label: str, cells: Iterable[object]) -> str:
    return f"  {label:<{_LABEL - 2}}{''.join(f'{cell:>{_COLUMN}}' for cell in cells)}"


def _pool_lines(pools: "Sequence[PoolMemory]", moment: str) -> Iterator[str]:
    yield f"  free at {moment}, by pool and stream (which cannot share free memory)"
    pools = [row for row in pools if row.free_bytes]
    rows = []
    for row in pools:
        size = "small" if row.is_small else "large"
        blocks = (
            f"{counted(row.n_pieces, 'block')}, the largest {format_bytes(row.largest_free_bytes)}"
        )
        pool = "" if row.pool in (None, (0, 0)) else f"pool {row.pool}, "
        rows.append((row.free_bytes, f"{size} requests, {pool}stream {row.stream}: {blocks}"))
    yield from size_rows(rows, "pool and stream", plural="pools and streams")


def _holder_lines(holders: "Sequence[SegmentHolder]", moment: str) -> Iterator[str]:
    rows = []
    for row in holders:
        size = format_bytes(row.block_bytes)
        segments = counted(row.n_segments, "segment")
        blocks = (
            f"1 block of {size}" if row.n_blocks == 1 else f"{row.n_blocks} blocks, {size} in all,"
        )
        rows.append(
            (
                row.enclosed_bytes,
                f"{where(row.line, has_stack=row.has_stack)}: {blocks} in {segments}",
            )
        )
    title = f"stuck in partly used segments at {moment}, by the line that owns most of each"
    yield from size_rows(rows, "line", title=title)


def summary_lines(
    reports: "Sequence[tuple[Path, MemoryReport]]", time: "tuple[Path, TimeReport] | None" = None
) -> Iterator[str]:
    """Yield the summary of all devices, and of the times where there are any, line by line."""
    for number, (path, report) in enumerate(reports):
        yield from [""] * bool(number)
        peak = report.peak
        n_bytes = report.peak.allocated_bytes
        place = (
            "before the first event" if peak.event is None else position(peak.event, peak.n_events)
        )
        allocated = curve_bytes("allocated", n_bytes, peak.at_least)
        yield f"{device_name(peak.device)}  peak allocated {allocated} ({n_bytes} bytes), {place}"
        most = format_bytes(report.analysis.replay.reserved.peak)
        yield f"  reserved {'at least' if 'reserved' in peak.at_least else 'at most'} {most}"
        yield from live_lines(peak)
        yield f"  history: {peak.history_verdict}: {peak.history_reason}"
        yield f"  written: {path.absolute()}"
    if time:
        yield ""
        yield from _time_lines(*time)


def _time_lines(path: Path, report: "TimeReport") -> Iterator[str]:
    times = report.reported
    phases = [f"{name} {_duration(ms)}" for name, ms in times.phases.items() if ms is not None]
    n_iterations = counted(len(report.iterations), "timed iteration")
    timed = ", ".join(phases) or "nothing was timed"
    yield f"cuda:{report.timing.device}  {timed}, in iteration {times.measured.iteration}"
    yield f"  the median of {n_iterations}; {_coverage(times)}"
    yield "  operations, forward and backward"
    for total in report.operations[:MOST_ROWS]:
        yield f"  {_duration(total.total_ms):>14}  {total.name}, {counted(total.n_calls, 'call')}"
    yield f"  project lines, {project_shown(report.project.root, report.project.includes)}"
    for row in report.lines[:MOST_ROWS]:
        yield f"  {_duration(row.total_ms):>14}  {where(row.name)}, {counted(row.n_calls, 'call')}"
    if not report.lines:
        yield "    none: no timed operation was called from a file of the project"
    yield f"  written: {path.absolute()}"


def _coverage(times: "IterationTimes") -> str:
    shares = [
        f"{100 * part:.1f} % of {phase}"
        for phase, part in times.coverage.items()
        if part is not None
    ]
    known = f"its operations are {' and '.join(shares)}"
    return known if shares else "what part of a phase its operations are is unknown"


def _duration(ms: float) -> str:
    return format_duration_us(round(1000 * ms))
