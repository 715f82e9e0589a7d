"""A MemoryReport -> the rows of the tables that ``--extended`` adds; they are in extended_memory_schema."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.answers.memory_report import (
    AllocationColumns,
    AnnotationColumns,
    MemoryReport,
    MomentLayout,
    Timeline,
)
from snapconv.classification.categories import Category, Evidence
from snapconv.columns import distinct, sums_by
from snapconv.phases.trace_phases import Phase
from snapconv.replay.memory_layout import MemoryLayout
from snapconv.stacks.stack_roles import innermost_frames
from snapconv.writers.sqlite import extended_memory_schema as schema
from snapconv.writers.sqlite.database import TableRows, rows_of, rows_of_columns, rows_of_records
from snapconv.writers.sqlite.shared_tables import frame_columns, source_and_notes, stack_frame_rows
from snapconv.writers.sqlite.table_schema import Table


def extended_rows(report: MemoryReport) -> list[TableRows]:
    """Arrange the rows of every extended table; the long ones are made chunk by chunk on demand."""
    return [
        *_about(report),
        *_at_peak(report),
        rows_of_records(schema.MOMENTS, report.moments),
        rows_of_records(schema.ITERATIONS, report.iterations),
        rows_of_records(schema.GROWTH, report.growth),
        rows_of_records(schema.OOM_EVENTS, report.oom_events),
        *_annotations(report.annotations),
        *_words(report.allocations),
        *_stacks(report),
        _timeline(report.timeline),
        _allocations(report.allocations),
        _segments(report.layouts),
        _blocks(report.layouts),
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
    n_events = len(timeline.allocated.after)
    columns = (
        range(n_events),
        timeline.time_us,
        timeline.requested.after,
        timeline.allocated.after,
        timeline.active.after,
        timeline.reserved.after,
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


def _annotations(annotations: AnnotationColumns | None) -> list[TableRows]:
    if annotations is None:
        return [rows_of(schema.ANNOTATION_NAMES, []), rows_of(schema.ANNOTATIONS, [])]
    found = annotations.found
    columns = (
        annotations.name_id,
        annotations.kinds,
        found.spans.first_event,
        found.spans.last_event,
        found.peak_bytes,
        found.change_bytes,
    )
    return [
        rows_of(schema.ANNOTATION_NAMES, list(enumerate(annotations.names))),
        rows_of_columns(schema.ANNOTATIONS, len(found.spans), columns),
    ]


def _segments(layouts: Sequence[MomentLayout]) -> TableRows:
    parts = [_segment_columns(one.layout) for one in layouts]
    return _of_moments(schema.SEGMENTS, layouts, parts)


def _segment_columns(layout: MemoryLayout) -> tuple[NDArray[Any], ...]:
    segments, blocks, free = layout.segments, layout.blocks, layout.free
    n_segments = len(segments)
    largest = np.zeros(n_segments, np.int64)
    np.maximum.at(largest, free.segment, free.n_bytes)
    return (
        segments.addr,
        segments.total_bytes,
        sums_by(blocks.segment, blocks.n_bytes, n_segments),
        np.bincount(blocks.segment, minlength=n_segments),
        np.bincount(free.segment, minlength=n_segments),
        largest,
        segments.stream,
        segments.pool_id,
        segments.is_small.astype(np.int8),
        segments.is_expandable.astype(np.int8),
        segments.stack_id,
    )


def _blocks(layouts: Sequence[MomentLayout]) -> TableRows:
    """The blocks and the free pieces of every moment, by address."""
    parts = []
    for one in layouts:
        pieces = (one.layout.blocks, one.layout.free)
        addr = np.concatenate([piece.addr for piece in pieces])
        order = np.argsort(addr, kind="stable")
        segment = np.concatenate([piece.segment for piece in pieces])[order]
        parts.append(
            (
                one.layout.segments.addr[segment],
                addr[order],
                np.concatenate([piece.n_bytes for piece in pieces])[order],
                np.concatenate([piece.allocation for piece in pieces])[order],
            )
        )
    return _of_moments(schema.BLOCKS, layouts, parts)


def _of_moments(
    table: Table, layouts: Sequence[MomentLayout], parts: Sequence[tuple[NDArray[Any], ...]]
) -> TableRows:
    """The columns of several moments below each other, behind the moment's name."""
    if not parts:
        return rows_of(table, [])
    moments = [one.moment for one, part in zip(layouts, parts, strict=True) for _ in range(len(part[0]))]
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
    return rows_of_columns(table, len(moments), (moments, *columns))


def _stacks(report: MemoryReport) -> list[TableRows]:
    ids, stacks = report.own_stacks, report.stacks.take(report.own_stacks)
    is_whole = len(stacks) == len(report.stacks)
    frames = np.arange(len(stacks.frames)) if is_whole else distinct(stacks.frame_ids).astype(np.int64)
    n_frames = np.diff(stacks.offsets)
    first = np.full(len(stacks), -1, np.int32)
    first[n_frames > 0] = stacks.frame_ids[stacks.offsets[:-1][n_frames > 0]]
    of_project = innermost_frames(stacks, report.is_project)
    return [
        rows_of_columns(schema.FRAMES, len(frames), frame_columns(report, frames)),
        rows_of_columns(schema.STACKS, len(stacks), (ids, n_frames, first, of_project)),
        stack_frame_rows(stacks, ids),
    ]
