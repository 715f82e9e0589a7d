"""Record an entry: what ``snapconv record`` calls. The order of the checks and of everything turned on.

The user's program runs inside, and keeps its own exit code and traceback: a failure of ours is
reported beside it, never in its place.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from snapconv.errors import EntryPointError, NoCudaError, NothingAllocatedError, SnapconvError
from snapconv.notes import Note
from snapconv.recorder import environment, torch_features
from snapconv.recorder.captured import memory_history
from snapconv.recorder.captured.capture_folder import check_output
from snapconv.recorder.captured.contents import Origin, ended_by
from snapconv.recorder.driver import Driver, Say
from snapconv.recorder.guard import Guards
from snapconv.recorder.options import RecordOptions
from snapconv.recorder.program import own_frames, script, script_signals
from snapconv.recorder.program.entry import Entry, load_providers, provider_module
from snapconv.recorder.program.moments import CudaStart, when_imported
from snapconv.recorder.program.script import Stop, exit_code_of, outcome, warnings_name_the_user
from snapconv.recorder.program.script_signals import held_back
from snapconv.recorder.schedule import Sign, StepCounter, counting_steps
from snapconv.recorder.torch_surface import Feature

if TYPE_CHECKING:
    from snapconv.recorder.observe.observer import Observer
    from snapconv.recorder.timing.timer import Timer
    from snapconv.simulation import Simulation

# Read once, when torch is imported, which a simulation makes happen before the user's first line.
_EARLY_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True, slots=True)
class Recorded:
    """What came of a recording.

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
    options: RecordOptions,
    *,
    say: Say = lambda _text: None,
    until_exit: ExitStack | None = None,
) -> Recorded:
    """Run an entry and write its capture.

    With ``until_exit``, which is closed when the process ends, a simulation lasts as long: threads and
    functions of ``atexit`` go on after the script's last line.

    Raises SnapconvError only before any user code runs, and for providers that are not as they must be.
    """
    check_output(options.output, force=options.force)
    with ExitStack() as parts:
        with held_back():
            simulation = _device(options, parts if until_exit is None else until_exit)
        origin = _origin(entry, argv, options, simulation)
        guards = Guards()
        timer, observer = _instruments(options, guards)
        driver = Driver(options, origin, observer=observer, timer=timer, say=say, guards=guards)
        say(f"recording {entry.path}, {_plan(driver, options)}")
        parts.callback(_turn_off, driver)
        parts.enter_context(warnings_name_the_user())
        parts.enter_context(script_signals.deferred_handlers())
        early = _early_environment()
        with ExitStack() as program:

            def begin() -> None:
                _begin(driver, timer, options, parts, say)
                program.enter_context(_steps_counted(entry, options, driver))

            program.enter_context(when_imported("torch", lambda: driver.guard.run(begin)))
            if isinstance(driver.guard.failure, SnapconvError):
                raise driver.guard.failure  # nothing of the user's has run: there is nothing else to report
            run = _run_providers if entry.kind == "providers" else _run_script
            # A script's names go with its module, and what they hold is a part of the state at its end.
            raised, _program = outcome(run, entry, argv, options, driver)
        if isinstance(raised, EntryPointError):
            raise raised
        if simulation is not None and _early_environment() != early:
            driver.notes.append(_late_environment(entry, early))
        driver.finish(ended_by(raised))
        late = (*driver.guards.notes(), *(simulation.faults() if simulation is not None else ()))
        driver.notes += [note for note in late if note not in driver.notes]
        return _recorded(driver, options, raised)


def _device(options: RecordOptions, parts: ExitStack) -> "Simulation | None":
    """Refuse where there can be no CUDA device, without importing torch; or simulate one."""
    if options.simulation is None:
        environment.find_torch()
        environment.refuse_without_cuda()
        return None
    environment.require_torch()
    from snapconv.simulation import simulated

    return parts.enter_context(simulated(options.simulation))


def _begin(driver: Driver, timer: "Timer | None", options: RecordOptions, parts: ExitStack, say: Say) -> None:
    """Turn everything on, as soon as torch has been imported."""
    environment.require_history()
    driver.features = torch_features.probe(torch_features.of_recording)
    driver.guards.leave_out(driver.features.changed)
    if timer:
        # Before the observer: it nests around all user code.
        driver.guards.of(Feature.TIMES).enter(parts, lambda: timer)
    driver.begin()
    start = CudaStart(driver.guard, lambda: _cuda_starts(driver, options, parts, say))
    parts.callback(start.cancel)
    start.wait()


def _cuda_starts(driver: Driver, options: RecordOptions, parts: ExitStack, say: Say) -> None:
    """Do all that needs CUDA, when the program has started it and nothing is allocated yet."""
    try:
        environment.require_history()  # the program may have brought its own allocator
        driver.cuda_started(environment.choose_device(options.device))
    except SnapconvError as error:
        say(f"nothing is recorded: {error}")  # now, and not only when the program has run for a day
        raise
    guard = driver.guards.of(Feature.OUT_OF_MEMORY)
    guard.enter(parts, lambda: memory_history.out_of_memory_observer(guard.hook(driver.out_of_memory)))


def _origin(
    entry: Entry, argv: Sequence[str], options: RecordOptions, simulation: "Simulation | None"
) -> Origin:
    return Origin(
        command=[*(["-m"] if entry.kind == "module" else []), entry.path, *argv],
        entry=entry.path,
        kind=entry.kind,
        project_root=options.project_root,
        project=options.project,
        device=options.device or 0,  # until CUDA starts
        max_entries=options.max_entries,
        simulation=simulation,
    )


def _instruments(options: RecordOptions, guards: Guards) -> "tuple[Timer | None, Observer]":
    """Make the timer and the observer."""
    from snapconv.recorder.observe.observer import Observer
    from snapconv.recorder.timing.timer import Timer

    observer = Observer(guards=guards)
    if options.simulation is not None and not options.simulation.compute:
        return None, observer
    timer = Timer(
        device=options.device or 0,
        clock="cuda" if options.simulation is None else "cpu",
        project_root=options.project_root,
        module_path=observer.module_path,
        guards=guards,
    )
    return timer, observer


def _plan(driver: Driver, options: RecordOptions) -> str:
    where = "simulated, without a GPU" if options.simulation else "on the GPU"
    return f"{where}: {driver.schedule.n_iterations} iterations until everything is recorded"


def _turn_off(driver: Driver) -> None:
    """Leave torch as it was, whatever state a failure left the recording in."""
    if not driver.guard.is_child:
        for turn_off in (driver.stop_observing, driver.stop_history):
            with suppress(Exception):
                turn_off()


def _steps_counted(entry: Entry, options: RecordOptions, driver: Driver) -> AbstractContextManager[None]:
    """Let a script's steps end iterations; those of providers are counted where they are run."""
    has_stopped = False

    def on_end() -> None:
        nonlocal has_stopped
        driver.iteration_ended()
        # Also where the recording failed before: whoever wants the capture alone waits for nothing more.
        if driver.is_complete and options.stop and not has_stopped and not driver.guard.is_child:
            has_stopped = True
            raise Stop

    if entry.kind == "providers":
        return nullcontext()
    least = Sign.SCRIPT if entry.marks_steps else Sign.BACKWARD
    return counting_steps(StepCounter(on_end, least=least), driver.guards)


def _run_script(entry: Entry, argv: Sequence[str], _options: RecordOptions, _driver: Driver) -> ModuleType:
    if entry.kind == "module":
        return script.run_module(entry.path, argv)
    assert entry.code is not None
    return script.run_file(entry.path, entry.code, argv)


def _run_providers(entry: Entry, argv: Sequence[str], options: RecordOptions, driver: Driver) -> None:
    """Build the model once; every iteration gets inputs of its own, which go when it ends."""
    with script.surroundings(entry.path, argv), _imported(entry) as module:
        providers = load_providers(entry, module, batch_size=options.batch_size)
        iteration = providers.iteration(providers.model())
        while not driver.is_complete:
            own_frames.call_user(iteration, *providers.inputs())
            if not driver.uses_device:
                return
            driver.iteration_ended()


@contextmanager
def _imported(entry: Entry) -> Iterator[Any]:
    """Make the module of a providers file known by its name: dataclasses and pickle look it up."""
    module = provider_module(entry)
    sys.modules[module.__name__] = module
    try:
        yield module
    finally:
        sys.modules.pop(module.__name__, None)


def _early_environment() -> dict[str, str | None]:
    return {name: os.environ.get(name) for name in _EARLY_VARIABLES}


def _late_environment(entry: Entry, before: dict[str, str | None]) -> Note:
    changed = ", ".join(name for name, value in before.items() if os.environ.get(name) != value)
    return Note(
        "late-environment",
        f"{entry.path} sets {changed} when torch is imported already, which a simulation does first: "
        "it had no effect; set it in the shell",
    )


def _recorded(driver: Driver, options: RecordOptions, raised: BaseException | None) -> Recorded:
    exit_code = exit_code_of(raised)
    return Recorded(
        path=driver.path if driver.n_bytes is not None else None,
        exit_code=exit_code,
        notes=tuple(driver.notes),
        n_bytes=driver.n_bytes or 0,
        raised=raised,
        failure=None if driver.guard.is_child else _failure(driver, options, exit_code),
        report=driver.guard.report,
        is_child=driver.guard.is_child,
    )


def _failure(driver: Driver, options: RecordOptions, exit_code: int) -> Exception | None:
    """Return what went wrong in the recording; not that a program that failed did not come to its GPU."""
    failure = driver.guard.failure
    if not isinstance(failure, NothingAllocatedError):
        return failure
    if exit_code:
        return None
    if options.simulation is None and "torch" in sys.modules:
        try:
            environment.require_gpu()
        except NoCudaError as no_gpu:
            return no_gpu
    return failure
