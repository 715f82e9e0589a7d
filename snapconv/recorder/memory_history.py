"""torch's memory history: on and off, out-of-memory errors, snapshots with metadata, its clock.

torch stamps its trace with the processor's counter, calibrated to the system's time; the recorder
reads the system's time. Annotations are written by both, and show how far the two are apart.
"""

import inspect
import os
import time
from bisect import bisect_right
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from snapconv.errors import NothingAllocatedError
from snapconv.recorder import environment
from snapconv.recorder.options import RecordingOptions
from snapconv.recorder.program import own_frames

if TYPE_CHECKING:
    from snapconv.notes import Note
    from snapconv.recorder.observe.observer import Observer
    from snapconv.simulation import Simulation

# (device, requested bytes, device's total bytes, device's free bytes)
OutOfMemoryObserver = Callable[[int, int, int, int], object]


def start(options: RecordingOptions) -> None:
    """Let torch record every event from here on; what it had recorded before is deleted.

    CUDA must have started: recording reaches only the devices that the allocator has by then. torch
    2.8 added ``clear_history``; before, events are deleted anyway.
    """
    import torch

    turn_on = torch.cuda.memory._record_memory_history
    arguments: dict[str, Any] = {"stacks": options.stacks, "max_entries": options.max_entries}
    if "clear_history" in inspect.signature(turn_on).parameters:
        arguments["clear_history"] = True
    turn_on("all", context="all", **arguments)


def stop() -> None:
    """Let torch record no more; it deletes its events, so take the snapshot first."""
    import torch

    torch.cuda.memory._record_memory_history(None)


def is_on() -> bool:
    """Return whether torch records its memory history."""
    import torch

    return bool(torch._C._cuda_isHistoryEnabled())


@contextmanager
def out_of_memory_observer(observer: OutOfMemoryObserver) -> Iterator[None]:
    """Have a function called when the allocator gives up, before the exception is thrown.

    torch cannot take an observer off again: the one attached here goes deaf instead. It is called
    without a lock, on whichever thread allocated; it must not raise, or its error would hide
    torch's.
    """
    import torch

    listening = [observer]

    def hear(device: int, n_bytes: int, total_bytes: int, free_bytes: int) -> None:
        for listener in listening:
            listener(device, n_bytes, total_bytes, free_bytes)

    torch._C._cuda_attach_out_of_memory_observer(hear)
    try:
        yield
    finally:
        listening.clear()


_CHOICE = "TORCH_SYMBOLIZE_MODE"


@cache
def name_every_function() -> None:
    """Have torch take ``fast``, unless the environment or an earlier stack has made the choice.

    torch reads the variable at the first stack, which is one of ours here; the program never sees
    it. A torch that does not support the word raises an error, and reads the variable again at the
    next stack.
    """
    import torch

    if _CHOICE in os.environ:
        return
    profiler = torch._C._profiler
    os.environ[_CHOICE] = "fast"
    try:
        profiler.symbolize_tracebacks([profiler.gather_traceback(False, False, True)])
    except RuntimeError:
        pass
    finally:
        del os.environ[_CHOICE]


def now_us() -> int:
    """Microseconds since the epoch, the unit and the origin of a trace's times."""
    return time.time_ns() // 1000


class SpanLog:
    """The newest phases or iterations, one at a time; each has an annotation in the trace, too."""

    def __init__(self, max_spans: int) -> None:
        self.rows: deque[dict[str, Any]] = deque(maxlen=max_spans)
        self.current: dict[str, Any] | None = None
        self._range: Any = None
        # Annotations, each with the recorder's times between which torch stamped it.
        self._marks: deque[tuple[str, int, int]] = deque(maxlen=max_spans)

    def begin(self, annotation: str, /, *, is_range: bool, **values: Any) -> None:
        """Begin a span, which ends the last one.

        ``is_range``: the annotation lasts as long as the span; else it marks its beginning.
        """
        self.end()
        import torch

        annotated = torch.autograd.profiler.record_function(annotation)
        begin_us = now_us()
        annotated.__enter__()
        self._marks.append((annotation, begin_us, now_us()))
        if is_range:
            self._range = annotated
        else:
            annotated.__exit__(None, None, None)
        self.current = {**values, "began_us": begin_us, "ended_us": None}
        self.rows.append(self.current)

    def end(self) -> None:
        """End the span that lasts, if one does; another thread may end it meanwhile."""
        span = self.current
        self.current = None
        annotated = self._range
        self._range = None
        if annotated is not None:
            annotated.__exit__(None, None, None)
        if span is not None:
            span["ended_us"] = now_us()

    def trace_clock(self, annotations: Any) -> Callable[[int], int]:
        """Return a function from the recorder's times to the trace's, both in µs.

        The last annotation before a time shows how far the two are apart.
        """
        shifts = self._shifts(annotations) if isinstance(annotations, list) else []
        if not shifts:
            shifts = [(0, 0)]
        times = [time_us for time_us, _ in shifts]

        def convert(time_us: int) -> int:
            index = bisect_right(times, time_us) - 1
            _, shift_us = shifts[max(index, 0)]
            return time_us + shift_us

        return convert

    def _shifts(self, annotations: list[Any]) -> list[tuple[int, int]]:
        """Return times with the shift that holds from there on, in µs."""
        stamps_by_name: dict[str, list[int]] = defaultdict(list)
        for entry in annotations:
            if entry.get("stage") == "START" and isinstance(entry.get("time_us"), int):
                stamps_by_name[entry.get("name", "")].append(entry["time_us"])
        shifts = []
        # From the newest back: the ring of annotations overwrites the oldest.
        for name, begin_us, end_us in reversed(self._marks):
            stamps = stamps_by_name.get(name)
            if stamps:
                stamp_us = stamps.pop()
                # Within the two times the clocks agree; else the smallest shift makes them agree.
                time_us = min(max(stamp_us, begin_us), end_us)
                shifts.append((begin_us, stamp_us - time_us))
        return sorted(shifts)

    def facts(self, convert: Callable[[int], int]) -> list[dict[str, Any]]:
        """Return the spans as metadata has them, times as the snapshot's trace has them."""
        rows = []
        for span in list(self.rows):
            row = span.copy()
            for name in ("began_us", "ended_us"):
                if row[name] is not None:  # no end: the span still lasts
                    row[name] = convert(row[name])
            rows.append(row)
        return rows


def nothing_allocated(entry: str) -> NothingAllocatedError:
    """Return the error for a program that used no CUDA device."""
    return NothingAllocatedError(
        f"nothing was allocated on a CUDA device while {entry} ran, so there is no capture: "
        "does it move its model and data to the GPU?"
    )


def contents_now(
    options: RecordingOptions,
    observer: "Observer",
    *,
    iterations: SpanLog,
    device: int,
    simulation: "Simulation | None" = None,
) -> dict[str, Any]:
    """Return a snapshot of now with its metadata, all but how the program ended.

    Raises NothingAllocatedError where nothing was allocated, or torch has no driver and does not
    mention it.
    """
    import torch

    name_every_function()
    snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    traces = snapshot.get("device_traces", ())
    if not snapshot.get("segments") and not any(traces):
        raise nothing_allocated(options.program.path)
    is_overflowed = any(len(trace) >= options.max_entries for trace in traces)
    trace_clock = iterations.trace_clock(snapshot.get("external_annotations"))
    metadata = {
        **environment.process_values(options.program.command),
        "project_root": str(options.project_root),
        "project_root_given": options.is_root_given,
        "include": list(options.includes),
        "entry": {"path": options.program.path, "kind": options.program.kind},
        "simulated": simulation.values() if simulation else None,
        "max_entries": options.max_entries,
        "overflowed": is_overflowed,
        "devices": environment.device_values(device),
        **observer.facts(snapshot),
        "iterations": iterations.facts(trace_clock),
        "notes": note_rows(simulation.notes() if simulation else ()),
    }
    own_frames.clean_snapshot(snapshot)
    return {**snapshot, "snapconv": metadata}


def note_rows(notes: "Iterable[Note]") -> list[dict[str, str]]:
    """Return notes as metadata has them."""
    return [{"slug": note.slug, "message": note.message} for note in notes]
