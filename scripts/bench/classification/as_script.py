"""Run a program of the benchmark as a script, for ``snapconv record``: ``as_script.py NAME STEPS``."""

import sys
from collections.abc import Callable
from typing import Any

import torch
from entries import run_entry
from setups import Setup


def run(name: str, n_steps: int, *, on_end: Callable[[], None] | None = None) -> None:
    """Run some steps; the tensors that they name are not looked at."""
    torch.manual_seed(0)
    run_entry(name, Setup(n_steps=n_steps), lambda _: on_end() if on_end else None, call=_call)


def _call(function: Callable[..., Any], /, *arguments: Any) -> Any:
    return function(*arguments)


if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
