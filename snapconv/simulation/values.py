"""Values of tensors in a simulation that computes nothing: which are there, and which a program read in vain.

Masks, indices, lengths and counters decide which way a program goes, and cost nothing to compute: so an
operation on small tensors whose values are all there is computed, and its results have values too. Whether a
storage has values is part of its placement.

A branch that depends on what was not computed may go another way than on a GPU; a shape that does was
assumed. What is only printed does no harm, which cannot be seen from here: so all reads are listed.
"""

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from math import isinf, isnan
from pathlib import Path
from sysconfig import get_paths
from typing import Any

from snapconv.notes import Note
from snapconv.recorder.program.own_frames import is_ours
from snapconv.simulation.branches import Decision
from snapconv.simulation.operations import Operation
from snapconv.simulation.patches import Calls
from snapconv.simulation.placements import Placement, Placements, tensors_in
from snapconv.units import counted

# Up to here integers and booleans are computed: an attention mask of 8 sequences of 2048 tokens has 32 MiB.
_MAX_INTEGRAL_BYTES = 1 << 26
# Floating point numbers that decide anything are few: scales, learning rates, the steps of a schedule.
_MAX_FLOAT_BYTES = 1 << 16

# These give their first argument values whatever it had.
_OVERWRITING = {"copy_", "fill_", "zero_"}

# Results that one operand decides alone: False in `and`, True in `or`.
_ABSORBING = {"bitwise_and": False, "logical_and": False, "bitwise_or": True, "logical_or": True}
# Written without saying so in their schema (aten/src/ATen/native/native_functions.yaml).
_SILENTLY_WRITTEN = {
    "native_batch_norm": ("running_mean", "running_var"),
    "cudnn_batch_norm": ("running_mean", "running_var"),
}


# Truth values that were not computed: how likely each is, of finite numbers that all differ.
COMPARES = {"equal", "allclose"}
_CERTAIN = {
    **dict.fromkeys(("isnan", "isinf", "isposinf", "isneginf"), 0.0),
    **dict.fromkeys(("isfinite", "isreal"), 1.0),
}
_AS_BEFORE = {"_to_copy", "clone", "index", "index_select", "gather", "repeat", "cat", "flip", "bitwise_and"}
# Of truth values that are neither all False nor all True, some are True, and not all.
_SOME = 0.9


def likelihood_of(call: Any) -> float:
    """Estimate how likely a truth value is True that an operation has for its result, and did not compute."""
    name, args = call.operation.name, call.args
    if name in _CERTAIN:
        return _CERTAIN[name]
    if name in ("eq", "ne"):
        is_equal = _equality(call)
        return is_equal if name == "eq" else 1 - is_equal
    given = [0.5 if placement is None else placement.likelihood for placement in call.inputs]
    if name in ("any", "all") and given:
        return given[0] if given[0] in (0, 1) else _SOME if name == "any" else 1 - _SOME
    if name in ("logical_not", "bitwise_not"):
        return 1 - given[0]
    if name in ("logical_and", "bitwise_and", "mul") and len(given) == len(args):
        return min(given)
    if name in ("logical_or", "bitwise_or") and len(given) == len(args):
        return max(given)
    return given[0] if name in _AS_BEFORE and given else 0.5


def _equality(call: Any) -> float:
    """Estimate how likely two values are equal: a value equals itself, never infinity, and no one number."""
    first, second = call.args[0], call.args[1]
    if first is second:
        return 1.0
    if isinstance(second, float) and (isinf(second) or isnan(second)):
        return 0.0
    return 0.0 if first.numel() == 1 else 0.5


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

    def decisive_arguments(self, operation: Operation, args: Any, inputs: list[Placement | None]) -> Any:
        """Return the arguments that give an operation's result where one operand decides it, else None.

        ``False & x`` is False whatever x is: so a loop that waits for a maximum length ends.
        """
        absorbing = _ABSORBING.get(operation.name.removesuffix("_"))
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


_STANDARD_LIBRARY = get_paths()["stdlib"]
_LIBRARY_FOLDERS = ("site-packages", "dist-packages")
# A loop may read at as many places as it generates.
_MAX_PLACES = 1000
_MAX_SHOWN = 4

# What Python calls for bool(x), float(x) and so on.
_AS_WRITTEN = {
    "__bool__": "bool()",
    "__float__": "float()",
    "__int__": "int()",
    "__index__": "int()",
    "__complex__": "complex()",
    "__format__": "format()",
    "__contains__": "in",
}
# What decides a branch or a shape for certain is listed first.
_ORDER = {"shape": 0, "bool()": 1}


class ValuesRead:
    """The reads so far, by place."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._counts: Counter[tuple[str, str]] = Counter()
        self._skipped: dict[str, None] = {}
        self._is_quiet = False

    @contextmanager
    def once(self, what: str) -> Iterator[None]:
        """Count what is read inside as one read: a tensor is printed by reading it in many ways."""
        if self._is_quiet:
            yield
            return
        self.add(what)
        self._is_quiet = True
        try:
            yield
        finally:
            self._is_quiet = False

    def is_truth(self, operation: str, dtype: Any) -> bool:
        """Say whether a read is of a truth value: of one, or of a number that decides a branch."""
        call = self._calls.current
        name = getattr(call and call[0], "__name__", "")
        if operation in COMPARES or name in ("__bool__", "is_nonzero"):
            return True
        # Of the checks inside of operations zeros pass most.
        return str(dtype) == "torch.bool" and name in ("item", "__int__", "__float__", "__index__")

    def add_value(self, operation: str, decision: Decision | None = None) -> None:
        """Count a number that the program was given."""
        call = self._calls.current
        name = getattr(call[0], "__name__", operation) if call else operation
        self.add(_AS_WRITTEN.get(name, f"{name}()") + (f" taken as {decision.value}" if decision else ""))
        if decision is not None and decision.skipped:
            self._skipped.setdefault(_shortened(decision.skipped))

    def add_shape(self, operation: str) -> None:
        """Count a result whose shape depends on values."""
        self.add(f"shape of {operation}()")

    def add(self, what: str) -> None:
        """Count one read at the program's present line."""
        if self._is_quiet:
            return
        key = (users_place(), what)
        if key in self._counts or len(self._counts) < _MAX_PLACES:
            self._counts[key] += 1

    def notes(self) -> tuple[Note, ...]:
        """Say where values were read that there were not, what decides a branch for certain first."""
        if not self._counts:
            return ()
        rows = sorted(self._counts.items(), key=lambda row: _ORDER.get(row[0][1].partition(" ")[0], 2))
        shown = ", ".join(_described(*key, count) for key, count in rows[:_MAX_SHOWN])
        if len(rows) > _MAX_SHOWN:
            shown += f" and {counted(len(rows) - _MAX_SHOWN, 'more place')}"
        message = f"values that were not computed were read at {shown}; numbers read as 0"
        has_shapes = any(what.startswith("shape ") for _, what in self._counts)
        if has_shapes:
            message += "; shapes that depend on them are the largest possible"
        if self._skipped:
            lines = [*self._skipped]
            more = f" and {counted(len(lines) - _MAX_SHOWN, 'more place')}" if len(lines) > _MAX_SHOWN else ""
            message += f"; the peak may be too low: skipped were {', '.join(lines[:_MAX_SHOWN])}{more}"
        return (Note("values-not-computed", message),)


def _described(where: str, what: str, count: int) -> str:
    return f"{where} ({what}{f', {count} times' if count > 1 else ''})"


def users_place() -> str:
    """Name the innermost line outside torch; for one in a library, also the program's that led to it."""
    torch_folder = str(Path(str(sys.modules["torch"].__file__)).parent)
    innermost = None
    frame = sys._getframe()
    while frame.f_back is not None:
        filename = frame.f_code.co_filename
        if not is_ours(filename) and not filename.startswith((torch_folder, "<")):
            place = f"{_shortened(filename)}:{frame.f_lineno}"
            if not _is_library(filename):
                return place if innermost is None else f"{innermost} called at {place}"
            innermost = innermost or place
        frame = frame.f_back
    return innermost or "(unknown line)"


def _is_library(filename: str) -> bool:
    return any(f"/{folder}/" in filename.replace("\\", "/") for folder in _LIBRARY_FOLDERS) or (
        filename.startswith(_STANDARD_LIBRARY)
    )


def _shortened(filename: str) -> str:
    """Write a library's file from its package on, the program's from the current folder on."""
    for folder in _LIBRARY_FOLDERS:
        _, found, rest = filename.replace("\\", "/").rpartition(f"/{folder}/")
        if found:
            return rest
    return filename.removeprefix(f"{Path.cwd()}{os.sep}")
