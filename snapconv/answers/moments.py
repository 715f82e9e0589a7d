"""The moment that a question is about: its text, read in one place, and the event that it means on a device.

    peak · start · end · worst · oom · oom:2 · iteration:3 · annotation:NAME · largest activations · 1234

``worst`` is where the most was reserved and not in use. Of an iteration, of an annotation and of the
activations it is their own peak.
"""

import re
from dataclasses import dataclass
from enum import Enum

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.errors import InputError
from snapconv.phases.annotation_spans import find_spans, peaks_in
from snapconv.snapshot.event_table import Action
from snapconv.units import counted, device_name, shortened

EXPECTED = (
    "peak, start, end, worst, oom, oom:2, iteration:3, annotation:NAME, 'largest activations', "
    "or an event such as 1234"
)
_MOST_NAMES, _MOST_OF_NAME = 5, 60


class MomentKind(Enum):
    """What kind of moment a question names."""

    PEAK = "peak"
    START = "start"
    END = "end"
    WORST = "worst"
    ACTIVATIONS = "largest activations"
    OOM = "oom"
    ITERATION = "iteration"
    ANNOTATION = "annotation"
    EVENT = "event"


@dataclass(frozen=True, slots=True)
class MomentQuestion:
    """A moment as it was written; ``number`` is of an event, an iteration or (from 1) an oom."""

    text: str
    kind: MomentKind
    number: int = 0
    name: str = ""


@dataclass(frozen=True, slots=True)
class FoundMoment:
    """A moment of one device: what is counted is counted after its event (-1: before the first one)."""

    event: int
    name: str


PEAK = MomentQuestion("peak", MomentKind.PEAK)
END = MomentQuestion("end", MomentKind.END)
WORST = MomentQuestion("worst", MomentKind.WORST)
_ALONE = {kind.value: kind for kind in list(MomentKind)[:6]}
_NUMBERED = re.compile(r"(?P<kind>oom|iteration|event):(?P<number>[0-9]{1,18})")
_EVENT = re.compile(r"#?(?P<number>[0-9]{1,18})")


def parse_moment(text: str) -> MomentQuestion:
    """Read a moment as people write it; raises ValueError for anything else."""
    words = " ".join(text.split())
    if words in _ALONE:
        return MomentQuestion(words, _ALONE[words], number=1)
    if words.startswith("annotation:") and words != "annotation:":
        return MomentQuestion(words, MomentKind.ANNOTATION, name=text.strip().removeprefix("annotation:"))
    if found := _NUMBERED.fullmatch(words):
        kind, number = MomentKind(found["kind"]), int(found["number"])
        if kind is not MomentKind.OOM or number >= 1:
            return MomentQuestion(words, kind, number)
    elif found := _EVENT.fullmatch(words):
        return MomentQuestion(words, MomentKind.EVENT, int(found["number"]))
    raise ValueError(f"expected {EXPECTED}; got {text!r}")


def find_moment(analysis: DeviceAnalysis, question: MomentQuestion) -> FoundMoment:
    """Find the event that is meant on a device; raises InputError where it has none, with what it has."""
    n_events = len(analysis.device.events)
    if question.kind is MomentKind.OOM:
        return _oom(analysis, question.number)
    if question.kind is MomentKind.ITERATION:
        return _iteration(analysis, question.number)
    if question.kind is MomentKind.ANNOTATION:
        return _annotation(analysis, question.name)
    if question.kind is MomentKind.EVENT:
        if question.number >= n_events:
            raise _nothing(analysis, f"event {question.number}", counted(n_events, "event"))
        return FoundMoment(question.number, f"event {question.number}")
    if question.kind is MomentKind.WORST:
        return FoundMoment(worst_event(analysis), "the most reserved and not in use")
    event, name = {
        MomentKind.PEAK: (analysis.peak_event, "the peak" if n_events else "the dump"),
        MomentKind.START: (-1, "the start of the trace"),
        MomentKind.END: (n_events - 1, "the dump"),
        MomentKind.ACTIVATIONS: (analysis.activation_event, "the largest activations"),
    }[question.kind]
    return FoundMoment(event, name)


def worst_event(analysis: DeviceAnalysis) -> int:
    """Return the first event after which the most is reserved and not in use; -1: before the first event."""
    reserved, active = analysis.replay.reserved, analysis.replay.active
    if not len(reserved.after):
        return -1
    unused = reserved.after - active.after
    highest = int(unused.argmax())
    return highest if unused[highest] > reserved.start - active.start else -1


def _oom(analysis: DeviceAnalysis, number: int) -> FoundMoment:
    found = np.flatnonzero(analysis.device.events.action == Action.OOM)
    if number > len(found):
        has = counted(len(found), "failed allocation") if len(found) else "no failed allocation"
        raise _nothing(analysis, f"oom:{number}", has)
    event = int(found[number - 1])
    return FoundMoment(event, f"failed allocation {number} of {len(found)}")


def _iteration(analysis: DeviceAnalysis, number: int) -> FoundMoment:
    n_iterations = len(analysis.iterations)
    if number >= n_iterations:
        has = "iteration 0" if n_iterations == 1 else f"iterations 0 to {n_iterations - 1}"
        raise _nothing(analysis, f"iteration {number}", has)
    return FoundMoment(analysis.iterations[number].peak_event, f"the peak of iteration {number}")


def _annotation(analysis: DeviceAnalysis, name: str) -> FoundMoment:
    spans, texts = find_spans(analysis.snapshot, analysis.device), analysis.snapshot.texts
    shown = shortened(name, _MOST_OF_NAME)
    named = np.flatnonzero([texts[i] == name for i in spans.name_id.tolist()])
    if not len(named):
        names = list(dict.fromkeys(texts[i] for i in spans.name_id.tolist()))
        listed = ", ".join(shortened(name, _MOST_OF_NAME) for name in names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        has = f"the annotations {listed}{more}" if names else "no annotations"
        raise _nothing(analysis, f"annotation {shown!r}", has)
    allocated = analysis.replay.allocated
    highest = int(named[peaks_in(spans, allocated)[named].argmax()])
    first, last = int(spans.first_event[highest]), int(spans.last_event[highest])
    levels = [allocated.at(first - 1), *allocated.after[first : last + 1].tolist()]
    several = f" (of {len(named)})" if len(named) > 1 else ""
    return FoundMoment(first - 1 + levels.index(max(levels)), f"the peak of annotation {shown}{several}")


def _nothing(analysis: DeviceAnalysis, wanted: str, has: str) -> InputError:
    return InputError(f"{device_name(analysis.device.device)} has no {wanted}; it has {has}")
