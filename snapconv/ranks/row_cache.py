"""Rows of files that were read before, as JSON in a folder: a second run reads only what is new.

A row is found by the file's name and version (a store's ETag, or size and time), the options, and snapconv's
version. What cannot be read back is as if it were not there.
"""

import hashlib
import os
import sys
from contextlib import suppress
from pathlib import Path

from snapconv.answers.ranks.rank_file import RankFile
from snapconv.files import keep_file
from snapconv.json_text import JsonError, read_json, write_json
from snapconv.ranks.job_files import JobInput
from snapconv.version import VERSION

# Raised when a row has more or other figures.
_ROW_VERSION = 1


class RowCache:
    """The rows that are kept in a folder; ``folder`` None keeps nothing."""

    def __init__(self, folder: Path | None, options: str) -> None:
        self._folder, self._options = folder, options

    def find(self, one: JobInput) -> RankFile | None:
        """Return the row of a file that has not changed, or None."""
        if (path := self._path(one)) is None:
            return None
        try:
            return RankFile.from_json(read_json(path.read_bytes()))
        except (OSError, ValueError, JsonError):
            return None

    def keep(self, one: JobInput, row: RankFile) -> None:
        """Keep a row, if the file's changes can be seen; a full disk must not end a long run."""
        if row.error is None and (path := self._path(one)) is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                keep_file(path, write_json(row.to_json()))

    def _path(self, one: JobInput) -> Path | None:
        if self._folder is None or one.version is None:
            return None
        name = one.path if "://" in one.path else os.path.abspath(one.path)  # noqa: PTH100  # no links followed
        key = write_json([VERSION, _ROW_VERSION, self._options, name, one.version, one.place.to_json()])
        digest = hashlib.sha256(key).hexdigest()
        return self._folder / digest[:2] / f"{digest[2:]}.json"


def default_cache() -> Path:
    """Return the folder of this user's caches, as the system has it."""
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "snapconv" / "ranks"
