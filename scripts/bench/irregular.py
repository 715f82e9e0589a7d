"""A snapshot in which no two allocations are alike: their sizes, places and stacks are left to chance.

    python scripts/bench/irregular.py EVENTS OUT.pickle

A training job repeats its allocations in every step, a server with requests of any length does not: this is
its worst case. Every allocation has a segment of its own, so that the history is lawful without an allocator.
"""

import argparse
import pickle
import random
from pathlib import Path

SEED = 7
N_SEGMENTS, SEGMENT_BYTES, FIRST_ADDR = 3_000, 16 << 20, 0x7F00_0000_0000
N_FRAMES, N_STACKS = 3_000, 2_000
START_US = 1_700_000_000_000_000


def stacks(chance: random.Random) -> list[list[dict[str, object]]]:
    """Stacks of 3 to 12 frames of Python."""
    frames = [
        {"filename": f"/home/me/project/m{i % 40}.py", "line": i, "name": f"f{i}"} for i in range(N_FRAMES)
    ]
    return [[chance.choice(frames) for _ in range(chance.randint(3, 12))] for _ in range(N_STACKS)]


def trace(n_events: int, chance: random.Random) -> tuple[list[dict[str, object]], dict[int, int]]:
    """Events, and the bytes of what is live after them, by segment."""
    known = stacks(chance)
    events: list[dict[str, object]] = []
    live: dict[int, int] = {}
    free, order, time_us = list(range(N_SEGMENTS)), list[int](), START_US
    while len(events) < n_events - 1:
        time_us += chance.randint(1, 40)
        if not live or (len(live) < N_SEGMENTS * 0.7 and chance.random() < 0.6):
            segment = free.pop(chance.randrange(len(free)))
            order.append(segment)
            live[segment] = chance.randint(1, SEGMENT_BYTES // 512 - 1) * 512
            size, actions = live[segment], ["alloc"]
        else:
            place = chance.randrange(len(live))
            order[place], order[-1] = order[-1], order[place]
            segment = order.pop()
            size, actions = live.pop(segment), ["free_requested", "free_completed"]
            free.append(segment)
        event = {"addr": FIRST_ADDR + segment * SEGMENT_BYTES, "size": size, "stream": 0, "time_us": time_us}
        frames = chance.choice(known)
        events += [{"action": action, **event, "frames": frames} for action in actions]
    return events, live


def segment(number: int, n_bytes: int) -> dict[str, object]:
    """A segment at the dump, with its block and what is left of it."""
    addr = FIRST_ADDR + number * SEGMENT_BYTES
    blocks = [{"address": addr, "size": n_bytes, "requested_size": n_bytes, "state": "active_allocated"}]
    rest = {
        "address": addr + n_bytes,
        "size": SEGMENT_BYTES - n_bytes,
        "requested_size": 0,
        "state": "inactive",
    }
    return {
        "device": 0,
        "address": addr,
        "total_size": SEGMENT_BYTES,
        "stream": 0,
        "segment_type": "large",
        "segment_pool_id": (0, 0),
        "is_expandable": False,
        "frames": [],
        **dict.fromkeys(("allocated_size", "active_size", "requested_size"), n_bytes),
        "blocks": [{**block, "frames": []} for block in (*blocks * bool(n_bytes), rest)],
    }


def write(n_events: int, path: Path) -> None:
    """Write the snapshot."""
    events, live = trace(n_events, random.Random(SEED))
    segments = [segment(number, live.get(number, 0)) for number in range(N_SEGMENTS)]
    with path.open("wb") as file:
        pickle.dump({"segments": segments, "device_traces": [events]}, file, protocol=4)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a snapshot without two alike allocations.")
    parser.add_argument("events", type=int)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    write(arguments.events, arguments.path)
