"""Comparisons as text: of two files, and of a file with its limits, for a terminal or in Markdown."""

import re
from collections.abc import Iterator, Sequence

from snapconv.answers.check import Check, outcome
from snapconv.answers.diff import Change, DeviceDiff, Difference, FileDiff, Match
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import counted, device_name, format_bytes, printable
from snapconv.writers.text.size_rows import most_rows, where

AnyChange = Change[str] | Change[Match]


def diff_lines(report: FileDiff) -> Iterator[str]:
    """Show the differences, device by device."""
    for number, position in enumerate(report.display_order):
        yield from [""] * bool(number)
        yield from _device_lines(report.devices[position])
    if not report.devices:
        yield "the files have no device in common"
    for devices, which in ((report.only_old, "old"), (report.only_new, "new")):
        if devices:
            yield f"only in the {which} file: {', '.join(map(device_name, devices))}"
    if report.settings:
        yield "settings"
        for name, *values in report.settings:
            old, new = (text or "not recorded" for text in values)
            yield f"  {name}: {old} → {new}"


def _device_lines(found: DeviceDiff) -> Iterator[str]:
    names = dict.fromkeys((device_name(found.old_device), device_name(found.new_device)))
    yield f"{' → '.join(names)}  {found.allocated.name} {_change(found.allocated)}"
    yield f"  reserved at most {_change(found.reserved)}"
    if (
        found.allocated.name == "peak allocated"
        and len(found.old_iterations) + len(found.new_iterations) > 2
    ):
        yield f"  {_iterations(found)}"
    yield from _rows("categories", "category", found.categories)
    if found.likely.old_bytes or found.likely.new_bytes:
        old, new = (format_bytes(size) for size in (found.likely.old_bytes, found.likely.new_bytes))
        yield f"    likely, not certain: {old} → {new} (unknown with --certain)"
    yield from _rows("lines of the project", "line", found.lines)
    yield from _rows("modules", "module", found.modules)
    yield from _rows("operations", "operation", found.operations)


def _rows(title: str, noun: str, rows: Sequence[AnyChange]) -> Iterator[str]:
    changed = [row for row in rows if row.difference is not Difference.SAME]
    if not changed:
        if rows:
            yield f"  {title} at the peak: the same"
        return
    yield f"  {title} at the peak"
    scale = max(max(row.old_bytes, row.new_bytes) for row in changed)
    for row in changed[: most_rows()]:
        yield (
            f"  {_signed(row.more_bytes, scale):>14}  {_difference(row, scale):<30}{row_name(row)}"
        )
    more = changed[most_rows() :]
    if more:
        n_bytes = sum(row.more_bytes for row in more)
        plural = f"more {'categories' if noun == 'category' else f'{noun}s'}"
        yield f"  {_signed(n_bytes, scale):>14}  {counted(len(more), f'more {noun}', plural)}"


def _difference(change: AnyChange, scale: int) -> str:
    if change.difference in (Difference.APPEARED, Difference.GONE):
        return str(change.difference.value)
    old, new = (format_bytes(size, like=scale) for size in (change.old_bytes, change.new_bytes))
    return f"{old} → {new}"


def _signed(n_bytes: int, scale: int) -> str:
    text = format_bytes(abs(n_bytes), like=scale)
    return f"{'+' if n_bytes > 0 else '-' if n_bytes < 0 else ''}{text.replace('< ', '<')}"


def _change(change: AnyChange) -> str:
    old = change.old_bytes
    new = change.new_bytes
    more = change.more_bytes
    shown = f"{format_bytes(old)} → {format_bytes(new)}"
    if not more:
        return f"{shown} (the same)"
    share = f", {100 * more / old:+.1f} %" if old else ""
    return f"{shown} ({_signed(more, abs(more))}{share})"


def _iterations(found: DeviceDiff) -> str:
    old = found.old_iterations
    new = found.new_iterations
    return (
        f"{len(old)} → {counted(len(new), 'iteration')}, the last peaks at "
        f"{format_bytes(old[-1])} → "
        f"{format_bytes(new[-1])}"
    )


def row_name(row: AnyChange) -> str:
    """Name a row; a line of the project with its old place where it moved."""
    old, new = row.name if isinstance(row.name, tuple) else (row.name, row.name)
    line = new or old
    if not isinstance(line, SourceLine):
        return str(line)
    if isinstance(old, SourceLine) and old.place != line.place:
        before = str(old.line_number) if old.file_path == line.file_path else old.place
        return f"{where(line)} (was {before})"
    return where(line)


def check_lines(file: str, checks: Sequence[Check]) -> Iterator[str]:
    """Show one line for each limit, and that all hold; that one does not is the command's error."""
    for check in checks:
        yield (
            f"{'ok  ' if check.holds else 'UNKNOWN' if check.is_unknown else 'FAIL'}  "
            f"{check.sentence}"
        )
    if all(check.holds for check in checks):
        yield outcome(file, checks)


def github_lines(file: str, checks: Sequence[Check]) -> Iterator[str]:
    """Write a table in Markdown for ``$GITHUB_STEP_SUMMARY``."""
    yield from (f"### {_markdown(outcome(file, checks))}", "", "| | limit |", "|---|---|")
    for check in checks:
        sign = "✅" if check.holds else "❔" if check.is_unknown else "❌"
        yield f"| {sign} | {_markdown(check.sentence)} |"


def _markdown(text: str) -> str:
    """Text as Markdown shows it, with everything escaped that could be markup."""
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~&@-])", r"\\\1", printable(text))
