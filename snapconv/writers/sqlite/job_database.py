"""A JobReport -> one SQLite file about all ranks: files, devices, categories, lines, findings.

docs/reference/ranks-schema.md is printed from these tables.
"""

from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NamedTuple

from snapconv.answers.ranks.job_report import JobReport
from snapconv.answers.ranks.rank_file import RankDevice
from snapconv.writers.sqlite.tables import (
    Database,
    Rows,
    integer,
    key,
    size,
    table,
    text,
    write_databases,
)

# Raised when a table changes its meaning or goes; it is `PRAGMA user_version` of the file.
JOB_SCHEMA_VERSION = 1

_FILE_ID = integer("file_id", "row of `job_files`")
_DEVICE = integer(
    "device", "ordinal of the device; -1: pinned host memory", path="row.device"
)
_NOT_RECORDED = "not recorded"
_NO_LINE = "no line of the project"
_NONE_FAILED = "no request failed"


def _file_rows(report: JobReport) -> Rows:
    last = {file.file for file in report.last_dumps}
    for number, file in enumerate(report.files):
        is_last = file.file in last
        yield (
            number,
            file.file,
            file.rank,
            file.dump,
            is_last,
            file.n_bytes,
            file.error,
            file.exit_code,
        )


def _coordinate_rows(report: JobReport) -> Rows:
    for number, file in enumerate(report.files):
        for axis, index in file.coordinates.items():
            yield number, axis, index


class _Device(NamedTuple):
    file_id: int
    row: RankDevice


def _devices(report: JobReport) -> Iterator[_Device]:
    for number, file in enumerate(report.files):
        yield from map(partial(_Device, number), file.devices)


def _category_rows(report: JobReport) -> Rows:
    for number, device in _devices(report):
        for category, n_bytes in device.categories.items():
            yield number, device.device, category, n_bytes


def _line_rows(report: JobReport) -> Rows:
    for number, device in _devices(report):
        for position, line in enumerate(device.lines):
            source = line.file, line.line, line.function
            yield number, device.device, position, line.category, *source, line.block_bytes


JOB_TABLES = (
    table(
        "job_files",
        "One row per file, in the order of ranks and then of dumps; a file that could "
        "not be read has its error.",
        key(),
        text("file", "path or URL; empty for a rank without a file"),
        integer("rank", "rank that wrote it", null="neither the file nor its name has it"),
        text(
            "dump",
            "which of the rank's dumps, such as `iteration_10`; empty for an only one",
        ),
        integer("is_last", "1: the last readable dump of its rank, which is compared"),
        size("n_bytes", "size of the file", null=_NOT_RECORDED),
        text("error", "why it could not be read", null="it was read"),
        integer("exit_code", "exit code of that error; 0 without one"),
        rows=_file_rows,
    ),
    table(
        "job_coordinates",
        "The place of a file's rank on every axis of the device mesh, as recorded or "
        "given by `--mesh`.",
        _FILE_ID,
        text("axis", "name of the axis, such as `pp`"),
        integer("place", "coordinate on it, from 0"),
        constraint="PRIMARY KEY (file_id, axis)",
        rows=_coordinate_rows,
    ),
    table(
        "job_devices",
        "One row per device of a file that was read.",
        _FILE_ID,
        _DEVICE,
        text(
            "kind",
            "kind of the device: `cuda`, `npu`, `xpu`, …; `host` for pinned host memory",
            path="row.kind",
        ),
        size("peak_bytes", "peak of allocated bytes", path="row.peak_bytes"),
        size("end_bytes", "allocated bytes at the dump", path="row.end_bytes"),
        size("reserved_bytes", "peak of reserved bytes", path="row.reserved_bytes"),
        size(
            "usable_bytes",
            "what PyTorch could have of the device",
            null=_NOT_RECORDED,
            path="row.usable_bytes",
        ),
        size(
            "growth_bytes",
            "what every iteration adds to the end of the trace",
            path="row.growth_bytes",
        ),
        text(
            "history", "verdict on the history, as in `snapconv info`", path="row.history"
        ),
        text(
            "about",
            "subject of the verdict: `oom`, `growth`, `fragmentation` or `peak`",
            path="row.about",
        ),
        text("verdict", "the most important fact, in a sentence", path="row.verdict"),
        text("command", "the command of snapconv that has more", path="row.command"),
        size(
            "failed_needed_bytes",
            "what the failed request needed of the device",
            null=_NONE_FAILED,
            path="row.failed.needed_bytes",
        ),
        size(
            "failed_free_bytes",
            "what the device had free then",
            null=f"{_NONE_FAILED}, or not recorded",
            path="row.failed.free_bytes",
        ),
        text(
            "failed_place",
            "line of the project that made the request; empty for none",
            null=_NONE_FAILED,
            path="row.failed.place",
        ),
        text(
            "failed_sentence",
            "why it failed",
            null=_NONE_FAILED,
            path="row.failed.sentence",
        ),
        constraint="PRIMARY KEY (file_id, device)",
        records=_devices,
    ),
    table(
        "job_categories",
        "What is live at a device's peak, by category; the rows of a device sum to its "
        "`peak_bytes`.",
        _FILE_ID,
        _DEVICE,
        text("category", "category, or `gradient or optimizer state`"),
        size("block_bytes", "its bytes"),
        constraint="PRIMARY KEY (file_id, device, category)",
        rows=_category_rows,
    ),
    table(
        "job_lines",
        "The lines of the project with most bytes at a device's peak, at most 16, largest first.",
        _FILE_ID,
        _DEVICE,
        integer("position", "0, 1, 2, …"),
        text("category", "category of these bytes"),
        text("file_path", "file of the line", null=_NO_LINE),
        integer("line_number", "line in it, from 1", null=_NO_LINE),
        text("function", "function that the line is in", null=_NO_LINE),
        size("block_bytes", "its bytes"),
        constraint="PRIMARY KEY (file_id, device, position)",
        rows=_line_rows,
    ),
    table(
        "job_findings",
        "What `snapconv ranks` prints above its table, the worst of each kind first.",
        key(),
        text(
            "kind",
            "`out of memory`, `outlier`, `imbalance`, `growth`, `fault` or `hint`",
            path="kind.value",
        ),
        text("sentence", "the finding"),
        size(
            "n_bytes",
            "what the request needed, the difference from the group's median, the "
            "growth, or what a fault holds; 0 for a hint",
        ),
        integer(
            "rank", "rank that it is about", null="several ranks, or one without a number"
        ),
        records=attrgetter("findings"),
    ),
)


def write_job_database(path: Path, report: JobReport, *, force: bool) -> None:
    """Write the file whole, or not at all; raises OutputError."""
    write_databases([Database(path, JOB_SCHEMA_VERSION, report, JOB_TABLES)], force=force)
