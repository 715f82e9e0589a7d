"""What ``snapconv diff`` prints, as text and as JSON-ready values."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict

from snapconv.answers.comparison import Change, ComparedLine, ComparedRow, Comparison, Difference
from snapconv.answers.comparison_report import ComparisonReport
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import counted, device_kind, device_name, format_bytes, shortened
from snapconv.writers.text.size_rows import MOST_ROWS, cut, where

_MOST_SETTING = 60


def comparison_lines(report: ComparisonReport) -> Iterator[str]:
    """What is different, device by device, line by line."""
    for number, device in enumerate(report.devices):
        yield from [""] * bool(number)
        yield from _device_lines(device)
    if not report.devices:
        yield "the files have no device in common"
    for devices, which in ((report.only_old, "old"), (report.only_new, "new")):
        if devices:
            yield f"only in the {which} file: {', '.join(map(device_name, devices))}"
    if report.settings:
        yield "settings"
        for setting in report.settings:
            old, new = (
                shortened(text or "(not there)", _MOST_SETTING) for text in (setting.old, setting.new)
            )
            yield f"  {setting.name}: {old} -> {new}"


def _device_lines(found: Comparison) -> Iterator[str]:
    names = dict.fromkeys((device_name(found.old_device), device_name(found.new_device)))
    yield f"{' -> '.join(names)}  peak allocated {_change(found.allocated)}"
    yield f"  reserved at most {_change(found.reserved)}"
    yield f"  {_iterations(found)}"
    scale = max(found.allocated.old_bytes, found.allocated.new_bytes)
    yield from _rows("categories", "category", [(row.change, row.name) for row in found.categories], scale)
    lines = [(row.change, line_name(row)) for row in found.lines]
    yield from _rows("lines of the project", "line", lines, scale)
    yield from _rows("modules", "module", _named(found.modules), scale)
    yield from _rows("operations", "operation", _named(found.operations), scale)


def _named(rows: Sequence[ComparedRow]) -> list[tuple[Change, str]]:
    return [(row.change, row.name) for row in rows]


def _rows(title: str, noun: str, rows: Sequence[tuple[Change, str]], scale: int) -> Iterator[str]:
    """The rows that changed the peak most, and what the others did to it."""
    changed = [row for row in rows if row[0].difference is not Difference.SAME]
    if not changed:
        if rows:
            yield f"  {title} at the peak: the same"
        return
    yield f"  {title} at the peak"
    for change, name in changed[:MOST_ROWS]:
        yield f"  {_signed(change.more_bytes, scale):>14}  {_difference(change, scale):<30}{cut(name)}"
    more = changed[MOST_ROWS:]
    if more:
        n_bytes = sum(change.more_bytes for change, _ in more)
        yield f"  {_signed(n_bytes, scale):>14}  {counted(len(more), f'more {noun}', _plural(noun))}"


def _plural(noun: str) -> str:
    return f"more {noun[:-1]}ies" if noun.endswith("y") else f"more {noun}s"


def _difference(change: Change, scale: int) -> str:
    if change.difference in (Difference.APPEARED, Difference.GONE):
        return str(change.difference.value)
    old, new = (format_bytes(size, like=scale) for size in (change.old_bytes, change.new_bytes))
    return f"{old} -> {new}"


def _signed(n_bytes: int, scale: int) -> str:
    text = format_bytes(abs(n_bytes), like=scale)
    return f"{'+' if n_bytes > 0 else '-' if n_bytes < 0 else ''}{text.replace('< ', '<')}"


def _change(change: Change) -> str:
    old, new, more = change.old_bytes, change.new_bytes, change.more_bytes
    shown = f"{format_bytes(old)} -> {format_bytes(new)}"
    if not more:
        return f"{shown} (the same)"
    share = f", {100 * more / old:+.1f} %" if old else ""
    return f"{shown} ({_signed(more, abs(more))}{share})"


def _iterations(found: Comparison) -> str:
    old, new = found.old_iterations, found.new_iterations
    return (
        f"{len(old)} -> {counted(len(new), 'iteration')}, the last peaks at {format_bytes(old[-1])} -> "
        f"{format_bytes(new[-1])}"
    )


def line_name(row: ComparedLine) -> str:
    """What a line is called; with where it was, if it moved."""
    old, new = row.old_line, row.new_line
    if old and new and old.place != new.place:
        before = str(old.line_number) if old.file_path == new.file_path else old.place
        return f"{where(new)} (was {before})"
    return where(new or old)


def comparison_values(report: ComparisonReport) -> dict[str, object]:
    """The same for machines: plain values in bytes; docs/reference/json.md has the schema."""
    return {
        "old": report.old_name,
        "new": report.new_name,
        "devices": [_device_values(device) for device in report.devices],
        "only_old": list(report.only_old),
        "only_new": list(report.only_new),
        "settings": list(map(asdict, report.settings)),
    }


def _device_values(found: Comparison) -> dict[str, object]:
    return {
        "old_device": found.old_device,
        "new_device": found.new_device,
        "kind": device_kind(found.new_device),
        "peak_allocated": _figure_values(found.allocated),
        "peak_reserved": _figure_values(found.reserved),
        "old_iteration_peaks": list(found.old_iterations),
        "new_iteration_peaks": list(found.new_iterations),
        "categories": [_row_values(row) for row in found.categories],
        "lines": [
            {"old": _place(row.old_line), "new": _place(row.new_line)} | _change_values(row.change)
            for row in found.lines
        ],
        "modules": [_row_values(row) for row in found.modules],
        "operations": [_row_values(row) for row in found.operations],
    }


def _figure_values(change: Change) -> dict[str, object]:
    return {"old_bytes": change.old_bytes, "new_bytes": change.new_bytes, "change_bytes": change.more_bytes}


def _change_values(change: Change) -> dict[str, object]:
    return {
        "difference": change.difference.value,
        **_figure_values(change),
        "n_old": change.n_old,
        "n_new": change.n_new,
    }


def _row_values(row: ComparedRow) -> dict[str, object]:
    return {"name": row.name} | _change_values(row.change)


def _place(line: SourceLine | None) -> dict[str, object] | None:
    if line is None:
        return None
    return {"file": line.file_path, "line": line.line_number, "function": line.function}
