"""One file of a job -> its row: the work of a worker, text in and text out, so that nothing else is unpacked.

A worker needs snapconv of the same version and access to the files, nothing else. Whatever happens here
becomes a row with an error, but for what ends the process.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from snapconv.analysis import AnalysisOptions, analyze_file
from snapconv.answers.memory_report import build_memory_report
from snapconv.answers.ranks.rank_file import RankFile, rank_file
from snapconv.errors import InputError, OutputWriteError, SnapconvError
from snapconv.files import SNAPSHOT_NAME
from snapconv.json_text import read_json, write_json
from snapconv.ranks.job_files import is_remote, open_store
from snapconv.stacks.paths import PathMap
from snapconv.version import VERSION
from snapconv.writers.sqlite.memory_database import memory_database
from snapconv.writers.sqlite.tables import write_databases

_PIECE_BYTES = 4 << 20
# Left free for others on the disk of temporary files.
_SPARE_BYTES = 1 << 30
_FOLDER = "snapconv-ranks-"


@dataclass(frozen=True, slots=True)
class RankRequest:
    """What a worker is to do: read a file, and with ``reports`` write a memory report there.

    ``mark`` is a part of the report's name where another file may be of the same rank.
    """

    place: RankFile
    options: AnalysisOptions
    reports: str | None = None
    mark: str = ""

    def to_text(self) -> str:
        """Return it as JSON."""
        options = self.options
        values = {
            "place": self.place.to_json(),
            "project_root": options.project_root,
            "includes": list(options.includes),
            "path_maps": [[one.old, one.new] for one in options.path_maps],
            "certain": options.certain,
            "reports": self.reports,
            "mark": self.mark,
        }
        return write_json(values).decode()

    @classmethod
    def from_text(cls, text: str) -> "RankRequest":
        """Make it from what ``to_text`` returned."""
        values = read_json(text.encode())
        options = AnalysisOptions(
            project_root=values["project_root"],
            includes=tuple(values["includes"]),
            path_maps=tuple(PathMap(*pair) for pair in values["path_maps"]),
            certain=values["certain"],
        )
        return cls(RankFile.from_json(values["place"]), options, values["reports"], values["mark"])


def read_rank(text: str) -> str:
    """Read the file of a request; return its row, and the version of snapconv that made it."""
    request = RankRequest.from_text(text)
    return _answer(_read(request))


def _answer(file: RankFile) -> str:
    return write_json({"snapconv": VERSION, "file": file.to_json()}).decode()


def with_error(place: RankFile, error: BaseException, message: str = "") -> RankFile:
    """Return the row of a file that could not be read."""
    text = message or str(error) or type(error).__name__
    return replace(place, error=text, exit_code=getattr(error, "exit_code", 1))


def _read(request: RankRequest) -> RankFile:
    place = request.place
    try:
        with _here(place.file) as path:
            try:
                analysis = analyze_file(path, request.options)
                found = rank_file(analysis, place)
                if request.reports is not None:
                    _write_reports(request, found, [build_memory_report(one) for one in analysis.devices])
            except SnapconvError as error:
                return with_error(place, error, str(error).replace(str(path), place.file))
        return found
    except SnapconvError as error:
        return with_error(place, error)
    except MemoryError:
        return with_error(place, InputError(f"{place.file}: this machine's memory does not suffice for it"))
    except Exception as error:  # noqa: BLE001  # one file of a thousand, whatever a store or a bug raises
        return with_error(place, error, f"{place.file}: {type(error).__name__}: {error}")


# --- files of stores


@contextmanager
def _here(file: str) -> Iterator[Path]:
    """Yield the path of a file; that of a store is copied to this machine for as long."""
    if not is_remote(file):
        yield Path(file)
        return
    _remove_left_behind()
    store, path = open_store(file)
    with tempfile.TemporaryDirectory(prefix=f"{_FOLDER}{os.getpid()}-") as folder:
        copy = Path(folder) / SNAPSHOT_NAME
        room = shutil.disk_usage(folder).free - _SPARE_BYTES
        with store.open(path, "rb") as source, copy.open("wb") as target:
            while piece := source.read(_PIECE_BYTES):
                room -= len(piece)
                if room < 0:
                    raise InputError(f"{file}: no room for it below {folder}: set TMPDIR to a larger disk")
                target.write(piece)
        yield copy


def _remove_left_behind() -> None:
    """Remove what workers that were killed on this machine left of files of stores."""
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER}*"):
        process = folder.name.removeprefix(_FOLDER).partition("-")[0]
        if process.isdecimal() and not _is_running(int(process)):
            shutil.rmtree(folder, ignore_errors=True)


def _is_running(process: int) -> bool:
    if sys.platform != "win32":  # there it would be ended
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return False
        except (OSError, OverflowError):  # somebody else's
            return True
    return True


# --- reports


def _write_reports(request: RankRequest, file: RankFile, reports: list[Any]) -> None:
    """Write the memory report of every device, to a folder or a store; one that is there is replaced."""
    assert request.reports is not None
    stem = "-".join(
        filter(
            None,
            (file.name.replace(" ", "") if file.rank is not None else _stem(file), file.dump, request.mark),
        )
    )
    names = [f"{stem}.{device.name.replace(':', '')}.memory.sqlite" for device in file.devices]
    if not is_remote(request.reports):
        folder = Path(request.reports)
        with suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
        _write(folder, names, reports)
        return
    store, target = open_store(request.reports)
    with tempfile.TemporaryDirectory(prefix=f"{_FOLDER}{os.getpid()}-") as folder_name:
        _write(Path(folder_name), names, reports)
        for name in names:
            try:
                store.put_file(str(Path(folder_name) / name), f"{target.rstrip('/')}/{name}")
            except Exception as error:  # every store has errors of its own
                raise OutputWriteError(f"cannot write {request.reports}/{name}: {error}") from error


def _stem(file: RankFile) -> str:
    return "-".join(part for part in file.file.replace("\\", "/").split("/")[-2:] if part)


def _write(folder: Path, names: list[str], reports: list[Any]) -> None:
    databases = [
        memory_database(folder / name, report, extended=True)
        for name, report in zip(names, reports, strict=True)
    ]
    write_databases(databases, force=True)


# --- alone in a process of its own

# Python's own -m and -c import from the current folder first, which may be that of a stranger's files.
_ALONE = "import sys; sys.path[:] = sys.argv[1:]; from snapconv.ranks.rank_reading import main; main()"


def read_alone(text: str) -> str:
    """Read the file of a request in a new process, whose end is an error of this file alone."""
    done = subprocess.run(
        [sys.executable, "-c", _ALONE, *sys.path],
        input=text.encode(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    if done.returncode == 0 and done.stdout:
        return done.stdout.decode()
    place = RankRequest.from_text(text).place
    how = f"signal {-done.returncode}" if done.returncode < 0 else f"exit code {done.returncode}"
    error = InputError(
        f"{place.file}: the process that read it ended with {how}, alone too: probably this machine's memory "
        "does not suffice for it"
    )
    return _answer(with_error(place, error))


def main() -> None:
    """Answer the request on the standard input."""
    sys.stdout.write(read_rank(sys.stdin.buffer.read().decode()))
