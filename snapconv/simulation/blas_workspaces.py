"""The workspaces that cuBLAS gets at its first use."""

import os
import re
import threading

import torch

from snapconv.simulation.machine import Machine

# What torch gives cuBLAS per handle and stream where CUBLAS_WORKSPACE_CONFIG is not set: 32 MiB on
# compute capability 9.0, which is what the simulated device has (8320 KiB before it). torch's
# documentation, notes/cuda.rst, "cuBLAS workspaces" (2.13), and parseChosenWorkspaceSize in
# aten/src/ATen/cuda/CublasHandlePool.cpp; a recorded training step on that hardware has 33,554,432
# B too.
_WORKSPACE_BYTES = 32 << 20
# What requests it (torch 2.5 to 2.7; CublasHandlePool.cpp).
_FRAMES = ("at::cuda::getNewWorkspace()", "at::cuda::getCurrentCUDABlasHandle()")
_USES_BLAS = {
    "mm",
    "addmm",
    "_addmm_activation",
    "bmm",
    "baddbmm",
    "addbmm",
    "mv",
    "addmv",
    "dot",
}


class BlasWorkspaces:
    """One workspace per device, stream and thread, given at the first use and never freed.

    torch has one handle per thread. Backward runs on a thread of its own for each device on a GPU,
    whoever calls it. ``addrs`` has the addresses of all, for a benchmark of how well workspaces are
    recognized.
    """

    def __init__(self, machine: Machine) -> None:
        self._graph_task = torch._C._current_graph_task_id
        self._machine = machine
        config = os.environ.get("CUBLAS_WORKSPACE_CONFIG", "")
        chunks = re.findall(r":(\d+):(\d+)", config)
        n_kib = sum(int(size) * int(count) for size, count in chunks)
        # :0:0 asks for none.
        self._n_bytes = n_kib << 10 if chunks else _WORKSPACE_BYTES
        self._lock = threading.RLock()
        self.addrs: dict[tuple[int, int, int | None], int] = {}

    def note(self, operation: str, device: int) -> None:
        """Allocate the workspace if an operation is the first that needs it."""
        if operation not in _USES_BLAS:
            return
        thread = threading.get_ident() if self._graph_task() == -1 else None
        key = (device, self._machine.device(device).stream, thread)
        with self._lock:
            if key not in self.addrs:
                frames = self._machine.frames(within=_FRAMES)
                self.addrs[key] = self._machine.malloc(device, self._n_bytes, frames)
