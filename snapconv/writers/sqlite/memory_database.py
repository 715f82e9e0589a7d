"""A MemoryReport -> an SQLite file in the schema of ``skyline memory`` (skyline-cli 0.5.0).

docs/reference/schema.md describes the meaning of the rows; the schema, its order and the numbering are
Skyline's to the letter, because its readers are other people's programs.
"""

from collections.abc import Iterator
from pathlib import Path

from snapconv.answers.memory_report import MemoryReport
from snapconv.writers.sqlite.shared_tables import ENTRY_KEY, FRAME_OF_ENTRY, USER_VERSION, EntryFrames
from snapconv.writers.sqlite.tables import Column, Database, integer, size, table, text

WEIGHT, ACTIVATION = 1, 2
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
        records=lambda report: enumerate(report.weights, 1),
        is_skylines=True,
    ),
    table(
        "activation_entries",
        "One row per activation of the iteration with the peak, live at that iteration's activation "
        "high-water mark.",
        ENTRY_KEY,
        text("operation_name", "the operation that allocated it", "1.operation_name"),
        size("size_bytes", "block bytes: what the allocator set aside for it", "1.size_bytes"),
        records=lambda report: enumerate(report.activations, 1),
        is_skylines=True,
    ),
    table(
        "stack_correlation",
        "Ties a weight or an activation to its frames: weights first, then activations.",
        Column(
            "correlation_id",
            "INTEGER PRIMARY KEY",
            "the weight's id, or the number of weights plus the activation's id",
            at="0",
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
        "The frames of the project that allocated the entry; an entry without any has no rows here.",
        integer("correlation_id", "row of `stack_correlation`", "0"),
        *FRAME_OF_ENTRY,
        records=lambda report: EntryFrames((*report.weights, *report.activations)),
        constraint="PRIMARY KEY (correlation_id, ordering)",
        is_skylines=True,
    ),
    table(
        "entry_types",
        "The two kinds of entries; always these two rows.",
        Column("entry_type", "INTEGER PRIMARY KEY", "1 or 2", at="0"),
        text("name", "`Weight` or `Activation`", "1"),
        records=lambda _: ((WEIGHT, "Weight"), (ACTIVATION, "Activation")),
        is_skylines=True,
    ),
    table(
        "misc_sizes",
        "Always one row.",
        Column("key", "TEXT PRIMARY KEY", f"`{PEAK_KEY}`", at=lambda _: PEAK_KEY),
        Column(
            "size_bytes",
            "INT",
            "what `torch.cuda.max_memory_allocated()` would have returned",
            "bytes",
            at="peak.allocated_bytes",
        ),
        records=lambda report: [report],
        is_skylines=True,
    ),
)


def memory_database(path: Path, report: MemoryReport, *, extended: bool) -> Database:
    """Arrange the file of a memory report; ``write_databases`` writes it."""
    if not extended:
        return Database(path, USER_VERSION, report, TABLES)
    from snapconv.writers.sqlite.extended_memory import EXTENDED_TABLES, EXTENDED_VIEWS

    return Database(path, USER_VERSION, report, (*TABLES, *EXTENDED_TABLES), EXTENDED_VIEWS)
