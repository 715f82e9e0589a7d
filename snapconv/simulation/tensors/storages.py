"""Where storages report to be, and how they are copied: for files and deep copies."""

from functools import wraps
from typing import Any

from snapconv.simulation.operations.tracker import Tracker
from snapconv.simulation.patches import Patches
from snapconv.simulation.tensors.tensor_attributes import TensorPatches


def patch_storages(tracker: Tracker, tensors: TensorPatches, patches: Patches) -> None:
    """Replace attributes of torch.UntypedStorage."""
    import torch

    kind = torch.UntypedStorage
    placed = tracker.placements.of_storage
    real_device, real_pointer, real_clone = kind.device, kind.data_ptr, kind.clone

    def device(storage: Any) -> Any:
        placement = placed(storage)
        if placement is None:
            return real_device.__get__(storage)
        return torch.device("cuda", placement.device)

    @wraps(real_pointer)
    def data_ptr(storage: Any) -> int:
        placement = placed(storage)
        if placement is None:
            return int(real_pointer(storage))
        tracker.machine.settle()
        return placement.addr

    @wraps(real_clone)
    def clone(storage: Any) -> Any:
        placement = placed(storage)
        if placement is None or placement.device is None:
            # A deep copy's own call has the tensors of its memo, which may be on the device.
            with tracker.calls.within(real_clone, storage):
                return real_clone(storage)
        return tracker.clone_storage(storage, placement.device)

    _patch_moves(kind, tracker, tensors, patches)
    patches.set(kind, "device", property(device))
    patches.set(kind, "is_cuda", property(lambda storage: placed(storage) is not None))
    patches.set(kind, "data_ptr", data_ptr)
    patches.wrap(kind, "clone", lambda _: clone, otherwise=lambda it: type(it)(it.nbytes()).copy_(it))


def _patch_moves(kind: Any, tracker: Tracker, tensors: TensorPatches, patches: Patches) -> None:
    def moved(storage: Any, index: int) -> Any:
        placement = tracker.placements.of_storage(storage)
        if placement is not None and placement.device == index:
            return storage
        return tracker.clone_storage(storage, index)

    def to_any(real: Any) -> Any:
        @wraps(real)
        def to(storage: Any, *, device: Any, non_blocking: bool = False) -> Any:
            index = tensors.index_of(device)
            if index is None:
                return real(storage, device=device, non_blocking=non_blocking)
            return moved(storage, index)

        return to

    def cuda(storage: Any, device: Any = None, *_: Any, **__: Any) -> Any:
        return moved(storage, tensors.index_of("cuda" if device is None else device) or 0)

    patches.wrap(kind, "to", to_any)  # torch 2.2 has none, and its cuda() does the work
    patches.set(kind, "cuda", cuda)
