"""Memory at a moment for the terminal: verdict, figures, a tree, unused memory, conversions."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

from snapconv.answers.moments import FEW_EVENTS
from snapconv.answers.peak import (
    WAITING_LABEL,
    DeviceMemory,
    MomentState,
    PoolTotal,
    group_modules,
    pool_shown,
)
from snapconv.classification.categories import Evidence
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK, SourceLine
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
    line_shown,
    listed,
    next_line,
    position,
    project_shown,
    size_row,
    size_rows,
)

if TYPE_CHECKING:  # each command loads its own answer
    from snapconv.answers.fragmentation import (
        Fragmentation,
        FreeMemory,
        PoolMemory,
        SegmentHolder,
    )
    from snapconv.answers.memory_report import MemoryReport
    from snapconv.answers.times import IterationTimes, TimeReport, TimeTotal
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
# Rows that are left out where there is no such memory.
_WAITING, _PRIVATE = "waiting for a stream", "  empty in private pools"


def moment_lines(state: MomentState) -> Iterator[str]:
    """Write the memory at a moment, line by line."""
    allocated = state.allocated_bytes
    moment = "" if state.moment == f"event {state.event}" else f"{state.moment}: "
    yield f"{device_name(state.device)}  {moment}{trace_position(state)}"
    allocated_shown = curve_bytes("allocated", allocated, state.at_least)
    reserved_shown = curve_bytes("reserved", state.reserved_bytes, state.at_least)
    yield f"  allocated {allocated_shown} ({allocated} bytes), reserved {reserved_shown}"
    if state.waiting_bytes:
        yield f"  {WAITING_LABEL} {format_bytes(state.waiting_bytes)}"
    yield from outside_line(state.memory, state.device)
    if state.annotations:
        names = [shortened(name, _MOST_OF_NAME) for name in state.annotations]
        yield f"  inside {listed(names, MOST_ROWS, ' > ')}"
    yield from live_lines(state)
    rows = []
    for row in state.operations:
        n_allocations = counted(row.n_allocations, "allocation")
        rows.append((row.block_bytes, f"{row.operation}, {n_allocations}"))
    yield from size_rows(rows, "operation", title="operations")
    yield from _live_pool_lines(state.pools)
    yield f"  history: {state.history_verdict}: {state.history_reason}"


def _live_pool_lines(pools: Sequence[PoolTotal]) -> Iterator[str]:
    """Show what is live in every pool and stream, where there are several."""
    rows = [
        (row.block_bytes, f"{pool_shown(row.pool)}, stream {row.stream}") for row in pools
    ]
    known_pools = {row.pool for row in pools} - {None}
    streams = {row.stream for row in pools}
    if len(known_pools) > 1 or len(streams) > 1:
        yield from size_rows(rows, "pool and stream", title="pools and streams")


def live_lines(state: MomentState) -> Iterator[str]:
    """Show what is live by category, by line of the project, and by module or call path."""
    yield from category_lines(state.summary_rows, state.allocated_bytes)
    yield f"  project lines, {project_shown(state.project_root, state.project_includes)}"
    rows, sum_rows = line_rows(state)
    yield from size_rows(rows, "line", sum_rows=sum_rows)
    if len(state.modules) >= _LEAST_MODULES:
        kinds = {row.evidence == Evidence.METADATA.label for row in state.modules}
        noun = "module" if True in kinds else "call path"
        title = "modules and call paths" if len(kinds) > 1 else f"{noun}s"
        yield from size_rows(group_modules(state.modules), noun, title=title)


def line_rows(state: MomentState) -> tuple[list[tuple[int, str]], list[tuple[int, str]]]:
    """Return a row for every line of the project, and sums of the bytes that have no line."""
    allocated = Counter({row.line: row.block_bytes for row in state.lines})
    waiting = Counter({row.line: row.block_bytes for row in state.waiting_lines})
    rows = []
    for line in {**allocated, **waiting}:
        text = line_shown(line)
        if waiting[line]:
            text += f" ({format_bytes(waiting[line])} of it {WAITING_LABEL})"
        rows.append((allocated[line] + waiting[line], text))
    library_bytes = state.allocated_bytes - allocated.total() - state.no_stack_bytes
    sum_rows = [
        (library_bytes, LIBRARY_ONLY),
        (state.no_stack_bytes, NO_STACK),
        (state.waiting_bytes - waiting.total(), WAITING_LABEL),
    ]
    return sorted(rows, key=itemgetter(0), reverse=True), sum_rows


def trace_position(state: MomentState) -> str:
    """Name the moment's event, iteration and phase."""
    if state.event is None:
        return "before the first event" if state.n_events else "the file has no events"
    phase = "" if state.phase in (None, "unknown") else f", {state.phase}"
    iteration = optional(", iteration {}", state.iteration)
    return f"{position(state.event, state.n_events)}{iteration}{phase}"


def outside_line(memory: DeviceMemory, device: Device) -> Iterator[str]:
    """Show the device's memory outside PyTorch in a line, also if it is not known."""
    if memory.is_simulated or not backend_of_kind(device_kind(device)).monitor:
        return
    total = f" of {format_bytes(memory.total_bytes)}" if memory.total_bytes else ""
    if memory.outside_bytes is not None:
        measured_at = (
            "" if memory.free_bytes is not None else f", at event {memory.measured_event}"
        )
        size = f"{format_bytes(memory.outside_bytes)}{total}{measured_at}"
    elif memory.at_most_bytes is not None:
        size = f"at most {format_bytes(memory.at_most_bytes)}{total}"
    else:
        size = "not recorded; pass --device-total"
    yield f"  {_OUTSIDE.get(device_kind(device), _OUTSIDE_OTHERS)}: {size}"


def verdict_lines(verdict: "FileVerdict", file: str) -> Iterator[str]:
    """Show the verdict, the largest causes, and the next command."""
    yield f"{device_name(verdict.device)}  {verdict.sentence}"
    yield from (f"  {sentence}" for sentence in verdict.also)
    if verdict.causes:
        yield f"  the largest causes {verdict.moment}"
    for cause in verdict.causes:
        code = cause.library or line_shown(cause.line, has_stack=cause.has_stack)
        yield size_row(cause.block_bytes, f"{cause.purpose}, {code}")
    yield from history_lines(verdict.history_verdict)
    yield next_line(verdict.command, file, kind=device_kind(verdict.device))


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
        self_size = format_bytes(node.self_bytes) if node.self_bytes else ""
        name = f"{' ' * min(node.depth, 20)}{node.name}"
        yield f"  {total:>12} {self_size:>12} {node.n_blocks:>7}  {name}"
    if len(shown) < n_all:
        sizes = sorted(node.block_bytes for node in tree.nodes)
        largest_hidden = format_bytes(sizes[-len(shown) - 1])
        n_hidden = n_all - len(shown)
        yield f"  {n_hidden} more of at most {largest_hidden} each: --top {n_all} shows all"
    if tree.n_cut_stacks:
        stacks = counted(tree.n_cut_stacks, "stack")
        yield (
            f"  of {stacks} the innermost lines are left out: all would be many times "
            f"the size of the file"
        )


def fragmentation_lines(fragmentation: "Fragmentation", file: str) -> Iterator[str]:
    """Show the memory that is reserved and not in use, and what to do about it."""
    columns = fragmentation.moments
    has_trace = any(column.event is not None for column in columns)
    has_trace &= not fragmentation.n_conflicts
    if not has_trace:
        columns = columns[:1]
    yield f"{device_name(fragmentation.device)}  {fragmentation.conclusion}"
    yield from _unused_table(columns, has_trace=has_trace)
    yield from _pool_lines(fragmentation.pools, fragmentation.details_at)
    yield from _holder_lines(fragmentation.holders, fragmentation.details_at)
    if fragmentation.n_conflicts:
        is_dump = fragmentation.details_at == "the dump"
        shown = "only the dump is shown" if is_dump else "approximate"
        yield f"  the trace contradicts the segments: {shown}"
    if fragmentation.has_expandable:
        yield (
            "  estimated: where the pages of expandable segments lie, which "
            "empty_cache() returns whole"
        )
    yield from history_lines(fragmentation.history_verdict)
    last_event = max(column.event or 0 for column in fragmentation.moments)
    is_searchable = last_event >= FEW_EVENTS and not fragmentation.has_expandable
    if is_searchable and fragmentation.moments[0].enclosed_bytes:
        yield next_line("what-if --search", file)


def _unused_table(columns: "Sequence[FreeMemory]", *, has_trace: bool) -> Iterator[str]:
    """Show the figures of every moment in a column, and the line that waits for a stream."""
    if len(columns) > 1:
        heads = []
        for column in columns:
            head = column.moment.replace(
                "the moment with most unused memory", "most unused"
            )
            heads.append(head[: _COLUMN - 1])
        yield _row("", heads)
    for cells in zip(*map(_size_cells, columns), strict=True):
        label = cells[0][0]
        sizes = [n_bytes for _, n_bytes in cells]
        if any(sizes) or label not in (_WAITING, _PRIVATE):
            yield _row(label, map(format_bytes, sizes))
    if has_trace:
        events = ["start" if column.event is None else column.event for column in columns]
        yield _row("after event", events)
    for column in columns:
        for row in column.waiting_lines[:1]:
            waiting = f"{line_shown(row.line)}: {format_bytes(row.block_bytes)}"
            yield f"  waiting for a stream at {column.moment}, most of it of {waiting}"


def _size_cells(memory: "FreeMemory") -> tuple[tuple[str, int], ...]:
    """Return the column of a moment: the label of each row, and its bytes."""
    return (
        ("reserved", memory.reserved_bytes),
        ("allocated", memory.allocated_bytes),
        (_WAITING, memory.pending_bytes),
        ("free", memory.free_bytes),
        ("  empty_cache() returns", memory.returnable_bytes),
        (_PRIVATE, memory.private_bytes),
        ("  partly used segments", memory.enclosed_bytes),
        ("largest free block", memory.largest_free_bytes),
        ("rounding within blocks", memory.rounding_bytes),
    )


def _row(label: str, cells: Iterable[object]) -> str:
    return f"  {label:<{_LABEL - 2}}{''.join(f'{cell:>{_COLUMN}}' for cell in cells)}"


def _pool_lines(pools: "Sequence[PoolMemory]", moment: str) -> Iterator[str]:
    yield f"  free at {moment}, by pool and stream (which cannot share free memory)"
    rows = []
    for row in pools:
        if not row.free_bytes:
            continue
        size = "small" if row.is_small else "large"
        pool = "" if row.pool in (None, (0, 0)) else f"pool {row.pool}, "
        n_blocks = counted(row.n_pieces, "block")
        largest = format_bytes(row.largest_free_bytes)
        text = (
            f"{size} requests, {pool}stream {row.stream}: {n_blocks}, the largest {largest}"
        )
        rows.append((row.free_bytes, text))
    yield from size_rows(rows, "pool and stream", plural="pools and streams")


def _holder_lines(holders: "Sequence[SegmentHolder]", moment: str) -> Iterator[str]:
    rows = []
    for row in holders:
        size = format_bytes(row.block_bytes)
        segments = counted(row.n_segments, "segment")
        blocks = f"{row.n_blocks} blocks, {size} in all,"
        if row.n_blocks == 1:
            blocks = f"1 block of {size}"
        line = line_shown(row.line, has_stack=row.has_stack)
        rows.append((row.enclosed_bytes, f"{line}: {blocks} in {segments}"))
    title = f"stuck in partly used segments at {moment}, by the line that owns most of each"
    yield from size_rows(rows, "line", title=title)


def summary_lines(
    reports: "Sequence[tuple[Path, MemoryReport]]",
    time: "tuple[Path, TimeReport] | None" = None,
) -> Iterator[str]:
    """Yield the summary of all devices, and of the times where there are any, line by line."""
    for number, (path, report) in enumerate(reports):
        if number:
            yield ""
        peak = report.peak
        n_bytes = report.peak.allocated_bytes
        moment = "before the first event"
        if peak.event is not None:
            moment = position(peak.event, peak.n_events)
        allocated = curve_bytes("allocated", n_bytes, peak.at_least)
        yield f"{device_name(peak.device)}  peak allocated {allocated} ({n_bytes} bytes), {moment}"
        reserved = format_bytes(report.analysis.replay.reserved.peak)
        limit = "at least" if "reserved" in peak.at_least else "at most"
        yield f"  reserved {limit} {reserved}"
        yield from live_lines(peak)
        yield f"  history: {peak.history_verdict}: {peak.history_reason}"
        yield f"  written: {path.absolute()}"
    if time:
        yield ""
        yield from _time_lines(*time)


def _time_lines(path: Path, report: "TimeReport") -> Iterator[str]:
    times = report.reported
    phases = [
        f"{name} {_duration(ms)}" for name, ms in times.phases.items() if ms is not None
    ]
    n_iterations = counted(len(report.iterations), "timed iteration")
    timed = ", ".join(phases) or "nothing was timed"
    yield f"cuda:{report.timing.device}  {timed}, in iteration {times.measured.iteration}"
    yield f"  the median of {n_iterations}; {_coverage(times)}"
    yield "  operations, forward and backward"
    yield from _total_lines(report.operations)
    yield f"  project lines, {project_shown(report.project.root, report.project.includes)}"
    yield from _total_lines(report.lines)
    if not report.lines:
        yield "    none: no timed operation was called from a file of the project"
    yield f"  written: {path.absolute()}"


def _total_lines(
    totals: "Sequence[TimeTotal[str] | TimeTotal[SourceLine]]",
) -> Iterator[str]:
    for total in totals[:MOST_ROWS]:
        name = total.name if isinstance(total.name, str) else line_shown(total.name)
        yield f"  {_duration(total.total_ms):>14}  {name}, {counted(total.n_calls, 'call')}"


def _coverage(times: "IterationTimes") -> str:
    shares = [
        f"{100 * part:.1f} % of {phase}"
        for phase, part in times.coverage.items()
        if part is not None
    ]
    if not shares:
        return "what part of a phase its operations are is unknown"
    return f"its operations are {' and '.join(shares)}"


def _duration(ms: float) -> str:
    return format_duration_us(round(1000 * ms))
