"""The project's source files in the stacks of a snapshot, which a recording keeps on request."""

import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

# Imported before the program's first line: a file that was written later may differ from what ran.
_BEGAN_S = time.time()
_MOST_FILE_BYTES, _MOST_BYTES = 1 << 20, 16 << 20
_INSTALLED = {"site-packages", "dist-packages"}


def project_source(snapshot: dict[str, Any], root: Path) -> dict[str, Any]:
    """Return the text of every Python file of the stacks that lies in the project's folder.

    Installed packages and hidden folders inside it are no part of the project; a link out of the
    folder is not followed. ``left_out`` names the files that changed while the program ran, are too
    large, or cannot be read.
    """
    real_root = Path(os.path.realpath(root))
    texts: dict[str, str] = {}
    left_out = []
    n_remaining = _MOST_BYTES
    for name in sorted(set(_filenames(snapshot))):
        path = Path(os.path.realpath(name))
        if not name.endswith(".py") or not _is_of_project(path, real_root):
            continue
        text = _unchanged_text(path, min(n_remaining, _MOST_FILE_BYTES))
        if text is None:
            left_out.append(name)
        else:
            texts[name] = text
            n_remaining -= len(text)
    return {"files": texts, "left_out": left_out}


def _filenames(snapshot: dict[str, Any]) -> Iterator[str]:
    for trace in snapshot.get("device_traces", ()):
        yield from _files_of_stacks(trace)
    for segment in snapshot.get("segments", ()):
        yield from _files_of_stacks(segment.get("blocks", ()))


def _files_of_stacks(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        for frame in row.get("frames") or ():
            yield frame["filename"]


def _is_of_project(path: Path, root: Path) -> bool:
    if not path.is_relative_to(root):
        return False
    folders = path.relative_to(root).parts[:-1]
    return not any(folder in _INSTALLED or folder.startswith(".") for folder in folders)


def _unchanged_text(path: Path, n_most: int) -> str | None:
    try:
        status = path.stat()
        if not path.is_file() or status.st_mtime > _BEGAN_S or status.st_size > n_most:
            return None
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
