"""``snapconv check``: limits for a file's memory, which a build can fail on."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import typer

from snapconv.cli.answers import read_session
from snapconv.cli.arguments import ReadOptions, parsed
from snapconv.cli.terminal import print_json, print_lines, show_notes
from snapconv.errors import BudgetExceeded, InputError
from snapconv.files import open_input
from snapconv.toml_text import MOST_TOML_BYTES, read_toml

if TYPE_CHECKING:
    from snapconv.answers.check import Budgets

_FILE, _TABLE = "pyproject.toml", "tool.snapconv.check"
_KEYS = ("max-peak", "max-reserved", "max-category", "max-growth", "no-faults-above", "fail-over")


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
    """Check limits for the memory, and end with 7 where one does not hold.

    Limits that are not given here are those of [tool.snapconv.check] in pyproject.toml, of this folder or one
    above it.
    """
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
    """Read every limit, those of the command line first; raises BadParameter or InputError."""
    from snapconv.answers.check import Budgets

    if given.fail_over and baseline is None:
        raise typer.BadParameter("it needs --baseline FILE", param_hint="--fail-over")
    file, table = _table_of(Path.cwd())
    found = {key: _read_limit(key, getattr(given, key.replace("-", "_")), table, file) for key in _KEYS}
    if baseline is None:
        del found["fail-over"]
    elif found["fail-over"] is None and found["no-faults-above"] is None:
        raise typer.BadParameter("it needs --fail-over or --no-faults-above", param_hint="--baseline")
    budgets = Budgets(**{key.replace("-", "_"): limit for key, limit in found.items()})
    if not budgets:
        raise typer.BadParameter(
            f"no limit is given, here or as [{_TABLE}] in {_FILE}: give one, such as --max-peak 38GiB"
        )
    return budgets


def _read_limit(
    key: str, given: str | list[str] | None, table: Mapping[str, object], file: Path | None
) -> Any:
    """Read one limit from the command line, or else from the table; of categories, all of both."""
    from snapconv.answers.check import read_limit

    read = partial(read_limit, key.replace("-", "_"))
    found = None
    if key in table:
        value = table[key]
        try:
            found = read(value)
            for size in value.values() if isinstance(value, dict) else [value]:
                if isinstance(size, int) and size:  # a number of bytes would be a mistake
                    raise ValueError(f'expected text, such as "38GiB", got {size!r}')
        except ValueError as error:
            raise InputError(f"{file}: {_TABLE}.{key}: {error}") from error
    if isinstance(given, str):
        return parsed(given, read, f"--{key}")
    for text in given or ():
        found = {**(found or {}), **parsed(text, lambda text: read(_category_limit(text)), f"--{key}")}
    return (found or {}) if key == "max-category" else found


def _category_limit(text: str) -> dict[str, str]:
    name, separator, size = text.partition("=")
    if not separator:
        raise ValueError(f"expected CATEGORY=SIZE, got {text!r}")
    return {name: size}


def _table_of(folder: Path) -> tuple[Path | None, Mapping[str, object]]:
    """Find the nearest pyproject.toml, in this folder or above, and our table in it."""
    file = next((path for above in (folder, *folder.parents) if (path := above / _FILE).is_file()), None)
    if file is None:
        return None, {}
    try:
        with open_input(file) as opened:
            text = opened.read(MOST_TOML_BYTES + 1)
        table: object = read_toml(text) if b"snapconv" in text else {}
    except OSError as error:
        raise InputError(f"{file} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise InputError(f"{file} is no TOML: {error}") from error
    for name in _TABLE.split("."):
        table = table.get(name, {}) if isinstance(table, dict) else {}
    if not isinstance(table, dict):
        raise InputError(f"{file}: {_TABLE}: expected a table, got {type(table).__name__}")
    unknown = [key for key in table if key not in _KEYS]
    if unknown:
        raise InputError(f"{file}: {_TABLE}: there is no {unknown[0]!r}; there are: {', '.join(_KEYS)}")
    return file, table
