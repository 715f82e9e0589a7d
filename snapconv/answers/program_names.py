"""Names that the program has given: to parts of the trace, and to tensors."""

from collections.abc import Iterator
from heapq import heappop, heappush
from itertools import repeat

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.columns import Int32Column, take
from snapconv.naming.weight_table import weight_names
from snapconv.phases.annotation_spans import AnnotationSpans, SpanKind, find_spans, is_of_program
from snapconv.phases.recorded_matches import RecordedMatches

# What our recorder marks are the phases and iterations, which are known already.
_OURS = "snapconv:"


def annotations_at(analysis: DeviceAnalysis, event: int) -> tuple[str, ...]:
    """Return the program's names of the spans around an event, outermost first; texts of tensors are none."""
    spans = find_spans(analysis.snapshot, analysis.device)
    is_inside = (spans.first_event <= event) & (spans.last_event >= event) & (spans.kind != SpanKind.TENSOR)
    names = dict.fromkeys(analysis.snapshot.texts[i] for i in spans.name_id[is_inside].tolist())
    return tuple(filter(is_of_program, names))


def find_span_lanes(analysis: DeviceAnalysis, *, most: int) -> tuple[AnnotationSpans, Int32Column, int]:
    """Return the longest of a device's spans that have events and a length, at most so many.

    With the lane of each, counted from the top, so that what is within another is below it; and the number
    of those left out.
    """
    spans = find_spans(analysis.snapshot, analysis.device)
    ours = [i for i, text in enumerate(analysis.snapshot.texts) if text.startswith(_OURS)]
    length = spans.last_event - spans.first_event
    shown = (length >= 0) & (spans.kind != SpanKind.TENSOR) & (spans.name_id >= 0)
    rows = np.flatnonzero(shown & ~np.isin(spans.name_id, ours))
    kept = take(spans, np.sort(rows[np.argsort(-length[rows], kind="stable")[:most]]))
    lanes = _lanes(kept.first_event.tolist(), kept.last_event.tolist())
    return kept, np.array(lanes, np.int32), len(rows) - len(kept)


def _lanes(first: list[int], last: list[int]) -> list[int]:
    """Put every span into the first lane that is free; they are in the order of their first events."""
    busy: list[tuple[int, int]] = []  # with the event until which a lane is taken
    free: list[int] = []
    lanes = []
    for begin, end in zip(first, last, strict=True):
        while busy and busy[0][0] < begin:
            heappush(free, heappop(busy)[1])
        lane = heappop(free) if free else len(busy)
        heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes


def tensor_names(analysis: DeviceAnalysis) -> dict[int, str]:
    """Return the name of the tensor in each row of the AllocationTable, where it is known.

    A weight has that of the report, its gradient ``NAME.grad``, a state ``NAME: STATE``. Of several that used
    the memory one after the other, the parameter itself goes first, then its gradient.
    """
    weights, recorded = analysis.weights, analysis.recorded
    known = weight_names(weights.names, weights.stack_id, analysis.lines)
    gradients = zip(weights.gradient_row.tolist(), known, strict=True)
    found = list(zip(weights.row.tolist(), known, strict=True))
    found += _recorded_names(recorded) if recorded else ((row, f"{name}.grad") for row, name in gradients)
    names: dict[int, str] = {}
    for row, name in found:
        if row >= 0:
            names.setdefault(row, name)
    return names


def _recorded_names(recorded: RecordedMatches) -> Iterator[tuple[int, str]]:
    """Yield the rows and names of what a recorder wrote: parameters, their gradients, their states."""
    metadata = recorded.metadata
    names, states = metadata.parameters.names, metadata.states
    tensors = (
        (recorded.parameters, np.arange(len(names)), repeat("")),
        (recorded.gradients, metadata.gradients.parameter, repeat(".grad")),
        (recorded.states, states.parameter, (f": {name}" for name in states.names)),
    )
    for rows, parameters, parts in tensors:
        for row, parameter, part in zip(rows.tolist(), parameters.tolist(), parts, strict=False):
            if parameter >= 0 and names[parameter]:
                yield row, names[parameter] + part
