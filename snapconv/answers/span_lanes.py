"""The named spans of a trace as a picture shows them: in lanes in which none covers another."""

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from snapconv.columns import Int32Column, Int64Column, read_only
from snapconv.phases.annotation_spans import AnnotationSpans, SpanKind
from snapconv.snapshot.load import Snapshot

# What our recorder marks are the phases and iterations, which are known already.
_OURS = "snapconv:"


@dataclass(frozen=True, slots=True)
class SpanLanes:
    """Spans by their first event; ``lane`` counts from the top, so that what is within another is below it.

    ``n_left_out`` are shorter ones, of which there were too many.
    """

    name_id: Int32Column
    first_event: Int64Column
    last_event: Int64Column
    lane: Int32Column
    n_left_out: int

    def __len__(self) -> int:
        return len(self.name_id)


def find_span_lanes(snapshot: Snapshot, spans: AnnotationSpans, *, most: int) -> SpanLanes:
    """The longest of the spans that have events and a length, at most so many."""
    ours = [i for i, text in enumerate(snapshot.texts) if text.startswith(_OURS)]
    length = spans.last_event - spans.first_event
    shown = (length >= 0) & (spans.kind != SpanKind.TENSOR) & (spans.name_id >= 0)
    rows = np.flatnonzero(shown & ~np.isin(spans.name_id, ours))
    kept = np.sort(rows[np.argsort(-length[rows], kind="stable")[:most]])
    first, last = spans.first_event[kept], spans.last_event[kept]
    lanes = _lanes(first.tolist(), last.tolist())
    found = SpanLanes(spans.name_id[kept], first, last, np.array(lanes, np.int32), len(rows) - len(kept))
    return read_only(found)


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
