"""Tensors grouped by device and type, as optimizers and gradient clipping request it from C++."""

from typing import Any

from snapconv.simulation.patches import Patches


def patch_grouping(patches: Patches) -> None:
    """Group by the device that a tensor reports, so that foreach kernels are chosen as on a GPU."""
    import torch

    patches.set_existing(torch._C, "_group_tensors_by_device_and_dtype", group_tensors)


def group_tensors(lists: Any, with_indices: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
    """Do what torch._C's function of that name does: columns of the lists stay together.

    The first list decides; in the others a tensor may be None, and a list may be empty.
    """
    groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
    for i, tensor in enumerate(lists[0]):
        key = (tensor.device, tensor.dtype)
        columns, indices = groups.setdefault(key, ([[] for _ in lists], []))
        for column, values in zip(columns, lists, strict=True):
            if values:
                column.append(values[i])
        if with_indices:
            indices.append(i)
    return groups
