"""A part of a device's trace that can stand alone: its events, and the memory just after the last of them.

A snapshot has the memory of its end, and what was there before follows from undoing the events. So a window
of events with the layout at its end has all that the window needs. Columns in, columns out.
"""

import re
from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.columns import BoolColumn, Int64Column
from snapconv.errors import InputError
from snapconv.notes import Note
from snapconv.replay.device_replay import AllocationTable, replay
from snapconv.replay.lifetimes import real_events
from snapconv.replay.memory_layout import MemoryLayout, layout_at
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import Snapshot
from snapconv.units import counted, device_name, format_bytes

_RANGE = re.compile(r"(?P<first>[0-9]{0,18})((?P<colon>:)(?P<last>[0-9]{0,18}))?")


@dataclass(frozen=True, slots=True)
class Range:
    """From one number to another, both included; None: from the first, to the last."""

    first: int | None
    last: int | None


@dataclass(frozen=True, slots=True)
class EventWindow:
    """Events ``first`` to ``last`` of a device, and the memory just after the last.

    ``rows`` are the events that stand for the window. To those within it belong, before them, ``n_earlier``
    requests to free blocks that a stream still used when the window begins; frees without an alloc, which no
    figure counts, are left out.
    """

    first: int
    last: int
    rows: Int64Column
    n_earlier: int
    layout: MemoryLayout


def parse_range(text: str) -> Range:
    """Read ``A:B``, ``A:``, ``:B`` or ``A``; raises ValueError for anything else."""
    found = _RANGE.fullmatch(text.strip())
    if found is None or not (found["first"] or found["last"]):
        raise ValueError(f"expected A:B, A:, :B or one number, got {text!r}")
    first = int(found["first"]) if found["first"] else None
    last = int(found["last"]) if found["last"] else None if found["colon"] else first
    if first is not None and last is not None and last < first:
        raise ValueError(f"{first}:{last} ends before it begins")
    return Range(first, last)


def find_window(
    analysis: DeviceAnalysis, *, events: Range | None = None, iterations: Range | None = None
) -> EventWindow:
    """Return the window of some events or iterations, else of all; InputError where the device has fewer."""
    if iterations:
        every = analysis.iterations
        first, last = _within(analysis, iterations, len(every), "iteration")
        return _window(analysis, max(every[first].first_event, 0), every[last].last_event)
    n_events = len(analysis.device.events)
    return _window(analysis, *(_within(analysis, events, n_events, "event") if events else (0, n_events - 1)))


def window_notes(analysis: DeviceAnalysis, window: EventWindow, written: Snapshot) -> tuple[Note, ...]:
    """Say what a window shows otherwise than the whole file; ``written`` is the window alone."""
    devices = (found for found in written.devices if found.device == analysis.device.device)
    whole, part = analysis.replay, replay(written, next(devices, written.devices[0]))
    device, most, n_events = analysis.device.device, 0, 0
    rows = np.concatenate(([window.first - 1], window.rows[window.n_earlier :]))
    for name in ("requested", "allocated", "active", "reserved"):
        before, after = getattr(whole, name), getattr(part, name)
        expected = np.concatenate(([before.start], before.after))[rows + 1]
        found = np.concatenate(([after.start], after.after))[window.n_earlier :]
        off = np.abs(expected - found)
        most, n_events = max(most, int(off.max())), max(n_events, int(np.count_nonzero(off)))
    if not most:
        return ()
    return (
        Note(
            "inexact-window",
            f"read again, the new snapshot of {device_name(device)} differs from the whole file by up to "
            f"{format_bytes(most)}, after {n_events} of its {len(window.rows)} events: the events of the "
            "window alone do not show all sizes of blocks that were live before it",
            device,
        ),
    )


def _within(analysis: DeviceAnalysis, wanted: Range, n: int, noun: str) -> tuple[int, int]:
    first = 0 if wanted.first is None else wanted.first
    last = n - 1 if wanted.last is None else wanted.last
    if max(first, last) >= n:
        name, has = device_name(analysis.device.device), counted(n, noun) if n else f"no {noun}s"
        numbered = f", from 0 to {n - 1}" if n > 1 else ""
        raise InputError(f"{name} has no {noun} {max(first, last)}; it has {has}{numbered}")
    return first, last


def _window(analysis: DeviceAnalysis, first: int, last: int) -> EventWindow:
    allocations = analysis.allocations
    earlier = _waiting_requests(allocations, first, last)
    within = np.arange(first, last + 1)
    rows = np.concatenate((earlier, within[_is_meant(analysis, within, begins=first)]))
    return EventWindow(
        first=first,
        last=last,
        rows=rows,
        n_earlier=len(earlier),
        layout=layout_at(analysis.device, allocations, last),
    )


def _waiting_requests(allocations: AllocationTable, first: int, last: int) -> Int64Column:
    """Return the requests before the window to free blocks that a stream still uses when it begins."""
    requested, end = allocations.free_requested_event, allocations.end_event
    is_waiting = (requested >= 0) & (requested < first) & ((end >= first) | (end < 0))
    return np.sort(requested[is_waiting])


def _is_meant(analysis: DeviceAnalysis, rows: Int64Column, *, begins: int) -> BoolColumn:
    """Which events of a window have a meaning in it: all but frees of no allocation, and unknown actions.

    What torch_npu writes of its workspaces stands before the trace, and stays there.
    """
    events, allocations = analysis.device.events, analysis.allocations
    action = events.action[rows]
    is_free = np.isin(action, (Action.FREE_REQUESTED, Action.FREE_COMPLETED, Action.FREE))
    counted_events = np.concatenate((allocations.free_requested_event, allocations.free_completed_event))
    is_counted = np.isin(rows, counted_events[counted_events >= 0])
    is_real = real_events(events).action[rows] == action
    return np.asarray((action != Action.UNKNOWN) & (~is_free | is_counted) & (is_real | (begins == 0)))
