"""Requests for a capture now, from another process of the same user: ``snapconv watch --pid``.

A process that answers them has a folder, named by its number, in the system's folder for temporary
files, that no other user may enter. A request is an empty file in it; a thread looks for one twice
a second, writes a capture, and leaves an answer. A program that hangs is captured too.
"""

import os
import shutil
import stat
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from snapconv.errors import InputError, RecorderError

_EVERY_S = 0.5
# To name the frames of C++ for the first time takes torch up to a minute.
LONGEST_S = 120.0
# The answer is the paths, each with a character behind it that no path has.
_REQUEST, _ANSWER, _END = "request", "answer", "\0"
_FOLDER = "snapconv-requests"


class Requests:
    """The requests that this process answers; ``capture`` returns the captures that it wrote.

    Raises RecorderError where the folder cannot be made, or where another recording of this process
    answers already.
    """

    # The process whose requests are answered; a forked child has the value of its parent.
    _answering_pid = 0

    def __init__(self, capture: Callable[[], list[Path]]) -> None:
        self._capture = capture
        self._pid = os.getpid()
        self._folder = _folder(self._pid)
        if Requests._answering_pid == self._pid:
            raise RecorderError("another recording of this process answers requests")
        _make_private(self._folder)
        Requests._answering_pid = self._pid
        self._over = threading.Event()
        threading.Thread(target=self._listen, name="snapconv-requests", daemon=True).start()

    def close(self) -> None:
        """Stop listening, and remove the folder: who waits for an answer sees that."""
        self._over.set()
        if os.getpid() == self._pid:  # the folder is not a forked child's
            Requests._answering_pid = 0
            shutil.rmtree(self._folder, ignore_errors=True)

    def _listen(self) -> None:
        while not self._over.wait(_EVERY_S):
            try:
                (self._folder / _REQUEST).unlink()
            except OSError:
                continue
            paths = "".join(f"{path.absolute()}{_END}" for path in self._capture())
            unfinished = self._folder / f"{_ANSWER}.unfinished"
            with suppress(OSError):  # the folder may be gone, and nobody waits
                unfinished.write_text(paths, encoding="utf-8", errors="surrogateescape")
                unfinished.replace(self._folder / _ANSWER)


def request_capture(pid: int, *, longest_s: float = LONGEST_S) -> list[Path]:
    """Have another process write a capture now, and return its path.

    Raises InputError where no process of this number answers requests of this user; RecorderError
    where it wrote no capture, or gave no answer in time.
    """
    folder = _folder(pid)
    answer = folder / _ANSWER
    if not folder.is_dir() or not _is_running(pid):
        raise InputError(
            f"process {pid} answers no requests: start it with `snapconv watch`, with "
            "MemoryCallback, or within snapconv.recording(..., on_request=True), as this user"
        )
    _check_private(folder.parent)
    answer.unlink(missing_ok=True)
    (folder / _REQUEST).touch()
    deadline_s = time.monotonic() + longest_s
    while time.monotonic() < deadline_s:
        with suppress(OSError):
            *paths, _ = answer.read_text(encoding="utf-8", errors="surrogateescape").split(
                _END
            )
            if not paths:
                raise RecorderError(f"process {pid} wrote no capture; its log says why")
            return [Path(path) for path in paths]
        if not folder.is_dir() or not _is_running(pid):
            raise RecorderError(f"process {pid} ended before it wrote a capture")
        time.sleep(_EVERY_S / 5)
    raise RecorderError(f"process {pid} wrote no capture within {longest_s:.0f} s")


def _folder(pid: int) -> Path:
    user = ""  # on Windows the folder for temporary files is the user's own
    if sys.platform != "win32":
        user = f"-{os.getuid()}"
    return Path(tempfile.gettempdir()) / f"{_FOLDER}{user}" / str(pid)


def _make_private(folder: Path) -> None:
    """Make a folder that no other user may enter, anew: the number may have been another's."""
    try:
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        _check_private(folder.parent)
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
    except OSError as error:
        raise RecorderError(f"{folder} cannot be made: {error.strerror}") from error


def _check_private(folder: Path) -> None:
    """Refuse a folder that another user made or may write in."""
    if sys.platform != "win32":
        status = folder.lstat()
        is_private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o022
        if status.st_uid != os.getuid() or not is_private:
            raise RecorderError(f"{folder} is not a folder of this user alone")


def _is_running(pid: int) -> bool:
    if sys.platform != "win32":  # there, os.kill ends a process
        try:
            os.kill(pid, 0)
        except OSError:
            return False
    return True
