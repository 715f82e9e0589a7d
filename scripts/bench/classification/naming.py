"""What the calls of torch are named that allocate, by a second run of an entry.

The same mode that times operations would show in the stacks of a snapshot, so that run is another
one; its allocations come in the same order.
"""

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from entries import ENTRIES, run_entry
from programs import Script
from recording import WITHOUT_VALUES, device_of
from setups import Setup
from torch.overrides import TorchFunctionMode

from snapconv.recorder import memory_history
from snapconv.recorder.options import RecordingOptions
from snapconv.recorder.spans import now_us
from snapconv.recorder.timing.patches import name_of

Call = tuple[int, int, str]


class _Calls(TorchFunctionMode):  # type: ignore[misc]  # torch counts as Any
    """Notes when every outermost call of torch began and ended."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Call] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = name_of(func)
        began = now_us()
        try:
            return func(*args, **(kwargs or {}))
        finally:
            if name is not None:
                self.found.append((began, now_us(), name))


def names_of_allocs(entry: str, setup: Setup, sizes: list[int]) -> list[str] | None:
    """Return the call that each alloc of the run lies in, empty outside of calls.

    None for a script, for what torch.compile makes, which allocates outside of calls, and where the
    second run allocates otherwise than the first, whose ``sizes`` are given.
    """
    if isinstance(ENTRIES[entry], Script) or entry in WITHOUT_VALUES:
        return None
    torch.manual_seed(0)
    with device_of(entry), _recording():
        with _Calls() as calls:
            run_entry(entry, setup, lambda _: None, call=lambda function, *given: function(*given))
        (trace,) = torch.cuda.memory._snapshot()["device_traces"]
    allocs = [event for event in trace if event["action"] == "alloc"]
    if [event["size"] for event in allocs] != sizes:
        return None
    began = [call[0] for call in calls.found]
    return [
        _name(calls.found, bisect_left(began, event["time_us"]), event["time_us"])
        for event in allocs
    ]


@contextmanager
def _recording() -> Iterator[None]:
    memory_history.start(RecordingOptions(stacks="python"))
    try:
        yield
    finally:
        memory_history.stop()


def _name(calls: list[Call], place: int, time_us: int) -> str:
    """Return the call that had begun before, or else in the same microsecond: none allocates in its first."""
    for began, ended, name in (*calls[max(place - 1, 0) : place], *calls[place : place + 1]):
        if began <= time_us <= ended:
            return name
    return ""
