"""Torch's own out-of-memory message, in a log: read and explained where there is no file.

    up to 2.0   Tried to allocate A (GPU 0; B total capacity; C already allocated; D free; E reserved in …)
    2.1 on      Tried to allocate A. GPU 0 has a total capacity of B of which D is free. … Of the allocated
                memory C is allocated by PyTorch, and F is reserved by PyTorch but unallocated.

Between them may stand a limit, processes (by NVML) and private pools. HIP, XPU, NPU and others have the same
words. Sizes have two decimals, so what follows from them is about right.
"""

import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import pairwise

from snapconv.allocator.allocator_settings import (
    LARGE_SEGMENT_BYTES,
    MIN_OWN_SEGMENT_BYTES,
    SMALL_REQUEST_BYTES,
    SMALL_SEGMENT_BYTES,
)
from snapconv.answers.oom.verdict import FreePieces, OomCause, OomVerdict, Shortage, decide_oom
from snapconv.errors import InputError

_POWERS = {"b": 0, "B": 0, "K": 10, "M": 20, "G": 30, "T": 40}
_SIZE = r"(\d{1,20}(?:\.\d{1,9})?) ?(bytes|[KMGT]i?B|B)\b"
# What stands before every line of a rank, or of a quotation: `[rank0]: `, `(Worker pid=12) `, `0: `, `E   `.
_PREFIX = re.compile(r"^[^\S\n]*(?:\[[^\]\n]{1,40}\]:?|\([^)\n]{1,60}\)|\d{1,4}:|[E#>|])[ \t]", re.MULTILINE)
_BEGIN = re.compile(
    r"(?P<backend>[A-Z][A-Za-z]{1,11})(?: backend)? out of memory(?:\.| \()|"
    r"Allocation on device \d+ would exceed allowed memory|CUDA error: out of memory"
)
# What torch adds in rare cases (from 2.15 on), and what it means.
_WORDS = (
    (
        "more than 1EB",
        "more than 2^60 bytes were requested: a size was computed wrongly, or a negative one was taken",
    ),
    (
        "exceeds the expandable-segment reserve",
        "the request is larger than the address range of an expandable segment: expandable_segments_reserve",
    ),
    (
        "allocator backing this MemPool returned nullptr",
        "a MemPool's own allocator refused, whatever the device has free",
    ),
)
# The longest text that torch writes has about 1500 characters.
_MOST_OF_MESSAGE = 4000


@dataclass(frozen=True, slots=True)
class OomMessage:
    """The figures of one message; None: it does not have them. ``reserved_bytes`` includes what is allocated.

    ``process_bytes`` is all that this process has on the device; where torch cannot tell which process it is
    (in a container), all are in ``other_processes``, by their numbers.
    """

    backend: str
    device: int | None
    tried_bytes: int | None
    total_bytes: int | None
    free_bytes: int | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    private_pool_bytes: int | None
    allowed_bytes: int | None
    process_bytes: int | None
    other_processes: tuple[tuple[int, int], ...]
    is_of_driver: bool
    is_of_limit: bool


@dataclass(frozen=True, slots=True)
class MessageAnswer:
    """A message, explained; ``n_messages`` are all in the text, of which this is the first.

    ``outside_bytes`` is what is in use on the device and not torch's, ``own_outside_bytes`` the part of it
    that this process has itself. ``verdict`` None: the text has no figures.
    """

    message: OomMessage
    n_messages: int
    unallocated_bytes: int | None
    outside_bytes: int | None
    own_outside_bytes: int | None
    verdict: OomVerdict | None
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, object]:
        """Return JSON-ready values."""
        return asdict(self)


def explain_message(text: str) -> MessageAnswer:
    """Explain the first message in a text; raises InputError where there is none."""
    parts = list(_messages(text))
    if not parts:
        raise InputError(
            "no out-of-memory message of torch is in the text: expected 'CUDA out of memory. Tried to "
            "allocate …' or another backend's"
        )
    message = read_message(parts[0])
    unallocated = _minus(message.reserved_bytes, message.allocated_bytes)
    in_use = _minus(message.total_bytes, message.free_bytes)
    own = _minus(message.process_bytes, message.reserved_bytes)
    return MessageAnswer(
        message=message,
        n_messages=len(parts),
        unallocated_bytes=unallocated,
        outside_bytes=_minus(in_use, message.reserved_bytes),
        own_outside_bytes=own,
        verdict=_verdict(message, unallocated),
        notes=tuple(_notes(message, parts[0])),
    )


def read_message(text: str) -> OomMessage:
    """Read the figures of one message, whichever release wrote it."""
    begin = _BEGIN.search(text)
    backend = begin["backend"] if begin and begin["backend"] else "CUDA"
    allocated = _size(text, r"{} already allocated", r"memory {} is allocated by PyTorch",
                      r"Currently allocated : {}", r"MPS allocated: {}")  # fmt: skip
    unallocated = _size(text, r"{} is reserved by PyTorch but unallocated")
    reserved = _size(text, r"{} reserved in total by PyTorch", r"{} cached")
    if reserved is None and allocated is not None:
        # What cudaMallocAsync and MPS have cached is in no text.
        reserved = allocated + (unallocated or 0) + (_size(text, r"other allocations: {}") or 0)
    device = re.search(r"\b(?:GPU|NPU|MLU|GCU|device) +(\d+)", text)
    others = re.findall(rf"Process (\d+) has {_SIZE} memory in use", text)
    return OomMessage(
        backend=backend,
        device=int(device[1]) if device else None,
        tried_bytes=_size(text, r"Tried to allocate {}", r"Requested : {}", r"Requested size: {}"),
        total_bytes=_size(text, r"{} total capacity", r"total capaci?ty of {}", r"Device limit : {}"),
        free_bytes=_size(text, r"{} free;", r"of which {} is free", r"Free \(according to CUDA\): {}"),
        allocated_bytes=allocated,
        reserved_bytes=reserved,
        private_pool_bytes=_size(text, r"with {} allocated in private pools"),
        allowed_bytes=_size(text, r"{} allowed;", r"max allowed: {}", r"memory fraction\) : {}"),
        process_bytes=_size(text, r"this process has {} memory in use"),
        other_processes=tuple((int(pid), _bytes(number, unit)) for pid, number, unit in others),
        is_of_driver="CUDA error: out of memory" in text,
        is_of_limit="would exceed per_process_memory_fraction" in text,
    )


def _messages(text: str) -> Iterator[str]:
    """Every message in a log, each as one line, without what launchers write before its lines."""
    joined = " ".join(_PREFIX.sub(" ", text).split())
    starts = [found.start() for found in _BEGIN.finditer(joined)]
    for start, end in pairwise([*starts, len(joined)]):
        yield joined[start : min(end, start + _MOST_OF_MESSAGE)]


def _size(text: str, *patterns: str) -> int | None:
    """Read the size that the first of some wordings gives."""
    for pattern in patterns:
        if found := re.search(pattern.replace("{}", _SIZE), text):
            return _bytes(found[1], found[2])
    return None


def _bytes(number: str, unit: str) -> int:
    return round(float(number) * (1 << _POWERS[unit[0]]))


def _minus(whole: int | None, part: int | None) -> int | None:
    """Subtract, not below zero; None where either is not known."""
    return None if whole is None or part is None else max(whole - part, 0)


def _verdict(message: OomMessage, unallocated: int | None) -> OomVerdict | None:
    if message.is_of_limit:  # torch 2.15, which then names neither the limit nor what is in use
        return OomVerdict(
            OomCause.LIMIT.value,
            "stopped by per_process_memory_fraction, before the device was requested",
            "torch's own words",
            is_inferred=False,
        )
    if message.tried_bytes is None or message.reserved_bytes is None:
        return None
    return decide_oom(
        Shortage(
            block_bytes=_largest_request(message.tried_bytes),
            segment_bytes=message.tried_bytes,
            device_free_bytes=message.free_bytes,
            device_total_bytes=message.total_bytes,
            reserved_bytes=message.reserved_bytes,
            live_bytes=message.allocated_bytes or 0,
            here=FreePieces(unallocated or 0),
            allowed_bytes=_limit(message),
            has_pieces=False,
        )
    )


def _limit(message: OomMessage) -> int | None:
    """Return the limit that was given; without any, cudaMallocAsync writes the largest number."""
    allowed, total = message.allowed_bytes, message.total_bytes
    return None if allowed is None or (total is not None and allowed >= total) else allowed


def _largest_request(segment_bytes: int) -> int:
    """Return the largest request that gets a segment of this size: small ones share a segment."""
    shared = {SMALL_SEGMENT_BYTES: SMALL_REQUEST_BYTES, LARGE_SEGMENT_BYTES: MIN_OWN_SEGMENT_BYTES}
    return shared.get(segment_bytes, segment_bytes)


def _notes(message: OomMessage, text: str) -> Iterator[str]:
    """Explain the parts of the text that are easily misread, and those that it lacks."""
    tried, total, reserved = message.tried_bytes, message.total_bytes, message.reserved_bytes
    if message.is_of_driver and tried is None:
        yield "an error of the driver, not of torch's allocator: a context, a library or NCCL found no memory"
    if tried is not None and message.backend != "MPS":
        if tried == SMALL_SEGMENT_BYTES:
            yield "2 MiB is the segment for every request of up to 1 MiB: what was requested is less"
        elif tried == LARGE_SEGMENT_BYTES:
            yield "20 MiB is the segment for every request of 1 to 10 MiB: what was requested is less"
    yield from (note for words, note in _WORDS if words in text)
    if total is not None and reserved is not None and reserved > total:
        yield "torch has more than the device: the driver moved some of it to the host's memory (Windows)"
    if message.process_bytes is None and message.other_processes:
        yield "torch did not recognise its own process (a container): one of those listed may be this one"
    if message.total_bytes is not None and message.process_bytes is None and not message.other_processes:
        yield "what other processes have is not in the text: see nvidia-smi"
