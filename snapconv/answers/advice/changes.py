"""Changes of a program as changes of its allocations, and the replay of a trace with any set of them.

A change takes bytes from allocations between two events: all of them where an allocation would not be made or
would be freed earlier, a part where it would be smaller. The curve of allocated bytes without these bytes has
the new peak. Lifetimes are the file's own, so the replay is exact where the change is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from snapconv.allocator.allocator_settings import (
    MIN_OWN_SEGMENT_BYTES,
    SEGMENT_GRANULE_BYTES,
    SMALL_REQUEST_BYTES,
)
from snapconv.analysis import DeviceAnalysis
from snapconv.answers.what_if.calls import MOST_BYTES
from snapconv.classification.categories import Category
from snapconv.columns import Int64Column, has_code
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.event_table import Action
from snapconv.stacks.project_lines import SourceLine


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes that allocations would not have, one row per allocation and range of events.

    ``n_bytes`` are missing after the events from ``first`` up to, but without, ``last``. An allocation may
    have several ranges, which do not overlap. Requests that failed are ``failed_scale`` times as large.
    """

    rows: Int64Column
    first: Int64Column
    last: Int64Column
    n_bytes: Int64Column
    failed_scale: float = 1.0


@dataclass(frozen=True, slots=True)
class Peak:
    """The most demanding moment of a trace: the bytes allocated then, and a failed request on top of them."""

    event: int
    n_bytes: int
    phase: str


_PHASES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "the optimizer's step",
    Phase.OTHER: "code between the phases",
    Phase.UNKNOWN: "",
}


class Demand:
    """The bytes that the program needs at every moment: what is allocated, and a request that failed."""

    def __init__(self, analysis: DeviceAnalysis) -> None:
        self.analysis = analysis
        curve, events = analysis.replay.allocated, analysis.device.events
        self._after = np.concatenate(([curve.start], curve.after))  # entry e + 1 is after event e
        self._failed = np.flatnonzero(has_code(events.action, Action.OOM))
        self._requested = events.size[self._failed]
        self.n_events = len(events)
        self.peak = self.without(())

    def without(self, changes: Sequence[Change]) -> Peak:
        """Return the peak with some changes made together.

        Of one allocation a change counts up to where an earlier one of the list begins: no byte counts twice.
        """
        points, moves, failed_scale = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)], 1.0
        begun = np.full(len(self.analysis.allocations), self.n_events)
        for change in changes:
            first, last, n_bytes = self._limited(change)
            last = np.maximum(np.minimum(last, begun[change.rows]), first)
            points += [first + 1, last + 1]
            moves += [-n_bytes, n_bytes]
            np.minimum.at(begun, change.rows, np.where(last > first, first, self.n_events))
            failed_scale *= change.failed_scale
        needed = self._after
        if len(self._failed):
            needed = needed.copy()
            needed[self._failed + 1] += (self._requested * failed_scale).astype(np.int64)
        # The curve is shifted between the points: the largest of each part with its shift.
        point, move = np.concatenate(points), np.concatenate(moves)
        order = np.argsort(point, kind="stable")
        point, shift = point[order], np.cumsum(move[order])
        is_last = np.append(point[1:] != point[:-1], True) & (point < len(needed))
        starts, shift = point[is_last], shift[is_last]
        best = int((np.maximum.reduceat(needed, starts) + shift).argmax())
        stop = int(np.append(starts, len(needed))[best + 1])
        event = int(starts[best] + needed[starts[best] : stop].argmax()) - 1
        phase = Phase(int(self.analysis.phases.phase[event])) if event >= 0 else Phase.UNKNOWN
        return Peak(event, int(needed[event + 1] + shift[best]), _PHASES[phase])

    def line_at(self, peak: Peak) -> SourceLine | None:
        """Find the line of the project that a peak is reached in."""
        stack_id = self.analysis.device.events.stack_id
        return self.analysis.lines.innermost(int(stack_id[peak.event])) if peak.event >= 0 else None

    def bytes_at(self, change: Change, event: int) -> int:
        """Return the bytes that a change takes from what is in use just after an event."""
        first, last, n_bytes = self._limited(change)
        return int(n_bytes[(first <= event) & (event < last)].sum())

    def _limited(self, change: Change) -> tuple[Int64Column, Int64Column, Int64Column]:
        """Keep to the time in which an allocation is there."""
        table = self.analysis.allocations
        freed = table.freed_event[change.rows].astype(np.int64)
        ends = np.where(freed >= 0, freed, self.n_events)
        first = np.maximum(change.first, table.alloc_event[change.rows])
        last = np.maximum(np.minimum(change.last, ends), first)
        return first, last, np.minimum(change.n_bytes, table.block_bytes[change.rows])


def joined(changes: Sequence[Change]) -> Change:
    """Return changes of different allocations, or ranges, as one."""
    return Change(
        rows=np.concatenate([one.rows for one in changes]),
        first=np.concatenate([one.first for one in changes]),
        last=np.concatenate([one.last for one in changes]),
        n_bytes=np.concatenate([one.n_bytes for one in changes]),
    )


def removed(analysis: DeviceAnalysis, rows: Int64Column) -> Change:
    """Return the change that makes some allocations never happen."""
    return freed_from(analysis, rows, np.full(len(rows), -1, np.int64))


def freed_from(analysis: DeviceAnalysis, rows: Int64Column, event: Int64Column) -> Change:
    """Return the change that frees each allocation at an event, before its own free."""
    ends = np.full(len(rows), len(analysis.device.events), np.int64)
    return Change(rows, event.astype(np.int64), ends, analysis.allocations.block_bytes[rows])


def smaller(analysis: DeviceAnalysis, rows: Int64Column, share_saved: float) -> Change:
    """Return the change that makes allocations smaller by a share of their bytes."""
    change = removed(analysis, rows)
    return replace(change, n_bytes=(change.n_bytes * share_saved).astype(np.int64))


# What an engineer expects to grow with the batch; of these, what the optimizer's step allocates does not.
GROWING = (Category.ACTIVATION, Category.INPUT, Category.TEMPORARY, Category.KV_CACHE)
GROWS_WITH_BATCH = (
    "activations, inputs and temporaries grow with the batch; weights, gradients and optimizer do not"
)


def scaled_batch(analysis: DeviceAnalysis, scale: float) -> Change:
    """Return the change to another batch, or sequence; requests that failed are of it too."""
    scaled = _blocks_of(analysis, scaled_requests(analysis, scale))
    saved = np.maximum(analysis.allocations.block_bytes - scaled, 0)
    rows = np.flatnonzero(saved)
    return replace(removed(analysis, rows), n_bytes=saved[rows], failed_scale=scale)


def _blocks_of(analysis: DeviceAnalysis, requests: Int64Column) -> Int64Column:
    """Estimate the blocks of other requests of all allocations, with remainders that are not split off.

    A large request has a segment of its own, of whole 2 MiB; of others the remainder was a matter of chance.
    """
    table, rules = analysis.allocations, analysis.replay.rules
    rounded = rules.rounded(requests)
    remainder = np.minimum(table.block_bytes - rules.rounded(table.requested_bytes), SMALL_REQUEST_BYTES)
    remainder = np.where(rounded >= MIN_OWN_SEGMENT_BYTES, -rounded % SEGMENT_GRANULE_BYTES, remainder)
    is_whole = (remainder > 0) & (remainder < rules.least_remainder(rounded, table.addr))
    return rounded + np.where(is_whole & (rounded > SMALL_REQUEST_BYTES), remainder, 0)


def scaled_requests(analysis: DeviceAnalysis, scale: float) -> Int64Column:
    """Estimate the requests of all allocations at ``scale`` times the batch; something stays something."""
    sizes, alloc = analysis.allocations.requested_bytes, analysis.allocations.alloc_event
    in_optimizer = (alloc >= 0) & (np.append(analysis.phases.phase, -1)[alloc] == Phase.OPTIMIZER)
    grows = np.isin(analysis.classification.category, GROWING) & ~in_optimizer
    scaled = np.clip(np.ceil(np.where(grows, sizes * scale, sizes) - 1e-6), 1, MOST_BYTES)
    return np.where(sizes > 0, scaled, 0).astype(np.int64)
