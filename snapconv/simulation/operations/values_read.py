"""Values that the program read and the simulation had not computed: where, what for and how often.

A branch that depends on them may go another way than on a GPU; a shape that does was assumed. What is only
printed does no harm, which cannot be seen from here: so all are listed.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from sysconfig import get_paths

from snapconv.notes import Note
from snapconv.recorder.program.own_frames import is_ours
from snapconv.simulation.modes import Calls
from snapconv.units import counted

_LIBRARY_FOLDERS = ("site-packages", "dist-packages")
# A loop may read at as many places as it generates.
_MAX_PLACES = 1000

# What Python calls for bool(x), float(x) and so on.
_AS_WRITTEN = {
    "__bool__": "bool()",
    "__float__": "float()",
    "__int__": "int()",
    "__index__": "int()",
    "__complex__": "complex()",
    "__format__": "format()",
    "__contains__": "in",
}


class ValuesRead:
    """The reads so far, by place."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._counts: Counter[tuple[str, str]] = Counter()
        self._is_quiet = False

    @contextmanager
    def once(self, what: str) -> Iterator[None]:
        """Count what is read inside as one read: a tensor is printed by reading it in many ways."""
        if self._is_quiet:
            yield
            return
        self.add(what)
        self._is_quiet = True
        try:
            yield
        finally:
            self._is_quiet = False

    def add_value(self, operation: str) -> None:
        """Count a number that the program was given."""
        call = self._calls.current
        name = getattr(call[0], "__name__", operation) if call else operation
        self.add(_AS_WRITTEN.get(name, f"{name}()"))

    def add_shape(self, operation: str) -> None:
        """Count a result whose shape depends on values."""
        self.add(f"shape of {operation}()")

    def add(self, what: str) -> None:
        """Count one read at the program's present line."""
        if self._is_quiet:
            return
        key = (users_place(), what)
        if key in self._counts or len(self._counts) < _MAX_PLACES:
            self._counts[key] += 1

    def notes(self) -> tuple[Note, ...]:
        """Say where values were read that there were not, what decides a branch for certain first."""
        if not self._counts:
            return ()
        rows = sorted(self._counts.items(), key=lambda row: _ORDER.get(row[0][1].partition(" ")[0], 2))
        shown = ", ".join(_described(*key, count) for key, count in rows[:_MAX_SHOWN])
        if len(rows) > _MAX_SHOWN:
            shown += f" and {counted(len(rows) - _MAX_SHOWN, 'more place')}"
        has_shapes = any(what.startswith("shape ") for _, what in self._counts)
        shapes = "; shapes that depend on them are the largest possible" if has_shapes else ""
        message = (
            f"values that were not computed were read at {shown}: a branch that depends on them may have "
            f"gone another way{shapes}"
        )
        return (Note("values-not-computed", message),)


_MAX_SHOWN = 4
_ORDER = {"shape": 0, "bool()": 1}


def _described(where: str, what: str, count: int) -> str:
    return f"{where} ({what}{f', {count} times' if count > 1 else ''})"


def users_place() -> str:
    """Name the innermost line outside torch; for one in a library, also the program's that led to it."""
    torch_folder = str(Path(str(sys.modules["torch"].__file__)).parent)
    innermost = None
    frame = sys._getframe()
    while frame.f_back is not None:
        filename = frame.f_code.co_filename
        if not is_ours(filename) and not filename.startswith((torch_folder, "<")):
            place = f"{_shortened(filename)}:{frame.f_lineno}"
            if not _is_library(filename):
                return place if innermost is None else f"{innermost} called at {place}"
            innermost = innermost or place
        frame = frame.f_back
    return innermost or "(unknown line)"


def _is_library(filename: str) -> bool:
    return any(f"/{folder}/" in filename.replace("\\", "/") for folder in _LIBRARY_FOLDERS) or (
        filename.startswith(_STANDARD_LIBRARY)
    )


_STANDARD_LIBRARY = get_paths()["stdlib"]


def _shortened(filename: str) -> str:
    """Write a library's file from its package on, the program's from the current folder on."""
    for folder in _LIBRARY_FOLDERS:
        _, found, rest = filename.replace("\\", "/").rpartition(f"/{folder}/")
        if found:
            return rest
    return filename.removeprefix(f"{Path.cwd()}{os.sep}")
