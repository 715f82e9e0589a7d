"""Run a program of the benchmark as a script, for ``snapconv record``: ``as_script.py FOLDER NAME STEPS``.

``FOLDER`` has the programs.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from entries import run_entry, use
from setups import Setup


def run(*, on_end: Callable[[], None] | None = None) -> None:
    """Run some steps, as the command line says; the tensors that they name are not looked at."""
    folder, name, n_steps = sys.argv[1:]
    use(Path(folder))
    torch.manual_seed(0)
    run_entry(name, Setup(n_steps=int(n_steps)), lambda _: on_end() if on_end else None, call=_call)


def _call(function: Callable[..., Any], /, *arguments: Any) -> Any:
    return function(*arguments)


if __name__ == "__main__":
    run()
