"""Computations that CUDA does otherwise: attention, dropout, autocast, and grouping by optimizers.

A GPU's fused attention stores no matrix of scores, and its dropout keeps a mask of one byte per
element; the CPU's do otherwise. The choice is made as for CUDA, the values are computed by the
CPU's fused kernel. Dropout inside attention is accounted for and not applied: the CPU's kernel
supports none.

autocast for "cuda" is switched together with the CPU's, and casts as CUDA's does: CUDA takes
softmax, norms and losses in float32, the CPU leaves most of them in low precision.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from snapconv.errors import RecorderError
from snapconv.guest.import_hook import when_imported
from snapconv.guest.own_frames import for_program
from snapconv.simulation.patches import Patches
from snapconv.simulation.placements import Placements, first_device, tensors_in
from snapconv.simulation.places import users_place
from snapconv.simulation.synchronized_norms import fillers_of_norms

_FLASH_MAX_HEAD_SIZE = 256


class Kernels:
    """Kernels of our own in torch's dispatcher: C++ code and every thread call them too."""

    def __init__(self, patches: Patches) -> None:
        self._library = torch.library.Library("aten", "IMPL")
        patches.callback(self._library._destroy)

    def add(self, name: str, key: str, work: Callable[..., Any]) -> None:
        """Register ``work(plain, …)``, unless torch has no such operation or a kernel for it."""
        packet_name, _, overload = name.partition(".")
        packet = getattr(torch.ops.aten, packet_name, None)
        operation = getattr(packet, overload or "default", None)
        if operation and not torch._C._dispatch_has_kernel_for_dispatch_key(
            f"aten::{name}", key
        ):
            self._library.impl(name, partial(work, _plain(operation, key)), key)


def _plain(operation: Any, key: str) -> Callable[..., Any]:
    """Return an operation past our kernel: without autocast, or as torch composes it of others.

    Not ``decompose()``: it prefers Python's decompositions, which copy where C++ returns its
    argument.
    """
    if key == "AutogradCPU":
        return partial(operation._op_dk, torch._C.DispatchKey.CompositeImplicitAutograd)
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(keys):
            return operation(*args, **kwargs)

    return call


def add_gpu_choices(kernels: Kernels, placements: Placements) -> None:
    """Let attention and dropout of tensors on a simulated device take CUDA's way."""

    def is_placed(tensor: Any) -> bool:
        return first_device([placements.of(tensor)]) is not None

    # The arguments are the operation's.
    def dropout(plain: Any, tensor: Any, p: float, train: bool) -> Any:  # noqa: FBT001
        # is_fused_kernel_acceptable in aten/src/ATen/native/Dropout.cpp
        if train and 0 < p < 1 and tensor.numel() > 0 and is_placed(tensor):
            return torch.native_dropout(tensor, p, train)[0]
        return plain(tensor, p, train)

    def attention(plain: Any, *args: Any, **options: Any) -> Any:
        result = _fused(*args, **options) if is_placed(args[0]) else None
        return plain(*args, **options) if result is None else result

    kernels.add("dropout", "AutogradCPU", dropout)
    kernels.add("scaled_dot_product_attention", "AutogradCPU", attention)


def _fused(
    query: Any,
    key: Any,
    value: Any,
    attn_mask: Any = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,  # noqa: FBT001, FBT002
    **options: Any,
) -> Any:
    """Attend by one of CUDA's fused kernels; None where none of them can."""
    aten = torch.ops.aten
    cuda = torch.backends.cuda
    tensors = (query, key, value)
    scale = options.get("scale")
    has_learnt_mask = attn_mask is not None and attn_mask.requires_grad
    if options.get("enable_gqa") or has_learnt_mask or not _is_fusable(tensors):
        return None
    # sdp_utils.cpp: flash before memory-efficient; flash supports neither float32 nor masks.
    if _is_low(query) and attn_mask is None and cuda.flash_sdp_enabled():
        flash = aten._scaled_dot_product_flash_attention.default
        return flash(*tensors, dropout_p, is_causal, False, scale=scale)[0]
    if not cuda.mem_efficient_sdp_enabled():
        return None
    needs_sums = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    efficient = aten._scaled_dot_product_efficient_attention.default
    bias = _as_bias(attn_mask, query)
    return efficient(*tensors, bias, needs_sums, dropout_p, is_causal, scale=scale)[0]


def _is_fusable(tensors: tuple[Any, ...]) -> bool:
    # The fused kernels broadcast neither samples nor heads (sdp_utils_cpp.h). Tensors of several
    # types are refused by the operation itself.
    first = tensors[0]
    for tensor in tensors:
        if (
            tensor.dtype != first.dtype
            or tensor.dim() != 4
            or tensor.numel() == 0
            or tensor.stride(-1) != 1
        ):
            return False
        if tensor.shape[:2] != first.shape[:2] or tensor.size(-1) != first.size(-1):
            return False
    return bool(first.size(-1) <= _FLASH_MAX_HEAD_SIZE)


def _as_bias(attn_mask: Any, query: Any) -> Any:
    """Turn a boolean mask into what is added to the scores (convert_boolean_attn_mask)."""
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        bias = torch.zeros_like(attn_mask, dtype=query.dtype)
        attn_mask = bias.masked_fill_(attn_mask.logical_not(), float("-inf"))
    if attn_mask is None:
        return None
    return attn_mask.expand(*query.shape[:2], *attn_mask.shape[-2:])


def cuda_only_operations() -> dict[Any, Callable[..., None]]:
    """Return functions, by overload, that fill results of CUDA-only operations on the CPU."""
    aten = torch.ops.aten
    forward = aten._scaled_dot_product_flash_attention_for_cpu.default
    backward = aten._scaled_dot_product_flash_attention_for_cpu_backward.default

    # Positions among the operation's arguments: its tensors come first, and a bias among them is
    # left out before the causal flag is looked up.
    def filler(
        kernel: Any, n_tensors: int, causal_index: int, bias_index: int | None
    ) -> Callable[..., None]:
        def fill(results: Any, *args: Any, scale: Any = None) -> None:
            arguments = [argument for i, argument in enumerate(args) if i != bias_index]
            is_causal = len(arguments) > causal_index and arguments[causal_index]
            tensors = arguments[:n_tensors]
            if kernel is backward:  # CUDA pads the sums of each row to a multiple of 32
                tensors[5] = tensors[5][..., : tensors[1].size(-2)].contiguous()
            bias = None if bias_index is None else args[bias_index]
            _copy_values(
                kernel(*tensors, 0.0, is_causal, attn_mask=bias, scale=scale), results
            )

        return fill

    flash = aten._scaled_dot_product_flash_attention
    flash_backward = aten._scaled_dot_product_flash_attention_backward
    efficient = aten._scaled_dot_product_efficient_attention
    efficient_backward = aten._scaled_dot_product_efficient_attention_backward
    return {
        **_products_of_another_type(),
        **fillers_of_norms(),
        flash.default: filler(forward, 3, 4, None),
        flash_backward.default: filler(backward, 6, 11, None),
        efficient.default: filler(forward, 3, 5, 3),
        efficient_backward.default: filler(backward, 6, 10, 4),
    }


def _products_of_another_type() -> dict[Any, Callable[..., None]]:
    """Return functions that fill products of matrices in a wider type than their factors'.

    aten/src/ATen/native/cuda/Blas.cpp, torch 2.13: the overloads with ``out_dtype`` are CUDA's
    alone. That of baddbmm is not here: torch does not know the shape of its result without values
    (torch/_decomp/decompositions.py takes the type for a factor).
    """
    fillers: dict[Any, Callable[..., None]] = {}
    for name in ("mm", "bmm", "addmm"):
        packet = getattr(torch.ops.aten, name)

        def fill(
            result: Any, *args: Any, packet: Any = packet, out: Any = None, **scales: Any
        ) -> None:
            *factors, dtype = args
            wide = [factor.to(dtype) for factor in factors]
            result.copy_(packet.default(*wide, **scales))

        for overload in {"dtype", "dtype_out"}.intersection(packet.overloads()):
            fillers[getattr(packet, overload)] = fill
    return fillers


def _copy_values(values: Any, results: Any) -> None:
    for result, value in zip(results, values, strict=False):
        # None is the gradient of what needs none, and empty what was not requested.
        if result is not None and result.numel():
            result[..., : value.size(-1)].copy_(value)


def patch_triton(forget: Callable[[Any], None] | None, patches: Patches) -> None:
    """Launch no Triton kernel: it would allocate nothing, and all its arguments lose their values.

    Which of them a kernel writes is not known. Without ``forget`` values are wanted, and a launch,
    for which there is no driver, is an error.
    """

    def run(_kernel: Any, *args: Any, **kwargs: Any) -> None:
        if forget is None:
            message = (
                "a Triton kernel needs a GPU; record with --no-compute, which launches none"
            )
            raise for_program(RecorderError(f"{users_place()}: {message}"))
        with _disable_current_modes():
            for tensor in tensors_in((args, kwargs)):
                forget(tensor)

    def patch() -> None:
        for name in ("JITFunction", "Autotuner", "Heuristics"):
            patches.set_existing(
                getattr(sys.modules["triton.runtime"], name, None), "run", run
            )

    patches.enter_context(when_imported("triton.runtime", patch))


# Run in the low precision that autocast is set to, though the CPU's autocast leaves them alone
# (AT_FORALL_LOWER_PRECISION_FP).
_LOW = "addmv addr mv".split()
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


def patch_autocast(kernels: Kernels, patches: Patches) -> None:
    """Let autocast for CUDA be switched for the CPU as well, which casts as CUDA's then."""

    def also_cpu(real: Any, device_type: Any, *value: Any) -> Any:
        if value and device_type == "cuda":
            real("cpu", *value)
        return real(device_type, *value)

    patches.wrap(torch, "set_autocast_enabled", also_cpu)
    patches.wrap(torch, "set_autocast_dtype", also_cpu)
    for name in _LOW:
        kernels.add(name, "AutocastCPU", _low_inputs)
    for name in _FLOAT32:
        kernels.add(name, "AutocastCPU", _float32_inputs)
    for name in _FLOAT32_RESULT:
        kernels.add(name, "AutocastCPU", _float32_result)


def _low_inputs(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Cast every argument in float32 to the type of autocast, and run the operation without it."""
    low = torch.get_autocast_dtype("cuda")

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.dtype is torch.float32:
            return value.to(low)
        return value

    return plain(*map(cast, args), **kwargs)


def _float32_inputs(plain: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Cast every low-precision argument, and run the operation without autocast."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and _is_low(value):
            return value.to(torch.float32)
        return value

    options = {name: cast(value) for name, value in kwargs.items()}
    return plain(*map(cast, args), **options)


def _float32_result(
    plain: Callable[..., Any], tensor: Any, *args: Any, **kwargs: Any
) -> Any:
    """Request a float32 result unless the caller gave a type."""
    # softmax has its type as a positional argument, however the caller wrote it.
    values = (kwargs.get("dtype"), *args)
    has_type = any(isinstance(value, torch.dtype) for value in values)
    if _is_low(tensor) and not has_type:
        kwargs["dtype"] = torch.float32
    return plain(tensor, *args, **kwargs)


def _is_low(tensor: Any) -> bool:
    return tensor.dtype in (torch.float16, torch.bfloat16)


def group_tensors(lists: Any, with_indices: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
    """Group columns of lists by simulated device and type, as foreach kernels need it on a GPU."""
    # The first list decides. In the others a tensor may be None, and a list may be empty.
    groups: dict[Any, tuple[list[list[Any]], list[int]]] = {}
    for i, tensor in enumerate(lists[0]):
        key = (tensor.device, tensor.dtype)
        columns, indices = groups.setdefault(key, ([[] for _ in lists], []))
        for column, values in zip(columns, lists, strict=True):
            if values:
                column.append(values[i])
        if with_indices:
            indices.append(i)
    return groups
