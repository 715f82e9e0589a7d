"""Tensors of any size without memory.

Such a tensor is an ordinary CPU tensor whose storage lies in one mapping of zeros that is never
written: whatever reads past the simulation finds zeros. Knows no devices and no allocator.
"""

import mmap
import sys
from typing import Any

from snapconv.errors import RecorderError
from snapconv.simulation.operations.result_shapes import map_tensors

# Addresses are free where they can be reserved; elsewhere the mapping is as large as the largest tensor yet.
_RESERVED_BYTES = 1 << 36
_COMMITTED_BYTES = 1 << 26
# Linux's value; Python's mmap module has had the name since 3.13 only.
_NO_RESERVE = 0x4000


class FakeStorages:
    """Makes tensors without memory."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        # Kept as it is here: a simulation replaces it.
        self._addr_of = torch.UntypedStorage.data_ptr
        self._zeros: mmap.mmap | None = None
        self._ranges: list[range] = []

    def storage(self, n_bytes: int) -> Any:
        """Make a storage of that many zeros that takes no memory."""
        torch = self._torch
        if n_bytes == 0:
            return torch.UntypedStorage(0)
        if self._zeros is None or len(self._zeros) < n_bytes:
            self._zeros = _map(n_bytes)
            first = self._addr_of(torch.frombuffer(self._zeros, dtype=torch.uint8).untyped_storage())
            self._ranges.append(range(first, first + len(self._zeros)))
        return torch.frombuffer(self._zeros, dtype=torch.uint8, count=n_bytes).untyped_storage()

    def has(self, storage: Any) -> bool:
        """Say whether a storage lies in the mapping, which all such storages share."""
        addr = self._addr_of(storage)
        return any(addr in found for found in self._ranges)

    def like(self, meta: Any) -> Any:
        """Make the tensor without memory that a meta tensor describes."""
        storage = self.storage(meta.untyped_storage().nbytes())
        tensor = self._torch.empty(0, dtype=meta.dtype)
        return tensor.set_(storage, meta.storage_offset(), meta.size(), meta.stride())

    def resize(self, tensor: Any, size: Any) -> Any:
        """Do ``resize_``: new storage where the present one is too small."""
        meta = self._torch.empty(size, dtype=tensor.dtype, device="meta")
        n_bytes = meta.untyped_storage().nbytes()
        storage = tensor.untyped_storage()
        if storage.nbytes() < n_bytes:
            storage = self.storage(n_bytes)
        return tensor.set_(storage, 0, meta.size(), meta.stride())

    def fill(self, metas: Any) -> Any:
        """Make a tensor without memory of every meta tensor in an operation's results."""
        return map_tensors(metas, self.like, self._torch.Tensor)


def _map(n_bytes: int) -> mmap.mmap:
    """Map zeros of at least that many bytes, which take no memory before they are written."""
    needed = 1 << (n_bytes - 1).bit_length()
    if sys.platform == "linux":
        try:
            return mmap.mmap(
                -1,
                max(_RESERVED_BYTES, needed),
                flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NO_RESERVE,
            )
        except OSError:  # the process's address space is limited (ulimit -v)
            pass
    try:
        # Counted as memory in use by Windows, and touched nowhere.
        return mmap.mmap(-1, max(_COMMITTED_BYTES, needed))
    except (OSError, OverflowError) as error:
        raise RecorderError(
            f"cannot reserve {needed} bytes of addresses for tensors without values: {error}; "
            "is the process's address space limited (ulimit -v), or the page file small?"
        ) from error
