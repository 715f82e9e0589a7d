"""Run a program of the benchmark as a script, for ``snapconv record``: ``as_script.py NAME STEPS``."""

import sys
from collections.abc import Callable
from itertools import islice

import torch
from entries import ENTRIES
from setups import Setup


def run(name: str, n_steps: int, *, on_end: Callable[[], None] | None = None) -> None:
    """Run some steps; what they tell of their tensors is not looked at."""
    torch.manual_seed(0)
    for _ in islice(ENTRIES[name](Setup(n_steps=n_steps)), n_steps):
        if on_end:
            on_end()


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
