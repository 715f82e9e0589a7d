"""The place of this process in a distributed job: its rank, the number of ranks, its place in a device mesh.

Launchers set environment variables: torchrun and accelerate, SLURM's srun, and mpirun. By its rank a process
is chosen to be recorded, and its captures are named.
"""

import gc
import os
import sys
from collections.abc import Collection
from typing import Any

from snapconv.mesh import Mesh

# The variables of a launcher with the rank, and with the number of ranks.
_LAUNCHERS = (
    ("RANK", "WORLD_SIZE"),
    ("SLURM_PROCID", "SLURM_NTASKS"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
)
# Megatron's functions without an argument, by the axis that they are about (megatron-core 0.6 to 0.14).
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
        (os.environ[size] for name, size in _LAUNCHERS if name in os.environ and size in os.environ), ""
    )
    return {
        "rank": int(rank) if rank else None,
        "world_size": int(size) if rank and size.isdecimal() else None,
        "coordinates": ",".join(f"{axis}={place}" for axis, place in _coordinates().items()) if rank else "",
    }


def _coordinates() -> dict[str, int]:
    """Ask Megatron, or else the largest device mesh that the program has made; nothing is imported for it."""
    try:
        return _of_megatron() or _of_mesh()
    except Exception:  # noqa: BLE001  # libraries of others, whose insides change: a capture is whole without
        return {}


def _of_megatron() -> dict[str, int]:
    state = sys.modules.get("megatron.core.parallel_state")
    if state is None or not state.model_parallel_is_initialized():
        return {}
    return {axis: int(getattr(state, name)()) for axis, name in _MEGATRON.items() if hasattr(state, name)}


def _of_mesh() -> dict[str, int]:
    module = sys.modules.get("torch.distributed.device_mesh")
    if module is None:
        return {}
    meshes = [one for one in gc.get_objects() if type(one) is module.DeviceMesh and one.mesh_dim_names]
    largest = max(meshes, key=lambda mesh: (mesh.mesh.numel(), mesh.ndim), default=None)
    places = largest.get_coordinate() if largest is not None else None
    return dict(zip(largest.mesh_dim_names, map(int, places), strict=True)) if largest and places else {}
