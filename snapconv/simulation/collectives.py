"""Collectives in the one process: every other rank is taken to hold what this rank holds.

A gather gives copies of this rank's own tensor, a scatter its own part, a sum its own values times
the number of ranks, and an exchange the part that it would send to itself. Sizes are those of the
tensors that a collective is given, or follow from its rule. Nothing waits for anybody.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from snapconv.simulation.operations import map_tensors
from snapconv.simulation.patches import Handler
from snapconv.simulation.placements import tensors_in

_GATHERS = {
    *"allgather_ allgather_coalesced_ _allgather_base_ allgather_into_tensor_coalesced_".split(),
    "gather_",
}
_SCATTERS = {
    *"reduce_scatter_ _reduce_scatter_base_ reduce_scatter_tensor_coalesced_ scatter_".split()
}
# One rank sends what the others get.
_SENT = {"broadcast_", "scatter_"}
_BRINGING_NOTHING = {"send", "barrier", "monitored_barrier_"}
_EXCHANGES = {"alltoall_", "alltoall_base_"}
_FUNCTIONAL = ("all_", "broadcast", "reduce_scatter")


class Collectives:
    """Does collectives; ``handle`` does all other operations, and those that these consist of.

    ``is_real`` says of a collective's arguments whether other processes take part in it;
    ``mark_of_others`` is given the tensors whose values are those of other ranks.
    """

    def __init__(
        self,
        handle: Handler,
        is_real: Callable[[Any], bool],
        mark_of_others: Callable[[list[Any]], None],
    ) -> None:
        self._mark_of_others = mark_of_others
        self._handle = handle
        self._is_real = is_real
        self._handlers: dict[str, Handler] = {
            "c10d": self._handle_c10d,
            "_c10d_functional": self._handle_functional,
            "_dtensor": self._handle_dtensor,
        }

    def handle(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """Run one operation."""
        return self._handlers.get(func.namespace, self._handle)(func, args, kwargs)

    # --- those that are given the memory of their results

    def _handle_c10d(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        schema = func._schema
        name = schema.name.partition("::")[2]
        if self._is_real(args):
            return self._handle(func, args, kwargs)
        outputs = list(tensors_in(args[:1]))
        if name in _GATHERS:
            for output, tensor in zip(_listed(args[0]), _listed(args[1]), strict=False):
                self._gather(output, tensor, args)
        elif name in _SCATTERS:
            group_rank, _ = _rank_and_size(args)
            for output, tensor in zip(_listed(args[0]), _listed(args[1]), strict=False):
                self._scatter(output, tensor, group_rank)
        elif name in _EXCHANGES:
            self._exchange(args)
        self._reduce(func, args, outputs)
        if _has_values_of_others(func, args):
            self._mark_of_others(outputs)
        n_returns = len(schema.returns)
        if n_returns == 0:
            return None
        work = _completed_work(outputs)
        return work if n_returns == 1 else (args[0], work)

    def _gather(self, output: Any, tensor: Any, args: Any) -> None:
        if isinstance(output, list):
            for part in output:
                self._copy(part, tensor)
            return
        if not tensor.numel():
            return
        parts = [output.view(-1, tensor.numel())]
        if output.untyped_storage()._cdata == tensor.untyped_storage()._cdata:
            # In place: this rank's own part is there already.
            group_rank, _ = _rank_and_size(args)
            parts = [parts[0][:group_rank], parts[0][group_rank + 1 :]]
        for part in parts:
            self._copy(part, tensor.reshape(1, -1))

    def _scatter(self, output: Any, tensor: Any, group_rank: int) -> None:
        n = output.numel()
        is_list = isinstance(tensor, list)
        part = (
            tensor[group_rank] if is_list else tensor.view(-1).narrow(0, group_rank * n, n)
        )
        self._copy(output, part.reshape(output.shape))

    def _exchange(self, args: Any) -> None:
        """Take what this rank sends to itself for what each rank sends to it, where it fits."""
        group_rank, n_ranks = _rank_and_size(args)
        outputs, inputs = args[:2]
        if not isinstance(outputs, list):
            outputs = _split(outputs, args[3], n_ranks)
            inputs = _split(inputs, args[4], n_ranks)
        for output in outputs:
            if output.numel() == inputs[group_rank].numel():
                self._copy(output, inputs[group_rank].reshape(output.shape))

    def _reduce(self, func: Any, args: Any, outputs: list[Any]) -> None:
        """Multiply what was summed up by the number of ranks."""
        names = [argument.name for argument in func._schema.arguments]
        if "reduce_op" not in names:
            return
        _, n_ranks = _rank_and_size(args)
        operator = args[names.index("reduce_op")].op() if n_ranks > 1 else None
        if operator == torch.distributed.ReduceOp.SUM:
            for tensor in outputs:
                self._multiply(tensor, n_ranks)

    def _multiply(self, tensor: Any, n_ranks: int) -> None:
        if n_ranks > 1 and tensor.dtype is not torch.bool:
            self._handle(torch.ops.aten.mul_.Scalar, (tensor, n_ranks), {})

    def _copy(self, output: Any, tensor: Any) -> None:
        self._handle(torch.ops.aten.copy_.default, (output, tensor), {})

    # --- those that return new tensors

    def _handle_functional(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name: str = func._schema.name.partition("::")[2]
        if name.startswith("wait_") or name in ("isend", "irecv"):
            return args[0]
        if name == "batch_p2p_ops":
            return args[3]
        if not name.startswith(_FUNCTIONAL):
            # A tensor that waits for its collective: the same memory, in a class of torch's own.
            return func(*args, **kwargs)
        rule = self._functional_rule(name, args)
        result = map_tensors(args[0], rule)
        if _rank_and_size(args)[1] > 1:
            self._mark_of_others([*tensors_in((result,))])
        if name.endswith("_out"):
            self._copy(kwargs["out"], result)
            result = kwargs["out"]
        return result

    def _functional_rule(self, name: str, args: Any) -> Callable[[Any], Any]:
        """Return what a collective makes of each of its tensors."""
        group_rank, n_ranks = _rank_and_size(args)
        n_summed = n_ranks if "sum" in args[1:2] else 1
        if name.startswith("all_gather"):
            return partial(self._repeated, n_ranks=n_ranks)
        if name.startswith("reduce_scatter"):
            return lambda tensor: self._summed(tensor.chunk(n_ranks)[group_rank], n_summed)
        if name.startswith("all_to_all"):
            return lambda tensor: self._exchanged(tensor, args[1], args[2], group_rank)
        is_copy = not name.endswith("_")
        return lambda tensor: self._summed(tensor, n_summed, is_copy=is_copy)

    def _summed(self, tensor: Any, n_ranks: int, *, is_copy: bool = True) -> Any:
        if is_copy:
            options = {"memory_format": torch.contiguous_format}
            tensor = self._handle(torch.ops.aten.clone.default, (tensor,), options)
        self._multiply(tensor, n_ranks)
        return tensor

    def _repeated(self, tensor: Any, n_ranks: int, dim: int = 0) -> Any:
        n_times = [1] * max(tensor.dim(), 1)
        n_times[dim] = n_ranks
        return self._handle(torch.ops.aten.repeat.default, (tensor, n_times), {})

    def _exchanged(
        self, tensor: Any, output_sizes: list[int], input_sizes: list[int], group_rank: int
    ) -> Any:
        shape = [sum(output_sizes), *tensor.shape[1:]]
        result = self._handle(torch.ops.aten.new_empty.default, (tensor, shape), {})
        part = tensor.split(input_sizes)[group_rank]
        for output in result.split(output_sizes):
            if output.shape == part.shape:
                self._copy(output, part)
        return result

    def _handle_dtensor(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        if func._schema.name != "_dtensor::shard_dim_alltoall":
            return self._handle(func, args, kwargs)
        group_rank, n_ranks = _rank_and_size(args)
        tensor, gather_dim, shard_dim = args[:3]
        part = tensor.chunk(n_ranks, shard_dim)[group_rank]
        return self._repeated(part, n_ranks, gather_dim)


def _has_values_of_others(func: Any, args: Any) -> bool:
    """Say whether a collective brings values of other ranks: not what this rank itself sends."""
    name = func._schema.name.partition("::")[2]
    rank, n_ranks = _rank_and_size(args)
    if n_ranks == 1 or name in _BRINGING_NOTHING:
        return False
    names = [argument.name for argument in func._schema.arguments]
    return not (name in _SENT and args[names.index("root_rank")] == rank)


def _listed(value: Any) -> Any:
    return value if isinstance(value, list) else [value]


def _split(tensor: Any, sizes: list[int], n_ranks: int) -> Any:
    return tensor.split(sizes or [tensor.size(0) // n_ranks] * n_ranks)


def _rank_and_size(args: Any) -> tuple[int, int]:
    """Return this rank's number in a collective's group, and the number of ranks in it."""
    groups = torch.distributed
    if groups.get_world_size() == 1:
        return 0, 1
    boxes = [value for value in args if isinstance(value, torch.ScriptObject)]
    if boxes:  # the group is the first of them
        group = groups.ProcessGroup.unbox(boxes[0])
    else:  # the functional ones have its name, which is the last argument
        group = groups.distributed_c10d._resolve_process_group(args[-1])
    return group.rank(), group.size()


def _completed_work(result: list[Any]) -> Any:
    """Make a Work, as torch calls it, that is over already."""
    future = torch.futures.Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future).boxed()
