"""A MemoryReport -> the rows of the tables that ``--extended`` adds; they are in extended_memory_schema."""

from collections.abc import Iterable
from functools import partial

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.columns import BoolColumn, Int64Column
from snapconv.phases.trace_phases import Phase
from snapconv.reports.memory_report import AllocationColumns, MemoryReport, Timeline
from snapconv.reports.sqlite import extended_memory_schema as schema
from snapconv.reports.sqlite.database import Row, TableRows, rows_of, rows_of_columns, rows_of_records
from snapconv.reports.sqlite.shared_tables import frame_columns, source_and_notes, stack_frame_rows
from snapconv.snapshot.stack_table import StackTable


def extended_rows(report: MemoryReport) -> list[TableRows]:
    """Lay out the rows of every extended table; the long ones are made chunk by chunk when asked for."""
    return [
        *_about(report),
        *_at_peak(report),
        rows_of_records(schema.MOMENTS, report.moments),
        rows_of_records(schema.ITERATIONS, report.iterations),
        rows_of_records(schema.LEAK_SUSPECTS, report.leak_suspects),
        rows_of_records(schema.OOM_EVENTS, report.oom_events),
        *_words(report.allocations),
        *_stacks(report),
        _timeline(report.timeline),
        _allocations(report.allocations),
    ]


def _about(report: MemoryReport) -> list[TableRows]:
    about = (
        schema.SCHEMA_VERSION,
        report.device,
        report.peak_usage_bytes,
        report.history_verdict,
        report.history_reason,
        report.project_root,
    )
    return [rows_of(schema.REPORT, [about]), *source_and_notes(report)]


def _at_peak(report: MemoryReport) -> list[TableRows]:
    lines = [
        (at.line.file_path, at.line.line_number, at.line.function, at.n_allocations, at.block_bytes)
        for at in report.lines_at_peak
    ]
    return [
        rows_of_records(schema.CATEGORIES_AT_PEAK, report.categories_at_peak),
        rows_of_records(schema.BREAKDOWN, report.breakdown),
        rows_of(schema.LINES_AT_PEAK, lines),
        rows_of_records(schema.MODULES_AT_PEAK, report.modules_at_peak),
    ]


def _words(allocations: AllocationColumns) -> list[TableRows]:
    return [
        rows_of(schema.CATEGORIES, [(int(category), category.label) for category in Category]),
        rows_of(schema.EVIDENCE, [(int(evidence), evidence.label) for evidence in Evidence]),
        rows_of(schema.RULES, list(enumerate(allocations.rules))),
        rows_of(schema.OPERATIONS, list(enumerate(allocations.operations))),
        rows_of(schema.PHASES, [(int(phase), phase.name.lower()) for phase in Phase]),
        rows_of(schema.POOLS, list(enumerate(allocations.pools))),
        rows_of(schema.MODULES, [(i, *module) for i, module in enumerate(allocations.modules)]),
    ]


def _timeline(timeline: Timeline) -> TableRows:
    n_events = len(timeline.allocated_bytes)
    columns = (
        range(n_events),
        timeline.time_us,
        timeline.requested_bytes,
        timeline.allocated_bytes,
        timeline.active_bytes,
        timeline.reserved_bytes,
    )
    return rows_of_columns(schema.TIMELINE, n_events, columns)


def _allocations(allocations: AllocationColumns) -> TableRows:
    table = allocations.table
    columns = (
        range(len(table)),
        table.alloc_event,
        table.free_requested_event,
        table.free_completed_event,
        table.end_event,
        table.addr,
        table.stream,
        table.pool_id,
        table.requested_bytes,
        table.block_bytes,
        table.is_exact,
        allocations.category,
        allocations.evidence,
        allocations.rule_id,
        allocations.operation_id,
        table.stack_id,
        allocations.iteration,
        allocations.phase,
        allocations.module_id,
    )
    return rows_of_columns(schema.ALLOCATIONS, len(table), columns)


def _stacks(report: MemoryReport) -> list[TableRows]:
    stacks, chunk = report.stacks, partial(_stack_chunk, report.stacks, report.is_project)
    return [
        rows_of_columns(schema.FRAMES, len(stacks.frames), frame_columns(report)),
        TableRows(schema.STACKS, len(stacks), chunk),
        stack_frame_rows(stacks),
    ]


def _stack_chunk(stacks: StackTable, is_project: BoolColumn, start: int, stop: int) -> Iterable[Row]:
    """Find every stack's innermost frame, and its innermost frame of the project."""
    first, end = stacks.offsets[start:stop], stacks.offsets[start + 1 : stop + 1]
    begin = int(first[0])
    is_mine = is_project[stacks.frame_ids[begin : int(end[-1])]]
    positions = np.append(np.flatnonzero(is_mine) + begin, len(stacks.frame_ids))
    next_project = positions[np.searchsorted(positions[:-1], first)]
    columns = (
        end - first,
        _frames_at(stacks, first, first < end),
        _frames_at(stacks, next_project, next_project < end),
    )
    return zip(range(start, stop), *(column.tolist() for column in columns), strict=True)


def _frames_at(stacks: StackTable, positions: Int64Column, exists: BoolColumn) -> Int64Column:
    """Look up the frames at these positions; -1 where there is none."""
    frame_ids = np.full(len(positions), -1, np.int64)
    frame_ids[exists] = stacks.frame_ids[positions[exists]]
    return frame_ids
