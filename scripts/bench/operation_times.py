"""Processor time of a simulated operation: text generation, a recurrent cell, a denoising loop.

    python scripts/bench/operation_times.py

Runs each loop plainly on the CPU, in torch's FakeTensorMode, and simulated in both modes, three times
each on one thread. Printed is the least processor time of an operation, in microseconds; the number
of operations is that of the plain run, below autograd.
"""

import math
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaConfig, LlamaForCausalLM

from snapconv.simulation import SimulationOptions, simulated

# Takes the number of steps.
Loop = Callable[[int], object]
N_STEPS = 40
N_RUNS = 3


class CountMode(TorchDispatchMode):  # type: ignore[misc]
    """Counts operations."""

    n = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        self.n += 1
        return func(*args, **(kwargs or {}))


def generation() -> Loop:
    """Generate words, with a cache of keys and values."""
    sizes = {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 512}
    layers = {"num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(**sizes, **layers)).eval()
    words = torch.randint(0, 512, (2, 16))
    return lambda n: model.generate(words, max_new_tokens=n, min_new_tokens=n, pad_token_id=0)


def recurrence() -> Loop:
    """Train a recurrent cell through all steps."""
    cell = nn.GRUCell(32, 64)
    optimizer = torch.optim.Adam(cell.parameters())
    rows, start = torch.randn(8, 32), torch.zeros(8, 64)

    def train(n: int) -> None:
        state = start
        for _ in range(n):
            state = cell(rows, state)
        state.sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


class Residual(nn.Module):  # type: ignore[misc]
    """A block of a denoiser: what it adds to an image, given the time."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(8, 32)
        self.convolution = nn.Conv2d(32, 32, 3, padding=1)
        self.time = nn.Linear(32, 32)

    def forward(self, image: Any, moment: Any) -> Any:
        """Add to the image."""
        added = self.convolution(nn.functional.silu(self.norm(image)))
        return image + added + self.time(moment)[:, :, None, None]


def denoising() -> Loop:
    """Remove noise from an image, step by step."""
    blocks = nn.ModuleList(Residual() for _ in range(6))
    noise, moment = torch.randn(1, 32, 16, 16), torch.randn(1, 32)

    def denoise(n: int) -> None:
        image = noise
        with torch.no_grad():
            for step in range(n):
                predicted = image
                for block in blocks:
                    predicted = block(predicted, moment)
                image = (image - 0.1 * predicted) / (1 + step / 1000)

    return denoise


def _least_seconds(loop: Loop) -> float:
    loop(N_STEPS)
    seconds = []
    for _ in range(N_RUNS):
        before = time.process_time()
        loop(N_STEPS)
        seconds.append(time.process_time() - before)
    return min(seconds)


def main() -> None:
    """Print a row for each loop."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print("| loop | operations | plain | FakeTensorMode | simulated | --no-compute |")
    print("| - | - | - | - | - | - |")
    for make in (generation, recurrence, denoising):
        loop = make()
        with CountMode() as count:
            loop(N_STEPS)
        seconds = [_least_seconds(loop)]
        try:
            with FakeTensorMode():
                seconds.append(_least_seconds(make()))
        except DataDependentOutputException:  # generate() reads values
            seconds.append(math.nan)
        for compute in (True, False):
            options = SimulationOptions(compute=compute)
            with simulated(options), torch.device("cuda"):
                seconds.append(_least_seconds(make()))
        figures = " | ".join(f"{1e6 * second / count.n:.0f}" for second in seconds)
        print(f"| {make.__name__} | {count.n} | {figures} |", flush=True)


if __name__ == "__main__":
    main()
