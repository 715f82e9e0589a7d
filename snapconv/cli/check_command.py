"""``snapconv check``: limits for a file's memory, which a build can fail on."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from snapconv.cli.answers import read_session
from snapconv.cli.arguments import (
    FailOver,
    Includes,
    PathMaps,
    ProjectRoot,
    ReadOptions,
    Rules,
    Snapshot,
    no_pipe,
)
from snapconv.cli.limits import Limits, read_limits
from snapconv.cli.terminal import print_json, print_lines, print_text
from snapconv.errors import BudgetExceeded

if TYPE_CHECKING:
    from snapconv.answers.check import CheckedFile

_MaxPeak = Annotated[
    str | None,
    typer.Option("--max-peak", metavar="SIZE", help="The most that may be allocated at once, such as 38GiB."),
]
_MaxReserved = Annotated[
    str | None, typer.Option("--max-reserved", metavar="SIZE", help="The most that may be reserved at once.")
]
_MaxCategory = Annotated[
    list[str] | None,
    typer.Option(
        "--max-category",
        metavar="CATEGORY=SIZE",
        help="The most that a category may have at the peak, such as activation=20GiB. May be repeated.",
    ),
]
_MaxGrowth = Annotated[
    str | None,
    typer.Option(
        "--max-growth", metavar="SIZE", help="The most that an iteration may add for good, such as 0."
    ),
]
_Baseline = Annotated[
    Path | None,
    typer.Option(
        "--baseline",
        metavar="FILE",
        help="A file to compare with, for --fail-over.",
        callback=no_pipe,
        readable=False,
    ),
]
_Device = Annotated[
    str | None, typer.Option("--device", metavar="N", help="Check this device only. Default: each.")
]
_Format = Annotated[
    Literal["text", "json", "github", "junit"],
    typer.Option(
        "--format",
        metavar="FORMAT",
        show_default=False,
        help="text, json, github (a table in Markdown for a job's summary) or junit (XML). Default: text.",
    ),
]


def check(
    snapshot: Snapshot,
    max_peak: _MaxPeak = None,
    max_reserved: _MaxReserved = None,
    max_category: _MaxCategory = None,
    max_growth: _MaxGrowth = None,
    baseline: _Baseline = None,
    fail_over: FailOver = None,
    device: _Device = None,
    project_root: ProjectRoot = None,
    include: Includes = None,
    path_map: PathMaps = None,
    rules: Rules = None,
    output_format: _Format = "text",
) -> None:
    """Check limits for the memory of every device, and end with 7 where one does not hold.

    Limits that are not given here are those of [tool.snapconv.check] in pyproject.toml, of this folder or one
    above it.
    """
    from snapconv.answers.check import CheckedFile
    from snapconv.writers.text.notes import note_lines

    budgets = read_limits(Limits(max_peak, max_reserved, max_category, max_growth, fail_over), baseline)
    options = ReadOptions(project_root, include, path_map, rules)
    session = read_session(snapshot, options, device=device)
    before = read_session(baseline, options, device=device) if baseline else None
    found = CheckedFile(str(snapshot), session.check(budgets, baseline=before))
    print_lines(note_lines(session.notes), sys.stderr)
    _printer(output_format)(found)
    if not found.holds:
        raise BudgetExceeded(found.sentence)


def _printer(output_format: str) -> "Callable[[CheckedFile], None]":
    from snapconv.writers.text.check import check_lines, github_lines, junit_text

    return {
        "text": lambda found: print_lines(check_lines(found), sys.stdout),
        "json": lambda found: print_json(found.to_json()),
        "github": lambda found: print_lines(github_lines(found), sys.stdout),
        "junit": lambda found: print_text(junit_text(found)),
    }[output_format]
