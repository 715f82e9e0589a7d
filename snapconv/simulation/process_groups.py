"""torch.distributed in the one simulated process: one rank of a job, with NCCL or without.

The rendezvous, the store and the process groups of a simulated job wait for nobody, as no other
process is there; ``collectives`` does the work. Without a simulated job several ranks are refused,
except with gloo: then each process has its simulated GPU, and gloo sends all tensors with values.
"""

import os
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import timedelta
from functools import partial, wraps
from importlib import import_module
from inspect import signature
from types import SimpleNamespace
from typing import Any

import torch

from snapconv.errors import RecorderError
from snapconv.guest.import_hook import when_imported
from snapconv.notes import Note
from snapconv.simulation.machine import Machine
from snapconv.simulation.patches import Patches
from snapconv.simulation.placements import tensors_in
from snapconv.simulation.places import shown, users_place
from snapconv.simulation.simulated_job import RankOfJob
from snapconv.simulation.stores import forget_stores, store_class
from snapconv.simulation.tracker import Tracker

_SLUG = "simulated-nccl"
_ONE_RANK = Note(
    _SLUG,
    "the process group is simulated, with this one rank: collectives are copies, and "
    "what NCCL allocates for itself is not in the capture",
)
_UNSENT = Note(
    _SLUG,
    "gloo sends tensors of the CPU alone, as nothing is computed on the simulated GPUs: there each "
    "other rank is taken to hold what this one holds",
)
_RANDOM = "torch.distributed.tensor._random"
_SHARDING = "torch.distributed.tensor.debug"
_CHECKPOINTS = "torch.distributed.checkpoint.utils"
_PIPELINES = "torch.distributed.pipelining.stage"
_ZERO = "torch.distributed.optim.zero_redundancy_optimizer"
# Where DeepSpeed asks whether all ranks have the same numbers.
_AGREEMENT = "deepspeed.runtime.zero.utils"
# Python objects that one rank sends to others.
_OBJECTS = ("broadcast_object_list", "scatter_object_list", "recv_object_list")
# torch 2.15 has three of them, and makes the second where a script names "nccl".
_NCCL_CLASSES = ("ProcessGroupNCCL", "ProcessGroupNCCL2", "ProcessGroupNCCLLazy")
# What torch.cuda.nccl.version() answers: one with all that torch requires.
_NCCL_VERSION = (2, 27, 3)
_NCCL_TIMEOUT = timedelta(minutes=10)


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
    patches.enter_context(when_imported(_RANDOM, partial(_patch_random, patches)))
    nccl = _patch_nccl(distributed_c10d, patches)
    if tracker.machine.options.job is not None:
        patches.callback(forget_stores)
        patches.callback(_forget_shardings)
        for owner in (torch.distributed, distributed_c10d):
            patches.set_existing(owner, "ProcessGroupGloo", nccl)
            patches.set_existing(owner, "TCPStore", store_class())
            for name in _OBJECTS:
                patches.wrap(owner, name, partial(_objects_sent, tracker))
        patch = partial(_patch_checkpoints, patches)
        patches.enter_context(when_imported(_CHECKPOINTS, patch))
        patch = partial(_patch_pipelines, patches)
        patches.enter_context(when_imported(_PIPELINES, patch))
        patch = partial(_patch_zero, tracker, patches)
        patches.enter_context(when_imported(_ZERO, patch))
        patch = partial(_patch_agreement, patches)
        patches.enter_context(when_imported(_AGREEMENT, patch))


def has_other_processes(tracker: Tracker, args: Any) -> bool:
    """Say whether gloo sends the tensors to other processes.

    Where nothing is computed, those on the CPU alone: the others have no values to send.
    """
    groups = torch.distributed
    if tracker.machine.options.job is not None or not groups.is_initialized():
        return False
    if groups.get_world_size() == 1 or groups.get_backend() != "gloo":
        return False
    is_computed = tracker.machine.options.compute
    return is_computed or all(tensor.device.type == "cpu" for tensor in tensors_in(args))


def _init_process_group(
    tracker: Tracker, real: Callable[..., Any], *args: Any, **kwargs: Any
) -> None:
    bound = signature(real).bind(*args, **kwargs)
    arguments = bound.arguments
    n_ranks = _world_size(arguments)
    job = tracker.machine.options.job
    if job is not None:
        if n_ranks != job.n_ranks:
            raise RecorderError(
                f"the program makes a process group of {n_ranks} ranks, in a simulated job of "
                f"{job.n_ranks}: give --world-size {n_ranks}, or let it take WORLD_SIZE"
            )
        arguments |= {"rank": job.rank, "world_size": n_ranks, "store": store_class()()}
        arguments["init_method"] = None
    # Over gloo, several processes have a simulated GPU each.
    elif n_ranks > 1 and arguments.get("backend") != "gloo":
        start = " without torchrun" if "TORCHELASTIC_RUN_ID" in os.environ else ""
        raise RecorderError(
            f"a simulation is one process, and this is a job of {n_ranks} ranks: start it{start} "
            f"with --world-size {n_ranks} to record one of them, or record on GPUs"
        )
    real(*bound.args, **bound.kwargs)
    if job is not None and n_ranks > 1:
        tracker.machine.note_not_modelled("NCCL", _note_of_job(job))
    elif n_ranks <= 1:
        tracker.machine.note_not_modelled("NCCL", _ONE_RANK)
    elif not tracker.machine.options.compute:
        tracker.machine.notes.setdefault(_SLUG, _UNSENT)


def _forget_shardings() -> None:
    """Let DTensor forget its plans: the next job's mesh may be equal, and its groups are others."""
    if _SHARDING.rpartition(".")[0] in sys.modules:
        # As the process ends, torch has taken away what this module wants as it is imported.
        with suppress(AttributeError):
            import_module(_SHARDING)._clear_sharding_prop_cache()


def _patch_random(patches: Patches) -> None:
    """Leave the state of the generator alone, of which DTensor knows what CUDA's looks like."""

    def distribute_region(*_: Any, **__: Any) -> Any:
        return nullcontext()

    tracker = sys.modules[_RANDOM].OffsetBasedRNGTracker
    patches.set_existing(tracker, "_distribute_region", distribute_region)


def _patch_checkpoints(patches: Patches) -> None:
    """Let a rank plan its part of a checkpoint alone: no rank collects the plans of the others."""

    def plan_alone(real: Any, plans: Any, group: Any, *_: Any, **__: Any) -> None:
        real(plans, group, use_dist=False, coordinator_rank=0)

    patches.wrap(sys.modules[_CHECKPOINTS]._DistWrapper, "__init__", plan_alone)


def _patch_pipelines(patches: Patches) -> None:
    """Refuse stages of a pipeline: they take their shapes from what their neighbours send."""

    def refuse(*_: Any, **__: Any) -> None:
        raise RecorderError(
            "stages of torch.distributed.pipelining take shapes from their neighbours, and a "
            "simulated job is one rank alone: record a stage's model without the pipeline, or on "
            "GPUs"
        )

    patches.set_existing(sys.modules[_PIPELINES]._PipelineStageBase, "__init__", refuse)


def _patch_agreement(patches: Patches) -> None:
    """Let a rank agree with rank 0 about numbers: it has a placeholder where those arrive."""

    def agreed(numbers: list[int]) -> list[int]:
        return numbers

    module = sys.modules[_AGREEMENT]
    for name in ("assert_lst_len_same_as_other_ranks", "get_lst_from_rank0"):
        patches.set_existing(module, name, agreed)


def _objects_sent(tracker: Tracker, real: Any, *args: Any, **kwargs: Any) -> Any:
    """Send objects to others; what another rank would send is what the lists have already."""
    groups = torch.distributed
    arguments = signature(real).bind(*args, **kwargs).arguments
    sender = arguments.get("src") or 0
    if arguments.get("group_src") is not None:
        group = arguments.get("group") or groups.group.WORLD
        sender = groups.get_global_rank(group, arguments["group_src"])
    if sender == groups.get_rank():
        return real(*args, **kwargs)
    tracker.machine.objects_of_others.setdefault(users_place())
    return sender if real.__name__ == "recv_object_list" else None


def _patch_zero(tracker: Tracker, patches: Patches) -> None:
    """Let ZeroRedundancyOptimizer collect this rank's states alone."""
    module = sys.modules[_ZERO]
    optimizers: list[Any] = []

    def collect(real: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        optimizers.append(optimizer)
        try:
            return real(optimizer, *args, **kwargs)
        finally:
            optimizers.pop()

    def send(real: Any, states: Any, src_rank: int, *args: Any, **kwargs: Any) -> Any:
        if src_rank == torch.distributed.get_rank() or not optimizers:
            return real(states, src_rank, *args, **kwargs)
        tracker.machine.objects_of_others.setdefault(users_place())
        return _initial_state_dict(optimizers[-1], src_rank)

    patches.wrap(module, "_broadcast_object", send)
    patches.wrap(module.ZeroRedundancyOptimizer, "consolidate_state_dict", collect)


def _initial_state_dict(optimizer: Any, rank: int) -> dict[str, Any]:
    """Return what the optimizer of another rank sends before its first step."""
    rank = torch.distributed.get_group_rank(optimizer.process_group, rank)
    groups: list[dict[str, Any]] = []
    n_parameters = 0
    for group in optimizer._partition_parameters()[rank]:
        n_added = len(group["params"])
        groups.append(group | {"params": [*range(n_parameters, n_parameters + n_added)]})
        n_parameters += n_added
    return {"state": {}, "param_groups": groups}


def object_notes(machine: Machine) -> tuple[Note, ...]:
    """Name the lines that received objects of other ranks."""
    if not machine.objects_of_others:
        return ()
    message = (
        f"at {shown(machine.objects_of_others)} another rank sends objects: those that this rank "
        "has there were left as they were, and branches on them may differ"
    )
    return (Note("objects-of-other-ranks", message),)


def _note_of_job(job: RankOfJob) -> Note:
    return Note(
        _SLUG,
        f"this is rank {job.rank} of {job.n_ranks}, alone in one process: each other rank is taken "
        "to hold what this one holds, so that collectives are copies, and values are not the "
        "job's; what NCCL allocates for itself is not in the capture",
    )


def _world_size(arguments: dict[str, Any]) -> int:
    """Return the number of ranks; 0 where nothing defines it: torch has a message for that."""
    world_size = arguments.get("world_size", -1)
    if world_size > 0:
        return int(world_size)
    match = re.search(r"[?&]world_size=(\d+)", arguments.get("init_method") or "")
    text = match[1] if match else os.environ.get("WORLD_SIZE", "")
    return int(text) if text.isdecimal() else 0


def _patch_nccl(c10d: Any, patches: Patches) -> type:
    """Put torch's fake process group in the place of NCCL's: it does nothing, and succeeds.

    Return the class.
    """
    fake: Any = torch._C._distributed_c10d.FakeProcessGroup
    make = getattr(fake, "_create_internal", fake)
    _patch_splitting(fake, make, c10d, patches)
    # NCCL's has one, to find ranks that are not in step.
    patches.set(fake, "_set_sequence_number_for_group", lambda _: None)
    patches.set(fake, "_get_sequence_number_for_group", lambda _: 0)

    class FakeType(type):
        def __call__(cls, _store: Any, rank: int, size: int, *_: Any, **__: Any) -> Any:
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
    return nccl


def _patch_splitting(
    fake: Any, make: Callable[..., Any], c10d: Any, patches: Patches
) -> None:
    """Let a process group be split into smaller ones."""

    def split_group(
        parent_pg: Any = None, split_ranks: Any = (), *_: Any, **__: Any
    ) -> Any:
        parent = parent_pg or c10d._get_default_group()
        ranks = next((ranks for ranks in split_ranks if parent.rank() in ranks), None)
        if ranks is None:
            return None
        return c10d.new_group([c10d.get_global_rank(parent, rank) for rank in ranks])

    def split(group: Any, _store: Any, ranks: Any, *_: Any, **__: Any) -> Any:
        return make(ranks.index(group.rank()), len(ranks))

    if not hasattr(fake, "split"):  # before torch 2.15, where NCCL's alone can
        for owner in (torch.distributed, c10d, torch.distributed.device_mesh):
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
