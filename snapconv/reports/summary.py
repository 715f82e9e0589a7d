"""What the terminal ends with: the main figures of a conversion, as text and as JSON-ready values."""

from collections.abc import Iterator
from pathlib import Path

from snapconv.notes import Note
from snapconv.reports.report import PEAK_ALLOCATED, MemoryReport
from snapconv.units import format_bytes, format_share

_N_LINES = 5


def summary_lines(reports: tuple[tuple[Path, MemoryReport], ...]) -> Iterator[str]:
    """The summary of all devices, line by line."""
    for path, report in reports:
        yield from _device_lines(report)
        yield f"  written: {path}"
        yield ""


def note_lines(notes: tuple[Note, ...]) -> Iterator[str]:
    """Notes as they go to stderr, each once."""
    for note in dict.fromkeys(notes):
        where = "" if note.device is None else f" (cuda:{note.device})"
        yield f"note: {note.slug}{where}: {note.message}"


def _device_lines(report: MemoryReport) -> Iterator[str]:
    peak = report.peak_usage_bytes
    event = next(moment.event for moment in report.moments if moment.name == PEAK_ALLOCATED)
    n_events = len(report.timeline.reserved_bytes)
    where = "before the first event" if event < 0 else f"after event {event} of {n_events}"
    yield f"cuda:{report.device}  peak allocated {format_bytes(peak)} ({peak} bytes), {where}"
    held = [total for total in report.categories_at_peak if total.n_allocations]
    for total in sorted(held, key=lambda total: -total.block_bytes):
        size, share = format_bytes(total.block_bytes, like=peak), format_share(total.block_bytes, peak)
        yield f"  {total.category:<16}{size:>13}{share:>9}{total.n_allocations:>9} allocations"
    reserved = next(moment.size_bytes for moment in report.moments if moment.name == "peak_reserved")
    yield f"  reserved at most {format_bytes(reserved)}"
    yield from _line_lines(report)
    yield f"  history: {report.history_verdict}"
    yield f"    {report.history_reason}"


def _line_lines(report: MemoryReport) -> Iterator[str]:
    yield f"  project lines at the peak, below {report.project_root or '(no project found)'}"
    for row in report.lines_at_peak[:_N_LINES]:
        size = format_bytes(row.block_bytes, like=report.peak_usage_bytes)
        yield f"  {size:>14}  {row.line.file_path}:{row.line.line_number} in {row.line.function}"
    if not report.lines_at_peak:
        yield "    none: nothing live at the peak has a stack with a frame of the project"


def summary_values(reports: tuple[tuple[Path, MemoryReport], ...]) -> dict[str, object]:
    """The same for machines: plain values, sizes in bytes; the schema is described in docs/cli.md."""
    return {"reports": [_device_values(path, report) for path, report in reports]}


def _device_values(path: Path, report: MemoryReport) -> dict[str, object]:
    return {
        "device": report.device,
        "output": str(path),
        "peak_usage_bytes": report.peak_usage_bytes,
        "moments": {
            m.name: {
                "event": None if m.event < 0 else m.event,
                "time_us": m.time_us,
                "size_bytes": m.size_bytes,
            }
            for m in report.moments
        },
        "categories_at_peak": {
            total.category: {
                "n_allocations": total.n_allocations,
                "requested_bytes": total.requested_bytes,
                "block_bytes": total.block_bytes,
            }
            for total in report.categories_at_peak
        },
        "breakdown": [
            {"name": row.name, "parent": row.parent, "size_bytes": row.size_bytes} for row in report.breakdown
        ],
        "project_root": report.project_root,
        "lines_at_peak": [
            {
                "file": row.line.file_path,
                "line": row.line.line_number,
                "function": row.line.function,
                "n_allocations": row.n_allocations,
                "block_bytes": row.block_bytes,
            }
            for row in report.lines_at_peak
        ],
        "history": {"verdict": report.history_verdict, "reason": report.history_reason},
        "n_weights": len(report.weights),
        "n_activations": len(report.activations),
        "notes": [{"slug": n.slug, "message": n.message, "device": n.device} for n in report.notes],
    }
