"""Rows of a size and its name, as every summary shows them, and sentences broken into lines."""

from collections.abc import Iterable, Iterator, Sequence

from snapconv.stacks.project_lines import SourceLine
from snapconv.units import counted, format_bytes, shortened

MOST_ROWS = 5
# Of a terminal.
WIDTH = 80
_SIZE_WIDTH = 14
# A terminal of 80 columns, less the size and the spaces before and behind it.
_MOST_TEXT, _MOST_PLACE = 62, 28


def size_row(n_bytes: int, text: str, *, like: int | None = None) -> str:
    """A size in its column, and what has it."""
    return f"  {format_bytes(n_bytes, like=like):>{_SIZE_WIDTH}}  {text}"


def size_rows(
    rows: Sequence[tuple[int, str]], noun: str, *, like: int, rest: tuple[int, str] | None = None
) -> Iterator[str]:
    """The first rows, how many more there are with their sum, and the ``rest`` if it has any bytes."""
    for n_bytes, text in rows[:MOST_ROWS]:
        yield size_row(n_bytes, cut(text), like=like)
    more = rows[MOST_ROWS:]
    if more:
        n_bytes = sum(row[0] for row in more)
        if n_bytes:
            yield size_row(n_bytes, counted(len(more), f"more {noun}"), like=like)
    if rest and rest[0] > 0:
        yield size_row(*rest, like=like)


def cut(text: str, *, n_most: int = _MOST_TEXT) -> str:
    """A text that fits on its line, behind a size: names and paths come from the file."""
    return text if len(text) <= n_most else f"{text[: n_most - 1]}…"


def where(line: SourceLine | None) -> str:
    """A line of the project as an editor takes it, with its function."""
    return f"{line.place} in {line.function}" if line else "no line of the project"


def place(line: SourceLine | None) -> str:
    """A line of the project by its file alone, of which the end counts most."""
    if line is None:
        return "no line of the project"
    return line.place if len(line.place) <= _MOST_PLACE else f"…{line.place[1 - _MOST_PLACE :]}"


def project_shown(root: str | None, includes: Iterable[str]) -> str:
    """What counted as the project."""
    included = ", ".join(includes)
    return f"below {root or '(no project found)'}" + (f" and in {included}" if included else "")


def names_in_a_line(names: Sequence[str], *, n_most: int = MOST_ROWS, separator: str = ", ") -> str:
    """A few names, and how many more there are."""
    shown = separator.join(shortened(name, _MOST_TEXT) for name in names[:n_most])
    more = len(names) - n_most
    return f"{shown} and {more} more" if more > 0 else shown


def wrapped(text: str, indent: str, *, head: str = "", width: int = WIDTH) -> Iterator[str]:
    """Break a sentence into lines of the terminal's width; ``head`` begins the first."""
    begin = line = head or indent
    for word in text.split():
        if len(line) + len(word) + 1 > width and line != begin:
            yield line.rstrip()
            begin = line = indent
        line += f"{word} "
    if line.strip():
        yield line.rstrip()
