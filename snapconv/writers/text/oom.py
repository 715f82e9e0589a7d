"""Lines of text for ``snapconv oom``: a failed allocation, or torch's own message, explained."""

from collections.abc import Iterator
from itertools import islice

from snapconv.answers.oom.failed_allocation import FailedAllocation, OutOfMemory
from snapconv.answers.oom.message import MemorySummary, MessageAnswer
from snapconv.answers.oom.remedies import Remedies
from snapconv.answers.oom.verdict import FreePieces, OomVerdict
from snapconv.units import counted, device_name, format_bytes
from snapconv.writers.text.moment import outside_line, place_of, pool_shown
from snapconv.writers.text.size_rows import category_lines, history_lines, most_rows, size_row, where

_N_CALLERS, _N_CATEGORIES, _N_HOLDERS, _N_MODULES, _N_SERVED = 2, 4, 3, 1, 4
_NOT_TORCHS = "not torch's: context, libraries, NCCL, other processes"


def oom_lines(found: OutOfMemory, remedies: Remedies | None) -> Iterator[str]:
    """Why a request failed and what would have helped, on one screen."""
    yield f"{device_name(found.state.device)}  {_heading(found)}"
    if found.verdict:
        yield from verdict_lines(found.verdict)
    if found.request:
        yield from _request_lines(found.request)
    else:
        yield f"  {place_of(found.state)}"
    yield from _memory_lines(found)
    yield from _holder_lines(found)
    if remedies:
        yield from _remedy_lines(remedies)
    if found.after:
        free, returnable = format_bytes(found.after.free_bytes), format_bytes(found.after.returnable_bytes)
        yield (
            f"  the program went on: at the dump {free} are reserved and free, of which empty_cache() "
            f"returns {returnable}"
        )
    if found.n_failed > 1:
        yield f"  {counted(found.n_failed, 'failed allocation')} in the file: this is the first"
    yield from history_lines(found.state.history_verdict)


def verdict_lines(verdict: OomVerdict) -> Iterator[str]:
    """Show the verdict in a sentence, and its reason."""
    inferred = " (inferred)" if verdict.is_inferred else ""
    yield f"  {verdict.sentence}{inferred}"
    yield f"    {verdict.reason}"


def _heading(found: OutOfMemory) -> str:
    if found.verdict is None:
        return "no failed allocation in the file: this is the memory at the dump"
    which = f"failed allocation 1 of {found.n_failed}"
    return f"out of memory: {found.verdict.cause} ({which}, event {found.state.event})"


def _request_lines(request: FailedAllocation) -> Iterator[str]:
    size, segment = format_bytes(request.block_bytes), format_bytes(request.segment_bytes)
    who = "the program" if request.operation in ("", "unknown") else request.operation
    yield f"  {who} asked for {size}; the allocator needed {segment} more from the GPU"
    pool = "default pool (assumed)" if request.pool is None else pool_shown(request.pool)
    module = f"; module {request.module}" if request.module else ""
    yield f"    {pool}, stream {request.stream}{module}"
    for line in request.lines[:_N_CALLERS]:
        yield f"    {where(line)}"
    if not request.lines:
        yield f"    {where(None, has_stack=request.has_stack)}"


def _memory_lines(found: OutOfMemory) -> Iterator[str]:
    state, memory = found.state, found.state.memory
    yield "  memory then"
    yield size_row(state.active_bytes, "in use")
    yield size_row(found.inside.n_bytes, f"reserved and free{_blocks(found.inside)}")
    if found.request:
        usable = f"  usable here (same pool and stream){_blocks(found.here)}"
        yield size_row(found.here.n_bytes, usable)
    if memory.free_bytes is not None:
        yield size_row(memory.free_bytes, "free on the device")
    yield from outside_line(memory)


def _blocks(free: FreePieces) -> str:
    if not free.n_pieces:
        return ""
    return f": {counted(free.n_pieces, 'block')}, the largest {format_bytes(free.largest_bytes)}"


def _holder_lines(found: OutOfMemory) -> Iterator[str]:
    state = found.state
    yield "  held by"
    rows = category_lines(state.summary_rows, state.allocated_bytes)
    yield from islice(rows, _N_CATEGORIES)
    for line in state.lines[: most_rows(_N_HOLDERS)]:
        yield size_row(line.block_bytes, where(line.line))
    for module in state.modules[: most_rows(_N_MODULES)]:
        yield size_row(module.block_bytes, f"module {module.module}")


def _remedy_lines(remedies: Remedies) -> Iterator[str]:
    if remedies.why_none:
        yield "  what gets past this request: not known"
        yield f"    {remedies.why_none}"
        return
    yield f"  what gets past this request, by replaying the last {counted(remedies.n_events, 'event')}"
    served = [remedy for remedy in remedies.tried if remedy.is_served]
    for remedy in served[:_N_SERVED]:
        how = f" ({remedy.how})" if remedy.how else ""
        yield f"    yes  {remedy.name}: {remedy.detail}{how}"
    if len(served) > _N_SERVED:
        yield f"    yes  {', '.join(remedy.name for remedy in served[_N_SERVED:])}"
    failed = [remedy for remedy in remedies.tried if not remedy.is_served]
    for remedy in failed:
        if not remedy.is_setting:
            yield f"    no   {remedy.name}: {remedy.detail}"
    if settings := [remedy.name for remedy in failed if remedy.is_setting]:
        yield f"    no   allocator settings: {', '.join(settings)}"
    if served:
        yield "    this request only: what comes after it is not in the file"
    assumptions = dict.fromkeys(text for remedy in served for text in remedy.assumptions)
    for text in list(assumptions)[:1]:
        yield f"    estimated: {text}"


def message_lines(found: MessageAnswer) -> Iterator[str]:
    """Explain a text about memory that ran out."""
    message, verdict = found.message, found.verdict
    if verdict:
        where_it_was = "" if message.device is None else f" on device {message.device}"
        yield f"{found.backend} out of memory{where_it_was}: {verdict.cause}"
        yield from verdict_lines(verdict)
    else:
        yield found.kind if found.is_summary else f"{found.backend} out of memory: {found.kind}"
        if found.meaning:
            yield f"  {found.meaning}"
    for n_bytes, text in (
        (message.tried_bytes, "requested"),
        (message.free_bytes, "free on the device"),
        (message.allocated_bytes, "allocated by torch"),
        (found.unallocated_bytes, "reserved by torch and free"),
        (message.private_pool_bytes, "free in private pools, for CUDA graphs or MemPools only"),
        (None if message.allocated_bytes is not None else message.reserved_bytes, "reserved by torch"),
        (None if message.metal_bytes is not None else found.outside_bytes, _NOT_TORCHS),
        (message.metal_bytes, "other Metal memory of the process"),
        (found.own_outside_bytes, "  of it this process's own"),
        (message.allowed_bytes, "allowed"),
        (message.total_bytes, "the whole device"),
    ):
        if n_bytes is not None:
            yield size_row(n_bytes, text)
    for pid, n_bytes in message.other_processes[:_N_HOLDERS]:
        yield size_row(n_bytes, f"process {pid}")
    if found.summary:
        yield from _summary_lines(found.summary)
    for note in found.notes:
        yield f"  {note}"
    if found.n_messages > 1:
        yield f"  {counted(found.n_messages, 'message')} in the text: this is the first"
    yield f"  next: {found.next_step}"


def _summary_lines(summary: MemorySummary) -> Iterator[str]:
    yield f"  memory summary of device {summary.device}"
    yield size_row(summary.allocated_bytes, "allocated by torch")
    yield size_row(summary.peak_allocated_bytes, "  at most")
    yield size_row(summary.reserved_bytes, "reserved by torch")
    yield size_row(summary.peak_reserved_bytes, "  at most")
    if summary.partly_used_bytes is not None:
        yield size_row(summary.partly_used_bytes, "free in partly used segments")
        yield size_row(summary.empty_segment_bytes, "free in empty segments (empty_cache() returns them)")
