"""Tensors of any size without memory.

A hollow tensor is an ordinary CPU tensor whose storage lies in one mapping of zeros that is never
written: whatever reads past the simulation finds zeros. Knows no devices and no allocator.
"""

import mmap
from typing import Any

from snapconv.errors import RecorderError
from snapconv.recorder.simulation.shapes import map_tensors

_FIRST_MAPPING_BYTES = 1 << 36
# Linux's value; Python's mmap module has had the name since 3.13 only.
_NO_RESERVE = 0x4000


class Hollow:
    """Makes hollow tensors."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._zeros: mmap.mmap | None = None

    def storage(self, n_bytes: int) -> Any:
        """Make a storage of that many zeros that takes no memory."""
        torch = self._torch
        if n_bytes == 0:
            return torch.UntypedStorage(0)
        if self._zeros is None or len(self._zeros) < n_bytes:
            self._zeros = _map(max(_FIRST_MAPPING_BYTES, 1 << n_bytes.bit_length()))
        return torch.frombuffer(self._zeros, dtype=torch.uint8, count=n_bytes).untyped_storage()

    def like(self, meta: Any) -> Any:
        """Make the hollow tensor that a meta tensor describes."""
        storage = self.storage(meta.untyped_storage().nbytes())
        tensor = self._torch.empty(0, dtype=meta.dtype)
        return tensor.set_(storage, meta.storage_offset(), meta.size(), meta.stride())

    def resize(self, tensor: Any, size: Any) -> Any:
        """Do ``resize_``: new storage where the old is too small."""
        meta = self._torch.empty(size, dtype=tensor.dtype, device="meta")
        n_bytes = meta.untyped_storage().nbytes()
        storage = tensor.untyped_storage()
        if storage.nbytes() < n_bytes:
            storage = self.storage(n_bytes)
        return tensor.set_(storage, 0, meta.size(), meta.stride())

    def fill(self, metas: Any) -> Any:
        """Make a hollow tensor of every meta tensor in an operation's results."""
        return map_tensors(metas, self.like, self._torch.Tensor)


def _map(n_bytes: int) -> mmap.mmap:
    """Reserve addresses only: pages that nobody writes take no memory."""
    try:
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE
        return mmap.mmap(-1, n_bytes, flags=flags)
    except (OSError, AttributeError) as error:
        raise RecorderError(
            f"cannot reserve {n_bytes} bytes of addresses for tensors without values: {error}; "
            "is the process's address space limited (ulimit -v)?"
        ) from error
