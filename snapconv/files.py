"""The files of an input, and output files that are whole or not there.

A capture is the folder that a recording leaves, with the snapshot and, where there are times, the times.
Outputs are independent of their content. A writer fills temporary files beside its outputs:

    with new_files([path], force=False) as (temporary,):
        ...fill temporary...

and only when the block ends without an exception do they take their outputs' names. A killed run
leaves no output, at most a hidden ``.NAME.TOKEN.partial``, which a later run for the same output
removes if it was not changed for an hour.
"""

import errno
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from snapconv.errors import OutputExistsError, OutputWriteError
from snapconv.stop_signals import raise_remembered

SNAPSHOT_NAME, TIMING_NAME = "snapshot.pickle", "timing.json"
_SUFFIX = ".capture"

# A living run touches its temporary files far more often than this.
_STALE_AFTER_S = 3600

# What Windows says of a file that is open elsewhere: access denied, and a sharing violation.
IN_USE = (5, 32)

# File systems allow 255 bytes for a name; the rest is for the dots, the token and ".partial".
_MAX_NAME_BYTES = 200

_WHAT_TO_DO = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another folder",
    errno.EFBIG: "the file would be larger than allowed here; raise `ulimit -f` or choose another folder",
    errno.EACCES: "permission denied; choose a folder that you may write to",
    errno.EPERM: "not permitted; choose a folder that you may write to",
    errno.EROFS: "the file system is read-only; choose another folder",
    errno.ENOENT: "its folder does not exist; create it first",
    errno.ENOTDIR: "its folder is not a folder; choose another path",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
}


# --- captures


def is_capture(path: Path) -> bool:
    """Return whether a path is the folder of a capture."""
    try:
        return path.is_dir() and (path / SNAPSHOT_NAME).is_file()
    except OSError:  # what cannot be looked at has its error when it is read
        return False


def snapshot_file(path: Path) -> Path:
    """Return the snapshot of a capture, or the path itself if it is no capture."""
    return path / SNAPSHOT_NAME if is_capture(path) else path


def timing_file(path: Path) -> Path | None:
    """Return the times of a capture; None where there are none."""
    file = path / TIMING_NAME
    return file if is_capture(path) and file.is_file() else None


def files_of(path: Path) -> tuple[Path, ...]:
    """Return all files of the input at a path: those of a capture, or the file itself."""
    timing = timing_file(path)
    return (snapshot_file(path),) if timing is None else (snapshot_file(path), timing)


def stem_of(path: Path) -> Path:
    """Return the path that the outputs of a capture are named after: its folder, without ``.capture``."""
    folder = path if path.name not in ("", "..") else path.resolve()
    return folder.with_name(folder.name.removesuffix(_SUFFIX) or folder.name)


# --- outputs


@dataclass(frozen=True, slots=True)
class _Output:
    """``path`` as the user gave it, ``target`` with its links followed, the file being filled."""

    path: Path
    target: Path
    temporary: Path


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into an OutputWriteError that names the output and what to do."""
    try:
        yield
    except OSError as error:
        reason = _WHAT_TO_DO.get(error.errno or 0) or error.strerror or str(error)
        if getattr(error, "winerror", None) in IN_USE:
            reason = "permission denied, or another program has it open; close it, or choose another path"
        raise OutputWriteError(f"cannot write {path}: {reason}") from error


def check_outputs(paths: Sequence[Path], *, force: bool) -> None:
    """Refuse outputs that cannot be written, before any work is done; writes nothing."""
    seen: set[Path] = set()
    for path in paths:
        with os_errors(path):
            target = _follow_links(path)
            _check_target(path, target, force=force)
            _check_folder(path, target.parent)
        if target in seen:
            raise OutputWriteError(f"cannot write {path}: it is named twice; give every output its own path")
        seen.add(target)


@contextmanager
def new_files(paths: Sequence[Path], *, force: bool) -> Iterator[tuple[Path, ...]]:
    """Yield one temporary file per output; at the end put all of them in place, or none.

    The outputs are checked first and again at the end. With ``force`` a failure half-way through
    the replacing (not the writing) can leave some outputs replaced and some not, each of them complete.
    """
    check_outputs(paths, force=force)
    with ExitStack() as temporaries:
        outputs = []
        for path in paths:
            output = _create_temporary(path)
            temporaries.callback(_remove, output.temporary)
            outputs.append(output)
        yield tuple(output.temporary for output in outputs)
        raise_remembered()  # what was stopped leaves nothing
        for output in outputs:
            with os_errors(output.path):
                _sync(output.temporary, os.O_RDWR)
        _put_all_in_place(outputs, force=force)


def _follow_links(path: Path) -> Path:
    """Return the target of a link: replacing the link by a file is not what its owner meant."""
    return Path(os.path.realpath(path))


def _check_target(path: Path, target: Path, *, force: bool) -> None:
    """Refuse what is there already; only a regular file may be replaced, and only with force."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISDIR(mode):
        raise OutputWriteError(f"cannot write {path}: it is a folder; name a file inside it")
    if not stat.S_ISREG(mode):
        raise OutputWriteError(f"cannot write {path}: it is not a regular file; choose another path")
    if not force:
        raise _exists(path)


def _check_folder(path: Path, folder: Path) -> None:
    """Refuse a folder that is missing or not ours to write to."""
    folder.stat()
    if not os.access(folder, os.W_OK | os.X_OK):
        reason = "cannot be written to; choose another, or change its permissions"
        raise OutputWriteError(f"cannot write {path}: its folder {folder} {reason}")


def _exists(path: Path) -> OutputExistsError:
    return OutputExistsError(f"{path} exists already; choose another path, or replace it with --force")


def _create_temporary(path: Path) -> _Output:
    """Create an empty hidden file beside the output, with the permissions of a new file."""
    target = _follow_links(path)
    name = os.fsencode(target.name)[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
    temporary = target.with_name(f".{name}.{os.urandom(8).hex()}.partial")
    with os_errors(path):
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
        _remove_stale(temporary, name)
    return _Output(path, target, temporary)


def _remove_stale(temporary: Path, name: str) -> None:
    """Remove what killed runs for the same output left behind.

    Ages are compared with our own new file, so the clock is the file system's.
    """
    leftover = re.compile(re.escape(f".{name}.") + r"[0-9a-f]{16}\.partial")
    with suppress(OSError), os.scandir(temporary.parent) as entries:
        now = temporary.stat().st_mtime
        for entry in entries:
            if not leftover.fullmatch(entry.name) or not entry.is_file(follow_symlinks=False):
                continue
            if now - entry.stat(follow_symlinks=False).st_mtime > _STALE_AFTER_S:
                _remove(Path(entry.path))


def _remove(file: Path) -> None:
    """Remove a file of ours; that it cannot be removed must not hide the error that led here."""
    with suppress(OSError):
        file.unlink()


def _sync(path: Path, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _put_all_in_place(outputs: Sequence[_Output], *, force: bool) -> None:
    """Give every finished file its name; without force, undo all if one of them is refused."""
    with ExitStack() as undo:
        for output in outputs:
            with os_errors(output.path):
                _put_in_place(output, force=force)
            if not force:
                undo.callback(_remove, output.target)
        undo.pop_all()
    for folder in {output.target.parent for output in outputs}:
        with suppress(OSError):  # some file systems cannot sync a folder; the files are whole all the same
            _sync(folder, os.O_RDONLY)


def _put_in_place(output: _Output, *, force: bool) -> None:
    """Rename, or without force link: a link fails when the name was taken in the meantime."""
    if force:
        output.temporary.replace(output.target)
        return
    try:
        output.target.hardlink_to(output.temporary)
    except FileExistsError as error:
        raise _exists(output.path) from error
    except OSError:  # a file system without hard links, such as FAT
        _check_target(output.path, output.target, force=False)
        output.temporary.replace(output.target)
