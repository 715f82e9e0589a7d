"""Lines of text for ``snapconv oom --message``: torch's own message, explained."""

from collections.abc import Iterator

from snapconv.answers.oom.message import MemorySummary, MessageAnswer, MessageFigure
from snapconv.answers.oom.message_kinds import SUMMARY
from snapconv.answers.oom.verdict import OomCause
from snapconv.units import counted, format_bytes, optional, printable
from snapconv.writers.text.oom import verdict_lines
from snapconv.writers.text.size_rows import size_row

_N_DEVICES = 15
_OTHER_TITLES = {
    OomCause.HOST: "out of memory on the host",
    OomCause.OTHER_MEMORY: "not the device's memory",
    OomCause.WARNING: "no failure",
}


def message_lines(first: MessageAnswer) -> Iterator[str]:
    """Explain a text about memory that ran out; of several devices, the first message of each."""
    for answer in (first, *first.others[:_N_DEVICES]):
        yield from _one_message_lines(answer)
        if answer is first and first.n_messages > 1:
            yield f"  {counted(first.n_messages, 'message')} in the text: this is the first"
        yield f"  next: {answer.next_step}"
    if len(first.others) > _N_DEVICES:
        yield f"--json shows {counted(len(first.others) - _N_DEVICES, 'more device')}"


def _one_message_lines(answer: MessageAnswer) -> Iterator[str]:
    """Show what a message says: why memory ran out, its figures, and what is easily misread."""
    message = answer.message
    yield _message_title(answer)
    if answer.verdict:
        yield from verdict_lines(answer.verdict)
    elif answer.meaning:
        yield f"  {answer.meaning}"
    yield from _message_sizes(answer)
    for pid, n_bytes in message.other_processes[:_N_DEVICES]:
        yield size_row(n_bytes, f"process {pid}")
    for figure in answer.figures:
        yield f"{_figure_shown(figure):>16}  {figure.noun}"
    if answer.summary:
        yield from _summary_lines(answer.summary)
    if answer.beside:
        yield "  also in the text"
        for words in answer.beside:
            yield f"    {printable(words)}"
    for note in answer.notes:
        yield f"  {note}"


def _message_sizes(answer: MessageAnswer) -> Iterator[str]:
    """Show the figures of a message; none whose parts have rows of their own."""
    message = answer.message
    active = message.active_bytes
    if (active or 0) <= (message.allocated_bytes or 0):
        active = None  # no stream uses anything else
    reserved = message.reserved_bytes if answer.unallocated_bytes is None else None
    outside = answer.outside_bytes if message.metal_bytes is None else None
    is_sum = answer.own_outside_bytes is None and not message.is_process_miscounted
    process_bytes = message.process_bytes if is_sum else None
    process_text = ""
    if message.process_bytes is not None:
        process_text = f", which holds {format_bytes(message.process_bytes)} in all"
    pools_noun = "free in private pools, for CUDA graphs or MemPools only"
    outside_noun = "not torch's: context, libraries, NCCL, other processes"
    rows = (
        (message.tried_bytes, "requested"),
        (message.free_bytes, "free on the device"),
        (message.allocated_bytes, "allocated by torch"),
        (active, "  with what streams still use"),
        (answer.unallocated_bytes, "reserved by torch and free"),
        (message.private_pool_bytes, pools_noun),
        (reserved, "reserved by torch"),
        (outside, outside_noun),
        (message.metal_bytes, "other Metal memory of the process"),
        (answer.own_outside_bytes, f"  of it this process's own{process_text}"),
        (process_bytes, "held by this process"),
        (message.allowed_bytes, "allowed"),
        (message.total_bytes, "the whole device"),
    )
    for n_bytes, noun in rows:
        if n_bytes is not None:
            yield size_row(n_bytes, noun)


def _figure_shown(figure: MessageFigure) -> str:
    if figure.unit == "bytes":
        return format_bytes(int(figure.value))
    unit = f" {figure.unit}" if figure.unit in ("tokens", "requests") else ""
    return f"{figure.value}{unit}"


def _message_title(answer: MessageAnswer) -> str:
    """Name the memory that ran out, with its device or the program that says so."""
    if not answer.backend or answer.kind == SUMMARY.name:
        return answer.kind
    device = "" if answer.message.device is None else f" on device {answer.message.device}"
    # No device is named if the text does not say whose memory it was.
    backend = "" if answer.backend == "device" else f"{answer.backend} "
    title = _OTHER_TITLES.get(answer.cause, f"{backend}out of memory{device}")
    if answer.backend == "host" and answer.cause == OomCause.UNKNOWN:
        title = "out of memory on the host, or another cause"
    rank = f" ({answer.rank})" if answer.rank else ""
    return f"{title}{rank}: {answer.cause if answer.verdict else answer.kind}"


def _summary_lines(summary: MemorySummary) -> Iterator[str]:
    yield f"  memory summary{optional(' of device {}', summary.device)}"
    active_noun = "active: allocated, or freed and waiting for a stream"
    requested_noun = "requested by the program, not rounded"
    rows = (
        (summary.allocated_bytes, summary.peak_allocated_bytes, "allocated by torch"),
        (summary.active_bytes, summary.peak_active_bytes, active_noun),
        (summary.requested_bytes, summary.peak_requested_bytes, requested_noun),
        (summary.reserved_bytes, summary.peak_reserved_bytes, "reserved by torch"),
    )
    for n_bytes, peak_bytes, noun in rows:
        if n_bytes is not None and peak_bytes is not None:
            yield size_row(n_bytes, noun)
            yield size_row(peak_bytes, "  at most")
    if summary.partly_used_bytes is not None:
        yield size_row(summary.partly_used_bytes, "free in partly used segments")
        yield size_row(
            summary.empty_segment_bytes,
            "free in empty segments (empty_cache() returns them)",
        )
