"""Recording without a device: tensors of the CPU count as those of device 0, at their own addresses."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from snapconv.guest import locations
from snapconv.guest.locations import Location
from snapconv.guest.replacement import replaced
from snapconv.recorder.observe.observer import Observer


def on_cpu(tensor: torch.Tensor) -> Location | None:
    """Where a tensor's storage lies in the host's memory."""
    storage = tensor.untyped_storage()
    return Location(0, storage.data_ptr(), storage.nbytes())


@contextmanager
def watching(**options) -> Iterator[Observer]:
    """An observer that watches what happens within."""
    observer = Observer(**options)
    with replaced(locations, "locate", on_cpu):
        observer.start()
        try:
            yield observer
        finally:
            observer.stop()
    assert observer.failure is None, repr(observer.failure)


def addr(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def train(model, loss_of, optimizer, n_steps: int = 1, observer: Observer | None = None) -> None:
    """Plain steps, with the iterations reported to the observer."""
    for step in range(n_steps):
        if observer:
            observer.iteration_began(step)
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
        if observer:
            observer.iteration_ended(step)
