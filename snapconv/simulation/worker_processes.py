"""Processes that the program starts by torch.multiprocessing: each is a rank, or is not simulated.

A simulation is one process. Of the workers of ``torch.multiprocessing.spawn`` that are the ranks of
a simulated job, its one rank runs here. A worker of any other kind has no simulated device.
"""

import multiprocessing.process
import sys
from collections.abc import Callable
from typing import Any

import torch

from snapconv.errors import RecorderError
from snapconv.guest.own_frames import stands_in
from snapconv.notes import Note
from snapconv.simulation.machine import Machine
from snapconv.simulation.patches import Patches
from snapconv.simulation.places import shown, users_place

_SPAWN = "torch.multiprocessing.spawn"


class _FinishedWorkers:
    """What ``start_processes`` returns for workers that have run here (its ProcessContext)."""

    processes: tuple[Any, ...] = ()
    sentinels: tuple[Any, ...] = ()

    def pids(self) -> list[int]:
        return []

    def join(self, *_: Any, **__: Any) -> bool:
        return True


class WorkerProcesses:
    """The processes that the program has started, and the lines that started them."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._started: list[tuple[Any, str]] = []
        self._failed: dict[str, None] = {}

    def patch(self, patches: Patches) -> None:
        """Run ranks here, and remember the other processes."""
        # In torch.multiprocessing the function `spawn` hides the module of that name.
        for owner in (torch.multiprocessing, sys.modules[_SPAWN]):
            patches.wrap(owner, "start_processes", self._start_ranks)
        process = multiprocessing.process.BaseProcess
        real = process.start

        # A forked child runs below this call: its frames are the program's all the same.
        @stands_in
        def start(started: Any) -> None:
            real(started)
            self._remember(started)

        patches.set(process, "start", start)

    def _start_ranks(
        self,
        real: Callable[..., Any],
        fn: Callable[..., Any],
        args: Any = (),
        nprocs: int = 1,
        join: bool = True,  # noqa: FBT001, FBT002  # torch's
        *start_method: Any,
        **options: Any,
    ) -> Any:
        job = self._machine.options.job
        n_expected = job.n_ranks_per_node if job else 1
        if nprocs == n_expected:
            fn(job.local_rank if job else 0, *args)
            return None if join else _FinishedWorkers()
        if self._machine.has_started:
            # The program itself is what is simulated, and these are its helpers.
            return real(fn, args, nprocs, join, *start_method, **options)
        job_text = f" of a job with {n_expected} on each node" if job else ""
        raise RecorderError(
            f"{users_place()}: the program starts {nprocs} processes, and a simulation is one "
            f"process{job_text}: give --world-size {nprocs} to record each as a rank"
        )

    def _remember(self, process: Any) -> None:
        self._collect_failures()
        self._started.append((process, users_place()))

    def _collect_failures(self) -> None:
        """Forget processes that have ended, but for the lines of those that failed."""
        running = []
        for process, line in self._started:
            code = _exit_code(process)
            if code is None:
                running.append((process, line))
            elif code > 0:
                self._failed.setdefault(line)
        self._started = running

    def notes(self) -> tuple[Note, ...]:
        """Name the lines whose processes failed, maybe as they had no device."""
        self._collect_failures()
        if not self._failed:
            return ()
        message = (
            f"processes that the program started at {shown(self._failed)} failed: what a program "
            "starts itself has no simulated GPU. Workers of torch.multiprocessing.spawn are "
            "recorded as ranks with --world-size"
        )
        return (Note("processes-not-simulated", message),)


def _exit_code(process: Any) -> int | None:
    """Return a process's exit code; None while it runs, 0 for one that was closed."""
    try:
        code: int | None = process.exitcode
    except ValueError:
        return 0
    return code
