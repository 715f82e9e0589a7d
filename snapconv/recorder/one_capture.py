"""The policy of ``snapconv record``: warm-up, memory, times, and one capture, however the program ends."""

from typing import Any

from snapconv.errors import SnapconvError
from snapconv.notes import Note
from snapconv.recorder import environment, memory_history
from snapconv.recorder.driver import Driver
from snapconv.recorder.guard import Guard, fault_note
from snapconv.recorder.memory_history import nothing_allocated
from snapconv.recorder.options import RecordingOptions
from snapconv.recorder.program.script import Ended, Stop
from snapconv.recorder.schedule import Part, Sign, plan
from snapconv.recorder.torch_surface import Feature

_COMPLETE = Ended("complete")
_HOW_ENDED = {
    "finished": "came to its end",
    "exception": "raised an exception",
    "interrupted": "was interrupted",
    "oom": "ran out of memory",
    "exit": "called sys.exit",
}


class OneCapture:
    """Keeps each part's result, and writes them when all are there or the program ends.

    ``n_bytes`` is the size of the capture at ``path``, None until it is written.
    """

    def __init__(self, options: RecordingOptions, *, least: Sign = Sign.BACKWARD) -> None:
        self._options, self._least = options, least
        self.plan = plan(warm_up=options.warm_up, iterations=options.iterations, has_timing=options.computes)
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
        return True

    def counts(self, driver: Driver) -> bool:
        """Leave out what uses no device.

        Timing synchronizes the device, which CUDA forbids while a graph is captured.
        """
        return driver.uses_device and not environment.is_capturing_graph()

    def part(self, iteration: int) -> Part:
        """Return what an iteration is for."""
        return self.plan[iteration] if iteration < len(self.plan) else Part.AFTER

    def is_observed(self, iteration: int) -> bool:
        """Observe the whole memory part."""
        return True

    def iteration_ended(self, driver: Driver, iteration: int) -> None:
        """Keep the memory after its last iteration, and write the capture after the last of all."""
        self._at_out_of_memory = None  # the program recovered from it
        part = self.part(iteration)
        driver.say(f"{iteration + 1} of {len(self.plan)} iterations done ({part.value})")
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
        if memory_history.is_on() is False:
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
        driver.stop_observing()
        self._write(driver, ended)
        return True

    def _write(self, driver: Driver, ended: Ended) -> None:
        assert self._contents is not None
        options, times = self._options, driver.guards.of(Feature.TIMES)
        timing = times.run(driver.timer.trace) if driver.timer else None
        if ended is not _COMPLETE:
            self._note("ended-early", self._how_early(ended, driver.iteration))
        elif timing is None:
            why = "none were measured" if driver.timer else "nothing was computed"
            self._note("no-timing", f"the capture has no times of operations: {why}")
        if self._contents["snapconv"]["overflowed"]:
            self._note(
                "truncated-history",
                f"more than {options.max_entries} events: the oldest were overwritten; raise --max-entries",
            )
        contents = driver.complete(self._contents, ended, self._faults)
        self.notes += [Note(**row) for row in contents["snapconv"]["notes"]]
        driver.say(f"writing {options.output}")
        place, self.n_bytes = driver.write(self._output, contents, timing)
        if place != self._output:
            self.path = place
            self._note(
                "capture-elsewhere",
                f"{options.output} could not be written any more, as something removed, took or closed its "
                f"place while the program ran: the capture is {place}",
            )
        self._contents = None
        if ended is _COMPLETE and options.program.kind != "providers":
            what_next = "is ended here" if options.stop else "goes on without a recording"
            driver.say(f"everything is recorded; the program {what_next}")

    def _note(self, slug: str, message: str) -> None:
        self.notes.append(Note(slug, message))

    def _how_early(self, ended: Ended, iteration: int) -> str:
        """Return how far the recording came, what is missing, and what would bring it."""
        how = _HOW_ENDED[ended.how]
        if ended.how == "interrupted" and ended.detail:
            how = f"was terminated ({ended.detail})"
        n_enough = len(self.plan)
        text = f"{self._options.program.path} {how} when {iteration} of {n_enough} iterations were done"
        if iteration == 0 and ended.how == "finished":
            return (
                f"{text}: no step of an optimizer and no backward pass was seen, so iterations could not be "
                "detected; there are no times: call snapconv.step() at the end of each iteration"
            )
        has_memory = not self.part(iteration).is_of_memory
        kept = (
            "the memory part is whole, the times are not"
            if has_memory
            else ("the capture has the memory up to there, and no times")
        )
        more = f"; for times let it make {n_enough} iterations" if self._options.computes else ""
        return f"{text}: {kept}{more}"
