"""One recorded run -> the same run as other recordings would have it: started late, cut by a ring, bare.

Nothing is run again, so that every allocation of a cut is one of the whole run, and its purpose is
known.
"""

import re
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

from recording import Recording

Raw = dict[str, Any]

# complete: everything. late: begins with the last step, at its boundary. ring: the oldest events
# are lost up to the middle of the last step but one. ring-short: up to the middle of the last
# step's forward.
HISTORIES = ("complete", "late", "ring", "ring-short")
# What people record of a step, ended early. forward: begins with the last step, ends when its
# backward begins. backward: the same up to the end of backward. first-forward: begins with the
# first forward of the run, when there are no states, and ends with it. dump-peak, dump-rest: no
# event at all, the blocks without frames, at the run's peak and at the end of its last step but
# one.
ENDED_EARLY = ("forward", "backward", "first-forward", "dump-peak", "dump-rest")
STACKS = ("all", "python")
# Rings again, cut after so many tenths of the events of one of the last two steps.
SWEPT_STEPS = {"last but one": -2, "last": -1}
TENTHS = tuple(range(1, 10))


@dataclass(frozen=True, slots=True)
class Cut:
    """A snapshot without its metadata, and how many events of the whole run it lost.

    ``end``: the events of the whole run that came before the snapshot was taken, None for all of
    them.
    """

    raw: Raw
    n_lost: int
    end: int | None = None


def cut(recorded: Recording, history: str, stacks: str) -> Cut | None:
    """Make a bare snapshot of a recording; None where the run has no such moment."""
    if history in ENDED_EARLY:
        return _ended_early(recorded, history, stacks)
    n_lost = _n_lost(recorded, history)
    if n_lost is None:
        return None
    raw = _from(recorded, n_lost)
    if history == "late":
        raw = _begun_late(raw, recorded.step_ends[-2])
    return Cut(_with_stacks(raw, stacks), n_lost)


def cut_at(recorded: Recording, step: str, tenth: int, stacks: str) -> Cut | None:
    """Make a bare snapshot of a ring that is cut within one of ``SWEPT_STEPS``; None without that step."""
    _, ends = _moments(recorded)
    last = SWEPT_STEPS[step]
    if len(ends) < 1 - last:
        return None
    began, ended = ends[last - 1], ends[last]
    n_lost = began + (ended - began) * tenth // 10
    return Cut(_with_stacks(_from(recorded, n_lost), stacks), n_lost)


def _from(recorded: Recording, n_lost: int) -> Raw:
    """Return the bare snapshot without the oldest events."""
    (trace,) = recorded.raw["device_traces"]
    return {**_bare(recorded.raw), "device_traces": [trace[n_lost:]]}


def _moments(recorded: Recording) -> tuple[list[int], list[int]]:
    """Return the times of all events, and how many there are up to the end of every step."""
    times = [event["time_us"] for event in recorded.raw["device_traces"][0]]
    return times, [bisect_right(times, end) for end in recorded.step_ends]


def _n_lost(recorded: Recording, history: str) -> int | None:
    """How many events a history lacks."""
    times, ends = _moments(recorded)
    if history == "complete":
        return 0
    if history == "late":
        return ends[-2] if len(ends) > 1 else None
    if history == "ring":
        return (ends[-3] + ends[-2]) // 2 if len(ends) > 2 else None
    forwards = [
        (bisect_right(times, row["began_us"]), bisect_right(times, row["ended_us"]))
        for row in recorded.raw["snapconv"]["phases"]
        if row["phase"] == "forward"
    ]
    last = [(began, ended) for began, ended in forwards if len(ends) > 1 and began >= ends[-2]]
    return sum(last[0]) // 2 if last else None


def _ended_early(recorded: Recording, history: str, stacks: str) -> Cut | None:
    """Make a bare snapshot that was taken before the run ended; None where the run has no such moment."""
    range_ = _range_of(recorded, history)
    if range_ is None:
        return None
    n_lost, end = range_
    (trace,) = recorded.raw["device_traces"]
    raw = {
        **_bare(recorded.raw),
        "device_traces": [trace[n_lost:end]],
        "segments": _segments_at(trace, end),
    }
    # No annotation is newer than the last event, nor older than the first.
    times = [event["time_us"] for event in trace]
    until = times[end] if end < len(times) else times[-1] + 1
    raw["external_annotations"] = [
        row for row in raw["external_annotations"] if row["time_us"] < until
    ]
    raw = _begun_late(raw, times[n_lost] if n_lost < end else until)
    return Cut(_with_stacks(raw, stacks), n_lost, end)


def _range_of(recorded: Recording, history: str) -> tuple[int, int] | None:
    """Return the first event that a history has, and the first one after its end."""
    times, ends = _moments(recorded)
    if len(ends) < 2:
        return None
    if history == "dump-rest":
        return ends[-2], ends[-2]
    if history == "dump-peak":
        peak = _peak(recorded.raw["device_traces"][0]) + 1
        return peak, peak
    marked = {
        phase: [
            (bisect_right(times, row["began_us"]), bisect_right(times, row["ended_us"]))
            for row in recorded.raw["snapconv"]["phases"]
            if row["phase"] == phase
        ]
        for phase in ("forward", "backward")
    }
    backwards = marked["backward"]
    if history == "first-forward":
        if not marked["forward"]:
            return None
        began, ended = marked["forward"][0]
        first = next((begin for begin, _ in backwards if begin > began), ended)
        return began, first
    of_step = [span for span in backwards if span[0] >= ends[-2]]
    if history == "backward":
        return (ends[-2], of_step[-1][1]) if of_step else None
    forwards = [span for span in marked["forward"] if span[0] >= ends[-2]]
    end = of_step[0][0] if of_step else forwards[-1][1] if forwards else ends[-2]
    return (ends[-2], end) if end > ends[-2] else None


def _peak(trace: list[Raw]) -> int:
    """Return the first event at which most bytes are allocated."""
    allocated = highest = event = 0
    for number, row in enumerate(trace):
        allocated += {"alloc": row["size"], "free_requested": -row["size"]}.get(row["action"], 0)
        if allocated > highest:
            highest, event = allocated, number
    return event


_ALIGNMENT = 512


def _segments_at(trace: list[Raw], end: int) -> list[Raw]:
    """Build the segments as they were before an event of a whole run: none of them is expandable."""
    segments: dict[int, Raw] = {}
    blocks: dict[int, Raw] = {}
    for event in trace[:end]:
        action, addr = event["action"], event["addr"]
        if action == "segment_alloc":
            segments[addr] = event
        elif action == "segment_free":
            segments.pop(addr, None)
        elif action == "alloc":
            blocks[addr] = event
        elif action == "free_completed":
            blocks.pop(addr, None)
    starts = sorted(blocks)
    return [_segment(event, blocks, starts) for event in segments.values()]


def _segment(event: Raw, blocks: dict[int, Raw], starts: list[int]) -> Raw:
    first, end = event["addr"], event["addr"] + event["size"]
    rows, at = [], first
    for addr in starts[bisect_left(starts, first) : bisect_left(starts, end)]:
        if addr > at:
            rows.append(_block(at, addr - at, "inactive", 0, []))
        size = -(-blocks[addr]["size"] // _ALIGNMENT) * _ALIGNMENT
        rows.append(
            _block(addr, size, "active_allocated", blocks[addr]["size"], blocks[addr]["frames"])
        )
        at = addr + size
    if at < end:
        rows.append(_block(at, end - at, "inactive", 0, []))
    in_use = sum(row["size"] for row in rows if row["state"] != "inactive")
    return {
        "device": 0,
        "address": first,
        "total_size": event["size"],
        "allocated_size": in_use,
        "active_size": in_use,
        "requested_size": sum(row["requested_size"] for row in rows),
        "stream": event["stream"],
        "segment_type": "small" if event["size"] <= _SMALL_SEGMENT else "large",
        "segment_pool_id": event["pool_id"],
        "is_expandable": False,
        "frames": [],
        "blocks": rows,
    }


# torch's kSmallBuffer.
_SMALL_SEGMENT = 2 << 20


def _block(addr: int, size: int, state: str, requested: int, frames: list[Raw]) -> Raw:
    return {
        "address": addr,
        "size": size,
        "requested_size": requested,
        "state": state,
        "frames": frames,
    }


def _bare(raw: Raw) -> Raw:
    """Leave out what only a recorder writes."""
    kept = {key: value for key, value in raw.items() if key != "snapconv"}
    kept["external_annotations"] = [
        row for row in raw["external_annotations"] if not row["name"].startswith("snapconv:")
    ]
    return kept


def _begun_late(raw: Raw, first_us: int) -> Raw:
    """Take away the frames of blocks and the annotations that are older than the first event."""
    newer = {event["addr"] for event in raw["device_traces"][0] if event["action"] == "alloc"}
    segments = [
        {
            **segment,
            "frames": [],
            "blocks": [
                block if block["address"] in newer else _without_frames(block)
                for block in segment["blocks"]
            ],
        }
        for segment in raw["segments"]
    ]
    annotations = [row for row in raw["external_annotations"] if row["time_us"] >= first_us]
    return {**raw, "segments": segments, "external_annotations": annotations}


def _without_frames(holder: Raw) -> Raw:
    """As torch writes what it has no stack of: all real snapshots have an empty list there."""
    return {**holder, "frames": []}


_PYTHON_FILE = re.compile(r"\.py$|^<")


def _with_stacks(raw: Raw, stacks: str) -> Raw:
    """Leave out the C++ frames, if so, as a recording with ``stacks="python"`` does."""
    if stacks != "python":
        return raw

    def python(holder: Raw) -> Raw:
        if "frames" not in holder:
            return holder
        return {
            **holder,
            "frames": [f for f in holder["frames"] if _PYTHON_FILE.search(f["filename"])],
        }

    segments = [
        {**python(segment), "blocks": [python(block) for block in segment["blocks"]]}
        for segment in raw["segments"]
    ]
    return {**raw, "segments": segments, "device_traces": [[*map(python, raw["device_traces"][0])]]}
