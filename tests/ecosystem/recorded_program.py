"""A program of the catalogue, recorded by the command line in a process of its own, and converted."""

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.ecosystem.catalogue import MODES, PROGRAMS_FOLDER, Program
from tests.recordings import convert

ROOT = Path(__file__).parents[2]
TIMEOUT_S = 600


@dataclass(frozen=True)
class Run:
    """A process that is over."""

    code: int
    out: str
    err: str
    user_s: float

    @cached_property
    def own_counts(self) -> list[dict[str, Any]]:
        """What the program printed of itself, one count for each of its steps."""
        lines = [line for line in self.out.splitlines() if line.startswith('{"own_count"')]
        return [json.loads(line)["own_count"] for line in lines]

    @property
    def said(self) -> str:
        """Return the end of its output, for the message of a test that fails."""
        return f"exit code {self.code}\n{self.err[-3000:]}"


@dataclass(frozen=True)
class Recorded:
    """A program's recording and the two reports that were made of it."""

    run: Run
    folder: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The JSON of ``to-sqlite``, which also writes the reports."""
        return convert(self.folder / "it.capture").values

    @property
    def memory(self) -> dict[str, Any]:
        (report,) = self.summary["reports"]
        return report

    @property
    def times(self) -> dict[str, Any] | None:
        return self.summary["time"]

    @property
    def peak_bytes(self) -> int:
        return self.memory["peak_usage_bytes"]

    def at_peak(self, category: str) -> dict[str, int]:
        return self.memory["categories_at_peak"][category]

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """Ask the memory report."""
        with closing(sqlite3.connect(self.folder / self.memory["output"])) as report:
            return report.execute(sql).fetchall()

    def own_count(self, step: int) -> dict[str, Any]:
        """What the program counted after that step, the first of which is 1."""
        assert len(self.run.own_counts) >= step, self.run.said
        return self.run.own_counts[step - 1]


def record(program: Program, mode: str, folder: Path) -> Recorded:
    """Record a program as a user would: in the folder that it lies in, which is a copy."""
    copy_program(program, folder)
    command = ["record", *MODES[mode], "-o", "it.capture", program.path.name, *program.arguments]
    run = run_snapconv(command, folder, program.environment)
    (folder / "stdout.txt").write_text(run.out, encoding="utf-8")
    (folder / "stderr.txt").write_text(run.err, encoding="utf-8")
    return Recorded(run, folder)


def copy_program(program: Program, folder: Path) -> None:
    """Copy a program into a folder, with the files beside it if it has a folder of its own."""
    if program.path.parent == PROGRAMS_FOLDER:
        folder.mkdir(parents=True)
        shutil.copy(program.path, folder)
    else:
        shutil.copytree(program.path.parent, folder, ignore=shutil.ignore_patterns("__pycache__"))


def run_snapconv(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str] = {}
) -> Run:
    """Run a command of snapconv."""
    return run_python(["-m", "snapconv", *arguments], folder, environment)


def run_python(arguments: Sequence[str], folder: Path, environment: Mapping[str, str] = {}) -> Run:
    """Run this interpreter in a folder, one thread wide, with no hub to ask."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={**os.environ, **OFFLINE, **environment},
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    user_s = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before
    return Run(done.returncode, done.stdout, done.stderr, user_s)


OFFLINE = {
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": os.pathsep.join([str(ROOT), str(PROGRAMS_FOLDER)]),
}
