"""Explanations of allocations as text: the first one in full, every other one in a line."""

from collections.abc import Iterable, Iterator

from snapconv.answers.explanation import Explanation, Values, parse_question
from snapconv.answers.kept_for_backward import FREES
from snapconv.answers.peak import pool_shown
from snapconv.classification.categories import NO_RULE
from snapconv.stacks.paths import UNKNOWN_FILES
from snapconv.stacks.project_lines import LIBRARY_ONLY, NO_STACK
from snapconv.units import counted, device_name, format_bytes, format_duration_us, optional

_LABEL_WIDTH = 12
_MANY = 20
_NOT_IN_TRACE = "before the trace begins"
# A label, and the lines beside it.
_Row = tuple[str, Iterable[str]]


def explanation_lines(
    explanation: Explanation, *, whole_stack: bool = False
) -> Iterator[str]:
    """Write the answer for a person."""
    first = explanation.allocations[0]
    yield _headline(first)
    event, _ = parse_question(explanation.question)
    for name, effect in (
        ("free_requested", "frees it"),
        ("free_completed", "makes it reusable"),
    ):
        free = first["lifetime"][name]
        if event is not None and free and free["event"] == event:
            yield f"  event {event} {effect}"
    for label, lines in _rows(first, whole_stack=whole_stack):
        for line in lines:
            yield f"  {label:<{_LABEL_WIDTH}}{line}"
            label = ""
    n_further = explanation.n_allocations - 1
    if n_further:
        further = explanation.allocations[1 : _MANY + 1]
        yield f"{counted(n_further, 'more allocation')} here; explain one by its event:"
        for explained in further:
            yield f"  {_summary_line(explained)}"
        if n_further > len(further):
            yield f"  and {n_further - len(further)} earlier ones"


def _headline(explained: Values) -> str:
    tensor = ""
    if explained["name"]:
        tensor = f" {explained['name'].replace('#', ', tensor ')}"
    allocation = f"{explained['address']} on {device_name(explained['device'])}"
    category = explained["verdict"]["decision"]["category"]
    size = format_bytes(explained["block_bytes"])
    liveness = "live" if explained["lifetime"]["is_live_at_peak"] else "not live"
    return f"{allocation}: {category}{tensor}, {size}, {liveness} at the peak"


def _rows(explained: Values, *, whole_stack: bool) -> Iterator[_Row]:
    requested = explained["requested_bytes"]
    block = explained["block_bytes"]
    memory = explained["place"]
    request_shown = f"{format_bytes(requested)} ({requested} bytes)"
    lower_limit = "" if explained["is_exact"] else "at least "
    block_shown = f"{lower_limit}{format_bytes(block)} ({block} bytes)"
    yield "size", [f"requested {request_shown}, block {block_shown}"]
    segment = _segment(memory["segment"])
    yield "place", [f"{segment}; {pool_shown(memory['pool'])}; stream {memory['stream']}"]
    yield from _life(explained["lifetime"])
    yield "annotations", [_annotation(row) for row in explained["annotations"]]
    yield "tensor", [_tensor(row) for row in explained["tensors"]]
    yield from _code(explained["origin"])
    if whole_stack:
        for stack in ("stack", "free_stack"):
            frames = explained["origin"][stack]
            lines = [f"{' *'[frame['is_project']]} {_frame(frame)}" for frame in frames]
            yield stack.replace("_", " "), lines or ["  no frames"]
    yield from _category(explained["verdict"])
    yield "kept by", list(_keepers(explained["kept_for_backward"]))


def _keepers(keepers: list[Values]) -> Iterator[str]:
    """Yield the layers that keep a block for backward, and whether freezing them frees it."""
    is_shared = len(keepers) > 1 and all(keeper["freezing"] == FREES for keeper in keepers)
    for keeper in keepers:
        operation = keeper["operation"] or keeper["layer"] or "an operation"
        effect = None if is_shared else keeper["freezing"]
        freezing = optional("; freezing this layer {} the block", effect)
        yield f"{operation}{optional(' of {}', keeper['module'])}, for backward{freezing}"
    if is_shared:
        yield "freezing all of these layers frees the block; one alone does not"


def _annotation(annotation: Values) -> str:
    source = "by the allocator, " if annotation["is_internal"] else ""
    return f"{annotation['text']} ({source}at event {annotation['event']})"


def _tensor(tensor: Values) -> str:
    operation = optional(", returned by {}", tensor["operation"])
    return f"{tensor['shape']} of {tensor['dtype']}{operation}"


def _segment(segment: Values | None) -> str:
    if segment is None:
        return "segment not known"
    freed = optional(", given back at event {}", segment["freed_event"])
    return f"segment {segment['address']} of {format_bytes(segment['total_bytes'])}{freed}"


def _life(lifetime: Values) -> Iterator[_Row]:
    allocated = lifetime["allocated"]
    yield "allocated", [_event(allocated) if allocated else _NOT_IN_TRACE]
    yield from _free(lifetime)
    lower_limit = "" if allocated else "at least "
    duration = ""
    if lifetime["in_use_us"] is not None:
        duration = f"{format_duration_us(lifetime['in_use_us'])}, "
    n_events = counted(lifetime["in_use_events"], "event")
    yield "in use for", [f"{lower_limit}{duration}{n_events}"]


def _free(lifetime: Values) -> Iterator[_Row]:
    """Yield when the block was freed, and when it could be used again."""
    requested = lifetime["free_requested"]
    completed = lifetime["free_completed"]
    end = lifetime["end_event"]
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
                [_NOT_IN_TRACE if is_pending else "not before the dump: still in use"],
            )
        if requested or is_pending:
            yield "reusable", ["not before the dump: a stream still uses it"]
    elif not requested or end != requested["event"]:
        yield "reusable", [f"by event {end}; the trace lacks the event itself"]


def _event(event: Values) -> str:
    after = event["after_us"]
    phase = event["phase"]
    time = "" if after is None else f", {format_duration_us(after)} into the trace"
    phase = "phase unknown" if phase == "unknown" else phase
    iteration = optional(", iteration {}", event["iteration"])
    return f"event {event['event']}{time}{iteration}, {phase}"


def _code(origin: Values) -> Iterator[_Row]:
    stack = origin["stack"]
    library = f"{LIBRARY_ONLY}: {counted(len(stack), 'frame')}" if stack else NO_STACK
    lines = _project_frames(stack) or [library]
    free_lines = _project_frames(origin["free_stack"])
    yield "operation", [origin["operation"] or "not known"]
    yield "code", lines
    yield "freed in", ["the same lines"] if free_lines == lines else free_lines


def _project_frames(stack: Iterable[Values]) -> list[str]:
    return [_frame(frame) for frame in stack if frame["is_project"]]


def _frame(frame: Values) -> str:
    if frame["file"] in UNKNOWN_FILES:
        return str(frame["function"])
    source = optional(": {}", frame["source"])
    return f"{frame['file']}{optional(':{}', frame['line'])} in {frame['function']}{source}"


def _category(verdict: Values) -> Iterator[_Row]:
    decision = verdict["decision"]
    probability = verdict["probability"]
    certainty = ""
    if probability is not None:
        percent = "" if probability == 1 else f", {100 * probability:.0f} %"
        exception = optional("; wrong only if {}", verdict["is_wrong_when"])
        certainty = f": {verdict['certainty']}{percent}{exception}"
    yield "category", [f"{decision['category']}{certainty}"]
    no_rule = "no rule: there is no evidence for any category"
    rule = decision["rule"]
    yield "decided by", [no_rule if rule == NO_RULE else f"{_reason(decision)} [{rule}]"]
    yield "the job", [verdict["job"]] if verdict["job"] else []
    if verdict["is_wrong_when"]:
        yield "evidence", [f"{decision['evidence']}: {verdict['follows_from']}"]
    opponents = []
    for opinion in verdict["others"]:
        if opinion["category"] != decision["category"]:
            evidence = f"by {opinion['evidence']}: {_reason(opinion)} [{opinion['rule']}]"
            opponents.append(f"{opinion['category']}, {evidence}")
    yield "against", opponents or ["no rule disagrees"]


def _reason(opinion: Values) -> str:
    return f"{opinion['reason']}{optional(' (torch {})', opinion['torch'])}"


def _summary_line(explained: Values) -> str:
    lifetime = explained["lifetime"]
    category = explained["verdict"]["decision"]["category"]
    allocated = lifetime["allocated"]
    requested = lifetime["free_requested"]
    begin = f"#{allocated['event']}" if allocated else "before the trace"
    end_event = requested["event"] if requested else lifetime["end_event"]
    end = "the dump" if end_event is None else f"#{end_event}"
    iteration = optional(", iteration {}", allocated and allocated["iteration"])
    peak = ", live at the peak" if lifetime["is_live_at_peak"] else ""
    size = format_bytes(explained["block_bytes"])
    operation = explained["origin"]["operation"]
    life = f"{explained['address']} {begin} to {end}{iteration}"
    purpose = f"{category}, {size}, {operation or 'operation not known'}{peak}"
    return f"{device_name(explained['device'])} {life}: {purpose}"
