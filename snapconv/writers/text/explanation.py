"""An explanation of an allocation as text: the first allocation in full, the others in a line each."""

from collections.abc import Iterable, Iterator

from snapconv.answers.explanation import (
    AllocationExplanation,
    Annotation,
    CategoryVerdict,
    Explanation,
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


def explanation_lines(found: Explanation, *, whole_stack: bool = False) -> Iterator[str]:
    """Write the answer for a person."""
    first, *others = found.allocations
    yield from _allocation_lines(first, whole_stack=whole_stack)
    if found.n_allocations > 1:
        n_others = found.n_allocations - 1
        yield f"{counted(n_others, 'more allocation')} here; explain one by its event:"
        for explained in others[:_MANY]:
            yield f"  {_in_a_line(explained)}"
        if n_others > len(others[:_MANY]):
            yield f"  and {n_others - len(others[:_MANY])} earlier ones"


def _allocation_lines(explained: AllocationExplanation, *, whole_stack: bool) -> Iterator[str]:
    at_peak = "live at the peak" if explained.lifetime.is_live_at_peak else "not live at the peak"
    category, size = explained.verdict.decision.category, format_bytes(explained.block_bytes)
    named = f" {explained.name}" if explained.name else ""
    device = device_name(explained.device)
    yield f"{explained.address} on {device}: {category}{named}, {size}, {at_peak}"
    yield from _labelled("size", _size_lines(explained))
    yield from _labelled("place", [_place(explained.place)])
    yield from _lifetime_lines(explained.lifetime)
    yield from _labelled("annotations", map(_annotation_text, explained.annotations))
    yield from _code_lines(explained.origin, whole_stack=whole_stack)
    yield from _category_lines(explained.verdict)


def _labelled(label: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines with a label before the first."""
    for line in lines:
        yield f"  {label:<{_LABEL_WIDTH}}{line}"
        label = ""


def _size_lines(explained: AllocationExplanation) -> Iterator[str]:
    requested, block = explained.requested_bytes, explained.block_bytes
    at_least = "" if explained.is_exact else "at least "
    yield (
        f"requested {format_bytes(requested)} ({requested} bytes), "
        f"block {at_least}{format_bytes(block)} ({block} bytes)"
    )


def _place(place: Place) -> str:
    segment = place.segment
    if segment is None:
        where = "segment not known"
    else:
        freed = "" if segment.freed_event is None else f", given back at event {segment.freed_event}"
        where = f"segment {segment.address} of {format_bytes(segment.total_bytes)}{freed}"
    return f"{where}; {pool_shown(place.pool)}; stream {place.stream}"


def _lifetime_lines(lifetime: Lifetime) -> Iterator[str]:
    allocated, requested, completed = lifetime.allocated, lifetime.free_requested, lifetime.free_completed
    yield from _labelled("allocated", [str(allocated) if allocated else "before the trace begins"])
    if requested:
        yield from _labelled("freed", [str(requested)])
    if completed:
        if requested is None or completed.event != requested.event:
            yield from _labelled("block free", [str(completed)])
    elif lifetime.is_live_at_dump:
        what = "block free" if requested else "freed"
        waits = "a stream still uses it" if requested else "still in use"
        yield from _labelled(what, [f"not before the dump: {waits}"])
    elif requested is None or lifetime.end_event != requested.event:
        yield from _labelled(
            "block free", [f"by event {lifetime.end_event}; the trace lacks the event itself"]
        )
    at_least = "" if allocated else "at least "
    lasted = "" if lifetime.in_use_us is None else f"{format_duration_us(lifetime.in_use_us)}, "
    yield from _labelled("in use for", [f"{at_least}{lasted}{counted(lifetime.in_use_events, 'event')}"])


def _annotation_text(annotation: Annotation) -> str:
    source = "by the allocator, " if annotation.is_internal else ""
    return f"{annotation.text} ({source}at event {annotation.event})"


def _code_lines(origin: Origin, *, whole_stack: bool) -> Iterator[str]:
    named = f"{origin.operation or 'not known'} ({origin.operation_from})"
    yield from _labelled("operation", [named])
    mine = [str(frame) for frame in origin.stack if frame.is_project]
    if not origin.stack:
        mine = [NO_STACK]
    elif not mine:
        mine = [f"{LIBRARY_ONLY}: {counted(len(origin.stack), 'frame')}"]
    yield from _labelled("code", mine)
    freed_in = [str(frame) for frame in origin.free_stack if frame.is_project]
    yield from _labelled("freed in", ["the same lines"] if freed_in == mine else freed_in)
    if whole_stack:
        for label, stack in (("stack", origin.stack), ("free stack", origin.free_stack)):
            frames = [f"{'*' if frame.is_project else ' '} {frame}" for frame in stack]
            yield from _labelled(label, frames or ["  no frames"])


def _category_lines(verdict: CategoryVerdict) -> Iterator[str]:
    decision = verdict.decision
    yield from _labelled("category", [f"{decision.category}{_certainty(verdict)}"])
    if decision.rule == NO_RULE:
        yield from _labelled("decided by", ["no rule: there is no evidence for any category"])
    else:
        yield from _labelled("decided by", [f"{decision.rule}: {decision.text}"])
    yield from _labelled("the job", [verdict.job] if verdict.job else [])
    if verdict.is_wrong_when:
        yield from _labelled("evidence", [f"{decision.evidence}: {verdict.follows_from}"])
        yield from _labelled("wrong when", [verdict.is_wrong_when])
    against = [other for other in verdict.others if other.category != decision.category]
    nothing = ["no other rule gives another category"]
    yield from _labelled("against", [f"{o.category}, by {_opinion_line(o)}" for o in against] or nothing)


def _certainty(verdict: CategoryVerdict) -> str:
    """Say how sure the category is, with its probability where it is no fact."""
    if verdict.probability is None:
        return ""
    probability = "" if verdict.probability == 1 else f", {100 * verdict.probability:.0f} %"
    return f", {verdict.certainty}{probability}"


def _opinion_line(opinion: Opinion) -> str:
    return f"{opinion.rule} ({opinion.evidence}): {opinion.text}"


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
