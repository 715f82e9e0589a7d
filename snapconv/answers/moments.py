"""Moments that questions are about: their texts, and the events that they mean on a device.

    peak · start · end · worst · oom · oom:2 · iteration:3 · annotation:NAME · largest activations ·
    1234

``worst`` is where the most was reserved and not in use. Of an iteration, of an annotation and of
the activations it is their own peak.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.errors import InputError
from snapconv.phases.annotation_spans import find_spans
from snapconv.replay.device_replay import Curve
from snapconv.units import counted, device_name, shortened

EXPECTED = (
    "peak, start, end, worst, oom, oom:2, iteration:3, annotation:NAME, 'largest "
    "activations', or an event such as 1234"
)
_MOST_NAMES = 5
_MOST_OF_NAME = 60
# With fewer, a replay of allocator settings shows too little for advice.
FEW_EVENTS = 10


@dataclass(frozen=True, slots=True)
class FoundMoment:
    """A moment of one device, just after its event (-1: before the first one)."""

    event: int
    name: str


_WORDS = ("peak", "start", "end", "worst", "largest activations", "oom")
_NUMBERED = re.compile(
    r"(?P<kind>oom|iteration|event):(?P<number>[0-9]{1,18})|#?(?P<event>[0-9]{1,18})"
)


def parse_moment(text: str) -> tuple[str, int, str]:
    """Read a moment as people write it; raises ValueError for anything else.

    Returns its word, the number of an event, an iteration or (from 1) an oom, and an annotation's
    name.
    """
    words = " ".join(text.split())
    if words in _WORDS:
        return words, 1, ""
    if words.startswith("annotation:") and words != "annotation:":
        return "annotation", 1, text.strip().removeprefix("annotation:")
    match = _NUMBERED.fullmatch(words)
    if match:
        kind = match["kind"] or "event"
        number = int(match["number"] or match["event"])
        if kind != "oom" or number >= 1:
            return kind, number, ""
    raise ValueError(f"expected {EXPECTED}; got {text!r}")


def find_moment(analysis: DeviceAnalysis, text: str) -> FoundMoment:
    """Find the event that a text means on a device.

    Raises InputError where the device has none, and says what it has.
    """
    kind, number, name = parse_moment(text)
    n_events = analysis.n_events
    match kind:
        case "oom":
            return _failed_allocation(analysis, number)
        case "iteration":
            return _iteration(analysis, number)
        case "event":
            return _numbered_event(analysis, number)
        case "annotation":
            return _annotation(analysis, name)
        case "worst":
            return FoundMoment(worst_event(analysis), "the moment with most unused memory")
        case "start":
            return FoundMoment(-1, f"the start of the {_extent(analysis)}")
        case "end":
            name = "the end of the range" if analysis.n_events_outside else "the dump"
            return FoundMoment(n_events - 1, name)
        case "largest activations":
            return FoundMoment(analysis.activation_event, "the largest activations")
    peak = "the peak of the range" if analysis.n_events_outside else "the peak"
    return FoundMoment(analysis.peak_event, peak if n_events else "the dump")


def _extent(analysis: DeviceAnalysis) -> str:
    return "range" if analysis.n_events_outside else "trace"


def _numbered_event(analysis: DeviceAnalysis, number: int) -> FoundMoment:
    first = analysis.first_event
    n_events = analysis.n_events
    if not first <= number < first + n_events:
        has = f"events {first} to {first + n_events - 1}"
        is_part = n_events and n_events < analysis.n_file_events
        raise missing(
            analysis, f"event {number}", has if is_part else counted(n_events, "event")
        )
    return FoundMoment(number - first, f"event {number}")


def worst_event(analysis: DeviceAnalysis) -> int:
    """Return the first event after which most memory is reserved and not in use.

    It is -1 for the moment before the first event.
    """
    reserved = analysis.replay.reserved
    active = analysis.replay.active
    unused = Curve(reserved.start - active.start, lambda: reserved.after - active.after)
    return unused.peak_event


def _failed_allocation(analysis: DeviceAnalysis, number: int) -> FoundMoment:
    failed = analysis.phases.oom_events.tolist()
    if number > len(failed):
        has = (
            counted(len(failed), "failed allocation") if failed else "no failed allocation"
        )
        raise missing(analysis, f"oom:{number}", has)
    return FoundMoment(failed[number - 1], f"failed allocation {number} of {len(failed)}")


def _iteration(analysis: DeviceAnalysis, number: int) -> FoundMoment:
    iterations = analysis.iterations
    last = len(iterations) - 1
    first = len(iterations) - len(analysis.traced_iterations)
    if not first <= number <= last:
        has = f"iterations {first} to {last}" if last > first else f"iteration {last}"
        raise missing(analysis, f"iteration {number}", has)
    return FoundMoment(iterations[number].peak_event, f"the peak of iteration {number}")


def _annotation(analysis: DeviceAnalysis, name: str) -> FoundMoment:
    spans = find_spans(analysis.snapshot, analysis.device)
    texts = analysis.snapshot.texts
    names = [texts[i] for i in spans.name_id.tolist()]
    shown = shortened(name, _MOST_OF_NAME)
    rows = np.flatnonzero([span_name == name for span_name in names])
    if not len(rows):
        raise missing(analysis, f"annotation {shown!r}", _annotation_list(names))
    # Levels before the first event, and after each: a span has that of before it, and those of its
    # events.
    levels = np.append(analysis.replay.allocated.start, analysis.replay.allocated.after)
    n_levels = len(levels)
    first = spans.first_event[rows]
    end = np.maximum(spans.last_event[rows] + 2, first + 1)
    change = np.bincount(first, minlength=n_levels + 1)
    change -= np.bincount(end, minlength=n_levels + 1)
    is_inside = np.cumsum(change)[:n_levels] > 0
    event = int(np.where(is_inside, levels, -1).argmax()) - 1
    number = f" (of {len(rows)})" if len(rows) > 1 else ""
    return FoundMoment(event, f"the peak of annotation {shown}{number}")


def _annotation_list(span_names: Sequence[str]) -> str:
    """List the first names of annotations, each once, and count the others."""
    names = list(dict.fromkeys(span_names))
    if not names:
        return "no annotations"
    listed = ", ".join(shortened(name, _MOST_OF_NAME) for name in names[:_MOST_NAMES])
    n_more = len(names) - _MOST_NAMES
    return f"the annotations {listed}{f' and {n_more} more' if n_more > 0 else ''}"


def missing(analysis: DeviceAnalysis, moment: str, has: str) -> InputError:
    """Return the error for a moment or a bound that a device does not have."""
    return InputError(
        f"{device_name(analysis.device.device)} has no {moment}; it has {has}"
    )
