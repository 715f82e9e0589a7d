"""From a question (an address, an event) to the allocations that are meant, explained.

An address is ``0x7f3c40001000``, also inside a block, or ``b7f3c40001000_2`` as torch's viewer has it: the
third allocation that began there. An event is ``#1234``. A bare number is an event if the trace has so
many, else an address.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.build_explanation import contains_addr, explain_allocations, unsigned
from snapconv.answers.explanation import Explanation
from snapconv.columns import Int64Column
from snapconv.errors import InputError
from snapconv.snapshot.event_table import Action
from snapconv.snapshot.load import Snapshot
from snapconv.stacks.project_frames import Project
from snapconv.units import counted, device_name, format_bytes

# A block of every iteration may have the address: the newest are enough, and each has its own event.
_MOST_EXPLAINED = 100
_QUESTION = re.compile(
    r"#(?P<event>[0-9]{1,18})"
    r"|0[xX](?P<hex>[0-9a-fA-F]{1,16})"
    r"|b'?(?P<viewer>[0-9a-fA-F]{1,16})_(?P<occurrence>[0-9]{1,18})"
    r"|(?P<number>-?[0-9]{1,19})"
)


class Kind(Enum):
    """What a question names."""

    EVENT = "event"
    ADDRESS = "address"
    EITHER = "an event if there is one of this number, else an address"


@dataclass(frozen=True, slots=True)
class Question:
    """The question; ``number`` is an event, or an address as tables have it: negative from 2^63 on.

    ``occurrence`` counts the allocations that began at the address, from 0; None means any.
    """

    text: str
    kind: Kind
    number: int
    occurrence: int | None = None

    def is_event(self, analysis: DeviceAnalysis) -> bool:
        """Whether an event of this device is meant."""
        if self.kind is Kind.EITHER:
            return 0 <= self.number < len(analysis.device.events)
        return self.kind is Kind.EVENT


def parse_question(text: str) -> Question:
    """Read an address or an event; raises ValueError for anything else."""
    found = _QUESTION.fullmatch(text.strip())
    if not found:
        raise ValueError(
            f"expected an address such as 0x7f3c40001000 or an event such as #1234, got {text!r}"
        )
    part = found.groupdict()
    if part["event"]:
        return Question(text, Kind.EVENT, int(part["event"]))
    if part["number"]:
        return Question(text, Kind.EITHER, _signed(int(part["number"])))
    occurrence = int(part["occurrence"]) if part["occurrence"] else None
    return Question(text, Kind.ADDRESS, _signed(int(part["hex"] or part["viewer"], 16)), occurrence)


def explain(
    snapshot: Snapshot, project: Project, devices: Sequence[DeviceAnalysis], question: Question
) -> Explanation:
    """Explain the allocations that a question is about, on each of the devices.

    Of several, those that begin at the address go before those around it; among these what is live at the
    peak goes first, then the newest. Raises InputError where there is
    none, with what there is instead.
    """
    found = [(analysis, _rows(analysis, question)) for analysis in devices]
    n_found = sum(len(rows) for _, rows in found)
    if not n_found:
        reasons = "; ".join(dict.fromkeys(_why_nothing(analysis, question) for analysis in devices))
        raise InputError(f"{snapshot.path}: {reasons}")
    found_by_device = (explain_allocations(analysis, rows[:_MOST_EXPLAINED]) for analysis, rows in found)
    return Explanation(
        question.text, n_found, tuple(explained for device in found_by_device for explained in device)
    )


def _signed(number: int) -> int:
    """An address as tables have it: negative from 2^63 on."""
    if number >= 1 << 64 or number < -(1 << 63):
        raise ValueError(f"{number} is no address: it has more than 64 bits")
    return number - (1 << 64) if number >= 1 << 63 else number


def _rows(analysis: DeviceAnalysis, question: Question) -> Int64Column:
    """The allocations that are meant, in the order of the answer."""
    table, number = analysis.allocations, question.number
    if question.is_event(analysis):
        columns = (table.alloc_event, table.free_requested_event, table.free_completed_event)
        return np.flatnonzero(np.any([column == number for column in columns], axis=0))
    if question.occurrence is not None:
        began_here = np.flatnonzero(table.addr == number)
        return began_here[question.occurrence : question.occurrence + 1]
    rows = np.flatnonzero(contains_addr(table.addr, table.block_bytes, number))
    is_live = table.live_at(analysis.peak_event)[rows]
    order = np.lexsort((-table.alloc_event[rows], ~is_live, table.addr[rows] != number))
    return np.asarray(rows[order])


def _why_nothing(analysis: DeviceAnalysis, question: Question) -> str:
    """What there is in place of the requested allocation."""
    device, event = analysis.device, question.number
    where, n_events = device_name(device.device), len(device.events)
    if not question.is_event(analysis):
        return f"no allocation of {where} has {question.text}; " + "; ".join(_nearest(analysis, question))
    if event >= n_events:
        last = f", the last is #{n_events - 1}" if n_events else ""
        return f"{where} has no event #{event}; it has {counted(n_events, 'event')}{last}"
    action = Action(int(device.events.action[event]))
    size = format_bytes(int(device.events.size[event]))
    return f"event #{event} of {where} is {action.name.lower()} of {size}, which is about no allocation"


def _nearest(analysis: DeviceAnalysis, question: Question) -> Iterator[str]:
    """What is around an address that no allocation has."""
    starts, wanted = analysis.allocations.addr, question.number
    if question.occurrence is not None:
        yield f"{counted(int(np.count_nonzero(starts == wanted)), 'allocation')} began there"
        return
    segments = analysis.device.segments
    for segment in segments.addr[contains_addr(segments.addr, segments.total_bytes, wanted)].tolist():
        yield f"it is in the segment at {unsigned(segment)}"
    below, above = starts[starts < wanted], starts[starts > wanted]
    if len(below):
        yield f"the next one below is at {unsigned(int(below.max()))}"
    if len(above):
        yield f"the next one above is at {unsigned(int(above.min()))}"
    if not len(starts):
        yield "it has none at all"
