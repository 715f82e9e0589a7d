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
from operator import itemgetter

from snapconv.allocator.allocator_settings import (
    LARGE_SEGMENT_BYTES,
    MIN_OWN_SEGMENT_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
)
from snapconv.answers.oom.message_kinds import (
    BEFORE_EXPANDABLE,
    BEGINNINGS,
    FIGURES,
    LARGE_BLOCK,
    LESS,
    MESSAGE_KINDS,
    MPS_LIMIT,
    NEXT_STEPS,
    OTHER,
    PHASES,
    SAME_PROCESS,
    WAITED,
    WEAK,
    WORDS,
    MessageKind,
)
from snapconv.answers.oom.message_text import Check, CompactText, compacted, no_check, squeezed
from snapconv.answers.oom.verdict import FreePieces, OomCause, OomVerdict, Shortage, decide_oom
from snapconv.errors import InputError
from snapconv.torch_knowledge.backends import BACKENDS, UNKNOWN_BACKEND
from snapconv.units import counted, format_bytes

_POWERS = {"B": 0, "K": 10, "M": 20, "G": 30, "T": 40, "P": 50}
_SIZE = r"(\d{1,20}(?:\.\d{1,9})?)(bytes|[KMGTP]i?B|B)"
_UNIT = re.compile(r"[A-Za-z]{1,5}$")
# cudaMallocAsync writes the largest number where no limit was set; torch on WSL for what a process holds.
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
    "active_bytes": _sizes("{} current active"),
}
_UNALLOCATED = _sizes("{} is reserved by PyTorch but unallocated", "{} cached")
_PROCESS = squeezed(rf"Process (\d{{1,9}}) has {_SIZE} memory in use")
_DEVICE = squeezed(r"(?:GPU|NPU|MLU|GCU|device) (\d{1,4})(?=has|;|would|\D{0,2}$)")
_TABLE = r"CUDA memory summary, device ID (\d{1,4})"
LATER_PATTERNS = (_TABLE,)
_COUNTS = squeezed(r"CUDA OOMs: (\d{1,12}) \|? cudaMalloc retries: (\d{1,12})")
# Rows of a table, whose bars may have been taken for the mark of a quotation: now, and at most.
_ROWS = {
    name: squeezed(rf"{words} \|? {_SIZE} \|? {_SIZE}")
    for name, words in (
        ("allocated", "Allocated memory"),
        ("active", "Active memory"),
        ("requested", "Requested memory"),
        ("reserved", "(?:GPU|XPU|NPU|CUDA) reserved memory"),
        ("partly_used", "Non-releasable memory"),
    )
}
SUMMARY, TORCHS, _LEAST_NOTABLE = "torch.cuda.memory_summary()", "torch's allocator", 0.05
# The longest text that torch writes has about 1500 characters; a traceback above it, some thousands.
_MOST_OF_MESSAGE, _MOST_OF_TRACEBACK = 4000, 12_000
_ROUNDING_BYTES = 16 << 20
_MIDDLE = re.compile(
    r"allocate\d|totalcapac|alreadyallocated|isallocatedbyPyTorch|reservedbyPyTorch", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class OomMessage:
    """The figures of one message; None: it does not have them. ``reserved_bytes`` includes what is allocated.

    ``allocated_bytes`` is what tensors hold, ``active_bytes`` also what streams still use;
    ``private_pool_bytes`` are free blocks of private pools, which torch counts as allocated in its text.
    ``metal_bytes`` is Metal memory outside torch's allocator (MPS). ``process_bytes`` is all that this
    process has on the device; where torch does not know its own process (in a container), all are in
    ``other_processes``, by their numbers.
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
    active_bytes: int | None = None
    other_processes: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class MemorySummary:
    """The figures of a torch.cuda.memory_summary() table.

    ``partly_used_bytes`` are free bytes in segments that also hold live blocks: the table's non-releasable
    memory. What is active is allocated, or was freed and waits for a stream.
    """

    device: int
    n_ooms: int
    n_retries: int
    allocated_bytes: int
    peak_allocated_bytes: int
    reserved_bytes: int
    peak_reserved_bytes: int
    partly_used_bytes: int | None = None
    peak_partly_used_bytes: int | None = None
    active_bytes: int | None = None
    peak_active_bytes: int | None = None
    requested_bytes: int | None = None
    peak_requested_bytes: int | None = None

    @property
    def waited_bytes(self) -> int:
        """The bytes that were freed and waited for a stream when most was active: at least so many."""
        return max((self.peak_active_bytes or 0) - self.peak_allocated_bytes, 0)

    @property
    def empty_segment_bytes(self) -> int:
        """The bytes in segments without any live block."""
        return max(self.reserved_bytes - self.allocated_bytes - (self.partly_used_bytes or 0), 0)


@dataclass(frozen=True, slots=True)
class MessageFigure:
    """A figure that OomMessage has no field for: its noun, its unit, and its number (a text for a shape)."""

    noun: str
    unit: str
    value: float | int | str


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """The answer of ``oom --message``; ``n_messages`` of torch's allocator are in it, and this is the first.

    ``kind`` says whose text it is, ``meaning`` what a text without figures usually means, ``cause`` why
    memory ran out in a word. ``outside_bytes`` are in use on the device outside torch's allocator,
    ``own_outside_bytes`` those of this process. ``verdict`` None: the figures do not say why. ``summary`` is
    that of a table in the text, if it has one. ``rank`` wrote the message, where the log says which did.
    ``others`` are the first messages of other devices and ranks, answers like this one.
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
    cause: str = OomCause.UNKNOWN
    rank: str = ""
    figures: tuple[MessageFigure, ...] = ()
    others: tuple["MessageAnswer", ...] = ()


def explain_message(text: str, *, check: Check = no_check) -> MessageAnswer:
    """Explain a text: its first message with figures, else another kind of text, else a memory summary.

    ``check`` is called all the time, and may raise to end it. Raises InputError where the text says nothing
    about memory that ran out.
    """
    log = compacted(text, check)
    summary = _read_summary(log)
    answer = _explained(log)
    if answer is None and summary:
        watch = BACKENDS["CUDA"].watch
        step = WAITED if _has_waited(summary) else NEXT_STEPS[OomCause.FULL].format(less=LESS, watch=watch)
        answer = MessageAnswer(SUMMARY, "GPU", "", OomMessage(), 0, step)
    elif answer is None and (match := log.search(OTHER.one("seen"))):
        answer = _of_kind(OTHER, match, log)
    if answer is None:
        raise InputError(
            "no out-of-memory message is in the text: expected 'CUDA out of memory. Tried to allocate …', "
            "that of another backend or library, or a table of torch.cuda.memory_summary()"
        )
    return replace(answer, summary=summary, notes=(*answer.notes, *_summary_notes(summary)))


def is_message(text: str, *, check: Check = no_check) -> bool:
    """Return whether a text is about memory that ran out, by its words."""
    log = compacted(text, check)
    return any(_first_match(kind, log) for kind in (*MESSAGE_KINDS, OTHER))


def _explained(log: CompactText) -> MessageAnswer | None:
    parts = list(_messages(log))
    described = [part for part in parts if read_message(part.text).tried_bytes is not None]
    described = described or [part for part in parts if _words_of(part.text)]
    if described:
        return _of_messages(described, len(parts), log)
    found = [
        (kind.level, match.start(), index, match)
        for index, kind in enumerate(MESSAGE_KINDS)
        if (match := _first_match(kind, log))
    ]
    level, _, index, first = min(found, key=itemgetter(0, 1, 2), default=(WEAK, 0, 0, None))
    if parts and level == WEAK:
        return _of_allocator(parts[0], len(parts))
    return replace(_of_kind(MESSAGE_KINDS[index], first, log), n_messages=len(parts)) if first else None


def _of_messages(parts: list["_Part"], n_messages: int, log: CompactText) -> MessageAnswer:
    """Explain the first message of every device; that of a server around torch has the better next step."""
    answers = dict[object, MessageAnswer]()
    for part in parts:
        log.check()
        answer = _of_allocator(part, n_messages)
        if all(answer.message != other.message for other in answers.values()):
            answers.setdefault((part.rank, answer.message.device), answer)
    first, *others = answers.values()
    leaders = (kind for kind in MESSAGE_KINDS if "leads" in kind.parts)
    for leading in (_of_kind(kind, match, log) for kind in leaders if (match := _first_match(kind, log))):
        notes = (*first.notes, f"{leading.kind}: {leading.meaning}")
        first = replace(first, next_step=leading.next_step, notes=notes, figures=leading.figures)
        break
    return replace(first, others=tuple(others))


def _first_match(kind: MessageKind, log: CompactText) -> re.Match[str] | None:
    """Find the first words of a kind in a text that has all that it needs, and nothing that excludes it."""
    found = filter(None, map(log.search, kind.all("seen")))
    first = min(found, key=re.Match.start, default=None)
    is_right = all(map(log.search, kind.all("with"))) and not any(map(log.search, kind.all("unless")))
    return first if first and is_right else None


def decode_log(data: bytes) -> str:
    """Decode a log; PowerShell writes UTF-16, whose mark is missing where its end alone was read."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    odd_bytes = data[1:2000:2]
    is_wide = odd_bytes.count(0) > 4 * len(odd_bytes) // 5 > 0
    return data.decode("utf-16-le" if is_wide else "utf-8", "replace")


def read_message(text: str) -> OomMessage:
    """Read the figures of one message, of any release; ``text`` has no white space."""
    found = {name: _size(pattern.search(text)) for name, pattern in _FIGURES.items()}
    allocated, unallocated = found["allocated_bytes"], _size(_UNALLOCATED.search(text))
    if found["reserved_bytes"] is None and allocated is not None and unallocated is not None:
        found["reserved_bytes"] = allocated + unallocated
    if allocated is not None:
        found["allocated_bytes"] = max(allocated - (found["private_pool_bytes"] or 0), 0)
    for name in ("allowed_bytes", "process_bytes"):
        if (found[name] or 0) >= _NO_LIMIT:
            found[name] = None
    device = _DEVICE.search(text)
    sizes = ((int(pid), _bytes_of(number, unit)) for pid, number, unit in _PROCESS.findall(text))
    others = tuple((pid, n_bytes) for pid, n_bytes in sizes if n_bytes < _NO_LIMIT)
    return OomMessage(int(device[1]) if device else None, **found, other_processes=others)


def _read_summary(log: CompactText) -> MemorySummary | None:
    """Read the first memory_summary() table."""
    begin = log.search(_TABLE)
    text = log.text[begin.start() : begin.start() + _MOST_OF_MESSAGE] if begin else ""
    counts = _COUNTS.search(text)
    if not begin or not counts:
        return None
    sizes = dict[str, int]()
    for name, words in _ROWS.items():
        if row := words.search(text):
            sizes[f"{name}_bytes"] = _bytes_of(*row.group(1, 2))
            sizes[f"peak_{name}_bytes"] = _bytes_of(*row.group(3, 4))
    if not {"allocated_bytes", "reserved_bytes"} <= sizes.keys():
        return None
    return MemorySummary(int(begin[1]), int(counts[1]), int(counts[2]), **sizes)


def _size(found: re.Match[str] | None) -> int | None:
    """Return the bytes of the first size in a match, its unit in a group of its own or in the same."""
    known = [group for group in found.groups() if group is not None] if found else []
    return _bytes_of(*known[:2]) if known else None


def _bytes_of(number: str, unit: str = "") -> int:
    """Return the bytes of a number and its unit, which may end the number; torch's GB of old are GiB."""
    digits = _UNIT.sub("", number)
    power = _POWERS[(unit or number[len(digits) :] or "B")[0].upper()]
    return round(float(digits.replace(",", "." if digits[-3:-2] == "," else "")) * (1 << power))


@dataclass(frozen=True, slots=True)
class _Part:
    """A message of torch's allocator in a log, with what stands before it."""

    text: str
    before: str
    rank: str


def _messages(log: CompactText) -> Iterator[_Part]:
    """Yield every message of torch's allocator in a text, also one whose first words were cut."""
    text, starts = log.text, [match.start() for match in log.every(BEGINNINGS)]
    if not starts and (middle := next(log.every(_MIDDLE), None)):
        figures = read_message(text[middle.start() : middle.start() + _MOST_OF_MESSAGE])
        if figures.total_bytes is not None or figures.allocated_bytes is not None:
            starts = [max(middle.start() - 100, 0)]
    for start, end in pairwise([*starts, len(text)]):
        before = text[max(start - _MOST_OF_TRACEBACK, 0) : start]
        yield _Part(text[start : min(end, start + _MOST_OF_MESSAGE)], before, log.rank_at(start))


def _of_kind(kind: MessageKind, match: re.Match[str], log: CompactText) -> MessageAnswer:
    """Explain a text of another kind, with the figures that stand near its first words."""
    figures = _figures_near(kind, match, log.text)
    tried, device = figures.pop("tried", None), figures.pop("device", None)
    return MessageAnswer(
        kind=kind.name,
        backend=kind.one("on", "host" if kind.one("cause") == OomCause.HOST else "GPU"),
        meaning=kind.one("means"),
        message=OomMessage(device=device, tried_bytes=tried),  # type: ignore[arg-type]
        n_messages=0,
        next_step=_exact_step(kind, {"tried": tried, **figures}) or kind.one("next"),
        cause=kind.one("cause", OomCause.FULL),
        rank=log.rank_at(match.start()),
        figures=tuple(
            MessageFigure(FIGURES[name].noun, FIGURES[name].unit.replace("GiB", "bytes"), value)
            for name, value in figures.items()
            if value != tried
        ),
    )


def _figures_near(kind: MessageKind, match: re.Match[str], text: str) -> dict[str, float | int | str]:
    """Read the figures of a text of another kind, by name: those of the match, then those around it."""
    near = text[max(match.start() - _MOST_OF_TRACEBACK, 0) : match.start() + _MOST_OF_TRACEBACK]
    figures = dict[str, float | int | str]()
    for found in (match, *(squeezed(words).search(near) for words in kind.all("seen", "also"))):
        texts = found.groupdict() if found else {}
        figures = {name: _value_of(name, text) for name, text in texts.items() if text} | figures
    return figures


def _exact_step(kind: MessageKind, figures: dict[str, float | int | str | None]) -> str:
    """Put the figures of a text into its next step; ``""`` where the text lacks one."""
    total, free, tried = figures.get("total"), figures.get("free_gib"), figures["tried"]
    if isinstance(total, int) and isinstance(free, int):
        figures["share"] = f"{free * 100 // max(total, 1) / 100:.2f}"
    figures["tried"] = format_bytes(tried) if isinstance(tried, int) else ""
    try:
        return kind.one("exact").format_map(figures)
    except KeyError:
        return ""


def _value_of(name: str, text: str) -> float | int | str:
    """Return the number of a figure; the text of a shape or a name."""
    unit = FIGURES[name].unit
    if unit in ("bytes", "GiB"):
        return _bytes_of(text, unit[0] if unit == "GiB" else "")
    if unit in ("shape", "name"):
        return text
    return float(text) if unit == "share" else int(text.replace(",", ""))


def _of_allocator(part: _Part, n_messages: int) -> MessageAnswer:
    text = part.text
    message, begin = read_message(text), BEGINNINGS.search(text)
    name = (begin["backend"] or "CUDA") if begin else "NPU" if "(NPU" in text else "GPU"
    backend = BACKENDS.get(name, UNKNOWN_BACKEND)
    unallocated = _minus(message.reserved_bytes, message.allocated_bytes)
    unallocated = _minus(unallocated, message.private_pool_bytes or 0)
    in_use = _minus(message.total_bytes, message.free_bytes)
    message = _with_own_process(message, in_use or 0)
    verdict, next_step = _verdict(message, unallocated, backend.why_free, text)
    outside = _minus(in_use, message.reserved_bytes) if message.metal_bytes is None else message.metal_bytes
    own_outside = _minus(message.process_bytes, message.reserved_bytes)
    cause = verdict.cause if verdict else OomCause.UNKNOWN
    is_same_process = cause == OomCause.OUTSIDE and 2 * (own_outside or 0) > (outside or 0)
    lacks = "torch's allocator found no memory; the text lacks the figures that would say why"
    return MessageAnswer(
        kind=TORCHS,
        backend=name,
        meaning="" if verdict else lacks,
        message=message,
        n_messages=n_messages,
        unallocated_bytes=unallocated,
        outside_bytes=outside,
        own_outside_bytes=own_outside,
        verdict=verdict,
        next_step=SAME_PROCESS if is_same_process else _shown_step(next_step, name, part),
        notes=tuple(_notes(message, name)),
        cause=cause,
        rank=part.rank,
    )


def _shown_step(step: str, name: str, part: _Part) -> str:
    """Fill in what a device's monitor, recorder and settings are called."""
    backend = BACKENDS.get(name, UNKNOWN_BACKEND)
    if step == NEXT_STEPS[OomCause.FRAGMENTED] and name in ("CUDA", "HIP") and "reservedintotal" in part.text:
        step = BEFORE_EXPANDABLE
    shown = {key: getattr(backend, key) for key in ("monitor", "variable", "watch", "expandable")}
    return step.format(less=_phase_step(part.before), **shown)


def _with_own_process(message: OomMessage, in_use: int) -> OomMessage:
    """Take a process that has all that is in use for torch's own, which a container hides from torch."""
    (_, n_bytes), *others = message.other_processes or ((0, 0),)
    is_own = n_bytes >= in_use - _ROUNDING_BYTES and 2 * (message.reserved_bytes or 0) > in_use
    if message.process_bytes is not None or others or not is_own or not n_bytes:
        return message
    return replace(message, process_bytes=n_bytes, other_processes=())


def _phase_step(before: str) -> str:
    """Return what lessens the memory that a program needs, by the last frames of the traceback before."""
    ends = ((match.end(), step) for words, step in PHASES for match in squeezed(words).finditer(before))
    return max(ends, default=(0, LESS))[1]


def _words_of(text: str) -> list[tuple[str, str, str, str]]:
    """Return the rows of what torch adds in rare cases that a message has."""
    return [row for row in WORDS if squeezed(row[0]).search(text)]


def _verdict(
    message: OomMessage, unallocated: int | None, why_free: str, text: str
) -> tuple[OomVerdict | None, str]:
    for _, cause, sentence, next_step in _words_of(text):
        return OomVerdict(cause, sentence, "torch's own words", is_inferred=False), next_step
    shortage = _shortage(message, unallocated, why_free)
    verdict = decide_oom(shortage) if message.tried_bytes is not None else None
    if (
        verdict
        and verdict.cause == OomCause.UNKNOWN
        and "XPU" in text
        and (message.tried_bytes or 0) >= 4 << 30
    ):
        _, cause, sentence, next_step = LARGE_BLOCK
        return OomVerdict(cause, sentence, verdict.sentence, is_inferred=True), next_step
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


def _has_waited(summary: MemorySummary) -> bool:
    return summary.waited_bytes >= _LEAST_NOTABLE * max(summary.peak_active_bytes or 0, 1)


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
    if _has_waited(summary):
        yield (
            f"when most was active, at least {format_bytes(summary.waited_bytes)} were freed and waited for "
            "another stream (record_stream)"
        )
    if (summary.partly_used_bytes or 0) >= _LEAST_NOTABLE * max(summary.reserved_bytes, 1):
        yield "fragmentation: free memory in partly used segments serves only requests that fit into a gap"
