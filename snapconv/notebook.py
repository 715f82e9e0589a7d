"""Answers of a session as people see them: printed as a command does, or a notebook's table.

An answer knows no writer. So a session returns its answers in a tuple that does, or in a subclass
that does.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from html import escape
from typing import Any, NamedTuple, TypeVar

from snapconv.answers.diff import FileDiff
from snapconv.answers.explanation import Explanation
from snapconv.stacks.project_lines import SourceLine
from snapconv.units import format_bytes
from snapconv.writers.text.comparisons import diff_lines
from snapconv.writers.text.explanation import explanation_lines

_Item = TypeVar("_Item", covariant=True)
_Printing = TypeVar("_Printing", bound="_Printed")
_Text = Callable[[], Iterable[str]]


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
    "Growth": _Table("", ("line", "bytes_per_iteration", "n_iterations", "certainty")),
    "Check": _Table("", ("what", "holds", "actual_bytes", "limit_bytes", "unknown")),
}


class Answers(tuple[_Item, ...]):
    """A tuple of answers that prints as the command does."""

    _text: _Text

    @classmethod
    def of(cls, items: Iterable[_Item], text: _Text) -> "Answers[_Item]":
        """Make a tuple whose text is made when it is printed."""
        answers = cls(items)
        answers._text = text
        return answers

    def __str__(self) -> str:
        """Return what the command prints."""
        return "\n".join(self._text())

    def __repr__(self) -> str:
        """Return what the command prints: an interpreter shows it for what is not assigned."""
        return str(self)

    def _repr_html_(self) -> str:
        return "".join(_tables(self, list(self._text())))


class _Printed:
    """An answer that prints as its command does, by the command's writer ``_lines``."""

    __slots__ = ()
    _lines: _Text

    @classmethod
    def of(cls: type[_Printing], answer: Any) -> _Printing:
        """Return the same answer, which prints."""
        return cls(*(getattr(answer, field.name) for field in fields(answer)))

    def __str__(self) -> str:
        """Return what the command prints."""
        return "\n".join(self._lines())

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"


class PrintedDiff(_Printed, FileDiff):
    """A comparison that prints as ``snapconv diff`` does."""

    __slots__ = ()
    _lines = diff_lines


class PrintedExplanation(_Printed, Explanation):
    """An explanation that prints as ``snapconv explain`` does."""

    __slots__ = ()
    _lines = explanation_lines


def _tables(answers: Sequence[object], lines: Sequence[str]) -> Iterator[str]:
    """Yield the first line and a table for each answer that has rows; if none has, all lines."""
    tables = [_TABLES.get(type(answer).__name__) for answer in answers]
    if None in tables or not tables:
        yield f"<pre>{escape(chr(10).join(lines))}</pre>"
        return
    yield f"<p>{escape(lines[0])}</p>"
    rows_of_all = []
    for answer, table in zip(answers, tables, strict=True):
        assert table is not None
        if table.rows:
            yield _table(table.columns, getattr(answer, table.rows))
        else:
            rows_of_all.append(answer)
    if rows_of_all and tables[0] is not None:
        yield _table(tables[0].columns, rows_of_all)


def _table(columns: Sequence[str], rows: Iterable[object]) -> str:
    titles = "".join(
        f"<th>{title.removesuffix('_bytes').replace('_', ' ')}</th>" for title in columns
    )
    lines = "".join(f"<tr>{''.join(_cells(columns, row))}</tr>" for row in rows)
    return f"<table><tr>{titles}</tr>{lines}</table>"


def _cells(columns: Sequence[str], row: Any) -> Iterator[str]:
    values = row.to_json() if type(row).__name__ == "Tried" else None
    for name in columns:
        value = getattr(row, name) if values is None else values[name]
        if isinstance(value, SourceLine):
            value = value.place
        shown = (
            format_bytes(value) if name.endswith("bytes") or "bytes_per" in name else value
        )
        yield f"<td>{escape(str(shown))}</td>"
