"""Output of the command line: text without control characters, JSON, a progress bar."""

import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from shutil import get_terminal_size
from textwrap import wrap
from time import monotonic
from typing import Any, TextIO

from snapconv.errors import SnapconvError
from snapconv.files import most_bytes_of_output
from snapconv.notes import Note, Progress
from snapconv.units import printable, shortened

# Raised when a key changes its meaning, its type, or goes; not when one is added. Every document
# has it.
JSON_VERSION = 4

# Shorter work is over before anybody has read a bar.
_WORTH_A_BAR_S = 0.5
# A narrower terminal breaks lines itself.
LEAST_WIDTH = 40
# Two spaces end a column.
_GAP = re.compile(r"(?<=\S)  +")
_LINE_NUMBER = re.compile(r":\d")
# The space between a number and its unit.
_FIGURE = re.compile(r"(?<=\d) (?=%|[KMGT]?i?B\b)")
# The colour of every category on a terminal, by its SGR code; docs and page have others.
CATEGORY_COLORS = {
    "weight": 34,
    "gathered_weight": 34,
    "gradient": 33,
    "unreduced_gradient": 33,
    "optimizer_state": 35,
    "gradient or optimizer state": 35,
    "activation": 32,
    "kv_cache": 36,
    "input": 94,
    "workspace": 96,
    "temporary": 93,
    "communication": 95,
    "unknown": 90,
}
# A category as a column, or before what has it; the same word in a sentence is none.
_CATEGORY = re.compile(
    rf"(?<=  )({'|'.join(sorted(CATEGORY_COLORS, key=len, reverse=True))})(?=$|,| \(likely\)|  )"
)
_SHARE = re.compile(r"^  (\w+)  [^%]* (\d{1,3}\.\d) % +\d+ allocations?(?:, |$)")
# Columns of a bar of 100 %.
_BAR_WIDTH = 20
_BAR = "\N{LOWER HALF BLOCK}"
_TO_COPY = re.compile(r" *(?:next|written): ")

# A symbol of C++ may have some thousand characters, and the path of a file.
_MOST_OF_LINE = 10_000


def give_up_stdout() -> None:
    """Keep the interpreter from failing once more when it flushes stdout at its end."""
    with open(os.devnull, "w", encoding="utf-8") as nowhere:  # noqa: PTH123  # no path, a device
        os.dup2(nowhere.fileno(), sys.stdout.fileno())


def open_stdout() -> None:
    """Put a stream that refuses everything in the place of a closed stdout.

    So what is printed there is an error, and no file that is opened later gets its descriptor.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, encoding="utf-8")  # noqa: PTH123, SIM115  # stays open


def print_lines(
    lines: Iterable[str], stream: TextIO | None, *, color: str = "never"
) -> None:
    """Print lines, with everything escaped that a name in a file could do to a terminal.

    On a terminal they are as wide as it is. What is far longer than any line for a person, such as
    a name of a megabyte, is cut. ``color`` is ``auto`` (on a terminal), ``always`` or ``never``.
    """
    if stream is None:  # closed by the parent process
        return
    is_terminal, width = stream.isatty(), None  # None: as many columns as a line has
    if is_terminal or os.environ.get("COLUMNS", "").isdecimal():
        width = max(get_terminal_size().columns, LEAST_WIDTH)
    is_colored = color == "always" or (color == "auto" and _takes_color(stream))
    for line in lines:
        text = unobeyed(printable(shortened(line, _MOST_OF_LINE)))
        for part in fitted(text, width, shortens_paths=is_terminal):
            print(_colored(part, width) if is_colored else part, file=stream)
    stream.flush()


def terminal_size() -> os.terminal_size | None:
    """Return the columns and rows of the terminal that shows the answer; None for a pipe."""
    is_terminal = sys.stdout is not None and sys.stdout.isatty()
    return get_terminal_size() if is_terminal else None


def n_rows(lines: Iterable[str], width: int) -> int:
    """Return how many rows of a terminal some lines have."""
    return sum(len(fitted(line, width, shortens_paths=True)) for line in lines)


def _takes_color(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that shows colours, and NO_COLOR is not set."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    is_old_console = sys.platform == "win32" and "WT_SESSION" not in os.environ
    return stream.isatty() and not is_old_console


def _colored(line: str, width: int | None) -> str:
    """Colour the categories of a line, with a bar behind the share of each, where there is room."""
    share = _SHARE.match(line)
    bar = ""
    if share and share[1] in CATEGORY_COLORS:
        length = round(float(share[2]) * _BAR_WIDTH / 100)
        if length and (width is None or len(line) + 2 + length <= width):
            bar = f"  {_painted(_BAR * length, share[1])}"
    return _CATEGORY.sub(lambda match: _painted(match[0], match[0]), line) + bar


def _painted(text: str, category: str) -> str:
    return f"\x1b[{CATEGORY_COLORS[category]}m{text}\x1b[0m"


def fitted(line: str, width: int | None, *, shortens_paths: bool) -> list[str]:
    """Break a line that is too wide; what follows stands below the text that its figures are about.

    Its folders are shortened first. A file's name, its line number and its function are never cut.
    A command to type stays on one line.
    """
    if width is None or len(line) <= width or _TO_COPY.match(line):
        return [line]
    if shortens_paths:
        line = _shorten_folders(line, width)
    # The text begins behind the last gap between columns, if that leaves a third of the width.
    indent = len(line) - len(line.lstrip()) + 2
    for gap in _GAP.finditer(line):
        indent = gap.end() if gap.end() <= 2 * width // 3 else indent
    text = _FIGURE.sub("\N{NO-BREAK SPACE}", line)
    lines = wrap(
        text,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [part.replace("\N{NO-BREAK SPACE}", " ") for part in lines] or [line]


def _shorten_folders(line: str, width: int) -> str:
    """Leave out outer folders of the paths with line numbers in a line that is too wide."""
    words = line.split(" ")
    too_many = len(line) - width
    for number, word in enumerate(words):
        path = word.lstrip("([\"'`")
        folder, _, name = path.rpartition("/")
        if too_many > 0 and folder and _LINE_NUMBER.search(name):
            _, slash, inner_folders = folder[too_many + 1 :].partition("/")
            words[number] = f"{word[: -len(path)]}…/{inner_folders}{slash}{name}"
            too_many -= len(word) - len(words[number])
    return " ".join(words)


def unobeyed(text: str) -> str:
    """Break up what GitHub's runner would obey in a step's output, such as ``##[add-mask]``."""
    if os.environ.get("GITHUB_ACTIONS") != "true":
        return text
    return re.sub(r"(?m)^([ \t]*):(?=:)", r"\1: ", text.replace("##[", "# #["))


def print_error(text: str) -> None:
    """Show what went wrong, if stderr is open; the exit code shows it in any case."""
    with suppress(OSError):
        print_lines([text], sys.stderr)


def say(text: str) -> None:
    """Print a line beside a program that runs; a terminal that was closed must not end it."""
    if sys.stderr is None:
        return
    with suppress(OSError, ValueError):
        print(f"snapconv: {unobeyed(printable(text))}", file=sys.stderr, flush=True)


def show_raised(raised: BaseException) -> None:
    """Show what ended the program as Python would."""
    if isinstance(raised, SnapconvError):
        say(f"error: {raised}")
    elif not isinstance(raised, SystemExit):
        sys.excepthook(type(raised), raised, raised.__traceback__)
    elif raised.code is not None and not isinstance(raised.code, int):
        with suppress(Exception):  # its text is the program's affair
            print(raised.code, file=sys.stderr)


def print_json(values: Mapping[str, object], *, n_bytes: int | None = None) -> None:
    """Print values as one JSON document, with the version of its keys first.

    ``n_bytes`` is the size of the file that they are about: the document is in proportion to it.
    """
    document: dict[str, object] = {"json_version": JSON_VERSION, **values}
    allowed = sys.maxsize if n_bytes is None else most_bytes_of_output(n_bytes)
    text, n_items, n_characters = limited_text(document, json_text, allowed)
    sys.stdout.write(text)
    sys.stdout.flush()
    if n_items is not None:
        message = (
            f"of every list only the first {n_items} entries are printed, and of every text "
            f"{n_characters} "
            "characters: all would be many times the size of the file"
        )
        show_notes([Note("left-out", message)])


def print_document(values: Mapping[str, object]) -> None:
    """Print JSON whose form is not ours: without the version of our keys, and as long as it is."""
    sys.stdout.write(json_text(values))
    sys.stdout.flush()


def show_notes(notes: Iterable[Note]) -> None:
    """Print notes, which come after the answer."""
    from snapconv.writers.text.info import note_lines

    print_lines(note_lines(notes), sys.stderr)


def json_text(values: object, *, is_indented: bool = True) -> str:
    """Write values as JSON that no terminal and no runner obeys."""
    from snapconv.json_text import escape_unprintable, write_json

    text = escape_unprintable(f"{write_json(values, is_indented=is_indented).decode()}\n")
    # The same text, which GitHub's runner does not obey.
    return text.replace("##[", "#\\u0023[")


@contextmanager
def progress_bar(*, shown: bool) -> Iterator[Progress | None]:
    """Show a progress bar on stderr if the work takes a while; None where it is no terminal."""
    if not (shown and sys.stderr is not None and sys.stderr.isatty()):
        yield None
        return
    begun = monotonic()
    with ExitStack() as shows:
        update: Progress | None = None

        def progress(stage: str, n_done: int, total: int) -> None:
            nonlocal update
            if update is None and monotonic() - begun >= _WORTH_A_BAR_S:
                update = shows.enter_context(_bar())
            if update is not None:
                update(stage, n_done, total)

        yield progress


@contextmanager
def _bar() -> Iterator[Progress]:
    # rich is no dependency of our own: typer depends on it, all releases that we allow.
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda stage, n_done, total: bar.update(
            task, description=stage, completed=n_done, total=total
        )


# JSON is in proportion to the file that it is about: a file repeats a stack, a name or a whole
# trace for two bytes. No real file comes near the bound, so its JSON is complete.
# These numbers of entries of a list, and of characters of a text, are tried in turn. The first
# entries of a list are its largest.
_TRIED = (
    (1000, 4000),
    (300, 1000),
    (100, 300),
    (30, 100),
    (10, 100),
    (3, 100),
    (1, 50),
    (0, 50),
)
# Lists of which nothing is left out: an entry for each device or category, in an order of their
# own.
_WHOLE = ("devices", "reports", "categories")


def limited_text(
    values: object, written: Callable[[object], str], allowed: int
) -> tuple[str, int | None, int]:
    """Write values in at most ``allowed`` characters, if possible.

    Return the text, the limit of entries of a list (None: all of them), and the limit of characters
    of a text.
    """
    text = written(values)
    if len(text) <= allowed:
        return text, None, 0
    for n_items, n_characters in _TRIED:
        text = written(_shortened(values, n_items, n_characters))
        if len(text) <= allowed:
            break
    return text, n_items, n_characters


def first_entries(
    values: Mapping[str, object], n_items: int | None
) -> Mapping[str, object]:
    """Return the first entries of every list, and of a list of devices all; None: whole lists."""
    if n_items is None:
        return values
    shortened_values: Mapping[str, object] = _shortened(values, n_items, sys.maxsize)
    return shortened_values


def _shortened(values: object, n_items: int, n_characters: int) -> Any:
    if isinstance(values, str):
        return shortened(values, n_characters)
    if isinstance(values, dict):
        document = {}
        for key, value in values.items():
            if key in _WHOLE and isinstance(value, list | tuple):
                shown = [_shortened(entry, n_items, n_characters) for entry in value]
            else:
                shown = _shortened(value, n_items, n_characters)
            document[shortened(str(key), n_characters)] = shown
        return document
    if isinstance(values, list | tuple):
        return [_shortened(value, n_items, n_characters) for value in values[:n_items]]
    return values
