"""Results whose shapes depend on values: the right ones where the values are known, else the largest.

The largest, because a program goes on with it, and because its memory is a valid bound.
"""

from collections.abc import Callable
from math import prod
from typing import Any

from snapconv.simulation.operations.result_shapes import result_shapes

HasValues = Callable[[Any], bool]
# Called with a word for the operation where a shape is not known.
OnUnknown = Callable[[str], None]


def dynamic_shapes(
    name: str, func: Any, args: Any, kwargs: dict[str, Any], *, has_values: HasValues, on_unknown: OnUnknown
) -> Any:
    """Return an operation's results as meta tensors, also where ``result_shapes`` cannot."""
    if name in ("index", "_unsafe_index"):
        indices = [_without_mask(index, has_values, on_unknown) for index in args[1]]
        flat = [item for part in indices for item in part]
        return result_shapes(func, (args[0], flat, *args[2:]), kwargs)
    largest = _LARGEST.get(name)
    if largest is None:
        return result_shapes(func, args, kwargs)
    return largest(args, kwargs, has_values, on_unknown)


def _without_mask(index: Any, has_values: HasValues, on_unknown: OnUnknown) -> list[Any]:
    """Replace a mask by the indices that it selects: one for each of its dimensions."""
    import torch

    if index is None or index.dtype not in (torch.bool, torch.uint8):
        return [index]
    n_selected = _n_true(index, "index", has_values, on_unknown)
    return [_meta((n_selected,), torch.int64) for _ in range(index.dim())]


def _n_true(mask: Any, name: str, has_values: HasValues, on_unknown: OnUnknown) -> int:
    if has_values(mask):
        return int(mask.count_nonzero())
    on_unknown(name)
    return int(mask.numel())


def _nonzero(args: Any, _kwargs: Any, has_values: HasValues, on_unknown: OnUnknown) -> Any:
    import torch

    n_true = _n_true(args[0], "nonzero", has_values, on_unknown)
    return _meta((n_true, args[0].dim()), torch.int64)


def _masked_select(args: Any, _kwargs: Any, has_values: HasValues, on_unknown: OnUnknown) -> Any:
    import torch

    tensor, mask = args
    shape = torch.broadcast_shapes(tensor.shape, mask.shape)
    n_true = _n_true(mask, "masked_select", has_values, on_unknown)
    return _meta((n_true * (prod(shape) // max(mask.numel(), 1)),), tensor.dtype)


def _unique(args: Any, kwargs: Any, _has_values: HasValues, on_unknown: OnUnknown) -> Any:
    """_unique2 and unique_consecutive, without ``dim``: every value may differ from all others."""
    import torch

    on_unknown("unique")
    tensor, n_values = args[0], args[0].numel()
    counts = kwargs.get("return_counts", any(args[2:4]))
    return (
        _meta((n_values,), tensor.dtype),
        _meta(tensor.shape, torch.int64),
        _meta((n_values if counts else 0,), torch.int64),
    )


def _unique_dim(args: Any, _kwargs: Any, _has_values: HasValues, on_unknown: OnUnknown) -> Any:
    import torch

    on_unknown("unique")
    tensor, dim = args[:2]
    n_values = (tensor.size(dim),)
    return _meta(tensor.shape, tensor.dtype), _meta(n_values, torch.int64), _meta(n_values, torch.int64)


_LARGEST = {
    "nonzero": _nonzero,
    "masked_select": _masked_select,
    "_unique2": _unique,
    "unique_consecutive": _unique,
    "unique_dim": _unique_dim,
}


def _meta(shape: Any, dtype: Any) -> Any:
    import torch

    return torch.empty(shape, dtype=dtype, device="meta")
