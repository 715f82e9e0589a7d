"""Rows of a size and its name, as every summary shows them.

``cli/terminal.py`` fits them to a terminal.
"""

import shlex
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from operator import attrgetter
from typing import TYPE_CHECKING

from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK, SourceLine
from snapconv.torch_knowledge.backends import backend_of_kind
from snapconv.units import counted, format_bytes, format_share, optional

if TYPE_CHECKING:  # `snapconv info` loads no analysis
    from snapconv.answers.peak import CategoryTotal

MOST_ROWS = 5
_SHOWN: ContextVar[int | None] = ContextVar("rows of a table", default=None)
_SIZE_WIDTH = 14
# The consequence of each verdict on the history.
_NOT_SHOWN = {
    "started late": "memory was in use that no event allocated; earlier peaks are unknown",
    "truncated": (
        "the oldest events are lost; earlier peaks are unknown (record with a larger max_entries)"
    ),
    "no trace": "only the memory at the dump is known",
}
_CATEGORY_WIDTH = 16


@contextmanager
def table_rows(n_most: int | None) -> Iterator[None]:
    """Let tables have so many rows (``--top``) while lines are made; None: the usual number."""
    token = _SHOWN.set(n_most)
    try:
        yield
    finally:
        _SHOWN.reset(token)


def most_rows(usual: int = MOST_ROWS) -> int:
    """Return the number of rows of a table: as requested, else the usual one."""
    return _SHOWN.get() or usual


def size_row(n_bytes: int, text: str) -> str:
    """Write a size in its column, and what has it."""
    return f"  {format_bytes(n_bytes):>{_SIZE_WIDTH}}  {text}"


def size_rows(
    rows: Sequence[tuple[int, str]],
    noun: str,
    *,
    title: str = "",
    sum_rows: Sequence[tuple[int, str]] = (),
    plural: str = "",
) -> Iterator[str]:
    """Yield the first rows, the sum of the hidden ones, and the ``sum_rows`` that have bytes.

    A ``title`` stands above them where there are rows.
    """
    if title and rows:
        yield f"  {title}"
    for n_bytes, text in rows[: most_rows()]:
        yield size_row(n_bytes, text)
    hidden_rows = rows[most_rows() :]
    hidden_bytes = sum(n_bytes for n_bytes, _ in hidden_rows)
    hidden_noun = counted(len(hidden_rows), f"more {noun}", plural and f"more {plural}")
    for n_bytes, text in ((hidden_bytes, hidden_noun), *sum_rows):
        if n_bytes > 0:
            yield size_row(n_bytes, text)


def change_shown(before: int, after: int, *, like: int | None = None) -> str:
    """Write two sizes with an arrow between, in the unit that ``like`` has, if given."""
    return f"{format_bytes(before, like=like)} → {format_bytes(after, like=like)}"


def listed(names: Sequence[str], n_most: int, separator: str = ", ") -> str:
    """List the first names, and count the others."""
    n_hidden = len(names) - n_most
    hidden = f" and {n_hidden} more" if n_hidden > 0 else ""
    return f"{separator.join(names[:n_most])}{hidden}"


def history_lines(verdict: str) -> Iterator[str]:
    """Say what a trace that is not complete does not show."""
    if verdict in _NOT_SHOWN:
        yield f"  history: {verdict}: {_NOT_SHOWN[verdict]}"


def line_shown(line: SourceLine | None, *, has_stack: bool = True) -> str:
    """Write a line of the project as an editor takes it, with its function."""
    if line is None:
        return LIBRARY_ONLY if has_stack else NO_STACK
    return f"{line.place} in {line.function}"


def position(event: int, n_events: int) -> str:
    """Name a place in the trace."""
    if event == n_events - 1:
        return f"at the end of the trace ({counted(n_events, 'event')})"
    return f"at event {event} of {n_events}"


def next_line(command: str, file: str, *, kind: str = "cuda") -> str:
    """Write the next command to type.

    ``kind`` is that of the file's devices, which decides what records.
    """
    if command == "record":
        record = backend_of_kind(kind).record or "record the stacks too"
        return f"  next: {record}  (records the stacks, which this file lacks)"
    return f"  next: snapconv {command} {shlex.quote(file)}"


def project_shown(root: str | None, includes: Iterable[str]) -> str:
    """Name what counted as the project."""
    included = ", ".join(includes)
    locations = []
    if root:
        locations.append(f"below {root}")
    if included:
        locations.append(f"in {included}")
    return " and ".join(locations) or "none found"


def category_lines(
    categories: "tuple[CategoryTotal, ...]", total_bytes: int
) -> Iterator[str]:
    """Yield the categories that have memory, largest first, with shares and certainty."""
    rows = [row for row in categories if row.n_allocations]
    width = max((_CATEGORY_WIDTH, *(len(row.category) + 1 for row in rows)))
    for row in sorted(rows, key=attrgetter("block_bytes"), reverse=True):
        size = format_bytes(row.block_bytes)
        share = format_share(row.block_bytes, total_bytes)
        allocations = "allocation" if row.n_allocations == 1 else "allocations"
        likely = optional(", {}", row.certainty)
        name = f"{row.category:<{width}}"
        yield f"  {name}{size:>13}{share:>9}{row.n_allocations:>9} {allocations}{likely}"
