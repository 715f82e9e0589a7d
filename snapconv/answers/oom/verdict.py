"""The verdict on a failed request, by figures alone: the bytes needed, the bytes free, and where.

torch requests a segment only where it found no block, and gives cached segments back before it
fails. So what was free inside lay beside live blocks then, or was of another pool or stream; and a
segment that would have fitted into what the device had free was not refused by the device.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from snapconv.allocator.allocator_settings import LARGE_SEGMENT_BYTES, MIN_OWN_SEGMENT_BYTES
from snapconv.units import counted, format_bytes, format_share

# What a context, libraries and NCCL take without anybody's fault: 0.3 to 1.5 GiB on devices of 2016
# to 2026.
USUAL_OUTSIDE_BYTES = 2 << 30
# No context takes half of a small device, but for the smallest.
_CONTEXT_BYTES = 1 << 30
# A larger context or NCCL may take more than is usual, but not by this share.
_NOTABLE_EXCESS = 0.25
# The driver finds no room in the last part of a device: this share, and at most so many bytes.
_UNUSABLE_SHARE, _MOST_UNUSABLE_BYTES = 1 / 256, 64 << 20
# Every program has free pieces: so many bytes beside those that the request needed, a partly used
# segment, or a small share of what is reserved. Requests that share segments have more beside them,
# in segments of other sizes.
_USUAL_BYTES, _USUAL_BESIDE_SHARED = LARGE_SEGMENT_BYTES, 128 << 20
# Pieces of less than this share of the device or the reserved memory do not serve for long.
_LITTLE_SHARE = 0.05
# So few are no more than every full device has, however small the request.
_FEW_SHARE, _MOST_FEW_BYTES = 0.01, 256 << 20
_WHY_FREE = (
    "possible: a limit by set_per_process_memory_fraction(), which a file does not record; memory "
    "that another thread or process freed meanwhile; a budget of Windows, WSL or a virtual GPU"
)


class OomCause:
    """Why a request failed, in the words of every output."""

    FULL = "full"
    FRAGMENTED = "fragmented"
    OTHER_POOL = "wrong pool or stream"
    SPLIT_LIMIT = "kept for larger requests"
    LIMIT = "limited"
    OUTSIDE = "held outside torch"
    TOO_LARGE = "larger than the device"
    UNKNOWN = "not known"
    # Only messages have the causes below.
    HOST = "host memory"
    OTHER_MEMORY = "not the device's memory"
    WARNING = "not a failure"


@dataclass(frozen=True, slots=True)
class FreePieces:
    """Free memory of some kind: how much, in how many pieces, and the largest."""

    n_bytes: int = 0
    n_pieces: int = 0
    largest_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Shortage:
    """The figures at a failed request, of a file or of a message; None: not known.

    ``block_bytes`` is the rounded request, ``segment_bytes`` what was needed of the device.
    ``usable`` may serve it, None: what is cached is not known; ``elsewhere`` is of other pools,
    streams and sizes, and ``returnable_bytes`` of it is in free segments of private pools.
    ``allowed_bytes`` is a limit that is known, ``counted_bytes`` what counts against it,
    ``rounding_bytes`` by how much both may be off.
    ``splits_below``: blocks of that size serve no smaller request (max_split_size_mb).
    ``has_pieces``: where free memory lies is known, as in a file; ``other_pool`` names the place
    elsewhere with most of it, ``other_pool_bytes``, and ``keeper`` what keeps that in a private
    pool. ``fraction`` is the memory fraction of the settings. ``others_bytes``: what other
    processes hold, where it is listed. ``why_free``: why a request may fail with more than it free.
    """

    block_bytes: int
    segment_bytes: int
    device_free_bytes: int | None
    device_total_bytes: int | None
    reserved_bytes: int | None
    live_bytes: int | None
    usable: FreePieces | None
    elsewhere: FreePieces = FreePieces()
    returnable_bytes: int = 0
    allowed_bytes: int | None = None
    counted_bytes: int | None = None
    rounding_bytes: int = 0
    splits_below: int | None = None
    has_pieces: bool = True
    other_pool: str = "another pool or stream"
    other_pool_bytes: int = 0
    keeper: str = ""
    fraction: float = 1.0
    others_bytes: int = 0
    why_free: str = _WHY_FREE


@dataclass(frozen=True, slots=True)
class OomVerdict:
    """Why a request failed, in a word and a sentence, and what that follows from."""

    cause: str
    sentence: str
    reason: str
    is_inferred: bool


# By the reason why a request failed: its cause, and two sentences about the figures of a Shortage.
_SENTENCES = {
    "too large": (
        OomCause.TOO_LARGE,
        (
            "the request of {segment_bytes} does not fit on the device, which has "
            "{device_total_bytes} in all"
        ),
        "no setting and no free memory serves it: look at the shapes at that line",
    ),
    "figures": (
        OomCause.UNKNOWN,
        (
            "the figures contradict each other: {live_bytes} in use of "
            "{reserved_bytes} that torch had reserved"
        ),
        (
            "torch's memory in use is never more than what it reserved: compare the "
            "text with the log, since nothing follows from these figures"
        ),
    ),
    "limit": (
        OomCause.LIMIT,
        "stopped by the limit of {allowed_bytes} that the program was given",
        "{counted_bytes} counted against it, and {segment_bytes} more were needed",
    ),
    "free enough": (
        OomCause.UNKNOWN,
        "the cause is not in the {source}: {segment_bytes} were needed and "
        "{device_free_bytes} were free when torch looked, after the failure",
        "{why_free}",
    ),
    "fraction": (
        OomCause.LIMIT,
        "stopped by per_process_memory_fraction:{fraction:g} of the settings",
        "the cause is not in the {source}: {segment_bytes} were needed and "
        "{device_free_bytes} were free when torch looked, after the failure",
    ),
    "below the limit": (
        OomCause.UNKNOWN,
        (
            "the cause is not in the {source}: {segment_bytes} more stay below the "
            "limit of {allowed_bytes}"
        ),
        "{why_free}",
    ),
    "device not full": (
        OomCause.UNKNOWN,
        "the cause is not in the {source}: {segment_bytes} were needed, and torch had "
        "{reserved_bytes} of {device_total_bytes}",
        "{why_free}",
    ),
    "kept for larger": (
        OomCause.SPLIT_LIMIT,
        "a free block of {usable[largest_bytes]} is kept for larger requests by max_split_size_mb",
        "blocks of {splits_below} and more are never split",
    ),
    "contradiction": (
        OomCause.UNKNOWN,
        "not known: a free block of {usable[largest_bytes]} could have served it",
        "the trace and the segments contradict each other, or the request was of another pool",
    ),
    "private pools": (
        OomCause.OTHER_POOL,
        "{elsewhere[n_bytes]} are free in private pools, which this request cannot use",
        (
            "only the CUDA graphs or MemPools that own them can: torch keeps them "
            "until the graphs are deleted"
        ),
    ),
    "block elsewhere": (
        OomCause.OTHER_POOL,
        "a free block of {elsewhere[largest_bytes]} would have been enough, but "
        "belongs to {other_pool}, which this request cannot use",
        (
            "torch had {usable[n_bytes]} cached for such requests, the largest block "
            "{usable[largest_bytes]}"
        ),
    ),
    "segments elsewhere": (
        OomCause.OTHER_POOL,
        "{returnable_bytes} in free segments would have been enough, but belongs to "
        "{other_pool}, which this request cannot use",
        (
            "torch had {usable[n_bytes]} cached for such requests, the largest block "
            "{usable[largest_bytes]}"
        ),
    ),
    "outside": (
        OomCause.OUTSIDE,
        "{outside} of the device are held outside torch's allocator",
        "a context and libraries usually take less than {usual}: the rest is another "
        "process, or a library with an allocator of its own{cached_too}",
    ),
    "fragmented": (
        OomCause.FRAGMENTED,
        "{usable[n_bytes]} are reserved and free{in_blocks}{beside}: not in one piece{other_free}",
        "that is {share} of the reserved memory, in partly used segments",
    ),
    "fragmented and full": (
        OomCause.FRAGMENTED,
        "{usable[n_bytes]} are reserved and free{in_blocks}{beside}: not in one piece{other_free}",
        "in one piece it would be enough for this request, but it is only {share} of the reserved "
        "memory: the device is nearly full as well",
    ),
    "full": (
        OomCause.FULL,
        "full: {segment_bytes} more were needed{left}{scattered}{in_use}{other_free}",
        "torch had {usable[n_bytes]} cached{of_blocks}; no single piece was large enough",
    ),
    "nothing cached": (
        OomCause.FULL,
        "full: {segment_bytes} more were needed{left}{scattered}{in_use}{other_free}",
        "torch had no cached memory that this request could use",
    ),
    "cache not known": (
        OomCause.FULL,
        "full: {segment_bytes} more were needed{left}{scattered}{in_use}{other_free}",
        "the text does not say how much of that torch had cached",
    ),
    "holder not known": (
        OomCause.UNKNOWN,
        "the device lacked memory: {segment_bytes} more were needed{left}{scattered}{in_use}",
        (
            "the text does not say who holds {outside}it: this program, torch's "
            "cache or another process"
        ),
    ),
}
# Parts of these sentences, which stand there where their figures are known.
_PARTS = {
    "in_blocks": " in {n_blocks}, the largest of {usable[largest_bytes]}",
    "of_blocks": " for such requests ({n_blocks}, the largest {usable[largest_bytes]})",
    "beside": ", {device_free_bytes} more are free on the device",
    "left": ", {device_free_bytes} were free on the device",
    "scattered": ", most likely not in one piece that the driver could use",
    "in_use": " ({live_bytes} in use)",
    "cached_too": "; in one piece, the {usable[n_bytes]} that torch had cached{with_free} would do "
    "as well",
    "other_free": "; {other_pool_bytes} are free in {other_pool}, which this request cannot use",
}
# Why a request failed beside enough memory of a private pool.
_STUCK = (
    "{other_pool_bytes} is stuck in {other_pool}, kept by {keeper}: free these "
    "tensors, or delete the CUDA graph or MemPool"
)


def decide_oom(shortage: Shortage) -> OomVerdict:
    """Decide why a request failed; the first cause that the figures show."""
    return (
        _size_or_limit(shortage)
        or _unused_memory(shortage)
        or _held_outside(shortage)
        or _lack_inside(shortage)
    )


def _size_or_limit(shortage: Shortage) -> OomVerdict | None:
    """Explain a failure by the size of the request or by a limit; else one beside enough memory."""
    need = shortage.segment_bytes
    total = shortage.device_total_bytes
    free = shortage.device_free_bytes
    allowed = shortage.allowed_bytes
    counted_bytes = shortage.counted_bytes
    is_free_enough = free is None or free >= need + _unusable_bytes(shortage)
    if shortage.usable is None and shortage.reserved_bytes not in (
        None,
        shortage.live_bytes,
    ):
        return _verdict(shortage, "figures")
    if total is not None and need >= total:
        return _verdict(shortage, "too large")
    if allowed is not None and counted_bytes is not None:
        excess = counted_bytes + need - allowed
        tolerance = shortage.rounding_bytes if is_free_enough else 0
        if excess > -tolerance:
            return _verdict(shortage, "limit", is_inferred=excess <= 0)
    return _unexplained(shortage) if is_free_enough else None


def _unexplained(shortage: Shortage) -> OomVerdict | None:
    """Say what could have refused a request that nothing known did; None where memory may lack."""
    allowed = shortage.allowed_bytes
    reserved = shortage.reserved_bytes
    if shortage.device_free_bytes is not None:
        is_limited = allowed is None and shortage.fraction < 1
        return _verdict(shortage, "fraction" if is_limited else "free enough")
    if allowed is not None:
        return _verdict(shortage, "below the limit")
    if reserved is None:
        return None
    likely_use = reserved + shortage.segment_bytes + USUAL_OUTSIDE_BYTES
    is_room_left = likely_use <= (shortage.device_total_bytes or 0)
    return _verdict(shortage, "device not full") if is_room_left else None


def _held_outside(shortage: Shortage) -> OomVerdict | None:
    """Blame what is not torch's where it is more than usual, than was missing, and than pieces."""
    total = shortage.device_total_bytes
    free = shortage.device_free_bytes
    reserved = shortage.reserved_bytes
    if total is None or (free is None and reserved is not None):
        return None
    outside = total - (free or 0) - (reserved or shortage.live_bytes or 0)
    usual = min(USUAL_OUTSIDE_BYTES, max(total // 2, _CONTEXT_BYTES))
    pieces = _fragmented_bytes(shortage, shortage.block_bytes)
    notable = 0 if shortage.others_bytes else _NOTABLE_EXCESS * usual
    if outside - usual < max(_missing_bytes(shortage), pieces, notable):
        return None
    # A text that was cut does not say whose it is.
    is_known = reserved is not None
    reason = "outside" if is_known else "holder not known"
    shown = {"outside": format_bytes(outside), "usual": format_bytes(usual)}
    if not is_known:
        # What is not known to be free is not known to be held.
        shown["outside"] = "the rest of " if shortage.live_bytes else ""
        if free is not None:
            shown["outside"] = f"{format_bytes(outside)} of "
    return _verdict(shortage, reason, is_inferred=is_known, **shown)


def _lack_inside(shortage: Shortage) -> OomVerdict:
    """Explain a lack of memory by pieces that are too small, else by a device that is full."""
    missing = _missing_bytes(shortage)
    pieces = shortage.usable
    free_bytes = _fragmented_bytes(shortage, _least_bytes(shortage))
    whole_bytes = max(shortage.reserved_bytes or 0, shortage.device_total_bytes or 0)
    is_little = free_bytes < _LITTLE_SHARE * whole_bytes
    # Every full device has a few pieces, which are no cause.
    few_bytes = max(
        2 * shortage.block_bytes, min(_FEW_SHARE * whole_bytes, _MOST_FEW_BYTES)
    )
    if free_bytes and not (is_little and free_bytes < few_bytes):
        reason = "fragmented and full" if is_little else "fragmented"
        return _verdict(shortage, reason, is_inferred=not shortage.has_pieces)
    if pieces is None:
        return _verdict(shortage, "cache not known", is_inferred=True)
    is_inferred = shortage.device_free_bytes is None or missing <= 0
    reason = "full" if pieces.n_bytes else "nothing cached"
    return _verdict(shortage, reason, is_inferred=is_inferred)


def _missing_bytes(shortage: Shortage) -> int:
    """Return the bytes of a new segment that the device lacked."""
    return shortage.segment_bytes - (shortage.device_free_bytes or 0)


def _unusable_bytes(shortage: Shortage) -> float:
    """Return how much of the free memory the driver may not find; 0 for a file, which is exact."""
    if shortage.has_pieces:
        return 0
    share = _UNUSABLE_SHARE * (shortage.device_total_bytes or 0)
    return max(shortage.rounding_bytes, min(share, _MOST_UNUSABLE_BYTES))


def _unused_memory(shortage: Shortage) -> OomVerdict | None:
    """Explain free memory of torch's that is enough, and did not serve the request."""
    usable = shortage.usable
    elsewhere = shortage.elsewhere
    block = shortage.block_bytes
    if usable is None:
        return None
    if not shortage.has_pieces:
        notable_bytes = max(usable.n_bytes, _least_notable(shortage, block))
        is_notable = elsewhere.n_bytes >= notable_bytes
        return _verdict(shortage, "private pools", is_inferred=True) if is_notable else None
    largest = usable.largest_bytes
    if largest >= block:
        if largest >= (shortage.splits_below or math.inf):
            return _verdict(shortage, "kept for larger")
        return _verdict(shortage, "contradiction", is_inferred=True)
    if elsewhere.largest_bytes >= block:
        return _verdict(shortage, "block elsewhere")
    is_enough = 0 < _missing_bytes(shortage) <= shortage.returnable_bytes
    return _verdict(shortage, "segments elsewhere") if is_enough else None


def _least_bytes(shortage: Shortage) -> int:
    """Return the fewest cached bytes that would have been enough in one piece."""
    # Free memory that the driver could not use does not make up for a part of the request.
    missing = _missing_bytes(shortage)
    return min(shortage.block_bytes, missing) if missing > 0 else shortage.block_bytes


def _fragmented_bytes(shortage: Shortage, least_bytes: int) -> int:
    """Return the free bytes; 0 where fewer than ``least_bytes`` or than every program has."""
    free_bytes = shortage.usable.n_bytes if shortage.usable else 0
    return free_bytes if free_bytes >= _least_notable(shortage, least_bytes) else 0


def _least_notable(shortage: Shortage, least_bytes: int) -> float:
    """Return how many free bytes are more than every program has, and than ``least_bytes``.

    Where torch has more than the device, which Windows allows, they are also more than what is too
    much.
    """
    reserved = shortage.reserved_bytes or 0
    is_shared = shortage.block_bytes <= MIN_OWN_SEGMENT_BYTES
    usual_bytes = _USUAL_BESIDE_SHARED if is_shared else _USUAL_BYTES
    return max(
        least_bytes + min(usual_bytes, _LITTLE_SHARE * reserved),
        reserved - (shortage.device_total_bytes or reserved),
    )


def _verdict(
    shortage: Shortage, reason: str, *, is_inferred: bool = False, **texts: str
) -> OomVerdict:
    """Write the sentences of a reason with the figures."""
    pieces = shortage.usable or FreePieces()
    free = shortage.device_free_bytes
    is_enough = pieces.n_bytes >= shortage.segment_bytes
    shown = _shown(asdict(shortage)) | {
        "source": "file" if shortage.has_pieces else "text",
        "n_blocks": counted(pieces.n_pieces, "block"),
        "with_free": "" if is_enough else f" and the {format_bytes(free or 0)} free",
        "share": format_share(pieces.n_bytes, shortage.reserved_bytes or 0),
        **texts,
    }
    is_part_known = {
        "in_blocks": pieces.n_pieces,
        "of_blocks": pieces.n_pieces,
        "beside": free,
        "left": free is not None,
        "scattered": (free or 0) >= shortage.segment_bytes,
        "in_use": shortage.live_bytes is not None,
        "cached_too": _fragmented_bytes(shortage, _least_bytes(shortage)) > 0,
        "other_free": shortage.other_pool_bytes >= max(shortage.segment_bytes, 1),
    }
    parts = {
        name: _PARTS[name].format_map(shown) if is_known else ""
        for name, is_known in is_part_known.items()
    }
    cause, sentence, reason_text = _SENTENCES[reason]
    is_stuck = shortage.keeper and parts["other_free"]
    if is_stuck and cause in (OomCause.FULL, OomCause.FRAGMENTED, OomCause.OTHER_POOL):
        reason_text = _STUCK
    shown |= parts
    return OomVerdict(
        cause, sentence.format_map(shown), reason_text.format_map(shown), is_inferred
    )


def _shown(figure: Any) -> Any:
    """Write a figure in bytes, and those in a FreePieces."""
    if isinstance(figure, dict):
        return {name: _shown(part) for name, part in figure.items()}
    return format_bytes(figure) if isinstance(figure, int) else figure
