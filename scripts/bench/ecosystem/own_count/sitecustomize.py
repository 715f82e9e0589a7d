"""In the process of a recorded program: what it counts of itself, by torch's own hooks and not by snapconv.

After every step of the optimizer that stepped first: the bytes of weights, gradients and optimizer
state, and torch's own peak. They are written to the file that OWN_COUNT names when the program
ends. This folder stands in PYTHONPATH, so that the program is unchanged. OWN_COUNT_STEPS ends the
program after so many steps. OWN_COUNT_TORCHVISION makes torchvision import where it was built for
another torch, and read pictures that are made up.
"""

import atexit
import json
import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MOST_STEPS = 7
optimizers: dict[int, Any] = {}
counts: list[dict[str, int]] = []


def on_device(tensors: Iterable[Any]) -> int:
    """Return the bytes of tensors on the device, each once; of a sharded or a sparse one, of its parts."""
    import torch

    seen = {}
    for tensor in (getattr(one, "_local_tensor", one) for one in tensors):
        is_sparse = tensor.layout == torch.sparse_coo
        for part in (tensor._indices(), tensor._values()) if is_sparse else (tensor,):
            if part.is_cuda and part.numel():
                seen[id(part)] = part.numel() * part.element_size()
    return sum(seen.values())


def tensors_in(value: Any) -> Iterator[Any]:
    """Yield the tensors in a state dictionary, at any depth."""
    import torch

    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


def count(optimizer: Any, *_: Any) -> None:
    """Count after a step of the optimizer that stepped first."""
    import torch

    optimizers[id(optimizer)] = optimizer
    if optimizer is not next(iter(optimizers.values())) or len(counts) == MOST_STEPS:
        return
    weights = [
        one
        for each in optimizers.values()
        for group in each.param_groups
        for one in group["params"]
    ]
    states = [one for each in optimizers.values() for one in tensors_in(dict(each.state))]
    counts.append({
        "weights": on_device(weights),
        "gradients": on_device(one.grad for one in weights if one.grad is not None),
        "states": on_device(states),
        "peak": torch.cuda.max_memory_allocated(),
    })  # fmt: skip
    if len(counts) == int(os.environ.get("OWN_COUNT_STEPS", 0)):
        write()
        os._exit(0)


def wait_for_torch() -> None:
    """Add the hook on steps as soon as the program has imported torch."""
    while True:
        torch = sys.modules.get("torch")
        if hasattr(torch, "compile") and "torch.optim.optimizer" in sys.modules:
            sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook(count)
            return
        time.sleep(0.02)


def write() -> None:
    """Write the counts; processes without any write nothing."""
    if counts:
        Path(os.environ["OWN_COUNT"]).write_text(json.dumps(counts), encoding="utf-8")


class BesideTorchvision:
    """Declares operators before torchvision registers them, and accepts CIFAR of other contents."""

    @staticmethod
    def find_spec(name: str, *_: object) -> None:
        """Find nothing: it is a moment in torchvision's own import."""
        if name == "torchvision._meta_registrations":
            from scripts.measured.worker import declare_torchvision

            declare_torchvision()
        elif name == "torchvision.datasets.cityscapes":
            cifar = vars(sys.modules["torchvision.datasets.cifar"])
            cifar["CIFAR10"]._check_integrity = lambda _: True
            for name_of_set in ("CIFAR10", "CIFAR100"):
                cifar[name_of_set].meta["md5"] = None


if "OWN_COUNT_TORCHVISION" in os.environ:
    sys.meta_path.insert(0, BesideTorchvision)
if "OWN_COUNT" in os.environ:
    threading.Thread(target=wait_for_torch, daemon=True).start()
    atexit.register(write)
