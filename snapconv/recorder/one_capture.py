"""The policy of ``snapconv record``: warm-up, memory, times, and one capture, however the program ends."""

from pathlib import Path
from typing import Any

from snapconv.errors import SnapconvError
from snapconv.notes import Note
from snapconv.recorder import environment
from snapconv.recorder.captured import memory_history
from snapconv.recorder.captured.contents import Ended, nothing_allocated
from snapconv.recorder.driver import Driver
from snapconv.recorder.guard import Guard, fault_note
from snapconv.recorder.options import RecordingOptions
from snapconv.recorder.program.script import Stop
from snapconv.recorder.schedule import Part, Schedule, Sign
from snapconv.recorder.torch_surface import Feature

_COMPLETE = Ended("complete")
_WARM_UP_TIMES = (
    "the times are those of the iteration in which the timer warms up, as no other came after it: they may "
    "include what happens only once; let the program run one more iteration"
)
_NO_PINNED = Note(
    "no-pinned-memory",
    "this torch does not record pinned host memory, so the capture has none of it: use torch 2.14 or newer",
)


class OneCapture:
    """Keeps each part's result, and writes them when all are there or the program ends.

    ``n_bytes`` is the size of the capture at ``path``, None until it is written.
    """

    def __init__(self, options: RecordingOptions, *, least: Sign = Sign.BACKWARD) -> None:
        self._options, self._least = options, least
        self.schedule = Schedule(
            warm_up=options.warm_up, iterations=options.iterations, has_timing=options.computes
        )
        self.n_bytes: int | None = None
        self.path = options.output
        self.notes: list[Note] = []
        self._output = options.output.absolute()  # a script may change its folder
        self._contents: dict[str, Any] | None = None
        self._at_out_of_memory: dict[str, Any] | None = None
        self._has_stopped = False
        # What went wrong in the recording itself before there was anything to write.
        self._faults: tuple[Note, ...] = ()

    def turn_on(self, driver: Driver) -> None:
        """Observe from the first line on; steps of providers are counted where they are run."""
        if (timer := driver.timer) is not None:
            # Before the observer: it nests around all user code.
            driver.guards.of(Feature.TIMES).enter(driver.parts, lambda: timer)
        driver.parts.callback(driver.stop_observing)
        driver.begin_iteration()
        driver.wait_for_cuda()
        if self._options.program.kind != "providers":
            driver.count_steps(lambda: self._step_ended(driver), least=self._least)

    def _step_ended(self, driver: Driver) -> None:
        driver.iteration_ended()
        # Also where the recording failed before: whoever wants the capture alone waits for nothing more.
        is_enough = driver.is_complete and self._options.stop and not driver.guard.is_child
        if is_enough and not self._has_stopped:
            self._has_stopped = True
            raise Stop

    def cuda_started(self, driver: Driver) -> bool:
        """Choose the device to time; the history begins anew."""
        driver.device = environment.choose_device(self._options.device)
        if driver.timer:
            driver.timer.use_device(driver.device)
        if self._options.pinned and not memory_history.can_record_pinned():
            self.notes.append(_NO_PINNED)
        return True

    def counts(self, driver: Driver) -> bool:
        """Leave out what uses no device.

        Timing synchronizes the device, which CUDA forbids while a graph is captured.
        """
        return driver.uses_device and not environment.is_capturing_graph()

    def part(self, iteration: int) -> Part:
        """Return what an iteration is for."""
        return self.schedule.part(iteration)

    def is_observed(self, iteration: int) -> bool:
        """Observe the whole memory part."""
        return True

    def iteration_ended(self, driver: Driver, iteration: int) -> None:
        """Keep the memory after its last iteration, and write the capture after the last of all."""
        self._at_out_of_memory = None  # the program recovered from it
        part, schedule = self.part(iteration), self.schedule
        driver.say(f"{iteration + 1} of {schedule.n_iterations} iterations done ({part.value})")
        if part is Part.MEMORY and self.part(iteration + 1) is not Part.MEMORY:
            self._keep_memory(driver)
        if self.part(iteration + 1) is Part.AFTER:
            driver.is_over = True
            self._write(driver, _COMPLETE)

    def out_of_memory(self, driver: Driver, text: str) -> None:
        """Keep the state: the program may recover from it."""
        if self._contents is None and not driver.is_complete:
            driver.guards.of(Feature.OUT_OF_MEMORY).run(self._keep_out_of_memory, driver)

    def finish(self, driver: Driver, ended: Ended) -> None:
        """Write what there is, unless all is written already."""
        driver.stop_counting()
        if self.n_bytes is not None:
            return
        fault, driver.guard = driver.guard, Guard()
        if isinstance(fault.failure, SnapconvError):
            driver.guard = fault
        elif fault.failure is not None:
            # It may have been of that moment only: a capture with what there is now is better than none.
            self._faults = (fault_note(fault),)
        is_written = driver.guard.run(self._finish, driver, ended)
        if self._faults:
            driver.guard = Guard() if is_written else fault

    def failed(self, driver: Driver) -> None:
        """Leave it to whoever runs the program, which goes on."""

    def _keep_memory(self, driver: Driver) -> None:
        """Take the snapshot and turn the history off, so that it does not slow the timed iterations down."""
        if driver.uses_device:
            driver.say("taking the snapshot; to name C++ frames for the first time takes torch a while")
        if memory_history.is_off():
            self._note(
                "history-off",
                f"{self._options.program.path} switched torch's memory history off, and with it the "
                "recording: events are missing; remove its calls of _record_memory_history",
            )
        self._contents = driver.contents()
        memory_history.stop()
        driver.stop_observing()

    def _keep_out_of_memory(self, driver: Driver) -> None:
        driver.note_now()
        self._at_out_of_memory = driver.contents()

    def _finish(self, driver: Driver, ended: Ended) -> bool:
        if not driver.cuda.is_done:
            raise nothing_allocated(self._options.program.path)
        if self._contents is None:
            self._contents = self._at_out_of_memory
        if self._contents is None:
            driver.note_now()
            self._keep_memory(driver)
        self._write(driver, ended)
        return True

    def _write(self, driver: Driver, ended: Ended) -> None:
        assert self._contents is not None
        options, times = self._options, driver.guards.of(Feature.TIMES)
        timing = times.run(driver.timer.trace) if driver.timer else None
        self._remark(driver, ended, timing)
        contents = driver.complete(self._contents, ended, self._faults)
        self.notes += [Note(**row) for row in contents["snapconv"]["notes"]]
        driver.say(f"writing {options.output}")
        place, self.n_bytes = driver.write(self._output, contents, timing)
        if place != self._output:
            self.path = place
            self._note_elsewhere(options.output, place)
        self._contents = None
        if ended is _COMPLETE and options.program.kind != "providers":
            what_next = "is ended here" if options.stop else "goes on without a recording"
            driver.say(f"everything is recorded; the program {what_next}")

    # --- notes on a capture that is not all it could be

    def _note(self, slug: str, message: str) -> None:
        self.notes.append(Note(slug, message))

    def _note_elsewhere(self, output: Path, place: Path) -> None:
        self._note(
            "capture-elsewhere",
            f"{output} could not be written any more, as something removed, took or closed its place while "
            f"the program ran: the capture is {place}",
        )

    def _remark(self, driver: Driver, ended: Ended, timing: dict[str, Any] | None) -> None:
        assert self._contents is not None
        metadata, is_warm_up = self._contents["snapconv"], timing is not None and timing.get("warm_up", False)
        if ended.how != _COMPLETE.how:
            self._note("ended-early", self._how_early(ended, driver.iteration, has_times=is_warm_up))
        elif timing is None:
            why = "none were measured" if driver.timer else "nothing was computed"
            self._note("no-timing", f"the capture has no times of operations: {why}")
        if is_warm_up:
            self._note("warm-up-times", _WARM_UP_TIMES)
        busiest = _busiest_device(metadata["devices"]) if timing is not None else None
        if busiest not in (None, driver.device):
            self._note(
                "other-device",
                f"most of the memory is on cuda:{busiest}, and the times are those of cuda:{driver.device}: "
                f"give --device {busiest} to time the operations there",
            )
        if metadata["overflowed"]:
            self._note(
                "truncated-history",
                f"more than {self._options.max_entries} events: the oldest were overwritten; "
                "raise --max-entries",
            )

    def _how_early(self, ended: Ended, iteration: int, *, has_times: bool) -> str:
        """Return how far the recording came, what is missing, and what would bring it."""
        how = {
            "finished": "came to its end",
            "exception": "raised an exception",
            "interrupted": f"was terminated ({ended.detail})" if ended.detail else "was interrupted",
            "oom": "ran out of memory",
            "exit": "called sys.exit",
        }[ended.how]
        schedule, part = self.schedule, self.part(iteration)
        text = (
            f"{self._options.program.path} {how} when {iteration} of {schedule.n_iterations} iterations "
            "were done"
        )
        if iteration == 0 and ended.how == "finished":
            return (
                f"{text}: no step of an optimizer and no backward pass was seen, so iterations could not be "
                "detected; there are no times: call snapconv.step() at the end of each iteration"
            )
        if part.is_of_memory:
            text = f"{text}: the capture has the memory up to there, and no times"
        elif has_times:
            return f"{text}: the memory part is whole, and the times are those of the timer's warm-up"
        elif part is Part.TIMING_WARM_UP:
            text = f"{text}: the memory part is whole, and there are no times"
        else:
            return f"{text}: the memory part is whole, the times are not"
        n_enough = schedule.n_for_times
        return f"{text}; for times let it make {n_enough} iterations" if n_enough else text


def _busiest_device(devices: list[dict[str, Any]]) -> int | None:
    """Return the device with the most memory in use at its peak."""
    peaks = {row["device"]: row["max_memory_allocated"] for row in devices}
    return max(peaks, key=peaks.__getitem__, default=None)
