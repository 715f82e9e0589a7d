"""The moment that a question is about: its text, read in one place, and the event that it means on a device.

    peak · start · end · worst · oom · oom:2 · iteration:3 · annotation:NAME · largest activations ·
    1234

``worst`` is where the most was reserved and not in use. Of an iteration, of an annotation and of
the activations it is their own peak.
"""

import re
from dataclasses import dataclass

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.errors import InputError
from snapconv.phases.annotation_spans import find_spans
from snapconv.replay.device_replay import Curve
from snapconv.units import counted, device_name, shortened

EXPECTED = (
    "peak, start, end, worst, oom, oom:2, iteration:3, annotation:NAME, 'largest activations', "
    "or an event such as 1234"
)
_MOST_NAMES = 5
_MOST_OF_NAME = 60
# With fewer, a replay of allocator settings shows too little for advice.
FEW_EVENTS = 10


@dataclass(frozen=True, slots=True)
class FoundMoment:
    """A moment of one device: what is counted is counted after its event (-1: before the first one)."""

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
    if found := _NUMBERED.fullmatch(words):
        kind = found["kind"] or "event"
        number = int(found["number"] or found["event"])
        if kind != "oom" or number >= 1:
            return kind, number, ""
    raise ValueError(f"expected {EXPECTED}; got {text!r}")


def find_moment(analysis: DeviceAnalysis, text: str) -> FoundMoment:
    """Find the event that is meant on a device; raises InputError where it has none, with what it has."""
    (kind, number, name), n_events = parse_moment(text), analysis.n_events
    failed = analysis.phases.oom_events.tolist()
    iterations = analysis.iterations
    match kind:
        case "oom":
            if number > len(failed):
                has = (
                    counted(len(failed), "failed allocation") if failed else "no failed allocation"
                )
                raise _nothing(analysis, f"oom:{number}", has)
            return FoundMoment(failed[number - 1], f"failed allocation {number} of {len(failed)}")
        case "iteration":
            if number >= len(iterations):
                last = len(iterations) - 1
                has = f"iterations 0 to {last}" if last else "iteration 0"
                raise _nothing(analysis, f"iteration {number}", has)
            return FoundMoment(iterations[number].peak_event, f"the peak of iteration {number}")
        case "event":
            if number >= n_events:
                raise _nothing(analysis, f"event {number}", counted(n_events, "event"))
            return FoundMoment(number, f"event {number}")
        case "annotation":
            return _annotation(analysis, name)
        case "worst":
            return FoundMoment(worst_event(analysis), "the moment with most unused memory")
        case "start":
            return FoundMoment(-1, "the start of the trace")
        case "end":
            return FoundMoment(n_events - 1, "the dump")
        case "largest activations":
            return FoundMoment(analysis.activation_event, "the largest activations")
    return FoundMoment(analysis.peak_event, "the peak" if n_events else "the dump")


def worst_event(analysis: DeviceAnalysis) -> int:
    """Return the first event after which the most is reserved and not in use; -1: before the first event."""
    reserved = analysis.replay.reserved
    active = analysis.replay.active
    return Curve(reserved.start - active.start, lambda: reserved.after - active.after).peak_event


def _annotation(analysis: DeviceAnalysis, name: str) -> FoundMoment:
    spans = find_spans(analysis.snapshot, analysis.device)
    texts = analysis.snapshot.texts
    shown = shortened(name, _MOST_OF_NAME)
    named = np.flatnonzero([texts[i] == name for i in spans.name_id.tolist()])
    if not len(named):
        names = list(dict.fromkeys(texts[i] for i in spans.name_id.tolist()))
        listed = ", ".join(shortened(name, _MOST_OF_NAME) for name in names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        has = f"the annotations {listed}{more}" if names else "no annotations"
        raise _nothing(analysis, f"annotation {shown!r}", has)
    # Levels before the first event, and after each: a span has that of before it, and those of its
    # events.
    levels = np.append(analysis.replay.allocated.start, analysis.replay.allocated.after)
    first = spans.first_event[named]
    last = spans.last_event[named]
    change = np.bincount(first, minlength=len(levels) + 1)
    change -= np.bincount(np.maximum(last + 2, first + 1), minlength=len(levels) + 1)
    is_inside = np.cumsum(change)[: len(levels)] > 0
    several = f" (of {len(named)})" if len(named) > 1 else ""
    event = int(np.where(is_inside, levels, -1).argmax()) - 1
    return FoundMoment(event, f"the peak of annotation {shown}{several}")


def _nothing(analysis: DeviceAnalysis, wanted: str, has: str) -> InputError:
    return InputError(f"{device_name(analysis.device.device)} has no {wanted}; it has {has}")
