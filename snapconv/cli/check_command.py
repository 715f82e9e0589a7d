"""``snapconv check``: limits for a file's memory, which a build can fail on."""

import sys
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from snapconv.cli.answers import read_session
from snapconv.cli.arguments import ReadOptions, parsed
from snapconv.cli.terminal import print_json, print_lines, show_notes
from snapconv.errors import BudgetExceeded

if TYPE_CHECKING:
    from snapconv.answers.check import Budgets


@dataclass(frozen=True, slots=True)
class _Limits:
    """The limits as texts; None: not given."""

    max_peak: str | None = None
    max_reserved: str | None = None
    max_category: list[str] | None = None
    max_growth: str | None = None
    no_faults_above: str | None = None
    fail_over: str | None = None


def check(
    snapshot: Path,
    *,
    limits: _Limits,
    baseline: Path | None = None,
    device: str | None = None,
    read: ReadOptions,
    format: Literal["text", "json", "github"] = "text",
) -> None:
    """Check limits for the memory, and end with 7 where one does not hold."""
    from snapconv.answers.check import CheckedFile
    from snapconv.answers.notes import main_notes
    from snapconv.writers.text.comparisons import check_lines, github_lines

    budgets = _read_limits(limits, baseline)
    session = read_session(snapshot, read, device=device)
    before = read_session(baseline, read, device=device) if baseline else None
    found = CheckedFile(str(snapshot), session.check(budgets, baseline=before))
    if format == "json":
        print_json(found.to_json())
    else:
        print_lines(check_lines(found) if format == "text" else github_lines(found), sys.stdout)
    show_notes(main_notes(session.analysis))
    if not found.holds and format == "text":  # which has said so
        raise typer.Exit(BudgetExceeded.exit_code)
    if not found.holds:
        raise BudgetExceeded(found.sentence)


def _read_limits(given: _Limits, baseline: Path | None) -> "Budgets":
    """Read every limit; raises BadParameter for one that is wrong, and where there is none."""
    from snapconv.answers.check import Budgets, read_limit

    if given.fail_over and baseline is None:
        raise typer.BadParameter("it needs --baseline FILE", param_hint="--fail-over")
    if baseline is not None and given.fail_over is None and given.no_faults_above is None:
        raise typer.BadParameter("it needs --fail-over or --no-faults-above", param_hint="--baseline")
    found: dict[str, Any] = {}
    for name in (field.name for field in fields(given)):
        option, value = f"--{name.replace('_', '-')}", getattr(given, name)
        if isinstance(value, str):
            found[name] = parsed(value, partial(read_limit, name), option)
        for text in value if isinstance(value, list) else ():
            limit = parsed(text, lambda text: read_limit("max_category", _category_limit(text)), option)
            found[name] = {**found.get(name, {}), **limit}
    if not found:
        raise typer.BadParameter("no limit is given: give one, such as --max-peak 38GiB")
    return Budgets(**found)


def _category_limit(text: str) -> dict[str, str]:
    name, separator, size = text.partition("=")
    if not separator:
        raise ValueError(f"expected CATEGORY=SIZE, got {text!r}")
    return {name: size}
