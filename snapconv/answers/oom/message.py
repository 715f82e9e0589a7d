"""A log or a pasted text about memory that ran out, explained: its kind, its figures, and the verdict.

    1.0 to 1.3  Tried to allocate A (GPU 0; B total capacity; C already allocated; D free; E cached)
    1.4 to 2.0  … D free; [F allowed; ]E reserved in total by PyTorch)
    2.1 on      Tried to allocate A. GPU 0 has a total capacity of B of which D is free. [processes]
                [F allowed; ]Of the allocated memory C is allocated by PyTorch, [with P allocated in private
                pools, ]and U is reserved by PyTorch but unallocated.

HIP, XPU, NPU and others have the same words; cudaMallocAsync and MPS have their own. Sizes have two decimals.
message_kinds.py has the kinds as tables; the verdict on a request is that of files, by verdict.py. Nothing is
inferred from a figure that a text does not have.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

from snapconv.allocator.allocator_settings import (
    LARGE_SEGMENT_BYTES,
    MIN_OWN_SEGMENT_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
)
from snapconv.answers.oom.message_kinds import (
    BEGINNINGS,
    MESSAGE_KINDS,
    MPS_LIMIT,
    NEXT_STEPS,
    OTHER,
    WORDS,
    MessageKind,
    squeezed,
)
from snapconv.answers.oom.verdict import FreePieces, OomCause, OomVerdict, Shortage, decide_oom
from snapconv.errors import InputError
from snapconv.torch_knowledge.backends import BACKENDS, UNKNOWN_BACKEND
from snapconv.units import counted, format_bytes

# What stands before every line of a rank, a quotation, a container: `[rank0]: `, `(Worker pid=12) `, `E   `.
_PREFIX = re.compile(
    r"^[^\S\n]*(?:(?:\[[^\]\n]{1,40}\]:?|\([^)\n]{1,60}\)|\d{1,4}:|[E#>|]|"
    r"\d{4}-\d\d-\d\d[T ][\d:.,]{5,20}Z?)[ \t]+){1,4}",
    re.MULTILINE,
)
# Colours of terminals, frames of boxes, line breaks that were escaped, control characters.
_NOISE = re.compile(r"\x1b\[[0-9;]{0,20}[A-Za-z]|[\u2500-\u257f]|\\[nrt]|[\x00-\x08\x0e-\x1f]")
_POWERS = {"B": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_SIZE = r"(\d{1,20}(?:\.\d{1,9})?)(bytes|[KMGTP]i?B|B)"
# cudaMallocAsync writes the largest number where no limit was set.
_NO_LIMIT = 1 << 60


def _sizes(*wordings: str) -> re.Pattern[str]:
    return squeezed("|".join(wordings).replace("{}", _SIZE))


# Each figure by its wordings; a text has those of its era.
_FIGURES = {
    "tried_bytes": _sizes("allocate {}", r"Requested(?: size)?: {}"),
    "total_bytes": _sizes("{} total capacity", "capaci?ty of {}", "Device limit: {}"),
    "free_bytes": _sizes(r"{} free[;)]", "of which {} is free", r"Free \(according to \w+\): {}"),
    "allocated_bytes": _sizes(
        "{} already allocated", "{} is allocated by PyTorch", "Currently allocated: {}"
    ),
    "reserved_bytes": _sizes("{} reserved in total by PyTorch", "MPS allocated: {}"),
    "private_pool_bytes": _sizes("with {} allocated in private pools"),
    "allowed_bytes": _sizes("{} allowed;", "max allowed: {}", r"memory fraction\): {}"),
    "metal_bytes": _sizes("other allocations: {}"),
    "process_bytes": _sizes("this process has {} memory in use"),
}
_UNALLOCATED = _sizes("{} is reserved by PyTorch but unallocated", "{} cached")
_PROCESS = squeezed(rf"Process (\d{{1,9}}) has {_SIZE} memory in use")
_DEVICE = squeezed(r"(?:GPU|NPU|MLU|GCU|device) (\d{1,4})(?=has|;|would|\D{0,2}$)")
_TABLE = squeezed(r"CUDA memory summary, device ID (\d{1,4})")
_COUNTS = squeezed(r"CUDA OOMs: (\d{1,12}) \|? cudaMalloc retries: (\d{1,12})")
# Rows of a table, whose bars may have been taken for the mark of a quotation: now, and at most.
_ROWS = ("Allocated memory", "GPU reserved memory", "Non-releasable memory")
SUMMARY, _LEAST_PARTLY_USED = "torch.cuda.memory_summary()", 0.05
# The longest text that torch writes has about 1500 characters.
_MOST_OF_MESSAGE = 4000
_ROUNDING_BYTES = 16 << 20
_MIDDLE = re.compile(
    r"allocate\d|totalcapac|alreadyallocated|isallocatedbyPyTorch|reservedbyPyTorch", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class OomMessage:
    """The figures of one message; None: it does not have them. ``reserved_bytes`` includes what is allocated.

    ``allocated_bytes`` is what tensors hold; ``private_pool_bytes`` are free blocks of private pools, which
    torch counts as allocated in its text. ``metal_bytes`` is Metal memory outside torch's allocator (MPS).
    ``process_bytes`` is all that this process has on the device; where torch does not know its own process
    (in a container), all are in ``other_processes``, by their numbers.
    """

    device: int | None = None
    tried_bytes: int | None = None
    total_bytes: int | None = None
    free_bytes: int | None = None
    allocated_bytes: int | None = None
    reserved_bytes: int | None = None
    private_pool_bytes: int | None = None
    allowed_bytes: int | None = None
    metal_bytes: int | None = None
    process_bytes: int | None = None
    other_processes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """The figures of a torch.cuda.memory_summary() table.

    ``partly_used_bytes`` are free bytes in segments that also hold live blocks: the table's non-releasable
    memory.
    """

    device: int
    n_ooms: int
    n_retries: int
    allocated_bytes: int
    peak_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    partly_used_bytes: int | None

    @property
    def empty_segment_bytes(self) -> int:
        """The bytes in segments without any live block."""
        return max(self.reserved_bytes - self.allocated_bytes - (self.partly_used_bytes or 0), 0)


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """The answer of ``oom --message``; ``n_messages`` of torch's allocator are in it, and this is the first.

    ``kind`` says whose text it is, ``meaning`` what a text without figures usually means. ``outside_bytes``
    are in use on the device outside torch's allocator, ``own_outside_bytes`` those of this process.
    ``verdict`` None: the figures do not say why. ``summary`` is that of a table in the text, if it has one.
    """

    kind: str
    backend: str
    meaning: str
    message: OomMessage
    n_messages: int
    next_step: str
    unallocated_bytes: int | None = None
    outside_bytes: int | None = None
    own_outside_bytes: int | None = None
    verdict: OomVerdict | None = None
    notes: tuple[str, ...] = ()
    summary: MemorySummary | None = None


def explain_message(text: str) -> MessageAnswer:
    """Explain a text: its first message with figures, else another kind of text, else a memory summary.

    Raises InputError where it says nothing about memory that ran out.
    """
    text = compact(text)
    summary = _read_summary(text)
    answer = _explained(text)
    if answer is None and summary:
        answer = MessageAnswer(SUMMARY, "GPU", "", OomMessage(), 0, NEXT_STEPS[OomCause.FULL])
    elif answer is None and (match := OTHER.search(text)):
        answer = _of_kind(OTHER, match, 0)
    if answer is None:
        raise InputError(
            "no out-of-memory message is in the text: expected 'CUDA out of memory. Tried to allocate …', "
            "that of another backend or library, or a table of torch.cuda.memory_summary()"
        )
    return replace(answer, summary=summary, notes=(*answer.notes, *_summary_notes(summary)))


def is_message(text: str) -> bool:
    """Return whether a text is about memory that ran out, by its words."""
    return any(kind.search(compact(text)) for kind in (*MESSAGE_KINDS, OTHER))


def _explained(text: str) -> MessageAnswer | None:
    parts = list(_messages(text))
    of_figures = (part for part in parts if read_message(part).tried_bytes is not None)
    of_words = (part for part in parts if any(squeezed(words).search(part) for words, *_ in WORDS))
    if part := next(of_figures, None) or next(of_words, None):
        return _of_allocator(part, len(parts))
    found = [(match.start(), kind, match) for kind in MESSAGE_KINDS if (match := kind.search(text))]
    if found:
        _, kind, match = min(found, key=lambda one: one[0])
        return _of_kind(kind, match, len(parts))
    return _of_allocator(parts[0], len(parts)) if parts else None


def decode_log(data: bytes) -> str:
    """Decode a log; PowerShell writes UTF-16, whose mark is missing where its end alone was read."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    odd_bytes = data[1:2000:2]
    is_wide = odd_bytes.count(0) > 4 * len(odd_bytes) // 5 > 0
    return data.decode("utf-16-le" if is_wide else "utf-8", "replace")


def compact(text: str) -> str:
    """Remove white space from a text, and what terminals and launchers put between its words."""
    return "".join(_NOISE.sub(" ", _PREFIX.sub(" ", text)).split())


def read_message(text: str) -> OomMessage:
    """Read the figures of one message, whichever release wrote it; ``text`` has no white space."""
    found = {name: _size(pattern.search(text)) for name, pattern in _FIGURES.items()}
    allocated, unallocated = found["allocated_bytes"], _size(_UNALLOCATED.search(text))
    if found["reserved_bytes"] is None and allocated is not None and unallocated is not None:
        found["reserved_bytes"] = allocated + unallocated
    if allocated is not None:
        found["allocated_bytes"] = max(allocated - (found["private_pool_bytes"] or 0), 0)
    if (found["allowed_bytes"] or 0) >= _NO_LIMIT:
        found["allowed_bytes"] = None
    device = _DEVICE.search(text)
    others = tuple((int(pid), _bytes_of(number, unit)) for pid, number, unit in _PROCESS.findall(text))
    return OomMessage(int(device[1]) if device else None, **found, other_processes=others)


def _read_summary(text: str) -> MemorySummary | None:
    """Read the first memory_summary() table; ``text`` has no white space."""
    begin = _TABLE.search(text)
    counts = _COUNTS.search(text, begin.end()) if begin else None
    if not begin or not counts:
        return None
    patterns = (squeezed(rf"{name} \|? {_SIZE} \|? {_SIZE}") for name in _ROWS)
    rows = [pattern.search(text, begin.end()) for pattern in patterns]
    now, most = ([row and _bytes_of(*row.group(at, at + 1)) for row in rows] for at in (1, 3))
    if now[0] is None or most[0] is None or now[1] is None or most[1] is None:
        return None
    device, n_ooms, n_retries = int(begin[1]), int(counts[1]), int(counts[2])
    return MemorySummary(device, n_ooms, n_retries, now[0], most[0], now[1], most[1], now[2])


def _size(found: re.Match[str] | None) -> int | None:
    """Return the bytes of the first size in a match, its unit in a group of its own or in the same."""
    known = [group for group in found.groups() if group is not None] if found else []
    return _bytes_of(*known[:2]) if known else None


def _bytes_of(number: str, unit: str = "") -> int:
    """Return the bytes of a number and its unit, which may end the number; torch's GB of old are GiB."""
    digits = number.rstrip("bytesKMGTPiB")
    return round(float(digits) * (1 << _POWERS[(unit or number[len(digits) :] or "B")[0].upper()]))


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


def _of_kind(kind: MessageKind, found: re.Match[str], n_messages: int) -> MessageAnswer:
    backend, message = "host" if kind.is_host else "GPU", OomMessage(tried_bytes=_size(found))
    return MessageAnswer(kind.name, backend, kind.meaning, message, n_messages, kind.next_step)


def _of_allocator(text: str, n_messages: int) -> MessageAnswer:
    message, begin = read_message(text), BEGINNINGS.search(text)
    name = (begin["backend"] or "CUDA") if begin else "NPU" if "(NPU" in text else "GPU"
    backend = BACKENDS.get(name, UNKNOWN_BACKEND)
    unallocated = _minus(message.reserved_bytes, message.allocated_bytes)
    unallocated = _minus(unallocated, message.private_pool_bytes or 0)
    verdict, next_step = _verdict(message, unallocated, backend.why_free, text)
    in_use = _minus(message.total_bytes, message.free_bytes)
    outside = _minus(in_use, message.reserved_bytes) if message.metal_bytes is None else message.metal_bytes
    lacks = "torch's allocator found no memory; the text lacks the figures that would say why"
    return MessageAnswer(
        kind="torch's allocator",
        backend=name,
        meaning="" if verdict else lacks,
        message=message,
        n_messages=n_messages,
        unallocated_bytes=unallocated,
        outside_bytes=outside,
        own_outside_bytes=_minus(message.process_bytes, message.reserved_bytes),
        verdict=verdict,
        next_step=next_step.format(
            monitor=backend.monitor,
            variable=backend.variable,
            watch=backend.watch,
            expandable=backend.expandable,
        ),
        notes=tuple(_notes(message, name)),
    )


def _verdict(
    message: OomMessage, unallocated: int | None, why_free: str, text: str
) -> tuple[OomVerdict | None, str]:
    for words, cause, sentence, next_step in WORDS:
        if squeezed(words).search(text):
            return OomVerdict(cause, sentence, "torch's own words", is_inferred=False), next_step
    shortage = _shortage(message, unallocated, why_free)
    verdict = decide_oom(shortage) if message.tried_bytes is not None else None
    figures = (message.free_bytes, message.allocated_bytes, message.reserved_bytes)
    if verdict is None or (verdict.cause == OomCause.FULL and figures == (None, None, None)):
        return None, NEXT_STEPS[OomCause.UNKNOWN]
    if verdict.cause == OomCause.LIMIT and message.metal_bytes is not None:
        limit = format_bytes(message.allowed_bytes or 0)
        sentence = f"over the MPS limit of {limit} (by default 1.7 times the recommended size)"
        return replace(verdict, sentence=sentence), MPS_LIMIT
    return verdict, NEXT_STEPS[verdict.cause]


def _shortage(message: OomMessage, unallocated: int | None, why_free: str) -> Shortage:
    """Put the figures of a text in the form in which files have theirs."""
    total, free = message.total_bytes, message.free_bytes
    reserved, allowed = message.reserved_bytes, message.allowed_bytes
    tried = message.tried_bytes or 0
    is_shared = total is not None and free is not None and free > total
    live = reserved if message.allocated_bytes is None else message.allocated_bytes
    # Small requests share a segment: the largest that gets one of this size.
    shared = {SMALL_SEGMENT_BYTES: SMALL_REQUEST_BYTES, LARGE_SEGMENT_BYTES: MIN_OWN_SEGMENT_BYTES}
    return Shortage(
        block_bytes=shared.get(tried, tried),
        segment_bytes=tried,
        device_free_bytes=free,
        device_total_bytes=None if is_shared else total,
        reserved_bytes=reserved,
        live_bytes=live,
        here=None if unallocated is None else FreePieces(unallocated),
        elsewhere=FreePieces(message.private_pool_bytes or 0),
        allowed_bytes=None if allowed is None or (total is not None and allowed >= total) else allowed,
        counted_bytes=live if reserved is None else reserved + (message.metal_bytes or 0),
        rounding_bytes=_ROUNDING_BYTES,
        has_pieces=False,
        why_free=why_free,
    )


def _minus(whole: int | None, part: int | None) -> int | None:
    """Subtract; None where either is not known, or the part is larger."""
    return None if whole is None or part is None or part > whole else whole - part


def _notes(message: OomMessage, backend: str) -> Iterator[str]:
    """Explain the figures that are easily misread."""
    tried, total, free = message.tried_bytes, message.total_bytes, message.free_bytes
    if tried == SMALL_SEGMENT_BYTES and backend != "MPS":
        yield "2 MiB is the segment for every request of up to 1 MiB: the request itself is smaller"
    elif tried == LARGE_SEGMENT_BYTES and backend != "MPS":
        yield "20 MiB is the segment for every request of 1 to 10 MiB: the request itself is smaller"
    if message.private_pool_bytes and message.allocated_bytes is not None:
        private, in_text = message.private_pool_bytes, message.allocated_bytes + message.private_pool_bytes
        yield f"torch's {format_bytes(in_text)} includes {format_bytes(private)} free in private pools"
    if total is not None and free is not None and free > total:
        yield "more is free than the device has: it shares the host's memory, and torch counts both"
    elif total is not None and max(message.reserved_bytes or 0, message.allocated_bytes or 0) > total:
        yield "torch has more than the device: the driver moved some of it to the host's memory (Windows)"
    if message.process_bytes is None and message.other_processes:
        yield "torch did not recognise its own process (a container): one of those listed may be this one"


def _summary_notes(summary: MemorySummary | None) -> Iterator[str]:
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
