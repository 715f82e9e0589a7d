"""Answers of a session that are one object, which prints as its command does.

An answer knows no writer: a subclass does. Apart from ``notebook``, so that a command loads only
what it prints.
"""

from collections.abc import Callable, Iterable
from dataclasses import fields
from html import escape
from typing import Any, TypeVar

from snapconv.answers.diff import FileDiff
from snapconv.answers.explanation import Explanation
from snapconv.writers.text.comparisons import diff_lines
from snapconv.writers.text.explanation import explanation_lines

_Printing = TypeVar("_Printing", bound="_Printed")


class _Printed:
    """An answer that prints as its command does, by the command's writer ``_lines``."""

    __slots__ = ()
    _lines: Callable[[], Iterable[str]]

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
