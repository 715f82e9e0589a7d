"""The offset from a snapshot's times to those of a profiler's trace of the same run."""

from collections import defaultdict
from typing import NamedTuple

import numpy as np

from snapconv.columns import Int64Column, plain_rows
from snapconv.errors import InputError
from snapconv.snapshot.kineto_trace import KinetoTrace
from snapconv.snapshot.load import Snapshot
from snapconv.units import counted

# Both recorders note one begin of record_function within some microseconds of each other, or within
# a millisecond where the machine has more to do than it can.
_TOLERANCES_US = (100, 1000)
# More pairs than 3,000 begins of a name in each file give take too much memory.
_MOST_PAIRS = 10_000_000
# Until 2.2, torch wrote microseconds since 1970, and no key that says so.
_YEAR_2000_US = 946_684_800_000_000


class Alignment(NamedTuple):
    """Microseconds to add to the snapshot's times, and how they were found, as a sentence."""

    offset_us: int
    sentence: str


def align(snapshot: Snapshot, trace: KinetoTrace) -> Alignment:
    """Align the snapshot with a trace: by the clock where their times overlap, or by annotations.

    Raises InputError where they have neither in common.
    """
    times = _times(snapshot)
    base = trace.base_us or 0
    is_since_1970 = trace.base_us is not None or trace.begin_us >= _YEAR_2000_US
    overlaps = base + trace.begin_us <= times.max() and times.min() <= base + trace.end_us
    if is_since_1970 and overlaps:
        return Alignment(-base, "aligned by the clock, which both files have")
    return _align_annotations(snapshot, trace)


def _times(snapshot: Snapshot) -> Int64Column:
    columns = [device.events.time_us for device in snapshot.devices if len(device.events)]
    times = [column for column in columns if column is not None and column.min() >= 0]
    if not times or len(times) < len(columns):
        raise InputError("cannot be aligned: not every event of the snapshot has a time")
    return np.concatenate(times)


def _align_annotations(snapshot: Snapshot, trace: KinetoTrace) -> Alignment:
    """Return the offset at which most begins and ends of equal names coincide.

    Any begin may be any of its name in the other file, as each has recorded a part of the run.
    Raises InputError where no name is common, or several offsets fit as well.
    """
    differences = np.sort(_differences(snapshot, trace))
    if not len(differences):
        raise InputError(
            "cannot be aligned: its times do not overlap those of the snapshot, and no annotation "
            "(record_function) is in both"
        )
    for tolerance in _TOLERANCES_US:
        ends = np.searchsorted(differences, differences + tolerance, side="right")
        n_pairs = ends - np.arange(len(ends))
        best = int(n_pairs.argmax())
        is_elsewhere = np.abs(differences - differences[best]) > 2 * tolerance
        if not (n_pairs[is_elsewhere] == n_pairs[best]).any():
            offset = int(differences[(best + int(ends[best]) - 1) // 2])
            marks = counted(int(n_pairs[best]), "begin or end", "begins and ends")
            return Alignment(
                offset,
                f"aligned by {marks} of annotations, which agree within {tolerance} us",
            )
    raise InputError(
        "cannot be aligned: its times do not overlap those of the snapshot, and the annotations in "
        "both fit at several offsets"
    )


def _differences(snapshot: Snapshot, trace: KinetoTrace) -> Int64Column:
    """Return the offset of each pair of begins, and of ends, of a name; rare names first."""
    marks: defaultdict[tuple[str, bool], list[int]] = defaultdict(list)
    rows = snapshot.annotations
    for name_id, is_begin, time in plain_rows(rows.name_id, rows.is_start, rows.time_us):
        if name_id >= 0 and time >= 0:
            marks[snapshot.texts[name_id], is_begin].append(time)
    pairs = []
    for (name, is_begin), times in marks.items():
        spans = trace.annotations.get(name)
        if spans:
            pairs.append(([span[0 if is_begin else 1] for span in spans], times))
    pairs.sort(key=lambda pair: len(pair[0]) * len(pair[1]))
    differences = [np.zeros(0, np.int64)]
    n_left = _MOST_PAIRS
    for trace_times, snapshot_times in pairs:
        n_left -= len(trace_times) * len(snapshot_times)
        if n_left < 0:
            break
        column = np.rint(trace_times).astype(np.int64)
        pair_differences = np.subtract.outer(column, np.array(snapshot_times, np.int64))
        differences.append(pair_differences.ravel())
    return np.concatenate(differences)
