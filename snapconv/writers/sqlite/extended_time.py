"""A TimeReport -> the rows of the tables that ``--extended`` adds; they are in extended_time_schema."""

import numpy as np

from snapconv.answers.time_report import CallColumns, TimeReport
from snapconv.snapshot.recorded.timing_file import PHASES
from snapconv.writers.sqlite import extended_time_schema as schema
from snapconv.writers.sqlite.database import TableRows, rows_of, rows_of_columns, rows_of_records
from snapconv.writers.sqlite.shared_tables import frame_columns, source_and_notes, stack_frame_rows


def extended_time_rows(report: TimeReport) -> list[TableRows]:
    """Arrange the rows of every extended table of a time report."""
    return [*_about(report), *_totals(report), *_stacks(report), _calls(report.calls)]


def _about(report: TimeReport) -> list[TableRows]:
    about = (
        schema.TIME_SCHEMA_VERSION,
        report.device,
        report.clock,
        report.is_simulated,
        report.reported.iteration,
        report.project_root,
    )
    return [rows_of(schema.TIME_REPORT, [about]), *source_and_notes(report)]


def _totals(report: TimeReport) -> list[TableRows]:
    iterations = [
        (
            times.iteration,
            times == report.reported,
            times.forward_ms,
            times.backward_ms,
            times.optimizer_ms,
            times.forward_rows_ms,
            times.backward_rows_ms,
            times.bookkeeping_ms,
        )
        for times in report.iterations
    ]
    lines = [
        (at.line.file_path, at.line.line_number, at.line.function, at.n_calls, at.forward_ms, at.backward_ms)
        for at in report.lines
    ]
    return [
        rows_of(schema.TIMED_ITERATIONS, iterations),
        rows_of_records(schema.LAUNCHES, report.launches),
        rows_of(schema.LINES, lines),
    ]


def _stacks(report: TimeReport) -> list[TableRows]:
    stacks, ids = report.stacks, np.arange(len(report.stacks))
    frames = (*frame_columns(report, np.arange(len(stacks.frames))), report.is_of_module)
    return [
        rows_of_columns(schema.TIME_FRAMES, len(stacks.frames), frames),
        rows_of_columns(schema.TIME_STACKS, len(stacks), (ids, np.diff(stacks.offsets))),
        stack_frame_rows(stacks, ids),
    ]


def _calls(calls: CallColumns) -> TableRows:
    """Arrange the calls; SQLite stores the NaN of a time that is not there as NULL."""
    table, texts = calls.table, calls.texts
    columns = (
        range(len(table)),
        table.iteration,
        [texts[name] for name in table.name_id.tolist()],
        [PHASES[phase] for phase in table.phase.tolist()],
        [None if module < 0 else texts[module] for module in table.module_id.tolist()],
        table.stack_id,
        calls.entry_id,
        table.forward_ms,
        table.backward_ms,
        table.backward_strict_ms,
        table.host_ms,
    )
    return rows_of_columns(schema.CALLS, len(table), columns)
