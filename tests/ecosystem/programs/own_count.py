"""What a program counts of itself, from its own live tensors: one line of JSON after each of its steps.

The programs beside this file call it between their optimizer's step and the next ``zero_grad``. It looks at nothing
of snapconv, and allocates nothing on the device. With it comes the processor's time that the program has used.
"""

import json
import time
from collections.abc import Iterable, Iterator
from itertools import count
from typing import Any

import torch

ALIGNMENT = 512  # what torch's caching allocator rounds a request up to
_steps = count(1)


def print_count(
    modules: Any, optimizers: Any = (), *, is_autocast: bool = False, **extra: Iterable[Any]
) -> None:
    """Print the weights, gradients and optimizer state that live on the device, and the peak until now.

    ``extra`` are tensors that the program holds besides, by the name under which they are counted. With
    ``is_autocast`` also the copies of weights in half precision that backward needs.
    """
    modules = [modules] if isinstance(modules, torch.nn.Module) else list(modules)
    optimizers = [optimizers] if hasattr(optimizers, "state") else list(optimizers)
    parameters = unique(p for module in modules for p in module.parameters())
    line = {
        "step": next(_steps),
        "cpu_s": time.process_time(),
        "weights": totals(parameters),
        "buffers": totals(unique(b for module in modules for b in module.buffers())),
        "gradients": totals([p.grad for p in parameters if p.grad is not None]),
        "optimizer_state": totals(unique(t for o in optimizers for t in tensors_in(o.state))),
        "casts": casts(modules) if is_autocast else {"n": 0, "bytes": 0},
        "elsewhere": sum(not p.is_cuda for p in parameters),
        "allocated": torch.cuda.memory_allocated(),
        "peak": torch.cuda.max_memory_allocated(),
        **{name: totals(unique(tensors_in(held))) for name, held in extra.items()},
    }
    print(json.dumps({"own_count": line}), flush=True)


# What autocast computes in half precision; MultiheadAttention has a weight of its own.
CAST = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.MultiheadAttention)


def casts(modules: Iterable[torch.nn.Module]) -> dict[str, int]:
    """Count two bytes for every element of the weights that are cast; a bias's copy ends with the block."""
    layers = (layer for module in modules for layer in module.modules() if isinstance(layer, CAST))
    parameters = unique(weight for layer in layers for weight in layer.parameters(recurse=False))
    weights = [weight for weight in parameters if weight.ndim > 1]
    return {"n": len(weights), "bytes": sum(2 * weight.numel() for weight in weights)}


def totals(tensors: Iterable[torch.Tensor]) -> dict[str, int]:
    """Count what lies on the device: tensors, their bytes, and the bytes as the allocator rounds them up."""
    tensors = [tensor for tensor in tensors if tensor.is_cuda and tensor.numel()]
    sizes = [size for tensor in tensors for size in sizes_of(tensor)]
    return {
        "n": len(tensors),
        "bytes": sum(sizes),
        "rounded": sum(-(-size // ALIGNMENT) * ALIGNMENT for size in sizes),
    }


def sizes_of(tensor: torch.Tensor) -> list[int]:
    """Return the bytes of a tensor; a sparse one is its indices and its values, a DTensor this rank's part."""
    tensor = getattr(tensor, "_local_tensor", tensor)
    parts = [tensor._indices(), tensor._values()] if tensor.layout == torch.sparse_coo else [tensor]
    return [part.numel() * part.element_size() for part in parts]


def tensors_in(held: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in nested dictionaries, lists and tuples."""
    if isinstance(held, torch.Tensor):
        yield held
    elif isinstance(held, dict):
        for value in held.values():
            yield from tensors_in(value)
    elif isinstance(held, list | tuple):
        for value in held:
            yield from tensors_in(value)


def unique(tensors: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Return every tensor once: what is shared by two modules is one."""
    return list({id(tensor): tensor for tensor in tensors}.values())
