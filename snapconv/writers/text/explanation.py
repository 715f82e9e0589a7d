"""An explanation of an allocation as text: the first allocation in full, the others in a line each."""

from collections.abc import Iterable, Iterator

from snapconv.answers.explanation import (
    AllocationExplanation,
    CategoryVerdict,
    Explanation,
    Frame,
    Lifetime,
    Opinion,
    Origin,
    Place,
)
from snapconv.classification.categories import NO_RULE
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.units import counted, device_name, format_bytes, format_duration_us
from snapconv.writers.text.moment import pool_shown

_LABEL_WIDTH = 12
_MANY = 20
# A label, and the lines beside it.
_Row = tuple[str, Iterable[str]]


def explanation_lines(found: Explanation, *, whole_stack: bool = False) -> Iterator[str]:
    """Write the answer for a person."""
    first, *others = found.allocations
    at_peak = "live at the peak" if first.lifetime.is_live_at_peak else "not live at the peak"
    named = f" {first.name}" if first.name else ""
    category, size = first.verdict.decision.category, format_bytes(first.block_bytes)
    yield f"{first.address} on {device_name(first.device)}: {category}{named}, {size}, {at_peak}"
    for label, lines in _rows(first, whole_stack=whole_stack):
        for number, line in enumerate(lines):
            yield f"  {'' if number else label:<{_LABEL_WIDTH}}{line}"
    if found.n_allocations > 1:
        n_others = found.n_allocations - 1
        yield f"{counted(n_others, 'more allocation')} here; explain one by its event:"
        yield from (f"  {_in_a_line(explained)}" for explained in others[:_MANY])
        if n_others > len(others[:_MANY]):
            yield f"  and {n_others - len(others[:_MANY])} earlier ones"


def _rows(explained: AllocationExplanation, *, whole_stack: bool) -> Iterator[_Row]:
    requested, block = explained.requested_bytes, explained.block_bytes
    block_shown = f"{'' if explained.is_exact else 'at least '}{format_bytes(block)} ({block} bytes)"
    yield "size", [f"requested {format_bytes(requested)} ({requested} bytes), block {block_shown}"]
    yield "place", [_place(explained.place)]
    yield from _life(explained.lifetime)
    sources = ("", "by the allocator, ")
    yield (
        "annotations",
        [f"{a.text} ({sources[a.is_internal]}at event {a.event})" for a in explained.annotations],
    )
    yield from _code(explained.origin)
    if whole_stack:
        origin = explained.origin
        for label, stack in (("stack", origin.stack), ("free stack", origin.free_stack)):
            frames = [f"{'*' if frame.is_project else ' '} {frame}" for frame in stack]
            yield label, frames or ["  no frames"]
    yield from _category(explained.verdict)


def _place(place: Place) -> str:
    segment = place.segment
    if segment is None:
        where = "segment not known"
    else:
        freed = "" if segment.freed_event is None else f", given back at event {segment.freed_event}"
        where = f"segment {segment.address} of {format_bytes(segment.total_bytes)}{freed}"
    return f"{where}; {pool_shown(place.pool)}; stream {place.stream}"


def _life(lifetime: Lifetime) -> Iterator[_Row]:
    allocated, requested, completed = lifetime.allocated, lifetime.free_requested, lifetime.free_completed
    yield "allocated", [str(allocated) if allocated else "before the trace begins"]
    if requested:
        yield "freed", [str(requested)]
    if completed:
        if requested is None or completed.event != requested.event:
            yield "block free", [str(completed)]
    elif lifetime.is_live_at_dump:
        waits = "a stream still uses it" if requested else "still in use"
        yield "block free" if requested else "freed", [f"not before the dump: {waits}"]
    elif requested is None or lifetime.end_event != requested.event:
        yield "block free", [f"by event {lifetime.end_event}; the trace lacks the event itself"]
    at_least = "" if allocated else "at least "
    lasted = "" if lifetime.in_use_us is None else f"{format_duration_us(lifetime.in_use_us)}, "
    yield "in use for", [f"{at_least}{lasted}{counted(lifetime.in_use_events, 'event')}"]


def _code(origin: Origin) -> Iterator[_Row]:
    def of_project(stack: tuple[Frame, ...]) -> list[str]:
        return [str(frame) for frame in stack if frame.is_project]

    library = f"{LIBRARY_ONLY}: {counted(len(origin.stack), 'frame')}" if origin.stack else NO_STACK
    mine, freed_in = of_project(origin.stack) or [library], of_project(origin.free_stack)
    yield "operation", [f"{origin.operation or 'not known'} ({origin.operation_from})"]
    yield "code", mine
    yield "freed in", ["the same lines"] if freed_in == mine else freed_in


def _category(verdict: CategoryVerdict) -> Iterator[_Row]:
    decision, certainty = verdict.decision, ""
    if verdict.probability is not None:
        probability = "" if verdict.probability == 1 else f", {100 * verdict.probability:.0f} %"
        certainty = f", {verdict.certainty}{probability}"
    yield "category", [f"{decision.category}{certainty}"]
    no_rule = "no rule: there is no evidence for any category"
    yield "decided by", [no_rule if decision.rule == NO_RULE else f"{decision.rule}: {_reason(decision)}"]
    yield "the job", [verdict.job] if verdict.job else []
    if verdict.is_wrong_when:
        yield "evidence", [f"{decision.evidence}: {verdict.follows_from}"]
        yield "wrong when", [verdict.is_wrong_when]
    against = [
        f"{other.category}, by {other.rule} ({other.evidence}): {_reason(other)}"
        for other in verdict.others
        if other.category != decision.category
    ]
    yield "against", against or ["no other rule gives another category"]


def _reason(opinion: Opinion) -> str:
    return opinion.reason + (f" (torch {opinion.torch})" if opinion.torch else "")


def _in_a_line(explained: AllocationExplanation) -> str:
    lifetime, category = explained.lifetime, explained.verdict.decision.category
    begun = f"#{lifetime.allocated.event}" if lifetime.allocated else "before the trace"
    freed = lifetime.free_requested.event if lifetime.free_requested else lifetime.end_event
    ended = "the dump" if freed is None else f"#{freed}"
    iteration = f", iteration {lifetime.allocated.iteration}" if lifetime.allocated else ""
    peak = ", live at the peak" if lifetime.is_live_at_peak else ""
    return (
        f"{device_name(explained.device)} {explained.address} {begun} to {ended}{iteration}: {category}, "
        f"{format_bytes(explained.block_bytes)}, {explained.origin.operation or 'operation not known'}{peak}"
    )
