"""Patterns -> the report of a job, for ``snapconv ranks`` and scripts.

Rows are kept as JSON in a folder, so that a second run reads only what is new. A row is found by
the file's name and version (a store's ETag, or size and time), the options, and snapconv's version.
A row that cannot be read back is read from its file again.
"""

import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from snapconv.analysis import AnalysisOptions
from snapconv.answers.ranks.job_report import JobReport, report_job
from snapconv.answers.ranks.rank_file import RankFile
from snapconv.errors import InputError
from snapconv.files import check_outputs, keep_file, os_errors
from snapconv.json_text import JsonError, dataclass_from, read_json, write_json
from snapconv.mesh import Mesh
from snapconv.ranks import workers
from snapconv.ranks.job_files import JobInput, find_inputs, is_remote
from snapconv.ranks.rank_reading import RankRequest, remove_temporary_files
from snapconv.version import VERSION

# Raised when a row has more or other figures.
_ROW_VERSION = 2
# Digits of a hash that tells the reports of two files of one rank apart.
_MARK_LENGTH = 8
# Below both, a cluster of Dask takes longer to start than the files to read.
_MANY_FILES, _MANY_BYTES = 64, 4 << 30
# Called with the files done, all of them, those with an error, and the seconds since the reading
# began.
JobProgress = Callable[[int, int, int, float], None]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of ``read_job``; ``snapconv ranks --help`` has the meaning of each.

    ``client`` is one of Dask's, in place of a ``scheduler``'s address. ``cache``: a folder for
    results, None keeps none. ``mesh`` may be a text such as ``pp=4,dp=8,tp=2``; ``read_job`` raises
    ValueError for others.
    """

    mesh: Mesh | str | None = None
    scheduler: str | None = None
    client: object = None
    workers: int | None = None
    cache: Path | None = None
    reports: str | None = None
    analysis: AnalysisOptions = field(default_factory=AnalysisOptions)


class JobStopped(KeyboardInterrupt):
    """The reading was stopped; ``report`` is of what was read until then."""

    def __init__(self, report: JobReport, n_left: int) -> None:
        super().__init__()
        self.report = report
        self.n_left = n_left


def read_job(
    patterns: Sequence[str],
    options: JobOptions | None = None,
    *,
    progress: JobProgress | None = None,
) -> JobReport:
    """Read the files of a job and compare its ranks; docs/guide/ranks.md has the kinds of patterns.

    The report has ``findings``, ``groups``, ``files`` and ``to_json()``. A file that cannot be read
    is a row with its error. Without a client it starts processes, so a script needs ``if __name__
    == "__main__":``. Raises InputError where no file is found or no worker can work, JobStopped for
    Ctrl-C.
    """
    options = options or JobOptions()
    mesh = Mesh.parse(options.mesh) if isinstance(options.mesh, str) else options.mesh
    is_elsewhere = options.client is not None or options.scheduler is not None
    inputs = find_inputs(patterns, is_absolute=is_elsewhere)
    _refuse_reports(options.reports)
    # A wrong mesh is refused before a long reading.
    _placed([item.row for item in inputs], mesh)
    rows: list[RankFile] = []
    began = time.monotonic()
    n_errors = 0
    try:
        with closing(_rows(inputs, options)) as new_rows:
            for row in new_rows:
                rows.append(row)
                n_errors += row.error is not None
                if progress:
                    progress(len(rows), len(inputs), n_errors, time.monotonic() - began)
    except KeyboardInterrupt as error:
        report = report_job(_placed(rows, mesh), is_whole=False)
        raise JobStopped(report, len(inputs) - len(rows)) from error
    return report_job(_placed(rows, mesh), n_ranks=mesh.n_ranks if mesh else None)


def _placed(files: Sequence[RankFile], mesh: Mesh | None) -> list[RankFile]:
    """Return the files with the coordinates of their ranks.

    Raises InputError where the mesh has no such rank.
    """
    if mesh is None:
        return list(files)
    if files and all(file.rank is None for file in files):
        raise InputError(
            f"--mesh places ranks, and no name has one, such as rank3: {files[0].file}"
        )
    placed = []
    for file in files:
        if file.rank is not None:
            if file.rank >= mesh.n_ranks:
                raise InputError(
                    f"{file.file} is of rank {file.rank}, and --mesh has {mesh.n_ranks} ranks: "
                    "check its sizes"
                )
            file = replace(file, coordinates=mesh.coordinates(file.rank))
        placed.append(file)
    return placed


def _refuse_reports(target: str | None) -> None:
    """Raise OutputWriteError before a long reading where reports cannot be written."""
    if target is None or is_remote(target):
        return
    with os_errors(Path(target)):
        Path(target).mkdir(parents=True, exist_ok=True)
    check_outputs([Path(target, "rank0.memory.sqlite")], force=True)


def _rows(
    inputs: Sequence[JobInput], options: JobOptions
) -> Generator[RankFile, None, None]:
    """Yield a row for every file: cached rows, then new ones, those of the largest files first."""
    cache = _RowCache(options.cache, RankRequest.text(RankFile(""), options.analysis))
    requests: dict[str, JobInput] = {}
    job = secrets.token_hex(8)
    n_files = Counter((item.row.rank, item.row.dump) for item in inputs)
    for item in sorted(inputs, key=_size, reverse=True):
        row: RankFile | None = item.row
        if item.row.error is None:
            # Only reading a file writes its report.
            row = cache.find(item) if options.reports is None else None
        if row is not None:
            yield row
            continue
        mark = ""
        if n_files[item.row.rank, item.row.dump] > 1:  # its report needs a name of its own
            mark = _digest(item.path.encode("utf-8", "surrogatepass"))[:_MARK_LENGTH]
        text = RankRequest.text(item.row, options.analysis, options.reports, mark, job)
        requests[text] = item
    if requests:
        yield from _read_rows(requests, options, cache, job)
    for item in requests.values():  # a rank without an answer must be seen
        error = InputError(f"{item.path}: no worker answered; type the command again")
        yield item.row.add_error(error)


def _read_rows(
    requests: dict[str, JobInput], options: JobOptions, cache: "_RowCache", job: str
) -> Iterator[RankFile]:
    """Yield the rows that workers read; what has an answer leaves ``requests``."""
    pool, alone = _workers(options, requests)
    sizes = {text: item.row.n_bytes for text, item in requests.items()}
    try:
        with closing(workers.answers(pool, sizes, alone)) as answers:
            for text, answer in answers:
                row = _row(answer)
                cache.keep(requests.pop(text), row)
                yield row
    finally:
        if not pool.is_elsewhere:
            remove_temporary_files(job, options.reports)


def _size(item: JobInput) -> int:
    return item.row.n_bytes or 0


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def _workers(
    options: JobOptions, requests: dict[str, JobInput]
) -> tuple[workers.Workers, Collection[str]]:
    """Return the workers, and requests that may not fit into the memory of one beside others."""
    if options.client is not None:
        return workers.client_workers(options.client), ()
    if options.scheduler is not None:
        return workers.scheduler_workers(options.scheduler), ()
    memory = {}
    for text, item in requests.items():
        memory[text] = workers.needed_bytes(item.path, item.row.n_bytes)
    n_workers, share = workers.n_local_workers(
        list(memory.values()), max_workers=options.workers
    )
    alone = {text for text, n_bytes in memory.items() if n_bytes > share}
    n_bytes = sum(map(_size, requests.values()))
    is_small = len(requests) < _MANY_FILES and n_bytes < _MANY_BYTES
    if is_small or not workers.has_dask():
        return workers.local_workers(n_workers), alone
    return workers.local_dask_workers(n_workers, share), alone


def _row(answer: str) -> RankFile:
    values = read_json(answer.encode())
    if values["snapconv"] != VERSION:
        raise InputError(
            f"a worker has snapconv {values['snapconv']}, this is {VERSION}: install the same "
            "version there"
        )
    return dataclass_from(RankFile, values["file"])


# --- the cache of rows


class _RowCache:
    """The rows in a folder; ``folder`` None keeps nothing."""

    def __init__(self, folder: Path | None, options: str) -> None:
        self._folder = folder
        self._options = options

    def find(self, item: JobInput) -> RankFile | None:
        """Return the row of a file that has not changed, or None."""
        path = self._path(item)
        if path is None:
            return None
        try:
            return dataclass_from(RankFile, read_json(path.read_bytes()))
        except (OSError, ValueError, JsonError):
            return None

    def keep(self, item: JobInput, row: RankFile) -> None:
        """Keep a row, if the file's changes can be seen; a full disk must not end a long run."""
        path = self._path(item)
        if row.error is None and path is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                keep_file(path, write_json(row))

    def _path(self, item: JobInput) -> Path | None:
        if self._folder is None or item.version is None:
            return None
        name = item.path
        if not is_remote(name):
            name = os.path.abspath(name)  # noqa: PTH100  # no links followed
        key = write_json(
            [VERSION, _ROW_VERSION, self._options, name, item.version, item.row]
        )
        digest = _digest(key)
        return self._folder / digest[:2] / f"{digest[2:]}.json"


# The variable with the folder of a user's caches, and the usual one below the home.
_CACHES = {
    "win32": ("LOCALAPPDATA", "AppData/Local"),
    "darwin": ("", "Library/Caches"),
    "linux": ("XDG_CACHE_HOME", ".cache"),
}


def default_cache() -> Path:
    """Return the folder of this user's caches, as the system has it."""
    variable, folder = _CACHES.get(sys.platform, _CACHES["linux"])
    base = os.environ.get(variable) or Path.home() / folder
    return Path(base) / "snapconv" / "ranks"
