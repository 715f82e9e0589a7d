"""What CUDA takes for attention and dropout, where the CPU takes something else.

A GPU's fused attention stores no matrix of scores, and its dropout keeps a mask of one byte per element;
the CPU's do otherwise. The choice is made as for CUDA, the values are computed by the CPU's fused kernel.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

from snapconv.simulation.kernels import Kernels

_FLASH_MAX_HEAD_SIZE = 256


def add_gpu_choices(kernels: Kernels, is_placed: Callable[[Any], bool]) -> None:
    """Let tensors on a simulated device take CUDA's way."""
    kernels.add("dropout", "AutogradCPU", lambda operation, torch: _dropout(operation, torch, is_placed))
    kernels.add(
        "scaled_dot_product_attention",
        "AutogradCPU",
        lambda operation, torch: _attention(operation, torch, is_placed),
    )


def _dropout(operation: Any, torch: Any, is_placed: Callable[[Any], bool]) -> Callable[..., Any]:
    plain = _as_composed(operation, torch)

    def dropout(tensor: Any, p: float, train: bool) -> Any:  # noqa: FBT001  # the operation's signature
        # is_fused_kernel_acceptable in aten/src/ATen/native/Dropout.cpp
        if train and 0 < p < 1 and tensor.numel() > 0 and is_placed(tensor):
            return torch.native_dropout(tensor, p, train)[0]
        return plain(tensor, p, train)

    return dropout


def _attention(operation: Any, torch: Any, is_placed: Callable[[Any], bool]) -> Callable[..., Any]:
    aten = torch.ops.aten
    plain = _as_composed(operation, torch)

    def attention(
        query: Any,
        key: Any,
        value: Any,
        attn_mask: Any = None,
        dropout_p: float = 0.0,
        is_causal: bool = False,  # noqa: FBT001, FBT002
        *,
        scale: float | None = None,
        enable_gqa: bool = False,
    ) -> Any:
        tensors = (query, key, value)
        has_learnt_mask = attn_mask is not None and attn_mask.requires_grad
        if not is_placed(query) or enable_gqa or has_learnt_mask or not _is_fusable(tensors):
            options = {"enable_gqa": True} if enable_gqa else {}
            return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, **options)
        # sdp_utils.cpp: flash before memory-efficient; flash supports neither float32 nor masks.
        is_low = query.dtype in (torch.float16, torch.bfloat16)
        if is_low and attn_mask is None and torch.backends.cuda.flash_sdp_enabled():
            return aten._scaled_dot_product_flash_attention.default(
                query, key, value, dropout_p, is_causal, False, scale=scale
            )[0]
        if torch.backends.cuda.mem_efficient_sdp_enabled():
            needs_sums = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
            return aten._scaled_dot_product_efficient_attention.default(
                query,
                key,
                value,
                _as_bias(attn_mask, query, torch),
                needs_sums,
                dropout_p,
                is_causal,
                scale=scale,
            )[0]
        return plain(query, key, value, attn_mask, dropout_p, is_causal, scale=scale)

    return attention


def _as_composed(operation: Any, torch: Any) -> Callable[..., Any]:
    """Return the operation as torch composes it of others, past our kernel.

    Not ``decompose()``: it prefers Python's decompositions, which copy where C++ returns its argument.
    """
    return partial(operation._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)


def _is_fusable(tensors: tuple[Any, ...]) -> bool:
    # The fused kernels broadcast neither samples nor heads (sdp_utils_cpp.h).
    return all(
        tensor.dim() == 4
        and tensor.shape[:2] == tensors[0].shape[:2]
        and tensor.stride(-1) == 1
        and 0 < tensor.size(-1) <= _FLASH_MAX_HEAD_SIZE
        and tensor.numel() > 0
        and tensor.size(-1) == tensors[0].size(-1)
        for tensor in tensors
    )


def _as_bias(attn_mask: Any, query: Any, torch: Any) -> Any:
    """Turn a boolean mask into what is added to the scores (convert_boolean_attn_mask)."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        bias = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = bias.masked_fill_(attn_mask.logical_not(), float("-inf"))
    if attn_mask is None:
        return None
    return attn_mask.expand(query.size(0), query.size(1), attn_mask.size(-2), attn_mask.size(-1))
