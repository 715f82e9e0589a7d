"""Operators on functions (``torch.cond``, FlexAttention, scans): what they do in eager mode.

A GPU that runs them uncompiled runs the same Python code of torch: each has a kernel made of plain
operations, which are seen one by one.
"""

import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from snapconv.guest.replacement import replaced

# Runs an operation on the part of a DTensor that this rank has, behind two numbers that move the
# state of CUDA's generator (torch 2.13).
_DTENSOR_RANDOM = "run_dtensor_rng_op"
_ASKS_FOR_MODE = "_get_current_dispatch_mode"


def eager_work(func: Any, args: Any, kwargs: dict[str, Any]) -> Callable[[], Any] | None:
    """Return an operator's work in eager mode; None where torch has none in Python."""
    if func.name() == _DTENSOR_RANDOM:
        return partial(args[2], *args[3:], **kwargs)
    kernel = func.py_kernels.get(torch._C.DispatchKey.CompositeExplicitAutograd)
    return None if kernel is None else partial(_run_as_if_unseen, kernel, args, kwargs)


def _run_as_if_unseen(kernel: Callable[..., Any], args: Any, kwargs: dict[str, Any]) -> Any:
    """Run a kernel whose operations are seen, which may refuse to be seen (``cond``, ``scan``)."""
    owner = sys.modules[kernel.__module__]
    if not hasattr(owner, _ASKS_FOR_MODE):
        return kernel(*args, **kwargs)
    with replaced(owner, _ASKS_FOR_MODE, lambda: None):
        return kernel(*args, **kwargs)
