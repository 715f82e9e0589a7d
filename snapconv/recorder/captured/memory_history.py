"""torch's memory history: on, off, snapshot and out-of-memory errors, in the form that this torch has."""

import inspect
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from snapconv.recorder.options import RecordingOptions

# (device, requested bytes, device's total bytes, device's free bytes)
OutOfMemoryObserver = Callable[[int, int, int, int], None]

_PINNED = "record_pinned_host_memory"


def start(options: RecordingOptions) -> None:
    """Let torch record every event from here on; what it had recorded before is deleted.

    CUDA has started: recording reaches the devices of the allocator, which has them from then on.
    The oldest form has four arguments and deletes events; 2.8 added ``clear_history``, later ones others that
    stay as they are, but for pinned host memory (2.14).
    """
    import torch

    turn = torch.cuda.memory._record_memory_history
    known = inspect.signature(turn).parameters
    extra = {"clear_history": True} if "clear_history" in known else {}
    if options.pinned and _PINNED in known:
        extra[_PINNED] = True
    turn(
        "all",
        context=options.context,
        stacks=options.stacks,
        max_entries=options.max_entries,
        **extra,
    )


def can_record_pinned() -> bool:
    """Whether this torch records pinned host memory."""
    import torch

    return _PINNED in inspect.signature(torch.cuda.memory._record_memory_history).parameters


def stop() -> None:
    """Let torch record no more; it deletes its events, so take the snapshot first."""
    import torch

    torch.cuda.memory._record_memory_history(None)


def is_on() -> bool:
    """Whether history is on already; False where this torch has no such query."""
    import torch

    is_enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(is_enabled and is_enabled())


def is_off() -> bool:
    """Whether history is off; False where this torch has no such query."""
    import torch

    is_enabled = getattr(torch._C, "_cuda_isHistoryEnabled", None)
    return bool(is_enabled and not is_enabled())


def take_snapshot() -> dict[str, Any]:
    """Return the allocator's state and the recorded events, as torch gives them."""
    import torch

    name_every_function()
    snapshot: dict[str, Any] = torch.cuda.memory._snapshot()
    return snapshot


def is_empty(snapshot: dict[str, Any]) -> bool:
    """Whether there is nothing in a snapshot: what a CUDA build without a driver gives, too."""
    return not snapshot.get("segments") and not any(snapshot.get("device_traces", ()))


def has_overflowed(snapshot: dict[str, Any], max_entries: int) -> bool:
    """Whether the oldest events were overwritten, as far as a full buffer shows it."""
    return any(len(trace) >= max_entries for trace in snapshot.get("device_traces", ()))


@contextmanager
def out_of_memory_observer(observer: OutOfMemoryObserver) -> Iterator[None]:
    """Have a function called when the allocator gives up, before the exception is thrown.

    torch cannot take an observer off again: the one attached here goes deaf instead. It is called with
    without a lock, on whichever thread allocated; it must not raise, or its error would hide torch's.
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

    torch reads the variable at the first stack, which is one of ours here; the program never sees it. A torch
    that does not support the word raises an error, and reads the variable again at the next stack.
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
