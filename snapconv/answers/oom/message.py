"""A log or a pasted text about memory that ran out, explained: its kind, its figures, and the verdict.

message_kinds.py has the kinds as tables, message_figures.py reads the figures; the verdict on a request is
that of files, by verdict.py. Nothing is inferred from a figure that a text does not have.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import pairwise

from snapconv.allocator.allocator_settings import (
    LARGE_SEGMENT_BYTES,
    MIN_OWN_SEGMENT_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
)
from snapconv.answers.oom.message_figures import (
    MemorySummary,
    OomMessage,
    compact,
    read_message,
    read_summary,
    size_of,
)
from snapconv.answers.oom.message_kinds import (
    BACKENDS,
    BEGINNINGS,
    KINDS,
    MPS_LIMIT,
    NEXT_STEPS,
    OTHER,
    UNKNOWN_BACKEND,
    WORDS,
    Backend,
    Kind,
)
from snapconv.answers.oom.verdict import FreePieces, OomCause, OomVerdict, Shortage, decide_oom
from snapconv.errors import InputError
from snapconv.units import counted

# The longest text that torch writes has about 1500 characters.
_MOST_OF_MESSAGE = 4000
_ROUNDING_BYTES = 16 << 20
_MIDDLE = re.compile(
    r"allocate\d|totalcapac|alreadyallocated|isallocatedbyPyTorch|reservedbyPyTorch", re.IGNORECASE
)
_LEAST_PARTLY_USED = 0.05


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """A text, explained; ``n_messages`` of torch's allocator are in it, and this is the first.

    ``kind`` says whose text it is, ``meaning`` what one without figures usually means. ``outside_bytes`` is
    what is in use on the device and not torch's, ``own_outside_bytes`` the part of it that this process has
    itself. ``verdict`` None: the figures do not say why.
    """

    kind: str
    backend: str
    meaning: str
    message: OomMessage
    summary: MemorySummary | None
    n_messages: int
    unallocated_bytes: int | None
    outside_bytes: int | None
    own_outside_bytes: int | None
    verdict: OomVerdict | None
    next_step: str
    notes: tuple[str, ...]

    @property
    def is_summary(self) -> bool:
        """Whether the text is a memory_summary() table alone."""
        return self.kind == _SUMMARY.name

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return asdict(self)


def explain_message(text: str) -> MessageAnswer:
    """Explain a text: its first message with figures, else another kind of text, else a memory summary.

    Raises InputError where it says nothing about memory that ran out.
    """
    text = compact(text)
    summary = read_summary(text)
    parts = list(_messages(text))
    of_figures = next((part for part in parts if read_message(part).tried_bytes is not None), None)
    words = next((part for part in parts if any(pattern.search(part) for pattern, *_ in WORDS)), None)
    if part := of_figures or words:
        return _of_allocator(part, len(parts), summary)
    if found := _kind_of(text):
        return _of_kind(*found, len(parts), summary)
    if parts:
        return _of_allocator(parts[0], len(parts), summary)
    if summary:
        return _of_kind(_SUMMARY, None, 0, summary)
    if OTHER.pattern.search(text):
        return _of_kind(OTHER, None, 0, None)
    raise InputError(
        "no out-of-memory message is in the text: expected 'CUDA out of memory. Tried to allocate …', that "
        "of another backend or library, or a table of torch.cuda.memory_summary()"
    )


def decode_log(data: bytes) -> str:
    """Decode a log; PowerShell writes UTF-16, whose mark is missing where its end alone was read."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    odd_bytes = data[1:2000:2]
    is_wide = odd_bytes.count(0) > 4 * len(odd_bytes) // 5 > 0
    return data.decode("utf-16-le" if is_wide else "utf-8", "replace")


_SUMMARY = Kind("torch.cuda.memory_summary()", re.compile(""), "", NEXT_STEPS[OomCause.FULL])


def _messages(text: str) -> Iterator[str]:
    """Yield every message of torch's allocator in a text, also one whose first words were cut."""
    starts = [found.start() for found in BEGINNINGS.finditer(text)]
    if not starts and (middle := _MIDDLE.search(text)):
        part = text[max(middle.start() - 100, 0) : middle.start() + _MOST_OF_MESSAGE]
        figures = read_message(part)
        if figures.total_bytes is not None or figures.allocated_bytes is not None:
            yield part
    for start, end in pairwise([*starts, len(text)]):
        yield text[start : min(end, start + _MOST_OF_MESSAGE)]


def _kind_of(text: str) -> tuple[Kind, re.Match[str]] | None:
    """Find the kind whose words come first in a text."""
    found = [(kind, match) for kind in KINDS if (match := kind.pattern.search(text))]
    return min(found, key=lambda pair: pair[1].start()) if found else None


def _of_kind(
    kind: Kind, found: re.Match[str] | None, n_messages: int, summary: MemorySummary | None
) -> MessageAnswer:
    """Answer about a text that is not of torch's allocator."""
    size = next(filter(None, found.groups()), None) if found else None
    return MessageAnswer(
        kind=kind.name,
        backend="host" if kind.is_host else "GPU",
        meaning=kind.meaning,
        message=replace(read_message(""), tried_bytes=size_of(size) if size else None),
        summary=summary,
        n_messages=n_messages,
        unallocated_bytes=None,
        outside_bytes=None,
        own_outside_bytes=None,
        verdict=None,
        next_step=kind.next_step,
        notes=tuple(_summary_notes(summary)),
    )


def _of_allocator(text: str, n_messages: int, summary: MemorySummary | None) -> MessageAnswer:
    """Answer about a message of torch's allocator."""
    message, begin = read_message(text), BEGINNINGS.search(text)
    name = (begin["backend"] or "CUDA") if begin else "NPU" if "(NPU" in text else "GPU"
    backend = BACKENDS.get(name, UNKNOWN_BACKEND)
    unallocated = _minus(message.reserved_bytes, message.allocated_bytes)
    unallocated = _minus(unallocated, message.private_pool_bytes or 0)
    verdict, next_step = _verdict(message, unallocated, backend, text)
    in_use = _minus(message.total_bytes, message.free_bytes)
    outside = _minus(in_use, message.reserved_bytes) if message.metal_bytes is None else message.metal_bytes
    return MessageAnswer(
        kind="torch's allocator",
        backend=name,
        meaning=""
        if verdict
        else "torch's allocator found no memory; the text lacks the figures that would say why",
        message=message,
        summary=summary,
        n_messages=n_messages,
        unallocated_bytes=unallocated,
        outside_bytes=outside,
        own_outside_bytes=_minus(message.process_bytes, message.reserved_bytes),
        verdict=verdict,
        next_step=next_step.format(monitor=backend.monitor, variable=backend.variable),
        notes=(*_notes(message, name), *_summary_notes(summary)),
    )


def _verdict(
    message: OomMessage, unallocated: int | None, backend: Backend, text: str
) -> tuple[OomVerdict | None, str]:
    """Decide why a request failed, and what to do next."""
    for pattern, cause, sentence, next_step in WORDS:
        if pattern.search(text):
            return OomVerdict(cause.value, sentence, "torch's own words", is_inferred=False), next_step
    shortage = _shortage(message, unallocated, backend.why_free)
    verdict = decide_oom(shortage) if shortage else None
    cause = OomCause(verdict.cause) if verdict else OomCause.UNKNOWN
    is_nothing_known = (
        message.free_bytes is None and message.allocated_bytes is None and message.reserved_bytes is None
    )
    if verdict is None or (cause is OomCause.FULL and is_nothing_known):
        return None, NEXT_STEPS[OomCause.UNKNOWN]
    is_metal_limit = cause is OomCause.LIMIT and message.metal_bytes is not None
    return verdict, MPS_LIMIT if is_metal_limit else NEXT_STEPS[cause]


def _shortage(message: OomMessage, unallocated: int | None, why_free: str) -> Shortage | None:
    """Put the figures of a text in the form in which files have theirs."""
    tried, total, free, reserved = (
        message.tried_bytes,
        message.total_bytes,
        message.free_bytes,
        message.reserved_bytes,
    )
    if tried is None:
        return None
    is_shared = total is not None and free is not None and free > total
    live = reserved if message.allocated_bytes is None else message.allocated_bytes
    counted = live if reserved is None else reserved + (message.metal_bytes or 0)
    allowed = message.allowed_bytes
    return Shortage(
        block_bytes=_largest_request(tried),
        segment_bytes=tried,
        device_free_bytes=free,
        device_total_bytes=None if is_shared else total,
        reserved_bytes=reserved,
        live_bytes=live,
        here=None if unallocated is None else FreePieces(unallocated),
        elsewhere=FreePieces(message.private_pool_bytes or 0),
        allowed_bytes=None if allowed is None or (total is not None and allowed >= total) else allowed,
        counted_bytes=counted,
        rounding_bytes=_ROUNDING_BYTES,
        has_pieces=False,
        why_free=why_free,
    )


def _minus(whole: int | None, part: int | None) -> int | None:
    """Subtract; None where either is not known, or the part is larger."""
    return None if whole is None or part is None or part > whole else whole - part


def _largest_request(segment_bytes: int) -> int:
    """Return the largest request that gets a segment of this size: small ones share a segment."""
    shared = {SMALL_SEGMENT_BYTES: SMALL_REQUEST_BYTES, LARGE_SEGMENT_BYTES: MIN_OWN_SEGMENT_BYTES}
    return shared.get(segment_bytes, segment_bytes)


def _notes(message: OomMessage, backend: str) -> Iterator[str]:
    """Explain the figures that are easily misread."""
    tried, total, free = message.tried_bytes, message.total_bytes, message.free_bytes
    if tried == SMALL_SEGMENT_BYTES and backend != "MPS":
        yield "2 MiB is the segment for every request of up to 1 MiB: the request itself is smaller"
    elif tried == LARGE_SEGMENT_BYTES and backend != "MPS":
        yield "20 MiB is the segment for every request of 1 to 10 MiB: the request itself is smaller"
    if total is not None and free is not None and free > total:
        yield "more is free than the device has: it shares the host's memory, and torch counts both"
    elif total is not None and max(message.reserved_bytes or 0, message.allocated_bytes or 0) > total:
        yield "torch has more than the device: the driver moved some of it to the host's memory (Windows)"
    if message.process_bytes is None and message.other_processes:
        yield "torch did not recognise its own process (a container): one of those listed may be this one"


def _summary_notes(summary: MemorySummary | None) -> Iterator[str]:
    """Say what the counts of a memory_summary() table mean."""
    if summary is None:
        return
    if summary.n_ooms:
        yield f"memory ran out {counted(summary.n_ooms, 'time')} before the table was printed"
    if summary.n_retries > summary.n_ooms:
        yield (
            f"torch emptied its cache {counted(summary.n_retries, 'time')} to serve a request: the device "
            f"was nearly full, which is slow"
        )
    if (summary.partly_used_bytes or 0) >= _LEAST_PARTLY_USED * max(summary.reserved_bytes, 1):
        yield "fragmentation: free memory in partly used segments serves only requests that fit into a gap"
