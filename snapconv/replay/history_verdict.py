"""The verdict on a trace: complete, started late, or truncated, with the reason and by how much."""

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np

from snapconv.columns import count_of, has_code, rows_of
from snapconv.replay.device_replay import Replay
from snapconv.replay.lifetimes import real_events
from snapconv.snapshot.event_table import Action, EventTable
from snapconv.snapshot.load import DeviceSnapshot, SegmentSource, Snapshot
from snapconv.units import counted, format_bytes

# Limits that users and frameworks set (torch's docs, torchtitan, Megatron-LM): a trace of exactly
# one of these lengths was most likely a full ring.
_POWERS_OF_2 = {1 << power for power in range(10, 31)}
_ROUND_NUMBERS = {
    10_000, 50_000, 100_000, 200_000, 500_000, 1_000_000, 2_000_000, 5_000_000, 10_000_000,
}  # fmt: skip
_USUAL_LIMITS = _POWERS_OF_2 | _ROUND_NUMBERS


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
        return _decide_profile(snapshot.form.earlier_of(device.device))
    history = _decide(device, replay)
    metadata = snapshot.metadata
    if metadata is None or metadata.ended != "complete":
        return history
    iterations = metadata.iterations.iteration
    if not len(iterations):
        return history
    last = int(iterations.max())
    end = f"the program was recorded up to the end of its iteration {last}, and may have gone on"
    return replace(history, reason=f"{history.reason}; {end}")


def _decide_profile(earlier: str) -> History:
    """Decide on a profile: what it did not use may have been there all the time."""
    if earlier:
        return History(Verdict.STARTED_LATE, earlier)
    return History(
        Verdict.COMPLETE, "everything in the file was allocated while it was recorded"
    )


def _decide(device: DeviceSnapshot, replay: Replay) -> History:
    n_events = len(device.events)
    if not n_events:
        return History(Verdict.NO_TRACE, "only the memory at the dump is known")
    before = _earlier_blocks(replay)
    if device.source is SegmentSource.PART_OF_TRACE:
        before = before or "memory was in use before the first event"
        before += "; the file has no segments, so every figure is a lower bound"
    proof = _proof_of_loss(device)
    if proof:
        before = before or "nothing was live before the first event"
        return History(Verdict.TRUNCATED, f"{proof}; {before}")
    may_be_full = n_events in _USUAL_LIMITS and device.history_overflowed is None
    if device.source is SegmentSource.WHOLE_TRACE and may_be_full:
        before = "the file has no segments, which would show what lasted from before"
    if not before:
        return _decide_without_earlier_blocks(replay)
    if may_be_full:
        limit = f"the trace has exactly {n_events} events, a usual max_entries"
        return History(Verdict.TRUNCATED, f"{limit}; {before}")
    if n_events == 1:
        one_event = f"the trace has one event (history was kept as 'state'); {before}"
        return History(Verdict.STARTED_LATE, one_event)
    return History(
        Verdict.STARTED_LATE, f"{before}; the event buffer probably did not overflow"
    )


def _decide_without_earlier_blocks(replay: Replay) -> History:
    """Decide on a trace that shows nothing from before its first event."""
    start = "nothing was allocated before the first event"
    if replay.n_missing_events:
        missing = f"{replay.n_missing_events} allocs or frees are missing after it"
        return History(Verdict.TRUNCATED, f"{start}, but {missing}")
    if replay.reserved.start:
        reserved = f"{format_bytes(replay.reserved.start)} were reserved already"
        return History(Verdict.STARTED_LATE, f"{start}, but {reserved}")
    return History(Verdict.COMPLETE, start)


def _earlier_blocks(replay: Replay) -> str:
    """Say what was allocated before the first event; an empty text if nothing was."""
    table = replay.allocations
    is_earlier = table.alloc_event < 0
    n_earlier = count_of(is_earlier)
    if not n_earlier:
        return ""
    is_freed = is_earlier & (table.end_event >= 0)
    n_freed = count_of(is_freed)
    requested = format_bytes(int(table.requested_bytes[is_earlier].sum()))
    freed_later = ""
    if n_freed:
        freed = format_bytes(int(table.requested_bytes[is_freed].sum()))
        freed_later = f", and {n_freed} of them ({freed}) freed in the trace"
    verb = "was" if n_earlier == 1 else "were"
    blocks = counted(n_earlier, "block")
    return f"{blocks} ({requested} requested) {verb} allocated before the first event{freed_later}"


def _proof_of_loss(device: DeviceSnapshot) -> str:
    """Return a fact that only lost events explain, or an empty text."""
    if device.history_overflowed:
        return "according to the file, its ring buffer overflowed"
    if device.history_overflowed is None and _begins_within_a_free(
        real_events(device.events)
    ):
        return "the first event is the second half of a free"
    return ""


def _begins_within_a_free(events: EventTable) -> bool:
    """Return whether a trace that has events begins with the second half of a free.

    A free is recorded in two halves, one right after the other (23,148 of 23,148 in real traces),
    unless a stream still uses the block: where other frees waited, this one may have done so too,
    from before recording began.
    """
    is_real = ~has_code(events.action, Action.UNKNOWN)
    first = int(is_real.argmax())
    if not is_real.any() or events.action[first] != Action.FREE_COMPLETED:
        return False
    real = rows_of(is_real)
    action = events.action[real]
    addr = events.addr[real]
    if not np.any(action == Action.FREE_REQUESTED):
        return False
    completed = rows_of(action == Action.FREE_COMPLETED)[1:]
    follows_request = action[completed - 1] == Action.FREE_REQUESTED
    is_same_block = addr[completed - 1] == addr[completed]
    return bool(np.all(follows_request & is_same_block))
