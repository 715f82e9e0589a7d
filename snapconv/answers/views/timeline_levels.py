"""Curves of a device at a level of detail: every bin of events with its extremes, so that no spike is lost.

A picture of 1,000 pixels cannot show a million events. It can show, for each pixel, the most and the least
that was allocated within it, and what both consisted of. Pages, notebooks and terminals draw from this.
"""

from dataclasses import dataclass

import numpy as np

from snapconv.classification.categories import Category
from snapconv.columns import EventColumn, Int8Column, Int64Column, distinct, read_only, sums_by
from snapconv.replay.device_replay import AllocationTable, Curve, Replay

# Of fewer events, looking for each takes less than to go through all.
_MANY = 1_000


@dataclass(frozen=True, slots=True)
class TimelineLevel:
    """Bins of ``events_per_bin`` events each (the last may have fewer), one row per bin.

    ``max_event`` is the first event of the bin after which allocated bytes are maximal within it, and
    ``min_event`` likewise; ``at_max`` and ``at_min`` (bins x categories) are the allocated bytes by category
    just then.
    """

    events_per_bin: int
    max_event: Int64Column
    min_event: Int64Column
    at_max: Int64Column
    at_min: Int64Column
    active_max: Int64Column
    reserved_max: Int64Column

    def __len__(self) -> int:
        return len(self.max_event)


def bytes_by_category(allocations: AllocationTable, category: Int8Column, events: Int64Column) -> Int64Column:
    """Allocated bytes by category just after each of these events (ascending; -1: before the first).

    One row per event, one column per Category.
    """
    n_categories = len(Category)
    freed = allocations.freed_event
    ends = np.flatnonzero(freed >= 0)
    begins_at = _n_before(events, allocations.alloc_event)
    ends_at = _n_before(events, freed[ends])
    n_cells = (len(events) + 1) * n_categories
    change = sums_by(begins_at * n_categories + category, allocations.block_bytes, n_cells)
    change -= sums_by(ends_at * n_categories + category[ends], allocations.block_bytes[ends], n_cells)
    return np.cumsum(change.reshape(-1, n_categories), axis=0)[: len(events)]


def _n_before(events: Int64Column, wanted: EventColumn) -> Int64Column:
    """How many of the events, ascending, are before each wanted one; both are -1 or more."""
    if len(events) < _MANY:
        return np.searchsorted(events, wanted)
    # Counted once for every event: a fourth of the time that looking for each of them takes.
    most = int(max(events[-1], wanted.max(initial=-1)))
    return np.cumsum(np.bincount(events + 2, minlength=most + 2))[wanted + 1]


def timeline_level(replay: Replay, category: Int8Column, *, most_bins: int) -> TimelineLevel:
    """Return the finest level with at most so many bins, of a power of two of events each."""
    n_events = len(replay.allocated.after)
    events_per_bin = 1
    while n_events > events_per_bin * most_bins:
        events_per_bin *= 2
    starts = np.arange(0, n_events, events_per_bin)
    max_event = _first_extremes(replay.allocated.after, events_per_bin)
    min_event = _first_extremes(-replay.allocated.after, events_per_bin)
    wanted = distinct(np.concatenate((max_event, min_event)))
    by_category = bytes_by_category(replay.allocations, category, wanted)
    return read_only(
        TimelineLevel(
            events_per_bin=events_per_bin,
            max_event=max_event,
            min_event=min_event,
            at_max=by_category[np.searchsorted(wanted, max_event)],
            at_min=by_category[np.searchsorted(wanted, min_event)],
            active_max=_most(replay.active, starts),
            reserved_max=_most(replay.reserved, starts),
        )
    )


def _first_extremes(values: Int64Column, events_per_bin: int) -> Int64Column:
    """Return the first event of every bin with its greatest value."""
    n_whole = len(values) // events_per_bin
    whole = values[: n_whole * events_per_bin].reshape(n_whole, events_per_bin)
    first = np.arange(n_whole, dtype=np.int64) * events_per_bin
    found = first + whole.argmax(axis=1) if n_whole else first
    rest = values[n_whole * events_per_bin :]
    return np.append(found, n_whole * events_per_bin + rest.argmax()) if len(rest) else found


def _most(curve: Curve, starts: Int64Column) -> Int64Column:
    return np.maximum.reduceat(curve.after, starts) if len(starts) else starts
