"""torch.distributed with the one process that is simulated: a job of one rank, with NCCL or without.

What NCCL would do with one rank is known without it: a collective leaves what it works on in place
as it is, and copies what has a place of its own to go to. More ranks are refused, except with gloo:
then each process has its simulated GPU, and tensors on the CPU go to the others.
"""

import os
import re
from collections.abc import Callable
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
    "the process group is simulated, with this one rank: collectives are copies, and what NCCL "
    "allocates for "
    "itself is not in the capture",
)
# torch 2.15 has three of them, and makes the second where a script names "nccl".
_NCCL_CLASSES = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
# What torch.cuda.nccl.version() answers: one with all that torch requires.
_NCCL_VERSION = (2, 27, 3)
_NCCL_TIMEOUT = timedelta(minutes=10)
# Those of torch.distributed._functional_collectives that return new tensors: with one rank, copies
# of their first argument. Where this one is a list, so is the result.
_FUNCTIONAL = ("all_", "broadcast", "reduce_scatter")


def patch_process_groups(tracker: Tracker, patches: Patches) -> None:
    """Let a process group of one rank work as with NCCL; do nothing where torch has no torch.distributed."""
    if not torch.distributed.is_available():
        return
    from torch.distributed import distributed_c10d

    real = distributed_c10d.init_process_group
    init = wraps(real)(partial(_init_process_group, tracker, real))
    for owner in (torch.distributed, distributed_c10d, torch.distributed.device_mesh):
        patches.set_existing(owner, "init_process_group", init)
    patches.set(torch.distributed, "Reducer", _reducer_class(tracker, torch.distributed.Reducer))
    _patch_nccl(distributed_c10d, patches)


def with_collectives(handle: Handler) -> Handler:
    """Handle the collectives of a group of one rank, by their schemas, and hand every other operation on."""

    def copied(tensor: Any) -> Any:
        return handle(
            torch.ops.aten.clone.default, (tensor,), {"memory_format": torch.contiguous_format}
        )

    def handle_all(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        namespace = func.namespace
        if namespace not in ("c10d", "_c10d_functional"):
            return handle(func, args, kwargs)
        name: str = func._schema.name.partition("::")[2]
        if namespace == "_c10d_functional":
            if name.endswith("_") or name.startswith("wait_"):
                return args[0]
            if name.startswith(_FUNCTIONAL) and not name.endswith("_out"):
                return map_tensors(args[0], copied)
        if namespace != "c10d" or name.startswith(("send", "recv")) or _has_other_ranks(args):
            return handle(func, args, kwargs)
        outputs = list(tensors_in(args[:1]))
        # Where the second argument has tensors too, the first receives them; else there is nobody
        # to receive from, and it stays as it is.
        if any("Tensor" in str(argument.type) for argument in func._schema.arguments[1:2]):
            for output, given in zip(outputs, tensors_in(args[1:2]), strict=True):
                handle(torch.ops.aten.copy_.default, (output, given.view_as(output)), {})
        n_returns = len(func._schema.returns)
        if n_returns == 0:
            return None
        return _done(outputs) if n_returns == 1 else (args[0], _done(outputs))

    return handle_all


def _has_other_ranks(args: Any) -> bool:
    """Return whether gloo takes the tensors to other processes: those on the CPU."""
    groups = torch.distributed
    is_gloo = (
        groups.is_initialized() and groups.get_world_size() > 1 and groups.get_backend() == "gloo"
    )
    return is_gloo and all(tensor.device.type == "cpu" for tensor in tensors_in(args))


def _done(result: list[Any]) -> Any:
    """Make what torch calls a Work, of something that is over already."""
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
        is_of_torchrun = "TORCHELASTIC_RUN_ID" in os.environ  # which sets the variables itself
        how = (
            "give torchrun --nproc-per-node 1" if is_of_torchrun else "set WORLD_SIZE=1 and RANK=0"
        )
        raise RecorderError(
            f"a simulation is one process, and this is a job of {n_ranks} ranks: {how} to see "
            f"what one rank "
            "of data parallel training needs, or record on GPUs"
        )
    real(*args, **kwargs)
    if n_ranks <= 1:
        tracker.machine.meet("NCCL", _ONE_RANK)


def _world_size(arguments: dict[str, Any]) -> int:
    """Find how many ranks there are to be; 0 where nothing defines it: torch has a message for that."""
    given = arguments.get("world_size", -1)
    if given > 0:
        return int(given)
    in_url = re.search(r"[?&]world_size=(\d+)", arguments.get("init_method") or "")
    text = in_url[1] if in_url else os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 0


def _patch_nccl(c10d: Any, patches: Patches) -> None:
    """Put torch's fake process group where NCCL's would be: it reports success, and does nothing."""
    fake: Any = torch._C._distributed_c10d.FakeProcessGroup
    make = getattr(fake, "_create_internal", fake)
    if not hasattr(fake, "split"):  # before torch 2.15, where NCCL's alone can
        for owner in (torch.distributed, c10d):
            patches.set_existing(
                owner,
                "split_group",
                lambda _parent=None, split_ranks=(), *_, **__: c10d.new_group(split_ranks[0]),
            )
    # NCCL's has one, to find ranks that are not in step.
    patches.set(fake, "_set_sequence_number_for_group", lambda _: None)
    patches.set(fake, "_get_sequence_number_for_group", lambda _: 0)

    # torch 2.15 makes a subgroup on one device by splitting the whole group; ranks outside of it
    # say so.
    patches.set(
        fake,
        "split",
        lambda group, _store, ranks, *_, **__: make(ranks.index(group.rank()), len(ranks)),
    )
    patches.set(fake, "perform_nocolor_split", lambda *_: None)

    class OfFake(type):
        def __call__(cls, _store: Any, rank: int, size: int, *_: Any) -> Any:
            return make(rank, size)

        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, fake)

    options: Any = getattr(fake, "Options", object)

    class Options(options):  # type: ignore[misc]  # C++ code takes no others
        def __init__(self, is_high_priority_stream: bool = False, **_: Any) -> None:  # noqa: FBT001, FBT002  # NCCL's
            super().__init__()
            self.is_high_priority_stream = is_high_priority_stream
            self.config = SimpleNamespace()
            self._timeout = _NCCL_TIMEOUT

    for name in _NCCL_CLASSES:
        nccl = OfFake(name, (), {"Options": Options, "__module__": c10d.__name__})
        for owner in (torch.distributed, c10d):
            patches.set(owner, name, nccl)
    patches.set(c10d, "_NCCL_AVAILABLE", True)
    patches.set(torch.cuda.nccl, "version", lambda: _NCCL_VERSION)
    patches.set_existing(c10d, "default_pg_nccl_timeout", _NCCL_TIMEOUT)


def _reducer_class(tracker: Tracker, real: type) -> type:
    """Make DDP's reducer have its buckets where the parameters are: C++ code takes those for the CPU's."""

    class Reducer(real):  # type: ignore[misc]
        def __init__(self, parameters: Any, *args: Any, **kwargs: Any) -> None:
            self._device_of_buckets = next((p.get_device() for p in parameters if p.is_cuda), None)
            with tracker.choice.during(beside=self._device_of_buckets):
                super().__init__(parameters, *args, **kwargs)

        def _rebuild_buckets(self) -> Any:
            with tracker.choice.during(beside=self._device_of_buckets):
                return super()._rebuild_buckets()

    return Reducer
