"""One operation -> its results: computed on the CPU, or evaluated by shape alone.

In a simulation that computes nothing, only what is small and depends on known values is computed; see
``values``. Knows nothing of mallocs.
"""

from dataclasses import dataclass
from typing import Any

from snapconv.errors import RecorderError
from snapconv.simulation.branches import Branches
from snapconv.simulation.kernels import cuda_only_operations
from snapconv.simulation.operations import (
    FakeStorages,
    Kind,
    Operation,
    Selection,
    dynamic_shapes,
    laid_out,
    map_tensors,
    result_shapes,
    written_arguments,
)
from snapconv.simulation.placements import Placement, Placements, tensors_in
from snapconv.simulation.routing import Routing
from snapconv.simulation.values import COMPARES, KnownValues, ValuesRead, has_values, users_place

# From this size on, fresh uninitialised CPU memory takes none where nothing is computed: a model may be built
# on the CPU before it moves to the device. What comes back from the device neither.
NO_MEMORY_FROM_BYTES = 1 << 20


_TO_SPARSE = {"to_sparse", "_to_sparse"}


class Run:
    """An operation of the program's that is run for its results, and whether that has happened."""

    __slots__ = ("func", "is_done", "raised", "result")

    def __init__(self, func: Any) -> None:
        self.func = func
        self.is_done = False
        self.result: Any = None
        self.raised: BaseException | None = None

    def __call__(self, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run it."""
        try:
            result = self.result = self.func(*args, **kwargs)
        except BaseException as error:
            self.raised = error
            raise
        self.is_done = True
        return result


@dataclass(frozen=True, slots=True)
class Invocation:
    """An operation that is called: with which arguments, what tensors are in them, and where those are."""

    run: Run
    operation: Operation
    func: Any
    args: Any
    kwargs: dict[str, Any]
    tensors: list[Any]
    inputs: list[Placement | None]
    device: int | None


class Evaluation:
    """Runs operations."""

    def __init__(self, placements: Placements, values_read: ValuesRead, routing: Routing | None) -> None:
        import torch

        self._torch = torch
        self._tensor = torch.Tensor
        self._values_read = values_read
        self._cuda_only = cuda_only_operations()
        self._placements = placements
        self._routing = routing
        self._branches = Branches()
        self.fake_storages = None if routing is None else FakeStorages()
        self.known = KnownValues(placements)
        self._selection = Selection(lambda tensor: has_values([placements.of(tensor)]), values_read.add_shape)

    def run(self, call: Invocation) -> tuple[Any, bool]:
        """Return an operation's results, and whether they have values."""
        operation = call.operation
        if self.fake_storages is None or operation.kind is Kind.VIEW:
            return self._compute(call), True
        is_known = has_values(call.inputs)
        if operation.kind is Kind.VALUE:
            return self._value(call, is_known=is_known), True
        if call.device is None and is_known:
            return self._on_the_cpu(call, self.fake_storages)
        if self._is_computed(call, is_known=is_known):
            return self._compute(call), True
        if not is_known and (decided := self.known.decisive_arguments(operation, call.args, call.inputs)):
            return call.run(decided, call.kwargs), True
        return self._evaluate(call, self.fake_storages), False

    def _value(self, call: Invocation, *, is_known: bool) -> Any:
        """Return the number or the truth value that the program reads; an uncomputed number is 0."""
        operation = call.operation
        if is_known or not operation.gives_values:
            return self._compute(call)
        if not self._values_read.is_truth(operation.name, call.tensors[0].dtype):
            self._values_read.add_value(operation.name)
            return self._compute(call)
        placement = self._placements.of(call.tensors[0])
        likelihood = 0.0 if placement is None or operation.name in COMPARES else placement.likelihood
        decision = self._branches.decide(likelihood)
        self._values_read.add_value(operation.name, decision)
        result = decision.value
        if operation.name == "_local_scalar_dense":
            result = self._compute(call).__class__(decision.value)
        call.run.result, call.run.is_done = result, True
        return result

    def _compute(self, call: Invocation) -> Any:
        fill = self._cuda_only.get(call.func)
        if fill is None and call.device is None:
            return call.run(call.args, call.kwargs)
        if fill is None:
            return laid_out(call.func, call.args, self._compute_in_any_type(call))

        # What only CUDA has, into results of CUDA's shapes.
        def empty(meta: Any) -> Any:
            return self._torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype)

        shapes = _result_shapes(call)
        results = map_tensors(shapes, empty, self._tensor)
        fill(results, *call.args, **call.kwargs)
        return results

    def _compute_in_any_type(self, call: Invocation) -> Any:
        """Compute an operation; in a wider type where CUDA has a kernel for this one and the CPU has none."""
        try:
            return call.run(call.args, call.kwargs)
        except RuntimeError as error:
            if call.operation.kind is not Kind.FRESH or "not implemented for '" not in str(error):
                raise
            torch = self._torch

        def widened(tensor: Any) -> Any:
            return tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)

        shapes = _result_shapes(call)
        types = iter([shape.dtype for shape in tensors_in((shapes,), self._tensor)])
        results = call.run(map_tensors(call.args, widened, self._tensor), call.kwargs)
        return map_tensors(results, lambda tensor: tensor.to(next(types)), self._tensor)

    def _on_the_cpu(self, call: Invocation, fake_storages: FakeStorages) -> tuple[Any, bool]:
        """Compute what the program computes on the CPU; much uninitialised memory is not made."""
        if call.operation.is_uninitialised:
            shape = _result_shapes(call)
            if shape.untyped_storage().nbytes() >= NO_MEMORY_FROM_BYTES:
                return fake_storages.like(shape), False
        return self._compute(call), True

    def _is_computed(self, call: Invocation, *, is_known: bool) -> bool:
        """Say whether an operation is computed; one that overwrites gives its target values."""
        known = self.known
        if not is_known:
            if not known.can_overwrite(call.operation, call.args, call.inputs):
                return False
            target = call.inputs[0]
            if target is not None and known.is_small(call.tensors):
                target.has_values = True
                return True
            return False
        return known.is_small(call.tensors) and self._has_small_results(call)

    def _has_small_results(self, call: Invocation) -> bool:
        operation, args = call.operation, call.args
        if operation.kind is Kind.IN_PLACE and not operation.may_resize:
            return True
        if self._has_sparse((*args, *call.kwargs.values())):
            return False
        if operation.is_memory_only:
            return operation.name == "resize_" and self._has_small_size(*args[:2])
        if operation.reads_values:
            return True
        try:
            shapes = result_shapes(call.func, args, call.kwargs)
        except RuntimeError:  # it depends on the values; or the program will see an error
            return True
        return self.known.is_small(tensors_in((shapes,), self._tensor))

    def _has_small_size(self, tensor: Any, size: Any) -> bool:
        return self.known.is_small([self._torch.empty(size, dtype=tensor.dtype, device="meta")])

    def _evaluate(self, call: Invocation, fake_storages: FakeStorages) -> Any:
        """Do an operation by shape alone."""
        operation, args, kwargs = call.operation, call.args, call.kwargs
        if operation.name == "resize_":
            return fake_storages.resize(args[0], args[1])
        if operation.is_memory_only or operation.is_view_in_place:
            return call.run(args, kwargs)
        if operation.name in _TO_SPARSE:  # all of it may be there
            return call.run((self._torch.ones_like(args[0]), *args[1:]), kwargs)
        self.known.forget_written(operation, args, kwargs)
        has_sparse = self._has_sparse((*args, *kwargs.values()))
        if operation.kind is Kind.IN_PLACE and not operation.may_resize:
            return written_arguments(operation, args, kwargs)
        if operation.is_out and not has_sparse:
            return self._shape_out(call, fake_storages)
        if operation.kind is not Kind.FRESH or operation.reads_values or has_sparse:
            return call.run(args, kwargs)
        shapes = self._shapes(call)
        if self._has_sparse((shapes,)):
            return call.run(args, kwargs)
        assert self._routing is not None
        shapes = self._routing.assume(call, shapes)
        comes_back = call.device is None and any(
            placement is not None and placement.device is not None for placement in call.inputs
        )
        make = self._zeros if comes_back else fake_storages.like
        return map_tensors(shapes, lambda shape: make(shape) if shape.is_meta else shape, self._tensor)

    def _zeros(self, meta: Any) -> Any:
        """Make what comes back to the CPU, where the program may look at it past the simulation."""
        assert self.fake_storages is not None
        if meta.untyped_storage().nbytes() >= NO_MEMORY_FROM_BYTES:
            return self.fake_storages.like(meta)
        return self._torch.empty_strided(meta.size(), meta.stride(), dtype=meta.dtype).zero_()

    def _shapes(self, call: Invocation) -> Any:
        try:
            return dynamic_shapes(call.operation.name, call.func, call.args, call.kwargs, self._selection)
        except NotImplementedError as error:
            if self._torch.Tag.dynamic_output_shape in call.func.tags:
                raise _values_needed(call) from error
            return call.run(call.args, call.kwargs)  # torch has no meta function for it: of zeros

    def _shape_out(self, call: Invocation, fake_storages: FakeStorages) -> Any:
        """Give what an operation is to write into the size that it would have then."""
        written = written_arguments(call.operation, call.args, call.kwargs)
        sized = _result_shapes(call)
        for tensor, meta in zip(
            tensors_in((written,), self._tensor), tensors_in((sized,), self._tensor), strict=True
        ):
            if tensor.size() != meta.size():
                fake_storages.resize(tensor, meta.size())
        return written

    def _has_sparse(self, values: Any) -> bool:
        strided = self._torch.strided
        return any(tensor.layout is not strided for tensor in tensors_in(values, self._tensor))


def _result_shapes(call: Invocation) -> Any:
    try:
        return result_shapes(call.func, call.args, call.kwargs)
    except NotImplementedError as error:
        raise _values_needed(call) from error


def _values_needed(call: Invocation) -> RecorderError:
    """Name the line of the program that needs values which are not computed."""
    return RecorderError(
        f"{users_place()}: {call.func} needs values, and the simulation computes none (--no-compute); "
        "the shape of its result depends on them. Simulate with computation, or leave this line out."
    )
