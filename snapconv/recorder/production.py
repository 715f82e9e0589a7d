"""``snapconv.recording``: captures out of a job in production, of chosen steps, an OOM or on a signal.

It must not disturb the job: what fails here is logged as a warning and switches the recording off; it never
reaches the job, nor stands in the way of the job's own exceptions. Needs torch and nothing else.
"""

import logging
import os
import signal as signals
import sys
from collections.abc import Callable, Collection
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from snapconv.errors import OutputError, SnapconvError
from snapconv.recorder import environment
from snapconv.recorder.captured import memory_history
from snapconv.recorder.captured.capture_folder import free_name, write_capture_somewhere
from snapconv.recorder.captured.clock import IterationLog
from snapconv.recorder.captured.contents import Ended, Origin, contents_now, ended_by, nothing_allocated
from snapconv.recorder.guard import Guard, Guards
from snapconv.recorder.observe.observer import Observer
from snapconv.recorder.options import Context, ProjectOptions, Stacks
from snapconv.recorder.program.moments import CudaStart
from snapconv.recorder.program.script_signals import deferred_handlers
from snapconv.recorder.schedule import StepCounter, counting_steps
from snapconv.recorder.torch_features import Features, of_recording, probe
from snapconv.recorder.torch_surface import Feature

_LOG = logging.getLogger("snapconv")

# The ring of events is what grows: some hundred MB of the host at the worst.
_MAX_ENTRIES = 100_000
# Steps that never come: nothing but an OOM or a signal is captured.
NO_STEP = (-1,)
# A job that runs out of memory again and again must not fill the disk.
_MAX_CAPTURES = 10


class Recording:
    """A context around training; docs/guide/production.md has an example and describes each argument.

    ``captures`` are the folders written so far, ``steps_done`` counts the steps of the first optimizer
    that stepped.
    """

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
        context: Context = "all",
        max_entries: int = _MAX_ENTRIES,
        max_captures: int = _MAX_CAPTURES,
        project_root: str | os.PathLike[str] | None = None,
        include: Collection[str] = (),
    ) -> None:
        self.captures: list[Path] = []
        self.steps_done = 0
        self._output, self._model, self._optimizer = Path(output), model, optimizer
        self._steps = frozenset(steps)
        self._on_oom, self._on_signal = on_oom, on_signal
        self._stacks, self._context, self._max_entries = stacks, context, max_entries
        self._max_captures = max_captures
        self._project_root = Path(project_root or "").absolute()
        self._project = ProjectOptions(tuple(include), is_root_given=project_root is not None)
        self._guard = Guard()
        self._guards = Guards()
        self._features = Features()
        self._cuda = CudaStart(self._guard, self._cuda_starts)
        self._is_logged = False
        self._parts = ExitStack()
        self._observer: Observer | None = None
        self._iterations = IterationLog()
        self._is_signalled = False
        self._counts_by_hand = False
        self._oom_written = False

    def __enter__(self) -> "Recording":
        self._run(self._begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._guard.is_child:
            self._run(self._end, error)
            self._quietly_close()

    def step(self) -> None:
        """Tell that a step is over, where no torch optimizer does: from then on only this counts."""
        self._counts_by_hand = True
        self._run(self._step_ended)

    def capture(self, name: str = "requested") -> None:
        """Write a capture of this moment."""
        self._run(self._capture, name, Ended("complete", name))

    def _begin(self) -> None:
        environment.require_torch()
        environment.refuse_without_cuda(can_simulate=False)
        self._output.mkdir(parents=True, exist_ok=True)
        self._parts.enter_context(deferred_handlers(is_job=True))
        self._cuda.wait()
        self._parts.callback(self._cuda.cancel)
        self._features = probe(of_recording)
        self._guards.leave_out(self._features.changed)
        for note in self._features.notes():
            _LOG.warning("snapconv: %s", note.message)
        self._parts.enter_context(counting_steps(StepCounter(self._step_was_seen), self._guards))
        # Both put something around backward passes, and the observer, which begins later, has to go first.
        self._parts.callback(self._stop_observing)
        if self._on_signal is not None:
            self._parts.callback(_on_signal(self._on_signal, self._remember_signal))
        self._step_begins()

    def _cuda_starts(self) -> None:
        """Do all that needs CUDA, before the first allocation or, in a job that goes on already, now."""
        environment.require_history()
        if not memory_history.is_on():  # otherwise it is the job's, and stays as the job wants it
            memory_history.start(stacks=self._stacks, context=self._context, max_entries=self._max_entries)
            self._parts.callback(memory_history.stop)
        if self._on_oom:
            guard = self._guards.of(Feature.OUT_OF_MEMORY)
            hear = guard.hook(self._out_of_memory)
            guard.enter(self._parts, lambda: memory_history.out_of_memory_observer(hear))

    def _end(self, error: BaseException | None) -> None:
        """Without chosen steps, the whole block is what was meant."""
        if self._steps or (error is not None and (self._oom_written or not self._cuda.is_done)):
            return
        ended = Ended("complete") if error is None else ended_by(error)
        self._capture("end" if error is None else ended.how, ended)

    def _step_was_seen(self) -> None:
        if not self._counts_by_hand:
            self._run(self._step_ended)

    def _step_begins(self) -> None:
        """Observe the steps that will be captured; what an OOM needs is recorded when there is one."""
        is_wanted = not self._steps or self.steps_done in self._steps
        if not is_wanted:
            self._stop_observing()
        elif self._observer is None:
            self._observer = self._new_observer()
            self._observer.start()
        self._iterations.begin(self.steps_done, "memory")
        if self._observer is not None:
            self._observer.iteration_began(self.steps_done)

    def _step_ended(self) -> None:
        step = self.steps_done
        if self._observer is not None:
            self._observer.iteration_ended(step)
        self._iterations.end()
        self._oom_written = False  # the job goes on
        if step in self._steps:
            self._capture("step", Ended("complete"))
        if self._is_signalled:
            self._is_signalled = False
            self._capture("signal", Ended("complete", f"signal {self._on_signal}"))
        self.steps_done += 1
        self._step_begins()

    def _out_of_memory(self, device: int, n_bytes: int, total_bytes: int, free_bytes: int) -> None:
        text = f"cuda:{device} could not give {n_bytes} bytes; {free_bytes} of {total_bytes} were free"
        self._run(self._capture_out_of_memory, text)

    def _capture_out_of_memory(self, text: str) -> None:
        self._capture("oom", Ended("oom", text))
        self._oom_written = True

    def _remember_signal(self) -> None:
        """Only remember it: a signal may come at any moment, a snapshot is taken between two steps."""
        self._is_signalled = True

    def _capture(self, what: str, ended: Ended) -> None:
        if len(self.captures) >= self._max_captures:
            _LOG.warning("snapconv: no capture (%s): there are %d already", what, self._max_captures)
            return
        if not self._cuda.is_done:  # not yet; a snapshot would start it
            _LOG.warning("snapconv: no capture (%s): %s", what, nothing_allocated(_entry()))
            return
        observer = self._observer or self._new_observer()
        observer.note_now()
        contents = contents_now(self._origin(), observer, self._iterations)
        contents["snapconv"]["ended"] = ended.values()
        ours = (*self._features.notes(), *self._guards.notes())
        contents["snapconv"]["notes"] += [{"slug": note.slug, "message": note.message} for note in ours]
        path = free_name(self._output / f"{_rank()}{what}-{self.steps_done:06d}.capture")
        try:
            with suppress(OSError):  # the job may have removed it
                self._output.mkdir(parents=True, exist_ok=True)
            path, _ = write_capture_somewhere(path, contents, None, force=False)
        except OutputError as error:  # the disk may have free space again the next time
            _LOG.warning("snapconv: %s", error)
            return
        self.captures.append(path)
        _LOG.info("snapconv: wrote %s", path)

    def _origin(self) -> Origin:
        import torch

        return Origin(
            command=sys.argv,
            entry=_entry(),
            kind="production",
            project_root=self._project_root,
            project=self._project,
            device=torch.cuda.current_device(),
            max_entries=self._max_entries,
        )

    def _new_observer(self) -> Observer:
        # A job that records all of its steps is not to pay for searching the graphs of any.
        return Observer(
            model=self._model, optimizer=self._optimizer, leaves=bool(self._steps), guards=self._guards
        )

    def _stop_observing(self) -> None:
        if self._observer is not None:
            # Steps are counted by the last of all hooks; who counts by hand may do so from any.
            self._observer.stop(in_last_hook=not self._counts_by_hand)
        self._observer = None

    def _run(self, work: Callable[..., None], *arguments: Any) -> None:
        """Do something of ours; the first failure is logged, and everything is switched off."""
        self._guard.run(work, *arguments)
        if self._guard.failure is not None and not self._is_logged:
            self._is_logged = True
            failure = self._guard.failure
            # Where a fault of ours happened is for its fix; any other message has what to do.
            where = "" if isinstance(failure, SnapconvError) else f"\n{self._guard.report}"
            _LOG.warning("snapconv: recording is off: %s%s", failure, where)
            self._quietly_close()

    def _quietly_close(self) -> None:
        try:
            self._parts.close()
        except Exception as failure:  # noqa: BLE001  # the job is not to know
            _LOG.warning("snapconv: recording could not be ended cleanly: %s", failure, exc_info=failure)


def _entry() -> str:
    return sys.argv[0] if sys.argv else ""


def _rank() -> str:
    """Return what distinguishes this process from the others of a distributed job; torchrun sets it."""
    rank = os.environ.get("RANK", "")
    return f"rank{rank}-" if rank.isdecimal() else ""


def _on_signal(number: int, notify: Callable[[], None]) -> Callable[[], None]:
    """Handle a signal here first and then in its former handler; return what restores that."""
    before = signals.getsignal(number)

    def hear(received: int, frame: FrameType | None) -> None:
        notify()
        if callable(before):
            before(received, frame)

    signals.signal(number, hear)

    def put_back() -> None:
        if signals.getsignal(number) is hear:  # else the job has taken it since
            signals.signal(number, before)

    return put_back


# What users write is a verb's form, as with ``open``; what they get is an object of this class.
recording = Recording
