"""The text at the end of a conversion: what is live at the peak of every device, and the times."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from snapconv.answers.memory_report import MemoryReport
from snapconv.answers.times import IterationTimes, TimeReport
from snapconv.units import counted, device_name, format_bytes, format_duration_us
from snapconv.writers.text.moment import live_lines
from snapconv.writers.text.size_rows import MOST_ROWS, position, project_shown, where


def summary_lines(
    reports: Sequence[tuple[Path, MemoryReport]],
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
    peak, event = report.peak.allocated_bytes, report.peak.event
    where = "before the first event" if event is None else position(event, report.peak.n_events)
    yield f"{device_name(report.peak.device)}  peak allocated {format_bytes(peak)} ({peak} bytes), {where}"
    yield f"  reserved at most {format_bytes(report.analysis.replay.reserved.peak)}"
    yield from live_lines(report.peak)
    yield f"  history: {report.peak.history_verdict}: {report.peak.history_reason}"


def _time_lines(path: Path, report: TimeReport) -> Iterator[str]:
    times = report.reported.measured
    measured = (
        ("forward", times.forward_ms),
        ("backward", times.backward_ms),
        ("optimizer", times.optimizer_ms),
    )
    phases = [f"{name} {_duration(ms)}" for name, ms in measured if ms is not None]
    n_iterations = counted(len(report.iterations), "timed iteration")
    timed = ", ".join(phases) or "nothing was timed"
    yield f"cuda:{report.timing.device}  {timed}, in iteration {times.iteration}"
    yield f"  the median of {n_iterations}; {_coverage(report.reported)}"
    yield "  operations, forward and backward"
    for total in report.operations[:MOST_ROWS]:
        yield f"  {_duration(total.total_ms):>14}  {total.name}, {counted(total.n_calls, 'call')}"
    yield f"  project lines, {project_shown(report.project.root, report.project.includes)}"
    for row in report.lines[:MOST_ROWS]:
        yield f"  {_duration(row.total_ms):>14}  {where(row.name)}, {counted(row.n_calls, 'call')}"
    if not report.lines:
        yield "    none: no timed operation was called from a file of the project"
    yield f"  written: {path.absolute()}"


def _coverage(times: IterationTimes) -> str:
    shares = [f"{100 * part:.1f} % of {phase}" for phase, part in times.coverage.items() if part is not None]
    return f"its operations are {' and '.join(shares)}" if shares else "it has no forward and no backward"


def _duration(ms: float) -> str:
    return format_duration_us(round(1000 * ms))
