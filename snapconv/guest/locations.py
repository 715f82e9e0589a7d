"""The memory of a tensor on a CUDA device."""

from dataclasses import dataclass

from snapconv.guest.torch_surface import Tensor


@dataclass(frozen=True, slots=True)
class Location:
    """The untyped storage that a tensor views: device ordinal, base address, size in bytes."""

    device: int
    addr: int
    n_bytes: int


def locate(tensor: Tensor) -> Location | None:
    """Return the storage of a tensor, None without one on a CUDA device.

    A simulation replaces this function.
    """
    import torch

    if tensor.device.type != "cuda" or tensor.layout is not torch.strided:
        return None
    try:
        storage = tensor.untyped_storage()
        return Location(tensor.device.index, storage.data_ptr(), storage.nbytes())
    except (RuntimeError, NotImplementedError):
        return None  # a wrapper without storage, such as functional transforms make
