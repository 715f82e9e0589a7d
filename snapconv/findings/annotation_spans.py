"""Annotated ranges of a program, such as record_function's, as spans of a device's events."""

from dataclasses import dataclass

import numpy as np

from snapconv.columns import Int32Column, Int64Column, read_only
from snapconv.snapshot.load import DeviceSnapshot, Snapshot


@dataclass(frozen=True, slots=True)
class AnnotationSpans:
    """Ranges in which something happened on the device, one row each, in the order of their first events.

    ``name_id`` is a position in the Snapshot's ``texts``; ``depth`` counts the ranges around each.
    """

    name_id: Int32Column
    first_event: Int64Column
    last_event: Int64Column
    depth: Int32Column

    def __len__(self) -> int:
        return len(self.name_id)


def find_annotation_spans(snapshot: Snapshot, device: DeviceSnapshot) -> AnnotationSpans:
    """Pair the starts and ends of annotations, last in first out by name; none without times.

    A range names one device, though it may be about several: a device without ranges of its own has those of
    the others. One that never ends lasts to the last event.
    """
    times, marks = device.events.time_us, snapshot.annotations
    found: list[tuple[int, int, int, int]] = []
    if times is not None and len(times) and len(marks):
        own = marks.device == device.device
        rows = own if own.any() else np.ones(len(marks), np.bool_)
        first = np.searchsorted(times, marks.time_us[rows], side="left")
        last = np.searchsorted(times, marks.time_us[rows], side="right") - 1
        names, are_starts = marks.name_id[rows].tolist(), marks.is_start[rows].tolist()
        found = _paired(names, are_starts, first.tolist(), last.tolist(), last_event=len(times) - 1)
    kept = sorted((row for row in found if row[1] <= row[2]), key=lambda row: (row[1], row[3]))
    table = np.array(kept, np.int64).reshape(-1, 4)
    return read_only(
        AnnotationSpans(
            name_id=table[:, 0].astype(np.int32),
            first_event=table[:, 1].copy(),
            last_event=table[:, 2].copy(),
            depth=table[:, 3].astype(np.int32),
        )
    )


def _paired(
    name_ids: list[int], are_starts: list[bool], first: list[int], last: list[int], *, last_event: int
) -> list[tuple[int, int, int, int]]:
    """Rows of AnnotationSpans, in any order."""
    open_ranges: list[tuple[int, int]] = []
    found = []
    for i, (name, is_start) in enumerate(zip(name_ids, are_starts, strict=True)):
        if is_start:
            open_ranges.append((name, first[i]))
            continue
        for depth in range(len(open_ranges) - 1, -1, -1):
            if open_ranges[depth][0] == name:
                found.append((name, open_ranges.pop(depth)[1], last[i], depth))
                break
    found += [(name, since, last_event, depth) for depth, (name, since) in enumerate(open_ranges)]
    return found
