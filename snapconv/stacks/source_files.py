"""Source files of the project: the file of a recorded path in a folder, and its lines today.

A recorded line may have moved since. Its text finds it again where that was recorded. Otherwise its
function has to be around the number still, or the line counts as missing.
"""

import ast
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from snapconv.errors import InputError
from snapconv.files import open_input
from snapconv.stacks.paths import normal

# A longer file is no code that a person reads; the longest of PyTorch has 1.4 MB.
_MOST_BYTES = 4 << 20
_MODULE = "<module>"
_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


@dataclass(frozen=True)
class SourceText:
    """The text of a source file; ``path`` is empty for one that a capture has.

    It caches the functions, which only a line of unknown text needs.
    """

    path: str
    lines: tuple[str, ...]

    def line_text(self, number: int) -> str | None:
        """Return the text of a line without its indentation; None where there is no such line."""
        return self.lines[number - 1].strip() if 0 < number <= len(self.lines) else None

    def current_line(
        self, number: int, function: str, recorded_text: str | None
    ) -> int | None:
        """Return the number that a recorded line has here; None where it is not known.

        Of several lines with the recorded text, the nearest in its function is taken.
        """
        text = self.line_text(number)
        if not recorded_text:
            # A lambda or comprehension has no name that the file shows.
            is_unnamed = function.startswith("<") and function != _MODULE
            is_here = is_unnamed or self.function_at(number) == function
            return number if text and text[0] != "#" and is_here else None
        if text == recorded_text:
            return number
        equal_lines = [
            candidate
            for candidate, line in enumerate(self.lines, 1)
            if line.strip() == recorded_text
        ]

        def distance(candidate: int) -> tuple[bool, int, int]:
            is_elsewhere = self.function_at(candidate) != function
            return is_elsewhere, abs(candidate - number), candidate

        return min(equal_lines, key=distance, default=None)

    def function_at(self, number: int) -> str:
        """Return the name of the innermost function or class whose body has a line."""
        name = _MODULE
        for first, last, scope in self._scopes:
            if first <= number <= last:
                name = scope
        return name

    @cached_property
    def _scopes(self) -> list[tuple[int, int, str]]:
        """The first and last line of every body, and its name; inner ones stand behind outer."""
        try:
            tree = ast.parse("\n".join(self.lines))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []
        scopes = [
            (node.body[0].lineno, node.end_lineno or node.lineno, node.name)
            for node in ast.walk(tree)
            if isinstance(node, _Scope)
        ]
        return sorted(scopes, key=lambda scope: (scope[0], -scope[1]))


@dataclass(frozen=True, slots=True)
class SourceFolder:
    """A folder of source files on this machine: nothing outside of it is read.

    ``name`` is the user's, ``root`` its real path.
    """

    name: str
    root: Path

    @classmethod
    def at(cls, folder: str | Path) -> "SourceFolder":
        """Return a folder; raises InputError where there is none."""
        root = Path(folder)
        if not root.is_dir():
            raise InputError(
                f"{folder} is no folder: name the folder with the project's source"
            )
        return cls(str(folder), Path(os.path.realpath(root)))

    def candidates(self, recorded_path: str) -> Iterator[SourceText]:
        """Yield the files that a recorded path may be, the one with most folders in common first.

        ``/root/job/net/model.py`` may be ``job/net/model.py`` in the folder, or ``net/model.py``.
        """
        parts = [part for part in normal(recorded_path).split("/") if part not in ("", ".")]
        if not recorded_path.endswith(".py") or ".." in parts:
            return
        for number in range(len(parts)):
            path = _real_path(self.root.joinpath(*parts[number:]))
            if path.is_relative_to(self.root) and _is_file(path):
                lines = _read_lines(path)
                if lines is not None:
                    yield SourceText(str(path), lines)


def _real_path(path: Path) -> Path:
    try:
        return Path(os.path.realpath(path))
    except ValueError:  # there are letters in it that no file system takes
        return path


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or no path of a file system
        return False


def _read_lines(path: Path) -> tuple[str, ...] | None:
    try:
        with open_input(path) as file:
            content = file.read(_MOST_BYTES + 1)
    except (OSError, InputError):  # as good as a file that is not there
        return None
    if len(content) > _MOST_BYTES:
        return None
    return text_lines(content.decode("utf-8-sig", "replace"))


def text_lines(text: str) -> tuple[str, ...]:
    """Return the lines of a source text; a form feed ends no line of Python."""
    return tuple(line.removesuffix("\r") for line in text.split("\n"))


def regions(numbers: Sequence[int], n_around: int, n_lines: int) -> list[range]:
    """Return the lines around some line numbers, in order, without gaps of a single line."""
    ranges: list[range] = []
    for number in sorted(numbers):
        first = max(number - n_around, 1)
        after = min(number + n_around, n_lines) + 1
        if ranges and first <= ranges[-1].stop + 1:
            ranges[-1] = range(ranges[-1].start, max(after, ranges[-1].stop))
        else:
            ranges.append(range(first, after))
    return ranges
