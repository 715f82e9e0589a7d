"""The verdict on a failed request, by figures alone: the bytes needed, the bytes free, and where.

torch requests a segment only where it found no block, and gives cached segments back before it fails. So what
was free inside lay beside live blocks then, or was of another pool or stream; and a segment that would have
fitted into what the device had free was not refused by the device.
"""

from dataclasses import dataclass

from snapconv.units import counted, format_bytes, format_share

# What a context, libraries and NCCL take without anybody's fault: 0.3 to 1.5 GiB on devices of 2016 to 2026.
USUAL_OUTSIDE_BYTES = 2 << 30
# Every program has free pieces: up to this share of what is reserved, and not more than so many bytes beside
# those that the request needed.
_USUAL_SHARE, _USUAL_BYTES = 0.05, 128 << 20
_WHY_FREE = (
    "possible: a limit by set_per_process_memory_fraction(), which a file does not record; memory that "
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

    ``block_bytes`` is the rounded request, ``segment_bytes`` what was needed of the device. ``here`` may
    serve it, None: what is cached is not known; ``elsewhere`` is of other pools, streams and sizes, and
    ``returnable_bytes`` of it is in free segments of private pools. ``allowed_bytes`` is a limit that is
    known, ``counted_bytes`` what counts against it (None: what is reserved), ``rounding_bytes`` by how much
    both may be off. ``splits_below``: blocks of that size serve no smaller request (max_split_size_mb).
    ``has_pieces``: where free memory lies is known, as in a file; ``other_pool`` names the place elsewhere
    with most of it, ``other_pool_bytes``. ``why_free``: why a request may fail with more than it free.
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
    other_pool: str = ""
    other_pool_bytes: int = 0
    why_free: str = _WHY_FREE

    @property
    def missing_bytes(self) -> int:
        """The bytes that the device lacked."""
        return self.segment_bytes - (self.device_free_bytes or 0)


@dataclass(frozen=True, slots=True)
class OomVerdict:
    """Why a request failed, in a word and a sentence, and what that follows from."""

    cause: str
    sentence: str
    reason: str
    is_inferred: bool


def decide_oom(found: Shortage) -> OomVerdict:
    """Decide why a request failed; the first cause that the figures show."""
    for attempt in (_too_large, _limit, _unexplained, _kept_pieces, _other_pool, _outside, _fragmented):
        if verdict := attempt(found):
            return verdict
    return _full(found)


def _too_large(found: Shortage) -> OomVerdict | None:
    total = found.device_total_bytes
    if total is None or found.segment_bytes <= total:
        return None
    need = format_bytes(found.segment_bytes)
    sentence = f"the request of {need} is larger than the device ({format_bytes(total)})"
    reason = "no setting and no free memory serves it: look at the shapes at that line"
    return OomVerdict(OomCause.TOO_LARGE, sentence, reason, is_inferred=False)


def _limit(found: Shortage) -> OomVerdict | None:
    need, allowed = found.segment_bytes, found.allowed_bytes
    counted = found.reserved_bytes if found.counted_bytes is None else found.counted_bytes
    if allowed is None or counted is None:
        return None
    is_over = counted + need > allowed
    may_be_over = _is_free_enough(found) and counted + need > allowed - found.rounding_bytes
    if not (is_over or may_be_over):
        return None
    sentence = f"stopped by the limit of {format_bytes(allowed)} that the program was given"
    reason = f"{format_bytes(counted)} counted against it, and {format_bytes(need)} more were needed"
    return OomVerdict(OomCause.LIMIT, sentence, reason, is_inferred=not is_over)


def _unexplained(found: Shortage) -> OomVerdict | None:
    """Name no cause where the device had enough free and no limit is known to have stopped the request."""
    free, need = found.device_free_bytes, format_bytes(found.segment_bytes)
    total, reserved = found.device_total_bytes, found.reserved_bytes
    if not _is_free_enough(found):
        return None
    if free is not None:
        known = f"{need} were needed and {format_bytes(free)} were free when torch looked, after the failure"
    elif found.allowed_bytes is not None:
        known = f"{need} more stay below the limit of {format_bytes(found.allowed_bytes)}"
    elif total and reserved is not None and reserved + found.segment_bytes + USUAL_OUTSIDE_BYTES <= total:
        known = f"{need} were needed, and torch had {format_bytes(reserved)} of {format_bytes(total)}"
    else:
        return None
    sentence = f"the cause is not in the {'file' if found.has_pieces else 'text'}: {known}"
    return OomVerdict(OomCause.UNKNOWN, sentence, found.why_free, is_inferred=False)


def _is_free_enough(found: Shortage) -> bool:
    """Whether nothing shows that the device had less free than was needed."""
    return found.device_free_bytes is None or found.device_free_bytes >= found.segment_bytes


def _kept_pieces(found: Shortage) -> OomVerdict | None:
    """Explain a piece that is large enough, and was not used."""
    if found.here is None or not found.has_pieces or found.here.largest_bytes < found.block_bytes:
        return None
    largest, limit = found.here.largest_bytes, found.splits_below
    if limit is not None and largest >= limit:
        sentence = f"a free block of {format_bytes(largest)} is kept for larger requests by max_split_size_mb"
        reason = f"blocks of {format_bytes(limit)} and more are never split"
        return OomVerdict(OomCause.SPLIT_LIMIT, sentence, reason, is_inferred=False)
    sentence = f"not known: a free block of {format_bytes(largest)} could have served it"
    reason = "the trace and the segments contradict each other, or the request was of another pool"
    return OomVerdict(OomCause.UNKNOWN, sentence, reason, is_inferred=True)


def _other_pool(found: Shortage) -> OomVerdict | None:
    elsewhere, here = found.elsewhere, found.here
    if here is None:
        return None
    if not found.has_pieces:
        if elsewhere.n_bytes < _least_notable(found, found.block_bytes):
            return None
        sentence = (
            f"{format_bytes(elsewhere.n_bytes)} are free in private pools, which this request cannot use"
        )
        reason = (
            "only the CUDA graphs or MemPools that own them can: torch keeps them until the graphs are "
            "deleted"
        )
        return OomVerdict(OomCause.OTHER_POOL, sentence, reason, is_inferred=True)
    if elsewhere.largest_bytes >= found.block_bytes:
        what = f"a free block of {format_bytes(elsewhere.largest_bytes)}"
    elif 0 < found.missing_bytes <= found.returnable_bytes:
        what = f"{format_bytes(found.returnable_bytes)} in free segments"
    else:
        return None
    sentence = (
        f"{what} would have been enough, but belongs to {found.other_pool or 'another pool or stream'}, "
        "which this request cannot use"
    )
    reason = (
        f"torch had {format_bytes(here.n_bytes)} cached for such requests, the largest block "
        f"{format_bytes(here.largest_bytes)}"
    )
    return OomVerdict(OomCause.OTHER_POOL, sentence, reason, is_inferred=False)


def _outside(found: Shortage) -> OomVerdict | None:
    """Blame what is not torch's, where it is more than usual, than was missing, and than free pieces."""
    total, free, reserved = found.device_total_bytes, found.device_free_bytes, found.reserved_bytes
    if total is None or free is None or reserved is None:
        return None
    outside = max(total - free - reserved, 0)
    if outside - USUAL_OUTSIDE_BYTES < max(found.missing_bytes, _fragmented_bytes(found, found.block_bytes)):
        return None
    sentence = f"{format_bytes(outside)} of the device are held outside torch's allocator"
    reason = (
        "a context and libraries take up to about 2 GiB: the rest is another process, or a library with an "
        "allocator of its own"
    )
    return OomVerdict(OomCause.OUTSIDE, sentence, reason, is_inferred=True)


def _fragmented(found: Shortage) -> OomVerdict | None:
    here = found.here
    least, free = min(found.block_bytes, found.missing_bytes), found.device_free_bytes
    if here is None or not _fragmented_bytes(found, least):
        return None
    beside = f", {format_bytes(free)} more are free on the device" if free else ""
    blocks = f" in {counted(here.n_pieces, 'block')}" if found.has_pieces else ""
    largest = f", the largest of {format_bytes(here.largest_bytes)}" if found.has_pieces else ""
    size, share = format_bytes(here.n_bytes), format_share(here.n_bytes, found.reserved_bytes or 0)
    sentence = (
        f"{size} are reserved and free{blocks}{largest}{beside}: not in one piece{_free_elsewhere(found)}"
    )
    reason = f"that is {share} of the reserved memory, in partly used segments"
    return OomVerdict(OomCause.FRAGMENTED, sentence, reason, is_inferred=not found.has_pieces)


def _fragmented_bytes(found: Shortage, least: int) -> int:
    """Return the free bytes; 0 where fewer than ``least`` or than every program has."""
    here = found.here.n_bytes if found.here else 0
    return here if here >= _least_notable(found, least) else 0


def _least_notable(found: Shortage, least: int) -> float:
    """Return how many free bytes are more than every program has, and than ``least``."""
    return max(least, min(_USUAL_SHARE * (found.reserved_bytes or 0), least + _USUAL_BYTES))


def _free_elsewhere(found: Shortage) -> str:
    """Name the pool that has as much free as was needed, and cannot serve the request."""
    if not found.other_pool or found.other_pool_bytes < found.segment_bytes:
        return ""
    size = format_bytes(found.other_pool_bytes)
    return f"; {size} are free in {found.other_pool}, which this request cannot use"


def _full(found: Shortage) -> OomVerdict:
    live, free, here = found.live_bytes, found.device_free_bytes, found.here
    left = "" if free is None else f", {format_bytes(free)} were free on the device"
    in_use = "" if live is None else f" ({format_bytes(live)} in use)"
    need = format_bytes(found.segment_bytes)
    sentence = f"full: {need} more were needed{left}{in_use}{_free_elsewhere(found)}"
    reason = "the text does not say how much torch had cached"
    if here is not None and not here.n_bytes:
        reason = "torch had no cached memory that this request could use"
    elif here is not None:
        most = f"{counted(here.n_pieces, 'block')}, the largest {format_bytes(here.largest_bytes)}"
        blocks = f" for such requests ({most})" if found.has_pieces and here.n_pieces else ""
        reason = f"torch had {format_bytes(here.n_bytes)} cached{blocks}; no single piece was large enough"
    return OomVerdict(OomCause.FULL, sentence, reason, is_inferred=free is None)
