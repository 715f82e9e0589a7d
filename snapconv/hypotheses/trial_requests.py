"""The requests of a trial: their sizes and pools under its settings, and where memory begins."""

from dataclasses import dataclass, replace

import numpy as np

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES
from snapconv.columns import Int64Column
from snapconv.hypotheses.allocator_calls import AllocatorCalls
from snapconv.hypotheses.trial_outcome import Trial
from snapconv.replay.rounding import RoundingRules

# Above every device address, so that new segments collide with none of the file.
FIRST_ADDR = 1 << 50
# Settings that put no block elsewhere, as long as memory does not run out.
_MOVES_NOTHING = ("memory_fraction", "garbage_collection_threshold", "conf", "cuda_conf")


@dataclass(frozen=True, slots=True)
class TrialRequests:
    """The requests of a trial: one row for each allocation, and one for calls that are about none.

    ``rounded`` are bytes, ``pool_number`` is twice the position in ``calls.pools``, and 1 more for
    large requests. ``is_placed_anew``: the memory of before the first call does not lie where it
    lay.
    """

    calls: AllocatorCalls
    trial: Trial
    requested: Int64Column
    rounded: Int64Column
    stream: Int64Column
    pool_number: Int64Column
    is_placed_anew: bool


def requests_of(calls: AllocatorCalls, trial: Trial) -> TrialRequests:
    """Return the requests of some calls as a trial makes them."""
    requested = np.append(calls.requested_bytes, 0)
    rounded = RoundingRules(trial.settings).rounded(requested)
    pool = np.append(calls.pool, calls.default_pool)
    return TrialRequests(
        calls=calls,
        trial=trial,
        requested=requested,
        rounded=rounded,
        stream=np.append(calls.stream, 0),
        pool_number=pool * 2 + (rounded > SMALL_REQUEST_BYTES),
        is_placed_anew=trial.is_placed_anew or not _can_stay(calls, trial),
    )


def _can_stay(calls: AllocatorCalls, trial: Trial) -> bool:
    """Return whether the settings, the memory and the requests place blocks as the trace did."""
    layout = calls.start
    reserved = sum(segment.size for segment in layout.segments)
    for limit in (trial.capacity, trial.limit):
        if limit is not None and reserved > limit:
            return False
    unmoved = {name: getattr(calls.file_settings, name) for name in _MOVES_NOTHING}
    if replace(trial.settings, **unmoved) != calls.file_settings:
        return False
    for segment in layout.segments:
        for live in segment.live:
            if live.requested_size != calls.requested_bytes[layout.rows[live.addr]]:
                return False
    return True
