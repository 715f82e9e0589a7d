"""An explanation of an allocation as text: the first allocation in full, the others in a line each."""

from collections.abc import Iterable, Iterator

from snapconv.answers.explanation import Explanation, Values, parse_question
from snapconv.classification.categories import NO_RULE
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.units import counted, device_name, format_bytes, format_duration_us, optional
from snapconv.writers.text.moment import pool_shown

_LABEL_WIDTH = 12
_MANY = 20
# A label, and the lines beside it.
_Row = tuple[str, Iterable[str]]


def explanation_lines(found: Explanation, *, whole_stack: bool = False) -> Iterator[str]:
    """Write the answer for a person."""
    first, *others = found.allocations
    at_peak = "live at the peak" if first["lifetime"]["is_live_at_peak"] else "not live at the peak"
    named = f" {first['name'].replace('#', ', tensor ')}" if first["name"] else ""
    category = first["verdict"]["decision"]["category"]
    size = format_bytes(first["block_bytes"])
    yield (
        f"{first['address']} on {device_name(first['device'])}: {category}{named}, {size}, "
        f"{at_peak}"
    )
    event, _ = parse_question(found.question)
    for name, does in (("free_requested", "frees it"), ("free_completed", "makes it reusable")):
        if event is not None and (first["lifetime"][name] or {}).get("event") == event:
            yield f"  event {event} {does}"
    for label, lines in _rows(first, whole_stack=whole_stack):
        for number, line in enumerate(lines):
            yield f"  {'' if number else label:<{_LABEL_WIDTH}}{line}"
    if found.n_allocations > 1:
        n_others = found.n_allocations - 1
        yield f"{counted(n_others, 'more allocation')} here; explain one by its event:"
        yield from (f"  {_in_a_line(explained)}" for explained in others[:_MANY])
        if n_others > len(others[:_MANY]):
            yield f"  and {n_others - len(others[:_MANY])} earlier ones"


def _rows(explained: Values, *, whole_stack: bool) -> Iterator[_Row]:
    requested = explained["requested_bytes"]
    block = explained["block_bytes"]
    place = explained["place"]
    block_shown = (
        f"{'' if explained['is_exact'] else 'at least '}{format_bytes(block)} ({block} bytes)"
    )
    yield "size", [f"requested {format_bytes(requested)} ({requested} bytes), block {block_shown}"]
    yield (
        "place",
        [f"{_segment(place['segment'])}; {pool_shown(place['pool'])}; stream {place['stream']}"],
    )
    yield from _life(explained["lifetime"])
    sources = ("", "by the allocator, ")
    annotations = explained["annotations"]
    yield (
        "annotations",
        [f"{a['text']} ({sources[a['is_internal']]}at event {a['event']})" for a in annotations],
    )
    yield from _code(explained["origin"])
    if whole_stack:
        for label, stack in (("stack", "stack"), ("free stack", "free_stack")):
            frames = explained["origin"][stack]
            yield (
                label,
                [f"{' *'[frame['is_project']]} {_frame(frame)}" for frame in frames]
                or ["  no frames"],
            )
    yield from _category(explained["verdict"])


def _segment(segment: Values | None) -> str:
    if segment is None:
        return "segment not known"
    freed = optional(", given back at event {}", segment["freed_event"])
    return f"segment {segment['address']} of {format_bytes(segment['total_bytes'])}{freed}"


def _life(lifetime: Values) -> Iterator[_Row]:
    allocated = lifetime["allocated"]
    requested = lifetime["free_requested"]
    completed = lifetime["free_completed"]
    end = lifetime["end_event"]
    yield "allocated", [_event(allocated) if allocated else "before the trace begins"]
    if requested:
        yield "freed", [_event(requested)]
    if completed:
        if completed != requested:
            yield "reusable", [_event(completed)]
    elif lifetime["is_live_at_dump"]:
        is_pending = lifetime["is_pending_at_dump"]
        if not requested:
            yield (
                "freed",
                ["before the trace begins" if is_pending else "not before the dump: still in use"],
            )
        if requested or is_pending:
            yield "reusable", ["not before the dump: a stream still uses it"]
    elif not requested or end != requested["event"]:
        yield "reusable", [f"by event {end}; the trace lacks the event itself"]
    at_least = "" if allocated else "at least "
    lasted = (
        "" if lifetime["in_use_us"] is None else f"{format_duration_us(lifetime['in_use_us'])}, "
    )
    yield "in use for", [f"{at_least}{lasted}{counted(lifetime['in_use_events'], 'event')}"]


def _event(found: Values) -> str:
    after = found["after_us"]
    phase = found["phase"]
    when = "" if after is None else f", {format_duration_us(after)} into the trace"
    phase = "phase unknown" if phase == "unknown" else phase
    iteration = optional(", iteration {}", found["iteration"])
    return f"event {found['event']}{when}{iteration}, {phase}"


def _code(origin: Values) -> Iterator[_Row]:
    stack = origin["stack"]
    library = f"{LIBRARY_ONLY}: {counted(len(stack), 'frame')}" if stack else NO_STACK
    mine, freed_in = (
        [_frame(frame) for frame in origin[name] if frame["is_project"]]
        for name in ("stack", "free_stack")
    )
    mine = mine or [library]
    yield "operation", [origin["operation"] or "not known"]
    yield "code", mine
    yield "freed in", ["the same lines"] if freed_in == mine else freed_in


def _frame(frame: Values) -> str:
    if frame["file"] in ("", "??"):  # of C++, where there is no debug information
        return str(frame["function"])
    return f"{frame['file']}{optional(':{}', frame['line'])} in {frame['function']}"


def _category(verdict: Values) -> Iterator[_Row]:
    decision = verdict["decision"]
    certainty = ""
    if verdict["probability"] is not None:
        probability = (
            "" if verdict["probability"] == 1 else f", {100 * verdict['probability']:.0f} %"
        )
        unless = optional("; wrong only if {}", verdict["is_wrong_when"])
        certainty = f": {verdict['certainty']}{probability}{unless}"
    yield "category", [f"{decision['category']}{certainty}"]
    no_rule = "no rule: there is no evidence for any category"
    rule = decision["rule"]
    yield "decided by", [no_rule if rule == NO_RULE else f"{_reason(decision)} [{rule}]"]
    yield "the job", [verdict["job"]] if verdict["job"] else []
    if verdict["is_wrong_when"]:
        yield "evidence", [f"{decision['evidence']}: {verdict['follows_from']}"]
    against = [
        f"{other['category']}, by {other['evidence']}: {_reason(other)} [{other['rule']}]"
        for other in verdict["others"]
        if other["category"] != decision["category"]
    ]
    yield "against", against or ["no rule disagrees"]


def _reason(opinion: Values) -> str:
    return f"{opinion['reason']}{optional(' (torch {})', opinion['torch'])}"


def _in_a_line(explained: Values) -> str:
    lifetime = explained["lifetime"]
    category = explained["verdict"]["decision"]["category"]
    allocated = lifetime["allocated"]
    requested = lifetime["free_requested"]
    begun = f"#{allocated['event']}" if allocated else "before the trace"
    freed = requested["event"] if requested else lifetime["end_event"]
    ended = "the dump" if freed is None else f"#{freed}"
    number = allocated and allocated["iteration"]
    iteration = optional(", iteration {}", number)
    peak = ", live at the peak" if lifetime["is_live_at_peak"] else ""
    size = format_bytes(explained["block_bytes"])
    operation = explained["origin"]["operation"]
    life = f"{explained['address']} {begun} to {ended}{iteration}"
    purpose = f"{category}, {size}, {operation or 'operation not known'}{peak}"
    return f"{device_name(explained['device'])} {life}: {purpose}"
