"""Lines of the program, named for its notes and errors."""

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from sysconfig import get_paths

from snapconv.guest.own_frames import program_frames
from snapconv.units import counted

_STANDARD_LIBRARY = get_paths()["stdlib"]
_LIBRARY_FOLDERS = ("site-packages", "dist-packages")
_MAX_SHOWN = 4


def shown(listed: Iterable[str], noun: str = "place") -> str:
    """Name the first ones of a list, and how many more there are."""
    names = [*listed]
    text = ", ".join(names[:_MAX_SHOWN])
    n_more = len(names) - _MAX_SHOWN
    return f"{text} and {counted(n_more, f'more {noun}')}" if n_more > 0 else text


def torch_folder() -> str:
    """Return the folder of torch's own files."""
    return str(Path(str(sys.modules["torch"].__file__)).parent)


def users_place() -> str:
    """Name the innermost line outside torch; for a library's, also the program's line before it."""
    torch_files = torch_folder()
    innermost = None
    for frame in program_frames():
        filename = frame.f_code.co_filename
        if filename.startswith((torch_files, "<")):
            continue
        line = f"{shortened(filename)}:{frame.f_lineno}"
        is_installed = any(folder in filename for folder in _LIBRARY_FOLDERS)
        if not is_installed and not filename.startswith(_STANDARD_LIBRARY):
            return line if innermost is None else f"{innermost} called at {line}"
        innermost = innermost or line
    return innermost or "(unknown line)"


def shortened(filename: str) -> str:
    """Write a library's file from its package on, the program's from the current folder on."""
    for folder in _LIBRARY_FOLDERS:
        _, separator, name = filename.replace("\\", "/").rpartition(f"/{folder}/")
        if separator:
            return name
    return filename.removeprefix(f"{Path.cwd()}{os.sep}")
