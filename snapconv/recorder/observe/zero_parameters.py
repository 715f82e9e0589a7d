"""Weights of DeepSpeed's ZeRO 3: a parameter is empty until it is gathered, and keeps its shard."""

import sys
from typing import Any

from snapconv.guest.torch_surface import Tensor
from snapconv.recorder.observe.tensors import Row


def shard_of(tensor: Tensor) -> Tensor | None:
    """Return the shard that a parameter of ZeRO 3 keeps; None for any other tensor."""
    shard = getattr(tensor, "ds_tensor", None)
    return shard if isinstance(shard, sys.modules["torch"].Tensor) else None


def shard_sharding(parameter: Tensor) -> tuple[Row, Row] | None:
    """Return the ranks that share such a parameter as a mesh, and this rank's part of it.

    The flattened parameter is cut into equal parts; the last are filled up.
    """
    group: Any = getattr(parameter, "ds_process_group", None)
    if group is None:
        return None
    mesh = {"names": [], "shape": [int(group.size())], "coordinates": [int(group.rank())]}
    shard = {
        "shape": list(map(int, parameter.ds_shape)),
        "placements": ["FlatShard()"],
        "local_shape": list(map(int, parameter.ds_tensor.shape)),
    }
    return mesh, shard
