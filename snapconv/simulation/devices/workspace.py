"""The memory that cuBLAS gets at its first use, and keeps."""

import os
import re
import threading
from dataclasses import dataclass

from snapconv.simulation.devices.machine import Machine

KIB = 1024
# What torch gives cuBLAS per handle and stream where CUBLAS_WORKSPACE_CONFIG is not set: 32 MiB on compute
# capability 9.0, which is what the simulated device has (:4096:2:16:8, that is 8320 KiB, before it).
# torch's documentation, notes/cuda.rst, "cuBLAS workspaces" (2.13), and parseChosenWorkspaceSize in
# aten/src/ATen/cuda/CublasHandlePool.cpp; a recorded training step on that hardware has 33,554,432 B too.
_DEFAULT_BYTES = 4096 * 8 * KIB
# What requests it (torch 2.5 to 2.7; CublasHandlePool.cpp).
_FRAMES = ("at::cuda::getNewWorkspace()", "at::cuda::getCurrentCUDABlasHandle()")
_USES_BLAS = {"mm", "addmm", "_addmm_activation", "bmm", "baddbmm", "addbmm", "mv", "addmv", "dot"}


@dataclass(frozen=True, slots=True)
class Workspace:
    """A workspace that was given to cuBLAS; it is never freed."""

    device: int
    addr: int


class BlasWorkspaces:
    """One workspace per device, stream and thread: torch has one handle per thread.

    Backward runs on a thread of its own for each device on a GPU, whoever calls it. ``made``
    has them all, for those who compare what is inferred of a run with what is true.
    """

    def __init__(self, machine: Machine) -> None:
        from torch import _C

        self._graph_task = _C._current_graph_task_id
        self._machine = machine
        self._n_bytes = workspace_bytes(os.environ.get("CUBLAS_WORKSPACE_CONFIG", ""))
        self._there: dict[tuple[int, int, int | None], object] = {}
        self.made: list[Workspace] = []

    def note(self, operation: str, device: int) -> None:
        """Allocate the workspace if an operation is the first that needs it."""
        if operation not in _USES_BLAS:
            return
        thread = threading.get_ident() if self._graph_task() == -1 else None
        key = (device, self._machine.device(device).stream, thread)
        mine = object()
        if self._there.setdefault(key, mine) is mine:  # of two threads in backward, one makes it
            frames = self._machine.allocation_frames(within=_FRAMES)
            self.made.append(Workspace(device, self._machine.malloc(device, self._n_bytes, frames)))


def workspace_bytes(config: str) -> int:
    """Add up ``:SIZE:COUNT`` pairs, sizes in KiB; the default for anything else."""
    pairs = re.findall(r":(\d+):(\d+)", config)
    if not pairs or "".join(f":{size}:{count}" for size, count in pairs) != config:
        return _DEFAULT_BYTES
    return sum(int(size) * int(count) for size, count in pairs) * KIB
