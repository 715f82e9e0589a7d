"""The drawn programs are those of the commit's hash, and their table says what is equal."""

import json

from scripts.bench.ecosystem.draw import CANDIDATES, drawn
from scripts.bench.ecosystem.tables import drawn as table

PROGRAMS = json.loads(CANDIDATES.with_name("drawn.json").read_text(encoding="utf-8"))


def test_recorded_programs_are_those_that_the_commit_draws() -> None:
    chosen = {(row["repository"], row["file"]) for row in drawn(PROGRAMS["commit"], 40)}
    programs = PROGRAMS["programs"].values()
    assert {(program["repository"], program["file"]) for program in programs} == chosen
    assert len(chosen) == 40


def test_sums_count_a_later_run_in_place_of_a_first_that_failed() -> None:
    program = {"repository": "a/b", "commit": "c", "file": "d.py", "kind": "e"}
    results = [
        {"name": "one", "mode": "compute", "first": "512", "now": ""},
        {"name": "one", "mode": "no-compute", "first": "Error: no", "now": "512"},
        {"name": "two", "mode": "compute", "first": "1024", "now": ""},
    ]
    said = table({"one": program, "two": program}, results)
    assert said.startswith(
        "At first: with values 2 of 2 that ran are equal, with `--no-compute` 0 of 1, 0 in both. "
        "Now: with values 2 of 2 that ran are equal, with `--no-compute` 1 of 1, 1 in both."
    )
    assert "| 512 | Error: no, then 512 |" in said
    assert "| 1,024 | not run |" in said
