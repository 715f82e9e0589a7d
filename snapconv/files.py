"""The files of an input, the names of outputs, and output files that are whole or not there.

A capture is the folder that a recording leaves, with the snapshot and, where there are times, the
times. A writer fills temporary files beside its outputs (``new_files``). They take the outputs'
names only when the writer ends without an exception. A killed run leaves no output, at most a
hidden ``.NAME.TOKEN.partial``.
"""

import errno
import io
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO

from snapconv.errors import InputError, OutputExistsError, OutputWriteError
from snapconv.stop_signals import raise_remembered

SNAPSHOT_NAME, TIMING_NAME, ENDING_NAME = "snapshot.pickle", "timing.json", "ending.json"
STANDARD_INPUT = Path("-")
_SUFFIX = ".capture"
_INPUT_SUFFIXES = (".gz", ".zip", ".pickle", ".pkl", ".json", ".html", ".pt")

# What the user calls a report, its kind, and its ending.
_REPORT_NAME = re.compile(r"(.+?)(?:(\.memory|\.time)?(\.sqlite|\.db))?", re.DOTALL)

# The errors of Windows for a file that is open elsewhere: access denied, and a sharing violation.
IN_USE = (5, 32)

# File systems allow 255 bytes for a name; the rest is for the dots, the token and ".partial".
_MAX_NAME_BYTES = 200

_REMEDIES = {
    errno.ENOSPC: "the disk is full; free some space or choose another folder",
    errno.EDQUOT: "your disk quota is used up; free some space or choose another folder",
    errno.EFBIG: (
        "the file would be larger than allowed here; raise `ulimit -f` or choose another folder"
    ),
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
    """Return the times of a capture, whatever has their name; None where there are none."""
    file = path / TIMING_NAME
    return file if is_capture(path) and os.path.lexists(file) else None


def files_of(path: Path) -> tuple[Path, ...]:
    """Return all files of the input at a path: those of a capture, or the file itself."""
    file = snapshot_file(path)
    timing = timing_file(path)
    return (file,) if timing is None else (file, timing)


def open_input(path: Path) -> io.BufferedReader:
    """Open a regular file, so that reading it never waits.

    Raises InputError for pipes and devices, which may wait for ever or never end. So may a file of
    the system that has 0 bytes by its own account, such as /proc/kmsg: that is taken as empty.
    ``-`` is the standard input.
    """
    if path == STANDARD_INPUT:
        copy = _standard_input()
        copy.seek(0)
        return os.fdopen(os.dup(copy.fileno()), "rb")
    file = open(path, "rb", opener=_open_at_once)  # noqa: SIM115  # Path.open takes no opener
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and status.st_size:
        return file
    file.close()
    if not stat.S_ISREG(status.st_mode):
        raise InputError("expected a file, not a pipe or device: save it to a file first")
    return Path(os.devnull).open("rb")


@cache
def _standard_input() -> IO[bytes]:
    """Copy the standard input to a file without a name: a snapshot is read twice."""
    if sys.stdin is None or sys.stdin.isatty():
        raise InputError("the standard input is a terminal: pipe a snapshot into it")
    copy = tempfile.TemporaryFile()  # noqa: SIM115  # it lives as long as the process
    shutil.copyfileobj(sys.stdin.buffer, copy)
    return copy


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


# --- names of outputs


def default_output(path: Path, ending: str) -> Path:
    """Name an output after its input without its suffixes, with an ending such as ``.view.html``.

    It is in the current folder: the input's may be somebody else's.
    """
    if is_capture(path):
        folder = path if path.name not in ("", "..") else path.resolve()
        return Path(f"{folder.name.removesuffix(_SUFFIX) or folder.name}{ending}")
    stem = path.name if path != STANDARD_INPUT else "stdin"
    while stem.lower().endswith(_INPUT_SUFFIXES):
        stem = stem[: stem.rindex(".")]
    return Path(f"{stem or path.name}{ending}")


def report_output(
    path: Path,
    output: Path | None,
    kind: str,
    *,
    ordinal: str = "",
    has_times: bool = False,
) -> Path:
    """Return the path of a report of ``kind`` memory or time: by default in the current folder.

    ``ordinal``, such as ``.cuda1``, distinguishes it from the reports of other devices. An only
    report has the name of ``output``. With a run time report beside it both have their kind in
    their names, and no memory report has the name of a run time report.
    """
    if output is None:
        return default_output(path, f"{ordinal}.{kind}.sqlite")
    match = _REPORT_NAME.fullmatch(output.name)
    name, own_kind, ending = match.groups("")  # type: ignore[union-attr]  # any text matches
    if has_times or own_kind == ".time":
        own_kind = f".{kind}"
        ending = ending or ".sqlite"
    return output.with_name(f"{name}{ordinal}{own_kind}{ending}")


def given_output(output: str | Path) -> Path:
    """Return the path of an output that the user named: through a link, the file that it leads to.

    A link under a name that we choose ourselves may be somebody else's: no writer follows it.
    Raises OutputWriteError for the name of a stream or a folder; a Path has lost a folder's slash.
    """
    name = os.fspath(output)
    if name == "-":
        raise OutputWriteError(
            "cannot write -: an output is a file and no stream; name a file"
        )
    if name.endswith(("/", os.sep)) and name.strip("/" + os.sep):
        raise OutputWriteError(
            f"cannot write {name}: it is a folder's name; give --output {name}NAME"
        )
    path = Path(output)
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def checked_output(
    inputs: Sequence[Path], output: str | Path | None, ending: str, *, force: bool
) -> Path:
    """Return the path of an output, by default named after the last input.

    Raises OutputError where it cannot be written.
    """
    path = default_output(inputs[-1], ending) if output is None else given_output(output)
    check_outputs([path], force=force, inputs=inputs)
    return path


# --- sizes of outputs

# A file repeats a stack, a name or a whole trace for two bytes: what an output repeats is in
# proportion to the file. No real file comes near the bounds, and of these all is written.
_BYTES_PER_BYTE, _FREE_BYTES = 20, 900 << 10
_PART_PER_BYTE = 8
_FREE_PART_BYTES = 256 << 10


def most_bytes_of_output(n_bytes: int) -> int:
    """Return how large an output about a file of this size, unpacked, may become."""
    return _BYTES_PER_BYTE * n_bytes + _FREE_BYTES


def most_bytes_of_part(n_bytes: int) -> int:
    """Return how large a part may become: frames of entries, nodes of a tree, names in stacks."""
    return _PART_PER_BYTE * n_bytes + _FREE_PART_BYTES


# --- outputs


@dataclass(frozen=True, slots=True)
class _Output:
    """The ``path`` of the user, its ``target`` in the real folder, and the file filled first."""

    path: Path
    target: Path
    temporary: Path


@contextmanager
def os_errors(path: Path) -> Iterator[None]:
    """Turn an OSError into an OutputWriteError that names the output and what to do."""
    try:
        yield
    except BrokenPipeError:
        # The display of progress raised it: an output is a regular file.
        raise
    except OSError as error:
        reason = _REMEDIES.get(error.errno or 0) or error.strerror or str(error)
        if getattr(error, "winerror", None) in IN_USE:
            reason = (
                "permission denied, or another program has it open; close it, or "
                "choose another path"
            )
        raise OutputWriteError(f"cannot write {path}: {reason}") from error


def check_outputs(
    paths: Sequence[Path], *, force: bool, inputs: Sequence[Path] = ()
) -> None:
    """Refuse outputs that cannot be written, and the inputs themselves, before any work.

    Nothing is written.
    """
    targets: set[Path] = set()
    for path in paths:
        if not path.name:
            raise OutputWriteError(f"{path} names no file: give --output FOLDER/NAME")
        with os_errors(path):
            _check_is_no_input(path, inputs)
            target = _target(path)
            _check_target(path, target, force=force)
            _check_folder(path, target.parent)
        if target in targets:
            raise OutputWriteError(
                f"cannot write {path}: it is named twice; give every output its own path"
            )
        targets.add(target)


def _check_is_no_input(output: Path, inputs: Sequence[Path]) -> None:
    """Refuse an output that is a snapshot, or a file of a capture, under any of its names."""
    for path in inputs:
        for file in files_of(path):
            if output.exists() and file.exists() and output.samefile(file):
                name = (
                    f"{file.name} of the capture"
                    if is_capture(path)
                    else "the snapshot itself"
                )
                raise OutputWriteError(f"{output} is {name}: choose another --output")


@contextmanager
def new_files(
    paths: Sequence[Path], *, force: bool, token: str = ""
) -> Iterator[tuple[Path, ...]]:
    """Yield one temporary file per output; at the end put all of them in place, or none.

    ``token`` is a part of the temporary names, by which ``remove_partial`` finds those of a killed
    process. The outputs are checked first and again at the end. With ``force`` a failure half-way
    through the replacing (not the writing) can leave some outputs replaced and some not, each of
    them complete.
    """
    check_outputs(paths, force=force)
    with ExitStack() as temporaries:
        outputs = []
        for path in paths:
            output = _create_temporary(path, token)
            temporaries.callback(_remove, output.temporary)
            outputs.append(output)
        with os_errors(paths[0]):  # a writer of several outputs names the one that failed
            yield tuple(output.temporary for output in outputs)
        raise_remembered()  # a stopped command leaves no output
        for output in outputs:
            with os_errors(output.path):
                sync(output.temporary, os.O_RDWR)
        _put_all_in_place(outputs, force=force)


def remove_partial(folder: Path, token: str) -> None:
    """Remove the temporary files of processes that were killed while writing, by ``token``."""
    for temporary in folder.glob(f".*.{token}*.partial"):
        _remove(temporary)


def keep_file(path: Path, content: bytes) -> None:
    """Put a small file of a cache in place, whole or not at all; raises OSError.

    A power cut may lose it.
    """
    temporary = hidden_path(path)
    try:
        temporary.write_bytes(content)
        temporary.replace(path)
    finally:
        _remove(temporary)


def hidden_path(path: Path, token: str = "") -> Path:
    """Name a hidden file or folder beside an output, on the same file system."""
    name = os.fsencode(path.name)[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
    return path.with_name(f".{name}.{token}{os.urandom(8).hex()}.partial")


def _target(path: Path) -> Path:
    """Return the path with the links of its folders followed, and not its own."""
    return Path(os.path.realpath(path.parent), path.name)


def _check_target(path: Path, target: Path, *, force: bool) -> None:
    """Refuse what is there already; only a regular file may be replaced, and only with force."""
    try:
        mode = target.lstat().st_mode
    except FileNotFoundError:
        return
    if stat.S_ISLNK(mode):
        raise OutputWriteError(
            f"cannot write {path}: it is a link; name a file with --output"
        )
    if stat.S_ISDIR(mode):
        raise OutputWriteError(
            f"cannot write {path}: it is a folder; name a file inside it"
        )
    if not stat.S_ISREG(mode):
        raise OutputWriteError(
            f"cannot write {path}: it is not a regular file; choose another path"
        )
    if not force:
        raise _exists(path)


def _check_folder(path: Path, folder: Path) -> None:
    """Refuse a folder that is missing or not ours to write to."""
    folder.stat()
    if not os.access(folder, os.W_OK | os.X_OK):
        reason = "cannot be written to; choose another, or change its permissions"
        raise OutputWriteError(f"cannot write {path}: its folder {folder} {reason}")


def _exists(path: Path) -> OutputExistsError:
    return OutputExistsError(
        f"{path} exists already; choose another path, or replace it with --force"
    )


def _create_temporary(path: Path, token: str) -> _Output:
    """Create an empty hidden file beside the output, with the permissions of a new file."""
    target = _target(path)
    temporary = hidden_path(target, token)
    with os_errors(path):
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666))
    return _Output(path, target, temporary)


def _remove(file: Path) -> None:
    """Remove a file of ours; that it cannot be removed must not hide the error that led here."""
    with suppress(OSError):
        file.unlink()


def sync(path: Path, flags: int) -> None:
    """Wait until a file or folder, opened with these flags, is on the disk."""
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
        # Some file systems cannot sync a folder; the files are whole all the same.
        with suppress(OSError):
            sync(folder, os.O_RDONLY)


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
