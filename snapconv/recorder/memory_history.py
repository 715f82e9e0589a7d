"""torch's memory history: on and off, and out-of-memory errors."""

import inspect
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from snapconv.errors import NothingAllocatedError
from snapconv.guest.torch_surface import OutOfMemoryObserver
from snapconv.json_text import picked
from snapconv.notes import Note
from snapconv.recorder.options import RecordingOptions


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


def note_rows(notes: Iterable[Note]) -> list[dict[str, str]]:
    """Return notes as metadata has them."""
    return [picked(note, ("slug", "message")) for note in notes]
