"""The life cycle of every recording inside the user's program: from turning hooks on to leaving.

A policy decides what an iteration is for, when a capture is due, and what becomes of it and of
failures. ``record.py`` has the policy of a run that is recorded once, ``recording.py`` that of
chosen moments of a job.
"""

import threading
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Protocol
from weakref import WeakMethod

from snapconv.errors import SnapconvError
from snapconv.guest import own_frames
from snapconv.guest.guard import Guard, Guards
from snapconv.guest.symbols import name_every_function
from snapconv.guest.torch_surface import Feature, changed_notes, probe
from snapconv.notes import Note
from snapconv.recorder import environment, memory_history
from snapconv.recorder.interception import Interception
from snapconv.recorder.memory_history import note_rows, nothing_allocated
from snapconv.recorder.observe.observer import Observer
from snapconv.recorder.options import RecordingOptions
from snapconv.recorder.program.script import Ended
from snapconv.recorder.project_source import project_source
from snapconv.recorder.schedule import Part, Sign, StepCounter, listen
from snapconv.recorder.spans import SpanLog

if TYPE_CHECKING:
    from snapconv.recorder.timing.timer import Timer
    from snapconv.simulation import Simulation

Say = Callable[[str], None]


def silent(_text: str) -> None:
    """Print nothing."""


# Writing a large capture takes a minute.
_LONGEST_TURN_S = 120
# For a job in production, which may have any number of them.
_MAX_ITERATIONS = 10_000


class Policy(Protocol):
    """The decisions of one recording.

    The driver calls the methods within its guard, but for the last three, which use it where they
    do something that may fail.
    """

    def turn_on(self, driver: "Driver") -> None:
        """Turn on what is needed before the program's first line."""

    def cuda_started(self, driver: "Driver") -> bool:
        """Choose the device; return whether the driver is to turn the memory history on."""

    def counts(self, driver: "Driver") -> bool:
        """Return whether what just ended counts as an iteration."""

    def part(self, iteration: int) -> Part:
        """Return the purpose of an iteration."""

    def iteration_ended(self, driver: "Driver", iteration: int) -> None:
        """Write the captures that are due after an iteration."""

    def out_of_memory(self, driver: "Driver", text: str) -> None:
        """Keep the state in which the allocator gave up; ``text`` has the sizes."""

    def finish(self, driver: "Driver", ended: Ended) -> None:
        """Write the captures that are due when the program ends."""

    def failed(self, driver: "Driver") -> None:
        """React to the failure that ended the recording."""


class Driver:
    """One recording inside the user's program; errors of snapconv go to ``guard.failure``."""

    iteration = 0
    is_over = has_cuda = False
    timer: "Timer | None" = None
    observer: Observer | None = None
    _is_closed = _has_used_device = False

    def __init__(
        self,
        options: RecordingOptions,
        policy: Policy,
        *,
        simulation: "Simulation | None" = None,
        say: Say = silent,
    ) -> None:
        self.options = options
        self.policy = policy
        self.say = say
        self.guard = Guard()
        self.guards = Guards()
        self.interception = Interception(self.guards)
        self.device = options.device or 0  # until CUDA starts
        self.parts = ExitStack()
        self._simulation = simulation
        self._counting = ExitStack()
        self._iterations = SpanLog(_MAX_ITERATIONS)
        # Held by the thread that works on the recording: a program may train on several.
        self._turn = threading.RLock()

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to record: all is written, it is closed, or our work failed."""
        return self.is_over or self._is_closed or self.guard.failure is not None

    @property
    def uses_device(self) -> bool:
        """Whether the program has allocated on a device; what it runs before is no iteration."""
        if self.has_cuda and not self._has_used_device:
            self._has_used_device = bool(self.guard.run(environment.device_values))
        return self._has_used_device

    def run(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something of ours; after a failure nothing more is done."""
        self.guard.run(work, *arguments)
        if self.guard.failure is not None:
            self.policy.failed(self)

    def run_in_turn(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something of ours from a thread of ours, when no other works on the recording."""
        self._take_turn(self.run, work, *arguments)

    # --- on

    def turn_on(self) -> None:
        """Turn everything on that needs no device, before the user's first line."""
        self.run(self._turn_on)

    def _turn_on(self) -> None:
        environment.require_history()
        for feature, name in probe(is_for_simulation=False).items():
            self.guards.of(feature).lacking = name
        self.policy.turn_on(self)

    def wait_for_cuda(self) -> None:
        """Turn the history on when the program starts CUDA, or now where it has started already.

        That is before the first allocation: whatever needs the device goes through
        ``torch.cuda._lazy_init``, which runs what was queued (torch 2.1 to 2.15). A failure in a
        queued call would become the program's ``DeferredCudaCallError``, and a forked child
        inherits the queue. So the work runs in the guard, which keeps failures and does nothing in
        a child.
        """
        import torch

        if torch.cuda.is_initialized():
            self.cuda_starts()
        else:
            # The reference is weak because torch may keep its queue until the process ends.
            reference = WeakMethod(self.cuda_starts)

            def start() -> None:
                cuda_starts = reference()
                if cuda_starts is not None:
                    cuda_starts()

            torch.cuda._lazy_call(start)

    def cuda_starts(self) -> None:
        """Do what needs CUDA, once.

        If another queued call fails, the next start runs the queue again.
        """
        if not self.has_cuda and not self._is_closed:
            self.guard.run(self._cuda_started)

    def count_steps(
        self, end_iteration: Callable[[], None], *, lowest_sign: Sign = Sign.OPTIMIZER
    ) -> None:
        """Let the program's steps end iterations, until ``stop_counting``."""
        self.parts.callback(self.stop_counting)
        counter = StepCounter(end_iteration, lowest_sign=lowest_sign)
        guard = self.guards.of(Feature.MARKED_STEPS)
        stop_listening = listen(guard.hook(lambda: counter.saw(Sign.SCRIPT)))
        self._counting.callback(stop_listening)
        self.interception.listen(counter.listeners)
        self._counting.callback(self.interception.leave, counter.listeners)

    def stop_counting(self) -> None:
        """Let no step of the program end an iteration any more."""
        self._counting.close()

    def begin_iteration(self) -> None:
        """Begin the iteration whose number is ``iteration``."""
        part = self.policy.part(self.iteration)
        if part.is_of_memory:
            if self.options.steps and self.iteration not in self.options.steps:
                # What an OOM needs is recorded when memory runs out.
                self.stop_observing()
                self.observer = None
            else:
                self.observer = self.observer or self.new_observer()
                self.observer.start()
            self._iterations.begin(
                "snapconv:iteration",
                is_range=False,
                iteration=self.iteration,
                kind=part.value,
            )
            if self.observer is not None:
                self.observer.iteration_began(self.iteration)
        elif self.timer:
            guard = self.guards.of(Feature.TIMES)
            guard.run(self.timer.begin, self.iteration, part is Part.TIMING_WARM_UP)

    def new_observer(self) -> Observer:
        """Make an observer of this thread."""
        return Observer(
            model=self.options.model,
            optimizer=self.options.optimizer,
            guards=self.guards,
            interception=self.interception,
        )

    def _cuda_started(self) -> None:
        """Do all that needs CUDA.

        Nothing is allocated yet, unless the program had started CUDA before.
        """
        try:
            environment.require_history()  # the program may have brought its own allocator
            needs_history = self.policy.cuda_started(self)
        except SnapconvError as error:
            # It is said now, and not only when the program has run for a day.
            self.say(f"nothing is recorded: {error}")
            raise
        if needs_history:
            memory_history.start(self.options)
            self.parts.callback(memory_history.stop)
        if self.options.on_oom:
            guard = self.guards.of(Feature.OUT_OF_MEMORY)
            hear = guard.hook(self.out_of_memory)
            guard.enter(self.parts, lambda: memory_history.out_of_memory_observer(hear))
        self.has_cuda = True

    # --- while the program runs

    def iteration_ended(self) -> None:
        """Go on to the next iteration, and to the next part where it is time."""
        if self.is_complete or not self._turn.acquire(blocking=False):
            return  # another thread is just ending an iteration: this one ends with it
        try:
            if not self.is_complete:
                self.run(self._iteration_ended)
        finally:
            self._turn.release()

    def _iteration_ended(self) -> None:
        if not self.policy.counts(self):
            return
        ended = self.iteration
        if self.policy.part(ended).is_of_memory:
            if self.observer is not None:
                self.observer.iteration_ended(ended)
            self._iterations.end()
        elif self.timer:
            self.guards.of(Feature.TIMES).run(self.timer.end)
        self.iteration += 1
        self.policy.iteration_ended(self, ended)
        if not self.is_over:
            self.begin_iteration()

    def out_of_memory(
        self, device: int, n_bytes: int, total_bytes: int, free_bytes: int
    ) -> None:
        """Let the policy keep the state in which the allocator gave up."""
        text = (
            f"cuda:{device} could not give {n_bytes} bytes; {free_bytes} of {total_bytes} were "
            f"free"
        )
        self._take_turn(self.policy.out_of_memory, self, text)

    # --- captures

    def note_now(self) -> None:
        """Record what memory is for at this moment."""
        if self.observer is not None:
            self.observer.note_now()

    def contents(self) -> dict[str, Any]:
        """Return a snapshot of now and its metadata, all but how the program ended.

        Raises NothingAllocatedError where nothing was allocated, or torch has no driver and does
        not mention it.
        """
        import torch

        observer = self.observer
        if observer is None:
            observer = self.new_observer()
            observer.note_now()
        options = self.options
        program = options.program
        simulation = self._simulation
        name_every_function()
        snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
        traces = snapshot.get("device_traces", ())
        if not snapshot.get("segments") and not any(traces):
            raise nothing_allocated(program.path)
        trace_clock = self._iterations.trace_clock(snapshot.get("external_annotations"))
        metadata = {
            **environment.process_values(program.command),
            "project_root": str(options.project_root),
            "project_root_given": options.is_root_given,
            "include": list(options.includes),
            "source": None,
            "entry": {"path": program.path, "kind": program.kind},
            "simulated": simulation.values() if simulation else None,
            "max_entries": options.max_entries,
            "overflowed": any(len(trace) >= options.max_entries for trace in traces),
            "devices": environment.device_values(self.device),
            **observer.facts(snapshot),
            "iterations": self._iterations.facts(trace_clock),
            "notes": note_rows(simulation.notes() if simulation else ()),
        }
        own_frames.clean_snapshot(snapshot)
        if options.keeps_source:
            metadata["source"] = project_source(snapshot, options.project_root)
        return {**snapshot, "snapconv": metadata}

    def complete(
        self, contents: dict[str, Any], ended: Ended, faults: Iterable[Note] = ()
    ) -> dict[str, Any]:
        """Return the contents with how the program ended, and with the notes on our own work."""
        metadata = {**contents["snapconv"], "ended": ended.values()}
        notes = [*changed_notes(self.guards.changed()), *self.guards.notes(), *faults]
        metadata["notes"] = metadata["notes"] + note_rows(notes)
        return {**contents, "snapconv": metadata}

    # --- off

    def finish(self, ended: Ended) -> None:
        """Write what there is and is not written already."""
        self._take_turn(self.policy.finish, self, ended)

    def stop_observing(self) -> None:
        """Take the observer's hooks away; it goes on to answer."""
        if self.observer is not None:
            self.observer.stop()

    def close(self) -> Exception | None:
        """Leave torch as it was, in whatever state a failure left the recording.

        Return the exception that it raised, if any.
        """
        self._is_closed = True
        if self.guard.is_child:
            return None
        try:
            self.parts.close()
        except Exception as failure:  # noqa: BLE001  # the program is not to know
            return failure
        return None

    def _take_turn(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do work when no other thread works on the recording; in a forked child do nothing.

        It waits for two minutes at most, as the other thread may hang.
        """
        if self.guard.is_child:
            return
        is_own = self._turn.acquire(timeout=_LONGEST_TURN_S)
        try:
            work(*arguments)
        finally:
            if is_own:
                self._turn.release()
