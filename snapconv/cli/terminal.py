"""Output of the command line: text without control characters, JSON, a progress bar."""

import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TextIO

from snapconv.cli.colors import paint_of
from snapconv.errors import SnapconvError
from snapconv.notes import Progress
from snapconv.units import printable, shortened

# Raised when a key changes its meaning, its type, or goes; not when one is added. Every document has it.
JSON_VERSION = 1

# A symbol of C++ may have some thousand characters, and the path of a file.
_MOST_OF_LINE = 10_000


def give_up_stdout() -> None:
    """Keep the interpreter from failing once more when it flushes stdout at its end."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123  # no path, a device
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def print_lines(lines: Iterable[str], stream: TextIO | None) -> None:
    """Print lines, with everything escaped that a name in a file could do to a terminal, and in colours.

    What is far longer than any line for a person, such as a name of a megabyte, is cut.
    """
    if stream is None:  # closed by the parent process
        return
    paint = paint_of(stream)
    for line in lines:
        text = printable(shortened(line, _MOST_OF_LINE))
        print(paint(text) if paint else text, file=stream)
    stream.flush()


def shows_blocks(stream: TextIO | None) -> bool:
    """Whether a stream is a terminal that can show what is drawn in characters beyond ASCII."""
    if stream is None or not stream.isatty() or os.environ.get("TERM") == "dumb":
        return False
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


def print_error(text: str) -> None:
    """Show what went wrong, if stderr is open; the exit code shows it in any case."""
    with suppress(OSError):
        print_lines([text], sys.stderr)


def say(text: str) -> None:
    """Print a line beside a program that runs; a terminal that was closed must not end it."""
    if sys.stderr is None:
        return
    with suppress(OSError, ValueError):
        print(f"snapconv: {printable(text)}", file=sys.stderr, flush=True)


def show_raised(raised: BaseException) -> None:
    """Show what ended the program as Python would."""
    from snapconv.recorder.program.script import exit_argument

    if isinstance(raised, SnapconvError):
        say(f"error: {raised}")
    elif not isinstance(raised, SystemExit):
        sys.excepthook(type(raised), raised, raised.__traceback__)
    else:
        code = exit_argument(raised)
        if code is not None and not isinstance(code, int):
            with suppress(Exception):  # its text is the program's affair
                print(code, file=sys.stderr)


def print_json(values: Mapping[str, object], *, n_bytes: int | None = None) -> None:
    """Print values as one JSON document, with the version of its keys first.

    ``n_bytes`` is the size of the file that they are about: the document is in proportion to it.
    """
    from snapconv.cli.bounded_json import bounded_text
    from snapconv.writers.text.notes import note_lines

    if sys.stdout is None:  # closed by the parent process
        return
    document: dict[str, object] = {"json_version": JSON_VERSION, **values}
    text, notes = (_json(document), ()) if n_bytes is None else bounded_text(document, _json, n_bytes)
    print_lines(note_lines(notes), sys.stderr)
    sys.stdout.write(text)
    sys.stdout.flush()


def _json(values: object) -> str:
    from snapconv.json_text import escape_unprintable, write_json

    return escape_unprintable(f"{write_json(values, is_indented=True).decode()}\n")


def print_text(text: str) -> None:
    """Print a document that has everything escaped already, its lines as they are."""
    if sys.stdout is None:  # closed by the parent process
        return
    sys.stdout.write(text)
    sys.stdout.flush()


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Progress | None]:
    """Show a progress bar on stderr where that is a terminal; None elsewhere."""
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        yield None
        return
    # rich is no dependency of our own: typer depends on it, all releases that we allow.
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("opening", total=None)
        yield lambda stage, done, total: bar.update(task, description=stage, completed=done, total=total)
