"""Members of torch.cuda and torch.accelerator without a model: each refuses in one sentence."""

import sys
from collections.abc import Callable
from typing import Any, NoReturn

from snapconv.guest.own_frames import for_program
from snapconv.simulation.legacy_types import TENSOR_TYPES
from snapconv.simulation.patches import Patches

# The functions and classes of each module, where torch has them; None: all that it exports.
_MEMBERS: dict[str, tuple[str, ...] | None] = {
    # Figures of NVML, other allocators, pinned host memory, the insides of graphs.
    "torch.cuda": (
        "utilization",
        "memory_usage",
        "temperature",
        "power_draw",
        "clock_rate",
        "CUDAPluggableAllocator",
        "change_current_allocator",
        "caching_allocator_disabled",
        "host_memory_stats",
        "host_memory_stats_as_nested_dict",
        "export_dot",
        "export_graph_data",
        "GreenContext",
    ),
    "torch.cuda.gds": ("gds_register_buffer", "gds_deregister_buffer", "GdsFile"),
    "torch.cuda.graphs": (
        "register_graph_capture_start_hook",
        "register_graph_capture_end_hook",
        "register_graph_instantiate_hook",
        "register_graph_replay_start_hook",
        "register_graph_replay_end_hook",
        "register_graph_destroy_hook",
    ),
    "torch.cuda.green_contexts": None,
    "torch.cuda.nccl": (
        "all_reduce",
        "reduce",
        "broadcast",
        "all_gather",
        "reduce_scatter",
        "unique_id",
        "init_rank",
    ),
    # Indices and values are tracked; what they make has no storage, and so no place.
    "torch.cuda.sparse": TENSOR_TYPES,
    "torch.cuda.tunable": None,
    "torch.accelerator": ("get_device_capability",),
}


def refusal(name: str) -> Callable[..., NoReturn]:
    """Make a function that raises the sentence about a member of torch."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise for_program(
            NotImplementedError(f"{name} is not modelled by the simulated device")
        )

    return refuse


def patch_not_modelled(patches: Patches) -> None:
    """Let every member without a model refuse, also where torch defines what it exports."""
    for module_name, listed in _MEMBERS.items():
        module = sys.modules.get(module_name)
        names = getattr(module, "__all__", ()) if listed is None else listed
        for name in names:
            member = getattr(module, name, None)
            if member is None:
                continue
            refuses = _refusing(member, f"{module_name}.{name}")
            for owner in (module, sys.modules.get(member.__module__)):
                patches.set_existing(owner, name, refuses)


def _refusing(member: Any, name: str) -> Any:
    """Make what stands for a function or a class; a class stays one, for annotations."""
    is_legacy_type = type(member).__name__ == "tensortype"
    if not (isinstance(member, type) or is_legacy_type):
        return refusal(name)
    methods: dict[str, Any] = {
        attribute: refusal(f"{name}.{attribute}")
        for attribute in getattr(member, "__dict__", ())
        if not attribute.startswith("_")
    }
    methods |= {"__init__": refusal(name), "__module__": member.__module__}
    return type(name.rpartition(".")[2], (), methods)
