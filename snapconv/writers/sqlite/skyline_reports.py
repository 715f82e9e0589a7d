"""Reports -> SQLite files in Skyline's schemas of memory and times (skyline-cli 0.5.0).

docs/reference/schema.md and time-schema.md describe the meaning of the rows; the schemas, their
order and the numbering are Skyline's to the letter, because their readers are other people's
programs. DeepView.Profile 0.14.5 uses the same schema for times.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from operator import attrgetter
from pathlib import Path

from snapconv.answers.memory_report import ActivationEntry, MemoryReport, WeightEntry
from snapconv.answers.times import RunTimeEntry, TimeReport
from snapconv.stacks.project_lines import SourceLine
from snapconv.writers.sqlite.tables import (
    Column,
    Database,
    Row,
    Rows,
    integer,
    key,
    milliseconds,
    size,
    table,
    text,
)

USER_VERSION = 1

ENTRY_KEY = key("1, 2, 3, …")
# Columns of the frames of entries.
_ORDERING, _FILE_PATH, _LINE_NUMBER = (
    integer("ordering", "0, 1, 2, …; 0 is the innermost frame"),
    text("file_path", "relative to the project root"),
    integer("line_number", "line in that file, from 1"),
)

WEIGHT = 1
ACTIVATION = 2
PEAK_KEY = "peak_usage_bytes"


class EntryFrames:
    """The frames of entries with a known line; their rows are built while they are written.

    A row has the frame's position, file and line, behind the entry's number, or before it.
    """

    def __init__(
        self,
        entries: Sequence[WeightEntry | ActivationEntry | RunTimeEntry],
        *,
        is_number_first: bool,
    ) -> None:
        known_lines = cache(_known_lines)
        self._frames = [known_lines(entry.frames) for entry in entries]
        self._is_number_first = is_number_first

    def __len__(self) -> int:
        return sum(map(len, self._frames))

    def __iter__(self) -> Iterator[Row]:
        for number, frames in enumerate(self._frames, 1):
            for ordering, frame in enumerate(frames):
                row = ordering, frame.file_path, frame.line_number
                yield (number, *row) if self._is_number_first else (*row, number)


def _known_lines(frames: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
    return tuple(frame for frame in frames if frame.line_number >= 1)


def _memory_frames(report: MemoryReport) -> Rows:
    return EntryFrames((*report.weights, *report.activations), is_number_first=True)


def _time_frames(report: TimeReport) -> Rows:
    return EntryFrames(report.entries, is_number_first=False)


def _correlations(report: MemoryReport) -> Rows:
    """Yield weights, then activations, numbered as one sequence."""
    n_weights = len(report.weights)
    for weight_id in range(1, n_weights + 1):
        yield weight_id, weight_id, WEIGHT
    for activation_id in range(1, len(report.activations) + 1):
        yield n_weights + activation_id, activation_id, ACTIVATION


def _entry_types(_: MemoryReport) -> Rows:
    return [(WEIGHT, "Weight"), (ACTIVATION, "Activation")]


def _peak_row(report: MemoryReport) -> Rows:
    return [(PEAK_KEY, report.peak.allocated_bytes)]


TABLES = (
    table(
        "weight_entries",
        "One row per weight that is live at the report's moment, the peak of allocated bytes.",
        ENTRY_KEY,
        text("name", "as recorded; else `train.py:48#3`, its line, or `weight_3`"),
        size("size_bytes", "requested bytes: elements × bytes per element"),
        size(
            "grad_size_bytes",
            "the same of its gradient in the iteration of the peak; 0: it has none",
        ),
        records=attrgetter("weights"),
        is_skylines=True,
    ),
    table(
        "activation_entries",
        "One row per activation of the iteration with the peak, live at that "
        "iteration's activation high-water mark.",
        ENTRY_KEY,
        text("operation_name", "the operation that allocated it"),
        size("size_bytes", "block bytes: what the allocator set aside for it"),
        records=attrgetter("activations"),
        is_skylines=True,
    ),
    table(
        "stack_correlation",
        "Ties a weight or an activation to its frames: weights first, then activations.",
        key(
            "the weight's id, or the number of weights plus the activation's id",
            "correlation_id",
        ),
        integer("entry_id", "id in `weight_entries` or in `activation_entries`"),
        integer("entry_type", "which of the two: see `entry_types`"),
        rows=_correlations,
        constraint="UNIQUE (correlation_id, entry_id)",
        is_skylines=True,
        index="""\
CREATE UNIQUE INDEX entry_type_and_id
        ON stack_correlation(entry_type, entry_id)
    """,
    ),
    table(
        "stack_frames",
        "The frames of the project that allocated the entry; an entry without any has "
        "no rows here.",
        integer("correlation_id", "row of `stack_correlation`"),
        _ORDERING,
        _FILE_PATH,
        _LINE_NUMBER,
        rows=_memory_frames,
        constraint="PRIMARY KEY (correlation_id, ordering)",
        is_skylines=True,
    ),
    table(
        "entry_types",
        "The two kinds of entries; always these two rows.",
        key("1 or 2", "entry_type"),
        text("name", "`Weight` or `Activation`"),
        rows=_entry_types,
        is_skylines=True,
    ),
    table(
        "misc_sizes",
        "Always one row.",
        Column("key", f"`{PEAK_KEY}`", sql_type="TEXT PRIMARY KEY"),
        size(
            "size_bytes",
            "what `torch.cuda.max_memory_allocated()` would have returned",
            sql_type="INT",
        ),
        rows=_peak_row,
        is_skylines=True,
    ),
)


TIME_TABLES = (
    table(
        "run_time_entries",
        "One row per outermost call of a torch function in the forward pass of the "
        "reported iteration, in the order of the calls.",
        ENTRY_KEY,
        text("operation_name", "the function that was called"),
        milliseconds("forward_ms", "from before the call to after it, on the device"),
        milliseconds(
            "backward_ms",
            "what autograd ran for it in backward, on the device",
            null="nothing of it ran in backward",
        ),
        records=attrgetter("entries"),
        is_skylines=True,
    ),
    table(
        "stack_frames",
        "The frames of the project that led to the call; every entry has at least one.",
        _ORDERING,
        _FILE_PATH,
        _LINE_NUMBER,
        integer("entry_id", "row of `run_time_entries`"),
        rows=_time_frames,
        constraint="PRIMARY KEY (entry_id, ordering)",
        is_skylines=True,
    ),
)


def memory_database(path: Path, report: MemoryReport, *, extended: bool) -> Database:
    """Arrange the file of a memory report; ``write_databases`` writes it."""
    if not extended:
        return Database(path, USER_VERSION, report, TABLES)
    # Only here: the command starts faster without them.
    from snapconv.writers.sqlite.extended_memory import EXTENDED_TABLES, EXTENDED_VIEWS

    return Database(path, USER_VERSION, report, (*TABLES, *EXTENDED_TABLES), EXTENDED_VIEWS)


def time_database(path: Path, report: TimeReport, *, extended: bool) -> Database:
    """Arrange the file of a time report; ``write_databases`` writes it."""
    if not extended:
        return Database(path, USER_VERSION, report, TIME_TABLES)
    # Only here: the command starts faster without them.
    from snapconv.writers.sqlite.extended_times import EXTENDED_TIME_TABLES

    return Database(path, USER_VERSION, report, (*TIME_TABLES, *EXTENDED_TIME_TABLES))
