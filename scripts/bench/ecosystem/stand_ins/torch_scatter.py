"""In place of torch_scatter, whose wheels are of other releases of torch: its sum."""

import torch


def scatter(
    source: torch.Tensor, index: torch.Tensor, dim: int = 0, dim_size: int | None = None
) -> torch.Tensor:
    """Return the sums of the parts of a tensor that have the same index."""
    length = int(index.max()) + 1 if dim_size is None else dim_size
    shape = [*source.shape[:dim], length, *source.shape[dim + 1 :]]
    return source.new_zeros(shape).index_add(dim, index, source)
