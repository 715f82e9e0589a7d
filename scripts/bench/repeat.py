"""Repeat the trace of a real snapshot until it has as many events as asked: a large file with real stacks.

    python scripts/bench/repeat.py --events 1000000 SNAPSHOT OUT.pickle

Read is a pickle only, and by Python's own unpickler: give it no file that you do not trust. The
parts follow each other in time, but not by what they do: the memory at one's end is not that at the
start of the next.
"""

import argparse
import pickle
from pathlib import Path
from typing import Any

PROTOCOL = 4


def repeated(trace: list[dict[str, Any]], n_times: int) -> list[dict[str, Any]]:
    """Return the events again and again, as dictionaries of their own; lists of frames stay shared."""
    times = [event["time_us"] for event in trace if "time_us" in event]
    length_us = max(times) - min(times) + 1 if times else 0
    found = []
    for number in range(n_times):
        lists: dict[int, list[Any]] = {}
        for event in trace:
            copy = dict(event)
            if "time_us" in copy:
                copy["time_us"] += number * length_us
            if isinstance(copy.get("frames"), list):
                copy["frames"] = lists.setdefault(id(copy["frames"]), list(copy["frames"]))
            found.append(copy)
    return found


def main() -> None:
    """Read the command line and write the file."""
    parser = argparse.ArgumentParser(description="Repeat the trace of a real snapshot.")
    parser.add_argument(
        "--events", type=int, required=True, help="as many at least, if the file has any"
    )
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    raw = pickle.loads(arguments.snapshot.read_bytes())
    n_events = sum(map(len, raw["device_traces"]))
    n_times = max(1, -(-arguments.events // max(n_events, 1)))
    raw["device_traces"] = [repeated(trace, n_times) for trace in raw["device_traces"]]
    arguments.out.write_bytes(pickle.dumps(raw, PROTOCOL))
    print(
        f"{arguments.out}: {n_events * n_times} events, {n_times} times {arguments.snapshot.name}"
    )


if __name__ == "__main__":
    main()
