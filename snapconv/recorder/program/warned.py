"""Warnings of torch's C++ code -> the user's line.

They name the innermost Python frame, which is one of ours where a mode stands between the user and torch.
"""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TextIO

from snapconv.recorder.program.own_frames import is_ours, stands_in


@contextmanager
def warnings_name_the_user() -> Iterator[None]:
    """Show warnings that would name a line of ours with the user's; others as they are."""
    before = warnings.showwarning

    @stands_in
    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if is_ours(filename):
            filename, lineno = _users_line() or (filename, lineno)
        before(message, category, filename, lineno, file, line)

    warnings.showwarning = show
    try:
        yield
    finally:
        if warnings.showwarning is show:  # else the program has taken it since
            warnings.showwarning = before


def _users_line() -> tuple[str, int] | None:
    """Find the innermost frame that is neither torch's, nor ours, nor of the warnings themselves."""
    torch_folder = (
        str(Path(str(sys.modules["torch"].__file__)).parent) + os.sep if "torch" in sys.modules else None
    )
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        filename = frame.f_code.co_filename
        is_torch = torch_folder is not None and filename.startswith(torch_folder)
        if not is_ours(filename) and not is_torch and filename != warnings.__file__:
            return filename, frame.f_lineno
        frame = frame.f_back
    return None
