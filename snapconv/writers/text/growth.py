"""Lines of text for ``snapconv growth``."""

from collections.abc import Iterator, Sequence

from snapconv.answers.growth import (
    N_PARTS,
    Fate,
    Growth,
    GrowthReport,
    Trend,
    UnfreedLine,
    bytes_per_iteration,
)
from snapconv.stacks.project_lines import LIBRARY_ONLY
from snapconv.units import counted, device_name, format_bytes
from snapconv.writers.text.size_rows import line_shown, most_rows, next_line, size_rows

_N_LINES = 8
_N_CALLERS = 3
_TRENDS = (
    (
        Trend.GROWS,
        "kept growing to the end of the trace: a leak, a cache that is not full yet, "
        "or reference cycles (gc.collect() frees these)",
    ),
    (
        Trend.WAITS,
        (
            "results of the forward pass in which the trace ends, which may wait for a "
            "backward pass: record three steps"
        ),
    ),
    (Trend.UNKNOWN, "allocated in some parts of the trace: whether it grows is unknown"),
    (Trend.STOPPED, "allocated in some parts of the trace only: likely no steady growth"),
    (Trend.ONCE, "allocated once"),
    (Trend.KEPT, "weights, gradients, optimizer state and workspaces, which usually stay"),
    (Trend.RECENT, f"made in the last {100 // N_PARTS} % of the trace: may still be freed"),
)


def growth_lines(report: GrowthReport, file: str) -> Iterator[str]:
    """Show the lines that grow on one device."""
    name = device_name(report.device)
    if report.garbage:
        yield f"{name}  {report.garbage.sentence}"
        name = ""
    if report.unknown:
        yield from _unfreed_lines(name, report)
        if report.garbage:
            yield next_line("advise", file)
        return
    n_iterations = counted(len(report.end_bytes), "iteration")
    if report.lines:
        per_iteration = format_bytes(report.bytes_per_iteration)
        yield f"{name}  memory grows by {per_iteration} per iteration; the trace has {n_iterations}"
    else:
        yield f"{name}  nothing grows up to the end of the trace, which has {n_iterations}"
    # The first iteration and the last but one, which are the same where there are two.
    moments = []
    for position in dict.fromkeys((0, len(report.end_bytes) - 2)):
        number = report.first_iteration + position
        moments.append(
            f"after iteration {number}: {format_bytes(report.end_bytes[position])}"
        )
    last = format_bytes(report.end_bytes[-1])
    yield f"  allocated {'; '.join(moments)}; at the end: {last}"
    if report.lines and not report.garbage:
        yield "  a leak, a cache, or reference cycles: only what gc.collect() frees is in cycles"
    yield from _growing_lines(report.lines)
    if report.lines or report.garbage:
        yield next_line("advise", file)


def _unfreed_lines(name: str, report: GrowthReport) -> Iterator[str]:
    lines = report.never_freed
    n_bytes = sum(line.block_bytes for line in lines)
    n_allocations = counted(sum(line.n_allocations for line in lines), "allocation")
    unknown = f"growth per iteration is unknown: {report.unknown}"
    if lines:
        yield f"{name}  {unknown}"
        yield f"  {format_bytes(n_bytes)} in {n_allocations} of this trace were never freed"
    elif report.end_bytes:
        yield f"{name}  nothing that was allocated in this trace is left"
        yield f"  {unknown}"
    else:
        yield f"{name}  {unknown}"
    for trend, title in _TRENDS:
        rows = [(line.block_bytes, _unfreed(line)) for line in lines if line.trend is trend]
        yield from size_rows(rows, "line", title=title)


def _unfreed(line: UnfreedLine) -> str:
    is_over = line.trend in (Trend.STOPPED, Trend.UNKNOWN)
    last = f", the last at event {line.last_event}" if is_over else ""
    code = line_shown(line.line, has_stack=line.has_stack)
    return f"{code}: {counted(line.n_allocations, 'allocation')}{last}"


def _growing_lines(lines: Sequence[Growth]) -> Iterator[str]:
    if lines:
        yield "  never freed in this trace"
    for line in lines[: most_rows(_N_LINES)]:
        call_path = " < ".join(map(line_shown, line.frames[:_N_CALLERS])) or LIBRARY_ONLY
        yield f"  {format_bytes(line.bytes_per_iteration):>14} per iteration  {call_path}"
        size = format_bytes(line.block_bytes)
        yield f"{'':>18}{_iterations(line)}; {size} at the end; {line.certainty}"
    hidden = lines[most_rows(_N_LINES) :]
    if hidden:
        n_bytes = bytes_per_iteration(hidden)
        yield f"  {format_bytes(n_bytes):>14} per iteration  {counted(len(hidden), 'more line')}"


def _iterations(line: Growth) -> str:
    span = f"iterations {line.first_iteration} to {line.last_iteration}"
    n_spanned = line.last_iteration - line.first_iteration + 1
    count = "" if line.n_iterations == n_spanned else f"{line.n_iterations} of "
    replacement = ", each time by a larger one" if line.fate is Fate.REPLACED else ""
    return f"in {count}{span}{replacement}"
