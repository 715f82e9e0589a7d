"""Comparisons of two files, or of a file with its limits, as text for a terminal or Markdown."""

import re
from collections.abc import Iterator, Sequence

from snapconv.answers.check import Check, outcome
from snapconv.answers.diff import Change, DeviceDiff, Difference, FileDiff, Match
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import counted, device_name, format_bytes, printable
from snapconv.writers.text.size_rows import change_shown, line_shown, most_rows

AnyChange = Change[str] | Change[Match]


def diff_lines(report: FileDiff) -> Iterator[str]:
    """Show the differences, device by device."""
    for number, position in enumerate(report.display_order):
        if number:
            yield ""
        yield from _device_lines(report.devices[position])
    if not report.devices:
        yield "the files have no device in common"
    for devices, age in ((report.only_old, "old"), (report.only_new, "new")):
        if devices:
            yield f"only in the {age} file: {', '.join(map(device_name, devices))}"
    if report.settings:
        yield "settings"
        for name, *values in report.settings:
            old, new = (text or "not recorded" for text in values)
            yield f"  {name}: {old} → {new}"


def _device_lines(device: DeviceDiff) -> Iterator[str]:
    names = dict.fromkeys((device_name(device.old_device), device_name(device.new_device)))
    yield f"{' → '.join(names)}  {device.allocated.name} {_change(device.allocated)}"
    yield f"  reserved at most {_change(device.reserved)}"
    n_iterations = len(device.old_iterations) + len(device.new_iterations)
    if device.allocated.name == "peak allocated" and n_iterations > 2:
        yield f"  {_iterations(device)}"
    yield from _rows("categories", "category", device.categories)
    likely = device.likely
    if likely.old_bytes or likely.new_bytes:
        sizes = change_shown(likely.old_bytes, likely.new_bytes)
        yield f"    likely, not certain: {sizes} (unknown with --certain)"
    yield from _rows("lines of the project", "line", device.lines)
    yield from _rows("modules", "module", device.modules)
    yield from _rows("operations", "operation", device.operations)


def _rows(title: str, noun: str, rows: Sequence[AnyChange]) -> Iterator[str]:
    changed = [row for row in rows if row.difference is not Difference.SAME]
    if not changed:
        if rows:
            yield f"  {title} at the peak: the same"
        return
    yield f"  {title} at the peak"
    scale = max(max(row.old_bytes, row.new_bytes) for row in changed)
    for row in changed[: most_rows()]:
        size = _signed(row.more_bytes, scale)
        yield f"  {size:>14}  {_difference(row, scale):<30}{row_name(row)}"
    hidden = changed[most_rows() :]
    if hidden:
        size = _signed(sum(row.more_bytes for row in hidden), scale)
        plural = "categories" if noun == "category" else f"{noun}s"
        yield f"  {size:>14}  {counted(len(hidden), f'more {noun}', f'more {plural}')}"


def _difference(change: AnyChange, scale: int) -> str:
    if change.difference in (Difference.APPEARED, Difference.GONE):
        return str(change.difference.value)
    return change_shown(change.old_bytes, change.new_bytes, like=scale)


def _signed(n_bytes: int, scale: int) -> str:
    sign = ""
    if n_bytes:
        sign = "+" if n_bytes > 0 else "-"
    size = format_bytes(abs(n_bytes), like=scale)
    return f"{sign}{size.replace('< ', '<')}"


def _change(change: AnyChange) -> str:
    old = change.old_bytes
    difference = change.more_bytes
    shown = change_shown(old, change.new_bytes)
    if not difference:
        return f"{shown} (the same)"
    share = f", {100 * difference / old:+.1f} %" if old else ""
    return f"{shown} ({_signed(difference, abs(difference))}{share})"


def _iterations(device: DeviceDiff) -> str:
    old = device.old_iterations
    new = device.new_iterations
    n_iterations = f"{len(old)} → {counted(len(new), 'iteration')}"
    return f"{n_iterations}, the last peaks at {change_shown(old[-1], new[-1])}"


def row_name(row: AnyChange) -> str:
    """Name a row; a line of the project with its old place where it moved."""
    old, new = row.name if isinstance(row.name, tuple) else (row.name, row.name)
    line = new or old
    if not isinstance(line, SourceLine):
        return str(line)
    if isinstance(old, SourceLine) and old.place != line.place:
        before = str(old.line_number) if old.file_path == line.file_path else old.place
        return f"{line_shown(line)} (was {before})"
    return line_shown(line)


def check_lines(file: str, checks: Sequence[Check]) -> Iterator[str]:
    """Show one line for each limit, and that all hold; that one does not is the command's error."""
    for check in checks:
        word, _ = _check_signs(check)
        yield f"{word}  {check.sentence}"
    if all(check.holds for check in checks):
        yield outcome(file, checks)


def github_lines(file: str, checks: Sequence[Check]) -> Iterator[str]:
    """Write a table in Markdown for ``$GITHUB_STEP_SUMMARY``."""
    yield from (f"### {_markdown(outcome(file, checks))}", "", "| | limit |", "|---|---|")
    for check in checks:
        _, emoji = _check_signs(check)
        yield f"| {emoji} | {_markdown(check.sentence)} |"


def _check_signs(check: Check) -> tuple[str, str]:
    """Return a word and an emoji for the outcome of a check."""
    if check.holds:
        return "ok  ", "✅"
    return ("UNKNOWN", "❔") if check.is_unknown else ("FAIL", "❌")


def _markdown(text: str) -> str:
    """Escape everything that could be markup in Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&@-])", r"\\\1", printable(text))
