"""The machine and this torch: refused before any user code runs, or described for the metadata."""

import os
import platform
import sys
import warnings
from collections.abc import Sequence
from typing import Any

from snapconv.errors import NoCudaError, RecorderError, TorchMissingError
from snapconv.recorder.interrupts import held_back
from snapconv.version import VERSION

# The version of the metadata's own shape, see docs/capture.md.
METADATA_VERSION = 1


def require_torch() -> None:
    """Import torch, or raise TorchMissingError."""
    try:
        with held_back():
            import torch  # noqa: F401  # only whether it can be
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise TorchMissingError(f"torch cannot be imported here: {error}") from error
        raise TorchMissingError(
            f"there is no torch in this Python ({sys.executable}): recording runs inside the training job. "
            "Install snapconv into the environment that the job uses, or say `pip install torch`"
        ) from error
    except (ImportError, OSError) as error:
        raise TorchMissingError(f"torch cannot be imported here: {error}") from error


def require_cuda(device: int, *, can_simulate: bool = True) -> None:
    """Raise NoCudaError unless torch can use the device, and RecorderError where it keeps no history.

    ``can_simulate`` says whether --simulate is there to be named as a way out.
    torch's own answers do not do: a CUDA build without a driver dumps an empty snapshot and reports
    success. (CPU build and driverless CUDA build of torch 2.13 were tried.)
    """
    import torch

    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        n_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if n_devices == 0:
        instead = "add --simulate to record without a GPU, or " if can_simulate else ""
        if not torch.backends.cuda.is_built():
            raise NoCudaError(
                f"this torch ({torch.__version__}) is built without CUDA: {instead}install a build with CUDA"
            )
        why = f" ({str(said[0].message).splitlines()[0]})" if said else ""
        raise NoCudaError(
            f"torch {torch.__version__} finds no usable GPU or driver on this machine{why}: {instead}"
            "see what nvidia-smi and CUDA_VISIBLE_DEVICES say"
        )
    if device >= n_devices:
        there = ", ".join(str(ordinal) for ordinal in range(n_devices))
        raise NoCudaError(
            f"there is no CUDA device {device}; torch sees: {there}. Say which with --device (without it, "
            "LOCAL_RANK does)"
        )
    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise RecorderError(
            f"the allocator backend {backend} keeps no history: take it out of PYTORCH_CUDA_ALLOC_CONF "
            "(PYTORCH_ALLOC_CONF) to record with torch's own"
        )


def is_capturing_graph() -> bool:
    """Whether a CUDA graph is being captured: waiting for the device, or asking it, would break that."""
    import torch

    return bool(torch.cuda.is_current_stream_capturing())


def process_values(command: Sequence[str]) -> dict[str, Any]:
    """Return what the metadata says of the versions, the machine and the command."""
    import torch

    return {
        "version": METADATA_VERSION,
        "snapconv": VERSION,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": list(command),
        # torch 2.9 gave the setting a name for every accelerator, and reads the old one still.
        "allocator_conf": os.environ.get("PYTORCH_ALLOC_CONF")
        or os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
    }


def has_allocated() -> bool:
    """Whether anything was allocated on any device so far, as far as torch counts it."""
    import torch

    return any(
        torch.cuda.memory_stats(device).get("reserved_bytes.all.peak")
        for device in range(torch.cuda.device_count())
    )


def device_values(first: int) -> list[dict[str, Any]]:
    """Return names and figures of every device that anything was allocated on, and of ``first``."""
    import torch

    devices = []
    for device in range(torch.cuda.device_count()):
        stats = {name: int(value) for name, value in torch.cuda.memory_stats(device).items()}
        if device != first and not stats.get("reserved_bytes.all.peak"):
            continue
        devices.append(
            {
                "device": device,
                "name": str(torch.cuda.get_device_name(device)),
                "total_bytes": int(torch.cuda.get_device_properties(device).total_memory),
                "max_memory_allocated": int(torch.cuda.max_memory_allocated(device)),
                "max_memory_reserved": int(torch.cuda.max_memory_reserved(device)),
                "memory_stats": stats,
            }
        )
    return devices
