"""The frames that patterns fit: each pattern is searched once in every distinct name and file."""

import re
from typing import Protocol

import numpy as np

from snapconv.columns import BoolColumn, Int64Column
from snapconv.snapshot.stack_table import FrameTable

# What most of our patterns for functions are: a list of whole names.
_NAMES = re.compile(r"\^(?:(\w+)|\(([\w|]+)\))\$")


class FramePattern(Protocol):
    """The frame patterns of any rule: two regular expressions, empty for anything."""

    @property
    def function(self) -> str:
        """Searched in the frame's name."""

    @property
    def file(self) -> str:
        """Searched in its file name, with forward slashes."""


class FrameMatcher:
    """The distinct names and files of a frame table: thousands of frames share a file, and many a name."""

    def __init__(self, frames: FrameTable) -> None:
        self._names, self._name_of = _distinct(frames.names)
        files, self._file_of = _distinct(frames.filenames)
        self._files = [file.replace("\\", "/") for file in files]
        self._found_files: dict[str, BoolColumn] = {}

    def matches(self, rule: FramePattern) -> BoolColumn:
        """Mark the frames in which both of a rule's patterns are found."""
        in_name = self._in_names(rule.function)
        if not in_name.any():
            return np.zeros(len(self._name_of), np.bool_)
        if rule.file not in self._found_files:
            self._found_files[rule.file] = _found(rule.file, self._files)
        return np.asarray(in_name[self._name_of] & self._found_files[rule.file][self._file_of])

    def _in_names(self, pattern: str) -> BoolColumn:
        listed = _NAMES.fullmatch(pattern)
        if not listed:
            return _found(pattern, list(self._names))
        found = np.zeros(len(self._names), np.bool_)
        for name in (listed[1] or listed[2]).split("|"):
            for text in (name, f"{name}\n"):  # $ is found before a newline at the end, too
                if text in self._names:
                    found[self._names[text]] = True
        return found


def matching_frames(frames: FrameTable, rule: FramePattern) -> BoolColumn:
    """Mark the frames in which both of one rule's patterns are found."""
    return FrameMatcher(frames).matches(rule)


def _distinct(texts: tuple[str, ...]) -> tuple[dict[str, int], Int64Column]:
    """Return the different texts with their numbers, and which of them each row has."""
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(text, len(numbers)) for text in texts]
    return numbers, np.array(rows, np.int64)


def _found(pattern: str, texts: list[str]) -> BoolColumn:
    if not pattern:
        return np.ones(len(texts), np.bool_)
    search = re.compile(pattern).search
    return np.array([search(text) is not None for text in texts], np.bool_)
