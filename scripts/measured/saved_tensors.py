"""Measure what autograd keeps of every case: python saved_tensors.py; a JSON line per result.

A case is measured with two batches, so that memory which grows with the batch is told from memory
that does not. The allocator has the bytes of new memory; hooks have what they are views of.
"""

import gc
import json
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F  # calls have torch's usual names
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from scripts.measured.measuring import reason, requested, storage_of
from scripts.measured.saved_tensor_cases import BATCH, CASES, SAMPLES, Case
from snapconv.simulation import SimulationOptions, simulated

BATCHES = (8, 16)
PRECISIONS = ("float32", "bfloat16", "autocast")
# The tensors that have gradients: all, those that come from operations before, or weights.
TRAINED = ("both", "input", "weights")
NAMES = {"torch": torch, "F": F, "nn": nn, "checkpoint": checkpoint,
         "checkpoint_sequential": checkpoint_sequential}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes that autograd keeps of one call, by role, and of the tensors that it had."""

    input: int
    weight: int
    output: int
    new: int
    inputs: int
    rest: int
    outputs: int


def main() -> None:
    """Print the release, then every result."""
    warnings.simplefilter("ignore")
    print(json.dumps(torch.__version__.partition("+")[0]))
    torch.set_num_threads(1)
    with simulated(SimulationOptions()):
        gc.collect()
        gc.freeze()  # all that torch has imported need not be looked at again for every case
        for case in CASES:
            for precision in PRECISIONS:
                for trained, cell in cells(case, precision):
                    key = [case.operation, case.module, case.call, precision, trained]
                    print(json.dumps([*key, cell]), flush=True)


def cells(case: Case, precision: str) -> Iterator[tuple[str, str]]:
    """Return the text of a case for each set of tensors that have gradients."""
    kinds = {SAMPLES[name].kind for name in names_of(case)}
    has_weights = bool(case.module) or "weight" in kinds
    choices = TRAINED if "input" in kinds else ("weights",)
    for trained in choices if has_weights else ("both",):
        try:
            first, second = (measured(case, precision, trained, batch) for batch in BATCHES)
        except Exception as error:  # noqa: BLE001  # whatever torch raises
            yield trained, f"({reason(error)})"
        else:
            yield trained, text_of(first, second)


def names_of(case: Case) -> list[str]:
    """Return the samples that a call reads."""
    return [name for name in compile(case.call, "", "eval").co_names if name in SAMPLES]


def measured(case: Case, precision: str, trained: str, batch: int) -> Kept:
    """Call the operation once, and find what its graph holds."""
    torch.manual_seed(0)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    values = {name: sample_of(name, batch, dtype) for name in names_of(case)}
    module = eval(case.module, dict(NAMES)).to("cuda", dtype) if case.module else None
    weights = [value for name, value in values.items() if SAMPLES[name].kind == "weight"]
    weights += module.parameters() if module else []
    inputs = [value for name, value in values.items() if SAMPLES[name].kind == "input"]
    for tensors, name in ((inputs, "input"), (weights, "weights")):
        for tensor in tensors:
            tensor.requires_grad_(trained in (name, "both"))
    growing = [value for name, value in values.items() if BATCH in SAMPLES[name].shape]
    rest = [value for name, value in values.items() if BATCH not in SAMPLES[name].shape]
    rest += [*module.parameters(), *module.buffers()] if module else []
    places = {**values, **NAMES, "m": module}
    gc.collect()
    before = requested("current")
    saved: dict[tuple[str, int], int] = {}

    def pack(tensor: Any) -> Any:
        saved[storage_of(tensor)] = tensor.untyped_storage().nbytes()
        return tensor if tensor.is_leaf else tensor.detach()

    with (
        torch.autocast("cuda", torch.bfloat16, enabled=precision == "autocast"),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        result = eval(case.call, places)
    outputs = tensors_of(result)
    output_storages = {storage_of(tensor): tensor.untyped_storage().nbytes() for tensor in outputs}
    of_inputs = {storage_of(tensor): bytes_of(tensor) for tensor in growing}
    of_rest = {storage_of(tensor): bytes_of(tensor) for tensor in rest}
    own = {storage: size for storage, size in output_storages.items()
           if storage not in of_inputs.keys() | of_rest.keys()}  # fmt: skip
    return Kept(
        input=sum(of_inputs[storage] for storage in saved.keys() & of_inputs.keys()),
        weight=sum(of_rest[storage] for storage in saved.keys() & of_rest.keys()),
        output=sum(own[storage] for storage in saved.keys() & own.keys()),
        new=requested("current") - before - sum(own.values()),
        inputs=sum(of_inputs.values()),
        rest=sum(of_rest.values()),
        outputs=sum(own.values()),
    )


def sample_of(name: str, batch: int, dtype: Any) -> Any:
    """Return a tensor on the device."""
    sample = SAMPLES[name]
    shape = [batch if side == BATCH else side for side in sample.shape]
    if sample.kind == "indices":
        return torch.randint(0, sample.high, shape, device="cuda")
    values = torch.rand(shape, device="cuda")
    return values > 0.5 if sample.kind == "mask" else (values + 0.1).to(dtype)


def tensors_of(result: Any) -> list[Any]:
    """Return the tensors in a result."""
    if isinstance(result, torch.Tensor):
        return [result]
    if isinstance(result, (list, tuple)):
        return [tensor for part in result for tensor in tensors_of(part)]
    return []


def bytes_of(tensor: Any) -> int:
    """Return the bytes of a tensor's storage."""
    return int(tensor.untyped_storage().nbytes())


def text_of(first: Kept, second: Kept) -> str:
    """Return the cell: multiples by role, without those that are nothing.

    ``input`` and ``new`` are multiples of the bytes of all tensors that grow with the batch,
    ``weight`` and ``fixed`` of all others, ``output`` of the results.
    """
    growth = (second.new - first.new) / (second.inputs - first.inputs)
    fixed = first.new - growth * first.inputs
    shares = {
        "input": first.input / first.inputs,
        "weight": first.weight / first.rest if first.rest else 0,
        "output": first.output / first.outputs if first.outputs else 0,
        "new": growth,
        "fixed": fixed / first.rest if first.rest else 0,
    }
    words = {name: f"{share:.3f}".rstrip("0").rstrip(".") for name, share in shares.items()}
    return " ".join(f"{name}={word}" for name, word in words.items() if word not in ("0", "-0"))


if __name__ == "__main__":
    main()
