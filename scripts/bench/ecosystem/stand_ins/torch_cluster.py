"""In place of torch_cluster, whose wheels are of other releases of torch: its neighbours by radius."""

import torch


def radius_graph(x: torch.Tensor, r: float, batch: torch.Tensor | None = None) -> torch.Tensor:
    """Return the pairs of points of one graph that are less than a radius apart."""
    is_near = torch.cdist(x, x) < r
    if batch is not None:
        is_near &= batch[:, None] == batch[None, :]
    is_near.fill_diagonal_(False)
    return is_near.nonzero().t()
