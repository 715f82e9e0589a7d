"""Operations on tensors of a type that CUDA has no kernel for: torch's error.

The CPU multiplies matrices of integers, and shapes are evaluated for any type. The table follows
from torch's own list of the types that its operations take on CUDA, which torch's tests compare
with the kernels; scripts/measure_cuda_types wrote it. What it does not have is taken.
"""

from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from snapconv.guest.own_frames import for_program
from snapconv.simulation.evaluation import Invocation
from snapconv.simulation.placements import tensors_in

_TABLE = Path(__file__).with_name("cuda_types.tsv")
# The names in torch's messages (c10/core/ScalarType.h); others begin with a capital.
TYPE_NAMES = {
    torch.uint8: "Byte",
    torch.int8: "Char",
    torch.int16: "Short",
    torch.int32: "Int",
    torch.int64: "Long",
    torch.float16: "Half",
    torch.float32: "Float",
    torch.float64: "Double",
    torch.complex32: "ComplexHalf",
    torch.complex64: "ComplexFloat",
    torch.complex128: "ComplexDouble",
    torch.bool: "Bool",
    torch.bfloat16: "BFloat16",
}


def type_name(dtype: torch.dtype) -> str:
    """Return a type's name in torch's messages."""
    return TYPE_NAMES.get(dtype) or str(dtype).removeprefix("torch.").capitalize()


class Signature(NamedTuple):
    """An operation and its overload, and the types of its arguments that are tensors.

    Numbers decide too, ``has_fraction``: an integer times 0.5 is computed in another type. Tensors
    of the CPU without dimensions are numbers.
    """

    operation: str
    has_fraction: bool
    types: frozenset[tuple[str, torch.dtype]]

    def arguments(self, dtype: torch.dtype) -> frozenset[str]:
        """Return the names of the arguments of a type."""
        return frozenset(name for name, other in self.types if other is dtype)


class Refusal(NamedTuple):
    """What CUDA refuses: exactly these arguments have one of the types, and others another."""

    has_fraction: bool
    arguments: frozenset[str]
    other_arguments: frozenset[str]
    types: frozenset[torch.dtype]
    kernel: str  # its name in torch's message


def _names(text: str) -> frozenset[str]:
    return frozenset() if text == "-" else frozenset(text.split(","))


def operation_of(func: Any) -> str:
    """Return the name of an operation and its overload; in place it has the same kernel."""
    name, point, overload = str(func.name().removeprefix("aten::")).partition(".")
    return name.removesuffix("_") + point + overload


def signature_of(call: Invocation) -> Signature:
    """Describe a call by the types of its arguments."""
    values = call.named_arguments()
    return Signature(
        operation_of(call.func),
        any(isinstance(value, float | complex) for value in values.values()),
        frozenset(
            (name, tensor.dtype)
            for name, value in values.items()
            for tensor in tensors_in((value,))
            if tensor.dim() or tensor.is_cuda
        ),
    )


@lru_cache(1)
def refusals() -> dict[str, list[Refusal]]:
    """Read the table: by operation and overload."""
    rows: dict[str, list[Refusal]] = {}
    for line in _TABLE.read_text("utf-8").splitlines():
        if line.startswith("#"):
            continue
        operation, fraction, arguments, other_arguments, types, kernel = line.split("\t")
        refusal = Refusal(
            fraction == "1",
            _names(arguments),
            _names(other_arguments),
            frozenset(getattr(torch, name) for name in types.split(",")),
            kernel,
        )
        rows.setdefault(operation, []).append(refusal)
    return rows


def check_type(call: Invocation) -> None:
    """Raise torch's error for a call on a device whose tensors have a type that CUDA refuses."""
    rows = refusals().get(operation_of(call.func))
    if rows is None or any(tensor.layout is not torch.strided for tensor in call.tensors):
        return
    signature = signature_of(call)
    names = {name for name, _ in signature.types}
    for row in rows:
        if row.has_fraction is not signature.has_fraction:
            continue
        if names != row.arguments | row.other_arguments:
            continue
        for dtype in row.types:
            if signature.arguments(dtype) == row.arguments:
                message = f"\"{row.kernel}\" not implemented for '{type_name(dtype)}'"
                raise for_program(NotImplementedError(message))
