"""Memory of every operation of torch's own list, simulated, compared with plain torch.

    python scripts/bench/operations.py --write

Runs the samples of ``op_db``, which torch tests its operations with, forward and backward: plainly,
where torch's profiler reports what the CPU's allocator is asked for, and simulated in both modes.
Compared is what is left after forward and after backward, to the byte, and the highest amount of
each. ``--write`` keeps the result in operations.json, which docs/reference/operations.md shows.
"""

import argparse
import json
import os
import sys
import types
import unittest
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import _disable_current_modes

from snapconv.simulation import Simulation, SimulationOptions, simulated

RESULTS = Path(__file__).with_suffix(".json")
# What torch.testing's internals import and nothing here calls.
_UNNEEDED = types.ModuleType("expecttest")
_UNNEEDED.TestCase = unittest.TestCase  # type: ignore[attr-defined]

_NEW_CARD: dict[str, Any] = dict.fromkeys(
    ("SM53OrLater", "SM80OrLater", "SM89OrLater", "SM90OrLater"), True
)
# A number beside a tensor (`x * 2`) is a tensor of the CPU, on a GPU too; plain torch counts it
# with them.
NUMBER_BYTES = 16


def operations() -> list[Any]:
    """List torch's operations with their samples."""
    sys.modules.setdefault("expecttest", _UNNEEDED)
    with patch.dict(os.environ):
        # torch's module of tests reads the allocator's settings, and fails for an empty text.
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):
            os.environ.pop(name, None)
        from torch.testing._internal import common_cuda

        # What the list says of CUDA depends on the card that is there.
        with patch.multiple(common_cuda, **_NEW_CARD):
            from torch.testing._internal.common_methods_invocations import op_db

    return list(op_db)


@dataclass(frozen=True, slots=True)
class Bytes:
    """What one call needs: kept after forward and after backward, and at most in each."""

    forward: int
    forward_peak: int
    backward: int = 0
    backward_peak: int = 0


def _mapped(value: Any, function: Any) -> Any:
    if isinstance(value, list | tuple):
        made = [_mapped(item, function) for item in value]
        return type(value)(*made) if hasattr(value, "_fields") else type(value)(made)
    if isinstance(value, dict):
        return {key: _mapped(item, function) for key, item in value.items()}
    return function(value)


def _given_to(device: str) -> Any:
    """Make what copies an argument to a device, or a device of it."""

    def move(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            # Each in memory of its own, as a program has it.
            return value.detach().clone().to(device).requires_grad_(value.requires_grad)
        if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
            return torch.device(device)
        return value

    return move


def tensors(value: Any) -> Iterator[torch.Tensor]:
    """List the tensors in nested lists, tuples and dicts."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from tensors(item)


class PlainMeter:
    """The CPU's allocator, as torch's profiler sees it."""

    def __enter__(self) -> "PlainMeter":
        self._profile = torch.autograd.profiler.profile(profile_memory=True)
        self._profile.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._profile.__exit__(*failure)
        level = self.peak = 0
        for event in self._profile.kineto_results.events():
            if event.name() == "[memory]":
                level += event.nbytes()
                self.peak = max(self.peak, level)
        self.kept = level


class SimulatedMeter:
    """The simulated allocator's own count of requested bytes."""

    def __enter__(self) -> "SimulatedMeter":
        torch.cuda.reset_peak_memory_stats()
        self._before = torch.cuda.memory_stats()["requested_bytes.all.current"]
        return self

    def __exit__(self, *_: Any) -> None:
        figures = torch.cuda.memory_stats()
        self.kept = figures["requested_bytes.all.current"] - self._before
        self.peak = figures["requested_bytes.all.peak"] - self._before


def measured(op: Any, sample: Any, device: str, meter: Any, forget: Any = None) -> Bytes:
    """Call an operation with a sample, and its derivative where it has one.

    ``forget`` is called with each of its numbers that a program would have computed.
    """
    move = _given_to(device)
    given, args, kwargs = (
        _mapped(value, move) for value in (sample.input, sample.args, sample.kwargs)
    )
    for tensor in tensors((given, args, kwargs)) if forget is not None else ():
        if tensor.is_floating_point() or tensor.is_complex():
            forget(tensor)
    torch.manual_seed(0)
    with meter() as forward:
        result = op(given, *args, **kwargs)
    differentiable = [
        tensor
        for tensor in tensors(result)
        if tensor.requires_grad and tensor.layout is torch.strided
    ]
    if not differentiable:
        return Bytes(forward.kept, forward.peak)
    gradients = [torch.ones_like(tensor) for tensor in differentiable]
    with meter() as backward:
        torch.autograd.backward(differentiable, gradients)
    return Bytes(forward.kept, forward.peak, backward.kept, backward.peak)


@dataclass(slots=True)
class Verdict:
    """How one operation's memory compares in one mode."""

    name: str
    n_samples: int = 0
    found: Counter[str] = field(default_factory=Counter)
    example: str = ""

    def note(self, what: str, example: str) -> None:
        """Count a difference."""
        self.found[what] += 1
        self.example = self.example or example


def samples(op: Any, limit: int) -> list[Any]:
    """Make the first samples of an operation, for the CPU."""
    dtype = torch.float32 if op.supports_dtype(torch.float32, "cpu") else None
    if dtype is None:
        dtypes = sorted(op.supported_dtypes("cpu"), key=str)
        if not dtypes:
            return []
        dtype = dtypes[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = op.sample_inputs(
            "cpu", dtype, requires_grad=op.supports_autograd and dtype.is_floating_point
        )
        return list(islice(made, limit))


def compared(plain: Bytes, simulated_: Bytes) -> Iterator[tuple[str, str]]:
    """List in which ways a simulated call's memory differs from the plain one's."""
    for what in ("forward", "backward"):
        true, given = getattr(plain, what), getattr(simulated_, what)
        if abs(true - given) > NUMBER_BYTES:
            yield f"{what} {'too low' if given < true else 'too high'}", f"{given} for {true}"
    for what in ("forward_peak", "backward_peak"):
        true, given = getattr(plain, what), getattr(simulated_, what)
        if given > true + NUMBER_BYTES:
            yield f"{what.replace('_', ' ')} too high", f"{given} for {true}"
        elif given < true - NUMBER_BYTES:
            yield f"{what.replace('_', ' ')} lower", f"{given} for {true}"


def forgotten(running: Simulation, tensor: Any) -> None:
    """Count a tensor as one that was not computed."""
    with (
        _disable_current_modes()
    ):  # which would see that its memory is filled with zeros: with values
        running.tracker.evaluation.forget(tensor)


def verdict_of(
    op: Any, plain: list[tuple[Any, Bytes]], running: Simulation, n_faults: list[int]
) -> Verdict:
    """Run an operation's samples in a simulation, and compare them."""
    forget = None if running.values()["compute"] else partial(forgotten, running)
    verdict = Verdict(f"{op.name}{'.' + op.variant_test_name if op.variant_test_name else ''}")
    for sample, true in plain:
        verdict.n_samples += 1
        try:
            given = measured(op, sample, "cuda", SimulatedMeter, forget)
        except Exception as error:  # noqa: BLE001  # all of them are what is looked for
            verdict.note("error", f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
            continue
        for what, example in compared(true, given):
            verdict.note(what, example)
    faults = running.faults()
    if faults:
        n_faults.append(1)
        verdict.note("fault", faults[0].message[:200])
    return verdict


def plain_runs(op: Any, limit: int) -> list[tuple[Any, Bytes]]:
    """Run an operation's samples plainly; those that plain torch cannot run are left out."""
    runs = []
    for sample in samples(op, limit):
        try:
            runs.append((sample, measured(op, sample, "cpu", PlainMeter)))
        except Exception:  # noqa: BLE001  # not for this build: nothing to compare with
            continue
    return runs


def sweep(ops: list[Any], limit: int, *, compute: bool) -> list[Verdict]:
    """Compare operations in one mode; after a fault of ours with a fresh simulation."""
    verdicts: list[Verdict] = []
    plain = {id(op): plain_runs(op, limit) for op in ops}
    todo = list(ops)
    while todo:
        faults: list[int] = []
        with simulated(SimulationOptions(compute=compute)) as running:
            while todo and not faults:
                op = todo.pop(0)
                verdicts.append(verdict_of(op, plain[id(op)], running, faults))
    return verdicts


def main() -> None:
    """Sweep, and print or keep what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=3)
    parser.add_argument("--only", default="")
    parser.add_argument("--mode", choices=("compute", "no-compute", "both"), default="both")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    ops = [op for op in operations() if options.only in op.name]
    modes = ("compute", "no-compute") if options.mode == "both" else (options.mode,)
    found = {mode: sweep(ops, options.samples, compute=mode == "compute") for mode in modes}
    for mode, verdicts in found.items():
        print(
            mode,
            len(verdicts),
            "operations",
            sum(verdict.n_samples for verdict in verdicts),
            "samples",
        )
        for verdict in verdicts:
            if verdict.found:
                print(" ", verdict.name, dict(verdict.found), verdict.example)
    if options.write:
        RESULTS.write_text(json.dumps(summary(found), indent=1) + "\n")


SCRATCH = {"forward peak lower", "backward peak lower"}


def summary(found: dict[str, list[Verdict]]) -> dict[str, Any]:
    """Write the result of each mode: how many operations agree, and each that does not."""
    return {
        "torch": torch.__version__,
        "modes": {mode: _of_mode(verdicts) for mode, verdicts in found.items()},
    }


def _of_mode(verdicts: list[Verdict]) -> dict[str, Any]:
    others = {
        verdict.name: {"found": sorted(verdict.found.keys() - SCRATCH), "example": verdict.example}
        for verdict in verdicts
        if verdict.found.keys() - SCRATCH
    }
    ran = [verdict for verdict in verdicts if verdict.n_samples]
    return {
        "n_operations": len(ran),
        "n_samples": sum(verdict.n_samples for verdict in ran),
        "n_equal": sum(not verdict.found for verdict in ran),
        "n_scratch": sum(bool(verdict.found) and verdict.name not in others for verdict in ran),
        "others": others,
    }


if __name__ == "__main__":
    main()
