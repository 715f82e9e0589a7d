"""Record rank 0 of public programs of several ranks, unchanged and without values, from one table.

    python scripts/bench/ecosystem/distributed.py REPOSITORIES [NAME...] [--write]

distributed.json has the repository, commit, folder and line of each, and the files of noise that it
wants. REPOSITORIES has a Git repository OWNER+NAME of each, whose folder at that commit is copied
for the run. Rows without a folder need more than that, and stay as they are. The figures of a row
that is ``by_hand`` were written there by a person: a run takes their place. A program is recorded
up to its second step; its seconds are those of the processor, and its notes are those that not
every recording of this kind has. --write keeps the figures, for the docs.
"""

import argparse
import io
import json
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.bench.ecosystem.public import (  # noqa: E402  # the root is on the path only now
    QUIET,
    exception,
    processor_seconds,
    run_python,
)
from tests.ecosystem.catalogue import MODES  # noqa: E402
from tests.ecosystem.recorded_program import Recorded, Run  # noqa: E402

PROGRAMS = Path(__file__).with_name("distributed.json")
TIMEOUT_S = 900
# What every recording of such a job says.
USUAL_NOTES = {"simulated", "simulated-nccl"}
FIGURES = ("by_hand", "failure", "peak_bytes", "seconds", "notes", "torch")

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, print a line for each, and with --write keep the figures; 1 where one fails."""
    parser = argparse.ArgumentParser(description="Record rank 0 of public distributed programs.")
    parser.add_argument("repositories", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all with a folder")
    parser.add_argument("--write", action="store_true", help="keep them in distributed.json")
    options = parser.parse_args(arguments)
    table = json.loads(PROGRAMS.read_text(encoding="utf-8"))
    programs: dict[str, Row] = table["programs"]
    runnable = [name for name, program in programs.items() if "folder" in program]
    if others := set(options.names) - set(runnable):
        parser.error(f"no line is known for {', '.join(sorted(others))}: of {', '.join(runnable)}")
    has_failed = False
    for name in options.names or runnable:
        program = programs[name]
        figures = record(program, options.repositories.resolve())
        has_failed |= "failure" in figures
        print(name, json.dumps(figures), flush=True)
        programs[name] = {key: program[key] for key in program if key not in FIGURES} | figures
        if options.write:
            PROGRAMS.write_text(f"{json.dumps(table, indent=1)}\n", encoding="utf-8")
    return int(has_failed)


def record(program: Row, repositories: Path) -> Row:
    """Record a program in a folder of its own: its peak, processor seconds and notes."""
    repository = repositories / program["repository"].replace("/", "+")
    with tempfile.TemporaryDirectory(prefix="snapconv-distributed-") as temporary:
        copy_folder(repository, program["commit"], program["folder"], Path(temporary))
        folder = Path(temporary) / program["folder"]
        for number, (path, noise) in enumerate(program.get("files", {}).items()):
            write_noise(folder / path, noise, number)
        # A launcher's line comes behind the options.
        options = [*MODES["no-compute"], "--stop", "-o", f"{temporary}/it.capture", "--"]
        command = ["-m", "snapconv", "record", *options, *shlex.split(program["launch"])]
        before = processor_seconds()
        variables = {**QUIET, "PYTHONPATH": str(ROOT)}
        done = run_python(command, folder, variables, TIMEOUT_S)
        if done is None:
            return {"failure": f"not done after {TIMEOUT_S} s"}
        if done.returncode:
            return {"failure": exception(done.stderr)}
        seconds = round(processor_seconds() - before, 1)
        run = Run(done.returncode, done.stdout, done.stderr, seconds)
        return {"torch": torch_release(), "seconds": seconds} | of_report(
            Recorded(run, Path(temporary))
        )


def copy_folder(repository: Path, commit: str, folder: str, target: Path) -> None:
    """Copy a folder of a repository as it is at a commit; ``.`` is all of it."""
    command = ["git", "-C", str(repository), "archive", commit, folder]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        members.extractall(target, filter="data")


def write_noise(path: Path, noise: Row, seed: int) -> None:
    """Write ``count`` integers of a type, from 0 to ``below``, by chance."""
    path.parent.mkdir(parents=True, exist_ok=True)
    numbers = np.random.default_rng(seed).integers(noise["below"], size=noise["count"])
    numbers.astype(noise["dtype"]).tofile(path)


def torch_release() -> str:
    """Return torch's release as the table has it: 2.13."""
    import torch

    return ".".join(torch.__version__.split(".")[:2])


def of_report(capture: Recorded) -> Row:
    """Return what the table has of a report."""
    notes = {note["slug"] for note in capture.memory["notes"]}
    return {"peak_bytes": capture.peak_bytes, "notes": sorted(notes - USUAL_NOTES)}


if __name__ == "__main__":
    sys.exit(main())
