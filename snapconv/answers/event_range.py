"""Ranges of events: the texts of their ends, and the events that they mean on a device.

    1234 · iteration:3 · annotation:NAME · 1.5s

An iteration or an annotation stands for its first event at the beginning, and for its last at the
end. Seconds count from the trace's first event.
"""

import re
from typing import NamedTuple

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.moments import missing
from snapconv.errors import InputError
from snapconv.phases.annotation_spans import find_spans
from snapconv.units import counted, device_name, shortened

_EXPECTED = "an event such as 1234, iteration:3, annotation:NAME, or seconds such as 1.5s"
_BOUND = re.compile(
    r"#?(?P<event>[0-9]{1,18})|iteration:(?P<iteration>[0-9]{1,18})|annotation:(?P<name>.+)"
    r"|(?P<seconds>[0-9]{1,9}(?:\.[0-9]{1,9})?)s"
)
_US = 1_000_000


class EventRange(NamedTuple):
    """The first and the last event of a range."""

    first: int
    last: int


def parse_bound(text: str) -> dict[str, str | None]:
    """Read an end of a range; raises ValueError for any other text."""
    match = _BOUND.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected {_EXPECTED}; got {shortened(text, 60)!r}")
    return match.groupdict()


def find_range(analysis: DeviceAnalysis, begin: str | None, end: str | None) -> EventRange:
    """Find the events from one bound to another, both included; None: the end of the trace.

    Raises ValueError for a text that is no bound, InputError where the device has no such event.
    """
    n_events = analysis.n_events
    name = device_name(analysis.device.device)
    if not n_events:
        raise InputError(f"{name} has no events: there is nothing to cut")
    first = 0 if begin is None else _event(analysis, begin, is_end=False)
    last = n_events - 1 if end is None else _event(analysis, end, is_end=True)
    if first > last:
        raise InputError(
            f"the range has no event: it begins at event {first} of {name} and ends at {last}"
        )
    return EventRange(first, last)


def _event(analysis: DeviceAnalysis, text: str, *, is_end: bool) -> int:
    bound = parse_bound(text)
    if bound["iteration"] is not None:
        number = int(bound["iteration"])
        iterations = analysis.iterations
        if number >= len(iterations):
            raise missing(analysis, text, counted(len(iterations), "iteration"))
        iteration = iterations[number]
        return max(iteration.last_event if is_end else iteration.first_event, 0)
    if bound["name"] is not None:
        return _event_of_annotation(analysis, bound["name"], is_end=is_end)
    if bound["seconds"] is not None:
        return _event_at(analysis, float(bound["seconds"]), is_end=is_end)
    event = int(bound["event"] or 0)
    if event >= analysis.n_events:
        raise missing(analysis, f"event {event}", counted(analysis.n_events, "event"))
    return event


def _event_of_annotation(analysis: DeviceAnalysis, name: str, *, is_end: bool) -> int:
    spans = find_spans(analysis.snapshot, analysis.device)
    texts = analysis.snapshot.texts
    rows = np.flatnonzero([texts[i] == name for i in spans.name_id.tolist()])
    rows = rows[spans.last_event[rows] >= spans.first_event[rows]]
    if not len(rows):
        raise missing(analysis, f"annotation {shortened(name, 60)!r} with events", "none")
    return int(spans.last_event[rows].max() if is_end else spans.first_event[rows].min())


def _event_at(analysis: DeviceAnalysis, seconds: float, *, is_end: bool) -> int:
    times = analysis.device.events.time_us
    if times is None:
        raise InputError(
            f"{analysis.snapshot.path} has no times: name events or iterations"
        )
    time_us = int(times[0]) + round(seconds * _US)
    if is_end:
        return int(np.searchsorted(times, time_us, side="right")) - 1
    return int(np.searchsorted(times, time_us, side="left"))
