"""The tables and views that ``--extended`` adds to a memory report, as data.

Their names begin with ``snapconv_``, and Skyline's own tables are never touched. A column or a
table may be added at any time; whoever renames or removes one, or changes a meaning, raises
SCHEMA_VERSION.
"""

from collections.abc import Callable, Iterable
from enum import IntEnum
from itertools import count
from operator import attrgetter
from typing import Any

import numpy as np

from snapconv.answers.memory_report import PEAK_ALLOCATED, MemoryReport
from snapconv.answers.times import TimeReport
from snapconv.classification.categories import Category, Certainty, Evidence
from snapconv.phases.trace_phases import Phase
from snapconv.units import device_kind
from snapconv.writers.sqlite.tables import (
    NUMBER,
    Arrays,
    Column,
    Row,
    Rows,
    Table,
    View,
    integer,
    key,
    picked,
    row_of,
    size,
    table,
    text,
)

SCHEMA_VERSION = 7

_EVENT = "event"
_US = "µs since 1970"
_NOT_IN_TRACE = "allocated before the trace begins"
_NO_MODULE = "of no module, or of none that is known"
_NO_EVENT = "there is no such event in the trace"
_BEFORE = "before the first event"
_EMPTY = "the trace has no events"
_NO_STACK = "no stack was recorded"


def _event(name: str, meaning: str, null: str, path: str = "") -> Column:
    return Column(name, meaning, null, _EVENT, stands_for_null=-1, path=path)


def _iteration(name: str, meaning: str, null: str | None = None, path: str = "") -> Column:
    reference = "INTEGER REFERENCES snapconv_iterations (iteration)"
    stand_in = -1 if null else None
    return Column(name, meaning, null, "", reference, stand_in, path)


def _time(null: str, path: str = "") -> Column:
    return Column("time_us", "when", null, _US, stands_for_null=-1, path=path)


_STACK = row_of("snapconv_stacks", "stack_id", _NO_STACK)
_NO_TIMES = "the snapshot has no times"


def _words(
    name: str,
    meaning: str,
    word_meaning: str,
    words: Callable[[MemoryReport], Iterable[str]],
) -> Table:
    def rows(report: MemoryReport) -> Rows:
        return enumerate(words(report))

    return table(name, meaning, key(), text("name", word_meaning), rows=rows)


def _labels(kind: type[IntEnum]) -> Callable[[MemoryReport], list[str]]:
    labels = [getattr(member, "label", member.name.lower()) for member in kind]

    def words(_: MemoryReport) -> list[str]:
        return labels

    return words


def _pools(report: MemoryReport) -> Iterable[str]:
    return map(str, report.analysis.snapshot.pools)


def _module_rows(report: MemoryReport) -> Rows:
    modules = report.analysis.modules
    labels = [evidence.label for evidence in modules.evidence]
    return zip(count(), modules.names, labels)


def frame_arrays(report: MemoryReport | TimeReport) -> list[Any]:
    """Return the columns of the distinct frames."""
    stacks = report.stacks
    frames = stacks.table.frames
    frame_id = stacks.frame_id
    return [
        frame_id,
        picked(frames.names, frame_id),
        picked(frames.filenames, frame_id),
        frames.lines[frame_id],
        stacks.is_project[frame_id],
    ]


def _stack_frame_arrays(report: MemoryReport | TimeReport) -> Arrays:
    stacks = report.stacks
    frame_ids = stacks.table.frame_ids
    firsts = np.repeat(stacks.table.offsets[:-1], stacks.n_frames)
    ordering = np.arange(len(frame_ids)) - firsts
    return np.repeat(stacks.stack_id, stacks.n_frames), ordering, frame_ids


# Columns of allocations, in their table and in the view with words.
(
    _ALLOC_EVENT,
    _FREE_REQUESTED,
    _FREE_COMPLETED,
    _END_EVENT,
    _REQUESTED,
    _BLOCK,
    _IS_EXACT,
    _PENDING,
) = (
    _event(
        "alloc_event",
        "event that allocated it",
        _NOT_IN_TRACE,
        "analysis.allocations.alloc_event",
    ),
    _event(
        "free_requested_event",
        "event that requested its free",
        _NO_EVENT,
        "analysis.allocations.free_requested_event",
    ),
    _event(
        "free_completed_event",
        "event that made its block free",
        _NO_EVENT,
        "analysis.allocations.free_completed_event",
    ),
    _event(
        "end_event",
        "the same, or the event by which that must have happened where the trace has lost it",
        "its block is not free when the trace ends",
        "analysis.allocations.end_event",
    ),
    size(
        "requested_bytes",
        "the size that the program requested",
        path="analysis.allocations.requested_bytes",
    ),
    size(
        "block_bytes",
        "what the allocator set aside",
        path="analysis.allocations.block_bytes",
    ),
    integer(
        "is_exact",
        "1: `block_bytes` is certain; 0: it is a lower limit, see [replay.md](../design/replay.md)",
        path="analysis.allocations.is_exact",
    ),
    integer(
        "is_pending_at_end",
        "1: freed, but another stream still uses its block at the dump",
        path="analysis.allocations.is_pending_at_end",
    ),
)


def report_table(version: int, *columns: Column, facts: Callable[[Any], Row]) -> Table:
    """Make the table of facts about the report, of memory or of times.

    ``facts`` gives the values of the columns, and the root of the project.
    """
    version_meaning = f"version of the `snapconv_` tables; this page describes {version}"
    root_meaning = "folder that paths of the project are relative to"

    def rows(report: object) -> Rows:
        return [(version, *facts(report))]

    return table(
        "snapconv_report",
        "What this report is; always one row.",
        integer("schema_version", version_meaning),
        *columns,
        text("project_root", root_meaning, null="none was found"),
        rows=rows,
    )


def _facts(report: MemoryReport) -> Row:
    peak = report.peak
    kind = device_kind(peak.device)
    history = peak.history_verdict, peak.history_reason
    return peak.device, kind, peak.allocated_bytes, *history, peak.job, peak.project_root


REPORT, SOURCE, NOTES = (
    report_table(
        SCHEMA_VERSION,
        integer("device", "device that the report is about; -1: pinned host memory"),
        text("device_kind", "kind of the device: `cuda`, `npu`, `xpu`, …; `host`"),
        size("peak_usage_bytes", "the same number as in `misc_sizes`"),
        text(
            "history_verdict",
            "how much of the job the trace covers: one of four words, see below",
        ),
        text("history_reason", "how that is known"),
        text(
            "job",
            "which hypothesis about the job explains what was there before the trace",
            null="nothing was left for a hypothesis",
        ),
        facts=_facts,
    ),
    table(
        "snapconv_source",
        "Where the numbers come from: the file, and how it was made.",
        text("key", "name of the fact"),
        text("value", "its text"),
        rows=attrgetter("source"),
    ),
    table(
        "snapconv_notes",
        "Notes on the figures that their reader should know.",
        text("slug", "stable short name of the note"),
        text("message", "a sentence for a person"),
        integer(
            "device",
            "device that it is about; -1: pinned host memory",
            null="the whole file",
        ),
        records=attrgetter("notes"),
    ),
)

STEPS = (
    table(
        "snapconv_moments",
        "The named events that the figures of a report are about.",
        Column("name", "name of the moment, see below", sql_type="TEXT PRIMARY KEY"),
        _event("event", "the event; what is counted is counted after it", _BEFORE),
        _time(f"{_BEFORE}, or {_NO_TIMES}"),
        size("size_bytes", "the bytes at that moment, of the kind in the name"),
        records=attrgetter("moments"),
    ),
    table(
        "snapconv_iterations",
        "The training steps; one row for the whole trace where no step was found.",
        key(name="iteration"),
        _event("first_event", "its first event", _EMPTY),
        _event("last_event", "its last event", _EMPTY),
        size(
            "peak_allocated_bytes",
            "the most that was allocated in it",
            path="peak_bytes",
        ),
        _event("peak_event", "the event after which that was so", _BEFORE),
        records=attrgetter("analysis.iterations"),
    ),
    table(
        "snapconv_growth",
        "The stacks that hold more memory from iteration to iteration, three at least.",
        _STACK,
        text(
            "fate",
            "`never freed`: not to the end of the trace; `replaced by larger`: each time by more",
        ),
        text("certainty", "`likely`: three to seven iterations show it; `certain`: more"),
        _iteration("first_iteration", "the first in which it grew"),
        _iteration("last_iteration", "the last"),
        integer("n_iterations", "number of iterations in which it grew, equally far apart"),
        integer("n_allocations", "number of allocations that were left behind"),
        size("block_bytes", "what it grew by in all of them"),
        size("bytes_per_iteration", "what an iteration adds"),
        records=attrgetter("growth"),
    ),
    table(
        "snapconv_oom_events",
        "Allocations that failed for want of memory.",
        integer("event", "the event", unit=_EVENT),
        _time(_NO_TIMES),
        size(
            "requested_bytes",
            "the requested size, which torch writes rounded up here",
            path="block_bytes",
        ),
        size("device_free_bytes", "what the driver had free"),
        size("allocated_bytes", "what was allocated then"),
        size("reserved_bytes", "the bytes in segments then"),
        _STACK,
        records=attrgetter("oom_events"),
    ),
)

WORDS = (
    _words(
        "snapconv_categories",
        "What an allocation can be for.",
        "name of the category",
        _labels(Category),
    ),
    _words(
        "snapconv_evidence",
        "How the category of an allocation can be known.",
        "name of the evidence",
        _labels(Evidence),
    ),
    _words(
        "snapconv_certainties",
        "How sure the category of an allocation can be.",
        "`recorded`: by the recorder, or your rule; `certain`; `likely`: the most "
        "probable one; `unknown`",
        _labels(Certainty),
    ),
    _words(
        "snapconv_rules",
        "The rules that decided categories.",
        "name of the rule; that of row 0 is `none`",
        attrgetter("analysis.classification.reasons"),
    ),
    _words(
        "snapconv_operations",
        "The operations that allocated.",
        "name of the operation; that of row 0 is `unknown`",
        attrgetter("analysis.operations"),
    ),
    _words(
        "snapconv_phases",
        "The parts of a training step.",
        "name of the phase",
        _labels(Phase),
    ),
    _words(
        "snapconv_pools",
        "The memory pools of the snapshot.",
        "the two numbers that torch has for it; `(0, 0)`: the default pool, else a "
        "private one (CUDA graphs, `MemPool`)",
        _pools,
    ),
    table(
        "snapconv_modules",
        "The modules that allocations are of.",
        key(),
        text("name", "name of the module, see below"),
        text("evidence", "how that is known, see below"),
        rows=_module_rows,
    ),
)


N_FRAMES = integer("n_frames", "number of frames", path="stacks.n_frames")
FRAMES, STACKS, STACK_FRAMES = (
    table(
        "snapconv_frames",
        "The distinct frames.",
        key(),
        text("function", "function, as recorded"),
        text("file", "file, as recorded"),
        integer("line", "line in that file", null="not known", stands_for_null=0),
        integer("is_project", "1: the file is the project's; 0: it is not"),
        arrays=frame_arrays,
    ),
    table(
        "snapconv_stacks",
        "The distinct stacks.",
        key(path="stacks.stack_id"),
        N_FRAMES,
        row_of(
            "snapconv_frames",
            "innermost_frame_id",
            "the stack is empty",
            path="stacks.table.innermost",
        ),
        row_of(
            "snapconv_frames",
            "project_frame_id",
            "no frame is the project's",
            path="stacks.project_frame_id",
        ),
    ),
    table(
        "snapconv_stack_frames",
        "The frames of every stack: Python's, and in a memory report C++'s.",
        row_of("snapconv_stacks", "stack_id"),
        integer("ordering", "0, 1, 2, …; 0 is the innermost frame"),
        row_of("snapconv_frames", "frame_id"),
        arrays=_stack_frame_arrays,
        constraint="PRIMARY KEY (stack_id, ordering)",
    ),
)

EXTENDED_TABLES: tuple[Table, ...] = (
    *(REPORT, SOURCE, NOTES, *STEPS, *WORDS),
    *(FRAMES, STACKS, STACK_FRAMES),
    table(
        "snapconv_timeline",
        "The four curves: one row per event of the trace, with the bytes after it.",
        Column(
            "event",
            "0, 1, 2, …: position in the device's trace",
            unit=_EVENT,
            sql_type="INTEGER PRIMARY KEY",
            path=NUMBER,
        ),
        _time(_NO_TIMES, "analysis.device.events.time_us"),
        size(
            "requested_bytes",
            "sum of the requested sizes of all blocks that `active_bytes` counts",
            path="analysis.replay.requested.after",
        ),
        size(
            "allocated_bytes",
            "sum of the blocks in use",
            path="analysis.replay.allocated.after",
        ),
        size(
            "active_bytes",
            "sum of the blocks in use or waiting for a stream before they are free",
            path="analysis.replay.active.after",
        ),
        size(
            "reserved_bytes",
            "sum of the segments",
            path="analysis.replay.reserved.after",
        ),
    ),
    table(
        "snapconv_allocations",
        "Every allocation of the device, one row per lifetime.",
        key(),
        _ALLOC_EVENT,
        _FREE_REQUESTED,
        _FREE_COMPLETED,
        _END_EVENT,
        integer(
            "addr",
            "address as a signed 64-bit integer, negative from 2^63 on",
            unit="address",
            path="analysis.allocations.addr",
        ),
        integer(
            "stream",
            "handle of the CUDA stream; 0 is the default stream",
            path="analysis.allocations.stream",
        ),
        row_of(
            "snapconv_pools",
            "pool_id",
            "not in the snapshot",
            path="analysis.allocations.pool_id",
        ),
        _REQUESTED,
        _BLOCK,
        _IS_EXACT,
        row_of(
            "snapconv_categories",
            "category_id",
            meaning="what it was for",
            path="analysis.classification.category",
        ),
        row_of(
            "snapconv_evidence",
            "evidence_id",
            meaning="how that is known",
            path="analysis.classification.evidence",
        ),
        row_of(
            "snapconv_certainties",
            "certainty_id",
            meaning="how sure that is",
            path="analysis.classification.certainty",
        ),
        Column(
            "probability",
            "how probable the category is: of what has 0.9, 90 % is right; 1: it "
            "follows from a fact",
            null="it is unknown",
            sql_type="REAL",
            stands_for_null=0,
            path="probability",
        ),
        row_of(
            "snapconv_rules",
            "rule_id",
            meaning="row of `snapconv_rules`; 0: none decided",
            path="analysis.classification.reason_id",
        ),
        row_of(
            "snapconv_operations",
            "operation_id",
            meaning="row of `snapconv_operations`; 0: not known",
            path="analysis.operation_id",
        ),
        row_of(
            "snapconv_stacks",
            "stack_id",
            _NO_STACK,
            path="analysis.allocations.stack_id",
        ),
        _iteration(
            "iteration",
            "training step that allocated it",
            _NOT_IN_TRACE,
            "analysis.iteration",
        ),
        row_of("snapconv_phases", "phase_id", _NOT_IN_TRACE, path="phase"),
        row_of(
            "snapconv_modules", "module_id", _NO_MODULE, path="analysis.modules.module_id"
        ),
        _PENDING,
    ),
)

_NO_FRAME = "there is no such frame"

_COLUMNS_IN_WORDS = (
    integer("id", "row of `snapconv_allocations`"),
    text("category", "what it was for"),
    text("certainty", "how sure that is: `recorded`, `certain`, `likely` or `unknown`"),
    Column("probability", "how probable it is", null="it is unknown", sql_type="REAL"),
    text("evidence", "how that is known"),
    text("rule", "the rule that decided it; `none`: no rule did"),
    text("operation", "the operation that allocated it; `unknown`: not known"),
    _REQUESTED,
    _BLOCK,
    _IS_EXACT,
    integer("stream", "handle of the CUDA stream"),
    text("pool", "the memory pool, as in `snapconv_pools`", null="not in the snapshot"),
    text("address", "address in hexadecimal, unsigned"),
    _ALLOC_EVENT,
    _FREE_REQUESTED,
    _FREE_COMPLETED,
    _END_EVENT,
    integer("alloc_time_us", "when it was allocated", unit=_US, null="not known"),
    integer("iteration", "training step that allocated it", null=_NOT_IN_TRACE),
    text("phase", "part of the step that allocated it", null=_NOT_IN_TRACE),
    text("module", "the module that it is of, as in `snapconv_modules`", null=_NO_MODULE),
    integer("stack_id", "row of `snapconv_stacks`", null=_NO_STACK),
    text("function", "function of the innermost frame of the project", null=_NO_FRAME),
    text("file", "file of that frame, as recorded", null=_NO_FRAME),
    integer("line", "line of that frame", null=f"{_NO_FRAME}, or its line is not known"),
    _PENDING,
)

# LEFT JOIN also where a partner is certain: it keeps the allocations as the outer loop, so that
# millions of them are scanned once and the rest is looked up by rowid.
ALLOCATIONS_IN_WORDS = View(
    "snapconv_allocations_in_words",
    "Every allocation, with words instead of ids.",
    _COLUMNS_IN_WORDS,
    """\
CREATE VIEW snapconv_allocations_in_words AS
SELECT allocation.id, category.name AS category, certainty.name AS certainty,
       allocation.probability, evidence.name AS evidence, rule.name AS rule,
       operation.name AS operation,
       allocation.requested_bytes, allocation.block_bytes, allocation.is_exact,
       allocation.stream, pool.name AS pool, printf('0x%x', allocation.addr) AS address,
       allocation.alloc_event, allocation.free_requested_event, allocation.free_completed_event,
       allocation.end_event, timeline.time_us AS alloc_time_us, allocation.iteration,
       phase.name AS phase,
       module.name AS module, allocation.stack_id, frame.function, frame.file, frame.line,
       allocation.is_pending_at_end
FROM snapconv_allocations AS allocation
LEFT JOIN snapconv_categories AS category ON category.id = allocation.category_id
LEFT JOIN snapconv_certainties AS certainty ON certainty.id = allocation.certainty_id
LEFT JOIN snapconv_evidence AS evidence ON evidence.id = allocation.evidence_id
LEFT JOIN snapconv_rules AS rule ON rule.id = allocation.rule_id
LEFT JOIN snapconv_operations AS operation ON operation.id = allocation.operation_id
LEFT JOIN snapconv_pools AS pool ON pool.id = allocation.pool_id
LEFT JOIN snapconv_phases AS phase ON phase.id = allocation.phase_id
LEFT JOIN snapconv_modules AS module ON module.id = allocation.module_id
LEFT JOIN snapconv_timeline AS timeline ON timeline.event = allocation.alloc_event
LEFT JOIN snapconv_stacks AS stack ON stack.id = allocation.stack_id
LEFT JOIN snapconv_frames AS frame ON frame.id = stack.project_frame_id""",
)

EXTENDED_VIEWS: tuple[View, ...] = (
    ALLOCATIONS_IN_WORDS,
    # As the timeline counts allocated bytes: until the request to free, or the end where none is
    # known.
    View(
        "snapconv_peak_allocations",
        "The allocations in use at the peak of allocated bytes, largest first.",
        (),
        f"""\
CREATE VIEW snapconv_peak_allocations AS
SELECT allocation.*
FROM snapconv_moments AS moment
JOIN snapconv_allocations_in_words AS allocation
  ON coalesce(allocation.alloc_event, -1) <= coalesce(moment.event, -1)
 AND coalesce(allocation.free_requested_event, allocation.end_event, 9223372036854775807)
     > coalesce(moment.event, -1)
WHERE moment.name = '{PEAK_ALLOCATED}'
ORDER BY allocation.block_bytes DESC, allocation.id""",
        continued_by=ALLOCATIONS_IN_WORDS,
    ),
    # As AllocationTable.waiting_at has them.
    View(
        "snapconv_waiting_allocations",
        "The blocks that the program had freed at the peak of allocated bytes, and "
        "that another stream still used, largest first.",
        (),
        f"""\
CREATE VIEW snapconv_waiting_allocations AS
SELECT allocation.*
FROM snapconv_moments AS moment
JOIN snapconv_allocations_in_words AS allocation
  ON allocation.free_requested_event <= coalesce(moment.event, -1)
 AND (allocation.free_completed_event
      > max(allocation.free_requested_event + 1, coalesce(moment.event, -1))
      OR (allocation.end_event IS NULL AND allocation.is_pending_at_end))
WHERE moment.name = '{PEAK_ALLOCATED}'
ORDER BY allocation.block_bytes DESC, allocation.id""",
        continued_by=ALLOCATIONS_IN_WORDS,
    ),
)
