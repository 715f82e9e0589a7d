"""``snapconv diff``: what is different between two files, and what it did to the peak."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from snapconv.cli.answers import read_session
from snapconv.cli.arguments import (
    AsJson,
    Certain,
    FailOver,
    Includes,
    OneDevice,
    PathMaps,
    ProjectRoot,
    ReadOptions,
    no_pipe,
    parsed,
)
from snapconv.cli.terminal import print_json, print_lines
from snapconv.errors import BudgetExceeded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from snapconv.notes import Note

_Old = Annotated[
    Path,
    typer.Argument(
        metavar="OLD",
        help="The file to compare with: a snapshot or a capture.",
        callback=no_pipe,
        readable=False,
    ),
]
_New = Annotated[
    Path, typer.Argument(metavar="NEW", help="The file to judge.", callback=no_pipe, readable=False)
]
_Markdown = Annotated[
    bool, typer.Option("--markdown", help="Print it as a block of code in Markdown, for a job's summary.")
]


def diff(
    old: _Old,
    new: _New,
    fail_over: FailOver = None,
    device: OneDevice = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    certain: Certain = False,
    as_json: AsJson = False,
    markdown: _Markdown = False,
) -> None:
    """Compare two files at their peaks, by category, line, module and operation: what appeared, went, grew.

    Lines are matched by file, function and order, also where they moved; never by address.
    """
    from snapconv.answers.check import Budgets, parse_allowance
    from snapconv.writers.text.check import fenced
    from snapconv.writers.text.diff import diff_lines

    allowed = None if fail_over is None else parsed(fail_over, parse_allowance, "--fail-over")
    options = ReadOptions(project_root, include, path_map, certain=certain)
    before, after = (read_session(path, options, device=device) for path in (old, new))
    print_lines(_note_lines(before.notes, after.notes), sys.stderr)
    report = after.compared_with(before)
    if as_json:
        n_bytes = sum(one.snapshot.container.n_unpacked_bytes for one in (before, after))
        print_json(report.to_json(), n_bytes=n_bytes)
    else:
        lines = list(diff_lines(report))
        print_lines(fenced(lines) if markdown else lines, sys.stdout)
    if allowed is not None:
        checks = after.check(Budgets(fail_over=allowed), baseline=before)
        failed = [check.sentence for check in checks if not check.holds]
        if failed:
            raise BudgetExceeded("; ".join(failed))


def _note_lines(old: "Sequence[Note]", new: "Sequence[Note]") -> "Iterator[str]":
    """Show the notes of both files, those of one alone with its name."""
    from snapconv.writers.text.notes import note_lines

    yield from note_lines(tuple(note for note in old if note in new))
    for which, notes, others in (("old", old, new), ("new", new, old)):
        for line in note_lines(tuple(note for note in notes if note not in others)):
            yield line.replace("note: ", f"note: {which}: ", 1)
