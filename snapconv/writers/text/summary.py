"""The text at the end of a conversion: the main figures of its reports."""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from snapconv.answers.memory_report import PEAK_ALLOCATED, PEAK_RESERVED, MemoryReport
from snapconv.answers.times import IterationTimes, TimeReport
from snapconv.units import counted, device_name, format_bytes, format_duration_us, format_share, shortened
from snapconv.writers.text.moment import live_lines
from snapconv.writers.text.size_rows import MOST_ROWS, project_shown, size_row, where

_N_CALLERS = 3
_MOST_OF_NAME = 60


def summary_lines(
    reports: tuple[tuple[Path, MemoryReport], ...],
    time: tuple[Path, TimeReport] | None = None,
) -> Iterator[str]:
    """Yield the summary of all devices, and of the times where there are any, line by line."""
    for number, (path, report) in enumerate(reports):
        yield from [""] * bool(number)
        yield from _device_lines(report)
        yield f"  written: {path.absolute()}"
    if time:
        yield ""
        yield from _time_lines(*time)


def _device_lines(report: MemoryReport) -> Iterator[str]:
    peak = report.peak_usage_bytes
    event = report.moment(PEAK_ALLOCATED).event
    n_events = len(report.analysis.replay.allocated.after)
    where = "before the first event" if event < 0 else f"after event {event} of {n_events}"
    yield f"{device_name(report.device)}  peak allocated {format_bytes(peak)} ({peak} bytes), {where}"
    reserved = report.moment(PEAK_RESERVED).size_bytes
    yield f"  reserved at most {format_bytes(reserved)}"
    yield from _naming_lines(report)
    yield from _oom_lines(report)
    yield from live_lines(report.peak)
    yield from _annotation_lines(report)
    yield from _growth_lines(report)
    yield f"  history: {report.peak.history_verdict}: {report.peak.history_reason}"


def _naming_lines(report: MemoryReport) -> Iterator[str]:
    """How far a list of parameters, if any was given, named the weights."""
    naming = report.analysis.naming
    if naming is None:
        return
    named = format_share(naming.named_bytes, naming.n_bytes)
    yield (
        f"  {named} of the weights' bytes named by {naming.file_name} ({naming.n_named} of "
        f"{counted(len(naming.names), 'weight')})"
    )


def _oom_lines(report: MemoryReport) -> Iterator[str]:
    """Show the first failed allocation: what comes after it is the program giving up, or trying again."""
    if not report.oom_events:
        return
    oom, *more = report.oom_events
    requested, free = format_bytes(oom.requested_bytes), format_bytes(oom.device_free_bytes)
    allocated, reserved = format_bytes(oom.allocated_bytes), format_bytes(oom.reserved_bytes)
    yield (
        f"  out of memory at event {oom.event}: {requested} requested, {free} free on the device; "
        f"{allocated} allocated, {reserved} reserved"
    )
    if oom.lines:
        yield f"    requested by {' < '.join(where(line) for line in oom.lines[:_N_CALLERS])}"
    if more:
        yield f"    and {counted(len(more), 'more time')}: see snapconv_oom_events with --extended"
    if report.after_oom:
        free, returnable = map(format_bytes, (report.after_oom.free_bytes, report.after_oom.returnable_bytes))
        yield (
            f"    the program went on: at the dump {free} are reserved and free, of which empty_cache() "
            f"returns {returnable}"
        )


def _annotation_lines(report: MemoryReport) -> Iterator[str]:
    """Show the program's own names for parts of the trace, with the highest peak of each."""
    found = report.annotation_totals
    if not found:
        return
    yield "  peaks by annotation"
    for row in found[:MOST_ROWS]:
        text = f"{shortened(row.name, _MOST_OF_NAME)}, {counted(row.n_spans, 'time')}"
        yield size_row(row.peak_bytes, text, like=report.peak_usage_bytes)
    if len(found) > MOST_ROWS:
        yield f"  {'':>14}  and {counted(len(found) - MOST_ROWS, 'more name')}"


def _growth_lines(report: MemoryReport) -> Iterator[str]:
    """Show the growth that a note warns of."""
    if not any(note.slug == "growth" for note in report.notes):
        return
    yield "  grows: added by every iteration, and not freed since"
    by_line: Counter[str] = Counter()
    for row in report.growth:
        by_line[where(row.line)] += row.bytes_per_iteration
    for place, n_bytes in by_line.most_common(MOST_ROWS):
        yield size_row(n_bytes, place, like=report.peak_usage_bytes)


def _time_lines(path: Path, report: TimeReport) -> Iterator[str]:
    times = report.reported
    measured = (
        ("forward", times.forward_ms),
        ("backward", times.backward_ms),
        ("optimizer", times.optimizer_ms),
    )
    phases = [f"{name} {_duration(ms)}" for name, ms in measured if ms is not None]
    n_iterations = counted(len(report.iterations), "timed iteration")
    yield f"cuda:{report.device}  {', '.join(phases) or 'nothing was timed'}, in iteration {times.iteration}"
    yield f"  the median of {n_iterations}; {_coverage(times)}"
    yield "  operations, forward and backward"
    for total in report.operations[:MOST_ROWS]:
        yield f"  {_duration(total.total_ms):>14}  {total.name}, {counted(total.n_calls, 'call')}"
    yield f"  project lines, {project_shown(report.project_root, report.project_includes)}"
    for row in report.lines[:MOST_ROWS]:
        yield f"  {_duration(row.total_ms):>14}  {where(row.line)}, {counted(row.n_calls, 'call')}"
    if not report.lines:
        yield "    none: no timed operation was called from a file of the project"
    yield f"  written: {path.absolute()}"


def _coverage(times: IterationTimes) -> str:
    """Report how much of the measured time is in rows."""
    measured = (("forward", times.forward_coverage), ("backward", times.backward_coverage))
    shares = [f"{100 * part:.1f} % of {phase}" for phase, part in measured if part is not None]
    return f"its operations are {' and '.join(shares)}" if shares else "it has no forward and no backward"


def _duration(ms: float) -> str:
    return format_duration_us(round(1000 * ms))
