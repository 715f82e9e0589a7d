"""The verdict on a trace: complete, started late, or truncated, with the reason and by how much."""

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from snapconv.columns import has_code, rows_of
from snapconv.replay.device_replay import Replay
from snapconv.replay.lifetimes import real_events
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot, SegmentSource, Snapshot
from snapconv.units import counted, format_bytes

# Limits that users and frameworks set (torch's docs, torchtitan, Megatron-LM): a trace of exactly
# one of these lengths was most likely a full ring.
_USUAL_LIMITS = {
    *(1 << power for power in range(10, 31)), 10_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000,
    5_000_000, 10_000_000,
}  # fmt: skip


class Verdict(Enum):
    """The part of the device's life that the trace covers; the values stand in every output."""

    COMPLETE = "complete"
    STARTED_LATE = "started late"
    TRUNCATED = "truncated"
    NO_TRACE = "no trace"


@dataclass(frozen=True, slots=True)
class History:
    """The verdict on one device's trace, and the sentence that supports it."""

    verdict: Verdict
    reason: str


def decide_history(snapshot: Snapshot, device: DeviceSnapshot, replay: Replay) -> History:
    """Decide how complete one device's trace is; the reason names what the file lacks."""
    if snapshot.form and len(device.events):
        return _of_form(snapshot.form.n_before)
    found = _decide(device, replay)
    metadata = snapshot.metadata
    if metadata is None or metadata.ended != "complete" or not len(metadata.iterations.iteration):
        return found
    last = int(metadata.iterations.iteration.max())
    until = f"the program was recorded up to the end of its iteration {last}, and may have gone on"
    return replace(found, reason=f"{found.reason}; {until}")


def _of_form(n_before: int) -> History:
    """Decide on a profile: what it did not use may have been there all the time."""
    if not n_before:
        return History(
            Verdict.COMPLETE, "everything in the file was allocated while it was recorded"
        )
    known = f"{counted(n_before, 'allocation')} from before its first event"
    return History(
        Verdict.STARTED_LATE, f"the file has {known}, and only what was used or freed later"
    )


def _decide(device: DeviceSnapshot, replay: Replay) -> History:
    n_events = len(device.events)
    if not n_events:
        return History(Verdict.NO_TRACE, "only the memory at the dump is known")
    before = _what_was_there(replay)
    if device.source is SegmentSource.PART_OF_TRACE:
        before = before or "memory was in use before the first event"
        before += "; the file has no segments, so every figure is a lower bound"
    if proof := _proof_of_loss(device):
        return History(
            Verdict.TRUNCATED, f"{proof}; {before or 'nothing was live before the first event'}"
        )
    may_be_full = n_events in _USUAL_LIMITS and device.history_overflowed is None
    if device.source is SegmentSource.WHOLE_TRACE and may_be_full:
        before = "the file has no segments, which would show what lasted from before"
    if not before:
        return _from_nothing(replay)
    if may_be_full:
        limit = f"the trace has exactly {n_events} events, a usual max_entries"
        return History(Verdict.TRUNCATED, f"{limit}; {before}")
    if n_events == 1:
        one_event = f"the trace has one event (history was kept as 'state'); {before}"
        return History(Verdict.STARTED_LATE, one_event)
    return History(Verdict.STARTED_LATE, f"{before}; the event buffer probably did not overflow")


def _from_nothing(replay: Replay) -> History:
    """Decide on a trace that shows nothing from before its first event."""
    nothing = "nothing was allocated before the first event"
    if replay.n_missing_events:
        missing = f"{replay.n_missing_events} allocs or frees are missing after it"
        return History(Verdict.TRUNCATED, f"{nothing}, but {missing}")
    if replay.reserved.start:
        were = f"{format_bytes(replay.reserved.start)} were reserved already"
        return History(Verdict.STARTED_LATE, f"{nothing}, but {were}")
    return History(Verdict.COMPLETE, nothing)


def _what_was_there(replay: Replay) -> str:
    rows = replay.allocations
    before = rows.alloc_event < 0
    if not before.any():
        return ""
    freed = before & (rows.end_event >= 0)
    n_before = np.count_nonzero(before)
    n_freed = np.count_nonzero(freed)
    requested, given_back = (
        format_bytes(int(rows.requested_bytes[of].sum())) for of in (before, freed)
    )
    were = "was" if n_before == 1 else "were"
    freed_later = f", and {n_freed} of them ({given_back}) freed in the trace" if n_freed else ""
    blocks = counted(int(n_before), "block")
    return f"{blocks} ({requested} requested) {were} allocated before the first event{freed_later}"


def _proof_of_loss(device: DeviceSnapshot) -> str:
    """Return a fact that only lost events explain, or an empty text."""
    if device.history_overflowed is not None:
        return (
            "according to the file, its ring buffer overflowed" if device.history_overflowed else ""
        )
    is_half = _begins_within_a_free(real_events(device.events))
    return "the first event is the second half of a free" if is_half else ""


def _begins_within_a_free(events: EventTable) -> bool:
    """Return whether the trace, which has events, lost the first half of the free that it begins with.

    A free is recorded in two halves, one right after the other (23,148 of 23,148 in real traces),
    unless a stream still uses the block: where other frees waited, this one may have done so too,
    from before recording began.
    """
    is_real = ~has_code(events.action, Action.UNKNOWN)
    first = int(is_real.argmax())
    if not is_real.any() or events.action[first] != Action.FREE_COMPLETED:
        return False
    happened = rows_of(is_real)
    action = events.action[happened]
    addr = events.addr[happened]
    if not np.any(action == Action.FREE_REQUESTED):
        return False
    completed = rows_of(action == Action.FREE_COMPLETED)[1:]
    follows = (action[completed - 1] == Action.FREE_REQUESTED) & (
        addr[completed - 1] == addr[completed]
    )
    return bool(follows.all())
