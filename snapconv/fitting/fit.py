"""A program and the values to try -> which combinations fit on a card, and the fewest cards.

Each combination is recorded by ``snapconv record`` without a GPU, in a process of its own, with the
card's usable memory as the limit.
"""

import os
import re
import shutil
import sys
import tempfile
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path

from snapconv.analysis import AnalysisOptions, analyze_file
from snapconv.answers.fit import (
    CardMemory,
    Combination,
    FitReport,
    FitRow,
    Verdict,
    fill_row,
)
from snapconv.answers.what_if.setting_trials import read_card
from snapconv.errors import MOST_OF_REASON, InputError, OutputExistsError, SnapconvError
from snapconv.files import is_capture, os_errors
from snapconv.fitting.processes import Ended, Run, run_all
from snapconv.notes import Progress
from snapconv.units import counted, parse_bytes

WORLD_SIZE = "world-size"
# The end of what a program prints has its error.
_MOST_PRINTED = 1 << 16
# A recording without memory of a device fails by itself.
_NO_CAPTURE = "no capture was left, as where a program ends by os._exit"
# File systems allow 255 bytes.
_MOST_OF_NAME = 200
# As argparse, click and others say it.
_REFUSED_OPTION = re.compile(r"\A(?:[\w./-]+: )?error: ", re.IGNORECASE)
_TRACEBACK = "Traceback (most recent call last):"
_OWN_PREFIX = re.compile(r"^(snapconv: )?(error: )?")
_TEMPORARY = ("TMPDIR", "TEMP", "TMP")
_UNSAFE = re.compile(r"[^\w.=,+-]+")


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The options of ``fit``; ``snapconv fit --help`` has the meaning of each.

    ``card`` is a name or a size of the card table, or ``capacity`` exactly what PyTorch may have.
    Without ``world_sizes`` the program runs as no rank of a job.
    ``args`` are those of the program, with placeholders such as ``{micro-batch}`` for the
    ``values`` to try.
    """

    card: str | None = None
    capacity: str | int | None = None
    world_sizes: Sequence[int] = ()
    values: Mapping[str, Sequence[str]] = field(default_factory=dict)
    args: Sequence[str] = ()
    is_module: bool = False
    ranks: Sequence[int] = (0,)
    nproc_per_node: int | None = None
    keep: Path | None = None
    workers: int | None = None

    def memory(self) -> CardMemory:
        """Return the memory of the card; raises ValueError for a text that is none."""
        if (self.card is None) == (self.capacity is None):
            raise ValueError("give a card or a capacity, and not both")
        if self.card is not None:
            return CardMemory.from_total(*read_card(self.card))
        if isinstance(self.capacity, str):
            return CardMemory(parse_bytes(self.capacity))
        return CardMemory(int(self.capacity or 0))

    def combinations(self) -> tuple[Combination, ...]:
        """Return every combination: each size of the job with each value of every argument.

        Raises ValueError for an argument whose placeholder is that of the size.
        """
        if WORLD_SIZE in self.values:
            raise ValueError(
                f"{{{WORLD_SIZE}}} is the size of the job: give it as --{WORLD_SIZE}"
            )
        combinations = []
        sizes = self.world_sizes or (1,)
        for world_size, chosen in product(sizes, product(*self.values.values())):
            arguments = zip(self.values, map(str, chosen), strict=True)
            combinations.append(Combination(world_size, tuple(arguments)))
        return tuple(dict.fromkeys(combinations))

    def arguments(self, combination: Combination) -> list[str]:
        """Return the program's arguments: placeholders are replaced.

        A value without a placeholder is appended as an option of its name.
        """
        values = {**dict(combination.arguments), WORLD_SIZE: str(combination.world_size)}
        arguments = []
        replaced = {WORLD_SIZE}
        for argument in self.args:
            for name, value in values.items():
                if f"{{{name}}}" in argument:
                    replaced.add(name)
                    argument = argument.replace(f"{{{name}}}", value)
            arguments.append(argument)
        for name, value in combination.arguments:
            if name not in replaced:
                arguments += [f"--{name}", value]
        return arguments


class FitStopped(KeyboardInterrupt):
    """The runs were stopped; ``report`` has the combinations that ran until then."""

    def __init__(self, report: FitReport) -> None:
        super().__init__()
        self.report = report


def fit(entry: str, options: FitOptions, *, progress: Progress | None = None) -> FitReport:
    """Record every combination, and say which fit on the card.

    The report has ``answer``, ``rows`` and ``to_json()``. A combination that fails is a row with
    its reason. Raises ValueError for a card that is none, InputError where no memory is left for
    PyTorch, OutputError for a folder that is there, and FitStopped for Ctrl-C.
    """
    trials = _Trials(entry, options)
    try:
        with ExitStack() as parts:
            endings = trials.run(parts)
            trials.show(progress)
            for ended in endings:
                trials.add(ended)
                trials.show(progress)
    except KeyboardInterrupt as error:
        raise FitStopped(trials.report()) from error
    return trials.report()


@dataclass(frozen=True, slots=True)
class _Trial:
    """A combination recorded as one rank, in a folder of its own."""

    combination: Combination
    rank: int
    folder: Path

    @property
    def capture(self) -> Path:
        """The capture that the recording writes."""
        return self.folder / "run.capture"

    @property
    def printed(self) -> Path:
        """The file with all that the program prints."""
        return self.folder / "printed.txt"


class _Trials:
    """The recordings of one call, and the rows of those that ended."""

    def __init__(self, entry: str, options: FitOptions) -> None:
        self._entry = entry
        self._options = options
        self._card = options.memory()
        self._combinations = options.combinations()
        self.runs: list[_Trial] = []
        self._rows: defaultdict[Combination, list[FitRow]] = defaultdict(list)
        for combination in self._combinations:
            if self._card.usable(combination.world_size) <= 0:
                raise InputError("the card has no memory left for PyTorch")

    def show(self, progress: Progress | None) -> None:
        """Show how many recordings have ended."""
        if progress is None:
            return
        rows = [row for rows in self._rows.values() for row in rows]
        n_fitting = sum(row.verdict is Verdict.FITS for row in rows)
        stage = f"{len(rows)} of {counted(len(self.runs), 'recording')}, {n_fitting} fit"
        progress(stage, len(rows), len(self.runs))

    def run(self, parts: ExitStack) -> Generator[Ended, None, None]:
        """Yield the recordings as they end; ``parts`` removes their folder."""
        folder = self._folder(parts)
        for number, combination in enumerate(self._combinations):
            for rank in self._ranks(combination):
                trial = _Trial(combination, rank, folder / f"{number}-{rank}")
                trial.folder.mkdir()
                self.runs.append(trial)
        runs = [Run(self._command(trial), trial.printed) for trial in self.runs]
        # A process that is killed leaves its temporary files there.
        environment = os.environ | dict.fromkeys(_TEMPORARY, str(folder))
        endings = run_all(runs, environment, n_workers=self._options.workers)
        return parts.enter_context(closing(endings))

    def _folder(self, parts: ExitStack) -> Path:
        """Return a temporary folder for all recordings; check that of the captures to keep."""
        keep = self._options.keep
        if keep is not None:
            with os_errors(keep):
                keep.mkdir(parents=True, exist_ok=True)
                if any(keep.iterdir()):
                    raise OutputExistsError(f"{keep} is not empty; choose a new folder")
        folder = tempfile.TemporaryDirectory(prefix="snapconv-fit-")
        return Path(parts.enter_context(folder))

    def _ranks(self, combination: Combination) -> list[int]:
        ranks = dict.fromkeys(self._options.ranks)
        return [rank for rank in ranks if rank < combination.world_size] or [0]

    def _command(self, trial: _Trial) -> list[str]:
        world_size = trial.combination.world_size
        usable = self._card.usable(world_size)
        command = [sys.executable, "-m", "snapconv", "record", "--simulate", "--no-compute"]
        command += ["--quiet", "--capacity", f"{usable}B", "--output", str(trial.capture)]
        if self._options.world_sizes:
            command += ["--world-size", str(world_size), "--ranks", str(trial.rank)]
        if self._options.nproc_per_node is not None:
            command += ["--nproc-per-node", str(self._options.nproc_per_node)]
        command += ["-m"] * self._options.is_module
        return [*command, "--", self._entry, *self._options.arguments(trial.combination)]

    def add(self, ended: Ended) -> None:
        """Add the row of a recording that ended, and keep its capture if that is wanted."""
        trial = self.runs[ended.number]
        combination = trial.combination
        row = FitRow(
            combination,
            Verdict.FITS if ended.exit_code == 0 else Verdict.FAILED,
            self._card.usable(combination.world_size),
            rank=trial.rank if combination.world_size > 1 else None,
            reason="" if ended.exit_code == 0 else _reason(trial.printed, ended.exit_code),
            n_seconds=ended.n_seconds,
        )
        captures = sorted(filter(is_capture, trial.folder.glob("*.capture")))
        if captures:
            try:
                row = fill_row(row, analyze_file(captures[0], AnalysisOptions()))
            except SnapconvError as error:
                row = replace(row, verdict=Verdict.FAILED, reason=str(error))
        elif ended.exit_code == 0:
            row = replace(row, verdict=Verdict.FAILED, reason=_NO_CAPTURE)
        if captures and self._options.keep is not None:
            row = replace(row, capture=str(self._keep(trial, captures[0])))
        self._rows[combination].append(row)

    def _keep(self, trial: _Trial, capture: Path) -> Path:
        """Move a capture out of the temporary folder, under the name of its combination."""
        assert self._options.keep is not None
        words = [f"{WORLD_SIZE}={trial.combination.world_size}"]
        words += [f"{name}={value}" for name, value in trial.combination.arguments]
        if trial.combination.world_size > 1:
            words.append(f"rank{trial.rank}")
        name = _UNSAFE.sub("_", ".".join(words))
        name = name.encode()[:_MOST_OF_NAME].decode(errors="ignore")
        target = self._options.keep / f"{name}.capture"
        if target.exists():  # values that differ in other characters, or further on
            target = self._options.keep / f"{name}.{trial.folder.name}.capture"
        with os_errors(target):
            shutil.move(capture, target)
        return target

    def report(self) -> FitReport:
        """Return the report of the recordings that ended: of ranks that differ, the worst."""
        rows = []
        not_run = []
        for combination in self._combinations:
            ranks = self._rows[combination]
            if len(ranks) == len(self._ranks(combination)):
                rows.append(max(ranks, key=lambda row: row.order))
            else:
                not_run.append(combination)
        return FitReport(self._entry, self._card, tuple(rows), tuple(not_run))


def _reason(printed: Path, exit_code: int) -> str:
    """Return the error that a program printed: the first line behind its last traceback."""
    text = b""
    with suppress(OSError), printed.open("rb") as file:
        file.seek(max(printed.stat().st_size - _MOST_PRINTED, 0))
        text = file.read()
    lines = text.decode("utf-8", "replace").rstrip().split("\n")
    if _TRACEBACK in lines:
        behind = lines[len(lines) - lines[::-1].index(_TRACEBACK) :]
        errors = [line for line in behind if line and not line[0].isspace()]
        # A program that caught that exception may end by its own refusal of an option.
        errors = list(filter(_REFUSED_OPTION.match, errors)) or errors
    else:
        errors = [line for line in reversed(lines) if line.strip()]
    if exit_code < 0:
        return f"it was killed by signal {-exit_code}"
    if not errors:
        return f"it ended with exit code {exit_code}"
    return _OWN_PREFIX.sub("", errors[0].strip())[:MOST_OF_REASON]
