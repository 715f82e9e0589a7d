"""The errors of a simulated GPU: torch's own words for out-of-memory, ours for what it cannot do."""

import os
import sys
from pathlib import Path

from snapconv.allocator.caching_allocator import ModelOutOfMemory
from snapconv.errors import RecorderError

_OWN_FOLDER = str(Path(__file__).parent)


class ValuesNeededError(RecorderError):
    """An operation needs values, and the simulation computes none."""


def values_needed(operation: str) -> ValuesNeededError:
    """Name the line of the user that read values that ``compute=False`` does not have."""
    return ValuesNeededError(
        f"{_users_line()}: {operation} needs values, and the simulation computes none (--no-compute); "
        "the shape of its result depends on them. Simulate with computation, or leave this line out."
    )


def _users_line() -> str:
    """Name the innermost line that is neither torch's nor ours."""
    torch_folder = str(Path(str(sys.modules["torch"].__file__)).parent)
    frame = sys._getframe()
    while frame.f_back is not None:
        filename = frame.f_code.co_filename
        if not filename.startswith((_OWN_FOLDER, torch_folder)):
            return f"{filename}:{frame.f_lineno}"
        frame = frame.f_back
    return "(unknown line)"


def out_of_memory_message(error: ModelOutOfMemory, *, device: int) -> str:
    """Write torch's message for the model's figures (malloc in CUDACachingAllocator.cpp, 2.13)."""
    in_use = error.capacity - error.free_bytes
    unallocated = error.reserved_bytes - error.allocated_bytes
    return (
        f"CUDA out of memory. Tried to allocate {_format(error.segment_bytes)}. "
        f"GPU {device} has a total capacity of {_format(error.capacity)} of which "
        f"{_format(error.free_bytes)} is free. "
        f"Process {os.getpid()} has {_format(in_use)} memory in use. "
        f"Of the allocated memory {_format(error.allocated_bytes)} is allocated by PyTorch, and "
        f"{_format(unallocated)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def _format(n_bytes: int) -> str:
    """Write bytes as torch's format_size does, which has no unit above GiB."""
    if n_bytes <= 1024:
        return f"{n_bytes} bytes"
    for power, unit in ((1, "KiB"), (2, "MiB")):
        if n_bytes <= 1024 ** (power + 1):
            return f"{n_bytes / 1024**power:.2f} {unit}"
    return f"{n_bytes / 1024**3:.2f} GiB"
