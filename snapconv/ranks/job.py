"""The whole way from patterns to the report of a job: what ``snapconv ranks`` and scripts call.

Rows are kept as JSON in a folder, so that a second run reads only what is new. A row is found by
the file's name and version (a store's ETag, or size and time), the options, and snapconv's version.
What cannot be read back is as if it were not there.
"""

import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator, Sequence
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
    _placed([one.place for one in inputs], mesh)  # a wrong mesh is known before a long reading
    rows: list[RankFile] = []
    began = time.monotonic()
    n_errors = 0
    try:
        with closing(_rows(inputs, options)) as found:
            for row in found:
                rows.append(row)
                n_errors += row.error is not None
                if progress:
                    progress(len(rows), len(inputs), n_errors, time.monotonic() - began)
    except KeyboardInterrupt as error:
        report = report_job(_placed(rows, mesh), is_whole=False)
        raise JobStopped(report, len(inputs) - len(rows)) from error
    return report_job(_placed(rows, mesh), n_ranks=mesh.n_ranks if mesh else None)


def _placed(files: Sequence[RankFile], mesh: Mesh | None) -> list[RankFile]:
    """Return the files with the places of their ranks; raises InputError where the mesh has no such rank."""
    if mesh is None:
        return list(files)
    if files and all(file.rank is None for file in files):
        raise InputError(
            f"--mesh places ranks, and no name has one, such as rank3: {files[0].file}"
        )
    for file in files:
        if (file.rank or 0) >= mesh.n_ranks:
            raise InputError(
                f"{file.file} is of rank {file.rank}, and --mesh has {mesh.n_ranks} ranks: check "
                f"its sizes"
            )
    coordinates = [
        file.coordinates if file.rank is None else mesh.coordinates(file.rank) for file in files
    ]
    return [
        replace(file, coordinates=place) for file, place in zip(files, coordinates, strict=True)
    ]


def _refuse_reports(target: str | None) -> None:
    """Raise OutputWriteError where reports cannot be written: known before a long reading."""
    if target is None or is_remote(target):
        return
    with os_errors(Path(target)):
        Path(target).mkdir(parents=True, exist_ok=True)
    check_outputs([Path(target, "rank0.memory.sqlite")], force=True)


def _rows(inputs: Sequence[JobInput], options: JobOptions) -> Generator[RankFile, None, None]:
    """Yield a row for every file: what is known, then what is read, the largest files first."""
    cache = _RowCache(options.cache, RankRequest.text(RankFile(""), options.analysis))
    waiting: dict[str, JobInput] = {}
    job = secrets.token_hex(8)
    n_named = Counter((one.place.rank, one.place.dump) for one in inputs)
    for one in sorted(inputs, key=lambda one: -(one.place.n_bytes or 0)):
        if one.place.error is not None:
            yield one.place
        # A report is written by whoever reads the file.
        elif options.reports is None and (known := cache.find(one)) is not None:
            yield known
        else:
            is_only = n_named[one.place.rank, one.place.dump] == 1
            mark = (
                "" if is_only else sha256(one.path.encode("utf-8", "surrogatepass")).hexdigest()[:8]
            )
            waiting[RankRequest.text(one.place, options.analysis, options.reports, mark, job)] = one
    if waiting:
        at_work, alone = _workers(options, list(waiting.values()))
        alone_texts = {text for text, one in waiting.items() if one.path in alone}
        sizes = {text: one.place.n_bytes for text, one in waiting.items()}
        try:
            with closing(workers.answers(at_work, sizes, alone_texts)) as answers:
                for text, answer in answers:
                    row = _row(answer)
                    cache.keep(waiting.pop(text), row)
                    yield row
        finally:
            if not at_work.is_elsewhere:
                remove_temporary_files(job, options.reports)
    for one in waiting.values():  # a rank that is lost must be seen
        yield one.place.with_error(
            InputError(f"{one.path}: no worker answered; type the command again")
        )


def _workers(
    options: JobOptions, inputs: Sequence[JobInput]
) -> tuple[workers.Workers, Collection[str]]:
    """Return the workers, and the files that may not fit into the memory of one beside others."""
    if options.client is not None:
        return workers.client_workers(options.client), ()
    if options.scheduler is not None:
        return workers.scheduler_workers(options.scheduler), ()
    needed = {one.path: workers.needed_bytes(one.path, one.place.n_bytes) for one in inputs}
    n_workers, share = workers.n_local_workers(list(needed.values()), at_most=options.workers)
    alone = {path for path, n_bytes in needed.items() if n_bytes > share}
    is_small = (
        len(inputs) < _MANY_FILES and sum(one.place.n_bytes or 0 for one in inputs) < _MANY_BYTES
    )
    if is_small or not workers.has_dask():
        return workers.local_workers(n_workers), alone
    return workers.local_dask_workers(n_workers, share), alone


def _row(answer: str) -> RankFile:
    values = read_json(answer.encode())
    if values["snapconv"] != VERSION:
        raise InputError(
            f"a worker has snapconv {values['snapconv']}, this is {VERSION}: install the same "
            f"version there"
        )
    return dataclass_from(RankFile, values["file"])


# --- rows that are kept


class _RowCache:
    """The rows that are kept in a folder; ``folder`` None keeps nothing."""

    def __init__(self, folder: Path | None, options: str) -> None:
        self._folder = folder
        self._options = options

    def find(self, one: JobInput) -> RankFile | None:
        """Return the row of a file that has not changed, or None."""
        if (path := self._path(one)) is None:
            return None
        try:
            return dataclass_from(RankFile, read_json(path.read_bytes()))
        except (OSError, ValueError, JsonError):
            return None

    def keep(self, one: JobInput, row: RankFile) -> None:
        """Keep a row, if the file's changes can be seen; a full disk must not end a long run."""
        if row.error is None and (path := self._path(one)) is not None:
            with suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                keep_file(path, write_json(row))

    def _path(self, one: JobInput) -> Path | None:
        if self._folder is None or one.version is None:
            return None
        name = one.path if "://" in one.path else os.path.abspath(one.path)  # noqa: PTH100  # no links followed
        key = write_json([VERSION, _ROW_VERSION, self._options, name, one.version, one.place])
        digest = sha256(key).hexdigest()
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
