"""What a page shows of a file as a whole: its origin, settings and times, and what differs from another."""

from collections.abc import Iterable

from snapconv.answers.diff import Change, ComparedRow, FileDiff
from snapconv.answers.times import LineTime, TimeReport, TimeTotal
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.project_frames import Project
from snapconv.version import VERSION
from snapconv.writers.html.column_encoding import page_text
from snapconv.writers.text.comparisons import line_name

_SILENT = {"", "0", "0.0", "False", "-1"}


def file_facts(snapshot: Snapshot, project: Project, *, name: str) -> dict[str, object]:
    """Plain values about one file; ``name`` is what the user called it."""
    container = snapshot.container
    recorder = dict(snapshot.metadata.facts) if snapshot.metadata else {}
    settings = {
        page_text(key): page_text(text) for key, text in snapshot.settings_entries if text not in _SILENT
    }
    return {
        "name": page_text(name),
        "bytes": container.n_bytes,
        "format": container.description,
        "protocol": container.pickle_protocol,
        "written_by": page_text(snapshot.written_by),
        "snapconv": VERSION,
        "project_root": page_text(project.root or ""),
        "command": page_text(recorder.get("command", "")),
        "settings": settings,
    }


def times_facts(report: TimeReport, modules: tuple[TimeTotal, ...]) -> dict[str, object]:
    """Plain values of a capture's times: the reported iteration by operation, module and line."""
    times = report.reported
    return {
        "device": report.device,
        "clock": report.clock,
        "is_simulated": report.is_simulated,
        "iteration": times.iteration,
        "n_iterations": len(report.iterations),
        "forward_ms": times.forward_ms,
        "backward_ms": times.backward_ms,
        "optimizer_ms": times.optimizer_ms,
        "notes": [[note.slug, page_text(note.message)] for note in report.notes],
        "operations": [_total(total, "name") for total in report.operations],
        "modules": [_total(row, "module") for row in modules],
        "lines": [_line(row) for row in report.lines],
    }


def _total(total: TimeTotal, key: str) -> dict[str, object]:
    times = {"forward_ms": total.forward_ms, "backward_ms": total.backward_ms}
    return {key: page_text(total.name), "n_calls": total.n_calls, **times}


def _line(row: LineTime) -> dict[str, object]:
    return {
        "file": page_text(row.line.file_path),
        "line": row.line.line_number,
        "function": page_text(row.line.function),
        "n_calls": row.n_calls,
        "forward_ms": row.forward_ms,
        "backward_ms": row.backward_ms,
    }


def comparison_facts(report: FileDiff) -> dict[str, object] | None:
    """Return the rows of the pair of devices, and the settings that differ; None where there is no pair."""
    if not report.devices:
        return None
    (found, *_) = report.devices
    return {
        "category": _rows(found.categories),
        "line": [_row(line_name(row), row.change) for row in found.lines],
        "module": _rows(found.modules),
        "operation": _rows(found.operations),
        "settings": [
            [page_text(setting.name), page_text(setting.old or ""), page_text(setting.new or "")]
            for setting in report.settings
        ],
    }


def _rows(rows: Iterable[ComparedRow]) -> list[list[object]]:
    return [_row(row.name, row.change) for row in rows]


def _row(name: str, change: Change) -> list[object]:
    return [page_text(name), change.old_bytes, change.new_bytes, change.difference.value]
