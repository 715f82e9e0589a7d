"""Points in time on the device's clock: marks that are made now and read when the iteration is over.

On a GPU a mark is a CUDA event: making one waits for nothing, and what lies between two is known
once the device has come past the second. Without one a mark is the processor's time.
"""

import os
import time
from collections.abc import Callable
from itertools import pairwise
from statistics import median
from typing import Any, Protocol

from snapconv.recorder.environment import is_capturing_graph

_EMPTY_PAIRS = 20


class Clock(Protocol):
    """Makes marks; a mark is anything, and only its clock can read it."""

    def mark(self) -> Any:
        """Mark this point of the work."""

    def can_mark(self) -> bool:
        """Whether a mark may be made here and now."""

    def ms(self, begin: Any, end: Any) -> float:
        """Return the milliseconds between two marks, after ``settle``."""

    def was_reached(self, mark: Any) -> bool:
        """Whether the device has reached a mark yet; a query that does not wait."""

    def settle(self) -> None:
        """Wait until every mark has been reached."""

    def forget(self) -> None:
        """Take all marks back: they are not read any more."""


class CpuClock:
    """The processor's clock, where every mark has been reached when it is made."""

    def __init__(self) -> None:
        # No method of ours around it: a call of one would take longer than the call it makes.
        self.mark: Callable[[], int] = time.perf_counter_ns

    def can_mark(self) -> bool:
        """Return True."""
        return True

    def ms(self, begin: int, end: int) -> float:
        """Return the milliseconds between two marks."""
        return (end - begin) / 1e6

    def was_reached(self, mark: int) -> bool:
        """Return True."""
        return True

    def settle(self) -> None:
        """Do nothing: there is nothing to wait for."""

    def forget(self) -> None:
        """Do nothing: a mark is a number."""


class CudaClock:
    """Events on the device's current stream, used again in the next iteration.

    The stream is the calling thread's, which in a thread of autograd's engine is the one that the
    node's kernels go to. An event is only created where none is left over: creating takes longer
    than recording, and falls into the warm-up.
    """

    def __init__(self, device: int) -> None:
        self._device = device
        self._pid = os.getpid()
        self._free: list[Any] = []
        self._used: list[Any] = []

    def mark(self) -> Any:
        """Record an event."""
        import torch

        try:  # with several devices, several threads of the engine come here
            event = self._free.pop()
        except IndexError:
            event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        self._used.append(event)
        return event

    def can_mark(self) -> bool:
        """Say no in a forked child, where CUDA refuses everything, and while a graph is captured."""
        return os.getpid() == self._pid and not is_capturing_graph()

    def ms(self, begin: Any, end: Any) -> float:
        """Return the milliseconds between two events; CUDA resolves half a microsecond."""
        return float(begin.elapsed_time(end))

    def was_reached(self, mark: Any) -> bool:
        """Ask whether the device is past an event."""
        return bool(mark.query())

    def settle(self) -> None:
        """Wait for the device."""
        import torch

        torch.cuda.synchronize(self._device)

    def forget(self) -> None:
        """Put the events back for the next iteration."""
        self._free += self._used
        self._used.clear()


def make_clock(name: str, device: int) -> Clock:
    """Return the clock called ``cpu`` or ``cuda``."""
    return CudaClock(device) if name == "cuda" else CpuClock()


def empty_pair_ms(clock: Clock) -> float:
    """Measure what two marks with nothing between them are apart: the least that a row can have."""
    marks = [clock.mark() for _ in range(_EMPTY_PAIRS + 1)]
    clock.settle()
    return median(clock.ms(*pair) for pair in pairwise(marks))
