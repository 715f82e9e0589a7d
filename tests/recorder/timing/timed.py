"""Steps under the timer, on the processor's clock, and the rows that come of them."""

import functools
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from snapconv.recorder.timing.timer import Timer

HERE = Path(__file__).parent


class Row(NamedTuple):
    """One row of a trace, as timing.json has it, without the iteration."""

    name: str
    phase: str
    module: str | None
    stack: int
    forward_ms: float | None
    backward_ms: float | None
    host_ms: float


def on_a_busy_machine(test: Callable[..., None]) -> Callable[..., None]:
    """Let a test of times try three times: another process may take the processor away at any moment."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        for _ in range(2):
            with suppress(AssertionError):
                test(*args, **kwargs)
                return
        test(*args, **kwargs)

    return run


def timer_for(model: torch.nn.Module | None = None) -> Timer:
    paths = {module: path for path, module in model.named_modules()} if model is not None else {}
    return Timer(device=0, clock="cpu", project_root=HERE, module_path=paths.get)


def trace_of(
    step: Callable[[], Any], model: torch.nn.Module | None = None, n: int = 1
) -> dict[str, Any]:
    """Time a step after a warm-up, and return timing.json's content."""
    timer = timer_for(model)
    with timer:
        for number in range(n + 1):
            timer.begin(number, is_warm_up=number == 0)
            step()
            timer.end()
    trace = timer.trace()
    assert trace is not None
    assert torch._C._len_torch_function_stack() == 0
    return trace


def rows_of(trace: dict[str, Any]) -> list[Row]:
    """All rows of all iterations, in order."""
    columns = trace["calls"]
    return [Row(*row) for row in zip(*(columns[name] for name in Row._fields), strict=True)]


def rows(step: Callable[[], Any], model: torch.nn.Module | None = None) -> list[Row]:
    """The rows of a step."""
    return rows_of(trace_of(step, model))


def forward_names(found: list[Row]) -> list[str]:
    return [row.name for row in found if row.phase == "forward"]


def backward_names(found: list[Row]) -> list[str]:
    """The rows of which something ran in backward."""
    return [row.name for row in found if row.backward_ms is not None]


def coverage(trace: dict[str, Any]) -> tuple[float, float]:
    """The part of the measured forward and backward times that rows account for, over all iterations."""
    found = rows_of(trace)
    forward = sum(row.forward_ms for row in found if row.phase == "forward")
    backward = sum(row.backward_ms for row in found if row.backward_ms is not None)
    return (
        forward / sum(iteration["forward_ms"] for iteration in trace["iterations"]),
        backward / sum(iteration["backward_ms"] for iteration in trace["iterations"]),
    )
