"""One recorded run -> the same run as other recordings would have it: started late, cut by a ring, bare.

Nothing is run again, so that every allocation of a cut is one of the whole run, and its purpose is known.
"""

import re
from bisect import bisect_right
from dataclasses import dataclass
from typing import Any

from recording import Recording

Raw = dict[str, Any]

# complete: everything. late: begins with the last step, at its boundary. ring: the oldest events are lost up
# to the middle of the last step but one. ring-short: up to the middle of the last step's forward.
HISTORIES = ("complete", "late", "ring", "ring-short")
STACKS = ("all", "python")
# Rings again, cut after so many tenths of the events of one of the last two steps.
SWEPT_STEPS = {"last but one": -2, "last": -1}
TENTHS = tuple(range(1, 10))


@dataclass(frozen=True, slots=True)
class Cut:
    """A snapshot without its metadata, and how many events of the whole run it lost."""

    raw: Raw
    n_lost: int


def cut(recorded: Recording, history: str, stacks: str) -> Cut | None:
    """Make a bare snapshot of a recording; None where the run has no such moment."""
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
                block if block["address"] in newer else _without_frames(block) for block in segment["blocks"]
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
        return {**holder, "frames": [f for f in holder["frames"] if _PYTHON_FILE.search(f["filename"])]}

    segments = [
        {**python(segment), "blocks": [python(block) for block in segment["blocks"]]}
        for segment in raw["segments"]
    ]
    return {**raw, "segments": segments, "device_traces": [[*map(python, raw["device_traces"][0])]]}
