"""The spans of a trace that the program has named: by record_function, metadata, or tensors.

torch writes ranges of record_function by their times, user metadata as a text on every event, and
since 2.14 an event of its own where a tensor is given a text. Columns in, columns out: positions of
events, no times.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from snapconv.columns import (
    Int8Column,
    Int32Column,
    Int64Column,
    is_among,
    plain_rows,
    rows_of,
    run_starts,
    take,
)
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot, Snapshot

# What torch writes where there is no text.
_NO_TEXT = ("", "N/A")
# Names that torch or snapconv's recorder gives by itself: the phases of a step show the same.
_RECORDER_PREFIX = "snapconv:"
_FOREIGN_PREFIXES = (
    "Optimizer.",
    "enumerate(DataLoader)",
    "torch::autograd",
    "autograd::",
    _RECORDER_PREFIX,
)
# So many spans around an event, the innermost, have names in a path; no real program comes near.
_MOST_AROUND = 16


class SpanKind(IntEnum):
    """Who named a span."""

    RECORD_FUNCTION = 0
    USER_METADATA = 1
    TENSOR = 2


# Three rows: names (positions in the snapshot's ``texts``), first events and last events of spans.
Spans = Int64Column
_NO_SPANS = np.zeros((3, 0), np.int64)


@dataclass(frozen=True, slots=True)
class AnnotationSpans:
    """Named spans, by their first event; ``name_id`` is a position in the snapshot's ``texts``.

    A span without an event has its ``last_event`` before its ``first_event``. Where the ring has
    lost one end, a span begins with the trace, or ends with it.
    """

    kind: Int8Column
    name_id: Int32Column
    first_event: Int64Column
    last_event: Int64Column


def find_spans(snapshot: Snapshot, device: DeviceSnapshot) -> AnnotationSpans:
    """Find every named span of one device."""
    spans_by_kind = (  # in the order of SpanKind
        recorded_functions(snapshot, device),
        _metadata_runs(snapshot, device.events),
        _tensors(device.events),
    )
    n_spans = [len(spans[0]) for spans in spans_by_kind]
    kind = np.repeat(np.array(list(SpanKind), np.int8), n_spans)
    name_id, first, last = np.concatenate(spans_by_kind, axis=1)
    spans = AnnotationSpans(kind, name_id.astype(np.int32), first, last)
    return take(spans, np.lexsort((-last, first)))


def annotations_at(
    snapshot: Snapshot, device: DeviceSnapshot, event: int
) -> tuple[str, ...]:
    """Return the program's names of the spans around an event, outermost first.

    Texts of tensors are no such names.
    """
    spans = find_spans(snapshot, device)
    is_around = (spans.first_event <= event) & (spans.last_event >= event)
    name_ids = spans.name_id[is_around & (spans.kind != SpanKind.TENSOR)]
    names = dict.fromkeys(snapshot.texts[name_id] for name_id in name_ids.tolist())
    return tuple(name for name in names if not name.startswith(_FOREIGN_PREFIXES))


@dataclass(frozen=True, slots=True)
class AnnotationPaths:
    """The program's names of the spans around every event, outermost first.

    They change at the events of ``begins``, in order; ``path_ids`` are positions in ``paths``, with
    one more for what is before the first of them.
    """

    begins: Int64Column
    path_ids: Int64Column
    paths: tuple[tuple[str, ...], ...]

    def at(self, events: NDArray[np.integer[Any]]) -> Int64Column:
        """Return the position of the path of every event."""
        return self.path_ids[np.searchsorted(self.begins, events, side="right")]


def find_annotation_paths(snapshot: Snapshot, device: DeviceSnapshot) -> AnnotationPaths:
    """Find the names around all events at once; texts of tensors are no such names."""
    spans = _program_spans(snapshot, device)
    ends = spans.last_event + 1
    # Ends come before begins: two spans may follow one another.
    events = np.concatenate((ends, spans.first_event))
    order = np.argsort(events, kind="stable")
    n_spans = len(ends)
    around: dict[int, str] = {}
    numbers: dict[tuple[str, ...], int] = {(): 0}
    path_ids = [0]
    for row in order.tolist():
        if row < n_spans:
            if next(reversed(around)) == row:
                around.popitem()  # which leaves no gap to pass over
            else:
                del around[row]
        else:
            span = row - n_spans
            around[span] = snapshot.texts[int(spans.name_id[span])]
        innermost = list(islice(reversed(around.values()), _MOST_AROUND))
        path = tuple(dict.fromkeys(innermost[::-1]))
        path_ids.append(numbers.setdefault(path, len(numbers)))
    return AnnotationPaths(events[order], np.array(path_ids, np.int64), tuple(numbers))


def _program_spans(snapshot: Snapshot, device: DeviceSnapshot) -> AnnotationSpans:
    """Return the spans that have events and a name of the program."""
    spans = find_spans(snapshot, device)
    foreign = [
        number
        for number, text in enumerate(snapshot.texts)
        if text.startswith(_FOREIGN_PREFIXES)
    ]
    is_shown = (spans.kind != SpanKind.TENSOR) & (spans.last_event >= spans.first_event)
    return take(spans, rows_of(is_shown & ~is_among(spans.name_id, foreign)))


def find_span_lanes(
    snapshot: Snapshot, device: DeviceSnapshot, *, max_spans: int
) -> tuple[AnnotationSpans, Int32Column, int]:
    """Return the longest of a device's spans that have events and a length, at most ``max_spans``.

    With the lane of each, counted from the top, so that what is within another is below it; and the
    number of those left out.
    """
    spans = find_spans(snapshot, device)
    recorder_names = _texts_that_begin(snapshot, _RECORDER_PREFIX)
    length = spans.last_event - spans.first_event
    is_shown = (length >= 0) & (spans.kind != SpanKind.TENSOR)
    rows = rows_of(is_shown & ~is_among(spans.name_id, recorder_names))
    longest = rows[np.argsort(-length[rows], kind="stable")[:max_spans]]
    longest_spans = take(spans, np.sort(longest))
    lanes = _lanes(longest_spans.first_event.tolist(), longest_spans.last_event.tolist())
    return longest_spans, np.array(lanes, np.int32), len(rows) - len(lanes)


def _texts_that_begin(snapshot: Snapshot, prefix: str) -> list[int]:
    return [number for number, text in enumerate(snapshot.texts) if text.startswith(prefix)]


def _lanes(first: list[int], last: list[int]) -> list[int]:
    """Put every span into the first free lane; they are in the order of their first events."""
    busy: list[tuple[int, int]] = []  # the last event of each lane, and the lane
    free: list[int] = []
    lanes = []
    for begin, end in zip(first, last, strict=True):
        while busy and busy[0][0] < begin:
            heappush(free, heappop(busy)[1])
        lane = heappop(free) if free else len(busy)
        heappush(busy, (end, lane))
        lanes.append(lane)
    return lanes


def recorded_functions(
    snapshot: Snapshot, device: DeviceSnapshot, prefix: str = ""
) -> Spans:
    """Find the ranges of record_function whose names begin so: names, first and last events.

    A range without a name is none. A range names one device, though a program may work on several:
    a device without such ranges of its own is taken to be in those of the others.
    """
    notes = snapshot.annotations
    times = device.events.time_us
    if times is None or not len(notes) or not len(times):
        return _NO_SPANS
    is_chosen = notes.name_id >= 0
    if prefix:
        is_chosen = is_among(notes.name_id, _texts_that_begin(snapshot, prefix))
    is_own = is_chosen & (notes.device == device.device)
    rows = rows_of(is_own if is_own.any() else is_chosen)
    marks = plain_rows(notes.name_id[rows], notes.is_start[rows], notes.time_us[rows])
    ranges = _paired(marks, int(times[0]), int(times[-1]))
    names, since, until = np.array(ranges, np.int64).reshape(-1, 3).T
    last_event = np.searchsorted(times, until, side="right") - 1
    return np.array((names, np.searchsorted(times, since), last_event))


def _paired(
    marks: Iterator[tuple[int, bool, int]], first: int, last: int
) -> list[tuple[int, int, int]]:
    """Pair the starts and ends of ranges: names, times of starts and of ends.

    Those of a name are paired last in first out. One that never ends lasts to the ``last`` time;
    one whose start is lost begins at the ``first``.
    """
    open_starts: defaultdict[int, list[int]] = defaultdict(list)
    ranges = []
    for name, is_start, time in marks:
        if is_start:
            open_starts[name].append(time)
        elif open_starts.get(name):
            ranges.append((name, open_starts[name].pop(), time))
        else:
            ranges.append((name, min(first, time), time))
    for name, starts in open_starts.items():
        ranges += [(name, start, max(last, start)) for start in starts]
    return ranges


def _metadata_runs(snapshot: Snapshot, events: EventTable) -> Spans:
    """Return the runs of events that have the same text."""
    if events.user_metadata_id is None or not len(events):
        return _NO_SPANS
    empty_texts = [number for number, text in enumerate(snapshot.texts) if text in _NO_TEXT]
    is_empty = is_among(events.user_metadata_id, empty_texts)
    name = np.where(is_empty, -1, events.user_metadata_id)
    name[events.action == Action.ANNOTATE] = -1
    begins = run_starts(name)
    ends = np.append(begins[1:] - 1, len(events) - 1)
    has_name = name[begins] >= 0
    return np.array((name[begins], begins, ends), np.int64)[:, has_name]


def _tensors(events: EventTable) -> Spans:
    """Return the events that gave a text to a tensor, each a span of its own."""
    if events.user_metadata_id is None:
        return _NO_SPANS
    rows = rows_of((events.action == Action.ANNOTATE) & (events.user_metadata_id >= 0))
    return np.array((events.user_metadata_id[rows], rows, rows), np.int64)
