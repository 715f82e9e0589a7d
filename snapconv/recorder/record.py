"""Run a program and record it: what ``snapconv record`` and ``snapconv watch`` call.

The user's program runs inside, and keeps its own exit code and traceback: a failure of ours is
reported beside it, never in its place. ``OneCapture`` is the policy of ``record``: warm-up, memory,
times, and one capture, however the program ends.
"""

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapconv.errors import (
    EntryPointError,
    NoCudaError,
    NothingAllocatedError,
    SnapconvError,
)
from snapconv.guest import script_signals
from snapconv.guest.guard import Guard, fault_note
from snapconv.guest.import_hook import when_imported
from snapconv.guest.own_frames import call_user
from snapconv.guest.torch_surface import Feature
from snapconv.guest.unheard_signals import ended_in_place
from snapconv.notes import Note
from snapconv.recorder import environment, memory_history
from snapconv.recorder.capture_folder import (
    check_output,
    write_capture_somewhere,
    write_ending,
)
from snapconv.recorder.driver import Driver, Say, silent
from snapconv.recorder.later_peaks import Peaks
from snapconv.recorder.memory_history import nothing_allocated
from snapconv.recorder.options import RecordedProgram, RecordingOptions
from snapconv.recorder.program import script
from snapconv.recorder.program.entry import Entry, load_providers, provider_module
from snapconv.recorder.program.script import (
    Ended,
    Stop,
    ended_by,
    exit_code_of,
    outcome,
    warnings_name_the_user,
)
from snapconv.recorder.schedule import Part, Sign, plan

if TYPE_CHECKING:
    from snapconv.simulation import Simulation, SimulationOptions

_COMPLETE = Ended("complete")
_HOW_ENDED = {
    "finished": "came to its end",
    "exception": "raised an exception",
    "interrupted": "was interrupted",
    "oom": "ran out of memory",
    "exit": "called sys.exit",
}
# So long may the first simulated step take before a faster way is recommended.
_LONG_S = 120


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """The outcome of a program and of its recording.

    ``path`` is the capture, None where none could be written; ``exit_code`` and ``raised`` are the
    program's own; ``failure`` is ours, if any, and ``report`` its traceback. With neither a path
    nor a failure, the program failed before it allocated anything on a device. ``is_child``: the
    program forked this process, and the parent does the rest.
    """

    path: Path | None
    exit_code: int
    notes: tuple[Note, ...] = ()
    n_bytes: int = 0
    raised: BaseException | None = None
    failure: Exception | None = None
    report: str = ""
    is_child: bool = False


class OneCapture:
    """Keeps each part's result; writes them to ``path`` when all are there or the program ends."""

    path: Path | None = None
    n_bytes = 0
    _contents: dict[str, Any] | None = None
    _oom_contents: dict[str, Any] | None = None
    _has_stopped = False
    # Faults of the recording itself before there was anything to write.
    _faults: tuple[Note, ...] = ()

    def __init__(
        self, options: RecordingOptions, *, lowest_sign: Sign = Sign.BACKWARD
    ) -> None:
        self._options = options
        self._lowest_sign = lowest_sign
        self.plan = plan(
            warm_up=options.warm_up,
            iterations=options.iterations,
            has_timing=options.computes,
        )
        self.notes: list[Note] = []
        self._output = options.output.absolute()  # a script may change its folder
        self._began_s = time.monotonic()
        self._peaks = Peaks()

    def turn_on(self, driver: Driver) -> None:
        """Observe from the first line on; steps of providers are counted where they are run."""
        timer = driver.timer
        if timer is not None:
            # Before the observer: it nests around all user code.
            driver.guards.of(Feature.TIMES).enter(driver.parts, lambda: timer)
        driver.parts.callback(driver.stop_observing)
        self._peaks.watch(driver.parts)
        driver.begin_iteration()
        driver.wait_for_cuda()
        if self._options.program.kind != "providers":
            driver.count_steps(
                partial(self._step_ended, driver), lowest_sign=self._lowest_sign
            )

    def _step_ended(self, driver: Driver) -> None:
        if driver.is_over and not driver.guard.is_child:
            self._peaks.step_ended()
        driver.iteration_ended()
        # Also where the recording failed before: whoever wants the capture alone waits for nothing
        # more.
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

        What a graph captures is left out too: timing would synchronize the device.
        """
        return driver.uses_device and not environment.is_capturing_graph()

    def part(self, iteration: int) -> Part:
        """Return what an iteration is for."""
        return self.plan[iteration] if iteration < len(self.plan) else Part.AFTER

    def iteration_ended(self, driver: Driver, iteration: int) -> None:
        """Keep the memory after its last iteration, and write the capture after the last of all."""
        self._oom_contents = None  # the program recovered from it
        self._peaks.step_ended()
        part = self.part(iteration)
        next_part = self.part(iteration + 1)
        driver.say(
            f"iteration {iteration} done ({part.value}; {iteration + 1} of {len(self.plan)})"
        )
        is_slow = time.monotonic() - self._began_s > _LONG_S
        is_computed_simulation = (
            self._options.simulation is not None and self._options.computes
        )
        if iteration == 0 and is_slow and is_computed_simulation:
            driver.say("that took minutes: with --no-compute a step takes seconds")
        if part is Part.MEMORY and next_part is not Part.MEMORY:
            self._keep_memory(driver)
        if next_part is Part.AFTER:
            driver.is_over = True
            self._write(driver, _COMPLETE)

    def out_of_memory(self, driver: Driver, text: str) -> None:
        """Keep the state: the program may recover from it."""
        if self._contents is None and not driver.is_complete:
            driver.guards.of(Feature.OUT_OF_MEMORY).run(self._keep_out_of_memory, driver)

    def finish(self, driver: Driver, ended: Ended) -> None:
        """Write what there is, unless all is written already."""
        driver.stop_counting()
        if self.path is None:
            self._write_rest(driver, ended)
        if self.path is not None:
            # The program's own peak; a note where that came after the snapshot.
            rows, notes = self._peaks.ending(self._options)
            with suppress(OSError):  # the program may have moved the capture
                write_ending(self.path, rows, memory_history.note_rows(notes))
            self.notes += notes

    def _write_rest(self, driver: Driver, ended: Ended) -> None:
        fault = driver.guard
        driver.guard = Guard()
        if isinstance(fault.failure, SnapconvError):
            driver.guard = fault
        elif fault.failure is not None:
            # It may have been of that moment only: a capture with what there is now is better than
            # none.
            self._faults = (fault_note(fault),)
        is_written = driver.guard.run(self._finish, driver, ended)
        if self._faults:
            driver.guard = Guard() if is_written else fault

    def failed(self, driver: Driver) -> None:
        """Leave it to whoever runs the program, which goes on."""

    def _keep_memory(self, driver: Driver) -> None:
        """Take the snapshot and turn the history off: it would slow the timed iterations down."""
        if driver.uses_device:
            driver.say(
                "taking the snapshot; to name C++ frames for the first time takes torch a while"
            )
        if not memory_history.is_on():
            self._note(
                "history-off",
                f"{self._options.program.path} switched torch's memory history off, and with it "
                "the recording: events are missing; remove its calls of _record_memory_history",
            )
        self._contents = driver.contents()
        self._peaks.recorded = self._peaks.look()
        memory_history.stop()
        driver.stop_observing()

    def _keep_out_of_memory(self, driver: Driver) -> None:
        driver.note_now()
        self._oom_contents = driver.contents()
        self._peaks.recorded = self._peaks.look()

    def _finish(self, driver: Driver, ended: Ended) -> bool:
        if not driver.has_cuda:
            raise nothing_allocated(self._options.program.path)
        if self._contents is None:
            self._contents = self._oom_contents
        if self._contents is None:
            driver.note_now()
            self._keep_memory(driver)
        driver.stop_observing()
        self._write(driver, ended)
        return True

    def _write(self, driver: Driver, ended: Ended) -> None:
        assert self._contents is not None
        options = self._options
        times = driver.guards.of(Feature.TIMES)
        timing = times.run(driver.timer.trace) if driver.timer else None
        if ended is not _COMPLETE:
            self._note("ended-early", self._early_end(ended, driver.iteration))
        elif timing is None:
            reason = "none were measured" if driver.timer else "nothing was computed"
            self._note("no-timing", f"the capture has no times of operations: {reason}")
        if self._contents["snapconv"]["overflowed"]:
            self._note(
                "truncated-history",
                f"more than {options.max_entries} events: the oldest were overwritten; "
                "raise --max-entries",
            )
        contents = driver.complete(self._contents, ended, self._faults)
        self.notes += [Note(**row) for row in contents["snapconv"]["notes"]]
        driver.say(f"writing {options.output}")
        self._write_capture(contents, timing)
        self._contents = None
        if ended is _COMPLETE and options.program.kind != "providers":
            continuation = (
                "is ended here" if options.stop else "goes on without a recording"
            )
            driver.say(f"everything is recorded; the program {continuation}")

    def _write_capture(
        self, contents: dict[str, Any], timing: dict[str, Any] | None
    ) -> None:
        """Write the capture, elsewhere if its place was lost."""
        output = self._options.output
        path, self.n_bytes = write_capture_somewhere(
            self._output, contents, timing, force=self._options.force
        )
        if path == self._output:
            self.path = output
            return
        self.path = path
        self._note(
            "capture-elsewhere",
            f"{output} could not be written any more, as something removed, took or "
            f"closed its place while the program ran: the capture is {path}",
        )

    def _note(self, slug: str, message: str) -> None:
        self.notes.append(Note(slug, message))

    def _early_end(self, ended: Ended, iteration: int) -> str:
        """Return how far the recording came, what is missing, and what would bring it."""
        verb = _HOW_ENDED[ended.how]
        if ended.how == "interrupted" and ended.detail:
            verb = f"was terminated ({ended.detail})"
        program = self._options.program.path
        n_planned = len(self.plan)
        progress = f"{program} {verb} when {iteration} of {n_planned} iterations were done"
        if iteration == 0 and ended.how == "finished":
            return (
                f"{progress}: no step of an optimizer and no backward pass was seen, so iterations "
                "could not be detected; there are no times: call snapconv.step() at the end of "
                "each iteration"
            )
        result = "the memory part is whole, the times are not"
        if self.part(iteration).is_of_memory:
            result = "the capture has the memory up to there, and no times"
        advice = ""
        if self._options.computes:
            advice = f"; for times let it make {n_planned} iterations"
        return f"{progress}: {result}{advice}"


def record(
    entry: Entry,
    argv: Sequence[str],
    options: RecordingOptions,
    *,
    say: Say = silent,
    simulation_parts: ExitStack | None = None,
    report: Callable[[RecordOutcome], object] = bool,
) -> RecordOutcome:
    """Run an entry and write its capture.

    ``simulation_parts`` keeps a simulation until the process ends: threads and ``atexit`` functions
    still run. ``report`` is called with the outcome where this cannot return, as the program waits
    in C++. Raises SnapconvError only before any user code runs, and for providers that are not as
    they must be.
    """
    check_output(options.output, force=options.force)
    with ExitStack() as parts:
        parts.enter_context(script_signals.deferred_handlers())
        simulation = _device(options.simulation, simulation_parts or parts)
        options = replace(options, program=_recorded_program(entry, argv))
        lowest_sign = Sign.SCRIPT if entry.marks_steps else Sign.BACKWARD
        policy = OneCapture(options, lowest_sign=lowest_sign)
        driver = _new_driver(options, policy, simulation, say)
        device = "simulated, without a GPU" if options.simulation else "on the GPU"
        say(
            f"recording {entry.path}, {device}: {len(policy.plan)} iterations until "
            f"everything is recorded"
        )
        parts.callback(driver.close)
        parts.enter_context(warnings_name_the_user())

        def finish(raised: BaseException | None) -> RecordOutcome:
            driver.finish(ended_by(raised))
            return _outcome(driver, policy, simulation, raised)

        with when_imported("torch", driver.turn_on):
            if isinstance(driver.guard.failure, SnapconvError):
                # Nothing of the user's has run: there is nothing else to report.
                raise driver.guard.failure
            run = _run_providers if entry.kind == "providers" else script.run_script
            with ended_in_place(
                lambda raised: report(finish(raised)), script_signals.is_commands
            ):
                # A script's names go with its module, and what they hold is a part of the state at
                # its end.
                raised, _program = outcome(run, entry, argv, driver)
        if isinstance(raised, EntryPointError):
            raise raised
        return finish(raised)


def _recorded_program(entry: Entry, argv: Sequence[str]) -> RecordedProgram:
    """Name the program as metadata has it, with the command that runs it."""
    command = [entry.path, *argv]
    if entry.kind == "module":
        command = ["-m", *command]
    return RecordedProgram(entry.path, entry.kind, tuple(command))


def _outcome(
    driver: Driver,
    policy: OneCapture,
    simulation: "Simulation | None",
    raised: BaseException | None,
) -> RecordOutcome:
    late_notes = list(driver.guards.notes())
    if simulation is not None:
        late_notes += simulation.late_notes()
    policy.notes += [note for note in late_notes if note not in policy.notes]
    exit_code = exit_code_of(raised)
    guard = driver.guard
    return RecordOutcome(
        path=policy.path,
        exit_code=exit_code,
        notes=tuple(policy.notes),
        n_bytes=policy.n_bytes,
        raised=raised,
        failure=None if guard.is_child else _failure(driver, exit_code),
        report=guard.report,
        is_child=guard.is_child,
    )


def _device(options: "SimulationOptions | None", parts: ExitStack) -> "Simulation | None":
    """Refuse where there can be no CUDA device, without importing torch; or simulate one."""
    if options is None:
        environment.refuse_without_cuda()
        return None
    try:
        environment.require_torch()
        from snapconv.simulation import simulated

        return parts.enter_context(simulated(options))
    # A signal in the midst of torch's import may come out of its C++ code as any other error.
    finally:
        script_signals.deliver_now()


def _new_driver(
    options: RecordingOptions, policy: OneCapture, simulation: "Simulation | None", say: Say
) -> Driver:
    from snapconv.recorder.timing.timer import Timer

    driver = Driver(options, policy, simulation=simulation, say=say)
    driver.observer = driver.new_observer()
    if options.computes:
        driver.timer = Timer(
            device=options.device or 0,
            clock="cuda" if options.simulation is None else "cpu",
            project_root=options.project_root,
            module_path=driver.observer.module_path,
            guards=driver.guards,
            interception=driver.interception,
        )
    return driver


def _run_providers(entry: Entry, argv: Sequence[str], driver: Driver) -> None:
    """Build the model once; every iteration gets inputs of its own, which go when it ends."""
    batch_size = driver.options.batch_size
    arguments = () if batch_size is None else (batch_size,)
    with script.surroundings(entry.path, argv), provider_module(entry) as module:
        model, inputs, iteration = load_providers(entry, module)
        step = call_user(iteration, call_user(model))
        while not driver.is_complete:
            call_user(step, *call_user(inputs, *arguments))
            if not driver.uses_device:
                return
            driver.iteration_ended()


def _failure(driver: Driver, exit_code: int) -> Exception | None:
    """Return what went wrong in the recording, if anything.

    That a program which failed used no GPU yet is no failure of the recording.
    """
    failure = driver.guard.failure
    if not isinstance(failure, NothingAllocatedError):
        return failure
    if exit_code:
        return None
    if driver.options.simulation is None and "torch" in sys.modules:
        try:
            environment.require_gpu()
        except NoCudaError as no_gpu:
            return no_gpu
    return failure


def watch(
    entry: Entry,
    argv: Sequence[str],
    recording: AbstractContextManager[object],
    *,
    simulation: "SimulationOptions | None" = None,
    simulation_parts: ExitStack | None = None,
) -> tuple[int, BaseException | None]:
    """Run a script or module as ``python ENTRY ARGV`` would; record it from its import of torch on.

    ``recording`` is entered then: a ``Recording``, or ``nullcontext()`` for a program that is not
    recorded. Returns the program's exit code and what it raised. Our own failures become warnings
    and never reach the program. ``simulation_parts`` keeps a simulation until the process ends.
    """

    def finish(raised: BaseException) -> None:
        recording.__exit__(type(raised), raised, None)

    with ExitStack() as parts:
        parts.enter_context(script_signals.deferred_handlers())
        if simulation is not None:
            _device(simulation, simulation_parts or parts)
        with (
            when_imported("torch", partial(parts.enter_context, recording)),
            ended_in_place(finish, script_signals.is_commands),
        ):
            raised, _main = outcome(script.run_script, entry, argv)
        return exit_code_of(raised), raised
