"""A report -> the rows of the tables that ``--extended`` adds; the tables are in extended_schema."""

from collections.abc import Iterable

import numpy as np

from snapconv.classification.categories import Category, Evidence
from snapconv.columns import BoolColumn, Int64Column
from snapconv.phases.trace_phases import Phase
from snapconv.reports.memory_report import AllocationColumns, MemoryReport, StackColumns, Timeline
from snapconv.reports.sqlite import extended_memory_schema as schema
from snapconv.reports.sqlite.database import Row, TableRows, rows_of, rows_of_columns


def extended_rows(report: MemoryReport) -> list[TableRows]:
    """Lay out the rows of every extended table; the long ones are made chunk by chunk when asked for."""
    return [
        *_about(report),
        *_at_peak(report),
        *_over_time(report),
        *_words(report.allocations),
        *_stacks(report.stacks),
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
    return [
        rows_of(schema.REPORT, [about]),
        rows_of(schema.SOURCE, report.source),
        rows_of(schema.NOTES, [(note.slug, note.message, note.device) for note in report.notes]),
    ]


def _at_peak(report: MemoryReport) -> list[TableRows]:
    categories = [
        (c.category, c.n_allocations, c.requested_bytes, c.block_bytes) for c in report.categories_at_peak
    ]
    lines = [
        (at.line.file_path, at.line.line_number, at.line.function, at.n_allocations, at.block_bytes)
        for at in report.lines_at_peak
    ]
    modules = [(at.module, at.evidence, at.n_allocations, at.block_bytes) for at in report.modules_at_peak]
    return [
        rows_of(schema.CATEGORIES_AT_PEAK, categories),
        rows_of(schema.BREAKDOWN, [(row.name, row.parent, row.size_bytes) for row in report.breakdown]),
        rows_of(schema.LINES_AT_PEAK, lines),
        rows_of(schema.MODULES_AT_PEAK, modules),
    ]


def _over_time(report: MemoryReport) -> list[TableRows]:
    moments = [(m.name, m.event, m.time_us, m.size_bytes) for m in report.moments]
    iterations = [
        (row.iteration, row.first_event, row.last_event, row.peak_allocated_bytes, row.peak_event)
        for row in report.iterations
    ]
    oom_events = [
        (
            oom.event,
            oom.time_us,
            oom.requested_bytes,
            oom.device_free_bytes,
            oom.allocated_bytes,
            oom.reserved_bytes,
            oom.stack_id,
        )
        for oom in report.oom_events
    ]
    leaks = [
        (row.stack_id, row.first_iteration, row.last_iteration, row.n_allocations, row.block_bytes)
        for row in report.leak_suspects
    ]
    return [
        rows_of(schema.MOMENTS, moments),
        rows_of(schema.ITERATIONS, iterations),
        rows_of(schema.LEAK_SUSPECTS, leaks),
        rows_of(schema.OOM_EVENTS, oom_events),
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
    n_allocations = len(allocations.addr)
    columns = (
        range(n_allocations),
        allocations.alloc_event,
        allocations.free_requested_event,
        allocations.free_completed_event,
        allocations.end_event,
        allocations.addr,
        allocations.stream,
        allocations.pool_id,
        allocations.requested_bytes,
        allocations.block_bytes,
        allocations.is_exact,
        allocations.category,
        allocations.evidence,
        allocations.rule_id,
        allocations.operation_id,
        allocations.stack_id,
        allocations.iteration,
        allocations.phase,
        allocations.module_id,
    )
    return rows_of_columns(schema.ALLOCATIONS, n_allocations, columns)


def _stacks(stacks: StackColumns) -> list[TableRows]:
    n_frames = len(stacks.frame_names)
    frames = (
        range(n_frames),
        stacks.frame_names,
        stacks.frame_filenames,
        stacks.frame_lines,
        stacks.frame_is_project,
    )
    return [
        rows_of_columns(schema.FRAMES, n_frames, frames),
        TableRows(
            schema.STACKS, len(stacks.offsets) - 1, lambda start, stop: _stack_chunk(stacks, start, stop)
        ),
        TableRows(
            schema.STACK_FRAMES,
            len(stacks.frame_ids),
            lambda start, stop: _stack_frame_chunk(stacks, start, stop),
        ),
    ]


def _stack_chunk(stacks: StackColumns, start: int, stop: int) -> Iterable[Row]:
    """Find every stack's innermost frame, and its innermost frame of the project."""
    first, end = stacks.offsets[start:stop], stacks.offsets[start + 1 : stop + 1]
    begin = int(first[0])
    is_project = stacks.frame_is_project[stacks.frame_ids[begin : int(end[-1])]]
    positions = np.append(np.flatnonzero(is_project) + begin, len(stacks.frame_ids))
    next_project = positions[np.searchsorted(positions[:-1], first)]
    columns = (
        end - first,
        _frames_at(stacks, first, first < end),
        _frames_at(stacks, next_project, next_project < end),
    )
    return zip(range(start, stop), *(column.tolist() for column in columns), strict=True)


def _frames_at(stacks: StackColumns, positions: Int64Column, exists: BoolColumn) -> Int64Column:
    """Look up the frames at these positions; -1 where there is none."""
    frame_ids = np.full(len(positions), -1, np.int64)
    frame_ids[exists] = stacks.frame_ids[positions[exists]]
    return frame_ids


def _stack_frame_chunk(stacks: StackColumns, start: int, stop: int) -> Iterable[Row]:
    """Number the frames of the stacks; the chunk may begin and end in the middle of a stack."""
    positions = np.arange(start, stop)
    stack_ids = np.searchsorted(stacks.offsets, positions, side="right") - 1
    columns = (stack_ids, positions - stacks.offsets[stack_ids], stacks.frame_ids[start:stop])
    return zip(*(column.tolist() for column in columns), strict=True)
