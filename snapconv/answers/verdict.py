"""The verdict on a file: its most important fact in a sentence, for somebody at two in the morning.

The verdict is about the first of these that the file shows: a request that failed, memory that
grows, memory that is reserved and never used on a device that is nearly full, or else what the peak
is made of. With the largest causes, the fault that ``advise`` ranks first, and the command that has
more.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from snapconv.analysis import DeviceAnalysis
from snapconv.answers.advice.evidence import FAULT
from snapconv.answers.advice.findings import Finding, quick_findings
from snapconv.answers.causes import N_CAUSES, Cause, largest_causes
from snapconv.answers.fragmentation import free_memory, much_waste
from snapconv.answers.growth import (
    Growth,
    bytes_per_iteration,
    find_growth,
    growing_sentence,
    growth_notes,
)
from snapconv.answers.moments import worst_event
from snapconv.answers.oom.failed_allocation import find_out_of_memory
from snapconv.answers.peak import CategoryTotal, device_memory, summary_totals
from snapconv.classification.categories import ABOUT, Category
from snapconv.columns import BoolColumn
from snapconv.replay.history_verdict import Verdict
from snapconv.replay.memory_layout import layout_at
from snapconv.units import Device, counted, curve_bytes, format_bytes, optional

# On a device that is as full as this, memory that is never used comes first.
_NEARLY_FULL = 0.9
# A category with less than this part of the peak is not named.
_LEAST_SHOWN = 50
_NOUNS = {category.label: shown.noun for category, shown in ABOUT.items()}


@dataclass(frozen=True, slots=True)
class FileVerdict:
    """The most important fact of a device's memory.

    ``command`` is the next one to type, before the file. If it is ``record``, it goes before the
    program. ``also`` are further sentences of less weight. ``faults`` are those that ``advise``
    finds, in its order, with the bytes that each holds at the peak.
    """

    device: Device
    about: str
    sentence: str
    moment: str
    causes: tuple[Cause, ...]
    command: str
    history_verdict: str
    also: tuple[str, ...] = ()
    faults: dict[str, int] = field(default_factory=dict)


# Its subject and sentence, and the allocations whose causes are named.
_Fact = tuple[str, str, BoolColumn]
# By the subject: the moment of the causes. Each is also the command that has more, but for the
# peak's.
_MOMENTS = {
    "oom": "when the request failed",
    "growth": "of the growth, live at the dump",
    "fragmentation": "at the peak",
}


def find_verdict(
    analysis: DeviceAnalysis,
    growing: Sequence[Growth] | None = None,
    *,
    n_causes: int = N_CAUSES,
) -> FileVerdict:
    """Find the most important fact of one device; ``growing`` is its growth, if known already."""
    reserve = _reserve(analysis)
    about, sentence, live = (
        _out_of_memory(analysis)
        or _grows(analysis, find_growth(analysis) if growing is None else growing)
        or _unused(analysis, reserve)
        or _peak(analysis, reserve)
    )
    findings = quick_findings(analysis)
    may_grow = growing_sentence(analysis)
    faults = [finding for finding in findings if finding.sort == FAULT]
    moment = _MOMENTS.get(about, "at the peak")
    command = about
    also: list[str] = []
    if about == "peak":
        also = [reserve] if reserve else []
        moment = moment if _has_trace(analysis) else "at the dump"
        command = _command(analysis, findings, may_grow, reserve)
    if faults:
        also.append(_fault_sentence(faults))
    if may_grow:
        also.append(f"{may_grow} (snapconv growth)")
    return FileVerdict(
        device=analysis.device.device,
        about=about,
        sentence=sentence,
        moment=moment,
        causes=largest_causes(
            analysis, live, waiting=_waiting(analysis, about), n_most=n_causes
        ),
        command=command,
        history_verdict=analysis.history.verdict.value,
        also=tuple(also),
        faults={fault.what.removesuffix("."): fault.held_bytes for fault in faults},
    )


def _command(
    analysis: DeviceAnalysis, findings: Sequence[Finding], may_grow: str, reserve: str
) -> str:
    """Return the command that has more about a peak."""
    commands = (
        ("info", not analysis.replay.allocated.peak),
        ("record", not len(analysis.snapshot.stacks.frames)),
        ("tree", not _has_trace(analysis)),
        ("advise", findings),
        ("growth", may_grow),
        ("fragmentation", reserve),
    )
    return next((command for command, fits in commands if fits), "tree")


def _has_trace(analysis: DeviceAnalysis) -> bool:
    return analysis.history.verdict is not Verdict.NO_TRACE


def _fault_sentence(faults: Sequence[Finding]) -> str:
    """Say what the first fault holds and how to repair it, and how many others there are."""
    first = faults[0]
    n_more = len(faults) - 1
    moment = "" if first.reserved_bytes is None else " of reserved memory"
    size = f"saves about {_rounded(first.saved_bytes)}{moment}"
    if first.needs_another_moment:
        size = f"holds {format_bytes(first.held_bytes)} at the peak"
    elif not first.held_bytes:
        size = f"{size} with others: snapconv advise"
    further = f" ({counted(n_more, 'more fault')}: snapconv advise)" if n_more else ""
    fault = first.what.removesuffix(".")
    return f"{first.heading}: {fault} ({size}). {first.how[0]}{further}"


def _rounded(n_bytes: int) -> str:
    """Write bytes with two digits: a replay finds the others."""
    number, unit = format_bytes(n_bytes).split()
    return f"{float(f'{float(number):.2g}'):g} {unit}"


def _waiting(analysis: DeviceAnalysis, about: str) -> BoolColumn | None:
    """Mark blocks that wait for another stream at a fact's moment; None where it has no moment."""
    if about == "growth":
        return None
    event = int(analysis.phases.oom_events[0]) if about == "oom" else analysis.peak_event
    return analysis.allocations.waiting_at(event)


def _out_of_memory(analysis: DeviceAnalysis) -> _Fact | None:
    if not analysis.ran_out:
        return None
    failure = find_out_of_memory(analysis)
    if failure.verdict is None or failure.request is None:
        return None
    request = failure.request
    location = f" at {request.lines[0].place}" if request.lines else ""
    inferred = " (inferred)" if failure.verdict.is_inferred else ""
    sentence = f"out of memory{location}: {failure.verdict.sentence}{inferred}"
    return "oom", sentence, analysis.allocations.live_at(request.event)


def _grows(analysis: DeviceAnalysis, growing: Sequence[Growth]) -> _Fact | None:
    """Report growth to the end of the trace, where it is enough for a note."""
    if not any(growth_notes(analysis, growing)):
        return None
    n_added = bytes_per_iteration(growing)
    location = optional(", most of it at {0.place}", growing[0].line)
    grown = analysis.features.mask(np.concatenate([growth.rows for growth in growing]))
    live = grown & analysis.allocations.live_at(analysis.n_events - 1)
    return (
        "growth",
        f"memory grows by {format_bytes(n_added)} per iteration{location}",
        live,
    )


def _unused(analysis: DeviceAnalysis, reserve: str) -> _Fact | None:
    """Report reserved memory that is never used, on a device that is nearly full of it."""
    total = device_memory(analysis, analysis.peak_event).total_bytes
    if not reserve or total is None or analysis.replay.reserved.peak < _NEARLY_FULL * total:
        return None
    return "fragmentation", reserve, analysis.live_at_peak


def _reserve(analysis: DeviceAnalysis) -> str:
    """Say how much reserved memory was never used, and where it lay; empty for little."""
    reserved = analysis.replay.reserved.peak
    active = analysis.replay.active
    if reserved - active.peak < much_waste(reserved):
        return ""
    moment = "While it used most, "
    unused = _unused_parts(analysis, active.peak_event)
    if not unused:
        event = worst_event(analysis)
        moment = "Before the first event "
        if event >= 0:
            moment = f"At event {analysis.first_event + event} "
        unused = _unused_parts(analysis, event)
    return (
        f"PyTorch reserved {format_bytes(reserved)} and used at most "
        f"{format_bytes(active.peak)}{_trace_limit(analysis)}. "
        f"{moment}{' and '.join(unused)} lay unused"
    )


def _unused_parts(analysis: DeviceAnalysis, event: int) -> list[str]:
    """Name the parts of the memory that is reserved and not used after an event."""
    layout = layout_at(analysis.device, analysis.allocations, event)
    free = free_memory(analysis, layout, "")
    parts = (
        (free.returnable_bytes, "in empty segments (`empty_cache()` returns them)"),
        (free.private_bytes, "in empty segments of private pools"),
        (free.enclosed_bytes, "in partly used segments"),
    )
    return [f"{format_bytes(n_bytes)} {location}" for n_bytes, location in parts if n_bytes]


def _peak(analysis: DeviceAnalysis, reserve: str) -> _Fact:
    allocated = analysis.replay.allocated.peak
    reserved = analysis.replay.reserved.peak
    live = analysis.live_at_peak
    has_trace = _has_trace(analysis)
    # Some events do not fit the segments: a note has their number.
    contradicts = allocated > reserved
    size = f"{format_bytes(allocated)} allocated at the dump"
    if has_trace:
        shown = curve_bytes("allocated", allocated, analysis.replay.lower_bounds)
        about = "about " if contradicts else ""
        size = f"peak {about}{shown}{_trace_limit(analysis)}"
    remark = ""
    waiting = analysis.allocations.bytes_of(
        analysis.allocations.waiting_at(analysis.peak_event)
    )
    if waiting * _LEAST_SHOWN >= max(allocated, 1):
        remark = f"; {format_bytes(waiting)} more were freed and waited for another stream"
    if contradicts:
        remark += f"; approximate, as its segments have only {format_bytes(reserved)}"
    elif analysis.has_allocator and not reserve:
        bound = "at most " if has_trace else ""
        if "reserved" in analysis.replay.lower_bounds:
            bound = "at least "
        remark += f"; PyTorch reserved {bound}{format_bytes(reserved)}"
    return (
        "peak",
        f"{size}{_shares(summary_totals(analysis, live), allocated)}{remark}",
        live,
    )


def _trace_limit(analysis: DeviceAnalysis) -> str:
    """Limit a sentence about a peak to the trace, where this is a part of the run."""
    return "" if analysis.history.verdict is Verdict.COMPLETE else " in this trace"


def _shares(rows: Sequence[CategoryTotal], allocated: int) -> str:
    """Say what the peak is made of: the largest categories, and last the unknown memory."""
    unknown = Category.UNKNOWN.label
    shares = []
    for row in sorted(rows, key=lambda row: (row.category == unknown, -row.block_bytes)):
        if row.block_bytes * _LEAST_SHOWN >= max(allocated, 1):
            noun = _NOUNS.get(row.category, row.category)
            certainty = optional(" ({})", row.certainty)
            shares.append(f"{100 * row.block_bytes / allocated:.0f} % {noun}{certainty}")
    return optional(": {}", ", ".join(shares))
