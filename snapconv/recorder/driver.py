"""Takes a recording through its parts: warm-up, memory, times; keeps each part's result and writes it."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from snapconv.errors import SnapconvError
from snapconv.notes import Note
from snapconv.recorder import environment
from snapconv.recorder.captured import memory_history
from snapconv.recorder.captured.capture_folder import write_capture_somewhere
from snapconv.recorder.captured.clock import IterationLog
from snapconv.recorder.captured.contents import Ended, Origin, contents_now, nothing_allocated
from snapconv.recorder.guard import Guard, Guards, fault_note
from snapconv.recorder.options import RecordOptions
from snapconv.recorder.schedule import Part, Schedule
from snapconv.recorder.torch_features import Features
from snapconv.recorder.torch_surface import Feature

if TYPE_CHECKING:
    from snapconv.recorder.observe.observer import Observer
    from snapconv.recorder.timing.timer import Timer

Say = Callable[[str], None]

_COMPLETE = Ended("complete")
# Writing a large capture takes a minute.
_LONGEST_TURN_S = 120
_WARM_UP_TIMES = (
    "the times are those of the iteration in which the timer warms up, as no other came after it: they may "
    "include what happens only once; let the program run one more iteration"
)

_NO_PINNED = Note(
    "no-pinned-memory",
    "this torch does not record pinned host memory, so the capture has none of it: use torch 2.14 or newer",
)


class Driver:
    """One recording, from history on to the capture on disk.

    ``begin``, ``iteration_ended``, ``out_of_memory`` and ``finish`` are called from within the user's
    program and never raise what is ours; ``guard.failure`` has it.
    """

    def __init__(
        self,
        options: RecordOptions,
        origin: Origin,
        *,
        observer: "Observer",
        timer: "Timer | None",
        say: Say,
        guards: Guards | None = None,
    ) -> None:
        self.guard = Guard()
        self.guards = guards or Guards()
        self.schedule = Schedule(
            warm_up=options.warm_up, iterations=options.iterations, has_timing=timer is not None
        )
        self.n_bytes: int | None = None
        self.path = options.output
        self._options, self._origin = options, origin
        self._output = options.output.absolute()  # a script may change its folder
        self._observer, self._timer, self._say = observer, timer, say
        self._contents: dict[str, Any] | None = None
        self._at_out_of_memory: dict[str, Any] | None = None
        self._iterations = IterationLog()
        self._has_history = self._has_used_device = False
        self.notes: list[Note] = []
        self.features = Features()
        self._times = self.guards.of(Feature.TIMES)
        # Held by the thread that works on the recording: a program may train on several.
        self._turn = threading.RLock()
        # What went wrong in the recording itself before there was anything to write.
        self._faults: tuple[Note, ...] = ()

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing more to record: all is written, or something of ours failed."""
        return self.schedule.is_over or self.guard.failure is not None

    @property
    def uses_device(self) -> bool:
        """Whether the program has allocated on a device yet: what it runs before that is no iteration."""
        if self._has_history and not self._has_used_device:
            self._has_used_device = bool(self.guard.run(environment.has_allocated))
        return self._has_used_device

    def begin(self) -> None:
        """Turn on what needs no device, before the user's first line."""
        self.guard.run(self._begin)

    def cuda_started(self, device: int) -> None:
        """Turn the history on, before the first allocation; the times are those of ``device``. May raise."""
        self._origin = replace(self._origin, device=device)
        if self._timer:
            self._timer.use_device(device)
        options = self._options
        memory_history.start(
            stacks=options.stacks,
            context=options.context,
            max_entries=options.max_entries,
            pinned=options.pinned,
        )
        self._has_history = True
        if options.pinned and not memory_history.can_record_pinned():
            self.notes.append(_NO_PINNED)

    def stop_observing(self) -> None:
        """Take every hook away, whatever state a failure left the recording in; may raise."""
        self._observer.stop()

    def stop_history(self) -> None:
        """Turn the history off where it was turned on: to turn it off starts CUDA as well. May raise."""
        if self._has_history:
            memory_history.stop()

    def iteration_ended(self) -> None:
        """Go on to the next iteration, and to the next part where it is time."""
        if self.is_complete or not self._turn.acquire(blocking=False):
            return  # another thread is just ending an iteration: this one ends with it
        try:
            if not self.is_complete:
                self.guard.run(self._iteration_ended)
        finally:
            self._turn.release()

    def out_of_memory(self, device: int, n_bytes: int, total_bytes: int, free_bytes: int) -> None:
        """Keep the state in which the allocator gave up: afterwards everything unwinds."""
        if self.guard.is_child:
            return
        with self._own_turn():
            if self._contents is None and not self.is_complete:
                self.guards.of(Feature.OUT_OF_MEMORY).run(self._keep_out_of_memory)

    def finish(self, ended: Ended) -> None:
        """Write what there is, unless all is written already; turn everything off."""
        if self.guard.is_child:
            return
        with self._own_turn():
            if self.n_bytes is None:
                self._finish_guarded(ended)

    def _finish_guarded(self, ended: Ended) -> None:
        fault, self.guard = self.guard, Guard()
        if isinstance(fault.failure, SnapconvError):
            self.guard = fault
        elif fault.failure is not None:
            # It may have been of that moment only: a capture with what there is now is better than none.
            self._faults = (fault_note(fault),)
        is_written = self.guard.run(self._finish, ended)
        if self._faults:
            self.guard = Guard() if is_written else fault

    @contextmanager
    def _own_turn(self) -> Iterator[None]:
        """Wait until no other thread works on the recording; but not for ever, since it may hang."""
        is_own = self._turn.acquire(timeout=_LONGEST_TURN_S)
        try:
            yield
        finally:
            if is_own:
                self._turn.release()

    def _begin(self) -> None:
        self._observer.start()
        self._iteration_began()

    def _iteration_began(self) -> None:
        schedule = self.schedule
        if schedule.part in (Part.WARM_UP, Part.MEMORY):
            self._iterations.begin(schedule.iteration, schedule.part.value)
            self._observer.iteration_began(schedule.iteration)
        elif self._timer:
            self._times.run(self._timer.begin, schedule.iteration, schedule.part is Part.TIMING_WARM_UP)

    def _iteration_ended(self) -> None:
        # Timing synchronizes the device, which CUDA forbids while a graph is captured.
        if not self.uses_device or environment.is_capturing_graph():
            return
        schedule = self.schedule
        ended = schedule.part
        if ended in (Part.WARM_UP, Part.MEMORY):
            self._observer.iteration_ended(schedule.iteration)
            self._iterations.end()
        elif self._timer:
            self._times.run(self._timer.end)
        self._at_out_of_memory = None  # the program recovered from it
        self._say(f"{schedule.iteration + 1} of {schedule.n_iterations} iterations done ({ended.value})")
        schedule.iteration += 1
        if ended is Part.MEMORY and schedule.part is not Part.MEMORY:
            self._keep_memory()
        if schedule.is_over:
            self._write(_COMPLETE)
        else:
            self._iteration_began()

    def _keep_memory(self) -> None:
        """Take the snapshot and turn the history off, so that it does not slow the timed iterations down."""
        if self.uses_device:
            self._say("taking the snapshot; to name C++ frames for the first time takes torch a while")
        if memory_history.is_off():
            self._note_on_history()
        self._contents = contents_now(self._origin, self._observer, self._iterations)
        memory_history.stop()
        self._observer.stop()

    def _keep_out_of_memory(self) -> None:
        self._observer.note_now()
        self._at_out_of_memory = contents_now(self._origin, self._observer, self._iterations)

    def _finish(self, ended: Ended) -> bool:
        if not self._has_history:
            raise nothing_allocated(self._origin.entry)
        if self._contents is None and self._at_out_of_memory is not None:
            self._contents = self._at_out_of_memory
        if self._contents is None:
            self._observer.note_now()
            self._keep_memory()
        self._write(ended)
        return True

    def _write(self, ended: Ended) -> None:
        assert self._contents is not None
        timing = self._times.run(self._timer.trace) if self._timer else None
        metadata = {**self._contents["snapconv"], "ended": ended.values()}
        self._remark(ended, metadata, timing)
        ours = (*self.features.notes(), *self.guards.notes(), *self._faults)
        metadata["notes"] = [*metadata["notes"], *({"slug": n.slug, "message": n.message} for n in ours)]
        self.notes += [Note(**row) for row in metadata["notes"]]
        self._say(f"writing {self._options.output}")
        place, self.n_bytes = write_capture_somewhere(
            self._output,
            {**self._contents, "snapconv": metadata},
            timing,
            force=self._options.force,
        )
        if place != self._output:
            self.path = place
            self.notes.append(_elsewhere(self._options.output, place))
        self._contents = None
        if ended is _COMPLETE and self._origin.kind != "providers":
            what_next = "is ended here" if self._options.stop else "goes on without a recording"
            self._say(f"everything is recorded; the program {what_next}")

    def _note_on_history(self) -> None:
        self.notes.append(
            Note(
                "history-off",
                f"{self._origin.entry} switched torch's memory history off, and with it the recording: "
                "events are missing; remove its calls of _record_memory_history",
            )
        )

    def _remark_on_device(self, devices: list[dict[str, Any]]) -> None:
        timed, busiest = self._origin.device, _busiest(devices)
        if busiest not in (None, timed):
            self.notes.append(
                Note(
                    "other-device",
                    f"most of the memory is on cuda:{busiest}, and the times are those of cuda:{timed}: "
                    f"give --device {busiest} to time the operations there",
                )
            )

    def _remark(self, ended: Ended, metadata: dict[str, Any], timing: dict[str, Any] | None) -> None:
        """Add the notes on a capture that is not all it could be."""
        schedule, entry = self.schedule, self._origin.entry
        is_warm_up = timing is not None and timing.get("warm_up", False)
        if ended.how != _COMPLETE.how:
            self.notes.append(Note("ended-early", _early(entry, ended, schedule, has_times=is_warm_up)))
        elif timing is None:
            why = "none were measured" if self._timer else "nothing was computed"
            self.notes.append(Note("no-timing", f"the capture has no times of operations: {why}"))
        if is_warm_up:
            self.notes.append(Note("warm-up-times", _WARM_UP_TIMES))
        if timing is not None:
            self._remark_on_device(metadata["devices"])
        if metadata["overflowed"]:
            self.notes.append(
                Note(
                    "truncated-history",
                    f"more than {self._origin.max_entries} events: the oldest were overwritten; "
                    "raise --max-entries",
                )
            )


def _elsewhere(output: Path, place: Path) -> Note:
    return Note(
        "capture-elsewhere",
        f"{output} could not be written any more, as something removed, took or closed its place while the "
        f"program ran: the capture is {place}",
    )


def _busiest(devices: list[dict[str, Any]]) -> int | None:
    """Return the device with the most memory in use at its peak."""
    peaks = {row["device"]: row["max_memory_allocated"] for row in devices}
    return max(peaks, key=peaks.__getitem__, default=None)


def _early(entry: str, ended: Ended, schedule: Schedule, *, has_times: bool) -> str:
    """Say how far the recording came, what is missing, and what would bring it."""
    how = {
        "finished": "came to its end",
        "exception": "raised an exception",
        "interrupted": f"was terminated ({ended.detail})" if ended.detail else "was interrupted",
        "oom": "ran out of memory",
        "exit": "called sys.exit",
    }[ended.how]
    text = f"{entry} {how} when {schedule.iteration} of {schedule.n_iterations} iterations were done"
    if schedule.iteration == 0 and ended.how == "finished":
        return (
            f"{text}: no step of an optimizer and no backward pass was seen, so iterations could not be "
            "detected; there are no times: call snapconv.step() at the end of each iteration"
        )
    if schedule.part in (Part.WARM_UP, Part.MEMORY):
        text = f"{text}: the capture has the memory up to there, and no times"
    elif has_times:
        return f"{text}: the memory part is whole, and the times are those of the timer's warm-up"
    elif schedule.part is Part.TIMING_WARM_UP:
        text = f"{text}: the memory part is whole, and there are no times"
    else:
        return f"{text}: the memory part is whole, the times are not"
    n_enough = schedule.n_for_times
    return f"{text}; for times let it make {n_enough} iterations" if n_enough else text
