"""Run a program and record it: what ``snapconv record`` and ``snapconv watch`` call.

The user's program runs inside, and keeps its own exit code and traceback: a failure of ours is
reported beside it, never in its place.
"""

import _thread
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from snapconv.errors import EntryPointError, NoCudaError, NothingAllocatedError, SnapconvError
from snapconv.notes import Note
from snapconv.recorder import environment
from snapconv.recorder.capture_folder import check_output
from snapconv.recorder.driver import Driver, Say, silent
from snapconv.recorder.one_capture import OneCapture
from snapconv.recorder.options import RecordedProgram, RecordingOptions
from snapconv.recorder.program import own_frames, script, script_signals
from snapconv.recorder.program.entry import Entry, imported, load_providers, provider_module
from snapconv.recorder.program.script import (
    ended_by,
    exit_code_of,
    outcome,
    warnings_name_the_user,
    when_imported,
)
from snapconv.recorder.schedule import Sign

if TYPE_CHECKING:
    from snapconv.recorder.recording import Recording
    from snapconv.simulation import Simulation, SimulationOptions

# So long may a simulated step take before a faster way is recommended.
_LONG_S = 120


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """The outcome of a program and of its recording.

    ``path`` is the capture, None where none could be written; ``exit_code`` and ``raised`` are the
    user's program's own; ``failure`` is ours, if any, and ``report`` its traceback. With neither a path nor a
    failure, the program failed before it allocated anything on a device. ``is_child``: this is a
    process which the program forked, and the parent does the rest.
    """

    path: Path | None
    exit_code: int
    notes: tuple[Note, ...] = ()
    n_bytes: int = 0
    raised: BaseException | None = None
    failure: Exception | None = None
    report: str = ""
    is_child: bool = False


def record(
    entry: Entry,
    argv: Sequence[str],
    options: RecordingOptions,
    *,
    say: Say = silent,
    until_exit: ExitStack | None = None,
) -> RecordOutcome:
    """Run an entry and write its capture.

    With ``until_exit``, which is closed when the process ends, a simulation lasts as long: threads and
    functions of ``atexit`` go on after the script's last line.

    Raises SnapconvError only before any user code runs, and for providers that are not as they must be.
    """
    check_output(options.output, force=options.force)
    with ExitStack() as parts:
        parts.enter_context(script_signals.deferred_handlers())
        simulation = _device(options, parts if until_exit is None else until_exit)
        command = (*(["-m"] if entry.kind == "module" else []), entry.path, *argv)
        options = replace(options, program=RecordedProgram(entry.path, entry.kind, command))
        policy = OneCapture(options, least=Sign.SCRIPT if entry.marks_steps else Sign.BACKWARD)
        driver = _new_driver(options, policy, simulation, say)
        where = "simulated, without a GPU" if options.simulation else "on the GPU"
        say(f"recording {entry.path}, {where}: {len(policy.plan)} iterations until everything is recorded")
        parts.callback(driver.close)
        parts.enter_context(warnings_name_the_user())
        with when_imported("torch", driver.turn_on):
            if isinstance(driver.guard.failure, SnapconvError):
                raise driver.guard.failure  # nothing of the user's has run: there is nothing else to report
            parts.enter_context(_hint_at_shapes_only(options, driver, say))
            run = _run_providers if entry.kind == "providers" else _run_script
            # A script's names go with its module, and what they hold is a part of the state at its end.
            raised, _program = outcome(run, entry, argv, driver)
        if isinstance(raised, EntryPointError):
            raise raised
        driver.finish(ended_by(raised))
        late = (*driver.guards.notes(), *(simulation.faults() if simulation is not None else ()))
        policy.notes += [note for note in late if note not in policy.notes]
        return _record_outcome(driver, policy, raised)


@contextmanager
def _hint_at_shapes_only(options: RecordingOptions, driver: Driver, say: Say) -> Iterator[None]:
    """Recommend ``--no-compute`` where the first simulated step takes minutes."""
    ended = threading.Event()

    def hint() -> None:
        if not ended.wait(_LONG_S) and driver.iteration == 0:
            say(f"no step has ended in {_LONG_S // 60} minutes: with --no-compute a step takes seconds")

    if options.simulation is not None and options.computes:
        # Not by threading, whose threads are simulated too.
        _thread.start_new_thread(hint, ())
    try:
        yield
    finally:
        ended.set()


def _device(options: RecordingOptions, parts: ExitStack) -> "Simulation | None":
    """Refuse where there can be no CUDA device, without importing torch; or simulate one."""
    if options.simulation is None:
        environment.find_torch()
        environment.refuse_without_cuda()
        return None
    try:
        environment.require_torch()
        from snapconv.simulation import simulated

        return parts.enter_context(simulated(options.simulation))
    finally:  # what comes in the midst of torch's import may come out of its C++ code as any other error
        script_signals.deliver_now()


def _new_driver(
    options: RecordingOptions, policy: OneCapture, simulation: "Simulation | None", say: Say
) -> Driver:
    """Make the driver with its instruments."""
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


def _run_script(entry: Entry, argv: Sequence[str], _driver: Driver | None = None) -> ModuleType:
    if entry.kind == "module":
        return script.run_module(entry.path, argv)
    assert entry.code is not None
    return script.run_file(entry.path, entry.code, argv)


def _run_providers(entry: Entry, argv: Sequence[str], driver: Driver) -> None:
    """Build the model once; every iteration gets inputs of its own, which go when it ends."""
    with script.surroundings(entry.path, argv), imported(provider_module(entry)) as module:
        providers = load_providers(entry, module, batch_size=driver.options.batch_size)
        iteration = providers.iteration(providers.model())
        while not driver.is_complete:
            own_frames.call_user(iteration, *providers.inputs())
            if not driver.uses_device:
                return
            driver.iteration_ended()


def _record_outcome(driver: Driver, policy: OneCapture, raised: BaseException | None) -> RecordOutcome:
    exit_code, guard = exit_code_of(raised), driver.guard
    return RecordOutcome(
        path=policy.path if policy.n_bytes is not None else None,
        exit_code=exit_code,
        notes=tuple(policy.notes),
        n_bytes=policy.n_bytes or 0,
        raised=raised,
        failure=None if guard.is_child else _failure(driver, exit_code),
        report=guard.report,
        is_child=guard.is_child,
    )


def _failure(driver: Driver, exit_code: int) -> Exception | None:
    """Return what went wrong in the recording; not that a program that failed did not come to its GPU."""
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
    recording: "Recording",
    *,
    simulation: "SimulationOptions | None" = None,
    until_exit: ExitStack | None = None,
) -> tuple[int, BaseException | None]:
    """Run a script or module as ``python ENTRY ARGV`` would; record it as soon as it has imported torch.

    Returns its exit code, and what it raised. What goes wrong in here is a warning, and never the program's
    affair. A simulation lasts until the process ends, by ``until_exit``.
    """
    with ExitStack() as parts:
        parts.enter_context(script_signals.deferred_handlers())
        if simulation is not None:
            _device(RecordingOptions(simulation=simulation), parts if until_exit is None else until_exit)
        with when_imported("torch", lambda: parts.enter_context(recording)):
            raised, _main = outcome(_run_script, entry, argv)
        return exit_code_of(raised), raised
