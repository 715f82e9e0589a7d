"""The plain tensors inside whatever a program passes around: containers, sparse tensors, subclasses."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from itertools import islice
from typing import Any

from snapconv.recorder.torch_types import Tensor

_MAX_DEPTH = 6
_MAX_ITEMS = 10_000


def named_tensors(value: Any, name: str = "", depth: int = 0) -> "Iterator[tuple[str, Tensor]]":
    """Every tensor in nested containers, with the keys that lead to it, such as ``old_dirs.3``."""
    (tensor_type, _), *_ = _torch()
    if isinstance(value, tensor_type):
        yield name, value
        return
    if depth >= _MAX_DEPTH:
        return
    for key, item in islice(_items(value), _MAX_ITEMS):
        yield from named_tensors(item, f"{name}.{key}" if name else str(key), depth + 1)


def _items(value: Any) -> Iterator[tuple[object, Any]]:
    if isinstance(value, Mapping):
        return iter(value.items())
    if isinstance(value, (list, tuple)):
        return iter(enumerate(value))
    if is_dataclass(value) and not isinstance(value, type):
        return ((field.name, getattr(value, field.name, None)) for field in fields(value))
    return iter(())


def plain_tensors(tensor: Tensor) -> tuple[Tensor, ...]:
    """The tensors with memory of their own that a tensor is made of: itself, unless it is a wrapper.

    None of this copies: ``_indices`` and ``_values`` are views, and a wrapper only names its parts. A
    parameter of a lazy module has no memory yet, and fails on every query.
    """
    plain, strided, sparse, is_lazy = _torch()
    if type(tensor) in plain and tensor.layout is strided:
        return (tensor,)
    if is_lazy(tensor):
        return ()
    if tensor.layout is sparse:
        return tensor._indices(), tensor._values()
    if not hasattr(type(tensor), "__tensor_flatten__"):
        return (tensor,)
    parts = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    return tuple(piece for part in parts if isinstance(part, plain[0]) for piece in plain_tensors(part))


@cache
def _torch() -> tuple[tuple[type, ...], object, object, Callable[[object], bool]]:
    """The functions of torch that are called for every tensor, looked up once."""
    import torch

    return (torch.Tensor, torch.nn.Parameter), torch.strided, torch.sparse_coo, torch.nn.parameter.is_lazy
