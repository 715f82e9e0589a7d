"""The machine and this torch: refused before any user code runs, or described for the metadata."""

import ctypes
import os
import platform
import runpy
import sys
import warnings
from collections.abc import Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from snapconv.errors import NoCudaError, RecorderError, TorchMissingError
from snapconv.recorder.job import job_values
from snapconv.torch_knowledge.backends import conf_of
from snapconv.version import VERSION

# The version of the metadata's own shape, see docs/reference/capture.md.
METADATA_VERSION = 1


def require_torch() -> None:
    """Import torch, or raise TorchMissingError."""
    try:
        import torch  # noqa: F401  # only whether it can be
    except (ImportError, OSError) as error:
        if isinstance(error, ModuleNotFoundError) and error.name == "torch":
            raise _no_torch() from error
        raise TorchMissingError(f"torch cannot be imported here: {error}") from error


def _no_torch() -> TorchMissingError:
    return TorchMissingError(
        f"there is no torch in this Python ({sys.executable}): recording runs inside the training "
        "job. Install snapconv into the environment that the job uses, or run `pip install torch`"
    )


def _build() -> tuple[str, bool, bool] | None:
    """Describe the build of torch without importing it; None if it does not describe itself.

    These are its version, whether it is for any GPU, and whether for NVIDIA's.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        has_cuda = bool(torch.backends.cuda.is_built())
        return str(torch.__version__), has_cuda, torch.version.cuda is not None
    spec = find_spec("torch")
    package = Path(str(spec and spec.origin))
    try:
        values = runpy.run_path(str(package.with_name("version.py")))
        is_nvidia = values["cuda"] is not None
        is_amd = values.get("hip") is not None
        return str(values["__version__"]), is_nvidia or is_amd, is_nvidia
    except (OSError, KeyError):
        return None


def refuse_without_cuda() -> None:
    """Raise NoCudaError if no program can use CUDA, or TorchMissingError; import nothing."""
    if sys.modules.get("torch") is None and find_spec("torch") is None:
        raise _no_torch()
    build = _build()
    if build is None:
        return
    version, has_cuda, is_nvidia = build
    if not has_cuda:
        raise NoCudaError(
            f"this torch ({version}) is built without CUDA: install a build with CUDA, "
            f"or {_SIMULATE}"
        )
    # It runs already on a device, or on a simulated one, for which there is no driver.
    is_started = "torch" in sys.modules and sys.modules["torch"].cuda.is_initialized()
    if is_nvidia and not (is_started or _has_driver()):
        raise _no_gpu(version, " (there is no NVIDIA driver)")


def require_gpu() -> None:
    """Raise NoCudaError unless torch has a GPU to use; to be called when the program is over.

    It starts the driver. A CUDA build without a driver dumps an empty snapshot and reports success
    (tried with torch 2.13).
    """
    import torch

    refuse_without_cuda()
    with warnings.catch_warnings(record=True) as caught_warnings:
        warnings.simplefilter("always")
        is_available = torch.cuda.is_available()
    if is_available:
        return
    reason = ""
    if caught_warnings:
        first_line = str(caught_warnings[0].message).splitlines()[0]
        reason = f" ({first_line})"
    raise _no_gpu(str(torch.__version__), reason)


_SIMULATE = "record without a GPU: snapconv record --simulate"


def _no_gpu(version: str, reason: str) -> NoCudaError:
    return NoCudaError(
        f"torch {version} finds no usable GPU or driver on this machine{reason}: check "
        f"nvidia-smi and CUDA_VISIBLE_DEVICES, or {_SIMULATE}"
    )


def _has_driver() -> bool:
    """Return whether the NVIDIA driver's library can be loaded; that initializes no driver."""
    with suppress(OSError):
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        return True
    return False


def choose_device(requested: int | None) -> int:
    """Return the device to time, once CUDA has started.

    One that was requested becomes the current device. By default it is that of LOCAL_RANK, as is
    the custom; but where the launcher made one device visible to each process, LOCAL_RANK is
    beyond them. It does not become the current device: the program chooses that.
    """
    import torch

    n_devices = torch.cuda.device_count()
    if requested is None:
        rank = os.environ.get("LOCAL_RANK", "")
        is_visible = rank.isdecimal() and int(rank) < n_devices
        return int(rank) if is_visible else int(torch.cuda.current_device())
    if requested >= n_devices:
        ordinals = ", ".join(map(str, range(n_devices)))
        raise NoCudaError(
            f"there is no CUDA device {requested}; torch sees: {ordinals}. Name one of these with "
            "--device"
        )
    torch.cuda.set_device(requested)
    return requested


def require_history() -> None:
    """Raise RecorderError where torch's allocator keeps no history; starts nothing."""
    import torch

    backend = torch.cuda.get_allocator_backend()
    if backend != "native":
        raise RecorderError(
            f"the allocator backend {backend} keeps no history: take it out of "
            "PYTORCH_CUDA_ALLOC_CONF (PYTORCH_ALLOC_CONF) to record with torch's own"
        )


def is_capturing_graph() -> bool:
    """Return whether a CUDA graph is captured now; any wait for the device would break that."""
    import torch

    return bool(torch.cuda.is_current_stream_capturing())


def process_values(command: Sequence[str]) -> dict[str, Any]:
    """Return the metadata about the versions, the machine and the command."""
    import torch

    return {
        "version": METADATA_VERSION,
        "snapconv": VERSION,
        "torch": str(torch.__version__),
        "cuda": torch.version.cuda,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": list(command),
        **job_values(),
        "allocator_conf": conf_of(os.environ, torch.__version__),
    }


def device_values(first: int | None = None) -> list[dict[str, Any]]:
    """Return names and figures of the devices with allocations so far, and of ``first``."""
    import torch

    rows = []
    for device in range(torch.cuda.device_count()):
        raw_stats = torch.cuda.memory_stats(device)
        stats = {name: int(value) for name, value in raw_stats.items()}
        if device != first and not stats.get("reserved_bytes.all.peak"):
            continue
        row = {
            "device": device,
            "name": str(torch.cuda.get_device_name(device)),
            "total_bytes": int(torch.cuda.get_device_properties(device).total_memory),
            "max_memory_allocated": int(torch.cuda.max_memory_allocated(device)),
            "max_memory_reserved": int(torch.cuda.max_memory_reserved(device)),
            "memory_stats": stats,
        }
        rows.append(row)
    return rows
