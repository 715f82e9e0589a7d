"""One device for a page: its figures, its curves at a level of detail, allocations, segments."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.findings import advise, goal_of
from snapconv.answers.notes import device_notes
from snapconv.answers.oom.failed_allocation import failed_allocations
from snapconv.answers.peak import EITHER_LABEL, WAITING_LABEL, summary_totals
from snapconv.answers.timeline import (
    TimelineLevel,
    bytes_by_category,
    find_segment_lifetimes,
    timeline_level,
)
from snapconv.answers.verdict import FileVerdict, find_verdict
from snapconv.classification.categories import Category, Certainty, Evidence
from snapconv.classification.classify import reason_of
from snapconv.columns import Int64Column, distinct, run_starts
from snapconv.naming.added_names import added_names
from snapconv.naming.weight_table import tensor_names
from snapconv.phases.annotation_spans import find_span_lanes
from snapconv.phases.trace_phases import Phase
from snapconv.stacks.source_files import SourceFolder
from snapconv.units import device_argument, device_name
from snapconv.writers.html.column_encoding import (
    EncodedColumn,
    encode_column,
    encode_columns,
)
from snapconv.writers.html.view_rows import base_addr, view_rows, view_stacks
from snapconv.writers.html.view_source import view_source
from snapconv.writers.text.advice import finding_rows
from snapconv.writers.text.size_rows import line_shown

# Bins of the level of detail that the page's first picture is made of: more than a screen's pixels.
# A picture of few events is made of the events themselves: bins need not be small for it.
_LEAST_BINS, _MOST_BINS, _EVENTS_PER_BIN = 4_096, 20_000, 4
# A page has so many named spans, the longest, and so many out-of-memory events, the first.
_MOST_SPANS, _MOST_OOM = 20_000, 1_000
# A page has about 40 MB. Where the times of all events take more than this share, it has those of
# every 2nd, 4th … event.
_MOST_TIME_BYTES = 2_000_000

Columns = dict[str, EncodedColumn]


@dataclass(frozen=True, slots=True)
class ViewDevice:
    """``facts`` are plain values, ``detail`` those that the page needs after its first picture.

    ``level`` is drawn first, ``columns`` are read when it stands.
    """

    facts: dict[str, object]
    detail: dict[str, object]
    level: Columns
    columns: Columns


def view_device(analysis: DeviceAnalysis, folder: SourceFolder | None = None) -> ViewDevice:
    """Put together what a page shows of one device, with source where a folder is given."""
    level = _level(analysis)
    segments = find_segment_lifetimes(analysis.device)
    streams = distinct(np.concatenate((analysis.allocations.stream, segments.stream)))
    rows = view_rows(analysis, streams)
    frames, stack_columns = view_stacks(analysis.snapshot, analysis.project, rows.stack_ids)
    span_columns, span_facts = _spans(analysis)
    name_by_row = _names_by_row(analysis, rows.page_rows)
    detail = _detail(analysis, frames, streams, name_by_row.values())
    detail["source"] = None if folder is None else view_source(analysis, folder)
    time_step, times = encoded_times(analysis.device.events.time_us, _MOST_TIME_BYTES)
    columns = rows.columns | stack_columns | times
    columns |= encode_columns({"named_row": np.array([*name_by_row], np.int64)})
    columns |= _segment_columns(segments, streams, base_addr(analysis))
    facts = _facts(analysis) | _place_in_file(analysis) | span_facts
    facts |= {
        "verdict": _verdict(find_verdict(analysis)),
        "advice": list(_advice(analysis)),
        "level_bin": level.events_per_bin,
        "time_step": time_step,
    }
    return ViewDevice(facts, detail, _level_columns(level) | span_columns, columns)


def _names_by_row(analysis: DeviceAnalysis, page_rows: Int64Column) -> dict[int, str]:
    """Return the names of tensors by their rows in the page, in order."""
    names = added_names(
        analysis.snapshot,
        analysis.device.device,
        analysis.allocations,
        tensor_names(analysis.weights, analysis.recorded, analysis.lines),
        is_recorded=analysis.recorded is not None,
    )
    return dict(sorted((int(page_rows[row]), name) for row, name in names.items()))


def _level(analysis: DeviceAnalysis) -> TimelineLevel:
    most_bins = min(_MOST_BINS, max(_LEAST_BINS, analysis.n_events // _EVENTS_PER_BIN))
    return timeline_level(
        analysis.replay, analysis.classification.category, most_bins=most_bins
    )


def _detail(
    analysis: DeviceAnalysis, frames: object, streams: Int64Column, names: Iterable[str]
) -> dict[str, object]:
    return {
        "frames": frames,
        "operations": analysis.operations,
        "modules": analysis.modules.names,
        "reasons": _reasons(analysis),
        "pools": list(map(str, analysis.snapshot.pools)),
        "streams": list(map(str, streams.tolist())),
        "tensor_names": list(names),
    }


def _spans(analysis: DeviceAnalysis) -> tuple[Columns, dict[str, object]]:
    """Return the columns and the facts of the spans that a page shows."""
    snapshot = analysis.snapshot
    spans, lanes, n_left_out = find_span_lanes(
        snapshot, analysis.device, max_spans=_MOST_SPANS
    )
    name_ids, name = np.unique(spans.name_id, return_inverse=True)
    names = [snapshot.texts[number] for number in name_ids.tolist()]
    facts: dict[str, object] = {"span_names": names, "n_spans_left_out": n_left_out}
    columns = _step_columns(analysis) | {
        "span_name": name,
        "span_first": spans.first_event,
        "span_length": spans.last_event - spans.first_event,
        "span_depth": lanes,
    }
    return encode_columns(columns), facts


def _facts(analysis: DeviceAnalysis) -> dict[str, object]:
    replay = analysis.replay
    peak = analysis.peak_event
    device = analysis.device
    table = analysis.allocations
    times = device.events.time_us
    start = bytes_by_category(table, analysis.classification.category, np.array([-1]))[0]
    peak_rows = []
    for row in summary_totals(analysis, table.live_at(peak)):
        if row.n_allocations:
            peak_rows.append(
                [row.category, row.block_bytes, row.n_allocations, row.certainty]
            )
    return {
        "name": device_name(device.device),
        "argument": device_argument(device.device),
        "n_events": len(device.events),
        "n_allocations": len(table),
        "has_times": times is not None and len(times) > 0,
        "peak_event": peak,
        "peak_bytes": replay.allocated.peak,
        "peak_categories": peak_rows,
        "start_bytes": replay.allocated.start,
        "active_start_bytes": replay.active.start,
        "active_peak_bytes": replay.active.peak,
        "reserved_peak_bytes": replay.reserved.peak,
        "reserved_at_peak_bytes": replay.reserved.at(peak),
        "history": analysis.history.verdict.value,
        "history_reason": analysis.history.reason,
        "notes": [[note.slug, note.message] for note in device_notes(analysis)],
        "addr_base": str(base_addr(analysis)),
        "phases": [phase.name.lower() for phase in Phase],
        "oom": list(_oom(analysis)),
        "start_categories": list(map(int, start)),
    }


def _place_in_file(analysis: DeviceAnalysis) -> dict[str, object]:
    """Return what a page of a range adds to its events, iterations and times to have the file's."""
    iterations = analysis.iterations
    traced = (i for i, row in enumerate(iterations) if row.first_event >= 0)
    return {
        "first_event": analysis.first_event,
        "n_file_events": analysis.n_file_events,
        "first_iteration": next(traced, 0),
        "first_us": _first_us(analysis),
    }


def _first_us(analysis: DeviceAnalysis) -> int:
    """Return the time of the first event, from that of the file's first one."""
    times = analysis.device.events.time_us
    (file_times,) = (
        row.events.time_us
        for row in analysis.snapshot.devices
        if row.device == analysis.device.device
    )
    if times is None or file_times is None or not len(times):
        return 0
    return int(times[0] - file_times[0])


def _verdict(verdict: FileVerdict) -> dict[str, object]:
    # The page colours a cause by its category, and finds its allocations by it.
    page_labels = {EITHER_LABEL: Category.UNKNOWN.label, WAITING_LABEL: ""}
    causes = []
    for cause in verdict.causes:
        code = cause.library or line_shown(cause.line, has_stack=cause.has_stack)
        category = page_labels.get(cause.category, cause.category)
        causes.append([cause.block_bytes, category, code, cause.purpose])
    return {
        "about": verdict.about,
        "sentence": verdict.sentence,
        "moment": verdict.moment,
        "causes": causes,
    }


def _advice(analysis: DeviceAnalysis) -> Iterator[dict[str, object]]:
    """Yield what to change in the program, trades too where memory ran out."""
    advice = advise(analysis, goal_bytes=goal_of(analysis, capacity=None, save=None))
    for finding in advice.findings:
        yield {
            "what": f"{finding.heading}: {finding.what}",
            "bytes": finding.saved_bytes,
            "line": finding.line.place if finding.line else "",
            "rows": list(finding_rows(finding, advice)),
        }


def _oom(analysis: DeviceAnalysis) -> Iterator[dict[str, int]]:
    for failure in failed_allocations(analysis)[:_MOST_OOM]:
        yield {
            "event": failure.event,
            "requested": failure.block_bytes,
            "free": failure.device_free_bytes,
            "allocated": failure.allocated_bytes,
            "reserved": failure.reserved_bytes,
        }


def _level_columns(level: TimelineLevel) -> Columns:
    columns = {
        "level_active_max": level.active_max,
        "level_reserved_max": level.reserved_max,
    }
    extremes = {"max": (level.max_event, level.max_categories)}
    if level.events_per_bin > 1:  # else they are the same
        extremes["min"] = (level.min_event, level.min_categories)
    for name, (event, category_bytes) in extremes.items():
        columns[f"level_{name}_event"] = event
        for category in Category:
            columns[f"level_{name}_{int(category)}"] = category_bytes[:, category]
    return encode_columns(columns)


def _step_columns(analysis: DeviceAnalysis) -> dict[str, NDArray[Any]]:
    phase = analysis.phases.phase
    begins = run_starts(phase)
    iterations = [row for row in analysis.iterations if row.first_event >= 0]
    return {
        "iteration_first": np.array([row.first_event for row in iterations]),
        "iteration_peak": np.array([row.peak_bytes for row in iterations]),
        "phase_first": begins,
        "phase": phase[begins],
    }


def encoded_times(times: Int64Column | None, most_bytes: int) -> tuple[int, Columns]:
    """Return the step between timed events, and the times of these and of the last.

    The step is the least power of two with which the times take at most ``most_bytes``.
    """
    if times is None or not len(times):
        return 1, {} if times is None else {"time": encode_column(times)}
    step = 1
    while True:
        timed = np.append(times[:-1:step], times[-1])
        encoded = encode_column(timed - times[0], differences=True)
        if len(encoded.base64) <= most_bytes or step >= len(times):
            return step, {"time": encoded}
        step *= 2


def _segment_columns(
    segments: "np.recarray[Any, Any]", streams: Int64Column, base: int
) -> Columns:
    columns = {
        "segment_addr": segments.addr - base,
        "segment_bytes": segments.n_bytes,
        "segment_stream": np.searchsorted(streams, segments.stream),
        "segment_pool": segments.pool_id + 1,
        "segment_small": segments.is_small,
        "segment_expandable": segments.is_expandable,
        "segment_begin": segments.begin_event + 1,
        "segment_end": segments.end_event + 1,
    }
    return encode_columns(columns)


def _reasons(analysis: DeviceAnalysis) -> list[list[str]]:
    """Return the slug and the meaning of every reason; a user's own rule has only its name."""
    user_slugs = {rule.slug for rule in analysis.features.user_rules.rules}
    return [
        [slug, "" if slug in user_slugs else reason_of(slug)[0]]
        for slug in analysis.classification.reasons
    ]


def vocabulary() -> dict[str, object]:
    """Return the words that all devices share."""
    return {
        "categories": [category.label for category in Category],
        "evidence": [evidence.label for evidence in Evidence],
        "certainties": [certainty.label for certainty in Certainty],
    }
