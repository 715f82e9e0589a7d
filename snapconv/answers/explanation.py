"""One allocation explained: the answer of ``snapconv explain``, as data, as text and as plain values.

All values are texts or numbers already; nothing is looked up here. The fields are those of the JSON too:
docs/reference/json.md describes them.
"""

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass

from snapconv.classification.categories import NO_RULE
from snapconv.units import counted, device_name, format_bytes, format_duration_us

_LABEL_WIDTH = 12
_MANY = 20


@dataclass(frozen=True, slots=True)
class LifetimeEvent:
    """An event of the allocation's lifetime; ``after_us`` counts from the first event of the trace."""

    event: int
    time_us: int | None
    after_us: int | None
    iteration: int
    phase: str

    def __str__(self) -> str:
        when = "" if self.after_us is None else f", {format_duration_us(self.after_us)} into the trace"
        phase = "phase not known" if self.phase == "unknown" else self.phase
        return f"event {self.event}{when}, iteration {self.iteration}, {phase}"


@dataclass(frozen=True, slots=True)
class Opinion:
    """The category that one rule gives it; ``torch``: the releases in which its frames were seen."""

    category: str
    evidence: str
    rule: str
    reason: str
    torch: str | None

    @property
    def text(self) -> str:
        """The reason as a sentence, with the releases of torch where they matter."""
        return self.reason + (f" (torch {self.torch})" if self.torch else "")


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; ``file`` is below the project root if it is the project's, ``line`` None: not known."""

    function: str
    file: str
    line: int | None
    is_project: bool

    def __str__(self) -> str:
        if self.file in ("", "??"):  # of C++, where there is no debug information
            return self.function
        return f"{self.file}{'' if self.line is None else f':{self.line}'} in {self.function}"


@dataclass(frozen=True, slots=True)
class StackRole:
    """A role of a stack, the rule that found it, and the innermost frame that the rule matched."""

    role: str
    rule: str
    reason: str
    torch: str | None
    frame: Frame | None


@dataclass(frozen=True, slots=True)
class Segment:
    """The segment that the block is in; ``freed_event`` is where it was given back, None: never."""

    address: str
    total_bytes: int
    freed_event: int | None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the block lies."""

    segment: Segment | None
    pool: tuple[int, int] | None
    stream: int


@dataclass(frozen=True, slots=True)
class Lifetime:
    """From the alloc to the block's end; None where there is no such event in the trace.

    ``end_event``: where its block became free, also where the trace has lost that event. ``in_use_us`` and
    ``in_use_events`` end with the request to free.
    """

    allocated: LifetimeEvent | None
    free_requested: LifetimeEvent | None
    free_completed: LifetimeEvent | None
    end_event: int | None
    in_use_us: int | None
    in_use_events: int
    is_live_at_peak: bool
    is_live_at_dump: bool


@dataclass(frozen=True, slots=True)
class Annotation:
    """A text that the program, or the allocator itself (``is_internal``), attached to it at an event."""

    event: int
    text: str
    is_internal: bool


@dataclass(frozen=True, slots=True)
class CategoryVerdict:
    """The category, and the evidence for and against it.

    ``others`` are the opinions of the rules that did not decide, in the order of evaluation.
    """

    decision: Opinion
    follows_from: str
    is_wrong_when: str
    others: tuple[Opinion, ...]


@dataclass(frozen=True, slots=True)
class Origin:
    """The code that allocated and freed it; stacks innermost first."""

    operation: str | None
    operation_from: str
    stack: tuple[Frame, ...]
    free_stack: tuple[Frame, ...]
    stack_roles: tuple[StackRole, ...]
    free_stack_roles: tuple[StackRole, ...]


@dataclass(frozen=True, slots=True)
class AllocationExplanation:
    """One allocation; ``id`` is its row in the table snapconv_allocations.

    ``name`` is that of the weight in ``weight_entries``, also for its gradient and its optimizer states.
    """

    device: int
    id: int
    address: str
    name: str | None
    requested_bytes: int
    block_bytes: int
    is_exact: bool
    place: Place
    lifetime: Lifetime
    annotations: tuple[Annotation, ...]
    origin: Origin
    verdict: CategoryVerdict


@dataclass(frozen=True, slots=True)
class Explanation:
    """The answer: the requested allocation, or all that had the address, the likeliest one first.

    ``n_allocations`` also counts those beyond the limit, which are not explained.
    """

    question: str
    n_allocations: int
    allocations: tuple[AllocationExplanation, ...]

    def values(self) -> dict[str, object]:
        """Plain values for JSON."""
        return asdict(self)

    def lines(self, *, whole_stack: bool = False) -> Iterator[str]:
        """The answer for a person: the first allocation in full, the others in a line each."""
        first, *others = self.allocations
        yield from _allocation_lines(first, whole_stack=whole_stack)
        if self.n_allocations > 1:
            n_others = self.n_allocations - 1
            yield f"{counted(n_others, 'more allocation')} here; explain one by its event:"
            for explained in others[:_MANY]:
                yield f"  {_in_a_line(explained)}"
            if n_others > len(others[:_MANY]):
                yield f"  and {n_others - len(others[:_MANY])} earlier ones"


def _allocation_lines(explained: AllocationExplanation, *, whole_stack: bool) -> Iterator[str]:
    at_peak = "live at the peak" if explained.lifetime.is_live_at_peak else "not live at the peak"
    category, size = explained.verdict.decision.category, format_bytes(explained.block_bytes)
    named = f" {explained.name}" if explained.name else ""
    yield f"{explained.address} on {device_name(explained.device)}: {category}{named}, {size}, {at_peak}"
    yield from _labelled("size", _size_lines(explained))
    yield from _labelled("place", [_place(explained.place)])
    yield from _lifetime_lines(explained.lifetime)
    yield from _labelled("annotations", map(_annotation_text, explained.annotations))
    yield from _code_lines(explained.origin, whole_stack=whole_stack)
    yield from _category_lines(explained.verdict)
    yield from _role_lines(explained.origin)


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
    pool = "pool not known" if place.pool is None else f"pool {place.pool}"
    return f"{where}; {pool}; stream {place.stream}"


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
        mine = ["no frames were recorded"]
    elif not mine:
        mine = [f"no frame of the project among {counted(len(origin.stack), 'frame')}"]
    yield from _labelled("code", mine)
    freed_in = [str(frame) for frame in origin.free_stack if frame.is_project]
    yield from _labelled("freed in", ["the same lines"] if freed_in == mine else freed_in)
    if whole_stack:
        for label, stack in (("stack", origin.stack), ("free stack", origin.free_stack)):
            frames = [f"{'*' if frame.is_project else ' '} {frame}" for frame in stack]
            yield from _labelled(label, frames or ["  no frames"])


def _category_lines(verdict: CategoryVerdict) -> Iterator[str]:
    decision = verdict.decision
    yield from _labelled("category", [decision.category])
    if decision.rule == NO_RULE:
        yield from _labelled("decided by", ["no rule: there is no evidence for any category"])
    else:
        yield from _labelled("decided by", [f"{decision.rule}: {decision.text}"])
    if verdict.is_wrong_when:
        yield from _labelled("evidence", [f"{decision.evidence}: {verdict.follows_from}"])
        yield from _labelled("wrong when", [verdict.is_wrong_when])
    agree = [other for other in verdict.others if other.category == decision.category]
    against = [other for other in verdict.others if other.category != decision.category]
    yield from _labelled("agrees", map(_opinion_line, agree))
    nothing = ["no other rule gives another category"]
    yield from _labelled("against", [f"{o.category}, by {_opinion_line(o)}" for o in against] or nothing)


def _role_lines(origin: Origin) -> Iterator[str]:
    for label, roles in (("stack roles", origin.stack_roles), ("free roles", origin.free_stack_roles)):
        yield from _labelled(
            label, [f"{role.role}, by {role.rule}: {role.frame or role.reason}" for role in roles]
        )


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
