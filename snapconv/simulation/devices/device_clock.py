"""The time of the simulated device: the computer's, in microseconds, never running backwards."""

import time


class Clock:
    """Epoch microseconds. Successive readings never decrease, whatever happens to the system's clock."""

    def __init__(self) -> None:
        # The trace's clock is the epoch's; perf_counter makes it steady.
        self._start_us = time.time_ns() // 1000
        self._start_counter = time.perf_counter_ns()

    def __call__(self) -> int:
        """Return now."""
        return self._start_us + (time.perf_counter_ns() - self._start_counter) // 1000
