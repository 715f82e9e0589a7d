"""The folder of a capture, written from a snapshot and times: whole, or not there.

The folder is filled beside its place under a hidden name and then renamed. An old capture is
replaced only on request, and only a folder that contains nothing else. A thread may copy it to a
store afterwards.
"""

import errno
import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from snapconv.errors import OutputError, OutputExistsError, OutputWriteError, RecorderError
from snapconv.files import (
    ENDING_NAME,
    SNAPSHOT_NAME,
    TIMING_NAME,
    hidden_path,
    keep_file,
    os_errors,
    sync,
)
from snapconv.json_text import write_json

# Every reader of snapshots can read this protocol, torch's viewer in the browser included.
_PICKLE_PROTOCOL = 4

_DISK_IS_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def check_output(output: Path, *, force: bool) -> None:
    """Refuse a capture that could not be written, before anything runs; leaves nothing behind."""
    with os_errors(output):
        _check_place(output, force=force)
        trial = hidden_path(output)
        trial.mkdir()  # the only sure test of a permission
        trial.rmdir()


def write_capture_somewhere(
    output: Path, snapshot: dict[str, Any], timing: dict[str, Any] | None, *, force: bool
) -> tuple[Path, int]:
    """Write a capture and return its path and its size in bytes.

    A recording may have taken a day: if ``output`` was lost meanwhile, it goes to the nearest
    folder above, to the current one, or to the one for temporary files. A full disk is an error.
    """
    first_error = None
    for path in _possible_paths(output):
        try:
            may_replace = force and path == output
            return path, write_capture(path, snapshot, timing, force=may_replace)
        except OutputError as error:
            cause = error.__cause__
            if isinstance(cause, OSError) and cause.errno in _DISK_IS_FULL:
                raise
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def write_ending(
    capture: Path, devices: list[dict[str, int]], notes: list[dict[str, str]]
) -> None:
    """Add to a capture what is known when the program ends; raises OSError."""
    keep_file(
        capture / ENDING_NAME,
        write_json({"version": 1, "devices": devices, "notes": notes}),
    )


def free_name(path: Path) -> Path:
    """Return a path that nothing has: this one, or one with a number."""
    free = path
    n = 1
    while os.path.lexists(free):
        n += 1
        free = path.with_name(f"{path.stem}-{n}{path.suffix}")
    return free


def _possible_paths(output: Path) -> Iterator[Path]:
    """Yield the output, then others: in the nearest folder, the current, and the temporary one."""
    yield output
    existing_parents = (folder for folder in output.parents if folder.is_dir())
    yield free_name(next(existing_parents, output.parent) / output.name)
    with suppress(OSError):  # the current folder may be gone as well
        yield free_name(Path.cwd() / output.name)
    with suppress(OSError):
        yield free_name(Path(tempfile.gettempdir()) / output.name)


def write_capture(
    output: Path, snapshot: dict[str, Any], timing: dict[str, Any] | None, *, force: bool
) -> int:
    """Write a capture and return its size in bytes; on any failure nothing is left of it."""
    with os_errors(output):
        _check_place(output, force=force)
        temporary = hidden_path(output)
        temporary.mkdir()
        try:
            _fill(temporary, snapshot, timing)
            n_bytes = sum(file.stat().st_size for file in temporary.iterdir())
            _check_place(output, force=force)  # writing took a while
            _put_in_place(temporary, output)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    return n_bytes


def _fill(folder: Path, snapshot: dict[str, Any], timing: dict[str, Any] | None) -> None:
    with (folder / SNAPSHOT_NAME).open("wb") as file:
        pickle.dump(snapshot, file, protocol=_PICKLE_PROTOCOL)
    if timing is not None:
        (folder / TIMING_NAME).write_bytes(write_json(timing))
    for path in folder.iterdir():
        sync(path, os.O_RDWR)  # Windows refuses it for a file that is opened to read


def _check_place(output: Path, *, force: bool) -> None:
    """Refuse what is there already, unless it is a capture that may be replaced."""
    if not os.path.lexists(output):
        return
    if output.is_symlink() or not output.is_dir():
        raise OutputWriteError(
            f"cannot write {output}: it is no folder; choose another --output"
        )
    if not force:
        raise OutputExistsError(
            f"{output} exists already; choose another --output, or replace it with --force"
        )
    names = {entry.name for entry in output.iterdir()} - {
        SNAPSHOT_NAME,
        TIMING_NAME,
        ENDING_NAME,
    }
    if names:
        raise OutputExistsError(
            f"{output} is not replaced: it has {min(names)}, which no capture has; "
            f"choose another --output"
        )


def _put_in_place(temporary: Path, output: Path) -> None:
    """Rename; an old capture steps aside first and is removed after, or put back."""
    old = temporary.with_suffix(".old")
    with suppress(FileNotFoundError):
        output.rename(old)
    try:
        temporary.rename(output)
    except OSError:
        if old.exists():
            old.rename(output)
        raise
    shutil.rmtree(old, ignore_errors=True)


def is_store(output: str) -> bool:
    """Return whether an output is the URL of a store, such as ``s3://bucket/run``."""
    return "://" in output


class Upload:
    """A thread that copies captures to a URL, after the step and never in it.

    A capture is written to ``folder`` first, and removed when it is in the store. What cannot be
    copied stays there, with a warning that names it. Raises RecorderError without fsspec, or the
    store's package.
    """

    def __init__(
        self, url: str, *, say: Callable[[str], None], warn: Callable[[str], None]
    ) -> None:
        self._url = url.rstrip("/")
        self._say = say
        self._warn = warn
        try:
            import fsspec

            self._store, path = fsspec.core.url_to_fs(self._url)
        except Exception as error:  # every store has errors of its own
            advice = ""
            if isinstance(error, ImportError):
                advice = "pip install 'snapconv[remote]' and the store's package: "
            raise RecorderError(f"{url}: {advice}{error}") from error
        self._path = str(path).rstrip("/")
        self.folder = Path(tempfile.mkdtemp(prefix="snapconv-captures-"))
        self._thread = ThreadPoolExecutor(1, "snapconv-upload")

    def add(self, capture: Path) -> None:
        """Let a capture be copied; returns at once."""
        self._thread.submit(self._copy, capture)

    def close(self) -> None:
        """Wait until all are copied."""
        self._thread.shutdown()
        if not any(self.folder.iterdir()):
            self.folder.rmdir()

    def _copy(self, capture: Path) -> None:
        try:
            self._store.makedirs(f"{self._path}/{capture.name}", exist_ok=True)
            for file in sorted(capture.iterdir()):
                self._store.put_file(str(file), f"{self._path}/{capture.name}/{file.name}")
        except Exception as error:  # noqa: BLE001  # every store has errors of its own
            self._warn(
                f"{capture} could not be copied to {self._url}, and stays here: {error}"
            )
            return
        shutil.rmtree(capture, ignore_errors=True)
        self._say(f"copied to {self._url}/{capture.name}")
