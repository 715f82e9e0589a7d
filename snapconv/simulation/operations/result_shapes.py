"""An operation on tensors -> what its results look like: evaluated on torch's meta device."""

from collections.abc import Callable
from typing import Any

from snapconv.simulation.simulated_errors import values_needed


def result_shapes(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """Return an operation's results as meta tensors.

    Raises ValuesNeededError where the shapes depend on values.
    """
    import torch

    def as_meta(tensor: Any) -> Any:
        return torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device="meta")

    kwargs = {key: map_tensors(value, as_meta, torch.Tensor) for key, value in kwargs.items()}
    if kwargs.get("device") is not None:
        kwargs["device"] = "meta"
    if "generator" in kwargs:
        kwargs["generator"] = None
    metas = map_tensors(args, as_meta, torch.Tensor)
    try:
        result = _with_any_type(func, metas, kwargs)
    except NotImplementedError as error:
        raise values_needed(str(func)) from error
    return _corrected(func, args, result)


# Kernels know more types than the meta function (torch 2.13: torch/_meta_registrations.py).
_KNOW_BFLOAT16_ONLY = {"aten::_grouped_mm"}


def _with_any_type(func: Any, metas: Any, kwargs: dict[str, Any]) -> Any:
    """Call a meta function with the one type that it supports, if it supports only one."""
    import torch

    if func._schema.name not in _KNOW_BFLOAT16_ONLY or metas[0].dtype == torch.bfloat16:
        return func(*metas, **kwargs)
    low, dtype = torch.bfloat16, metas[0].dtype

    def as_low(tensor: Any) -> Any:
        return tensor.to(low) if tensor.dtype == dtype else tensor

    kwargs = {key: map_tensors(value, as_low, torch.Tensor) for key, value in kwargs.items()}
    return func(*map_tensors(metas, as_low, torch.Tensor), **kwargs).to(dtype)


# cuDNN's results have the layout of what goes in (aten/src/ATen/native/ConvUtils.h,
# cudnn_conv_suggest_memory_format); torch's meta functions leave that out.
_CONVOLUTIONS = {"aten::convolution", "aten::convolution_backward"}
# Their single number keeps the memory of all the losses (TORCH_META_FUNC in aten/src/ATen/native/Loss.cpp
# allocates the result unreduced, then resizes it).
_KEEP_UNREDUCED = {"aten::mse_loss", "aten::smooth_l1_loss"}
_MASKS = ("output_mask", "grad_input_mask")


def _corrected(func: Any, args: Any, result: Any) -> Any:
    """Undo where torch's meta functions differ from its kernels in what they allocate."""
    import torch

    schema = func._schema
    if schema.name in _KEEP_UNREDUCED and (len(args) < 3 or args[2] != 0):
        shape = torch.broadcast_shapes(args[0].shape, args[1].shape)
        return torch.empty(shape, dtype=result.dtype, device="meta").resize_(())
    result = laid_out(func, args, result)
    for argument, value in zip(schema.arguments, args, strict=False):
        if argument.name in _MASKS and len(value) == len(result):
            # What was not requested is not made.
            return tuple(item if is_wanted else None for item, is_wanted in zip(result, value, strict=True))
    return result


def laid_out(func: Any, args: Any, result: Any) -> Any:
    """Give results that the CPU computed the layout that they have on a GPU."""
    import torch

    schema = getattr(func, "_schema", None)  # None: compiled code's operations on functions
    if schema is None or schema.name not in _CONVOLUTIONS:
        return result
    if any(_is_channels_last(tensor, torch) for tensor in args[:3]):
        return map_tensors(result, lambda tensor: _channels_last(tensor, torch), torch.Tensor)
    return result


def _is_channels_last(value: Any, torch: Any) -> bool:
    return (
        isinstance(value, torch.Tensor)
        and value.dim() == 4
        and not value.is_contiguous()
        and bool(value.is_contiguous(memory_format=torch.channels_last))
    )


def _channels_last(tensor: Any, torch: Any) -> Any:
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor


def map_tensors(value: Any, function: Callable[[Any], Any], tensor_type: type) -> Any:
    """Replace every tensor in nested lists and tuples."""
    if isinstance(value, tensor_type):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)(map_tensors(item, function, tensor_type) for item in value)
    return value
