"""Lines of text for ``snapconv growth``."""

from collections.abc import Iterator, Sequence

from snapconv.answers.growth import Fate, GrowthReport, LineGrowth
from snapconv.stacks.project_lines import LIBRARY_ONLY, SourceLine
from snapconv.units import counted, device_name, format_bytes
from snapconv.writers.text.size_rows import where

_N_LINES = 8
_N_CALLERS = 3


def growth_lines(report: GrowthReport) -> Iterator[str]:
    """Show the lines that grow on one device."""
    name = device_name(report.device)
    if report.unknown:
        yield f"{name}  growth is not known"
        yield f"  {report.unknown}"
        return
    n_iterations = counted(len(report.end_bytes), "iteration")
    growing, late = report.growing, report.freed_late
    if growing:
        yield f"{name}  grows by {format_bytes(report.bytes_per_iteration)} per iteration, of {n_iterations}"
    else:
        yield f"{name}  nothing grows up to the end, in {n_iterations}"
    yield f"  allocated when {_ends(report.end_bytes)}"
    yield from _table("not freed to the end of the trace", growing, "held in the end")
    yield from _table("held over several iterations, and freed then", late, "held at most")


def _ends(end_bytes: Sequence[int]) -> str:
    """Show the ends of iterations; at the last, the end of the trace, the program may have freed all."""
    *ended, at_end = map(format_bytes, end_bytes)
    between = [f"the first ended: {ended[0]}"] if ended else []
    between += [f"the last but one: {ended[-1]}"] if len(ended) > 1 else []
    return ", ".join((*between, f"the trace ended: {at_end}"))


def _table(title: str, lines: Sequence[LineGrowth], held: str) -> Iterator[str]:
    if not lines:
        return
    yield f"  {title}"
    for line in lines[:_N_LINES]:
        yield f"  {format_bytes(line.bytes_per_iteration):>14} per iteration  {_place(line.frames)}"
        seen, size = _seen(line), format_bytes(line.block_bytes)
        yield f"{'':>18}{seen}, {size} {held}; confidence: {line.confidence.value}"
    more = lines[_N_LINES:]
    if more:
        n_bytes = sum(line.bytes_per_iteration for line in more)
        yield f"  {format_bytes(n_bytes):>14} per iteration  {counted(len(more), 'more line')}"


def _seen(line: LineGrowth) -> str:
    span = f"iterations {line.first_iteration} to {line.last_iteration}"
    n_spanned = line.last_iteration - line.first_iteration + 1
    every = "" if line.n_iterations == n_spanned else f"{line.n_iterations} of "
    how = ", each time by a larger one" if line.fate is Fate.REPLACED else ""
    return f"in {every}{span}{how}"


def _place(frames: Sequence[SourceLine]) -> str:
    return " < ".join(map(where, frames[:_N_CALLERS])) or LIBRARY_ONLY
