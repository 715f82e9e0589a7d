"""A JobReport -> one SQLite file about all ranks: files, devices, categories, lines, findings.

docs/reference/ranks-schema.md is printed from these tables.
"""

from collections.abc import Iterator
from pathlib import Path

from snapconv.answers.ranks.job_report import JobReport
from snapconv.answers.ranks.rank_file import RankDevice, RankFile
from snapconv.writers.sqlite.tables import (
    Database,
    integer,
    key,
    numbered,
    size,
    table,
    text,
    write_databases,
)

# Raised when a table changes its meaning or goes; it is `PRAGMA user_version` of the file.
JOB_SCHEMA_VERSION = 1

_FILE_ID = integer("file_id", "row of `job_files`", "0")
_DEVICE = integer("device", "ordinal of the device; -1: pinned host memory", "1.device")
_NOT_RECORDED = "not recorded"
_NO_LINE = "no line of the project"
_NONE_FAILED = "no request failed"


def _files(report: JobReport) -> Iterator[tuple[int, RankFile, bool]]:
    last = {file.file for file in report.last_dumps}
    for number, file in enumerate(report.files):
        yield number, file, file.file in last


def _devices(report: JobReport) -> Iterator[tuple[int, RankDevice]]:
    for number, file in enumerate(report.files):
        yield from ((number, device) for device in file.devices)


def _coordinates(report: JobReport) -> Iterator[tuple[int, str, int]]:
    for number, file in enumerate(report.files):
        for axis, index in file.coordinates.items():
            yield number, axis, index


def _categories(report: JobReport) -> Iterator[tuple[int, RankDevice, str, int]]:
    for number, device in _devices(report):
        for category, n_bytes in device.categories.items():
            yield number, device, category, n_bytes


def _lines(report: JobReport) -> Iterator[tuple[int, RankDevice, int, object]]:
    for number, device in _devices(report):
        for position, line in enumerate(device.lines):
            yield number, device, position, line


JOB_TABLES = (
    table(
        "job_files",
        "One row per file, in the order of ranks and then of dumps; a file that could not be read "
        "has its error.",
        key("0"),
        text("file", "path or URL; empty for a rank without a file", "1.file"),
        integer(
            "rank", "rank that wrote it", "1.rank", null="neither the file nor its name has it"
        ),
        text(
            "dump",
            "which of the rank's dumps, such as `iteration_10`; empty for an only one",
            "1.dump",
        ),
        integer("is_last", "1: the last readable dump of its rank, which is compared", "2"),
        size("n_bytes", "size of the file", "1.n_bytes", null=_NOT_RECORDED),
        text("error", "why it could not be read", "1.error", null="it was read"),
        integer("exit_code", "exit code of that error; 0 without one", "1.exit_code"),
        records=_files,
    ),
    table(
        "job_coordinates",
        "The place of a file's rank on every axis of the device mesh, as recorded or given by "
        "`--mesh`.",
        _FILE_ID,
        text("axis", "name of the axis, such as `pp`", "1"),
        integer("place", "coordinate on it, from 0", "2"),
        constraint="PRIMARY KEY (file_id, axis)",
        records=_coordinates,
    ),
    table(
        "job_devices",
        "One row per device of a file that was read.",
        _FILE_ID,
        _DEVICE,
        text(
            "kind",
            "kind of the device: `cuda`, `npu`, `xpu`, …; `host` for pinned host memory",
            "1.kind",
        ),
        size("peak_bytes", "peak of allocated bytes", "1.peak_bytes"),
        size("end_bytes", "allocated bytes at the dump", "1.end_bytes"),
        size("reserved_bytes", "peak of reserved bytes", "1.reserved_bytes"),
        size(
            "usable_bytes",
            "what PyTorch could have of the device",
            "1.usable_bytes",
            null=_NOT_RECORDED,
        ),
        size("growth_bytes", "what every iteration adds to the end of the trace", "1.growth_bytes"),
        text("history", "verdict on the history, as in `snapconv info`", "1.history"),
        text(
            "about", "subject of the verdict: `oom`, `growth`, `fragmentation` or `peak`", "1.about"
        ),
        text("verdict", "the most important fact, in a sentence", "1.verdict"),
        text("command", "the command of snapconv that has more", "1.command"),
        size(
            "failed_needed_bytes",
            "what the failed request needed of the device",
            "1.failed.needed_bytes",
            null=_NONE_FAILED,
        ),
        size(
            "failed_free_bytes",
            "what the device had free then",
            "1.failed.free_bytes",
            null=f"{_NONE_FAILED}, or not recorded",
        ),
        text(
            "failed_place",
            "line of the project that made the request; empty for none",
            "1.failed.place",
            null=_NONE_FAILED,
        ),
        text("failed_sentence", "why it failed", "1.failed.sentence", null=_NONE_FAILED),
        constraint="PRIMARY KEY (file_id, device)",
        records=_devices,
    ),
    table(
        "job_categories",
        "What is live at a device's peak, by category; the rows of a device sum to its "
        "`peak_bytes`.",
        _FILE_ID,
        _DEVICE,
        text("category", "category, or `gradient or optimizer state`", "2"),
        size("block_bytes", "its bytes", "3"),
        constraint="PRIMARY KEY (file_id, device, category)",
        records=_categories,
    ),
    table(
        "job_lines",
        "The lines of the project with most bytes at a device's peak, at most 16, largest first.",
        _FILE_ID,
        _DEVICE,
        integer("position", "0, 1, 2, …", "2"),
        text("category", "category of these bytes", "3.category"),
        text("file_path", "file of the line", "3.file", null=_NO_LINE),
        integer("line_number", "line in it, from 1", "3.line", null=_NO_LINE),
        text("function", "function that the line is in", "3.function", null=_NO_LINE),
        size("block_bytes", "its bytes", "3.block_bytes"),
        constraint="PRIMARY KEY (file_id, device, position)",
        records=_lines,
    ),
    table(
        "job_findings",
        "What `snapconv ranks` prints above its table, the worst of each kind first.",
        key("0"),
        text(
            "kind",
            "`out of memory`, `outlier`, `imbalance`, `growth`, `fault` or `hint`",
            "1.kind.value",
        ),
        text("sentence", "the finding", "1.sentence"),
        size(
            "n_bytes",
            "what the request needed, the difference from the group's median, the growth, or what "
            "a fault holds; 0 for a hint",
            "1.n_bytes",
        ),
        integer(
            "rank", "rank that it is about", "1.rank", null="several ranks, or one without a number"
        ),
        records=numbered("findings"),
    ),
)


def write_job_database(path: Path, report: JobReport, *, force: bool) -> None:
    """Write the file whole, or not at all; raises OutputError."""
    write_databases([Database(path, JOB_SCHEMA_VERSION, report, JOB_TABLES)], force=force)
