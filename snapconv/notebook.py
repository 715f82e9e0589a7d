"""Answers of a session as people see them: printed as a command does, or a notebook's table.

An answer knows no writer. So a session returns its answers in a tuple that does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from html import escape
from typing import Any, NamedTuple, TypeVar

from snapconv.units import format_bytes

_Item = TypeVar("_Item", covariant=True)
Text = Callable[[], Iterable[str]]


class _Table(NamedTuple):
    """The rows of an answer that a table shows: the attribute that has them, and the columns."""

    rows: str
    columns: tuple[str, ...]


# By the class of the answer; an answer without rows of its own is a row itself.
_TABLES = {
    "Advice": _Table(
        "findings", ("sort", "what", "held_bytes", "saved_bytes", "is_certain")
    ),
    "MomentState": _Table(
        "categories", ("category", "block_bytes", "n_allocations", "certainty")
    ),
    "MemoryTree": _Table("nodes", ("name", "block_bytes", "self_bytes", "n_blocks")),
    "Fragmentation": _Table(
        "moments",
        ("moment", "reserved_bytes", "allocated_bytes", "free_bytes", "returnable_bytes"),
    ),
    "SettingTrials": _Table(
        "tried", ("setting", "fits", "peak_reserved_bytes", "peak_allocated_bytes")
    ),
    "Check": _Table("", ("what", "holds", "actual_bytes", "limit_bytes", "unknown")),
}


class Answers(tuple[_Item, ...]):
    """A tuple of answers that prints as the command does; ``texts`` make its lines."""

    texts: Sequence[Text]

    @classmethod
    def of(
        cls,
        items: Iterable[_Item],
        lines: Callable[..., Iterable[str]],
        *columns: Iterable[object],
    ) -> "Answers[_Item]":
        """Make a tuple of answers whose lines ``lines`` makes: of each when it is printed.

        It is called with an answer, and with what stands beside it in every one of ``columns``.
        """
        answers = cls(items)
        rows = zip(answers, *columns, strict=True)
        answers.texts = [partial(lines, *row) for row in rows]
        return answers

    @classmethod
    def together(cls, items: Iterable[_Item], text: Text) -> "Answers[_Item]":
        """Make a tuple of answers that share one text, which cannot be divided by ``rows``."""
        answers = cls(items)
        answers.texts = [text]
        return answers

    def lines(self) -> Iterator[str]:
        """Yield what the command prints."""
        for text in self.texts:
            yield from text()

    def rows(self) -> Iterator[tuple[_Item, Iterable[str]]]:
        """Yield every answer with the lines that are about it.

        Raises ValueError for several answers that share one text: no line is about one alone.
        """
        for answer, text in zip(self, self.texts, strict=True):
            yield answer, text()

    def __str__(self) -> str:
        """Return what the command prints."""
        return "\n".join(self.lines())

    def __repr__(self) -> str:
        """Return what the command prints: an interpreter shows it for what is not assigned."""
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(_tables(self, list(self.lines())))


def _tables(answers: Sequence[Any], lines: Sequence[str]) -> Iterator[str]:
    """Yield the first line and the tables of answers of one class; of others all lines."""
    kinds = {type(answer).__name__ for answer in answers}
    table = _TABLES.get(kinds.pop()) if len(kinds) == 1 else None
    if table is None:
        yield f"<pre>{escape(chr(10).join(lines))}</pre>"
        return
    yield f"<p>{escape(lines[0])}</p>"
    rows_of_tables = [answers]
    if table.rows:
        rows_of_tables = [getattr(answer, table.rows) for answer in answers]
    for rows in rows_of_tables:
        yield _table(table.columns, rows)


def _table(columns: Sequence[str], rows: Iterable[object]) -> str:
    titles = "".join(
        f"<th>{title.removesuffix('_bytes').replace('_', ' ')}</th>" for title in columns
    )
    lines = "".join(f"<tr>{''.join(_cells(columns, row))}</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{lines}</table>"


def _cells(columns: Sequence[str], row: Any) -> Iterator[str]:
    # The figures of a trial are parts of its outcome, and columns of its JSON values alone. It is
    # known by name, as in _TABLES: importing the classes of all answers would take time.
    values = row.to_json() if type(row).__name__ == "Tried" else None
    for name in columns:
        value = getattr(row, name) if values is None else values[name]
        shown = format_bytes(value) if name.endswith("bytes") else value
        yield f"<td>{escape(str(shown))}</td>"
