"""Record the drawn public programs, both ways, and compare each with its own count.

    python scripts/bench/ecosystem/drawn.py CHECKOUTS [NAME...] [--write COLUMN]

drawn.json has what draw.py drew of candidates.tsv by its commit: of each the repository, commit,
folder and command, what made_up writes for it, and the edits of its text, where it has no option
for a smaller size. CHECKOUTS has a folder OWNER+NAME of every repository. What the programs import
is installed for this Python. The count is that of own_count, as in public.py. --write keeps the
figures as a column of drawn.tsv, "first" or "now".
"""

import argparse
import csv
import json
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from scripts.bench.ecosystem import made_up  # noqa: E402  # the root is on the path only now
from scripts.bench.ecosystem.public import run, run_python  # noqa: E402
from tests.ecosystem.catalogue import MODES  # noqa: E402

PROGRAMS = Path(__file__).with_name("drawn.json")
FIGURES = PROGRAMS.with_suffix(".tsv")
STAND_INS = Path(__file__).with_name("stand_ins")
HEAD = ("name", "kind", "repository", "commit", "file", "mode", "first", "now")

Row = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> int:
    """Record, print a line for each mode, and with --write keep the figures; 1 where one differs."""
    parser = argparse.ArgumentParser(description="Record the drawn programs.")
    parser.add_argument("checkouts", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="by default all")
    parser.add_argument("--mode", choices=tuple(MODES), help="by default both")
    parser.add_argument("--write", choices=("first", "now"), help="the column to keep them in")
    options = parser.parse_args(arguments)
    programs = json.loads(PROGRAMS.read_text(encoding="utf-8"))["programs"]
    is_equal = True
    for name in options.names or programs:
        program = prepared(programs[name], options.checkouts.resolve())
        for mode in [options.mode] if options.mode else MODES:
            figures = run(program, mode, options.checkouts.resolve())
            print(name, mode, json.dumps(figures), flush=True)
            is_equal &= figures.get("differs") == {}
            if options.write:
                keep(name, program, mode, {options.write: result(figures)})
    return int(not is_equal)


def prepared(program: Row, checkouts: Path) -> Row:
    """Write the files of a program and edit its text; return it with its variables."""
    folder = checkouts / program["repository"].replace("/", "+") / program["folder"]
    for path in program.get("remove", ()):
        shutil.rmtree(folder / path, ignore_errors=True)
    for number, (path, row) in enumerate(program.get("files", {}).items()):
        if not (folder / path).exists():
            made_up.write_files(folder / path, row, number)
    for path, edits in program.get("edits", {}).items():
        text = (folder / path).read_text(encoding="utf-8")
        for written, instead in edits:
            text = text.replace(written, instead)
        (folder / path).write_text(text, encoding="utf-8")
    if "before" in program:
        run_python(program["before"], folder, {"PYTHONPATH": str(folder)})
    places = {"{folder}": str(folder), "{stand_ins}": str(STAND_INS)}
    variables = {**program.get("environment", {}), "OWN_COUNT_TORCHVISION": "declare"}
    for place, path in places.items():
        variables = {name: value.replace(place, path) for name, value in variables.items()}
    path = program.get("path", ".").replace("{stand_ins}", str(STAND_INS))
    return {**program, "path": path, "environment": variables}


def result(figures: Row) -> str:
    """Return the peak of an equal run, or what differs or failed."""
    if "failure" in figures:
        return str(figures["failure"])
    differs = figures["differs"]
    parts = [f"{part} {own} counted, {ours} recorded" for part, (ours, own) in differs.items()]
    return "; ".join(parts) or str(figures["peak_bytes"])


def keep(name: str, program: Row, mode: str, figures: Row) -> None:
    """Write a result into the table."""
    rows = {}
    if FIGURES.exists():
        with FIGURES.open(encoding="utf-8", newline="") as opened:
            read = list(csv.DictReader(opened, delimiter="\t"))
        rows = {(row["name"], row["mode"]): row for row in read}
    facts = {key: program[key] for key in ("kind", "repository", "commit", "file")}
    row = {**dict.fromkeys(HEAD, ""), **rows.get((name, mode), {}), **facts, **figures}
    rows[name, mode] = {**row, "name": name, "mode": mode}
    with FIGURES.open("w", encoding="utf-8", newline="") as opened:
        writer = csv.DictWriter(opened, HEAD, delimiter="\t", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows.values())


if __name__ == "__main__":
    sys.exit(main())
