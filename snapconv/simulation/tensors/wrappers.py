"""Tensors that wrap others (quantized, doubled, …) on a simulated device: they have no memory of their own.

What they are made of is tracked as any tensor is. The wrapper itself would have C++ code look for a CUDA
device, so it is made for the CPU, and only reports that it is on the device.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any

from snapconv.simulation.operations.tracker import Tracker
from snapconv.simulation.patches import Patches
from snapconv.simulation.tensors.placements import Placement
from snapconv.simulation.tensors.tensor_attributes import TensorPatches


def patch_wrappers(tracker: Tracker, tensors: TensorPatches, patches: Patches) -> None:
    """Let ``_make_wrapper_subclass`` make tensors on the simulated devices."""
    import torch

    def make_for(real: Callable[..., Any]) -> Any:
        @wraps(real)
        def make(*args: Any, **kwargs: Any) -> Any:
            device = kwargs.get("device")
            index = None if device is None else tensors.index_of(device)
            if index is None:
                return real(*args, **kwargs)
            made = real(*args, **kwargs | {"device": torch.device("cpu")})
            with suppress(RuntimeError):  # a torch whose wrappers have no storage object
                # Address 0 is that of tensors without bytes: nothing is allocated, and nothing freed.
                tracker.placements.add(made.untyped_storage(), Placement(index, 0, 0, has_values=True))
            return made

        return staticmethod(make)

    patches.wrap(torch.Tensor, "_make_wrapper_subclass", make_for)
