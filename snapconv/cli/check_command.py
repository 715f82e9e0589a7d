"""``snapconv check``: limits for a file's memory, which a build can fail on."""

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from snapconv.cli.answers import read_session
from snapconv.cli.arguments import (
    FailOver,
    OneDevice,
    ReadOptions,
    Snapshot,
    no_pipe,
    parsed,
)
from snapconv.cli.terminal import print_json, print_lines, print_text, show_notes
from snapconv.errors import BudgetExceeded, InputError
from snapconv.files import open_input
from snapconv.toml_text import MOST_TOML_BYTES, read_toml
from snapconv.units import parse_bytes

if TYPE_CHECKING:
    from snapconv.answers.check import Allowance, Budgets, CheckedFile
    from snapconv.classification.categories import Category

_FILE, _TABLE = "pyproject.toml", "tool.snapconv.check"
_KEYS = ("max-peak", "max-reserved", "max-category", "max-growth", "fail-over")

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
    *,
    max_peak: _MaxPeak = None,
    max_reserved: _MaxReserved = None,
    max_category: _MaxCategory = None,
    max_growth: _MaxGrowth = None,
    baseline: _Baseline = None,
    fail_over: FailOver = None,
    device: OneDevice = None,
    read: ReadOptions,
    output_format: _Format = "text",
) -> None:
    """Check limits for the memory, and end with 7 where one does not hold.

    Limits that are not given here are those of [tool.snapconv.check] in pyproject.toml, of this folder or one
    above it.
    """
    from snapconv.answers.check import CheckedFile
    from snapconv.answers.notes import main_notes

    budgets = _read_limits(_Limits(max_peak, max_reserved, max_category, max_growth, fail_over), baseline)
    session = read_session(snapshot, read, device=device)
    before = read_session(baseline, read, device=device) if baseline else None
    found = CheckedFile(str(snapshot), session.check(budgets, baseline=before))
    _printer(output_format)(found)
    show_notes(main_notes(session.analysis))
    if not found.holds and output_format == "text":  # which has said so
        raise typer.Exit(BudgetExceeded.exit_code)
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


@dataclass(frozen=True, slots=True)
class _Limits:
    """The limits as texts, in the order of their options; None: not given."""

    max_peak: str | None = None
    max_reserved: str | None = None
    max_category: list[str] | None = None
    max_growth: str | None = None
    fail_over: str | None = None


def _read_limits(given: _Limits, baseline: Path | None) -> "Budgets":
    """Read every limit, those of the command line first; raises BadParameter or InputError."""
    from snapconv.answers.check import Budgets

    file, table = _table_of(Path.cwd())
    where = f"{file}: {_TABLE}." if file else ""
    max_peak = _size(given.max_peak, "--max-peak", table, where)
    max_reserved = _size(given.max_reserved, "--max-reserved", table, where)
    max_growth = _size(given.max_growth, "--max-growth", table, where)
    max_category = _categories(given.max_category, table, where)
    fail_over = _fail_over(given.fail_over, table, where) if given.fail_over or baseline else None
    if given.fail_over and baseline is None:
        raise typer.BadParameter("it needs --baseline FILE", param_hint="--fail-over")
    if baseline is not None and fail_over is None:
        raise typer.BadParameter("it needs --fail-over, such as 2%", param_hint="--baseline")
    budgets = Budgets(
        max_peak=max_peak,
        max_reserved=max_reserved,
        max_category=max_category,
        max_growth=max_growth,
        fail_over=fail_over,
    )
    if not budgets:
        raise typer.BadParameter(
            f"no limit is given, here or as [{_TABLE}] in {_FILE}: give one, such as --max-peak 38GiB"
        )
    return budgets


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


def _size(given: str | None, option: str, table: Mapping[str, object], where: str) -> int | None:
    """Read a size from the command line, or else from the table."""
    if given is not None:
        return parsed(given, _bytes, option)
    key = option.removeprefix("--")
    return _size_in_table(table[key], f"{where}{key}") if key in table else None


def _size_in_table(value: object, where: str) -> int:
    try:
        return _bytes("0" if value == 0 and not isinstance(value, bool) else _text(value))
    except ValueError as error:
        raise InputError(f"{where}: {error}") from error


def _bytes(text: str) -> int:
    """Read a size; 0 needs no unit."""
    return 0 if text.strip() == "0" else parse_bytes(text)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f'expected text, such as "38GiB", got {value!r}')
    return value


def _categories(given: list[str] | None, table: Mapping[str, object], where: str) -> "dict[Category, int]":
    limits: dict[Category, int] = {}
    in_table = table.get("max-category", {})
    if not isinstance(in_table, dict):
        raise InputError(f'{where}max-category: expected a table, such as {{activation = "20GiB"}}')
    for name, value in in_table.items():
        try:
            category = _category(name)
        except ValueError as error:
            raise InputError(f"{where}max-category: {error}") from error
        limits[category] = _size_in_table(value, f"{where}max-category.{name}")
    for text in given or ():
        category, n_bytes = parsed(text, _category_limit, "--max-category")
        limits[category] = n_bytes
    return limits


def _category_limit(text: str) -> "tuple[Category, int]":
    name, separator, size = text.partition("=")
    if not separator:
        raise ValueError(f"expected CATEGORY=SIZE, got {text!r}")
    return _category(name), _bytes(size)


def _category(name: str) -> "Category":
    from snapconv.classification.categories import Category

    for category in Category:
        if category.label == name.strip():
            return category
    raise ValueError(f"there is no category {name!r}; there are: {', '.join(c.label for c in Category)}")


def _fail_over(given: str | None, table: Mapping[str, object], where: str) -> "Allowance | None":
    from snapconv.answers.check import parse_allowance

    if given is not None:
        return parsed(given, parse_allowance, "--fail-over")
    if "fail-over" not in table:
        return None
    try:
        return parse_allowance(_text(table["fail-over"]))
    except ValueError as error:
        raise InputError(f"{where}fail-over: {error}") from error
