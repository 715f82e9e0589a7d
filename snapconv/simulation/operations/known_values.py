"""Which values are there in a simulation that computes nothing.

Masks, indices, lengths and counters decide which way a program goes, and cost nothing to compute: so an
operation on small tensors whose values are all there is computed, and its results have values too. All
others are evaluated by shape alone. Whether a storage has values is part of its placement.
"""

from collections.abc import Iterable
from typing import Any

from snapconv.simulation.operations.operation_schemas import Operation
from snapconv.simulation.tensors.placements import Placement, Placements, tensors_in

# Up to here integers and booleans are computed: an attention mask of 8 sequences of 2048 tokens has 32 MiB.
_MAX_INTEGRAL_BYTES = 1 << 26
# Floating point numbers that decide anything are few: scales, learning rates, the steps of a schedule.
_MAX_FLOAT_BYTES = 1 << 16

# These give their first argument values whatever it had.
_OVERWRITING = {"copy_", "fill_", "zero_"}

# Results that one operand decides alone: False in `and`, True in `or`.
_ABSORBING = {
    "bitwise_and": False,
    "bitwise_and_": False,
    "logical_and": False,
    "logical_and_": False,
    "bitwise_or": True,
    "bitwise_or_": True,
    "logical_or": True,
    "logical_or_": True,
}
# Written without saying so in their schema (aten/src/ATen/native/native_functions.yaml).
_SILENTLY_WRITTEN = {
    "native_batch_norm": ("running_mean", "running_var"),
    "cudnn_batch_norm": ("running_mean", "running_var"),
}


class KnownValues:
    """Decides what is computed, and keeps in mind what an operation has overwritten with nothing."""

    def __init__(self, placements: Placements) -> None:
        import torch

        self._torch = torch
        self._tensor = torch.Tensor
        self._placements = placements

    def is_small(self, tensors: Iterable[Any]) -> bool:
        """Say whether all tensors are small enough to be computed."""
        return all(tensor.numel() * tensor.element_size() <= self._limit(tensor.dtype) for tensor in tensors)

    def _limit(self, dtype: Any) -> int:
        is_integral = not (dtype.is_floating_point or dtype.is_complex)
        return _MAX_INTEGRAL_BYTES if is_integral else _MAX_FLOAT_BYTES

    def can_overwrite(self, operation: Operation, args: Any, inputs: list[Placement | None]) -> bool:
        """Say whether an operation gives values back to a tensor that had lost them."""
        if operation.name not in _OVERWRITING or not has_values(inputs[1:]):
            return False
        target = inputs[0]
        assert target is not None  # else it would have values
        tensor = args[0]
        return (
            target.is_own_memory
            and tensor.is_contiguous()
            and tensor.numel() * tensor.element_size() == target.n_bytes
        )

    def remember(self, placement: Placement | None) -> None:
        """Let a storage have values again."""
        if placement is not None:
            placement.has_values = True

    def decided_by_one(self, operation: Operation, args: Any, inputs: list[Placement | None]) -> Any:
        """Return the arguments that give an operation's result where one operand decides it, else None.

        ``False & x`` is False whatever x is: so a loop that waits for a maximum length ends.
        """
        absorbing = _ABSORBING.get(operation.name)
        if absorbing is None or len(args) != 2 or len(inputs) != 2 or has_values(inputs):
            return None
        known = [has_values([placement]) for placement in inputs]
        if not any(known) or (operation.name.endswith("_") and not known[0]):
            return None
        decisive, other = args if known[0] else args[::-1]
        if other.numel() > decisive.numel() or not self.is_small(args):
            return None
        if not bool(decisive.all() if absorbing else ~decisive.any()) or (
            absorbing and decisive.dtype != self._torch.bool
        ):
            return None
        zeros = self._torch.zeros_like(other)
        return (decisive, zeros) if known[0] else (zeros, decisive)

    def forget_written(self, operation: Operation, args: Any, kwargs: dict[str, Any]) -> None:
        """Let what an operation would have written have no values from here on."""
        names = operation.written + _SILENTLY_WRITTEN.get(operation.name, ())
        if names:
            given = dict(zip(operation.argument_names, args, strict=False)) | kwargs
            for tensor in tensors_in((given.get(name) for name in names), self._tensor):
                self.forget(tensor)

    def forget(self, tensor: Any) -> None:
        """Let a tensor's storage have no values from here on: it reads as zeros."""
        if tensor.layout is not self._torch.strided:
            return
        placement = self._placements.of(tensor)
        if placement is None:
            storage = tensor.untyped_storage()
            placement = Placement(None, 0, storage.nbytes(), has_values=True)
            self._placements.add(storage, placement)
        placement.has_values = False
        if placement.is_own_memory and tensor.numel():
            tensor.detach().zero_()


def has_values(inputs: Iterable[Placement | None]) -> bool:
    """Say whether all of these have values; plain CPU tensors do."""
    return all(placement is None or placement.has_values for placement in inputs)
