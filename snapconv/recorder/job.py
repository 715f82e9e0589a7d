"""The rank of this process in a distributed job, the number of ranks, and its mesh coordinates.

Launchers set environment variables: torchrun and accelerate, SLURM's srun, and mpirun. By its rank
a process is chosen to be recorded, and its captures are named.

When memory runs out in one rank, every rank may write a capture: the state of the whole job at that
moment. The rank that runs out leaves a sign: a file in the folder of the captures, and a key in the
job's own store where it has one. In every other rank a thread looks for it twice a second.
Launchers end these ranks by SIGTERM soon after, which waits here until the capture is written, for
20 s at most.
"""

import gc
import os
import signal
import sys
import threading
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

from snapconv.mesh import Mesh

# The variables of a launcher with the rank, and with the number of ranks.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
# Megatron's functions without an argument, by the axis that they are about (megatron-core 0.6 to
# 0.14).
_MEGATRON = {
    "pp": "get_pipeline_model_parallel_rank",
    "dp": "get_data_parallel_rank",
    "cp": "get_context_parallel_rank",
    "tp": "get_tensor_model_parallel_rank",
    "ep": "get_expert_model_parallel_rank",
}
_MAX_RANKS = 1 << 20


def process_rank() -> str:
    """Return the rank of this process in a job of several, empty without one."""
    rank, _ = _rank_and_size()
    return rank


def _rank_and_size() -> tuple[str, str]:
    """Return what the launcher says of this process in a job of several; empty without one."""
    for rank_variable, size_variable in _LAUNCHERS:
        rank = os.environ.get(rank_variable, "")
        # srun sets its variables for a job of one task too, and torchrun may run within it.
        default_size = "" if rank_variable == "RANK" else "1"
        size = os.environ.get(size_variable, default_size)
        if rank.isdecimal() and size != "1":
            return rank, size
    return "", ""


def is_chosen(ranks: Collection[int]) -> bool:
    """Return whether this process is to be recorded.

    Without ``ranks`` all are, and the one process of a job of one always is.
    """
    rank = process_rank()
    return not ranks or not rank or int(rank) in ranks


def parse_ranks(text: str) -> frozenset[int]:
    """Read ranks such as ``0,8,16-23``, or a mesh, which stands for the first of each stage.

    Raises ValueError for any other text.
    """
    if "=" in text:
        return Mesh.parse(text).first_of_stages()
    ranks: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        are_numbers = first.isdecimal() and last.isdecimal()
        if not are_numbers or not int(first) <= int(last) < _MAX_RANKS:
            raise ValueError(f"expected ranks such as 0,8,16-23, got {text!r}")
        ranks.update(range(int(first), int(last) + 1))
    return frozenset(ranks)


def job_values() -> dict[str, Any]:
    """Return the metadata about the rank of this process; None and empty without several ranks."""
    rank, size = _rank_and_size()
    coordinates: dict[str, int] = {}
    # The insides of these libraries change, and a capture is whole without coordinates.
    with suppress(Exception):
        if rank:
            coordinates = _megatron_coordinates() or _mesh_coordinates()
    return {
        "rank": int(rank) if rank else None,
        "world_size": int(size) if size.isdecimal() else None,
        "coordinates": ",".join(f"{axis}={index}" for axis, index in coordinates.items()),
    }


def _megatron_coordinates() -> dict[str, int]:
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    coordinates = {}
    for axis, name in _MEGATRON.items():
        if hasattr(state, name):
            coordinates[axis] = int(getattr(state, name)())
    return coordinates


def _mesh_coordinates() -> dict[str, int]:
    """Return the coordinates in the largest device mesh that the program has made."""
    module = sys.modules.get("torch.distributed.device_mesh")
    if module is None:
        return {}
    meshes = [
        mesh
        for mesh in gc.get_objects()
        if type(mesh) is module.DeviceMesh and mesh.mesh_dim_names
    ]
    if not meshes:
        return {}
    largest = max(meshes, key=_mesh_size)
    coordinates = map(int, largest.get_coordinate() or ())
    return dict(zip(largest.mesh_dim_names, coordinates, strict=False))


def _mesh_size(mesh: Any) -> tuple[int, int]:
    return mesh.mesh.numel(), mesh.ndim


_EVERY_S = 0.5
# Characters of the name of a rank, which another process wrote.
_MOST_OF_NAME = 40
# torchrun sends SIGKILL 30 s after SIGTERM, SLURM by default too.
_LONGEST_S = 20.0
_FILE = ".memory-ran-out"
_KEY = "snapconv/memory-ran-out"


class SharedOom:
    """The sign that memory ran out in a rank of the job, as this process leaves and sees it.

    ``capture`` is called with the name of the rank once another rank has left the sign.
    """

    _store: Any = None
    _is_store_gone = _is_own_sign = False
    _former_handler: Any = None

    def __init__(self, folder: Path, capture: Callable[[str], None]) -> None:
        self._file = folder / _FILE
        self._capture = capture
        self._earlier_jobs_time = self._file_time()
        self._over = threading.Event()
        self._captured = threading.Event()
        self._answering = threading.Lock()
        threading.Thread(target=self._listen, name="snapconv-oom", daemon=True).start()
        # SIGTERM is held back where the program has no handler of its own.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._former_handler = signal.signal(signal.SIGTERM, self._wait_and_end)

    def leave(self) -> None:
        """Tell the other ranks that memory ran out in this one; a failure to tell is ignored."""
        self._is_own_sign = True
        with suppress(OSError):
            self._file.write_text(f"rank {process_rank() or '?'}\n", encoding="utf-8")
        self._ask_store(lambda store: store.set(_key(), process_rank()))

    def close(self) -> None:
        """Stop listening; a sign that is there already is still answered."""
        self._answer()
        self._over.set()
        if signal.getsignal(signal.SIGTERM) == self._wait_and_end:
            signal.signal(signal.SIGTERM, self._former_handler)

    def _listen(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._answer()
            if self._captured.is_set():
                return

    def _answer(self) -> None:
        """Capture once, where another rank left the sign."""
        with self._answering:
            if self._captured.is_set() or self._is_own_sign:
                return
            rank = self._sign()
            if not rank:
                return
            try:
                self._capture(rank)
            finally:
                self._captured.set()

    def _sign(self) -> str:
        """Return the name of the rank that left the sign; empty for none."""
        with suppress(OSError):
            if self._file_time() != self._earlier_jobs_time:
                text = self._file.read_text(encoding="utf-8", errors="replace")
                return text.strip()[:_MOST_OF_NAME] or "a rank"
        rank = self._ask_store(_stored_rank)
        return f"rank {rank.decode('ascii', 'replace')}"[:_MOST_OF_NAME] if rank else ""

    def _ask_store(self, ask: Callable[[Any], Any]) -> Any:
        """Query the store of the job.

        One that failed is not queried again, as torch prints each failure.
        """
        if self._is_store_gone:
            return None
        try:
            self._store = self._store or _job_store()
            return None if self._store is None else ask(self._store)
        except Exception:  # noqa: BLE001  # torch's own, of many kinds
            self._is_store_gone = True
            return None

    def _file_time(self) -> int:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return 0

    def _wait_and_end(self, number: int, _frame: FrameType | None) -> None:
        """End as the signal does; first wait for the capture if another rank ran out of memory."""
        if self._sign() and not self._is_own_sign:
            self._captured.wait(_LONGEST_S)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _key() -> str:
    """Name the key of this start of the job: a store outlives its restarts."""
    return f"{_KEY}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _stored_rank(store: Any) -> bytes:
    """Return the rank that left the sign in the job's store; empty for none."""
    key = _key()
    rank: bytes = store.get(key) if store.check([key]) else b""
    return rank


def _job_store() -> Any:
    """Connect to the job's store; the job's own connection may be waiting for other ranks."""
    import torch

    address = os.environ.get("MASTER_ADDR")
    port = os.environ.get("MASTER_PORT", "")
    if not address or not port.isdecimal() or not torch.distributed.is_initialized():
        return None
    from datetime import timedelta

    return torch.distributed.TCPStore(
        address,
        int(port),
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=2),
    )
