"""Files of weights where nothing is computed: their headers are enough, which list what is in them.

A tensor of a file has its shape and type, and as little memory as any other tensor without values. What is
small is read, and has its values.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from snapconv.simulation.operations.tracker import Tracker
from snapconv.simulation.patches import Patches


def patch_checkpoints(tracker: Tracker, patches: Patches) -> None:
    """Let torch.load and safetensors leave large tensors in their files."""
    import torch

    if tracker.evaluation.fake_storages is None:
        return
    # torch.load reads from its file one storage after the other.
    reader = torch._C.PyTorchFileReader
    patches.wrap(reader, "get_storage_from_record", lambda real: _unread(torch, tracker, real))
    # safetensors maps its file, and makes each tensor by torch.asarray of a piece of it (0.4 to 0.8).
    patches.wrap(torch, "asarray", lambda real: _of_a_file(torch, tracker, real))


def _unread(torch: Any, tracker: Tracker, real: Callable[..., Any]) -> Callable[..., Any]:
    """Make a storage without values where reading it would take memory; torch requests it by its bytes."""

    @wraps(real)
    def get_storage_from_record(reader: Any, name: str, n_bytes: int, kind: Any) -> Any:
        if kind is not torch.UntypedStorage or not tracker.is_large(n_bytes):
            return real(reader, name, n_bytes, kind)
        return torch.empty(n_bytes, dtype=torch.uint8, device="cpu")

    return get_storage_from_record


def _of_a_file(torch: Any, tracker: Tracker, real: Callable[..., Any]) -> Callable[..., Any]:
    """Take the values from a tensor that is made of a storage: its memory is a file's, and is never read."""

    @wraps(real)
    def asarray(data: Any, *args: Any, **kwargs: Any) -> Any:
        made = real(data, *args, **kwargs)
        if isinstance(data, torch.UntypedStorage):
            tracker.take_values(made)
        return made

    return asarray
