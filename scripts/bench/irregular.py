"""A snapshot in which no two allocations are alike: their sizes, places and stacks are left to chance.

    python scripts/bench/irregular.py EVENTS OUT.pickle

A training job repeats its allocations in every step, a server with requests of any length does not:
this is its worst case. Every allocation has a segment of its own, so that the history is lawful
without an allocator.
"""

import argparse
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from scripts.bench.pickle_stream import (
    PickleStream,
    fetch,
    integer,
)  # the root is on the path only now

SEED = 7
N_SEGMENTS, SEGMENT_BYTES, FIRST_ADDR = 3_000, 16 << 20, 0x7F00_0000_0000
N_FRAMES, N_STACKS = 3_000, 2_000
START_US = 1_700_000_000_000_000


Frame = dict[str, object]


class Event(NamedTuple):
    """A trace entry; ``stack`` is the number of one of the stacks."""

    action: str
    addr: int
    size: int
    time_us: int
    stack: int


def stacks(chance: random.Random) -> list[list[Frame]]:
    """Stacks of 3 to 12 frames of Python."""
    frames: list[Frame] = [
        {"filename": f"/home/me/project/m{i % 40}.py", "line": i, "name": f"f{i}"}
        for i in range(N_FRAMES)
    ]
    return [[chance.choice(frames) for _ in range(chance.randint(3, 12))] for _ in range(N_STACKS)]


def trace(n_events: int, chance: random.Random, live: dict[int, int]) -> Iterator[Event]:
    """Events one by one; ``live`` has the bytes of what is live after them, by segment."""
    free, order, time_us, n = list(range(N_SEGMENTS)), list[int](), START_US, 0
    while n < n_events - 1:
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
        stack = chance.randrange(N_STACKS)
        for action in actions:
            yield Event(action, FIRST_ADDR + segment * SEGMENT_BYTES, size, time_us, stack)
        n += len(actions)


def segment(number: int, n_bytes: int) -> dict[str, object]:
    """Return a segment at the dump, with its block and what is left of it."""
    addr = FIRST_ADDR + number * SEGMENT_BYTES
    blocks = [
        {"address": addr, "size": n_bytes, "requested_size": n_bytes, "state": "active_allocated"}
    ]
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


class Writer:
    """Encodes the parts of the snapshot; frames and their lists are one object wherever they stand."""

    def __init__(self, stream: PickleStream) -> None:
        self._stream = stream
        self._memo: dict[int, int] = {}

    def value(self, value: object) -> bytes:
        """Encode dictionaries, lists, texts and numbers."""
        stream = self._stream
        if isinstance(value, dict):
            parts = [stream.begin_dict()]
            for key, item in value.items():
                parts += [stream.text(key), self.value(item)]
            return b"".join(parts) + b"u"
        if isinstance(value, list):
            return b"".join(stream.list_pieces(len(value), map(self.value, value)))
        return stream.pair(*value) if isinstance(value, tuple) else stream.settings(value)

    def shared(self, value: Frame | list[Frame]) -> bytes:
        """Encode what the caller keeps: the first time in full, then as a reference."""
        if id(value) in self._memo:
            return fetch(self._memo[id(value)])
        self._memo[id(value)] = self._stream.n_memoised
        if isinstance(value, dict):
            return self.value(value)
        return b"".join(self._stream.list_pieces(len(value), map(self.shared, value)))

    def event(self, event: Event, known: list[list[Frame]]) -> bytes:
        """Encode a trace entry."""
        text = self._stream.text
        parts = [self._stream.begin_dict(), text("action"), text(event.action)]
        numbers = {"addr": event.addr, "size": event.size, "stream": 0, "time_us": event.time_us}
        for key, value in numbers.items():
            parts += [text(key), integer(value)]
        return b"".join((*parts, text("frames"), self.shared(known[event.stack]), b"u"))


def write(n_events: int, path: Path) -> None:
    """Write the snapshot, an event at a time: first its end, which stands before them in the file."""
    known = stacks(random.Random(SEED))
    live: dict[int, int] = {}
    n_made = sum(1 for _ in trace(n_events, random.Random(SEED), live))
    segments = [segment(number, live.get(number, 0)) for number in range(N_SEGMENTS)]
    with path.open("wb") as file:
        stream = PickleStream(file)
        writer = Writer(stream)
        stream.write(stream.begin_dict() + stream.text("segments") + writer.value(segments))
        stream.write(stream.text("device_traces") + b"]" + stream.memoise())
        events = (writer.event(event, known) for event in trace(n_events, random.Random(SEED), {}))
        for piece in stream.list_pieces(n_made, events):
            stream.write(piece)
        stream.write(b"au")
        stream.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Write a snapshot without two alike allocations.")
    parser.add_argument("events", type=int)
    parser.add_argument("path", type=Path)
    arguments = parser.parse_args()
    write(arguments.events, arguments.path)
