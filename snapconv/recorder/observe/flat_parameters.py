"""Where the weights of FullyShardedDataParallel lie in its mesh: they are plain tensors."""

import sys
from collections.abc import Iterable, Mapping
from typing import Any

from snapconv.guest.torch_surface import Module
from snapconv.recorder.observe.tensors import Row, mesh_values

# A mesh and a shard of it, by the identity of the tensor.
Shardings = dict[int, tuple[Row, Row]]


def flat_shardings(modules: Iterable[Module]) -> Shardings:
    """Return the places of flat parameters, and of the weights that keep their names in them.

    ``shape`` is that of the whole. While a module's weights are gathered it has none here.
    """
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is None:
        return {}
    kind = fsdp.FullyShardedDataParallel
    # The module would answer for one that it wraps: what it has itself is in its dictionary.
    states = (vars(module) for module in modules if isinstance(module, kind))
    shardings: Shardings = {}
    for state in states:
        if state.get("_handle") is not None:
            shardings |= _shardings_of(state)
    return shardings


def _shardings_of(state: Mapping[str, Any]) -> Shardings:
    handle = state["_handle"]
    flat = handle.flat_param
    is_sharded = handle.uses_sharded_strategy
    if is_sharded and not handle.is_sharded(flat):
        return {}
    mesh = _mesh_of(state)
    *outer, _ = mesh["shape"]
    copies = ["Replicate()"] * len(outer)
    # A weight that keeps its name lies in the flat one with others, and is cut anywhere.
    cut, cut_anywhere = ("Shard(0)", "FlatShard()") if is_sharded else ("Replicate()",) * 2
    weights = [(flat, flat._unpadded_unsharded_size, cut)]
    for weight, shape in zip(flat._params or (), flat._shapes, strict=False):
        weights.append((weight, shape, cut_anywhere))
    shardings: Shardings = {}
    for weight, shape, placement in weights:
        shard = {
            "shape": list(map(int, shape)),
            "placements": [*copies, placement],
            "local_shape": list(map(int, weight.shape)),
        }
        shardings[id(weight)] = mesh, shard
    return shardings


def _mesh_of(state: Mapping[str, Any]) -> Row:
    """Return the mesh that the program passed, or that of its process groups, the outer first."""
    groups = [state["process_group"]]
    # Only a hybrid strategy has it: sharded within a node, and copied from node to node.
    if state.get("_inter_node_pg") is not None:
        groups.insert(0, state["_inter_node_pg"])
    mesh = state["_device_mesh"]
    # Of a mesh with more axes the weights are sharded over the first alone.
    if mesh is not None and mesh.ndim == len(groups):
        return mesh_values(mesh)
    return {
        "names": [],
        "shape": [int(group.size()) for group in groups],
        "coordinates": [int(group.rank()) for group in groups],
    }
