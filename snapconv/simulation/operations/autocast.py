"""autocast for "cuda" on tensors that are the CPU's: switched together, casting as CUDA's does.

The two devices differ in which operations they run in float32: CUDA takes softmax, norms and losses,
the CPU leaves most of them in low precision. The lists are those of aten/src/ATen/autocast_mode.h
(torch 2.13); what they name and this torch's CPU does not cast is added for as long as a simulation runs.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any

from snapconv.simulation.kernels import Kernels
from snapconv.simulation.patches import Patches

# Run in float32 (AT_FORALL_FP32).
_FLOAT32 = """
    acos asin cosh erfinv exp expm1 log log10 log2 log1p reciprocal rsqrt sinh tan
    pow.Tensor_Scalar pow.Tensor_Tensor pow.Scalar softplus layer_norm native_layer_norm group_norm
    frobenius_norm.dim cosine_similarity poisson_nll_loss cosine_embedding_loss nll_loss nll_loss2d
    hinge_embedding_loss kl_div l1_loss smooth_l1_loss huber_loss mse_loss margin_ranking_loss
    multilabel_margin_loss soft_margin_loss triplet_margin_loss multi_margin_loss
    binary_cross_entropy_with_logits dist pdist cdist renorm logsumexp
""".split()
# Run with dtype=float32 where the caller gave none (AT_FORALL_FP32_SET_OPT_DTYPE).
_FLOAT32_RESULT = """
    prod prod.dim_int softmax.int log_softmax.int cumprod cumsum sum sum.dim_IntList
    linalg_vector_norm linalg_matrix_norm
""".split()


def patch_autocast(patches: Patches, kernels: Kernels) -> None:
    """Let what switches autocast for CUDA switch it for the CPU as well, and cast as CUDA's would."""
    import torch

    def also_cpu(real: Any) -> Any:
        @wraps(real)
        def switch(device_type: Any, *value: Any) -> Any:
            if value and device_type == "cuda":
                real("cpu", *value)
            return real(device_type, *value)

        return switch

    patches.wrap(torch, "set_autocast_enabled", also_cpu)
    patches.wrap(torch, "set_autocast_dtype", also_cpu)
    for name in _FLOAT32:
        kernels.add(name, "AutocastCPU", _float32_inputs)
    for name in _FLOAT32_RESULT:
        kernels.add(name, "AutocastCPU", _float32_result)


def _float32_inputs(operation: Any, torch: Any) -> Callable[..., Any]:
    """Cast every low-precision argument, and run the operation without autocast."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and _is_low(value, torch):
            return value.to(torch.float32)
        return value

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            kwargs = {key: cast(value) for key, value in kwargs.items()}
            return operation(*map(cast, args), **kwargs)

    return kernel


def _float32_result(operation: Any, torch: Any) -> Callable[..., Any]:
    """Request a float32 result unless the caller gave a type."""
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def kernel(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        # Of softmax the type is a positional argument, however the caller wrote it.
        given = (kwargs.get("dtype"), *args)
        if _is_low(tensor, torch) and not any(isinstance(value, torch.dtype) for value in given):
            kwargs["dtype"] = torch.float32
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operation(tensor, *args, **kwargs)

    return kernel


def _is_low(tensor: Any, torch: Any) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16)
