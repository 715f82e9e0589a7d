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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import itemgetter
from typing import Any

from snapconv.allocator.allocator_settings import (
    LARGE_SEGMENT_BYTES,
    MIN_OWN_SEGMENT_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
)
from snapconv.answers.oom.message_kinds import (
    ALLOCATOR,
    BACKEND_NAMES,
    BEFORE_EXPANDABLE,
    BEGINNINGS,
    FIGURES,
    LARGE_BLOCK,
    LESS,
    MESSAGE_KINDS,
    MPS_LIMIT,
    NEXT_STEPS,
    PHASES,
    SAME_PROCESS,
    SUMMARY,
    WAITED,
    WORDS,
    MessageKind,
)
from snapconv.answers.oom.message_text import Check, CompactText, compacted, no_check, squeezed
from snapconv.answers.oom.verdict import FreePieces, OomCause, OomVerdict, Shortage, decide_oom
from snapconv.errors import InputError
from snapconv.torch_knowledge.backends import BACKENDS, UNKNOWN_BACKEND
from snapconv.units import counted, format_bytes

_UNITS, _UNIT_LETTERS = "bkmgtp", "bytesikmgtp"
# cudaMallocAsync writes the largest number where no limit was set; torch on WSL for what a process holds.
_NO_LIMIT = 1 << 60
_PROCESS = squeezed(r"Process (\d{1,9}) has ([\d.]{1,30}[a-z]{1,5}) memory in use")
_LACKS = "torch's allocator found no memory; the text lacks the figures that would say why"
_LEAST_NOTABLE = 0.05
# From this level of other texts on, a message of torch's allocator without figures says more.
_WEAK = 2
# The longest text that torch writes has about 1500 characters; a traceback above it, some thousands.
_MOST_OF_MESSAGE, _MOST_OF_TRACEBACK = 4000, 12_000
_ROUNDING_BYTES, _LARGE_XPU_BLOCK = 16 << 20, 4 << 30
_MIDDLE = squeezed(r"allocate \d|total capac|already allocated|is allocated by PyTorch|reserved by PyTorch")
# torch before 2.1 may have its figures on a line of their own above the sentence, beside which is none.
_FIGURES_ABOVE = squeezed(
    r"(?<!ib)(?<!bytes)(\((?:GPU|NPU|MLU|GCU) \d{1,4};[^()]{1,400}\))(?:[\w.]{1,40}:)?$"
)
_MOST_ABOVE = 500


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
    answer, summary = _explained(log), _read_summary(log)
    if answer is None:
        raise InputError(
            "no out-of-memory message is in the text: expected 'CUDA out of memory. Tried to allocate …', "
            "that of another backend or library, or a table of torch.cuda.memory_summary()"
        )
    if answer.kind == SUMMARY.name and summary and _has_waited(summary):
        answer = replace(answer, next_step=WAITED)
    return replace(answer, summary=summary, notes=(*answer.notes, *_summary_notes(summary)))


def is_message(text: str, *, check: Check = no_check) -> bool:
    """Return whether a text is about memory that ran out, by its words."""
    return _explained(compacted(text, check)) is not None


def _explained(log: CompactText) -> MessageAnswer | None:
    """Explain torch's message of each device, by a server around it too, or a text of another kind."""
    parts = list(_messages(log))
    messages = [_of_allocator(part, len(parts)) for part in parts]
    clear = [one for one in messages if one.message.tried_bytes is not None or one.verdict]
    matches = [
        (int(kind.one("level", "0")), match.start(), index, match)
        for index, kind in enumerate(MESSAGE_KINDS)
        if ("leads" in kind.parts or not clear) and (match := _first_match(kind, log))
    ]
    level, _, index, match = min(matches, key=itemgetter(0, 1, 2), default=(_WEAK, 0, 0, None))
    if messages and not clear and level >= _WEAK:
        return messages[0]
    other = _of_kind(MESSAGE_KINDS[index], match, log, len(parts)) if match else None
    return _of_devices(clear, other) if clear else other


def _of_devices(messages: list[MessageAnswer], server: MessageAnswer | None) -> MessageAnswer:
    """Return the first message of each device; that of a server around torch has the better next step."""
    devices = dict[object, MessageAnswer]()
    for answer in messages:
        if all(answer.message != other.message for other in devices.values()):
            devices.setdefault((answer.rank, answer.message.device), answer)
    first, *others = devices.values()
    if server:
        notes = (*first.notes, f"{server.kind}: {server.meaning}")
        first = replace(first, next_step=server.next_step, notes=notes, figures=server.figures)
    return replace(first, others=tuple(others))


def _first_match(kind: MessageKind, log: CompactText) -> re.Match[str] | None:
    """Find the first words of a kind in a text that has all that it needs, and nothing that excludes it."""
    first = min(filter(None, map(log.search, kind.all("seen"))), key=re.Match.start, default=None)
    if first is None or any(map(log.search, kind.all("unless"))):
        return None
    return first if all(map(log.search, kind.all("with"))) else None


def decode_log(data: bytes) -> str:
    """Decode a log; PowerShell writes UTF-16, whose mark is missing where its end alone was read."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace")
    odd_bytes = data[1:2000:2]
    is_wide = odd_bytes.count(0) > 4 * len(odd_bytes) // 5 > 0
    return data.decode("utf-16-le" if is_wide else "utf-8", "replace")


def read_message(text: str) -> OomMessage:
    """Read the figures of one message, of any release; ``text`` is one of compacted()."""
    values = _values(map(squeezed, ALLOCATOR.all("also")), text)
    values = {name: value for name, value in values.items() if value < _NO_LIMIT}
    allocated, unallocated = values.get("allocated_bytes"), values.pop("unallocated_bytes", None)
    if allocated is not None:
        if unallocated is not None:
            values.setdefault("reserved_bytes", allocated + unallocated)
        values["allocated_bytes"] = max(allocated - values.get("private_pool_bytes", 0), 0)
    sizes = ((int(pid), _bytes_of(size)) for pid, size in _PROCESS.findall(text))
    others = tuple((pid, n_bytes) for pid, n_bytes in sizes if n_bytes < _NO_LIMIT)
    return OomMessage(**values, other_processes=others)


def _read_summary(log: CompactText) -> MemorySummary | None:
    """Read the first memory_summary() table."""
    table = _first_match(SUMMARY, log)
    values = _values_of_kind(SUMMARY, table, log.text) if table else {}
    return MemorySummary(**values) if {"allocated_bytes", "reserved_bytes"} <= values.keys() else None


def _values_of_kind(kind: MessageKind, match: re.Match[str], text: str) -> dict[str, Any]:
    """Read the figures of another kind of text: those of its first words, then those that stand near them."""
    near = text[max(match.start() - _MOST_OF_TRACEBACK, 0) : match.start() + _MOST_OF_TRACEBACK]
    return _values((match.re, *map(squeezed, kind.all("seen", "also"))), near)


def _values(patterns: Iterable[re.Pattern[str]], text: str) -> dict[str, Any]:
    """Return the figures of a text by their names: numbers, and the texts of shapes and names."""
    values = dict[str, Any]()
    for pattern in patterns:
        match = pattern.search(text)
        for name, figure in match.groupdict().items() if match else ():
            if figure:
                values.setdefault(name, _value_of(figure, FIGURES[name].unit if name in FIGURES else ""))
    return values


def _value_of(text: str, unit: str) -> float | str:
    if unit in ("shape", "name"):
        return text
    return float(text) if unit == "share" else _bytes_of(f"{text}g" if unit == "GiB" else text)


def _bytes_of(number: str) -> int:
    """Return the bytes of a number, which may end with its unit; torch's GB of old are GiB."""
    digits = number.rstrip(_UNIT_LETTERS)
    power = 10 * _UNITS.index((number[len(digits) :] or _UNITS)[0])
    return round(float(digits.replace(",", "." if digits[-3:-2] == "," else "")) * (1 << power))


@dataclass(frozen=True, slots=True)
class _Part:
    """A message of torch's allocator in a log, with what stands before it."""

    text: str
    before: str
    rank: str


def _messages(log: CompactText) -> Iterator[_Part]:
    """Yield every message of torch's allocator in a text, also one whose first words were cut."""
    text, starts = log.text, [match.start() for match in BEGINNINGS.finditer(log.text)]
    if not starts and (middle := _MIDDLE.search(text)):
        figures = read_message(text[middle.start() : middle.start() + _MOST_OF_MESSAGE])
        if figures.total_bytes is not None or figures.allocated_bytes is not None:
            starts = [max(middle.start() - 100, 0)]
    for start, end in pairwise([*starts, len(text)]):
        log.check()
        message = text[start : min(end, start + _MOST_OF_MESSAGE)]
        above = _FIGURES_ABOVE.search(text[max(start - _MOST_ABOVE, 0) : start])
        if above and "capac" not in message:
            message += above[1]
        yield _Part(message, text[max(start - _MOST_OF_TRACEBACK, 0) : start], log.rank_at(start))


def _of_kind(kind: MessageKind, match: re.Match[str], log: CompactText, n_messages: int) -> MessageAnswer:
    """Explain a text of another kind."""
    values = _values_of_kind(kind, match, log.text)
    next_step = _next_step(kind, values)
    tried, device = values.pop("tried", None), values.pop("device", None)
    return MessageAnswer(
        kind=kind.name,
        backend=kind.one("on", "host" if kind.one("cause") == OomCause.HOST else "GPU"),
        meaning=kind.one("means"),
        message=OomMessage(device=device, tried_bytes=tried),
        n_messages=n_messages,
        next_step=next_step,
        cause=kind.one("cause", OomCause.FULL),
        rank=log.rank_at(match.start()),
        figures=tuple(
            MessageFigure(FIGURES[name].noun, FIGURES[name].unit.replace("GiB", "bytes"), value)
            for name, value in values.items()
            if name in FIGURES and value != tried
        ),
    )


def _next_step(kind: MessageKind, values: dict[str, Any]) -> str:
    """Return the next step with the figures of a text, or without them where it lacks one."""
    shown = dict(values)
    if "tried" in values:
        shown["tried"] = format_bytes(values["tried"])
    if "free_gib" in values and values.get("total"):
        shown["share"] = f"{values['free_gib'] * 100 // values['total'] / 100:.2f}"
    try:
        return kind.one("exact", kind.one("next")).format_map(shown)
    except KeyError:
        return kind.one("next")


def _of_allocator(part: _Part, n_messages: int) -> MessageAnswer:
    begin = BEGINNINGS.search(part.text)
    name = BACKEND_NAMES[begin["backend"] or "cuda"] if begin else "NPU" if "(npu" in part.text else "GPU"
    backend = BACKENDS.get(name, UNKNOWN_BACKEND)
    message = read_message(part.text)
    in_use = _minus(message.total_bytes, message.free_bytes)
    message = _with_own_process(message, in_use or 0)
    unallocated = _minus(message.reserved_bytes, message.allocated_bytes)
    unallocated = _minus(unallocated, message.private_pool_bytes or 0)
    outside = _minus(in_use, message.reserved_bytes) if message.metal_bytes is None else message.metal_bytes
    own_outside = _minus(message.process_bytes, message.reserved_bytes)
    verdict, step = _verdict(message, unallocated, backend.why_free, part.text)
    cause = verdict.cause if verdict else OomCause.UNKNOWN
    if cause == OomCause.OUTSIDE and 2 * (own_outside or 0) > (outside or 0):
        step = SAME_PROCESS
    return MessageAnswer(
        kind=ALLOCATOR.name,
        backend=name,
        meaning="" if verdict else _LACKS,
        message=message,
        n_messages=n_messages,
        unallocated_bytes=unallocated,
        outside_bytes=outside,
        own_outside_bytes=own_outside,
        verdict=verdict,
        next_step=_shown_step(step, name, part),
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
    """Take the only process, which has all that is in use, for torch's own, which a container hides."""
    sizes = [n_bytes for _, n_bytes in message.other_processes]
    is_own = len(sizes) == 1 and sizes[0] >= in_use - _ROUNDING_BYTES
    if message.process_bytes is None and is_own and 2 * (message.reserved_bytes or 0) > in_use:
        return replace(message, process_bytes=sizes[0], other_processes=())
    return message


def _phase_step(before: str) -> str:
    """Return what lessens the memory that a program needs, by the last frames of the traceback before."""
    ends = ((match.end(), step) for words, step in PHASES for match in squeezed(words).finditer(before))
    return max(ends, default=(0, LESS))[1]


def _verdict(
    message: OomMessage, unallocated: int | None, why_free: str, text: str
) -> tuple[OomVerdict | None, str]:
    for words, cause, sentence, next_step in WORDS:
        if squeezed(words).search(text):
            return OomVerdict(cause, sentence, "torch's own words", is_inferred=False), next_step
    figures = {message.free_bytes, message.allocated_bytes, message.reserved_bytes}
    verdict = decide_oom(_shortage(message, unallocated, why_free))
    if message.tried_bytes is None or (verdict.cause == OomCause.FULL and figures == {None}):
        return None, NEXT_STEPS[OomCause.UNKNOWN]
    if verdict.cause == OomCause.UNKNOWN and "xpu" in text and message.tried_bytes >= _LARGE_XPU_BLOCK:
        _, cause, sentence, next_step = LARGE_BLOCK
        return OomVerdict(cause, sentence, verdict.sentence, is_inferred=True), next_step
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
