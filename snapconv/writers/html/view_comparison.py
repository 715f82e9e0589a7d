"""Two files compared -> plain values for a page: the rows that ``snapconv diff`` has, with their bytes."""

from collections.abc import Iterable

from snapconv.answers.diff import Change, ComparedRow, FileDiff
from snapconv.writers.html.column_encoding import page_text
from snapconv.writers.text.diff import line_name


def comparison_facts(report: FileDiff) -> dict[str, object] | None:
    """The rows of the one pair of devices, and the settings that differ; None where nothing is a pair."""
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
