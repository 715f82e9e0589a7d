"""Which frames the patterns of a rule fit: each pattern is searched once in every distinct name and file."""

import re
from typing import Protocol

import numpy as np

from snapconv.columns import BoolColumn, Int64Column
from snapconv.snapshot.stack_table import FrameTable


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

    def matches(self, rule: FramePattern) -> BoolColumn:
        """The frames in which both of a rule's patterns are found."""
        in_name = _found(rule.function, self._names)
        if not in_name.any():
            return np.zeros(len(self._name_of), np.bool_)
        return np.asarray(in_name[self._name_of] & _found(rule.file, self._files)[self._file_of])


def matching_frames(frames: FrameTable, rule: FramePattern) -> BoolColumn:
    """The frames in which both of one rule's patterns are found."""
    return FrameMatcher(frames).matches(rule)


def _distinct(texts: tuple[str, ...]) -> tuple[list[str], Int64Column]:
    """The different texts, and which of them each row has."""
    numbers: dict[str, int] = {}
    rows = [numbers.setdefault(text, len(numbers)) for text in texts]
    return list(numbers), np.array(rows, np.int64)


def _found(pattern: str, texts: list[str]) -> BoolColumn:
    if not pattern:
        return np.ones(len(texts), np.bool_)
    search = re.compile(pattern).search
    return np.array([search(text) is not None for text in texts], np.bool_)
