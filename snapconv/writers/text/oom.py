"""Lines of text for ``snapconv oom``: a failed allocation, or torch's own message, explained."""

from collections.abc import Iterator
from dataclasses import asdict
from operator import itemgetter

from snapconv.answers.oom.failed_allocation import FailedAllocation, OutOfMemory
from snapconv.answers.oom.message import MemorySummary, MessageAnswer
from snapconv.answers.oom.message_kinds import SUMMARY
from snapconv.answers.oom.remedies import Remedies
from snapconv.answers.oom.verdict import OomCause, OomVerdict
from snapconv.answers.peak import WAITING_LABEL
from snapconv.units import counted, device_name, format_bytes, format_share, printable
from snapconv.writers.text.moment import outside_line, place_of, pool_shown, rows_by_line
from snapconv.writers.text.size_rows import history_lines, most_rows, next_line, size_row, where

_N_CALLERS, _N_PURPOSES, _N_HOLDERS, _N_MODULES, _N_DEVICES = 2, 4, 3, 1, 15
_OTHER_TITLES = {
    OomCause.HOST: "out of memory on the host",
    OomCause.OTHER_MEMORY: "not the device's memory",
    OomCause.WARNING: "no failure",
}
# By whether a remedy is enough: the word for it.
_WORDS = ((True, "yes"), (None, "this request only"), (False, "no "))
# Weights, gradients, two states and the temporaries of a step, each as large as the weights.
_OF_ADAM = 5
# Figures of a message, and the one whose row says the same where the text has it.
_MESSAGE_ROWS = (
    ("tried_bytes", "requested", ""),
    ("free_bytes", "free on the device", ""),
    ("allocated_bytes", "allocated by torch", ""),
    ("active_bytes", "  with what streams still use", ""),
    ("unallocated_bytes", "reserved by torch and free", ""),
    ("private_pool_bytes", "free in private pools, for CUDA graphs or MemPools only", ""),
    ("reserved_bytes", "reserved by torch", "unallocated_bytes"),
    ("outside_bytes", "not torch's: context, libraries, NCCL, other processes", "metal_bytes"),
    ("metal_bytes", "other Metal memory of the process", ""),
    ("own_outside_bytes", "  of it this process's own", ""),
    ("process_bytes", "held by this process", "own_outside_bytes"),
    ("allowed_bytes", "allowed", ""),
    ("total_bytes", "the whole device", ""),
)
# Now and at most, each.
_SUMMARY_ROWS = (
    ("allocated", "allocated by torch"),
    ("active", "active: allocated, or freed and waiting for a stream"),
    ("requested", "requested by the program, not rounded"),
    ("reserved", "reserved by torch"),
)


def oom_lines(found: OutOfMemory, remedies: Remedies | None, *, file: str) -> Iterator[str]:
    """Explain why a request failed and what would have helped."""
    name = device_name(found.state.device)
    state = found.state
    request = found.request
    advice = next_line("advise", file)
    if request and found.verdict:
        which = f"failed allocation 1 of {found.n_failed}, event {state.event}"
        yield f"{name}  out of memory: {found.verdict.cause} ({which})"
        yield from verdict_lines(found.verdict)
        yield from _request_lines(request)
    else:
        now = format_bytes(state.allocated_bytes)
        yield f"{name}  no failed allocation in the file; {now} allocated at {state.moment}"
        yield f"  {place_of(state)}"
    yield from _memory_lines(found)
    yield from _holder_lines(found)
    if remedies:
        yield from _remedy_lines(remedies)
    if request and remedies and remedies.why_none:
        yield f"{next_line('fragmentation', file)} --at oom  (which lines keep the free memory)"
        if found.inside.n_bytes < request.block_bytes:
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
    who = "the program" if request.operation in ("", "unknown") else f"{request.operation}()"
    yield f"  {who} requested {size}; the allocator needed {segment} more from the GPU"
    pool = "default pool (assumed)" if request.pool is None else pool_shown(request.pool)
    module = f"; {_module_noun(request.module)} {request.module}" if request.module else ""
    yield f"    {pool}, stream {request.stream}{module}"
    for line in request.lines[:_N_CALLERS] or (None,):
        yield f"    {where(line, has_stack=request.has_stack)}"


def _memory_lines(found: OutOfMemory) -> Iterator[str]:
    state = found.state
    memory = found.state.memory
    inside = found.inside
    yield "  memory then"
    yield size_row(state.allocated_bytes, "in use")
    if state.waiting_bytes:
        yield size_row(state.waiting_bytes, WAITING_LABEL)
    if "reserved" not in state.at_least:
        blocks = (
            f"{counted(inside.n_pieces, 'block')}, the largest {format_bytes(inside.largest_bytes)}"
        )
        yield size_row(inside.n_bytes, f"reserved and free: {blocks}")
    if memory.free_bytes is not None:
        yield size_row(memory.free_bytes, "free on the device")
    yield from outside_line(memory, state.device)


def _holder_lines(found: OutOfMemory) -> Iterator[str]:
    """Show who holds the memory, each time all of it: by purpose, by line, and by module."""
    state = found.state
    whole = found.state.allocated_bytes + found.state.waiting_bytes
    purposes = [
        (row.block_bytes, f"{row.category}{row.certainty and f' ({row.certainty})'}")
        for row in state.summary_rows
    ]
    purposes.append((state.waiting_bytes, WAITING_LABEL))
    purposes.sort(key=itemgetter(0), reverse=True)
    lines, no_lines = rows_by_line(state)
    for noun, rows, rest, n_most in (
        ("purpose", purposes, [], _N_PURPOSES),
        ("line", lines, no_lines, _N_HOLDERS),
        ("", [(row.block_bytes, row.module) for row in state.modules], [], _N_MODULES),
    ):
        shown = sorted(
            filter(itemgetter(0), rows[: most_rows(n_most)] + rest), key=lambda row: -row[0]
        )
        if shown:
            yield f"  held by {noun or _module_noun(shown[0][1])}"
            shown.append((whole - sum(n_bytes for n_bytes, _ in shown), "others"))
        for n_bytes, text in filter(itemgetter(0), shown):
            yield size_row(n_bytes, f"{format_share(n_bytes, whole):>7}  {text}")


def _module_noun(name: str) -> str:
    """Name what a row is: a recorded path of modules, or lines that call each other, which have numbers."""
    return "call path" if ":" in name else "module"


def _remedy_lines(remedies: Remedies) -> Iterator[str]:
    if remedies.why_none:
        yield "  remedies: unknown"
        yield f"    {remedies.why_none}"
        return
    yield from _must_go_lines(remedies)
    how = f"by replaying the last {counted(remedies.n_events, 'event')} with 1 % kept free"
    yield f"  remedies tried ({how})"
    for is_enough, word in _WORDS:
        rows: dict[str, list[str]] = {}
        for remedy in remedies.tried:
            if remedy.is_enough is is_enough:
                end = f" ({remedy.how})" if is_enough and remedy.how else ""
                rows.setdefault(f"{remedy.detail}{end}", []).append(remedy.name)
        yield from (f"    {word}  {'; '.join(names)}: {text}" for text, names in rows.items())
        if is_enough and remedies.card_bytes is not None:
            size = format_bytes(remedies.card_bytes)
            yield f"    yes  a card with {size} for torch: the whole step fits as it is"
    if remedies.is_optimizer_assumed:
        yield (
            "    assumed: for each weight the optimizer keeps three states and two temporaries "
            "at most"
        )
    served = [remedy for remedy in remedies.tried if remedy.is_served]
    assumptions = dict.fromkeys(text for remedy in served for text in remedy.assumptions)
    for text in list(assumptions)[:1]:
        yield f"    estimated: {text}"


def _must_go_lines(remedies: Remedies) -> Iterator[str]:
    """Say how much must be freed at least, and what helps where no change of the batch can."""
    if remedies.is_setup:
        yield (
            "  a smaller batch does not help while the model is put on the device: use fewer "
            "bits for each"
        )
        yield "    weight, shards (FSDP), offloading, or a larger card"
    if remedies.model_bytes:
        model = format_bytes(remedies.model_bytes)
        step = format_bytes(_OF_ADAM * remedies.model_bytes)
        yield f"  weights and buffers take {model} in all; if all are trained, a step of Adam needs"
        yield f"    {step} for weights, gradients, states and temporaries, plus activations"
    if remedies.least_bytes:
        yield f"  at least {format_bytes(remedies.least_bytes)} must be freed for this request"
    if remedies.to_come_bytes:
        size = format_bytes(remedies.to_come_bytes)
        yield (
            f"  after it, gradients, optimizer states and the step's temporaries need at most "
            f"{size} more"
        )


def message_lines(found: MessageAnswer) -> Iterator[str]:
    """Explain a text about memory that ran out; of several devices, the first message of each."""
    for answer in (found, *found.others[:_N_DEVICES]):
        yield from _one_message_lines(answer)
        if answer is found and found.n_messages > 1:
            yield f"  {counted(found.n_messages, 'message')} in the text: this is the first"
        yield f"  next: {answer.next_step}"
    if len(found.others) > _N_DEVICES:
        yield f"--json shows {counted(len(found.others) - _N_DEVICES, 'more device')}"


def _one_message_lines(found: MessageAnswer) -> Iterator[str]:
    """Show what a message says: why memory ran out, its figures, and what is easily misread."""
    message = found.message
    yield _message_title(found)
    if found.verdict:
        yield from verdict_lines(found.verdict)
    elif found.meaning:
        yield f"  {found.meaning}"
    values = asdict(found) | asdict(message)
    if (message.active_bytes or 0) <= (message.allocated_bytes or 0):
        values["active_bytes"] = None  # no stream uses anything else
    rows = [
        (values[name], text) for name, text, other in _MESSAGE_ROWS if values.get(other) is None
    ]
    rows += [(n_bytes, f"process {pid}") for pid, n_bytes in message.other_processes[:_N_DEVICES]]
    yield from (size_row(n_bytes, text) for n_bytes, text in rows if n_bytes is not None)
    for figure in found.figures:
        unit = f" {figure.unit}" if figure.unit in ("tokens", "requests") else ""
        value = (
            format_bytes(int(figure.value)) if figure.unit == "bytes" else f"{figure.value}{unit}"
        )
        yield f"{value:>16}  {figure.noun}"
    if found.summary:
        yield from _summary_lines(found.summary)
    if found.beside:
        yield "  also in the text"
    yield from (f"    {printable(words)}" for words in found.beside)
    yield from (f"  {note}" for note in found.notes)


def _message_title(found: MessageAnswer) -> str:
    """Say what ran out, and where or in whose words."""
    if not found.backend or found.kind == SUMMARY.name:
        return found.kind
    device = "" if found.message.device is None else f" on device {found.message.device}"
    what = _OTHER_TITLES.get(found.cause, f"{found.backend} out of memory{device}")
    rank = f" ({found.rank})" if found.rank else ""
    return f"{what}{rank}: {found.cause if found.verdict else found.kind}"


def _summary_lines(summary: MemorySummary) -> Iterator[str]:
    yield f"  memory summary of device {summary.device}"
    for name, text in _SUMMARY_ROWS:
        n_bytes, peak_bytes = (getattr(summary, f"{part}{name}_bytes") for part in ("", "peak_"))
        if n_bytes is not None:
            yield size_row(n_bytes, text)
            yield size_row(peak_bytes, "  at most")
    if summary.partly_used_bytes is not None:
        yield size_row(summary.partly_used_bytes, "free in partly used segments")
        yield size_row(
            summary.empty_segment_bytes, "free in empty segments (empty_cache() returns them)"
        )
