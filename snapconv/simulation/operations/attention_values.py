"""The values of attention operations that only CUDA has, by way of the CPU's fused kernel.

Each function fills the results that it is given, which have CUDA's shapes. Dropout inside attention is
accounted for and not applied: the CPU's kernel supports none.
"""

from collections.abc import Callable
from typing import Any


def gpu_operations() -> dict[Any, Callable[..., None]]:
    """Return the functions by overload; none where this torch has no fused attention for the CPU."""
    import torch

    aten = torch.ops.aten
    try:
        forward = aten._scaled_dot_product_flash_attention_for_cpu.default
        backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    except AttributeError:  # before torch 2.2
        return {}

    def flash(results: Any, *args: Any, scale: Any = None) -> None:
        q, k, v = args[:3]
        is_causal = len(args) > 4 and args[4]
        _fill(results, forward(q, k, v, 0.0, is_causal, scale=scale))

    def flash_backward(results: Any, *args: Any, scale: Any = None) -> None:
        is_causal = args[11]
        _fill(results, backward(*args[:6], 0.0, is_causal, scale=scale))

    def efficient(results: Any, *args: Any, scale: Any = None) -> None:
        q, k, v, bias, has_sums = args[:5]
        is_causal = len(args) > 6 and args[6]
        values = forward(q, k, v, 0.0, is_causal, attn_mask=bias, scale=scale)
        _fill(results, values if has_sums else values[:1])

    def efficient_backward(results: Any, *args: Any, scale: Any = None) -> None:
        grad, q, k, v, bias, out, sums = args[:7]
        is_causal = len(args) > 11 and args[11]
        # CUDA pads the sums of each row to a multiple of 32.
        sums = sums[..., : q.size(-2)].contiguous()
        _fill(results, backward(grad, q, k, v, out, sums, 0.0, is_causal, attn_mask=bias, scale=scale))

    return {
        aten._scaled_dot_product_flash_attention.default: flash,
        aten._scaled_dot_product_flash_attention_backward.default: flash_backward,
        aten._scaled_dot_product_efficient_attention.default: efficient,
        aten._scaled_dot_product_efficient_attention_backward.default: efficient_backward,
    }


def _fill(results: Any, values: Any) -> None:
    for result, value in zip(results, values, strict=False):
        if result is not None:  # the gradient of what needs none
            result[..., : value.size(-1)].copy_(value)
