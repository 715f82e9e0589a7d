"""The verdict on a failed request, by figures alone: the bytes needed, the bytes free, and where.

torch requests a segment only where it found no block, and gives cached segments back before it
fails. So what was free inside lay beside live blocks then, or was of another pool or stream; and a
segment that would have fitted into what the device had free was not refused by the device.
"""

import math
from dataclasses import asdict, dataclass
from typing import Any

from snapconv.units import counted, format_bytes, format_share

# What a context, libraries and NCCL take without anybody's fault: 0.3 to 1.5 GiB on devices of 2016
# to 2026.
USUAL_OUTSIDE_BYTES = 2 << 30
# No context takes half of a small device, but for the smallest.
_CONTEXT_BYTES = 1 << 30
# The driver finds no room in the last part of a device, of this share, and at most of so many
# bytes.
_UNUSABLE_SHARE, _MOST_UNUSABLE_BYTES = 1 / 256, 64 << 20
# Every program has free pieces: up to this share of what is reserved, and not more than so many
# bytes beside those that the request needed. Pieces of less than the least share would not have
# served for long.
_USUAL_SHARE, _USUAL_BYTES, _LEAST_SHARE = 0.05, 128 << 20, 0.015
_WHY_FREE = (
    "possible: a limit by set_per_process_memory_fraction(), which a file does not record; memory "
    "that "
    "another thread or process freed meanwhile; a budget of Windows, WSL or a virtual GPU"
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
    # Of messages alone.
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
    ``here`` may serve it, None: what is cached is not known; ``elsewhere`` is of other pools,
    streams and sizes, and ``returnable_bytes`` of it is in free segments of private pools.
    ``allowed_bytes`` is a limit that is known, ``counted_bytes`` what counts against it,
    ``rounding_bytes`` by how much both may be off.
    ``splits_below``: blocks of that size serve no smaller request (max_split_size_mb).
    ``has_pieces``:
    where free memory lies is known, as in a file; ``other_pool`` names the place elsewhere with
    most of it, ``other_pool_bytes``, and ``keeper`` what keeps that in a private pool. ``fraction``
    is the memory fraction of the settings. ``why_free``: why a request may fail with more than it
    free.
    """

    block_bytes: int
    segment_bytes: int
    device_free_bytes: int | None
    device_total_bytes: int | None
    reserved_bytes: int | None
    live_bytes: int | None
    here: FreePieces | None
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
            "the figures contradict each other: {live_bytes} in use of {reserved_bytes} that torch "
            "had reserved"
        ),
        (
            "torch never prints that: the text was changed or made up, and nothing follows from "
            "its figures"
        ),
    ),
    "limit": (
        OomCause.LIMIT,
        "stopped by the limit of {allowed_bytes} that the program was given",
        "{counted_bytes} counted against it, and {segment_bytes} more were needed",
    ),
    "free enough": (
        OomCause.UNKNOWN,
        "the cause is not in the {source}: {segment_bytes} were needed and {device_free_bytes} "
        "were free when torch looked, after the failure",
        "{why_free}",
    ),
    "fraction": (
        OomCause.LIMIT,
        "stopped by per_process_memory_fraction:{fraction:g} of the settings",
        "the cause is not in the {source}: {segment_bytes} were needed and {device_free_bytes} "
        "were free when torch looked, after the failure",
    ),
    "below the limit": (
        OomCause.UNKNOWN,
        (
            "the cause is not in the {source}: {segment_bytes} more stay below the limit of "
            "{allowed_bytes}"
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
        "a free block of {here[largest_bytes]} is kept for larger requests by max_split_size_mb",
        "blocks of {splits_below} and more are never split",
    ),
    "contradiction": (
        OomCause.UNKNOWN,
        "not known: a free block of {here[largest_bytes]} could have served it",
        "the trace and the segments contradict each other, or the request was of another pool",
    ),
    "private pools": (
        OomCause.OTHER_POOL,
        "{elsewhere[n_bytes]} are free in private pools, which this request cannot use",
        (
            "only the CUDA graphs or MemPools that own them can: torch keeps them until the graphs "
            "are deleted"
        ),
    ),
    "block elsewhere": (
        OomCause.OTHER_POOL,
        "a free block of {elsewhere[largest_bytes]} would have been enough, but belongs to "
        "{other_pool}, which this request cannot use",
        (
            "torch had {here[n_bytes]} cached for such requests, the largest block "
            "{here[largest_bytes]}"
        ),
    ),
    "segments elsewhere": (
        OomCause.OTHER_POOL,
        "{returnable_bytes} in free segments would have been enough, but belongs to {other_pool}, "
        "which this request cannot use",
        (
            "torch had {here[n_bytes]} cached for such requests, the largest block "
            "{here[largest_bytes]}"
        ),
    ),
    "outside": (
        OomCause.OUTSIDE,
        "{outside} of the device are held outside torch's allocator",
        "a context and libraries take less, up to about 2 GiB: the rest is another process, or a "
        "library with an allocator of its own",
    ),
    "fragmented": (
        OomCause.FRAGMENTED,
        "{here[n_bytes]} are reserved and free{in_blocks}{beside}: not in one piece{other_free}",
        "that is {share} of the reserved memory, in partly used segments",
    ),
    "full": (
        OomCause.FULL,
        "full: {segment_bytes} more were needed{left}{scattered}{in_use}{other_free}",
        "torch had {here[n_bytes]} cached{of_blocks}; no single piece was large enough",
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
            "the text does not say who holds {outside} of it: this program, torch's cache or "
            "another process"
        ),
    ),
}
# Parts of these sentences, which stand there where their figures are known.
_PARTS = {
    "in_blocks": " in {n_blocks}, the largest of {here[largest_bytes]}",
    "of_blocks": " for such requests ({n_blocks}, the largest {here[largest_bytes]})",
    "beside": ", {device_free_bytes} more are free on the device",
    "left": ", {device_free_bytes} were free on the device",
    "scattered": ", which the driver most likely could not use",
    "in_use": " ({live_bytes} in use)",
    "other_free": "; {other_pool_bytes} are free in {other_pool}, which this request cannot use",
}
# Why a request failed beside enough memory of a private pool.
_STUCK = (
    "{other_pool_bytes} is stuck in {other_pool}, kept by {keeper}: free these tensors, or delete "
    "the CUDA graph or MemPool"
)


def decide_oom(found: Shortage) -> OomVerdict:
    """Decide why a request failed; the first cause that the figures show."""
    if verdict := _without_shortage(found) or _unused_memory(found):
        return verdict
    total = found.device_total_bytes
    free = found.device_free_bytes
    reserved = found.reserved_bytes
    missing = found.segment_bytes - (free or 0)
    if total is not None and (free is not None or reserved is None):
        # What is not torch's is to blame where it is more than usual, than was missing, and than
        # free pieces.
        # A text that was cut does not say whose it is.
        outside = total - (free or 0) - (reserved or found.live_bytes or 0)
        usual = min(USUAL_OUTSIDE_BYTES, max(total // 2, _CONTEXT_BYTES))
        if outside - usual >= max(missing, _fragmented_bytes(found, found.block_bytes)):
            return _verdict(
                found,
                "holder not known" if reserved is None else "outside",
                is_inferred=reserved is not None,
                outside=format_bytes(outside),
            )
    # Free memory that the driver could not use does not make up for a part of the request.
    least = min(found.block_bytes, missing) if missing > 0 else found.block_bytes
    if _fragmented_bytes(found, least):
        return _verdict(found, "fragmented", is_inferred=not found.has_pieces)
    if found.here is None:
        return _verdict(found, "cache not known", is_inferred=True)
    return _verdict(
        found,
        "full" if found.here.n_bytes else "nothing cached",
        is_inferred=free is None or missing <= 0,
    )


def _without_shortage(found: Shortage) -> OomVerdict | None:
    """Explain a failure beside enough memory: by its size, by a limit, or by nothing that is known."""
    need = found.segment_bytes
    total = found.device_total_bytes
    free = found.device_free_bytes
    allowed = found.allowed_bytes
    reserved = found.reserved_bytes
    is_free_enough = free is None or free >= need + _unusable_bytes(found)
    if found.here is None and reserved not in (None, found.live_bytes):
        return _verdict(found, "figures")
    if total is not None and need >= total:
        return _verdict(found, "too large")
    if allowed is not None and found.counted_bytes is not None:
        excess = found.counted_bytes + need - allowed
        if excess > (-found.rounding_bytes if is_free_enough else 0):
            return _verdict(found, "limit", is_inferred=excess <= 0)
    if not is_free_enough:
        return None
    if free is not None:
        return _verdict(
            found, "fraction" if allowed is None and found.fraction < 1 else "free enough"
        )
    if allowed is not None:
        return _verdict(found, "below the limit")
    if total and reserved is not None and reserved + need + USUAL_OUTSIDE_BYTES <= total:
        return _verdict(found, "device not full")
    return None


def _unusable_bytes(found: Shortage) -> float:
    """Return how much of the free memory in a text the driver may not find; 0 for a file, which is exact."""
    if found.has_pieces:
        return 0
    share = _UNUSABLE_SHARE * (found.device_total_bytes or 0)
    return max(found.rounding_bytes, min(share, _MOST_UNUSABLE_BYTES))


def _unused_memory(found: Shortage) -> OomVerdict | None:
    """Explain free memory of torch's that is enough, and did not serve the request."""
    here = found.here
    elsewhere = found.elsewhere
    block = found.block_bytes
    if here is None:
        return None
    if not found.has_pieces:
        is_notable = elsewhere.n_bytes >= max(here.n_bytes, _least_notable(found, block))
        return _verdict(found, "private pools", is_inferred=True) if is_notable else None
    if here.largest_bytes >= block:
        if here.largest_bytes >= (found.splits_below or math.inf):
            return _verdict(found, "kept for larger")
        return _verdict(found, "contradiction", is_inferred=True)
    if elsewhere.largest_bytes >= block:
        return _verdict(found, "block elsewhere")
    is_enough = 0 < found.segment_bytes - (found.device_free_bytes or 0) <= found.returnable_bytes
    return _verdict(found, "segments elsewhere") if is_enough else None


def _fragmented_bytes(found: Shortage, least: int) -> int:
    """Return the free bytes; 0 where fewer than ``least`` or than every program has."""
    here = found.here.n_bytes if found.here else 0
    return here if here >= _least_notable(found, least) else 0


def _least_notable(found: Shortage, least: int) -> float:
    """Return how many free bytes are more than every program has, and than ``least``.

    Where torch has more than the device, which Windows allows, they are also more than what is too
    much.
    """
    reserved = found.reserved_bytes or 0
    return max(
        least,
        min(_USUAL_SHARE * reserved, least + _USUAL_BYTES),
        _LEAST_SHARE * reserved,
        reserved - (found.device_total_bytes or reserved),
    )


def _verdict(found: Shortage, reason: str, *, is_inferred: bool = False, **more: str) -> OomVerdict:
    """Write the sentences of a reason with the figures."""
    here = found.here or FreePieces()
    free = found.device_free_bytes
    shown = _shown(asdict(found)) | more
    shown["source"] = "file" if found.has_pieces else "text"
    shown["n_blocks"] = counted(here.n_pieces, "block")
    shown["share"] = format_share(here.n_bytes, found.reserved_bytes or 0)
    is_there = {
        "in_blocks": here.n_pieces,
        "of_blocks": here.n_pieces,
        "beside": free,
        "left": free is not None,
        "scattered": (free or 0) >= found.segment_bytes,
        "in_use": found.live_bytes is not None,
        "other_free": found.other_pool_bytes >= max(found.segment_bytes, 1),
    }
    parts = {
        name: _PARTS[name].format_map(shown) if is_shown else ""
        for name, is_shown in is_there.items()
    }
    cause, *sentences = _SENTENCES[reason]
    sentence, why = (text.format_map(shown | parts) for text in sentences)
    if (
        found.keeper
        and parts["other_free"]
        and cause in (OomCause.FULL, OomCause.FRAGMENTED, OomCause.OTHER_POOL)
    ):
        why = _STUCK.format_map(shown)
    return OomVerdict(cause, sentence, why, is_inferred)


def _shown(figure: Any) -> Any:
    """Write a figure in bytes, and those in a FreePieces."""
    if isinstance(figure, dict):
        return {name: _shown(part) for name, part in figure.items()}
    return format_bytes(figure) if isinstance(figure, int) else figure
