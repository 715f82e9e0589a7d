"""``snapconv.recording``: captures from a job in production, of steps, an OOM or on request.

It must not disturb the job: what fails here is logged as a warning and switches the recording off;
it never reaches the job, nor stands in the way of the job's own exceptions. Needs torch and nothing
else.
"""

import logging
import os
import signal as signals
import sys
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from snapconv.errors import OutputError, RecorderError, SnapconvError
from snapconv.guest.guard import Guard
from snapconv.guest.script_signals import deferred_handlers
from snapconv.guest.torch_surface import changed_notes
from snapconv.recorder import environment, memory_history
from snapconv.recorder.capture_folder import (
    Upload,
    free_name,
    is_store,
    write_capture_somewhere,
)
from snapconv.recorder.driver import Driver
from snapconv.recorder.job import SharedOom, is_chosen, process_rank
from snapconv.recorder.later_peaks import Peaks
from snapconv.recorder.memory_history import nothing_allocated
from snapconv.recorder.options import (
    MAX_CAPTURES,
    MAX_ENTRIES_OF_JOB,
    RecordedProgram,
    RecordingOptions,
    Stacks,
)
from snapconv.recorder.program.script import Ended, ended_by
from snapconv.recorder.requests import Requests
from snapconv.recorder.schedule import Part

if TYPE_CHECKING:
    from snapconv.simulation import Simulation, SimulationOptions

_LOG = logging.getLogger("snapconv")
# Refusals that are logged already: a job may begin many recordings, in many ranks.
_TOLD: set[str] = set()


class ChosenCaptures:
    """The policy of a job: captures of steps, of an OOM, on request, or of a whole block."""

    upload: Upload | None = None
    counts_by_hand = is_signalled = False
    _has_written_oom = _has_logged = False
    _shared_oom: SharedOom | None = None

    def __init__(self) -> None:
        self.captures: list[Path] = []

    def turn_on(self, driver: Driver) -> None:
        """Count steps, and observe where the first is chosen."""
        for note in changed_notes(driver.guards.changed()):
            _LOG.warning("snapconv: %s", note.message)
        driver.wait_for_cuda()

        def end_iteration() -> None:
            if not self.counts_by_hand:
                driver.iteration_ended()

        driver.count_steps(end_iteration)
        driver.parts.callback(driver.stop_observing)
        if driver.options.on_signal is not None:
            driver.parts.callback(_listen_to_signal(driver.options.on_signal, self))
        if driver.options.on_other_oom:
            self._listen_to_ranks(driver)
        if driver.options.on_request:
            self._listen_to_requests(driver)
        driver.begin_iteration()

    def _listen_to_ranks(self, driver: Driver) -> None:
        """Write a capture where another rank runs out of memory.

        Another thread writes it, as this one may hang.
        """
        capture = partial(self.capture, is_other_thread=True)

        def capture_state(rank: str) -> None:
            ended = Ended("complete", f"memory ran out in {rank}")
            driver.run_in_turn(capture, driver, "other-oom", ended)

        self._shared_oom = SharedOom(driver.options.output, capture_state)
        driver.parts.callback(self._shared_oom.close)

    def _listen_to_requests(self, driver: Driver) -> None:
        """Write a capture where another process of this user asks for one, in another thread."""
        capture = partial(self.capture, is_other_thread=True)

        def answer() -> list[Path]:
            n_before = len(self.captures)
            ended = Ended("complete", "requested by another process")
            driver.run_in_turn(capture, driver, "requested", ended)
            return self.captures[n_before:]

        try:
            driver.parts.callback(Requests(answer).close)
        except RecorderError as error:  # the job's other captures do not need it
            _LOG.info("snapconv: requests are not answered: %s", error)

    def cuda_started(self, driver: Driver) -> bool:
        """Leave a history that is on already as the job wants it."""
        return not memory_history.is_on()

    def counts(self, driver: Driver) -> bool:
        """Count every step."""
        return True

    def part(self, iteration: int) -> Part:
        """Record memory alone."""
        return Part.MEMORY

    def iteration_ended(self, driver: Driver, iteration: int) -> None:
        """Write what is due after a step."""
        self._has_written_oom = False  # the job goes on
        if iteration in driver.options.steps:
            self.capture(driver, "step", Ended("complete"), step=iteration)
        if self.is_signalled:
            self.is_signalled = False
            ended = Ended("complete", f"signal {driver.options.on_signal}")
            self.capture(driver, "signal", ended, step=iteration)

    def out_of_memory(self, driver: Driver, text: str) -> None:
        """Write the state now: the job may end by it."""
        driver.run(self._capture_out_of_memory, driver, text)

    def finish(self, driver: Driver, ended: Ended) -> None:
        """Write the whole block, where no steps of it were chosen."""
        if driver.options.steps:
            return
        if ended.how == "complete":
            driver.run(self.capture, driver, "end", ended)
        elif driver.has_cuda and not self._has_written_oom:
            driver.run(self.capture, driver, ended.how, ended)

    def failed(self, driver: Driver) -> None:
        """Log the first failure, and switch everything off."""
        if not self._has_logged:
            self._has_logged = True
            _log_failure(driver.guard)
            close(driver)

    def capture(
        self,
        driver: Driver,
        reason: str,
        ended: Ended,
        *,
        step: int | None = None,
        is_other_thread: bool = False,
    ) -> None:
        """Write a capture of this moment; its ``reason`` begins the name of its folder.

        ``is_other_thread``: the program goes on meanwhile.
        """
        import torch

        options = driver.options
        if len(self.captures) >= options.max_captures:
            _LOG.warning(
                "snapconv: no capture (%s): there are %d already",
                reason,
                options.max_captures,
            )
            return
        if not driver.has_cuda:  # not yet; a snapshot would start it
            error = nothing_allocated(options.program.path)
            _LOG.warning("snapconv: no capture (%s): %s", reason, error)
            return
        if is_other_thread:
            # Each thread has a current device of its own, and the program's objects change.
            driver.device = environment.choose_device(None)
        else:
            driver.device = torch.cuda.current_device()
            driver.note_now()
        contents = driver.complete(driver.contents(), ended)
        rank = f"rank{process_rank()}-" if process_rank() else ""
        name = f"{rank}{reason}-{driver.iteration if step is None else step:06d}.capture"
        self._write(options.output, name, contents)

    def _write(self, folder: Path, name: str, contents: dict[str, Any]) -> None:
        """Write a capture into the folder; a failure is logged, and the recording goes on."""
        try:
            with suppress(OSError):  # the job may have removed it
                folder.mkdir(parents=True, exist_ok=True)
            output = free_name(folder / name)
            path, _ = write_capture_somewhere(output, contents, None, force=False)
        except OutputError as error:  # the disk may have free space again the next time
            _LOG.warning("snapconv: %s", error)
            return
        self.captures.append(path)
        _LOG.info("snapconv: wrote %s", path)
        if self.upload is not None:
            self.upload.add(path)

    def _capture_out_of_memory(self, driver: Driver, text: str) -> None:
        if self._shared_oom is not None:  # first of all: the others have little time
            self._shared_oom.leave()
        self.capture(driver, "oom", Ended("oom", text))
        self._has_written_oom = True


def _log_failure(guard: Guard) -> None:
    """Log why nothing is recorded; a whole job says once what is no fault of snapconv's."""
    failure = guard.failure
    if not isinstance(failure, SnapconvError):
        _LOG.warning("snapconv: recording is off: %s\n%s", failure, guard.report)
    elif str(failure) not in _TOLD and process_rank() in ("", "0"):
        _TOLD.add(str(failure))
        _LOG.warning("snapconv: recording is off: %s", failure)


class Recording:
    """A context around training; docs/guide/production.md explains it and each argument."""

    def __init__(
        self,
        output: str | os.PathLike[str],
        *,
        model: Any = None,
        optimizer: Any = None,
        steps: Collection[int] = (),
        on_oom: bool = True,
        on_signal: int | None = None,
        stacks: Stacks = "all",
        max_entries: int = MAX_ENTRIES_OF_JOB,
        max_captures: int = MAX_CAPTURES,
        project_root: str | os.PathLike[str] | None = None,
        include: Collection[str] = (),
        ranks: Collection[int] = (),
        on_other_oom: bool = False,
        on_request: bool = False,
    ) -> None:
        if on_other_oom:
            stacks = "python"  # names of C++ take longer than the job has
        self._output = os.fspath(output)
        self._is_chosen = is_chosen(ranks)
        # The folder of a store and the program are only known when the block begins.
        self._options = RecordingOptions(
            Path(output),
            Path(project_root or "").absolute(),
            includes=tuple(include),
            is_root_given=project_root is not None,
            model=model,
            optimizer=optimizer,
            steps=frozenset(steps),
            on_oom=on_oom,
            on_signal=on_signal,
            stacks=stacks,
            max_entries=max_entries,
            max_captures=max_captures,
            on_other_oom=on_other_oom,
            on_request=on_request,
        )
        self._policy = ChosenCaptures()
        self._guard = Guard()  # of the work before there is a driver
        self._driver: Driver | None = None
        self._simulation: Simulation | None = None

    def simulated_by(self, simulation: Any) -> None:
        """Say in every capture what was simulated."""
        self._simulation = simulation
        self._options = replace(self._options, simulation=simulation.machine.options)

    @property
    def captures(self) -> list[Path]:
        """The folders written so far."""
        return self._policy.captures

    @property
    def failure(self) -> Exception | None:
        """The reason why nothing is recorded, as far as there is one."""
        driver_failure = None if self._driver is None else self._driver.guard.failure
        return driver_failure or self._guard.failure

    def __enter__(self) -> "Recording":
        if self._is_chosen:
            self._driver = self._guard.run(self._new_driver)
            if self._driver is not None:
                self._driver.turn_on()
            elif self._guard.failure is not None:
                _log_failure(self._guard)
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if self._driver is not None:
            self._driver.finish(Ended("complete") if error is None else ended_by(error))
            close(self._driver)
        if self._policy.upload is not None:
            self._policy.upload.close()

    def step(self) -> None:
        """End a step where no torch optimizer does: from then on only these calls count."""
        if self._driver is not None:
            self._policy.counts_by_hand = True
            self._driver.iteration_ended()

    def capture(self, name: str = "requested") -> None:
        """Write a capture of this moment."""
        if self._driver is not None:
            self._driver.run(
                self._policy.capture, self._driver, name, Ended("complete", name)
            )

    def _new_driver(self) -> Driver:
        environment.require_torch()
        environment.refuse_without_cuda()
        folder = self._options.output
        if is_store(self._output):
            say = partial(_LOG.info, "snapconv: %s")
            warn = partial(_LOG.warning, "snapconv: %s")
            self._policy.upload = Upload(self._output, say=say, warn=warn)
            folder = self._policy.upload.folder
        folder.mkdir(parents=True, exist_ok=True)
        path = sys.argv[0] if sys.argv else ""
        program = RecordedProgram(path, "production", tuple(sys.argv))
        options = replace(self._options, output=folder, program=program)
        driver = Driver(options, self._policy, simulation=self._simulation)
        driver.parts.enter_context(deferred_handlers(is_job=True))
        return driver


def close(driver: Driver) -> None:
    """End a recording without disturbing the job."""
    failure = driver.close()
    if failure is not None:
        _LOG.warning(
            "snapconv: recording could not be ended cleanly: %s", failure, exc_info=failure
        )


def _listen_to_signal(number: int, policy: ChosenCaptures) -> Callable[[], None]:
    """Handle a signal here first, then in its former handler; return a function that restores it.

    The signal is only remembered: it may come at any moment, and a snapshot is taken between two
    steps.
    """
    former_handler = signals.getsignal(number)

    def hear(received: int, frame: FrameType | None) -> None:
        policy.is_signalled = True
        if callable(former_handler):
            former_handler(received, frame)

    signals.signal(number, hear)

    def put_back() -> None:
        if signals.getsignal(number) is hear:  # else the job has taken it since
            signals.signal(number, former_handler)

    return put_back


class MeasuredBlock:
    """A block of code whose memory is measured and recorded, on a simulated GPU if there is none.

    The figures are the allocator's own counters, while the block lasts and afterwards; the
    ``captures`` are written when it ends. ``simulate`` None: where torch finds no GPU;
    ``simulation`` are the options of that. A process can have one simulation at a time. The pytest
    plugin and the notebook's magic use it.
    """

    def __init__(
        self,
        folder: Path,
        *,
        simulate: bool | None = None,
        simulation: "SimulationOptions | None" = None,
        max_entries: int = MAX_ENTRIES_OF_JOB,
    ) -> None:
        self.is_simulated = False
        self._simulate = simulate
        self._simulation = simulation
        self._recording = Recording(folder, max_entries=max_entries)
        self._parts = ExitStack()
        self._at_start: dict[int, int] = {}
        self._highest = Peaks()
        self._peaks: dict[int, int] | None = None

    def __enter__(self) -> "MeasuredBlock":
        environment.require_torch()
        import torch

        from snapconv.simulation import simulated

        simulate = self._simulate
        self.is_simulated = not torch.cuda.is_available() if simulate is None else simulate
        with ExitStack() as parts:
            if self.is_simulated:
                simulation = parts.enter_context(simulated(self._simulation))
                self._recording.simulated_by(simulation)
            torch.cuda.init()
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)
                self._at_start[device] = torch.cuda.memory_allocated(device)
            self._highest.watch(parts)
            parts.enter_context(self._recording)
            self._parts = parts.pop_all()
        return self

    def __exit__(self, *raised: Any) -> None:
        if self._peaks is None:
            self._peaks = self._measured()
            self._parts.__exit__(*raised)

    def end(self) -> None:
        """End the block before its context does."""
        self.__exit__(None, None, None)

    @property
    def captures(self) -> list[Path]:
        """The captures of the block, once it has ended."""
        return self._recording.captures

    @property
    def failure(self) -> Exception | None:
        """The reason why there is no capture, as far as there is one."""
        return self._recording.failure

    @property
    def peaks(self) -> dict[int, int]:
        """By how many bytes each device's peak, up to now, is above the start of the block."""
        return self._measured() if self._peaks is None else self._peaks

    @property
    def peak_bytes(self) -> int:
        """The most of all devices."""
        return max(self.peaks.values(), default=0)

    def _measured(self) -> dict[int, int]:
        highest = self._highest.look()
        starts = self._at_start.items()
        return {device: highest[device][0] - start_bytes for device, start_bytes in starts}


# Users write a verb's form, as with ``open``, and get an object of the class.
recording = Recording
