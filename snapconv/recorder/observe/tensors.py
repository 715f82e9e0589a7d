"""Tensors as plain rows: those in a value, their memory on the device, and their shape."""

import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import islice
from typing import Any

from snapconv.guest import locations
from snapconv.guest.torch_surface import Tensor
from snapconv.recorder.spans import now_us

Row = dict[str, Any]


_MAX_DEPTH = 6
_MAX_ITEMS = 10_000


def named_tensors(
    value: Any, name: str = "", depth: int = 0
) -> Iterator[tuple[str, Tensor]]:
    """Find every tensor in nested containers, with the keys that lead to it: ``old_dirs.3``."""
    if isinstance(value, _torch().Tensor):
        yield name, value
        return
    if depth >= _MAX_DEPTH:
        return
    for key, item in islice(_items(value), _MAX_ITEMS):
        item_name = f"{name}.{key}" if name else str(key)
        yield from named_tensors(item, item_name, depth + 1)


def _items(value: Any) -> Iterator[tuple[object, Any]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, (list, tuple)):
        return iter(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name, None)) for field in fields(value))
    return iter(())


def plain_tensors(tensor: Tensor) -> tuple[Tensor, ...]:
    """Return the tensors with memory that a tensor is made of: itself, unless it is a wrapper.

    Nothing is copied: ``_indices`` and ``_values`` are views, and a wrapper only names its parts. A
    parameter of a lazy module has no memory yet, and fails on every query.
    """
    torch = _torch()
    is_plain = type(tensor) in (torch.Tensor, torch.nn.Parameter)
    if is_plain and tensor.layout is torch.strided:
        return (tensor,)
    if torch.nn.parameter.is_lazy(tensor):
        return ()
    if tensor.layout is torch.sparse_coo:
        return tensor._indices(), tensor._values()
    if not hasattr(type(tensor), "__tensor_flatten__"):
        return (tensor,)
    pieces: list[Tensor] = []
    names, _ = tensor.__tensor_flatten__()
    for name in names:
        part = getattr(tensor, name)
        if isinstance(part, torch.Tensor):
            pieces += plain_tensors(part)
    return tuple(pieces)


def graph_nodes(roots: Any) -> Iterator[Any]:
    """Walk down autograd's graphs from a tensor, a GradientEdge, or several."""
    # As long as a node is in this list, its wrapper and its identity are its own.
    nodes = []
    for root in roots if isinstance(roots, list | tuple) else [roots]:
        node = root.grad_fn if hasattr(root, "grad_fn") else getattr(root, "node", None)
        if node is not None:  # a leaf has none
            nodes.append(node)
    known_nodes = set(nodes)
    for node in nodes:  # grows as it goes
        yield node
        for next_node, _ in node.next_functions:
            if next_node is not None and next_node not in known_nodes:
                known_nodes.add(next_node)
                nodes.append(next_node)


@cache
def _torch() -> Any:
    import torch

    return torch


def memory_rows(tensor: Tensor) -> Iterator[Row]:
    """Return the addresses of a tensor's memory now, a row for each piece; none off the device."""
    for piece in plain_tensors(tensor):
        location = locations.locate(piece)
        if location is not None and location.addr and location.n_bytes:
            n_bytes = piece.numel() * piece.element_size()
            yield {
                "device": location.device,
                "addr": location.addr,
                "bytes": n_bytes,
                "noted_us": now_us(),
            }


def shape_and_type(tensor: Tensor) -> Row:
    """Return a tensor's shape and element type as plain values."""
    return {
        "shape": [int(n) for n in tensor.shape],
        "dtype": str(tensor.dtype).removeprefix("torch."),
    }


def mesh_values(mesh: Any) -> Row:
    """Return a device mesh and this rank's place in it.

    ``names`` are empty for a mesh without names, ``coordinates`` for a rank outside of it.
    """
    return {
        "names": list(mesh.mesh_dim_names or ()),
        "shape": [int(n) for n in mesh.shape],
        "coordinates": [int(n) for n in mesh.get_coordinate() or ()],
    }


def shard_values(tensor: Tensor) -> tuple[Row, Row] | None:
    """Return the mesh of a DTensor, and how it lies on each axis of it; None for another tensor.

    The second row has the shape of this rank's part too.
    """
    module = sys.modules.get("torch.distributed.tensor")
    if module is None or not isinstance(tensor, module.DTensor):
        return None
    placements = []
    for placement in tensor.placements:
        # torch's StridedShard is private.
        name = type(placement).__name__.removeprefix("_")
        value = getattr(placement, "dim", getattr(placement, "reduce_op", ""))
        placements.append(f"{name}({value})")
    parts = plain_tensors(tensor)
    # A shard that is a wrapper of several tensors has no shape of its own.
    shape = [int(n) for n in parts[0].shape] if len(parts) == 1 else []
    return mesh_values(tensor.device_mesh), {"placements": placements, "local_shape": shape}


def bytes_on_cpu(tensor: Tensor) -> int:
    """Return the bytes of a tensor on the CPU; 0 elsewhere, and without a shape (lazy modules)."""
    import torch

    if tensor.device.type != "cpu" or torch.nn.parameter.is_lazy(tensor):
        return 0
    return int(tensor.numel() * tensor.element_size())
