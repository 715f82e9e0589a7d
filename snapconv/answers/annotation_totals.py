"""The parts of the trace that the program has named: the peak in each, and what it left behind."""

from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.columns import Int64Column, sums_by
from snapconv.phases.annotation_spans import AnnotationSpans, SpanKind, find_spans, is_of_program, peaks_in
from snapconv.replay.device_replay import Curve
from snapconv.snapshot.load import Snapshot


@dataclass(frozen=True, slots=True)
class AnnotatedSpans:
    """Every named span of a device, with columns as long as ``spans``.

    ``peak_bytes`` are the most that was allocated within, ``change_bytes`` how much more there was after it
    than before.
    """

    spans: AnnotationSpans
    peak_bytes: Int64Column
    change_bytes: Int64Column


@dataclass(frozen=True, slots=True)
class AnnotationTotal:
    """All spans of one name: how many there are, their highest peak, and what they left behind together."""

    name: str
    kind: str
    n_spans: int
    peak_bytes: int
    change_bytes: int


def annotated_spans(analysis: DeviceAnalysis) -> AnnotatedSpans:
    """Find the spans that the program has named, and what was allocated in each."""
    spans, allocated = find_spans(analysis.snapshot, analysis.device), analysis.replay.allocated
    last = np.maximum(spans.last_event, spans.first_event - 1)
    change = _at(allocated, last) - _at(allocated, spans.first_event - 1)
    return AnnotatedSpans(spans, peaks_in(spans, allocated), change)


def totals_by_annotation(snapshot: Snapshot, found: AnnotatedSpans) -> tuple[AnnotationTotal, ...]:
    """Sum up the spans by name, those with the highest peak first; without torch's own names, and tensors."""
    spans = found.spans
    own = [i for i, text in enumerate(snapshot.texts) if is_of_program(text)]
    rows = np.flatnonzero((spans.kind != SpanKind.TENSOR) & np.isin(spans.name_id, own))
    keys = np.stack((spans.name_id[rows].astype(np.int64), spans.kind[rows].astype(np.int64)))
    pairs, inverse = np.unique(keys, axis=1, return_inverse=True)
    inverse = inverse.reshape(-1)
    n_names = pairs.shape[1]
    peaks = np.zeros(n_names, np.int64)
    np.maximum.at(peaks, inverse, found.peak_bytes[rows])
    change = sums_by(inverse, found.change_bytes[rows], n_names)
    counts = np.bincount(inverse, minlength=n_names)
    columns = (*pairs.tolist(), counts.tolist(), peaks.tolist(), change.tolist())
    totals = [
        AnnotationTotal(snapshot.texts[name], SpanKind(kind).label, count, peak, more)
        for name, kind, count, peak, more in zip(*columns, strict=True)
    ]
    return tuple(sorted(totals, key=lambda total: (-total.peak_bytes, total.name, total.kind)))


def _at(curve: Curve, event: Int64Column) -> Int64Column:
    """Bytes just after each event; -1: before the first one."""
    if not len(curve.after):
        return np.full(len(event), curve.start, np.int64)
    return np.where(event >= 0, curve.after[np.clip(event, 0, len(curve.after) - 1)], curve.start)
