"""torch's memory history: on and off, out-of-memory errors, snapshots with metadata."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from snapconv.errors import NothingAllocatedError
from snapconv.guest import own_frames
from snapconv.guest.symbols import name_every_function
from snapconv.guest.torch_surface import OutOfMemoryObserver
from snapconv.notes import Note
from snapconv.recorder import environment
from snapconv.recorder.observe.observer import Observer
from snapconv.recorder.options import RecordingOptions
from snapconv.recorder.spans import SpanLog

if TYPE_CHECKING:
    from snapconv.simulation import Simulation


def start(options: RecordingOptions) -> None:
    """Let torch record every event from here on; what it had recorded before is deleted.

    CUDA must have started: recording reaches only the devices that the allocator has by then. torch
    2.8 added ``clear_history``; before, events are deleted anyway.
    """
    import torch

    turn_on = torch.cuda.memory._record_memory_history
    arguments: dict[str, Any] = {
        "stacks": options.stacks,
        "max_entries": options.max_entries,
    }
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


def nothing_allocated(entry: str) -> NothingAllocatedError:
    """Return the error for a program that used no CUDA device."""
    return NothingAllocatedError(
        f"nothing was allocated on a CUDA device while {entry} ran, so there is no capture: "
        "does it move its model and data to the GPU?"
    )


def contents_now(
    options: RecordingOptions,
    observer: Observer,
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


def note_rows(notes: Iterable[Note]) -> list[dict[str, str]]:
    """Return notes as metadata has them."""
    return [{"slug": note.slug, "message": note.message} for note in notes]
