"""What the terminal says of a run time report: its main figures, as text and as JSON-ready values."""

from collections.abc import Iterable, Iterator
from pathlib import Path

from snapconv.reports.memory_report import SourceLine
from snapconv.reports.time_report import IterationTimes, TimeReport
from snapconv.units import counted, format_duration_us

_N_LINES = 5


def time_summary_lines(path: Path, report: TimeReport) -> Iterator[str]:
    """The summary of a run time report, line by line."""
    times = report.reported
    phases = [
        f"{name} {_duration(ms)}"
        for name, ms in (
            ("forward", times.forward_ms),
            ("backward", times.backward_ms),
            ("optimizer", times.optimizer_ms),
        )
        if ms is not None
    ]
    n_iterations = counted(len(report.iterations), "timed iteration")
    yield f"cuda:{report.device}  {', '.join(phases) or 'nothing was timed'}, in iteration {times.iteration}"
    yield f"  the median of {n_iterations}; {_coverage(times)}"
    yield "  operations, forward and backward"
    for total in report.operations[:_N_LINES]:
        yield f"  {_duration(total.total_ms):>14}  {total.name}, {counted(total.n_calls, 'call')}"
    yield f"  project lines, {project_words(report.project_root, report.project_includes)}"
    for row in report.lines[:_N_LINES]:
        yield f"  {_duration(row.total_ms):>14}  {_place(row.line)}, {counted(row.n_calls, 'call')}"
    if not report.lines:
        yield "    none: no timed operation was called from a file of the project"
    yield f"  written: {path}"


def project_words(root: str | None, includes: tuple[str, ...]) -> str:
    """Say what counted as the project."""
    return f"below {root or '(no project found)'}" + (f" and in {', '.join(includes)}" if includes else "")


def _coverage(times: IterationTimes) -> str:
    """Say how much of the measured time is in rows."""
    shares = [
        f"{100 * coverage:.1f} % of {phase}"
        for phase, coverage in (("forward", times.forward_coverage), ("backward", times.backward_coverage))
        if coverage is not None
    ]
    return f"its operations are {' and '.join(shares)}" if shares else "it has no forward and no backward"


def _duration(ms: float) -> str:
    return format_duration_us(round(1000 * ms))


def _place(line: SourceLine) -> str:
    return f"{line.file_path}:{line.line_number} in {line.function}"


def time_summary_values(path: Path, report: TimeReport) -> dict[str, object]:
    """The same for machines: plain values, times in milliseconds; described in docs/cli.md."""
    return {
        "device": report.device,
        "output": str(path),
        "clock": report.clock,
        "is_simulated": report.is_simulated,
        "iteration": report.reported.iteration,
        "iterations": list(_iteration_values(report.iterations)),
        "operations": [
            {
                "name": total.name,
                "n_calls": total.n_calls,
                "forward_ms": total.forward_ms,
                "backward_ms": total.backward_ms,
            }
            for total in report.operations
        ],
        "project_root": report.project_root,
        "project_includes": list(report.project_includes),
        "lines": [
            {
                "file": row.line.file_path,
                "line": row.line.line_number,
                "function": row.line.function,
                "n_calls": row.n_calls,
                "forward_ms": row.forward_ms,
                "backward_ms": row.backward_ms,
            }
            for row in report.lines
        ],
        "n_entries": len(report.entries),
        "notes": [{"slug": n.slug, "message": n.message, "device": n.device} for n in report.notes],
    }


def _iteration_values(iterations: Iterable[IterationTimes]) -> Iterator[dict[str, object]]:
    for times in iterations:
        yield {
            "iteration": times.iteration,
            "forward_ms": times.forward_ms,
            "backward_ms": times.backward_ms,
            "optimizer_ms": times.optimizer_ms,
            "forward_coverage": times.forward_coverage,
            "backward_coverage": times.backward_coverage,
        }
