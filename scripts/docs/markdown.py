"""Rows -> a table in Markdown, and texts set as code."""

from collections.abc import Iterable, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; what would end a cell is escaped by who makes the cell."""
    lines = [columns, ["-"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def code(text: str) -> str:
    """Set a text as code; a bar would end the cell of a table."""
    return f"`{text}`".replace("|", "\\|")
