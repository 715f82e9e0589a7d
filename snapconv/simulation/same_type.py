"""Operations on tensors of two types: torch's error where CUDA refuses them.

Shapes are evaluated on torch's meta device, which does not compare the types; and some kernels of
the CPU take more types together than CUDA's do (norms with float32 weights). What the table does
not have, torch's meta functions refuse, or CUDA takes.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from snapconv.guest.own_frames import for_program
from snapconv.simulation.cuda_types import type_name
from snapconv.simulation.evaluation import Invocation

# Types that weights in float32 may stand beside, where a row says so.
_LOW = (torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class _Rule:
    """The arguments that have to have one type, and torch's message.

    The first argument's type decides. ``takes_float32``: where it is of 16 bits, the others may
    all be float32. ``message`` has places for the names of two arguments and of their types.
    """

    arguments: tuple[str, ...]
    message: str
    takes_float32: bool = False


_PRODUCT = (
    "{decisive} and {refused} must have the same dtype, but got {dtype} and {refused_dtype}"
)
_SCALAR = "expected scalar type {dtype} but found {refused_dtype}"
_CONVOLUTION = (
    "Input type ({tensor_type}) and {refused} type ({refused_tensor_type}) should be the "
    "same"
)
_WRITTEN = (
    "{decisive} and {refused} expected to have the same dtype, but got ({decisive}) {dtype} "
    "and ({refused}) {refused_dtype}"
)
_PUT = (
    "Index put requires the source and destination dtypes match, got {dtype} for the "
    "destination and {refused_dtype} for the source."
)
_ELEMENT_WISE = "Found dtype {refused_dtype} but expected {dtype}"
_STEP = "heaviside is not yet implemented for tensors with different dtypes."
_PARTS = (
    "Expected object of scalar type {dtype} but got scalar type {refused_dtype} for second "
    "argument"
)
_NORM = _Rule(("input", "weight", "bias"), _SCALAR)
# CUDA takes running statistics of any type (batch_norm_update_stats in cuda/Normalization.cu).
_BATCH_NORM = _Rule(("input", "weight", "bias"), _SCALAR, takes_float32=True)
_SAMPLER = _Rule(("input", "grid"), _SCALAR)
_SOURCE = _Rule(("self", "source"), _WRITTEN)
_INDEX_PUT = _Rule(("self", "values"), _PUT)
# aten/src/ATen/native: LinearAlgebra.cpp and cuda/Blas.cpp, Convolution.cpp,
# cuda/layer_norm_kernel.cu, cuda/group_norm_kernel.cu, cuda/Normalization.cu,
# TensorAdvancedIndexing.cpp, cuda/GridSampler.cu, cuda/NLLLoss2d.cu and Loss.cu, CrossKernel.cu,
# BinaryOps.cpp, TensorFactories.cpp (torch 2.13).
_RULES = {
    "mm": _Rule(("self", "mat2"), _PRODUCT),
    "addmm": _Rule(("mat1", "mat2", "self"), _PRODUCT),
    "addbmm": _Rule(("batch1", "batch2", "self"), _PRODUCT),
    "mv": _Rule(("self", "vec"), _PRODUCT),
    "addmv": _Rule(("mat", "vec", "self"), _PRODUCT),
    "convolution": _Rule(("input", "weight", "bias"), _CONVOLUTION),
    "native_layer_norm": _NORM,
    "native_group_norm": _NORM,
    "native_batch_norm": _BATCH_NORM,
    "_native_batch_norm_legit": _BATCH_NORM,
    "_batch_norm_with_update": _BATCH_NORM,
    "grid_sampler_2d": _SAMPLER,
    "grid_sampler_3d": _SAMPLER,
    "index_add": _SOURCE,
    "index_copy": _SOURCE,
    "index_reduce": _SOURCE,
    "put": _SOURCE,
    "index_put": _INDEX_PUT,
    "_index_put_impl": _INDEX_PUT,
    "nll_loss_forward": _Rule(("self", "weight"), _SCALAR),
    "nll_loss2d_forward": _Rule(("self", "weight"), _SCALAR),
    "binary_cross_entropy": _Rule(("self", "target", "weight"), _ELEMENT_WISE),
    "linalg_cross": _Rule(("self", "other"), _ELEMENT_WISE),
    "heaviside": _Rule(("self", "values"), _STEP),
    "complex": _Rule(("real", "imag"), _PARTS),
    "polar": _Rule(("abs", "angle"), _PARTS),
}


def check_types(call: Invocation) -> None:
    """Raise torch's error for a call on a device whose tensors have types that CUDA refuses."""
    rule = _RULES.get(call.operation.name.removesuffix("_"))
    # An overload with ``out_dtype`` takes what its own kernel says.
    if rule is None or "dtype" in call.func._schema.overload_name:
        return
    (decisive, dtype), *weights = _typed_arguments(call, rule)
    dtypes = {weight_dtype for _, weight_dtype in weights}
    if dtypes <= {dtype} or (
        rule.takes_float32 and dtype in _LOW and dtypes == {torch.float32}
    ):
        return
    refused, refused_dtype = next(row for row in weights if row[1] != dtype)
    message = rule.message.format(
        decisive=decisive,
        refused=refused,
        dtype=type_name(dtype),
        refused_dtype=type_name(refused_dtype),
        tensor_type=_tensor_type(dtype),
        refused_tensor_type=_tensor_type(refused_dtype),
    )
    raise for_program(RuntimeError(message))


def _typed_arguments(call: Invocation, rule: _Rule) -> Iterator[tuple[str, Any]]:
    """List the tensors that the rule compares, and their types."""
    values = call.named_arguments()
    for name in rule.arguments:
        if isinstance(values.get(name), torch.Tensor):
            yield name, values[name].dtype


def _tensor_type(dtype: Any) -> str:
    name = type_name(dtype)
    # torch has no class of tensors for it.
    return "CUDABFloat16Type" if dtype is torch.bfloat16 else f"torch.cuda.{name}Tensor"
