"""A JobReport -> one SQLite file about all ranks: a row for each file, device, category, line and finding.

docs/reference/ranks-schema.md is printed from these tables.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

from snapconv.answers.ranks.job_report import JobReport
from snapconv.answers.ranks.rank_file import RankDevice, RankFile
from snapconv.writers.sqlite.database import Database, write_databases
from snapconv.writers.sqlite.tables import Column, define_table, table_rows

# Raised when a table changes its meaning or goes; it is `PRAGMA user_version` of the file.
JOB_SCHEMA_VERSION = 1

_FILE_ID = Column("file_id", "INTEGER", "row of `job_files`", value=lambda row: row[0])
_DEVICE = Column(
    "device", "INTEGER", "ordinal of the device; -1: pinned host memory", value=lambda row: row[1].device
)
_NOT_RECORDED = "not recorded"


def _files(report: JobReport) -> Iterator[tuple[int, RankFile, bool]]:
    last = {file.file for file in report.last_dumps}
    for number, file in enumerate(report.files):
        yield number, file, file.file in last


def _devices(report: JobReport) -> Iterator[tuple[int, RankDevice]]:
    for number, file in enumerate(report.files):
        yield from ((number, device) for device in file.devices)


def _figure(name: str) -> Callable[[tuple[int, RankDevice]], object]:
    return lambda row: getattr(row[1], name)


def _failed(name: str) -> Callable[[tuple[int, RankDevice]], object]:
    return lambda row: getattr(row[1].failed, name, None)


JOB_FILES = define_table(
    "job_files",
    "One row per file, in the order of ranks and then of dumps; a file that could not be read has its error.",
    Column("id", "INTEGER PRIMARY KEY", "0, 1, 2, …", value=lambda row: row[0]),
    Column("file", "TEXT", "path or URL", value=lambda row: row[1].file),
    Column(
        "rank",
        "INTEGER",
        "rank that wrote it",
        null="neither the file nor its name has it",
        value=lambda row: row[1].rank,
    ),
    Column(
        "dump",
        "TEXT",
        "which of the rank's dumps, such as `iteration_10`; empty for an only one",
        value=lambda row: row[1].dump,
    ),
    Column(
        "is_last",
        "INTEGER",
        "1: the last readable dump of its rank, which is compared",
        value=lambda row: int(row[2]),
    ),
    Column(
        "n_bytes",
        "INTEGER",
        "size of the file",
        "bytes",
        null=_NOT_RECORDED,
        value=lambda row: row[1].n_bytes,
    ),
    Column("error", "TEXT", "why it could not be read", null="it was read", value=lambda row: row[1].error),
    Column(
        "exit_code", "INTEGER", "exit code of that error; 0 without one", value=lambda row: row[1].exit_code
    ),
    records=_files,
)
JOB_COORDINATES = define_table(
    "job_coordinates",
    "The place of a file's rank on every axis of the device mesh, as recorded or given by `--mesh`.",
    _FILE_ID,
    Column("axis", "TEXT", "name of the axis, such as `pp`", value=lambda row: row[1]),
    Column("place", "INTEGER", "coordinate on it, from 0", value=lambda row: row[2]),
    primary_key="file_id, axis",
    records=lambda report: [
        (number, axis, place) for number, file in enumerate(report.files) for axis, place in file.coordinates
    ],
)
JOB_DEVICES = define_table(
    "job_devices",
    "One row per device of a file that was read.",
    _FILE_ID,
    _DEVICE,
    *(
        Column(name, "INTEGER", meaning, "bytes", null=null, value=_figure(name))
        for name, meaning, null in (
            ("peak_bytes", "peak of allocated bytes", None),
            ("end_bytes", "allocated bytes at the dump", None),
            ("reserved_bytes", "peak of reserved bytes", None),
            ("usable_bytes", "what PyTorch could have of the device", _NOT_RECORDED),
            ("growth_bytes", "what every iteration adds to the end of the trace", None),
        )
    ),
    *(
        Column(name, "TEXT", meaning, value=_figure(name))
        for name, meaning in (
            ("history", "verdict on the history, as in `snapconv info`"),
            ("about", "subject of the verdict: `oom`, `growth`, `fragmentation` or `peak`"),
            ("verdict", "the most important fact, in a sentence"),
            ("command", "the command of snapconv that has more"),
        )
    ),
    *(
        Column(
            f"failed_{name}",
            sql_type,
            meaning,
            unit,
            null="no request failed" if name != "free_bytes" else "no request failed, or not recorded",
            value=_failed(name),
        )
        for name, sql_type, unit, meaning in (
            ("needed_bytes", "INTEGER", "bytes", "what the failed request needed of the device"),
            ("free_bytes", "INTEGER", "bytes", "what the device had free then"),
            ("place", "TEXT", "", "line of the project that made the request; empty for none"),
            ("sentence", "TEXT", "", "why it failed"),
        )
    ),
    primary_key="file_id, device",
    records=_devices,
)
JOB_CATEGORIES = define_table(
    "job_categories",
    "What is live at a device's peak, by category; the rows of a device sum to its `peak_bytes`.",
    _FILE_ID,
    _DEVICE,
    Column("category", "TEXT", "category, or `gradient or optimizer state`", value=lambda row: row[2]),
    Column("block_bytes", "INTEGER", "its bytes", "bytes", value=lambda row: row[3]),
    primary_key="file_id, device, category",
    records=lambda report: [
        (number, device, name, n_bytes)
        for number, device in _devices(report)
        for name, n_bytes in device.categories
    ],
)
JOB_LINES = define_table(
    "job_lines",
    "The lines of the project with most bytes at a device's peak, at most 16, largest first.",
    _FILE_ID,
    _DEVICE,
    Column("position", "INTEGER", "0, 1, 2, …", value=lambda row: row[2]),
    Column("category", "TEXT", "category of these bytes", value=lambda row: row[3].category),
    Column(
        "file_path",
        "TEXT",
        "file of the line",
        null="no line of the project",
        value=lambda row: row[3].line and row[3].line.file_path,
    ),
    Column(
        "line_number",
        "INTEGER",
        "line in it, from 1",
        null="no line of the project",
        value=lambda row: row[3].line and row[3].line.line_number,
    ),
    Column(
        "function",
        "TEXT",
        "function that the line is in",
        null="no line of the project",
        value=lambda row: row[3].line and row[3].line.function,
    ),
    Column("block_bytes", "INTEGER", "its bytes", "bytes", value=lambda row: row[3].block_bytes),
    primary_key="file_id, device, position",
    records=lambda report: [
        (number, device, position, line)
        for number, device in _devices(report)
        for position, line in enumerate(device.lines)
    ],
)
JOB_FINDINGS = define_table(
    "job_findings",
    "What `snapconv ranks` prints above its table, the worst of each kind first.",
    Column("id", "INTEGER PRIMARY KEY", "0, 1, 2, …", value=lambda row: row[0]),
    Column(
        "kind",
        "TEXT",
        "`out of memory`, `outlier`, `imbalance`, `growth` or `hint`",
        value=lambda row: row[1].kind.value,
    ),
    Column("sentence", "TEXT", "the finding", value=lambda row: row[1].sentence),
    Column(
        "n_bytes",
        "INTEGER",
        "what the request needed, the difference from the group's median, or the growth; 0 for a hint",
        "bytes",
        value=lambda row: row[1].n_bytes,
    ),
    Column(
        "rank",
        "INTEGER",
        "rank that it is about",
        null="several ranks, or one without a number",
        value=lambda row: row[1].rank,
    ),
    records=lambda report: list(enumerate(report.findings)),
)
JOB_TABLES = (JOB_FILES, JOB_COORDINATES, JOB_DEVICES, JOB_CATEGORIES, JOB_LINES, JOB_FINDINGS)


def write_job_database(path: Path, report: JobReport, *, force: bool) -> None:
    """Write the file whole, or not at all; raises OutputError."""
    schema = (f"PRAGMA user_version = {JOB_SCHEMA_VERSION}", *(table.sql for table in JOB_TABLES))
    rows = [table_rows(table, report) for table in JOB_TABLES]
    write_databases([Database(path, schema, rows)], force=force)
