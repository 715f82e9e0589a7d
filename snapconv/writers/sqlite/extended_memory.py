"""The tables that ``--extended`` adds to a memory report, as data, and their values' origin.

Their names begin with ``snapconv_``, and Skyline's own tables are never touched. Whoever changes a
table here raises SCHEMA_VERSION and runs ``scripts/make_docs.py``. A column is one row: its name, type and
meaning, and the function that gets its value from a record, or its values from what has them as columns.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import count
from operator import itemgetter
from typing import Any

from snapconv.answers.memory_report import MemoryReport
from snapconv.classification.categories import Category, Certainty, Evidence
from snapconv.phases.annotation_spans import SpanKind
from snapconv.phases.trace_phases import Phase
from snapconv.writers.sqlite.shared_tables import (
    FILE_PATH,
    FRAME_FILE,
    FRAME_FUNCTION,
    FRAME_LINE,
    IS_PROJECT,
    LINE_FUNCTION,
    LINE_NUMBER,
    NOTES,
    SOURCE,
    STACK_FRAMES,
    id_column,
    key_column,
    report_table,
    stack_frame_rows,
)
from snapconv.writers.sqlite.tables import Column, Table, TableRows, define_table, table_rows

SCHEMA_VERSION = 4

Get = Callable[[Any], Any]

_BYTES = "bytes"
_EVENT = "event"
US = "µs since 1970"

NOT_IN_TRACE = "allocated before the trace begins"
NO_MODULE = "of no module, or of none that is known"
_NO_EVENT = "there is no such event in the trace"
_END = "the same, or the event by which that must have happened where the trace has lost it"


def _event(name: str, meaning: str, null: str, value: Get | None = None) -> Column:
    return Column(name, "INTEGER", meaning, _EVENT, null=null, stands_for_null=-1, value=value)


def bytes_column(name: str, meaning: str, value: Get | None = None) -> Column:
    """Make a column of bytes."""
    return Column(name, "INTEGER", meaning, _BYTES, value=value)


def _iteration(name: str, meaning: str) -> Column:
    return Column(name, "INTEGER REFERENCES snapconv_iterations (iteration)", meaning)


def _of_rows(name: str) -> Get:
    """Get a column of the AllocationTable."""
    return lambda report: getattr(report.analysis.allocations, name)


IS_EXACT = "1: `block_bytes` is certain; 0: it is a lower limit, see [replay.md](../design/replay.md)"
LIFE = (
    _event("alloc_event", "event that allocated it", NOT_IN_TRACE, _of_rows("alloc_event")),
    _event(
        "free_requested_event", "event that requested its free", _NO_EVENT, _of_rows("free_requested_event")
    ),
    _event(
        "free_completed_event", "event that made its block free", _NO_EVENT, _of_rows("free_completed_event")
    ),
    _event("end_event", _END, "its block is not free when the trace ends", _of_rows("end_event")),
)
_TIME_US = Column("time_us", "INTEGER", "when", US, null="the snapshot has no times", stands_for_null=-1)


def _words(name: str, meaning: str, what: str, words: Callable[[MemoryReport], Iterable[object]]) -> Table:
    """Make a table of numbered words: by position, or as pairs."""
    return define_table(
        name,
        meaning,
        key_column(itemgetter(0)),
        Column("name", "TEXT", what, value=itemgetter(1)),
        records=words,
    )


REPORT = report_table(
    SCHEMA_VERSION,
    Column("device", "INTEGER", "device that the report is about; -1: pinned host memory"),
    bytes_column("peak_usage_bytes", "the same number as in `misc_sizes`"),
    Column(
        "history_verdict",
        "TEXT",
        "how much of the job the trace covers: one of four words, see below",
        value=lambda report: report.peak.history_verdict,
    ),
    Column("history_reason", "TEXT", "how that is known", value=lambda report: report.peak.history_reason),
    Column(
        "job",
        "TEXT",
        "which hypothesis about the job explains what was there before the trace",
        null="nothing was left for a hypothesis",
        value=lambda report: report.peak.job,
    ),
    root=lambda report: report.peak.project_root,
)

MOMENTS = define_table(
    "snapconv_moments",
    "The named events that the figures of a report are about.",
    Column("name", "TEXT PRIMARY KEY", "name of the moment, see below"),
    _event("event", "the event; what is counted is counted after it", "before the first event"),
    replace(_TIME_US, null="before the first event, or the snapshot has no times"),
    bytes_column("size_bytes", "the bytes at that moment, of the kind in the name"),
    records=lambda report: report.moments,
)

CATEGORIES_AT_PEAK = define_table(
    "snapconv_categories_at_peak",
    "The bytes of every category at the peak of allocated bytes.",
    Column("category", "TEXT", "name of the category, as in `snapconv_categories`"),
    Column("n_allocations", "INTEGER", "number of allocations"),
    bytes_column("requested_bytes", "the size that the program requested"),
    bytes_column("block_bytes", "what the allocator set aside"),
    Column(
        "n_models",
        "INTEGER",
        "of weights: how many models of equal sizes they are",
        null="one, or not known; and for other categories",
    ),
    bytes_column("likely_bytes", "those of `block_bytes` that are likely, and not certain"),
    records=lambda report: report.peak.categories,
)

BREAKDOWN = define_table(
    "snapconv_breakdown",
    "The reserved bytes at the peak of allocated bytes, in parts. Rows without a parent sum to the reserved "
    "bytes; rows with a parent sum to that parent.",
    Column("name", "TEXT", "name of the part, see below"),
    Column("parent", "TEXT", "name of the row that this one is a part of", null="it is a part of the whole"),
    bytes_column("size_bytes", "size of the part"),
    records=lambda report: report.breakdown,
)

LINES_AT_PEAK = define_table(
    "snapconv_lines_at_peak",
    "The bytes of every line of the project at the peak of allocated bytes.",
    FILE_PATH,
    replace(LINE_NUMBER, meaning="line in that file", null="not known", stands_for_null=0),
    LINE_FUNCTION,
    Column("n_allocations", "INTEGER", "number of allocations"),
    bytes_column("block_bytes", "what the allocator set aside"),
    records=lambda report: report.peak.lines,
)

MODULES_AT_PEAK = define_table(
    "snapconv_modules_at_peak",
    "The bytes of every module at the peak of allocated bytes, without the modules it calls. Memory of no "
    "known module is not in it.",
    Column("module", "TEXT", "name of the module, as in `snapconv_modules`"),
    Column("evidence", "TEXT", "how that is known, as in `snapconv_modules`"),
    Column("n_allocations", "INTEGER", "number of allocations"),
    bytes_column("block_bytes", "what the allocator set aside"),
    records=lambda report: report.peak.modules,
)

GROWTH = define_table(
    "snapconv_growth",
    "The stacks that hold more memory from iteration to iteration, three at least.",
    id_column("stack_id", "snapconv_stacks", "no stack was recorded"),
    Column(
        "fate",
        "TEXT",
        "`never freed`: not to the end of the trace; `replaced by larger`: each time by more; `freed late`: "
        "that of several iterations at once",
    ),
    Column("confidence", "TEXT", "`weak`: three iterations show it; `fair`: four to seven; `strong`: more"),
    _iteration("first_iteration", "the first in which it grew"),
    _iteration("last_iteration", "the last"),
    Column("n_iterations", "INTEGER", "number of iterations in which it grew, equally far apart"),
    Column("n_allocations", "INTEGER", "number of allocations that were left behind"),
    bytes_column(
        "block_bytes", "what it grew by in all of them; `freed late`: the most that was freed at once"
    ),
    bytes_column("bytes_per_iteration", "what an iteration adds"),
    records=lambda report: report.growth,
)

ITERATIONS = define_table(
    "snapconv_iterations",
    "The training steps; one row for the whole trace where no step was found.",
    Column("iteration", "INTEGER PRIMARY KEY", "0, 1, 2, …", value=itemgetter(0)),
    _event("first_event", "its first event", "the trace has no events", lambda row: row[1].first_event),
    _event("last_event", "its last event", "the trace has no events", lambda row: row[1].last_event),
    bytes_column("peak_allocated_bytes", "the most that was allocated in it", lambda row: row[1].peak_bytes),
    _event(
        "peak_event",
        "the event after which that was so",
        "before the first event",
        lambda row: row[1].peak_event,
    ),
    records=lambda report: enumerate(report.analysis.iterations),
)

OOM_EVENTS = define_table(
    "snapconv_oom_events",
    "Allocations that failed for want of memory.",
    Column("event", "INTEGER", "the event", _EVENT),
    _TIME_US,
    bytes_column("requested_bytes", "the requested size, as torch writes it here: already rounded up"),
    bytes_column("device_free_bytes", "what the driver had free"),
    bytes_column("allocated_bytes", "what was allocated then"),
    bytes_column("reserved_bytes", "the bytes in segments then"),
    id_column("stack_id", "snapconv_stacks", "no stack was recorded"),
    records=lambda report: report.oom_events,
)

TIMELINE = define_table(
    "snapconv_timeline",
    "The four curves: one row per event of the trace, with the bytes after it.",
    Column(
        "event",
        "INTEGER PRIMARY KEY",
        "0, 1, 2, …: position in the device's trace",
        _EVENT,
        value=lambda device: range(len(device.replay.allocated.after)),
    ),
    replace(_TIME_US, value=lambda device: device.device.events.time_us),
    bytes_column(
        "requested_bytes",
        "sum of the requested sizes of all blocks that `active_bytes` counts",
        lambda device: device.replay.requested.after,
    ),
    bytes_column("allocated_bytes", "sum of the blocks in use", lambda device: device.replay.allocated.after),
    bytes_column(
        "active_bytes",
        "sum of the blocks in use or waiting for a stream before they are free",
        lambda device: device.replay.active.after,
    ),
    bytes_column("reserved_bytes", "sum of the segments", lambda device: device.replay.reserved.after),
    arrays=lambda report: report.analysis,
)

ALLOCATIONS = define_table(
    "snapconv_allocations",
    "Every allocation of the device, one row per lifetime.",
    key_column(lambda report: range(len(report.analysis.allocations))),
    *LIFE,
    Column(
        "addr",
        "INTEGER",
        "address as a signed 64-bit integer, negative from 2^63 on",
        "address",
        value=_of_rows("addr"),
    ),
    Column(
        "stream", "INTEGER", "handle of the CUDA stream; 0 is the default stream", value=_of_rows("stream")
    ),
    id_column("pool_id", "snapconv_pools", "not in the snapshot", _of_rows("pool_id")),
    bytes_column("requested_bytes", "the size that the program requested", _of_rows("requested_bytes")),
    bytes_column("block_bytes", "what the allocator set aside", _of_rows("block_bytes")),
    Column("is_exact", "INTEGER", IS_EXACT, value=_of_rows("is_exact")),
    Column(
        "category_id",
        "INTEGER REFERENCES snapconv_categories (id)",
        "what it was for",
        value=lambda report: report.analysis.classification.category,
    ),
    Column(
        "evidence_id",
        "INTEGER REFERENCES snapconv_evidence (id)",
        "how that is known",
        value=lambda report: report.analysis.classification.evidence,
    ),
    Column(
        "certainty_id",
        "INTEGER REFERENCES snapconv_certainties (id)",
        "how sure that is",
        value=lambda report: report.analysis.classification.certainty,
    ),
    Column(
        "probability",
        "REAL",
        "how probable the category is: of what has 0.9, 90 % is right; 1: it follows from a fact",
        null="it is unknown",
        stands_for_null=0,
        value=lambda report: report.analysis.classification.probability.astype(float).round(3),
    ),
    Column(
        "rule_id",
        "INTEGER REFERENCES snapconv_rules (id)",
        "row of `snapconv_rules`; 0: none decided",
        value=lambda report: report.analysis.classification.reason_id,
    ),
    Column(
        "operation_id",
        "INTEGER REFERENCES snapconv_operations (id)",
        "row of `snapconv_operations`; 0: not known",
        value=lambda report: report.analysis.operation_id,
    ),
    id_column("stack_id", "snapconv_stacks", "no stack was recorded", _of_rows("stack_id")),
    Column(
        "iteration",
        "INTEGER REFERENCES snapconv_iterations (iteration)",
        "training step that allocated it",
        null=NOT_IN_TRACE,
        stands_for_null=-1,
        value=lambda report: report.analysis.iteration,
    ),
    id_column("phase_id", "snapconv_phases", NOT_IN_TRACE, lambda report: report.phase),
    id_column("module_id", "snapconv_modules", NO_MODULE, lambda report: report.analysis.modules.module_id),
    arrays=lambda report: report,
)

_LAYOUT_MOMENT = Column(
    "moment", "TEXT", "`peak_allocated`: at the peak; `end_allocated`: at the dump; as in `snapconv_moments`"
)
_ADDR = Column("addr", "INTEGER", "address as a signed 64-bit integer, negative from 2^63 on", "address")

SEGMENTS = define_table(
    "snapconv_segments",
    "The segments at the peak of allocated bytes, and at the dump: the memory obtained from the device.",
    _LAYOUT_MOMENT,
    _ADDR,
    bytes_column("total_bytes", "its size; of an expandable segment, what is mapped"),
    bytes_column("active_bytes", "sum of its blocks that are in use, or wait for a stream"),
    Column("n_blocks", "INTEGER", "number of these"),
    Column("n_free", "INTEGER", "number of its free pieces"),
    bytes_column("largest_free_bytes", "the largest of these"),
    Column("stream", "INTEGER", "handle of the CUDA stream that it serves; 0 is the default stream"),
    id_column("pool_id", "snapconv_pools", "not in the snapshot"),
    Column("is_small", "INTEGER", "1: it serves requests of up to 1 MiB; 0: larger ones"),
    Column("is_expandable", "INTEGER", "1: it grows and shrinks by pages; 0: it is returned as a whole"),
    id_column("stack_id", "snapconv_stacks", "no stack was recorded"),
    arrays=lambda report: report.segments,
)

BLOCKS = define_table(
    "snapconv_blocks",
    "The blocks and the free pieces of the segments at these moments; those of a segment sum to it.",
    _LAYOUT_MOMENT,
    Column("segment_addr", "INTEGER", "`addr` of its segment at that moment", "address"),
    _ADDR,
    bytes_column("block_bytes", "its size"),
    id_column("allocation_id", "snapconv_allocations", "it is free"),
    arrays=lambda report: report.blocks,
)

ANNOTATION_NAMES = _words(
    "snapconv_annotation_names",
    "The names that the program gave to spans of the trace.",
    "the name, or the text",
    lambda report: enumerate(report.annotations.names),
)
ANNOTATIONS = define_table(
    "snapconv_annotations",
    "The spans of the trace that the program has named. One without an event has its last event before its "
    "first.",
    id_column("name_id", "snapconv_annotation_names"),
    Column(
        "kind",
        "TEXT",
        "`record_function`; `user_metadata`; `tensor`: a text that was given to one tensor",
        value=lambda found: [SpanKind(kind).label for kind in found.spans.kind.tolist()],
    ),
    Column(
        "first_event",
        "INTEGER",
        "its first event; the trace's, where its beginning is lost",
        _EVENT,
        value=lambda found: found.spans.first_event,
    ),
    Column(
        "last_event",
        "INTEGER",
        "its last event; -1 where it ended before the first",
        _EVENT,
        value=lambda found: found.spans.last_event,
    ),
    bytes_column(
        "peak_allocated_bytes",
        "the most that was allocated in it, or when it began",
        lambda found: found.peak_bytes,
    ),
    bytes_column("change_bytes", "what was allocated after it, less what was before it; may be negative"),
    arrays=lambda report: report.annotations,
)

STACKS = define_table(
    "snapconv_stacks",
    "The distinct stacks.",
    key_column(lambda stacks: stacks.stack_id),
    Column("n_frames", "INTEGER", "number of frames"),
    id_column("innermost_frame_id", "snapconv_frames", "the stack is empty"),
    id_column("project_frame_id", "snapconv_frames", "no frame is the project's"),
    arrays=lambda report: report.stacks,
)

FRAMES = define_table(
    "snapconv_frames",
    "The distinct frames.",
    key_column(lambda stacks: stacks.frame_id),
    FRAME_FUNCTION,
    FRAME_FILE,
    FRAME_LINE,
    IS_PROJECT,
    arrays=lambda report: report.stacks,
)

CATEGORIES = _words(
    "snapconv_categories",
    "What an allocation can be for.",
    "name of the category",
    lambda _: [(int(category), category.label) for category in Category],
)
EVIDENCE = _words(
    "snapconv_evidence",
    "How the category of an allocation can be known.",
    "name of the evidence",
    lambda _: [(int(evidence), evidence.label) for evidence in Evidence],
)
CERTAINTIES = _words(
    "snapconv_certainties",
    "How sure the category of an allocation can be.",
    "`recorded`: by the recorder, or your rule; `certain`; `likely`: the most probable one; `unknown`",
    lambda _: [(int(certainty), certainty.label) for certainty in Certainty],
)
RULES = _words(
    "snapconv_rules",
    "The rules that decided categories.",
    "name of the rule; that of row 0 is `none`",
    lambda report: enumerate(report.analysis.classification.reasons),
)
OPERATIONS = _words(
    "snapconv_operations",
    "The operations that allocated.",
    "name of the operation; that of row 0 is `unknown`",
    lambda report: enumerate(report.analysis.operations),
)
PHASES = _words(
    "snapconv_phases",
    "The parts of a training step.",
    "name of the phase",
    lambda _: [(int(phase), phase.name.lower()) for phase in Phase],
)
POOLS = _words(
    "snapconv_pools",
    "The memory pools of the snapshot.",
    "the two numbers that torch has for it; `(0, 0)`: the default pool, else a private one (CUDA graphs, "
    "`MemPool`)",
    lambda report: enumerate(map(str, report.analysis.snapshot.pools)),
)
MODULES = define_table(
    "snapconv_modules",
    "The modules that allocations are of.",
    key_column(itemgetter(0)),
    Column("name", "TEXT", "name of the module, see below", value=itemgetter(1)),
    Column("evidence", "TEXT", "how that is known, see below", value=lambda row: row[2].label),
    records=lambda report: zip(count(), report.analysis.modules.names, report.analysis.modules.evidence),
)

EXTENDED_TABLES: tuple[Table, ...] = (
    REPORT,
    SOURCE,
    NOTES,
    CATEGORIES_AT_PEAK,
    BREAKDOWN,
    LINES_AT_PEAK,
    MODULES_AT_PEAK,
    MOMENTS,
    ITERATIONS,
    GROWTH,
    OOM_EVENTS,
    ANNOTATION_NAMES,
    ANNOTATIONS,
    CATEGORIES,
    EVIDENCE,
    CERTAINTIES,
    RULES,
    OPERATIONS,
    PHASES,
    POOLS,
    MODULES,
    FRAMES,
    STACKS,
    STACK_FRAMES,
    TIMELINE,
    ALLOCATIONS,
    SEGMENTS,
    BLOCKS,
)


def extended_rows(report: MemoryReport) -> list[TableRows]:
    """Arrange the rows of every extended table; the long ones are made chunk by chunk on demand."""
    return [
        stack_frame_rows(report.stacks) if table is STACK_FRAMES else table_rows(table, report)
        for table in EXTENDED_TABLES
    ]
