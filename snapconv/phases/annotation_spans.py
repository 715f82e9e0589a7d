"""The spans of a trace that the program has named: by record_function, user metadata, or annotated tensors.

torch writes ranges of record_function by their times, user metadata as a text on every event, and
since 2.14 an event of its own where a tensor is given a text. Columns in, columns out: positions of
events, no times.
"""

from dataclasses import dataclass
from enum import IntEnum
from heapq import heappop, heappush

import numpy as np

from snapconv.columns import (
    Int8Column,
    Int32Column,
    Int64Column,
    is_among,
    plain_rows,
    read_only,
    rows_of,
    take,
)
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot, Snapshot

# What torch writes where there is none.
_NO_TEXT = ("", "N/A")
# Names that torch or snapconv's recorder gives by itself: the phases of a step show the same.
_OURS = "snapconv:"
_NOT_OF_PROGRAM = ("Optimizer.", "enumerate(DataLoader)", "torch::autograd", "autograd::", _OURS)


class SpanKind(IntEnum):
    """Who named a span."""

    RECORD_FUNCTION = 0
    USER_METADATA = 1
    TENSOR = 2

    @property
    def label(self) -> str:
        """The word that outputs have for it."""
        return self.name.lower()


# Names (positions in the snapshot's ``texts``), first events and last events of spans.
Spans = tuple[Int64Column, Int64Column, Int64Column]


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
    found = [recorded_functions(snapshot, device), _metadata_runs(snapshot, device.events)]
    found.append(_tensors(device.events))
    kinds = [
        np.full(len(names), kind, np.int8)
        for kind, (names, _, _) in zip(SpanKind, found, strict=True)
    ]
    names, first, last = (np.concatenate(parts) for parts in zip(*found, strict=True))
    order = np.lexsort((-last, first))
    return read_only(
        AnnotationSpans(
            kind=np.concatenate(kinds)[order],
            name_id=names[order].astype(np.int32),
            first_event=first[order].astype(np.int64),
            last_event=last[order].astype(np.int64),
        )
    )


def annotations_at(snapshot: Snapshot, device: DeviceSnapshot, event: int) -> tuple[str, ...]:
    """Return the program's names of the spans around an event, outermost first; texts of tensors are none."""
    spans = find_spans(snapshot, device)
    is_inside = (
        (spans.first_event <= event) & (spans.last_event >= event) & (spans.kind != SpanKind.TENSOR)
    )
    names = dict.fromkeys(snapshot.texts[i] for i in spans.name_id[is_inside].tolist())
    return tuple(name for name in names if not name.startswith(_NOT_OF_PROGRAM))


def find_span_lanes(
    snapshot: Snapshot, device: DeviceSnapshot, *, most: int
) -> tuple[AnnotationSpans, Int32Column, int]:
    """Return the longest of a device's spans that have events and a length, at most so many.

    With the lane of each, counted from the top, so that what is within another is below it; and the
    number of those left out.
    """
    spans = find_spans(snapshot, device)
    ours = [i for i, text in enumerate(snapshot.texts) if text.startswith(_OURS)]
    length = spans.last_event - spans.first_event
    shown = (length >= 0) & (spans.kind != SpanKind.TENSOR)
    rows = rows_of(shown & ~np.isin(spans.name_id, ours))
    kept = take(spans, np.sort(rows[np.argsort(-length[rows], kind="stable")[:most]]))
    lanes = _lanes(kept.first_event.tolist(), kept.last_event.tolist())
    return kept, np.array(lanes, np.int32), len(rows) - len(lanes)


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


def recorded_functions(snapshot: Snapshot, device: DeviceSnapshot, prefix: str = "") -> Spans:
    """Find the ranges of record_function whose names begin so: names, first events and last events.

    A range without a name is none. Those of a name are paired last in first out; one that never
    ends lasts to the end. A range names one device, though a program may work on several: a device
    without such ranges of its own is taken to be in those of the others.
    """
    notes = snapshot.annotations
    times = device.events.time_us
    if times is None or not len(notes) or not len(times):
        return _no_spans()
    is_wanted = notes.name_id >= 0
    if prefix:
        names_of = [i for i, text in enumerate(snapshot.texts) if text.startswith(prefix)]
        is_wanted = is_among(notes.name_id, names_of)
    is_own = is_wanted & (notes.device == device.device)
    rows = rows_of(is_own if is_own.any() else is_wanted)
    if not len(rows):
        return _no_spans()
    open_at: dict[int, list[int]] = {}
    found: list[tuple[int, int, int]] = []
    first = int(times[0])
    last = int(times[-1])
    columns = (notes.name_id[rows], notes.is_start[rows], notes.time_us[rows])
    for name, is_start, time in plain_rows(*columns):
        if is_start:
            open_at.setdefault(name, []).append(time)
        else:
            since = open_at[name].pop() if open_at.get(name) else min(first, time)
            found.append((name, since, time))
    found += [
        (name, since, max(last, since)) for name, starts in open_at.items() for since in starts
    ]
    names, since, until = (np.array(column, np.int64) for column in zip(*found, strict=True))
    return names, np.searchsorted(times, since), np.searchsorted(times, until, side="right") - 1


def _metadata_runs(snapshot: Snapshot, events: EventTable) -> Spans:
    """Return the runs of events that have the same text."""
    if events.user_metadata_id is None or not len(events):
        return _no_spans()
    nothing = [i for i, text in enumerate(snapshot.texts) if text in _NO_TEXT]
    name = np.where(is_among(events.user_metadata_id, nothing), -1, events.user_metadata_id)
    name[events.action == Action.ANNOTATE] = -1
    begins = rows_of(np.concatenate(([True], name[1:] != name[:-1])))
    ends = np.append(begins[1:] - 1, len(events) - 1)
    named = name[begins] >= 0
    return name[begins][named].astype(np.int64), begins[named], ends[named]


def _tensors(events: EventTable) -> Spans:
    """Return the events that gave a text to a tensor, each a span of its own."""
    if events.user_metadata_id is None:
        return _no_spans()
    rows = rows_of((events.action == Action.ANNOTATE) & (events.user_metadata_id >= 0))
    return events.user_metadata_id[rows].astype(np.int64), rows, rows


def _no_spans() -> Spans:
    empty = np.zeros(0, np.int64)
    return empty, empty, empty
