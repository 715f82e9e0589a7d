"""Changes of a program as changes of its allocations, and the replay of a trace with them.

A change takes bytes from allocations between two events: all of them where an allocation would not
be made or would be freed earlier, a part where it would be smaller. The curve of allocated bytes
without these bytes has nearly the new peak; the requests that are left, made to the allocator
model, have it exactly, since the allocator then cuts blocks differently. Lifetimes are the file's
own, so either is as exact as the change.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from snapconv.analysis import DeviceAnalysis
from snapconv.classification.categories import Category
from snapconv.columns import (
    BoolColumn,
    Int64Column,
    columns_of,
    has_code,
    is_among,
    rows_of,
    take,
)
from snapconv.hypotheses.allocator_calls import (
    AllocatorCalls,
    CallChange,
    CallKind,
    find_calls,
)
from snapconv.hypotheses.batch_growth import GROWING, scaled_requests
from snapconv.hypotheses.trial import block_sizes, try_out
from snapconv.hypotheses.trial_outcome import Trial
from snapconv.phases.trace_phases import Phase
from snapconv.snapshot.event_table import Action
from snapconv.stacks.project_lines import SourceLine
from snapconv.torch_knowledge.frame_patterns import Role


@dataclass(frozen=True, slots=True)
class Change:
    """Bytes that allocations would not have, one row per allocation and range of events.

    ``n_bytes`` are missing of the request after the events from ``first`` up to, but without,
    ``last``; all of it where they are its whole block. An allocation may have several ranges, which
    do not overlap. Requests that failed are ``failed_scale`` times as large. ``calls`` change what
    is reserved alone.
    """

    rows: Int64Column
    first: Int64Column
    last: Int64Column
    n_bytes: Int64Column
    failed_scale: float = 1.0
    calls: tuple[CallChange, ...] = ()


NO_CHANGE = Change(*np.zeros((4, 0), np.int64))


@dataclass(frozen=True, slots=True)
class Peak:
    """The most demanding moment of a trace, and the bytes that it needs.

    They are the bytes allocated then, and a failed request on top of them.
    """

    event: int
    n_bytes: int
    phase: str


# Calls of all replays of a device together, at 2.5 us each: in a trace of a million events three
# replays. Every other change has the blocks of the trace, and is off by less the larger these are.
_MOST_REPLAYED = 2_500_000
# A replay that differs by a larger part of the most reserved bytes shows nothing.
_LARGE_DIFFERENCE = 0.1
# The number of an allocation that is not there, in its calls.
_DROPPED = -2
# The effect of a call on the bytes in use, by its operation.
_SIGN = np.array([1, -1, -1, 0, 0, 0, 0])
_PHASES = {
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.OPTIMIZER: "the optimizer's step",
    Phase.OTHER: "code outside the passes and the optimizer's step",
    Phase.UNKNOWN: "",
}


def _moment_of_most(demand: Int64Column) -> int:
    """Return the first moment of the largest demand, one after an event if there is one.

    Entry 0 is before the first event, of which no line and no phase is known.
    """
    moment = int(demand.argmax())
    if moment or len(demand) == 1:
        return moment
    later = int(demand[1:].argmax()) + 1
    return later if demand[later] == demand[0] else 0


class Demand:
    """The bytes that the program needs at every moment: allocated ones, and a failed request's."""

    def __init__(self, analysis: DeviceAnalysis) -> None:
        self.analysis = analysis
        curve = analysis.replay.allocated
        events = analysis.device.events
        # Entry e + 1 is after event e.
        self._after = np.concatenate(([curve.start], curve.after))
        self._failed = rows_of(has_code(events.action, Action.OOM))
        self._requested = events.size[self._failed]
        self.peak = self.without(())
        self._n_left = _MOST_REPLAYED

    def without(self, changes: Sequence[Change]) -> Peak:
        """Return the peak with some changes made together.

        The other allocations have the blocks of the trace.
        """
        scale = math.prod(change.failed_scale for change in changes)
        demand = self.allocated_bytes(changes)
        demand[self._failed + 1] += (self._requested * scale).astype(np.int64)
        event = _moment_of_most(demand) - 1
        return self._peak(event, int(demand[event + 1]))

    def allocated_bytes(self, changes: Sequence[Change]) -> Int64Column:
        """Return the bytes allocated before every event, and at the end, with some changes."""
        change = combined(self.analysis, changes)
        moves = np.zeros(len(self._after) + 1, np.int64)
        np.subtract.at(moves, change.first + 1, change.n_bytes)
        np.add.at(
            moves, np.minimum(change.last, self.analysis.n_events) + 1, change.n_bytes
        )
        return self._after + np.cumsum(moves[:-1])

    def replayed(self, changes: Sequence[Change]) -> Peak:
        """Return the peak with some changes made together, by a replay of the allocator.

        Blocks are as in ``without`` where a replay of the trace as it is misses the trace's peak,
        where changes are more than calls, as gradients times steps may be, and after too many
        calls.
        """
        is_bounded = sum(len(change.rows) for change in changes) <= len(self._calls)
        if is_bounded and self._is_reproduced and len(self._calls) <= self._n_left:
            return self._replay(changes)
        return self.without(changes)

    def saved_of_reserved(self, change: Change) -> int:
        """Return how much less is reserved at most with a change; 0 where a replay cannot say."""
        if 2 * len(self._calls) > self._n_left:
            return 0
        self._n_left -= 2 * len(self._calls)
        before = _most_reserved(self._calls)
        after = _most_reserved(changed_calls(self._calls, self.analysis, [change]))
        reserved = self.analysis.replay.reserved.peak
        is_reproduced = abs(before - reserved) <= _LARGE_DIFFERENCE * reserved
        return before - after if is_reproduced else 0

    @cached_property
    def _calls(self) -> AllocatorCalls:
        return find_calls(
            self.analysis.snapshot, self.analysis.device, self.analysis.replay
        )

    @cached_property
    def _is_reproduced(self) -> bool:
        return (
            len(self._calls) <= self._n_left
            and self._replay(()).n_bytes == self.peak.n_bytes
        )

    def _replay(self, changes: Sequence[Change]) -> Peak:
        self._n_left -= len(self._calls)
        calls = changed_calls(self._calls, self.analysis, changes)
        sizes = block_sizes(calls)
        start_rows = list(calls.start.rows.values())
        growth = sizes[start_rows] - self.analysis.allocations.block_bytes[start_rows]
        start = self._after[0] + growth.sum()
        demand = np.cumsum(np.append(start, _SIGN[calls.operation] * sizes[calls.row]))
        is_failed = has_code(calls.operation, CallKind.FAILED_MALLOC)
        demand[1:] += calls.events.size[calls.event] * is_failed
        # Before the first call of the trace stand the frees of what is gone by then.
        first = int(np.searchsorted(calls.event, self._calls.event[:1]).sum())
        position = first + _moment_of_most(demand[first:])
        event = int(calls.event[position - 1]) if position > first else -1
        return self._peak(event, int(demand[position]))

    def _peak(self, event: int, n_bytes: int) -> Peak:
        phase = Phase.UNKNOWN
        if event >= 0:
            # What lies between the parts of a forward may be outside of it.
            phase = Phase(int(self.analysis.phases.certain[event]))
        return Peak(event, n_bytes, _PHASES[phase])

    def line_at(self, event: int) -> SourceLine | None:
        """Find the line of the project that an event happened in."""
        stack_id = self.analysis.device.events.stack_id
        return self.analysis.lines.innermost(int(stack_id[event])) if event >= 0 else None

    def place_of(self, peak: Peak) -> str:
        """Say where a peak is reached: at a line, in an iteration, or at an event."""
        if peak.event < 0:
            return "before the first event"
        line = self.line_at(peak.event)
        if line:
            return f"at {line.place}"
        phases = self.analysis.phases
        if phases.n_iterations:
            return f"in iteration {int(phases.iteration[peak.event])}"
        return f"at event {peak.event}"

    def bytes_at(self, change: Change, event: int) -> int:
        """Return the bytes that a change takes from what is in use just after an event."""
        change = combined(self.analysis, [change])
        is_missing = (change.first <= event) & (event < change.last)
        return int(change.n_bytes[is_missing].sum())


def _most_reserved(calls: AllocatorCalls) -> int:
    return try_out(calls, Trial(calls.file_settings)).ledger.max_reserved_bytes


def combined(analysis: DeviceAnalysis, changes: Sequence[Change]) -> Change:
    """Return changes as one, within the time in which the allocations are there.

    Of one allocation a change counts up to where an earlier one of the list begins: no byte counts
    twice.
    """
    table = analysis.allocations
    begun = analysis.features.end
    parts = [NO_CHANGE]
    for change in changes:
        if len(parts) > 1:
            begun = begun.copy()
            np.minimum.at(begun, parts[-1].rows, parts[-1].first)
        first = np.maximum(change.first, table.alloc_event[change.rows])
        last = np.minimum(change.last, begun[change.rows])
        n_bytes = np.minimum(change.n_bytes, table.block_bytes[change.rows])
        limited = replace(change, first=first, last=last, n_bytes=n_bytes)
        parts.append(take(limited, rows_of(last > first)))
    return joined(parts)


def changed_calls(
    calls: AllocatorCalls, analysis: DeviceAnalysis, changes: Sequence[Change]
) -> AllocatorCalls:
    """Return the calls of a trace as the program would make them with some changes made together.

    Where the size of an allocation changes, it is freed and requested again, and the new request
    has a number of its own. The allocation's own request keeps the number; so does an allocation
    that is there before the first call, unless the change frees it there.
    """
    change = combined(analysis, changes)
    for call_change in change.calls:
        calls = calls.changed(call_change)
    if change.failed_scale != 1:
        calls = calls.resized(calls.requested_bytes, change.failed_scale)
    if not len(calls) or not len(change.rows):
        return calls
    points = _points(calls, analysis, change)
    row = points.row
    is_request = points.event == analysis.allocations.alloc_event[row]
    is_own = np.where(points.event < calls.event[0], points.size > 0, is_request)
    number = np.where(is_own, row, len(analysis.allocations) + np.arange(len(row)))
    requested = calls.requested_bytes.copy()
    requested[row[is_own]] = points.size[is_own]
    changed = replace(
        _renumbered(calls, points, number, is_own),
        requested_bytes=np.append(requested, points.size),
        stream=np.append(calls.stream, calls.stream[row]),
        pool=np.append(calls.pool, calls.pool[row]),
    )
    return changed.insert(*_calls_at(points, number, is_own))


@dataclass(frozen=True, slots=True)
class _Points:
    """The changes of sizes, by allocation and event; ``is_after``: 1 for those after the event."""

    row: Int64Column
    size: Int64Column
    event: Int64Column
    is_after: Int64Column


def _points(calls: AllocatorCalls, analysis: DeviceAnalysis, change: Change) -> _Points:
    """Return where sizes change within the calls; at one event an allocation changes but once."""
    points = _size_changes(analysis, change)
    begin = int(calls.event[0])
    is_known = analysis.allocations.alloc_event >= begin
    is_known[list(calls.start.rows.values())] = True
    is_within = is_known[points.row] & (points.event <= calls.event[-1])
    is_within &= points.event < analysis.features.end[points.row]
    points = take(points, rows_of(is_within))
    points = take(points, np.lexsort((-points.is_after, points.event, points.row)))
    points = replace(points, event=np.maximum(points.event, begin - 1))
    # Where several are at one event the last counts: a range begins as another ends.
    is_last = np.diff(points.row, append=-1) != 0
    is_last |= np.diff(points.event, append=-1) != 0
    return take(points, rows_of(is_last))


def _size_changes(analysis: DeviceAnalysis, change: Change) -> _Points:
    """Return where sizes change: at the first event of a range, and back after its last."""
    requested = analysis.allocations.requested_bytes[change.rows]
    is_part = change.n_bytes < analysis.allocations.block_bytes[change.rows]
    remaining = np.where(is_part, np.maximum(requested - change.n_bytes, 1), 0)
    return _Points(
        row=np.tile(change.rows, 2),
        size=np.append(remaining, requested),
        event=np.append(change.first, change.last),
        is_after=np.repeat([0, 1], len(remaining)),
    )


def _renumbered(
    calls: AllocatorCalls, points: _Points, number: Int64Column, is_own: BoolColumn
) -> AllocatorCalls:
    """Return the remaining calls, each under its allocation's number at that time; -1 stays -1."""
    new_number = np.where(points.size > 0, number, _DROPPED)
    n = len(calls.requested_bytes)
    malloc_number = np.append(np.arange(n), -1)
    free_number = malloc_number.copy()
    malloc_number[points.row[is_own]] = new_number[is_own]
    free_number[points.row] = new_number  # the last of each
    is_malloc = has_code(calls.operation, CallKind.MALLOC)
    row = np.where(is_malloc, malloc_number[calls.row], free_number[calls.row])
    exists = row != _DROPPED
    return replace(calls.select(exists), row=row[exists])


def _calls_at(
    points: _Points, number: Int64Column, is_own: BoolColumn
) -> Iterator[Int64Column]:
    """Yield the frees and requests at points as columns, for ``AllocatorCalls.insert``.

    A point frees what the allocation had up to there, under its number then, and requests what it
    has from there on; either is left out if it has no bytes, and both at a request of its own.
    """
    row = points.row
    is_first = np.diff(row, prepend=-1) != 0
    freed = np.where(is_first, row, np.roll(number, 1))
    freed_size = np.where(is_first, 1, np.roll(points.size, 1))
    has_size = np.column_stack((freed_size, points.size)).ravel() > 0
    exists = has_size & ~np.repeat(is_own, 2)
    yield np.tile([CallKind.FREE, CallKind.MALLOC], len(row))[exists]
    yield np.column_stack((freed, number)).ravel()[exists]
    yield np.repeat(points.event, 2)[exists]
    yield np.repeat(points.is_after, 2)[exists]


def called_otherwise(change: CallChange) -> Change:
    """Return the change that keeps all allocations, and changes what is reserved for them."""
    return replace(NO_CHANGE, calls=(change,))


def joined(changes: Sequence[Change]) -> Change:
    """Return changes of different allocations, or ranges, as one."""
    columns = zip(*(columns_of(change).values() for change in changes), strict=True)
    scale = math.prod(change.failed_scale for change in changes)
    calls: list[CallChange] = []
    for change in changes:
        calls += change.calls
    rows, first, last, n_bytes = map(np.concatenate, columns)
    return Change(rows, first, last, n_bytes, scale, tuple(calls))


def removed(analysis: DeviceAnalysis, rows: Int64Column) -> Change:
    """Return the change that makes some allocations never happen."""
    return freed_from(analysis, rows, -1)


def freed_from(
    analysis: DeviceAnalysis,
    rows: Int64Column,
    event: ArrayLike,
    again: ArrayLike | None = None,
) -> Change:
    """Return the change that frees each allocation at an event, or all at one, before its free.

    It is there again from the event ``again`` on, if that is given.
    """
    last = analysis.n_events if again is None else again
    n_bytes = analysis.allocations.block_bytes[rows]
    return Change(rows, np.full_like(n_bytes, event), np.full_like(n_bytes, last), n_bytes)


def smaller(analysis: DeviceAnalysis, rows: Int64Column, share_saved: float) -> Change:
    """Return the change that makes allocations smaller by a share of their bytes."""
    saved = (analysis.allocations.requested_bytes[rows] * share_saved).astype(np.int64)
    return replace(removed(analysis, rows), n_bytes=saved)


def scaled_batch(analysis: DeviceAnalysis, scale: float) -> Change:
    """Return the change to another batch, or sequence.

    Failed requests grow with it where all of them do.
    """
    saved = analysis.allocations.requested_bytes - scaled_requests(analysis, scale)
    rows = rows_of(saved > 0)
    failed_scale = scale if _failed_grow(analysis).all() else 1.0
    return replace(removed(analysis, rows), n_bytes=saved[rows], failed_scale=failed_scale)


def _failed_grow(analysis: DeviceAnalysis) -> BoolColumn:
    """Return which failed requests grow with the batch, by what their lines allocated before.

    Where that is of several categories, as gradients of weights and of activations in one call of
    backward, it is not known to grow. Where a line allocated nothing before, its request grows,
    unless weights are placed, backward runs or an optimizer steps.
    """
    stack_id = analysis.allocations.stack_id
    events = analysis.phases.oom_events
    phase = analysis.phases.phase[events]
    stacks = analysis.device.events.stack_id[events]
    category = analysis.classification.category
    is_known = analysis.features.has_stack & ~has_code(category, Category.UNKNOWN)
    is_fixed = is_known & ~is_among(category, GROWING)
    stays = analysis.features.roles.of(Role.PLACEMENT, stacks)
    stays |= is_among(stacks, stack_id[is_fixed])
    stays |= has_code(phase, Phase.OPTIMIZER)
    stays |= has_code(phase, Phase.BACKWARD) & ~is_among(stacks, stack_id[is_known])
    return ~stays
