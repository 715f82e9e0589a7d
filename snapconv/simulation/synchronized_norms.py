"""Operations of SyncBatchNorm, which torch has for GPUs alone: shapes and values of their results.

A rank reduces its own samples to statistics, and works with those of all ranks. Shapes and types
are those of aten/src/ATen/native/cuda/Normalization.cu and its ``.cuh`` (torch 2.13): statistics
of samples in half precision are float32.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import empty, full

Shapes = Callable[[Any, dict[str, Any], Any], Any]

# By the name in native_functions.yaml.
_STATISTICS = (
    "batch_norm_stats",
    "batch_norm_gather_stats",
    "batch_norm_gather_stats_with_counts",
)


def shapes_of_norms() -> dict[str, Shapes]:
    """Return functions, by operation, that make its results as meta tensors."""
    return {
        **dict.fromkeys(_STATISTICS, _two_statistics),
        "batch_norm_elemt": _like_samples,
        "batch_norm_backward_elemt": _like_second_samples,
        "batch_norm_backward_reduce": _reduced_shapes,
    }


def _meta(size: Any, dtype: Any) -> Any:
    return empty(size, dtype=dtype, device="meta")


def _two_statistics(args: Any, _kwargs: Any, _count: Any) -> Any:
    samples = args[0]
    dtype = torch.float64 if samples.dtype is torch.float64 else torch.float32
    return _meta(samples.size(1), dtype), _meta(samples.size(1), dtype)


def _like_samples(args: Any, _kwargs: Any, _count: Any) -> Any:
    return torch.empty_like(args[0], device="meta")


def _like_second_samples(args: Any, _kwargs: Any, _count: Any) -> Any:
    return torch.empty_like(args[1], device="meta")


def _reduced_shapes(args: Any, _kwargs: Any, _count: Any) -> Any:
    _, _, mean, _, weight, has_sums, *has_gradients = args
    sums = [_meta(mean.shape, mean.dtype) if has_sums else None for _ in range(2)]
    dtype = mean.dtype if weight is None else weight.dtype
    gradients = [
        _meta(mean.shape, dtype) if is_wanted else None for is_wanted in has_gradients
    ]
    return (*sums, *gradients)


def fillers_of_norms() -> dict[Any, Callable[..., None]]:
    """Return functions, by overload, that compute an operation into its results."""
    aten = torch.ops.aten
    return {
        aten.batch_norm_stats.default: _fill_statistics,
        aten.batch_norm_gather_stats.default: _fill_equal_statistics,
        aten.batch_norm_gather_stats_with_counts.default: _fill_gathered_statistics,
        aten.batch_norm_elemt.default: _fill_normalized,
        aten.batch_norm_elemt.out: _fill_normalized,
        aten.batch_norm_backward_reduce.default: _fill_reduced,
        aten.batch_norm_backward_elemt.default: _fill_gradients,
    }


def _across_channels(tensor: Any, statistic: Any) -> Any:
    """Shape a value for each channel like samples, for arithmetic with them."""
    return statistic.view(1, -1, *[1] * (tensor.dim() - 2))


def _dims(samples: Any) -> list[int]:
    return [dim for dim in range(samples.dim()) if dim != 1]


def _fill_statistics(results: Any, samples: Any, eps: float) -> None:
    mean, inverse_deviation = results
    values = samples.to(mean.dtype)
    mean.copy_(values.mean(_dims(samples)))
    variance = values.var(_dims(samples), correction=0)
    inverse_deviation.copy_((variance + eps).rsqrt())


def _fill_equal_statistics(results: Any, *args: Any) -> None:
    *arguments, n_samples = args
    counts = full((args[1].size(0),), float(n_samples), device="cpu")
    _fill_gathered_statistics(results, *arguments, counts)


def _fill_gathered_statistics(results: Any, *args: Any) -> None:
    """Combine statistics of ranks with so many samples each, and update the running ones."""
    _, means, inverse_deviations, running_mean, running_var, momentum, eps, counts = args
    mean, inverse_deviation = results
    shares = (counts.to(mean.dtype) / counts.sum()).view(-1, 1)
    mean.copy_((means * shares).sum(0))
    variances = inverse_deviations**-2 - eps + (means - mean) ** 2
    variance = (variances * shares).sum(0)
    inverse_deviation.copy_((variance + eps).rsqrt())
    if running_mean is not None:
        running_mean.lerp_(mean.to(running_mean.dtype), momentum)
    if running_var is not None:
        n_samples = counts.sum()
        unbiased = variance * n_samples / (n_samples - 1)
        running_var.lerp_(unbiased.to(running_var.dtype), momentum)


def _fill_normalized(
    result: Any, samples: Any, weight: Any, bias: Any, *args: Any, out: Any = None
) -> None:
    mean, inverse_deviation = (_across_channels(samples, value) for value in args[:2])
    values = (samples - mean) * inverse_deviation
    if weight is not None:
        values = values * _across_channels(samples, weight)
    if bias is not None:
        values = values + _across_channels(samples, bias)
    result.copy_(values)


def _fill_reduced(results: Any, gradient: Any, samples: Any, *args: Any) -> None:
    mean, inverse_deviation = args[:2]
    values = gradient.to(mean.dtype)
    total = values.sum(_dims(samples))
    deviation_total = (values * (samples - _across_channels(samples, mean))).sum(
        _dims(samples)
    )
    for result, value in zip(
        results,
        (total, deviation_total, deviation_total * inverse_deviation, total),
        strict=True,
    ):
        if result is not None:
            result.copy_(value)


def _fill_gradients(result: Any, gradient: Any, samples: Any, *args: Any) -> None:
    mean, inverse_deviation, weight, total, deviation_total, counts = args
    n_samples = counts.sum()
    slope = inverse_deviation**2 * deviation_total / n_samples
    scale = inverse_deviation if weight is None else inverse_deviation * weight
    centred = samples - _across_channels(samples, mean)
    values = gradient - _across_channels(samples, total / n_samples)
    values = values - centred * _across_channels(samples, slope)
    result.copy_(values * _across_channels(samples, scale))
