"""Commands -> their exit codes: processes side by side, as many as processors and memory allow.

A process has a session of its own, so that Ctrl-C reaches this one alone, which then ends the
others with what they started.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from snapconv.ranks.workers import free_memory, n_processors
from snapconv.stop_signals import let_ctrl_c_in, signals_wait

# A recording that computes nothing, of a model of some billion parameters.
_USUAL_BYTES = 2 << 30
# The share of the free memory that the processes may use.
_MEMORY_SHARE = 0.8
_PAUSE_S = 0.05


@dataclass(frozen=True, slots=True)
class Run:
    """A command to run, and the file for all that it prints."""

    command: Sequence[str]
    printed: Path


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a run: its number, its exit code (negative: a signal), and its seconds."""

    number: int
    exit_code: int
    n_seconds: float


@dataclass(slots=True)
class _Running:
    number: int
    process: "subprocess.Popen[bytes]"
    began_s: float
    is_alone: bool = True
    ended_s: float | None = None

    def note_end(self) -> None:
        """Wait for the process, and note the time: whoever takes it may be busy then."""
        let_ctrl_c_in(is_wanted=False)  # it is the first thread's
        self.process.wait()
        self.ended_s = time.monotonic()


def run_all(
    runs: Sequence[Run], environment: Mapping[str, str], *, n_workers: int | None = None
) -> Generator[Ended, None, None]:
    """Run the commands side by side, and yield each when it has ended; in the end none is left.

    One that the system killed beside others, as it does when memory is short, is run once more,
    alone.
    """
    pool = _Pool(runs, environment, Limits.measure(n_workers))
    try:
        while pool.start_waiting():
            time.sleep(_PAUSE_S)
            yield from pool.take_ended()
    finally:
        with signals_wait():
            for running in pool.running:
                _end(running)


class _Pool:
    """The runs that wait, those that are running, and those that the system killed."""

    def __init__(
        self, runs: Sequence[Run], environment: Mapping[str, str], limits: "Limits"
    ) -> None:
        self._runs = runs
        self._environment = dict(environment)
        self._limits = limits
        self._waiting = deque(range(len(runs)))
        self._killed: deque[int] = deque()
        self.running: list[_Running] = []

    def start_waiting(self) -> bool:
        """Start as many as there is room for; return whether any is running."""
        while self._waiting and len(self.running) < self._limits.n_processes():
            self._start(self._waiting.popleft())
        if self._killed and not self.running:
            self._start(self._killed.popleft())
        return bool(self.running)

    def _start(self, number: int) -> None:
        run = self._runs[number]
        with signals_wait(), run.printed.open("wb") as printed:
            let_ctrl_c_in(is_wanted=True)  # the process would inherit that it is held back
            process = subprocess.Popen(
                run.command,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )
            running = _Running(number, process, time.monotonic())
            self.running.append(running)
            threading.Thread(target=running.note_end, daemon=True).start()
        if len(self.running) > 1:
            for running in self.running:
                running.is_alone = False

    def take_ended(self) -> Iterator[Ended]:
        """Yield the runs that have ended, but for those to run again."""
        for running in [row for row in self.running if row.ended_s is not None]:
            self.running.remove(running)
            _end(running)
            exit_code = int(running.process.returncode)
            if _is_killed(exit_code) and not running.is_alone:
                self._killed.append(running.number)
            else:
                n_seconds = (running.ended_s or time.monotonic()) - running.began_s
                yield Ended(running.number, exit_code, n_seconds)


def _is_killed(exit_code: int) -> bool:
    """Return whether a signal that cannot be caught ended the process; Windows has none."""
    return sys.platform != "win32" and exit_code == -signal.SIGKILL


def _end(running: _Running) -> None:
    """End a process and what it started."""
    with suppress(OSError):
        if sys.platform == "win32":
            running.process.kill()
        else:
            os.killpg(running.process.pid, signal.SIGKILL)
    running.process.wait()


@dataclass(frozen=True, slots=True)
class Limits:
    """The number of processes that may run at once: ``n_most``, and what ``free_bytes`` allow."""

    n_most: int
    free_bytes: int

    @classmethod
    def measure(cls, n_workers: int | None) -> "Limits":
        """Return the limits of this machine before any process runs."""
        return cls(n_workers or n_processors(), int(_MEMORY_SHARE * free_memory()))

    def n_processes(self) -> int:
        """Return how many may run now: each is taken to need as much as the largest so far."""
        return max(min(self.n_most, self.free_bytes // _needed_bytes()), 1)


def _needed_bytes() -> int:
    """Return the memory of the largest process that has ended, or the usual one."""
    largest_bytes = 0
    if sys.platform != "win32":
        import resource  # which Windows does not have

        unit = 1 if sys.platform == "darwin" else 1024
        largest_bytes = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    return max(largest_bytes, _USUAL_BYTES)
