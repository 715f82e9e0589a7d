"""torch.distributed in the one simulated process: a job of one rank, with NCCL or without.

The work of NCCL with one rank is known without it: a collective in place changes nothing, and any
other copies its inputs to its outputs. More ranks are refused, except with gloo: then each process
has its simulated GPU, and tensors on the CPU go to the other processes.
"""

import os
import re
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial, wraps
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch

from snapconv.errors import RecorderError
from snapconv.notes import Note
from snapconv.simulation.operations import map_tensors
from snapconv.simulation.patches import Handler, Patches
from snapconv.simulation.placements import tensors_in
from snapconv.simulation.tracker import Tracker

_ONE_RANK = Note(
    "simulated-nccl",
    "the process group is simulated, with this one rank: collectives are copies, and "
    "what NCCL allocates for itself is not in the capture",
)
# torch 2.15 has three of them, and makes the second where a script names "nccl".
_NCCL_CLASSES = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
# What torch.cuda.nccl.version() answers: one with all that torch requires.
_NCCL_VERSION = (2, 27, 3)
_NCCL_TIMEOUT = timedelta(minutes=10)
# Those of torch.distributed._functional_collectives that return new tensors: with one rank, copies
# of their first argument. Where this one is a list, so is the result.
_FUNCTIONAL = ("all_", "broadcast", "reduce_scatter")
_POINT_TO_POINT = ("c10d::send", "c10d::recv")


def patch_process_groups(tracker: Tracker, patches: Patches) -> None:
    """Let a process group of one rank work as with NCCL, if torch has torch.distributed."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    real = distributed_c10d.init_process_group
    init = wraps(real)(partial(_init_process_group, tracker, real))
    for owner in (torch.distributed, distributed_c10d, torch.distributed.device_mesh):
        patches.set_existing(owner, "init_process_group", init)
    patches.set(
        torch.distributed, "Reducer", _reducer_class(tracker, torch.distributed.Reducer)
    )
    _patch_nccl(distributed_c10d, patches)


def collectives_handler(handle: Handler) -> Handler:
    """Make a handler that does collectives of one rank; ``handle`` does all other operations."""

    def handle_functional(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        name: str = func._schema.name.partition("::")[2]
        if name.endswith("_") or name.startswith("wait_"):
            return args[0]
        if name.startswith(_FUNCTIONAL) and not name.endswith("_out"):
            return map_tensors(args[0], partial(_copied, handle))
        return handle(func, args, kwargs)

    def handle_c10d(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        schema = func._schema
        if schema.name.startswith(_POINT_TO_POINT) or _has_other_ranks(args):
            return handle(func, args, kwargs)
        outputs = list(tensors_in(args[:1]))
        # Where the second argument has tensors too, the first receives them; else there is nobody
        # to receive from, and it stays as it is.
        if any("Tensor" in str(argument.type) for argument in schema.arguments[1:2]):
            _receive(handle, outputs, tensors_in(args[1:2]))
        n_returns = len(schema.returns)
        if n_returns == 0:
            return None
        work = _completed_work(outputs)
        return work if n_returns == 1 else (args[0], work)

    handlers = {"c10d": handle_c10d, "_c10d_functional": handle_functional}

    def handle_any(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        return handlers.get(func.namespace, handle)(func, args, kwargs)

    return handle_any


def _copied(handle: Handler, tensor: Any) -> Any:
    options = {"memory_format": torch.contiguous_format}
    return handle(torch.ops.aten.clone.default, (tensor,), options)


def _receive(handle: Handler, outputs: list[Any], inputs: Iterable[Any]) -> None:
    for output, tensor in zip(outputs, inputs, strict=True):
        handle(torch.ops.aten.copy_.default, (output, tensor.view_as(output)), {})


def _has_other_ranks(args: Any) -> bool:
    """Return whether gloo takes the tensors to other processes: those on the CPU."""
    groups = torch.distributed
    if not groups.is_initialized() or groups.get_world_size() <= 1:
        return False
    is_gloo = groups.get_backend() == "gloo"
    return is_gloo and all(tensor.device.type == "cpu" for tensor in tensors_in(args))


def _completed_work(result: list[Any]) -> Any:
    """Make a Work, as torch calls it, that is over already."""
    future = torch.futures.Future()
    future.set_result(result)
    return torch._C._distributed_c10d._create_work_from_future(future).boxed()


def _init_process_group(
    tracker: Tracker, real: Callable[..., Any], *args: Any, **kwargs: Any
) -> None:
    arguments = signature(real).bind(*args, **kwargs).arguments
    n_ranks = _world_size(arguments)
    # Over gloo, several processes have a simulated GPU each.
    if n_ranks > 1 and arguments.get("backend") != "gloo":
        advice = "set WORLD_SIZE=1 and RANK=0"
        if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun sets the variables itself
            advice = "give torchrun --nproc-per-node 1"
        raise RecorderError(
            f"a simulation is one process, and this is a job of {n_ranks} ranks: {advice} to see "
            "what one rank of data parallel training needs, or record on GPUs"
        )
    real(*args, **kwargs)
    if n_ranks <= 1:
        tracker.machine.note_not_modelled("NCCL", _ONE_RANK)


def _world_size(arguments: dict[str, Any]) -> int:
    """Return the number of ranks; 0 where nothing defines it: torch has a message for that."""
    world_size = arguments.get("world_size", -1)
    if world_size > 0:
        return int(world_size)
    match = re.search(r"[?&]world_size=(\d+)", arguments.get("init_method") or "")
    text = match[1] if match else os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 0


def _patch_nccl(c10d: Any, patches: Patches) -> None:
    """Put torch's fake process group in the place of NCCL's: it does nothing, and succeeds."""
    fake: Any = torch._C._distributed_c10d.FakeProcessGroup
    make = getattr(fake, "_create_internal", fake)
    _patch_splitting(fake, make, c10d, patches)
    # NCCL's has one, to find ranks that are not in step.
    patches.set(fake, "_set_sequence_number_for_group", lambda _: None)
    patches.set(fake, "_get_sequence_number_for_group", lambda _: 0)

    class FakeType(type):
        def __call__(cls, _store: Any, rank: int, size: int, *_: Any) -> Any:
            return make(rank, size)

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, fake)

    options: Any = getattr(fake, "Options", object)

    class Options(options):  # type: ignore[misc]  # C++ code takes no others
        def __init__(
            self,
            is_high_priority_stream: bool = False,  # noqa: FBT001, FBT002  # NCCL's
            **_: Any,
        ) -> None:
            super().__init__()
            self.is_high_priority_stream = is_high_priority_stream
            self.config = SimpleNamespace()
            self._timeout = _NCCL_TIMEOUT

    for name in _NCCL_CLASSES:
        nccl = FakeType(name, (), {"Options": Options, "__module__": c10d.__name__})
        for owner in (torch.distributed, c10d):
            patches.set(owner, name, nccl)
    patches.set(c10d, "_NCCL_AVAILABLE", True)
    patches.set(torch.cuda.nccl, "version", lambda: _NCCL_VERSION)
    patches.set_existing(c10d, "default_pg_nccl_timeout", _NCCL_TIMEOUT)


def _patch_splitting(
    fake: Any, make: Callable[..., Any], c10d: Any, patches: Patches
) -> None:
    """Let a process group be split into smaller ones."""

    def split_group(_parent: Any = None, split_ranks: Any = (), *_: Any, **__: Any) -> Any:
        return c10d.new_group(split_ranks[0])

    def split(group: Any, _store: Any, ranks: Any, *_: Any, **__: Any) -> Any:
        return make(ranks.index(group.rank()), len(ranks))

    if not hasattr(fake, "split"):  # before torch 2.15, where NCCL's alone can
        for owner in (torch.distributed, c10d):
            patches.set_existing(owner, "split_group", split_group)
    # torch 2.15 makes a subgroup on one device by splitting the whole group; ranks outside of it
    # say so.
    patches.set(fake, "split", split)
    patches.set(fake, "perform_nocolor_split", lambda *_: None)


def _reducer_class(tracker: Tracker, real: type) -> type:
    """Make DDP's reducer allocate its buckets on the device of the parameters.

    C++ code takes those for the CPU's.
    """

    class Reducer(real):  # type: ignore[misc]
        def __init__(self, parameters: Any, *args: Any, **kwargs: Any) -> None:
            devices = (tensor.get_device() for tensor in parameters if tensor.is_cuda)
            self._buckets_device = next(devices, None)
            with tracker.choice.during(beside=self._buckets_device):
                super().__init__(parameters, *args, **kwargs)

        def _rebuild_buckets(self) -> Any:
            with tracker.choice.during(beside=self._buckets_device):
                return super()._rebuild_buckets()

    return Reducer
