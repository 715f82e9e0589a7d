"""The whole way from patterns to the report of a job: what ``snapconv ranks`` and scripts call."""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path

from snapconv.analysis import AnalysisOptions
from snapconv.answers.ranks.job_report import JobReport, report_job
from snapconv.answers.ranks.rank_file import RankFile
from snapconv.errors import InputError
from snapconv.json_text import read_json
from snapconv.mesh import Mesh
from snapconv.ranks import engines
from snapconv.ranks.job_files import JobInput, find_inputs
from snapconv.ranks.rank_reading import RankRequest, with_error
from snapconv.ranks.row_cache import RowCache
from snapconv.version import VERSION

# Called with the files done, all of them, those with an error, and the seconds since the reading began.
JobProgress = Callable[[int, int, int, float], None]


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of ``read_job``; ``snapconv ranks --help`` has the meaning of each.

    ``client`` is one of Dask's, in place of a ``scheduler``'s address. ``cache``: a folder for results, None
    keeps none. ``mesh`` may be a text such as ``pp=4,dp=8,tp=2``; ``read_job`` raises ValueError for others.
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
        self.report, self.n_left = report, n_left


def read_job(
    patterns: Sequence[str], options: JobOptions | None = None, *, progress: JobProgress | None = None
) -> JobReport:
    """Read the files of a job and compare its ranks; docs/guide/ranks.md has the kinds of patterns.

    The report has ``findings``, ``groups``, ``files`` and ``to_json()``. A file that cannot be read is a row
    with its error. Raises InputError where no file is found or no worker can work, JobStopped for Ctrl-C.
    """
    options = options or JobOptions()
    mesh = Mesh.parse(options.mesh) if isinstance(options.mesh, str) else options.mesh
    inputs = find_inputs(patterns)
    _placed([one.place for one in inputs], mesh)  # a wrong mesh is known before a long reading
    reading = _Reading(inputs, options, progress)
    try:
        reading.run()
    except KeyboardInterrupt as error:
        report = report_job(_placed(reading.rows, mesh))
        raise JobStopped(report, len(inputs) - len(reading.rows)) from error
    return report_job(_placed(reading.rows, mesh))


def _placed(files: Sequence[RankFile], mesh: Mesh | None) -> list[RankFile]:
    """Return the files with the places of their ranks; raises InputError where the mesh has no such rank."""
    placed = []
    for file in files:
        if mesh is None or file.rank is None:
            placed.append(file)
        elif file.rank < mesh.n_ranks:
            placed.append(replace(file, coordinates=mesh.coordinates(file.rank)))
        else:
            raise InputError(
                f"{file.file} is of rank {file.rank}, and --mesh has {mesh.n_ranks} ranks: check its sizes"
            )
    return placed


class _Reading:
    """One run over the files: the rows so far, those of the cache first."""

    def __init__(self, inputs: Sequence[JobInput], options: JobOptions, progress: JobProgress | None) -> None:
        self._inputs, self._options, self._progress = inputs, options, progress
        self._began, self._n_errors = time.monotonic(), 0
        self.rows: list[RankFile] = []
        request = RankRequest(RankFile(""), options.analysis)
        self._cache = RowCache(options.cache, request.to_text())

    def run(self) -> None:
        """Read what the cache does not have, the largest files first."""
        waiting: dict[str, JobInput] = {}
        n_named = Counter((one.place.rank, one.place.dump) for one in self._inputs)
        for one in self._inputs:
            known = self._known(one)
            if known is not None:
                self._add(known)
            else:
                is_only = n_named[one.place.rank, one.place.dump] == 1
                mark = "" if is_only else sha256(one.path.encode("utf-8", "surrogatepass")).hexdigest()[:8]
                request = RankRequest(one.place, self._options.analysis, self._options.reports, mark)
                waiting[request.to_text()] = one
        if not waiting:
            return
        engine, alone = self._engine(list(waiting.values()))
        texts = sorted(waiting, key=lambda text: -(waiting[text].place.n_bytes or 0))
        together = [text for text in texts if waiting[text].path not in alone]
        one_by_one = [text for text in texts if waiting[text].path in alone]
        for text, answer in engines.answers(engine, together, one_by_one):
            row = _row(answer)
            self._cache.keep(waiting.pop(text), row)
            self._add(row)

    def _known(self, one: JobInput) -> RankFile | None:
        if one.error is not None:
            return with_error(one.place, one.error)
        # A report is written by whoever reads the file.
        return None if self._options.reports is not None else self._cache.find(one)

    def _add(self, row: RankFile) -> None:
        self.rows.append(row)
        self._n_errors += row.error is not None
        if self._progress:
            n_seconds = time.monotonic() - self._began
            self._progress(len(self.rows), len(self._inputs), self._n_errors, n_seconds)

    def _engine(self, inputs: Sequence[JobInput]) -> tuple[engines.Engine, set[str]]:
        """Return the engine, and the files that may not fit into a worker's memory beside others."""
        options = self._options
        if options.client is not None:
            return engines.client_engine(options.client), set()
        if options.scheduler is not None:
            return engines.scheduler_engine(options.scheduler), set()
        needed = {one.path: engines.needed_bytes(one.path, one.place.n_bytes) for one in inputs}
        n_workers, share = engines.n_local_workers(list(needed.values()), at_most=options.workers)
        alone = {path for path, n_bytes in needed.items() if n_bytes > share}
        if engines.has_dask():
            return engines.local_dask_engine(n_workers, share), alone
        return engines.pool_engine(n_workers), alone


def _row(answer: str) -> RankFile:
    values = read_json(answer.encode())
    if values["snapconv"] != VERSION:
        raise InputError(
            f"a worker has snapconv {values['snapconv']}, this is {VERSION}: install the same version there"
        )
    return RankFile.from_json(values["file"])
