"""The place of this process in a distributed job: its rank, the number of ranks, its place in a device mesh.

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
_MOST_RANKS = 1 << 20


def process_rank() -> str:
    """Return the rank of this process in a job of several, empty without one."""
    for rank, size in _LAUNCHERS:
        number = os.environ.get(rank, "")
        # srun sets its variables for a job of one task too, and torchrun may run within it.
        if number.isdecimal() and os.environ.get(size, "1" if rank != "RANK" else "") != "1":
            return number
    return ""


def is_chosen(ranks: Collection[int]) -> bool:
    """Return whether this process is to be recorded: all are where none are named, and so is a job of one."""
    rank = process_rank()
    return not ranks or not rank or int(rank) in ranks


def parse_ranks(text: str) -> frozenset[int]:
    """Read ranks such as ``0,8,16-23``, or a mesh for the first of each stage; else raises ValueError."""
    if "=" in text:
        return Mesh.parse(text).first_of_stages()
    found: set[int] = set()
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        last = last or first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < _MOST_RANKS):
            raise ValueError(f"expected ranks such as 0,8,16-23, got {text!r}")
        found.update(range(int(first), int(last) + 1))
    return frozenset(found)


def job_values() -> dict[str, Any]:
    """Return the metadata about the place of this process; None and empty: not in a job of several."""
    rank = process_rank()
    size = next(
        (
            os.environ[size]
            for name, size in _LAUNCHERS
            if name in os.environ and size in os.environ
        ),
        "",
    )
    places: dict[str, int] = {}
    with suppress(
        Exception
    ):  # libraries of others, whose insides change: a capture is whole without
        places = (rank and (_of_megatron() or _of_mesh())) or {}
    return {
        "rank": int(rank) if rank else None,
        "world_size": int(size) if rank and size.isdecimal() else None,
        "coordinates": ",".join(f"{axis}={place}" for axis, place in places.items()),
    }


def _of_megatron() -> dict[str, int]:
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    return {
        axis: int(getattr(state, name)())
        for axis, name in _MEGATRON.items()
        if hasattr(state, name)
    }


def _of_mesh() -> dict[str, int]:
    """Look for the largest device mesh that the program has made."""
    module = sys.modules.get("torch.distributed.device_mesh")
    if module is None:
        return {}
    meshes = [
        one for one in gc.get_objects() if type(one) is module.DeviceMesh and one.mesh_dim_names
    ]
    largest = max(meshes, key=lambda mesh: (mesh.mesh.numel(), mesh.ndim), default=None)
    places = largest.get_coordinate() if largest is not None else None
    return (
        dict(zip(largest.mesh_dim_names, map(int, places), strict=True))
        if largest and places
        else {}
    )


_EVERY_S = 0.5
# torchrun sends SIGKILL 30 s after SIGTERM, SLURM by default too.
_LONGEST_S = 20.0
_FILE = ".memory-ran-out"
_KEY = "snapconv/memory-ran-out"


class SharedOom:
    """The sign of one job in this process; ``capture`` is called with words once another rank has left it."""

    def __init__(self, folder: Path, capture: Callable[[str], None]) -> None:
        self._file = folder / _FILE
        self._capture = capture
        self._before = self._changed()  # an earlier job's
        self._store: Any = None
        self._is_store_gone = False
        self._over = threading.Event()
        self._captured = threading.Event()
        self._is_ours = False
        self._once = threading.Lock()
        self._former: Any = None
        threading.Thread(target=self._listen, name="snapconv-oom", daemon=True).start()
        # SIGTERM is held back where the program has no handler of its own.
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self._former = signal.signal(signal.SIGTERM, self._wait_and_end)

    def leave(self) -> None:
        """Tell the other ranks that memory ran out in this one; a failure is theirs alone to miss."""
        self._is_ours = True
        with suppress(OSError):
            self._file.write_text(f"rank {process_rank() or '?'}\n", encoding="utf-8")
        self._ask_store(lambda store: store.set(_key(), process_rank()))

    def close(self) -> None:
        """Stop listening; a sign that is there already is still answered."""
        self._answer()
        self._over.set()
        if self._former is not None and signal.getsignal(signal.SIGTERM) == self._wait_and_end:
            signal.signal(signal.SIGTERM, self._former)

    def _listen(self) -> None:
        while not self._over.wait(_EVERY_S):
            self._answer()
            if self._captured.is_set():
                return

    def _answer(self) -> None:
        """Capture once, where another rank left the sign."""
        with self._once:
            if self._captured.is_set() or self._is_ours or not (words := self._sign()):
                return
            try:
                self._capture(words)
            finally:
                self._captured.set()

    def _sign(self) -> str:
        """Return who left the sign; empty for nobody."""
        with suppress(OSError):
            if self._changed() != self._before:
                return (
                    self._file.read_text(encoding="utf-8", errors="replace").strip()[:40]
                    or "a rank"
                )
        words = self._ask_store(lambda store: store.get(_key()) if store.check([_key()]) else b"")
        return f"rank {words.decode('ascii', 'replace')[:20]}" if words else ""

    def _ask_store(self, ask: Callable[[Any], Any]) -> Any:
        """Query the store of the job; one that fails is not queried again, as torch prints that each time."""
        if self._is_store_gone:
            return None
        try:
            self._store = self._store or _connected()
            return None if self._store is None else ask(self._store)
        except Exception:  # noqa: BLE001  # torch's own, of many kinds
            self._is_store_gone = True
            return None

    def _changed(self) -> int:
        try:
            return self._file.stat().st_mtime_ns
        except OSError:
            return 0

    def _wait_and_end(self, number: int, _frame: FrameType | None) -> None:
        """End as the signal does, once the capture is written, if another rank ran out of memory."""
        if self._sign() and not self._is_ours:
            self._captured.wait(_LONGEST_S)
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


def _key() -> str:
    """Name the key of this start of the job: a store outlives its restarts."""
    return f"{_KEY}/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"


def _connected() -> Any:
    """Connect to the job's store by a connection of our own: its own may be waiting for other ranks."""
    import torch

    address = os.environ.get("MASTER_ADDR")
    port = os.environ.get("MASTER_PORT", "")
    if not address or not port.isdecimal() or not torch.distributed.is_initialized():
        return None
    from datetime import timedelta

    return torch.distributed.TCPStore(
        address, int(port), is_master=False, wait_for_workers=False, timeout=timedelta(seconds=2)
    )
