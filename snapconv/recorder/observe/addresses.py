"""Where a tensor's memory lies on the device: the one seam between real and simulated recording."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache

from snapconv.recorder.torch_types import Tensor


@dataclass(frozen=True, slots=True)
class Location:
    """The untyped storage that a tensor views: its device ordinal, base address and size in bytes."""

    device: int
    addr: int
    n_bytes: int


Locate = Callable[["Tensor"], Location | None]


def _on_cuda(tensor: "Tensor") -> Location | None:
    if tensor.device.type != "cuda" or tensor.layout is not _strided():
        return None
    try:
        storage = tensor.untyped_storage()
        return Location(tensor.device.index, storage.data_ptr(), storage.nbytes())
    except (RuntimeError, NotImplementedError):
        return None  # a wrapper without storage, such as functional transforms make


@cache
def _strided() -> object:
    import torch

    return torch.strided


_locate: Locate = _on_cuda


def locate(tensor: "Tensor") -> Location | None:
    """Tell where a tensor's storage lies; None for one that is not on a CUDA device, or has no storage."""
    return _locate(tensor)


@contextmanager
def use(function: Locate) -> Iterator[None]:
    """Let ``locate`` use another source, for as long as the context lasts."""
    global _locate  # one process records at most once at a time
    before, _locate = _locate, function
    try:
        yield
    finally:
        _locate = before
