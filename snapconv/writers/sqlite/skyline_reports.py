"""Reports -> SQLite files in Skyline's schemas of memory and times (skyline-cli 0.5.0).

docs/reference/schema.md and time-schema.md describe the meaning of the rows; the schemas, their
order and the numbering are Skyline's to the letter, because their readers are other people's
programs. DeepView.Profile 0.14.5 uses the same schema for times.
"""

from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from snapconv.answers.memory_report import ActivationEntry, MemoryReport, WeightEntry
from snapconv.answers.times import RunTimeEntry, TimeReport
from snapconv.stacks.project_lines import SourceLine
from snapconv.writers.sqlite.tables import (
    Column,
    Database,
    always,
    integer,
    key,
    milliseconds,
    numbered,
    single_record,
    size,
    table,
    text,
)

USER_VERSION = 1

# Skyline's tables count from 1.
ENTRY_KEY = key("0", "1, 2, 3, …")
# Columns of the frames of entries. A record is the entry, the place in it, and the line.
_ORDERING, _FILE_PATH, _LINE_NUMBER = (
    integer("ordering", "0, 1, 2, …; 0 is the innermost frame", "1"),
    text("file_path", "relative to the project root", "2.file_path"),
    integer("line_number", "line in that file, from 1", "2.line_number"),
)


class EntryFrames:
    """The frames of entries with a known line; their records are built while they are written."""

    def __init__(self, entries: Sequence[WeightEntry | ActivationEntry | RunTimeEntry]) -> None:
        known_lines = cache(_known_lines)
        self._frames = [known_lines(entry.frames) for entry in entries]

    def __len__(self) -> int:
        return sum(map(len, self._frames))

    def __iter__(self) -> Iterator[tuple[int, int, object]]:
        for number, frames in enumerate(self._frames, 1):
            for ordering, frame in enumerate(frames):
                yield number, ordering, frame


def _known_lines(frames: tuple[SourceLine, ...]) -> tuple[SourceLine, ...]:
    return tuple(frame for frame in frames if frame.line_number >= 1)


def _frames_of_memory(report: MemoryReport) -> EntryFrames:
    return EntryFrames((*report.weights, *report.activations))


def _frames_of_times(report: TimeReport) -> EntryFrames:
    return EntryFrames(report.entries)


WEIGHT = 1
ACTIVATION = 2
PEAK_KEY = "peak_usage_bytes"


def _correlations(report: MemoryReport) -> Iterator[tuple[int, int, int]]:
    """Yield weights, then activations, numbered as one sequence."""
    n_weights = len(report.weights)
    for weight_id in range(1, n_weights + 1):
        yield weight_id, weight_id, WEIGHT
    for activation_id in range(1, len(report.activations) + 1):
        yield n_weights + activation_id, activation_id, ACTIVATION


TABLES = (
    table(
        "weight_entries",
        "One row per weight that is live at the report's moment, the peak of allocated bytes.",
        ENTRY_KEY,
        text("name", "as recorded; else `train.py:48#3`, its line, or `weight_3`", "1.name"),
        size("size_bytes", "requested bytes: elements × bytes per element", "1.size_bytes"),
        size(
            "grad_size_bytes",
            "the same of its gradient in the iteration of the peak; 0: it has none",
            "1.grad_size_bytes",
        ),
        records=numbered("weights", 1),
        is_skylines=True,
    ),
    table(
        "activation_entries",
        "One row per activation of the iteration with the peak, live at that iteration's "
        "activation high-water mark.",
        ENTRY_KEY,
        text("operation_name", "the operation that allocated it", "1.operation_name"),
        size("size_bytes", "block bytes: what the allocator set aside for it", "1.size_bytes"),
        records=numbered("activations", 1),
        is_skylines=True,
    ),
    table(
        "stack_correlation",
        "Ties a weight or an activation to its frames: weights first, then activations.",
        key(
            "0",
            "the weight's id, or the number of weights plus the activation's id",
            "correlation_id",
        ),
        integer("entry_id", "id in `weight_entries` or in `activation_entries`", "1"),
        integer("entry_type", "which of the two: see `entry_types`", "2"),
        records=_correlations,
        constraint="UNIQUE (correlation_id, entry_id)",
        is_skylines=True,
        index="""\
CREATE UNIQUE INDEX entry_type_and_id
        ON stack_correlation(entry_type, entry_id)
    """,
    ),
    table(
        "stack_frames",
        "The frames of the project that allocated the entry; an entry without any has no rows "
        "here.",
        integer("correlation_id", "row of `stack_correlation`", "0"),
        _ORDERING,
        _FILE_PATH,
        _LINE_NUMBER,
        records=_frames_of_memory,
        constraint="PRIMARY KEY (correlation_id, ordering)",
        is_skylines=True,
    ),
    table(
        "entry_types",
        "The two kinds of entries; always these two rows.",
        key("0", "1 or 2", "entry_type"),
        text("name", "`Weight` or `Activation`", "1"),
        records=always(((WEIGHT, "Weight"), (ACTIVATION, "Activation"))),
        is_skylines=True,
    ),
    table(
        "misc_sizes",
        "Always one row.",
        Column("key", f"`{PEAK_KEY}`", always(PEAK_KEY), sql_type="TEXT PRIMARY KEY"),
        size(
            "size_bytes",
            "what `torch.cuda.max_memory_allocated()` would have returned",
            "peak.allocated_bytes",
            sql_type="INT",
        ),
        records=single_record,
        is_skylines=True,
    ),
)


TIME_TABLES = (
    table(
        "run_time_entries",
        "One row per outermost call of a torch function in the forward pass of the reported "
        "iteration, in the order of the calls.",
        ENTRY_KEY,
        text("operation_name", "the function that was called", "1.operation_name"),
        milliseconds(
            "forward_ms", "from before the call to after it, on the device", at="1.forward_ms"
        ),
        milliseconds(
            "backward_ms",
            "what autograd ran for it in backward, on the device",
            "1.backward_ms",
            null="nothing of it ran in backward",
        ),
        records=numbered("entries", 1),
        is_skylines=True,
    ),
    table(
        "stack_frames",
        "The frames of the project that led to the call; every entry has at least one.",
        _ORDERING,
        _FILE_PATH,
        _LINE_NUMBER,
        integer("entry_id", "row of `run_time_entries`", "0"),
        records=_frames_of_times,
        constraint="PRIMARY KEY (entry_id, ordering)",
        is_skylines=True,
    ),
)


def memory_database(path: Path, report: MemoryReport, *, extended: bool) -> Database:
    """Arrange the file of a memory report; ``write_databases`` writes it."""
    if not extended:
        return Database(path, USER_VERSION, report, TABLES)
    from snapconv.writers.sqlite.extended_memory import EXTENDED_TABLES, EXTENDED_VIEWS

    return Database(path, USER_VERSION, report, (*TABLES, *EXTENDED_TABLES), EXTENDED_VIEWS)


def time_database(path: Path, report: TimeReport, *, extended: bool) -> Database:
    """Arrange the file of a time report; ``write_databases`` writes it."""
    if not extended:
        return Database(path, USER_VERSION, report, TIME_TABLES)
    from snapconv.writers.sqlite.extended_times import EXTENDED_TIME_TABLES

    return Database(path, USER_VERSION, report, (*TIME_TABLES, *EXTENDED_TIME_TABLES))
