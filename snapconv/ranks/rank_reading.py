"""One file of a job -> its row: the work of a worker.

It takes a text and returns a text, so that nothing is unpickled. A worker needs snapconv of the
same version and access to the files, nothing else. Every failure here becomes a row with an error,
unless it ends the process.
"""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path

from snapconv.analysis import Analysis, AnalysisOptions, analyze_file
from snapconv.answers.ranks.rank_file import RankFile, rank_file
from snapconv.errors import InputError, OutputWriteError, SnapconvError
from snapconv.files import SNAPSHOT_NAME, remove_partial
from snapconv.json_text import dataclass_from, read_json, write_json
from snapconv.ranks.job_files import is_remote, open_store
from snapconv.version import VERSION

_PIECE_BYTES = 4 << 20
# Left free for others on the disk of temporary files.
_SPARE_BYTES = 1 << 30
_FOLDER = "snapconv-ranks-"
# A folder is removed only with this file in it, which nobody else writes.
_MARK_NAME = "made-by-snapconv-ranks"
_MARK = "Temporary files of `snapconv ranks`, which removes this folder.\n"
_REPORT_ENDING = ".memory.sqlite"
# No file takes so long, once it is copied.
_STALE_AFTER_S = 6 * 3600


@dataclass(frozen=True, slots=True)
class RankRequest:
    """The task of a worker: to read a file, whose name and rank ``place`` has, by these options.

    With ``reports`` it writes memory reports there; ``mark`` is a part of their names where another
    file may be of the same rank. ``job`` is a part of the names of all temporary files.
    """

    place: RankFile  # the name is part of the keys of cached rows, and so stays
    project_root: str | None
    includes: tuple[str, ...]
    certain: bool
    reports: str | None
    mark: str
    job: str

    @classmethod
    def text(
        cls,
        row: RankFile,
        options: AnalysisOptions,
        reports: str | None = None,
        mark: str = "",
        job: str = "",
    ) -> str:
        """Return the JSON of a request by the options that a job has."""
        request = cls(
            row, options.project_root, options.includes, options.certain, reports, mark, job
        )
        return write_json(request).decode()

    @classmethod
    def parse(cls, text: str) -> "RankRequest":
        """Build a request from the text that ``text`` returned."""
        return dataclass_from(cls, read_json(text.encode()))


def read_rank(text: str) -> str:
    """Read the file of each request, a line; return the rows with the version of snapconv."""
    requests = [RankRequest.parse(line) for line in text.split("\n")]
    return "\n".join(_answer(_read(request)) for request in requests)


def _answer(file: RankFile) -> str:
    return write_json({"snapconv": VERSION, "file": file}).decode()


def _read(request: RankRequest) -> RankFile:
    row = request.place
    options = AnalysisOptions(
        request.project_root, request.includes, certain=request.certain
    )
    try:
        with _local_copy(row.file, request.job) as path:
            try:
                analysis = analyze_file(path, options)
                result = rank_file(analysis, row)
                if request.reports is not None:
                    _write_reports(request.reports, request, result, analysis)
                return result
            except SnapconvError as error:
                return row.add_error(error, str(error).replace(str(path), row.file))
    except SnapconvError as error:
        return row.add_error(error)
    except MemoryError:
        failure = InputError(f"{row.file}: this machine's memory does not suffice for it")
        return row.add_error(failure)
    except Exception as error:  # noqa: BLE001  # stores raise anything; this is one file of many
        return row.add_error(error, f"{row.file}: {type(error).__name__}: {error}")


# --- files of stores


@contextmanager
def _local_copy(file: str, job: str) -> Iterator[Path]:
    """Yield the path of a file; a file of a store is copied to this machine meanwhile."""
    if not is_remote(file):
        yield Path(file)
        return
    for folder in _own_folders():
        with suppress(FileNotFoundError):  # another worker may just have removed its folder
            age_s = time.time() - folder.lstat().st_mtime
            if age_s > _STALE_AFTER_S:
                _remove(folder)
    store, path = open_store(file)
    with _own_folder(job) as folder:
        copy = folder / SNAPSHOT_NAME
        room = shutil.disk_usage(folder).free - _SPARE_BYTES
        with store.open(path, "rb") as source, copy.open("wb") as target:
            while piece := source.read(_PIECE_BYTES):
                room -= len(piece)
                if room < 0:
                    raise InputError(
                        f"{file}: no room for it below {folder}: set TMPDIR to a larger disk"
                    )
                target.write(piece)
        yield copy


# --- temporary folders


@contextmanager
def _own_folder(job: str) -> Iterator[Path]:
    """Yield a new temporary folder, which is removed at the end.

    Another process removes it if this one is killed.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER}{job}"))
    (folder / _MARK_NAME).write_text(_MARK, encoding="ascii")
    try:
        yield folder
    finally:
        _remove(folder)


def _own_folders(job: str = "") -> Iterator[Path]:
    """Find the temporary folders of this user's workers on this machine, of one job or of all."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}{job}*"):
        with suppress(OSError, ValueError):
            status = folder.lstat()
            is_this_users = sys.platform == "win32" or status.st_uid == os.getuid()
            if stat.S_ISDIR(status.st_mode) and is_this_users:
                with (folder / _MARK_NAME).open(encoding="ascii") as mark:
                    is_marked = mark.read(len(_MARK) + 1) == _MARK
                if is_marked:
                    yield folder


def _remove(folder: Path) -> None:
    """Remove a folder of ours with the files that we write; with any other file it stays."""
    with suppress(OSError):
        files = list(folder.iterdir())
        if all(_is_ours(file.name) for file in files):
            for file in files:
                file.unlink()
            folder.rmdir()


def _is_ours(name: str) -> bool:
    return name in (_MARK_NAME, SNAPSHOT_NAME) or name.endswith(
        (_REPORT_ENDING, ".partial")
    )


def remove_temporary_files(job: str, reports: str | None) -> None:
    """Remove the files of workers that were killed on this machine, after the last has ended."""
    for folder in _own_folders(job):
        _remove(folder)
    if reports is not None and not is_remote(reports):
        remove_partial(Path(reports), job)


# --- reports


def _write_reports(
    target: str, request: RankRequest, file: RankFile, analysis: Analysis
) -> None:
    """Write the memory report of every device, to a folder or a store; replace existing ones."""
    # Imported late: every worker imports this module before its first file, and few write reports.
    from snapconv.answers.memory_report import build_memory_report
    from snapconv.writers.sqlite.skyline_reports import memory_database
    from snapconv.writers.sqlite.tables import write_databases

    if file.rank is None:
        names = file.file.replace("\\", "/").split("/")[-2:]
    else:
        names = [f"rank{file.rank}"]
    stem = "-".join(filter(None, (*names, file.dump, request.mark)))
    is_store = is_remote(target)
    with _own_folder(request.job) if is_store else nullcontext(Path(target)) as folder:
        with suppress(OSError):  # writing has the error
            folder.mkdir(parents=True, exist_ok=True)
        paths = []
        databases = []
        for device, device_analysis in zip(file.devices, analysis.devices, strict=True):
            path = folder / f"{stem}.{device.name.replace(':', '')}{_REPORT_ENDING}"
            report = build_memory_report(device_analysis)
            paths.append(path)
            databases.append(memory_database(path, report, extended=True))
        write_databases(databases, force=True, token=request.job)
        if not is_store:
            return
        store, store_folder = open_store(target)
        try:
            for path in paths:
                store.put_file(str(path), f"{store_folder.rstrip('/')}/{path.name}")
        except Exception as error:  # every store has errors of its own
            raise OutputWriteError(f"cannot write to {target}: {error}") from error


# --- alone in a process of its own

# Python's own -m and -c import from the current folder first, which may be that of a stranger's
# files.
_ALONE = (
    "import sys; sys.path[:] = sys.argv[1:]; from snapconv.ranks.rank_reading import main; "
    "main()"
)


def read_alone(text: str) -> str:
    """Read the file of a request in a new process, whose end is an error of this file alone."""
    process = subprocess.run(
        [sys.executable, "-c", _ALONE, *sys.path],
        input=text.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    code = process.returncode
    if code == 0 and process.stdout:
        return process.stdout.decode()
    row = RankRequest.parse(text).place
    ending = f"signal {-code}" if code < 0 else f"exit code {code}"
    error = InputError(
        f"{row.file}: the process that read it ended with {ending}, alone too: probably this "
        "machine's memory does not suffice for it"
    )
    return _answer(row.add_error(error))


def main() -> None:
    """Answer the request on the standard input."""
    sys.stdout.write(read_rank(sys.stdin.buffer.read().decode()))
