"""Record rank 0 of public programs of several ranks, unchanged and without values, from one table.

    python scripts/bench/ecosystem/distributed.py REPOSITORIES [NAME...] [--write]

distributed.json has the repository, commit, folder, line and variables of each, and the files of
noise that it wants. REPOSITORIES has a Git repository OWNER+NAME of each, whose folder at that
commit is copied for the run, or only the ``parts`` of it that are named. What the programs import
is installed for this Python. A program is recorded up to its second step; its seconds are those of
the processor, and its notes are those that not every recording of this kind has. One that fails has
the line of its failure; ``why`` is a person's reason for it. --write keeps the figures, for the
docs.
"""

import argparse
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.bench.ecosystem.noise import (  # noqa: E402  # the root is on the path only now
    write_noise,
)
from scripts.bench.ecosystem.public import (  # noqa: E402
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
# Where a module lies on this machine, in the message of an ImportError.
PLACE = re.compile(r" \(/[^)]*\)")
FIGURES = ("failure", "peak_bytes", "seconds", "notes", "torch")

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, print a line for each, and with --write keep the figures; 1 where one fails."""
    parser = argparse.ArgumentParser(description="Record rank 0 of public distributed programs.")
    parser.add_argument("repositories", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all")
    parser.add_argument("--write", action="store_true", help="keep them in distributed.json")
    options = parser.parse_args(arguments)
    programs = read_table()["programs"]
    if others := set(options.names) - set(programs):
        parser.error(f"no program is named {', '.join(sorted(others))}: of {', '.join(programs)}")
    has_failed = False
    for name in options.names or programs:
        figures = record(programs[name], options.repositories.resolve())
        has_failed |= "failure" in figures
        print(name, json.dumps(figures), flush=True)
        if options.write:
            keep(name, figures)
    return int(has_failed)


def read_table() -> dict[str, dict[str, Row]]:
    """Read the table as it is now."""
    table: dict[str, dict[str, Row]] = json.loads(PROGRAMS.read_text(encoding="utf-8"))
    return table


def keep(name: str, figures: Row) -> None:
    """Write the figures of one program, beside what other runs have written in the meantime."""
    table = read_table()
    program = table["programs"][name]
    rest = {key: program[key] for key in program if key not in FIGURES}
    table["programs"][name] = rest | figures
    PROGRAMS.write_text(f"{json.dumps(table, indent=1)}\n", encoding="utf-8")


def record(program: Row, repositories: Path) -> Row:
    """Record a program in a folder of its own: its peak, processor seconds and notes."""
    repository = repositories / program["repository"].replace("/", "+")
    if not repository.exists():
        return {"failure": "its repository is not here"}
    with tempfile.TemporaryDirectory(prefix="snapconv-distributed-") as temporary:
        parts = program.get("parts", [program["folder"]])
        copy_files(repository, program["commit"], parts, Path(temporary))
        folder = Path(temporary) / program["folder"]
        for number, (path, noise) in enumerate(program.get("files", {}).items()):
            write_noise(folder / path, noise, number)
        # A launcher's line comes behind the options.
        options = [*MODES["no-compute"], "--stop", "-o", f"{temporary}/it.capture", "--"]
        command = ["-m", "snapconv", "record", *options, *shlex.split(program["launch"])]
        before = processor_seconds()
        variables = {**QUIET, "PYTHONPATH": str(ROOT), **program.get("environment", {})}
        done = run_python(command, folder, variables, TIMEOUT_S)
        if done is None:
            return {"failure": f"not done after {TIMEOUT_S} s"}
        if done.returncode:
            return {"failure": PLACE.sub("", exception(done.stderr))}
        seconds = round(processor_seconds() - before, 1)
        run = Run(done.returncode, done.stdout, done.stderr, seconds)
        return {"torch": torch_release(), "seconds": seconds} | of_report(
            Recorded(run, Path(temporary))
        )


def copy_files(repository: Path, commit: str, paths: Sequence[str], target: Path) -> None:
    """Copy files and folders of a repository as they are at a commit; ``.`` is all of it."""
    command = ["git", "-C", str(repository), "archive", commit, *paths]
    archive = subprocess.run(command, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        members.extractall(target, filter="data")


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
