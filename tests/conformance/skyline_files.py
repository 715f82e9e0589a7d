"""Files of both kinds of reports as readers open them: with and without our tables, and without rows."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.report_builder import (
    ACTIVATION,
    BUILD,
    STEP,
    WEIGHT,
    WITHOUT_FRAMES,
    small_report,
    write_memory_reports,
)
from tests.timing_builder import small_trace, time_report, write_time_report

OUTER = replace(BUILD, line_number=3)
REPORT = small_report(
    weights=(
        WEIGHT,
        replace(WEIGHT, name="bias", frames=(STEP, OUTER)),
        replace(WEIGHT, frames=()),
    ),
    activations=(ACTIVATION, WITHOUT_FRAMES, replace(ACTIVATION, size_bytes=0)),
)
CASES: dict[str, dict[str, bool]] = {
    "plain": {"extended": False},
    "extended": {"extended": True},
    "without rows": {"extended": False, "is_empty": True},
}
NO_CALLS = {"calls": {name: [] for name in small_trace()["calls"]}}


@contextmanager
def memory_file(
    folder: Path, *, extended: bool, is_empty: bool = False
) -> Iterator[sqlite3.Connection]:
    """A memory report, with entries or without."""
    report = small_report(weights=(), activations=()) if is_empty else REPORT
    write_memory_reports([(folder / "report.sqlite", report)], extended=extended, force=False)
    with closing(sqlite3.connect(folder / "report.sqlite")) as connection:
        yield connection


@contextmanager
def time_file(
    folder: Path, *, extended: bool, is_empty: bool = False
) -> Iterator[sqlite3.Connection]:
    """A run time report, with entries or without."""
    report = time_report(folder, **(NO_CALLS if is_empty else {}))
    write_time_report(folder / "report.time.sqlite", report, extended=extended)
    with closing(sqlite3.connect(folder / "report.time.sqlite")) as connection:
        yield connection


def one(connection: sqlite3.Connection, sql: str) -> Any:
    """The only value that a query returns."""
    ((value,),) = connection.execute(sql).fetchall()
    return value
