"""FlexAttention in eager mode: an operator on functions, which traces one of them for backward."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

from snapconv.simulation.patches import Patches
from snapconv.simulation.placements import Placements

_MODULE = "torch._higher_order_ops.flex_attention"


def patch_flex_attention(placements: Placements, patches: Patches) -> None:
    """Let FlexAttention derive the function that changes its scores, on stand-ins of the CPU.

    It calls autograd on fake tensors of the device on which the queries are; where there is no
    CUDA, autograd ends in an internal assertion (torch 2.13 and 2.15).
    """

    def create(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        with placements.hidden():
            return real(*args, **kwargs)

    patches.wrap(import_module(_MODULE), "create_fw_bw_graph", create)
