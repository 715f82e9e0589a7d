"""Lines of text for ``snapconv oom``: a failed allocation, explained."""

from collections.abc import Iterator, Sequence
from operator import itemgetter

from snapconv.answers.oom.failed_allocation import FailedAllocation, OutOfMemory
from snapconv.answers.oom.remedies import Remedies, Remedy
from snapconv.answers.oom.verdict import OomVerdict
from snapconv.answers.peak import WAITING_LABEL, pool_shown
from snapconv.units import (
    counted,
    device_name,
    format_bytes,
    format_share,
    optional,
)
from snapconv.writers.text.moment import line_rows, outside_line, trace_position
from snapconv.writers.text.size_rows import (
    history_lines,
    line_shown,
    most_rows,
    next_line,
    size_row,
)

_N_CALLERS, _N_PURPOSES, _N_HOLDERS, _N_MODULES = 2, 4, 3, 1
# The word for a remedy that is enough, for one that serves only the request, and for any other.
_WORDS = ((True, "yes"), (None, "this request only"), (False, "no "))
# Adam keeps weights, gradients, two states and a step's temporaries: each as large as the weights.
_ADAM_COPIES = 5


def oom_lines(
    answer: OutOfMemory, remedies: Remedies | None, *, file: str
) -> Iterator[str]:
    """Explain why a request failed and what would have helped."""
    state = answer.state
    name = device_name(state.device)
    request = answer.request
    advice = next_line("advise", file)
    if request and answer.verdict:
        failure = f"failed allocation 1 of {answer.n_failed}, event {state.event}"
        yield f"{name}  out of memory: {answer.verdict.cause} ({failure})"
        yield from verdict_lines(answer.verdict)
        yield from _request_lines(request)
    else:
        allocated = format_bytes(state.allocated_bytes)
        yield f"{name}  no failed allocation in the file; {allocated} allocated at {state.moment}"
        yield f"  {trace_position(state)}"
    yield from _memory_lines(answer)
    yield from _holder_lines(answer)
    if remedies:
        yield from _remedy_lines(remedies)
    if request and remedies and remedies.why_none:
        yield f"{next_line('fragmentation', file)} --at oom  (which lines keep the free memory)"
        if answer.inside.n_bytes < request.block_bytes:
            yield f"{advice}  (what to change, by bytes alone)"
    yield from history_lines(state.history_verdict)
    if not request:
        if state.n_events:
            yield f"{advice}  (what to change)"
        yield "  if a run failed, explain its error text: snapconv oom --message LOG"


def verdict_lines(verdict: OomVerdict) -> Iterator[str]:
    """Show the verdict in a sentence, and its reason."""
    inferred = " (inferred)" if verdict.is_inferred else ""
    yield f"  {verdict.sentence}{inferred}"
    yield f"    {verdict.reason}"


def _request_lines(request: FailedAllocation) -> Iterator[str]:
    size = format_bytes(request.block_bytes)
    segment = format_bytes(request.segment_bytes)
    requester = (
        "the program" if request.operation in ("", "unknown") else f"{request.operation}()"
    )
    yield f"  {requester} requested {size}; the allocator needed {segment} more from the GPU"
    pool = "default pool (assumed)" if request.pool is None else pool_shown(request.pool)
    module = f"; {_module_noun(request.module)} {request.module}" if request.module else ""
    yield f"    {pool}, stream {request.stream}{module}"
    for line in request.lines[:_N_CALLERS] or (None,):
        yield f"    {line_shown(line, has_stack=request.has_stack)}"


def _memory_lines(answer: OutOfMemory) -> Iterator[str]:
    state = answer.state
    memory = state.memory
    inside = answer.inside
    yield "  memory then"
    yield size_row(state.allocated_bytes, "in use")
    if state.waiting_bytes:
        yield size_row(state.waiting_bytes, WAITING_LABEL)
    if "reserved" not in state.at_least:
        blocks = counted(inside.n_pieces, "block")
        largest = format_bytes(inside.largest_bytes)
        yield size_row(
            inside.n_bytes, f"reserved and free: {blocks}, the largest {largest}"
        )
    if memory.free_bytes is not None:
        yield size_row(memory.free_bytes, "free on the device")
    yield from outside_line(memory, state.device)


def _holder_lines(answer: OutOfMemory) -> Iterator[str]:
    """Show what holds the memory, each time all of it: by purpose, by line, and by module."""
    state = answer.state
    total_bytes = state.allocated_bytes + state.waiting_bytes
    purposes = []
    for row in state.summary_rows:
        certainty = optional(" ({})", row.certainty)
        purposes.append((row.block_bytes, f"{row.category}{certainty}"))
    purposes.append((state.waiting_bytes, WAITING_LABEL))
    purposes.sort(key=itemgetter(0), reverse=True)
    lines, line_sums = line_rows(state)
    modules = [(row.block_bytes, row.module) for row in state.modules]
    yield from _share_rows("purpose", purposes[: most_rows(_N_PURPOSES)], total_bytes)
    yield from _share_rows("line", lines[: most_rows(_N_HOLDERS)] + line_sums, total_bytes)
    yield from _share_rows("", modules[: most_rows(_N_MODULES)], total_bytes)


def _share_rows(noun: str, rows: list[tuple[int, str]], total_bytes: int) -> Iterator[str]:
    """Show the holders with their shares, largest first, and the sum of all others."""
    shown = [row for row in rows if row[0]]
    if not shown:
        return
    shown.sort(key=itemgetter(0), reverse=True)
    yield f"  held by {noun or _module_noun(shown[0][1])}"
    hidden_bytes = total_bytes - sum(n_bytes for n_bytes, _ in shown)
    if hidden_bytes:
        shown.append((hidden_bytes, "others"))
    for n_bytes, text in shown:
        yield size_row(n_bytes, f"{format_share(n_bytes, total_bytes):>7}  {text}")


def _module_noun(name: str) -> str:
    """Tell a recorded path of modules from a call path, whose lines have numbers."""
    return "call path" if ":" in name else "module"


def _remedy_lines(remedies: Remedies) -> Iterator[str]:
    if remedies.why_none:
        yield "  remedies: unknown"
        yield f"    {remedies.why_none}"
        return
    yield from _must_go_lines(remedies)
    n_events = counted(remedies.n_events, "event")
    yield f"  remedies tried (by replaying the last {n_events} with 1 % kept free)"
    for is_enough, word in _WORDS:
        yield from _tried_lines(
            word, [row for row in remedies.tried if row.is_enough is is_enough]
        )
        if is_enough and remedies.card_bytes is not None:
            size = format_bytes(remedies.card_bytes)
            yield f"    yes  a card with {size} for torch: the whole step fits as it is"
    if remedies.is_optimizer_assumed:
        yield (
            "    assumed: for each weight the optimizer keeps three states and two "
            "temporaries at most"
        )
    served = [
        remedy for remedy in remedies.tried if remedy.is_served and remedy.assumptions
    ]
    if served:
        yield f"    estimated: {served[0].assumptions[0]}"


def _tried_lines(word: str, remedies: Sequence[Remedy]) -> Iterator[str]:
    """Show remedies that are equally good; those with one explanation share a line."""
    names_by_text: dict[str, list[str]] = {}
    for remedy in remedies:
        instruction = optional(" ({})", remedy.how) if remedy.is_enough else ""
        text = f"{remedy.detail}{instruction}"
        names_by_text.setdefault(text, []).append(remedy.name)
    for text, names in names_by_text.items():
        yield f"    {word}  {'; '.join(names)}: {text}"


def _must_go_lines(remedies: Remedies) -> Iterator[str]:
    """Show how much must be freed at least, and remedies where a smaller batch does not help."""
    if remedies.is_setup:
        yield (
            "  a smaller batch does not help while the model is put on the device: use "
            "fewer bits for each"
        )
        yield "    weight, shards (FSDP), offloading, or a larger card"
    if remedies.model_bytes:
        model = format_bytes(remedies.model_bytes)
        step = format_bytes(_ADAM_COPIES * remedies.model_bytes)
        yield f"  weights and buffers take {model} in all; if all are trained, a step of Adam needs"
        yield f"    {step} for weights, gradients, states and temporaries, plus activations"
    if remedies.least_bytes:
        yield f"  at least {format_bytes(remedies.least_bytes)} must be freed for this request"
    if remedies.to_come_bytes:
        size = format_bytes(remedies.to_come_bytes)
        yield (
            f"  after it, gradients, optimizer states and the step's temporaries need "
            f"at most {size} more"
        )
