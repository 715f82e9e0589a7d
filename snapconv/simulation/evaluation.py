"""One operation -> its results: computed on the CPU, or evaluated by shape alone.

Masks, indices, lengths and counters decide which way a program goes, and cost nothing to compute:
so in a simulation that computes nothing, an operation on small tensors whose values are all there
is computed, and its results have values too. Whether a storage has values is part of its placement.
Knows nothing of mallocs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import empty

from snapconv.errors import RecorderError
from snapconv.simulation.branches import ValuesRead
from snapconv.simulation.kernels import cuda_only_operations
from snapconv.simulation.operations import (
    FILLING,
    OVERWRITING,
    RESIZING,
    FakeStorages,
    Kind,
    Operation,
    dynamic_shapes,
    laid_out,
    map_tensors,
    result_shapes,
    written_arguments,
)
from snapconv.simulation.patches import LibraryKernel, is_of_library
from snapconv.simulation.placements import (
    Placement,
    Placements,
    are_computed,
    are_of_others,
    first_device,
    has_values,
    tensors_in,
)
from snapconv.simulation.places import users_place
from snapconv.simulation.routing import Routing, is_small_mask

# From this size on, fresh uninitialised CPU memory takes none where nothing is computed: a model
# may be built on the CPU before it moves to the device. What comes back from the device neither.
NO_MEMORY_FROM_BYTES = 1 << 20
# Up to here integers and booleans are computed: an attention mask of 8 sequences of 2048 tokens has
# 32 MiB.
_MAX_INTEGRAL_BYTES = 1 << 26
# Floating point numbers that decide anything are few: scales, learning rates, the steps of a
# schedule.
_MAX_FLOAT_BYTES = 1 << 16

_UNINITIALISED = {"empty", "empty_strided", "empty_like", "new_empty", "new_empty_strided"}
# These read values on the CPU, whatever they return.
_READS_VALUES = {"_pack_padded_sequence"}
# These return numbers that depend on values; the latter truth values.
_GIVES_VALUES = {"_local_scalar_dense", "equal", "is_nonzero", "allclose"}
_COMPARES = {"equal", "allclose"}
_TO_SPARSE = {"to_sparse", "_to_sparse"}
# Results that one operand decides alone: False in `and`, True in `or`.
_ABSORBING = {
    "bitwise_and": False,
    "logical_and": False,
    "bitwise_or": True,
    "logical_or": True,
}
# Written without saying so in their schema (aten/src/ATen/native/native_functions.yaml).
_STATISTICS = ("running_mean", "running_var")
_SILENTLY_WRITTEN = dict.fromkeys(
    (
        "native_batch_norm",
        "cudnn_batch_norm",
        "batch_norm_gather_stats",
        "batch_norm_gather_stats_with_counts",
    ),
    _STATISTICS,
)


# What torch's functions for shapes raise for arguments that they refuse.
_REFUSALS = (RuntimeError, TypeError, ValueError, LookupError, AssertionError)
# Of many tensors each, which optimizers call: a look at all of them would take longest.
_OF_LISTS = ("aten::_foreach_", "aten::_fused_", "aten::_amp_")


def _has_shape_function(func: Any) -> bool:
    """Say whether torch's own function checks the arguments of an in-place operation."""
    name = func.name()
    return name.startswith("aten::") and not name.startswith(_OF_LISTS)


@dataclass(slots=True, eq=False)
class Invocation:
    """A call of an operation: its arguments, the tensors in them, and where those are.

    ``device`` is where the results are to be, None for the CPU; ``is_doubtful``: C++ code may have
    meant a device then; ``is_pinned``: the program wants the CPU's memory pinned. It is run at most
    once, with these arguments or others: ``is_done``, ``result`` and ``raised`` are of that run.
    """

    func: Any
    args: Any
    kwargs: dict[str, Any]
    operation: Operation
    tensors: list[Any]
    inputs: list[Placement | None] = field(default_factory=list)
    device: int | None = None
    is_doubtful: bool = False
    is_pinned: bool = False
    is_done: bool = False
    result: Any = None
    raised: BaseException | None = None

    @property
    def is_on_meta(self) -> bool:
        """Say whether the program itself wants shapes alone, which cost nothing."""
        if self.device is not None:
            return False
        device = self.kwargs.get("device")
        is_requested = device is not None and torch.device(device).type == "meta"
        return is_requested or any(tensor.is_meta for tensor in self.tensors)

    def run(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run it for its results."""
        try:
            if self.device is not None and is_of_library(self.func):
                self.result = LibraryKernel().run(self.func, args, kwargs)
            else:
                self.result = self.func(*args, **kwargs)
        except BaseException as error:
            self.raised = error
            raise
        self.is_done = True
        return self.result

    def named_arguments(self) -> dict[str, Any]:
        """Return the arguments by name."""
        return (
            dict(zip(self.operation.argument_names, self.args, strict=False)) | self.kwargs
        )


class Evaluation:
    """Runs operations: with values where that costs little, and else by shape alone."""

    def __init__(
        self,
        placements: Placements,
        values_read: ValuesRead,
        routing: Routing,
        fake_storages: FakeStorages | None,
    ) -> None:
        self._values_read = values_read
        self._cuda_only = cuda_only_operations()
        self._placements = placements
        self._routing = routing
        # None where everything is computed.
        self.fake_storages = fake_storages

    def run(self, call: Invocation) -> tuple[Any, bool]:
        """Return an operation's results, and whether they have values."""
        operation = call.operation
        if operation.kind is Kind.VIEW or call.is_on_meta:
            return self._compute(call), True
        if operation.kind is Kind.VALUE:
            return self._value(call), True
        if self.fake_storages is None:
            return self._compute(call), True
        if not are_computed(call.inputs) and self._is_decided(call):
            # The result follows from nothing that is unknown: without inputs that are assumed, it
            # counts as computed.
            call.inputs = [None] * len(call.inputs)
            return call.run(call.args, call.kwargs), True
        if not has_values(call.inputs) and operation.name not in FILLING:
            is_computed = self._restore_values(call)
        elif call.device is not None:
            is_computed = self._is_computed(call)
        else:
            is_computed = True
            if operation.name in _UNINITIALISED:
                meta = self._shapes(call)
                if meta.untyped_storage().nbytes() >= NO_MEMORY_FROM_BYTES:
                    # Uninitialised memory is not made.
                    return self.fake_storages.like(meta), False
        if is_computed:
            return self._compute(call), True
        return self._evaluate(call, self.fake_storages), False

    # --- with values

    def _value(self, call: Invocation) -> Any:
        """Return the number or truth value that the program reads, and note that read.

        A number that was not computed is 0, or what follows from assumed values. A truth value is
        decided by how likely it is True, since it may choose a branch of the program.
        """
        name = call.operation.name
        values_read = self._values_read
        if name not in _GIVES_VALUES or are_computed(call.inputs):
            if name in _GIVES_VALUES and are_of_others(call.inputs):
                values_read.add_of_others(values_read.name_of_call(name))
            return self._compute(call)
        if not values_read.is_truth(call.tensors[0].dtype, is_comparison=name in _COMPARES):
            function = values_read.name_of_call(name)
            result = self._compute(call)
            is_assumed = has_values(call.inputs)
            # torch's one_hot() reads numbers to check its classes: no read of the program's.
            if is_assumed and function == "one_hot":
                return result
            values_read.add_numbers(f"{function}()")
            if is_assumed:
                self._routing.read_number(result)
            return result
        result = values_read.decide(name, self._likelihood(call))
        if name == "_local_scalar_dense":
            result = self._compute(call).__class__(result)
        call.result = result
        call.is_done = True
        return result

    def _likelihood(self, call: Invocation) -> float:
        """Estimate how likely the truth value is True that the program reads.

        Compared tensors count as different for certain where one of them is not computed.
        """
        placement = self._placements.of(call.tensors[0])
        if placement is None or call.operation.name in _COMPARES:
            return 0.0
        if placement.likelihood in (0, 1) or not placement.is_assumed:
            return placement.likelihood
        # An assumed value is likely, not certain: branches.py looks at the branches too then.
        return 0.9 if self._compute(call) else 0.1

    def _compute(self, call: Invocation) -> Any:
        fill = self._cuda_only.get(call.func)
        if fill is None and call.device is None:
            return call.run(call.args, call.kwargs)
        if fill is None and call.operation.is_for_gpus_alone:
            raise RecorderError(
                f"{users_place()}: {call.func} computes on a GPU alone; simulate with "
                "--no-compute, or record on a GPU"
            )
        if fill is None:
            return laid_out(call.func, call.args, self._compute_in_any_type(call))

        # Only CUDA has this operation: a function of kernels.py fills results of CUDA's shapes.
        def empty(meta: Any) -> Any:
            return torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype)

        results = call.kwargs.get("out")
        if results is None:
            results = map_tensors(self._shapes(call), empty)
        fill(results, *call.args, **call.kwargs)
        return results

    def _compute_in_any_type(self, call: Invocation) -> Any:
        """Compute an operation; in a wider type if the CPU has no kernel for the type.

        The results get the types back that they have on a GPU.
        """
        try:
            return call.run(call.args, call.kwargs)
        except RuntimeError as error:
            if call.operation.kind is not Kind.FRESH or "not implemented for '" not in str(
                error
            ):
                raise

        def widened(tensor: Any) -> Any:
            return tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)

        types = iter([shape.dtype for shape in tensors_in((self._shapes(call),))])
        results = call.run(map_tensors(call.args, widened), call.kwargs)
        return map_tensors(results, lambda tensor: tensor.to(next(types)))

    def _is_computed(self, call: Invocation) -> bool:
        """Say whether an operation on values is computed: its arguments and results are small.

        In place the results are arguments, and need no look at their shapes.
        """
        operation = call.operation
        args = call.args
        if operation.is_for_gpus_alone and call.func not in self._cuda_only:
            return False
        if not self._is_small(call.tensors) and operation.name not in FILLING:
            return False
        if operation.kind is Kind.IN_PLACE and not operation.may_resize:
            return True
        if self._has_sparse(call.tensors):
            return False
        if operation.name == "resize_":
            return self._is_small([empty(args[1], dtype=args[0].dtype, device="meta")])
        if operation.name in RESIZING:
            return False
        if operation.name in _READS_VALUES:
            return True
        try:
            shapes = result_shapes(call.func, args, call.kwargs)
        except RuntimeError:  # it depends on the values; or the program will see an error
            return True
        return self._is_small(tensors_in((shapes,)))

    def _is_small(self, tensors: Iterable[Any]) -> bool:
        def limit(dtype: Any) -> int:
            is_integral = not (dtype.is_floating_point or dtype.is_complex)
            return _MAX_INTEGRAL_BYTES if is_integral else _MAX_FLOAT_BYTES

        return all(
            tensor.numel() * tensor.element_size() <= limit(tensor.dtype)
            for tensor in tensors
        )

    def _restore_values(self, call: Invocation) -> bool:
        """Note that a tensor has values again if an operation overwrites all of them.

        Return whether it does: the operation is computed then.
        """
        if call.operation.name not in OVERWRITING or not has_values(call.inputs[1:]):
            return False
        target = call.inputs[0]
        tensor = call.args[0]
        assert target is not None  # else it would have values
        is_all = (
            tensor.is_contiguous()
            and tensor.numel() * tensor.element_size() == target.n_bytes
        )
        if is_all and target.is_own_memory and self._is_small(call.tensors):
            target.has_values = True
            return True
        return False

    def _is_decided(self, call: Invocation) -> bool:
        """Say whether one operand decides an operation's result alone, whatever the other one has.

        ``False & x`` is False: so a loop that waits for a maximum length ends.
        """
        name = call.operation.name
        args = call.args
        absorbing = _ABSORBING.get(name.removesuffix("_"))
        if (
            absorbing is None
            or len(args) != 2
            or len(call.inputs) != 2
            or not self._is_small(args)
        ):
            return False
        n_elements = max(operand.numel() for operand in args)
        # In place, the first operand decides only while nothing changes it: it keeps its values.
        n_operands = 1 if name.endswith("_") else 2
        for placement, operand in zip(call.inputs[:n_operands], args, strict=False):
            if not are_computed([placement]) or operand.numel() < n_elements:
                continue
            if absorbing:
                # Bits of other types than bool are not all set by a value that is not zero.
                is_decided = operand.dtype == torch.bool and bool(operand.all())
            else:
                is_decided = not operand.any()
            if is_decided:
                return True
        return False

    # --- by shape alone

    def _evaluate(self, call: Invocation, fake_storages: FakeStorages) -> Any:
        """Return an operation's results without values.

        The operation itself runs only where it needs no values, or nothing else gives its results:
        changes of shape and memory, sparse tensors, lengths on the CPU. What it would have written
        has no values afterwards.
        """
        operation = call.operation
        args = call.args
        kwargs = call.kwargs
        if operation.name == "resize_":
            return fake_storages.resize(args[0], args[1])
        if operation.name in RESIZING or torch.Tag.inplace_view in getattr(
            call.func, "tags", ()
        ):
            return call.run(args, kwargs)
        if operation.name in _TO_SPARSE:
            # A sparse tensor is at its largest if no value is zero.
            return call.run((torch.ones_like(args[0]), *args[1:]), kwargs)
        self._forget_written(call)
        has_sparse = self._has_sparse(call.tensors)
        if operation.kind is Kind.IN_PLACE and not operation.may_resize:
            self._check_written(call)
            return written_arguments(operation, call.named_arguments())
        if operation.is_out and not has_sparse:
            return self._shape_out(call, fake_storages)
        if (
            operation.kind is not Kind.FRESH
            or operation.name in _READS_VALUES
            or has_sparse
        ):
            return call.run(args, kwargs)
        return self._make(call, fake_storages)

    def _make(self, call: Invocation, fake_storages: FakeStorages) -> Any:
        """Make an operation's results in new memory, by their shapes."""
        shapes = self._shapes(call)
        if self._has_sparse((shapes,)):
            return call.run(call.args, call.kwargs)
        shapes = self._routing.assume(call, shapes)
        comes_back = call.device is None and first_device(call.inputs) is not None
        make = self._zeros if comes_back else fake_storages.like
        return map_tensors(shapes, lambda shape: make(shape) if shape.is_meta else shape)

    def _zeros(self, meta: Any) -> Any:
        """Make what comes back to the CPU, where the program may look at it past the simulation."""
        assert self.fake_storages is not None
        if meta.untyped_storage().nbytes() >= NO_MEMORY_FROM_BYTES:
            return self.fake_storages.like(meta)
        return torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype).zero_()

    def _shapes(self, call: Invocation) -> Any:
        try:
            return dynamic_shapes(
                call.operation.name, call.func, call.args, call.kwargs, self._n_selected
            )
        except NotImplementedError as error:
            if torch.Tag.dynamic_output_shape in call.func.tags:
                raise RecorderError(
                    f"{users_place()}: {call.func} needs values, and the simulation computes none "
                    "(--no-compute); the shape of its result depends on them. Simulate with "
                    "computation, or leave this line out."
                ) from error
            if call.operation.is_for_gpus_alone:
                raise RecorderError(
                    f"{users_place()}: {call.func} is for GPUs alone, and torch does not say what "
                    "shape its result has; record on a GPU, or leave this line out"
                ) from error
            # torch has no meta function for it: run on the zeros that stand for its values.
            return call.run(call.args, call.kwargs)
        except _REFUSALS as error:
            refusal = error
        return self._results_of_kernel(call, refusal)

    def _check_written(self, call: Invocation) -> None:
        """Raise torch's error where an operation in place refuses its arguments."""
        if self._has_sparse(call.tensors) or not _has_shape_function(call.func):
            return
        try:
            result_shapes(call.func, call.args, call.kwargs)
            return
        except NotImplementedError:  # values decide, or torch has no function for shapes
            return
        except _REFUSALS as error:
            refusal = error
        self._results_of_kernel(call, refusal)

    def _results_of_kernel(self, call: Invocation, refusal: Exception) -> Any:
        """Let the operation itself say what torch's function for shapes has refused.

        The kernel has other words, which programs look for, and it takes some of what the function
        refuses. It runs on zeros of its own, unless they are many.
        """
        n_bytes = sum(tensor.numel() * tensor.element_size() for tensor in call.tensors)
        if call.operation.is_for_gpus_alone or n_bytes > _MAX_INTEGRAL_BYTES:
            raise refusal

        def zeros(tensor: Any) -> Any:
            empty = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype)
            return empty.zero_()

        kwargs = {key: map_tensors(value, zeros) for key, value in call.kwargs.items()}
        return call.func(*map_tensors(call.args, zeros), **kwargs)

    def _n_selected(self, operation: str, mask: Any | None, n_most: int) -> int:
        """Count what an operation selects: by a mask with values, else a share, or all values."""
        if mask is not None and has_values([self._placements.of(mask)]):
            return int(mask.count_nonzero())
        self._values_read.add(f"shape of {operation}()")
        return n_most if operation == "unique" else self._routing.n_selected(n_most)

    def _shape_out(self, call: Invocation, fake_storages: FakeStorages) -> Any:
        """Give what an operation is to write into the size that it would have then."""
        written = written_arguments(call.operation, call.named_arguments())
        sized = tensors_in((self._shapes(call),))
        for tensor, meta in zip(tensors_in((written,)), sized, strict=True):
            if tensor.size() != meta.size():
                fake_storages.resize(tensor, meta.size())
        return written

    def _has_sparse(self, values: Any) -> bool:
        strided = torch.strided
        return any(tensor.layout is not strided for tensor in tensors_in(values))

    def _forget_written(self, call: Invocation) -> None:
        """Let what an operation would have written have no values from here on."""
        names = call.operation.written + _SILENTLY_WRITTEN.get(call.operation.name, ())
        if names:
            arguments = call.named_arguments()
            for tensor in tensors_in(arguments.get(name) for name in names):
                self.forget(tensor)

    def forget(self, tensor: Any) -> None:
        """Let a tensor's storage have no values from here on: it reads as zeros.

        A small mask gets assumed values instead, which decide how much is selected.
        """
        if tensor.layout is not torch.strided:
            return
        placement = self._placements.of(tensor)
        if placement is None:
            storage = tensor.untyped_storage()
            placement = Placement(None, 0, storage.nbytes(), has_values=True)
            self._placements.add(storage, placement)
        if is_small_mask(tensor) and placement.has_values and placement.is_own_memory:
            tensor.detach().copy_(self._routing.mask(tensor.shape))
            placement.is_assumed = True
            return
        placement.has_values = placement.is_assumed = False
        if placement.is_own_memory and tensor.numel():
            tensor.detach().zero_()
