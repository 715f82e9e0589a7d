"""torch.accelerator (2.6 and later), whose answers come from C++, for the simulated devices."""

from collections.abc import Callable
from typing import Any

from snapconv.simulation.devices.machine import Machine
from snapconv.simulation.devices.statistics import Statistics
from snapconv.simulation.patches import WHAT_IS_THERE, Patches

# Answers where ours fails, as of a device with nothing on it: torch's own would look for a real one.
_OTHERWISE: dict[str, Any] = {
    "getDeviceIndex": 0,
    "setDeviceIndex": None,
    "exchangeDevice": 0,
    "maybeExchangeDevice": 0,
    "synchronizeDevice": None,
    "isAllocatorInitialized": True,
    "emptyCache": None,
    "getDeviceStats": Statistics().as_nested_dict([], max_split_size=-1),
    "resetPeakStats": None,
    "setAllocatorSettings": None,
    "getAllocatorSettings": "",
    "emptyHostCache": None,
    "resetAccumulatedStats": None,
}


def patch_accelerator(machine: Machine, patches: Patches) -> None:
    """Make CUDA the current accelerator."""
    import torch

    def exchange(index: int) -> int:
        before, machine.current_device = machine.current_device, index
        return before

    answers: dict[str, Any] = {
        "getAccelerator": lambda: torch.device("cuda"),
        "getDeviceIndex": lambda: machine.current_device,
        "setDeviceIndex": exchange,
        "exchangeDevice": exchange,
        "maybeExchangeDevice": exchange,
        "synchronizeDevice": machine.synchronize,
        "isAllocatorInitialized": lambda: True,
        "emptyCache": machine.empty_cache,
        "getDeviceStats": machine.memory_stats,
        "getMemoryInfo": machine.free_and_total,
        "resetPeakStats": machine.reset_peaks,
        "setAllocatorSettings": machine.set_settings,
        "getAllocatorSettings": lambda: "",
        "emptyHostCache": lambda: None,
        "resetAccumulatedStats": lambda index: machine.device(index).statistics.reset_accumulated(),
    }
    for name, answer in answers.items():
        otherwise = _OTHERWISE.get(name, WHAT_IS_THERE)
        patches.set_existing(torch._C, f"_accelerator_{name}", answer, otherwise=otherwise)
    # Not functions of ours, but torch's, whose parts are simulated.
    for name, of_torch in (("getStream", torch.cuda.current_stream), ("setStream", torch.cuda.set_stream)):
        if hasattr(torch._C, f"_accelerator_{name}"):
            patches.set_unguarded(torch._C, f"_accelerator_{name}", of_torch)
    # DeviceMesh, barriers and torch.get_device_module() ask here which kind of device there is.
    patches.set_existing(torch._C, "_get_accelerator", lambda check=False: torch.device("cuda"))
    hooks: dict[str, Any] = {
        "device_count": lambda: len(machine.devices),
        "get_current_device": lambda: machine.current_device,
        "set_current_device": exchange,
        "exchange_device": exchange,
        "maybe_exchange_device": exchange,
    }
    for name, answer in hooks.items():
        patches.set_existing(torch._C, f"_accelerator_hooks_{name}", answer)
    patches.wrap(torch._C._nn, "_parse_to", _with_ordinals)
    if hasattr(torch, "accelerator"):
        patches.set_existing(torch.accelerator, "is_available", lambda: True)
        patches.set_existing(torch.accelerator, "device_count", lambda: len(machine.devices))


def is_ordinal(value: Any) -> bool:
    """Whether a device argument is a bare number, which means the accelerator's device of that number."""
    return isinstance(value, int) and not isinstance(value, bool)


def _with_ordinals(real: Callable[..., Any]) -> Callable[..., Any]:
    """Let ``.to(0)`` mean the simulated device 0, and ``.to(tensor)`` the one where the tensor is simulated.

    C++ code has no accelerator, and sees where the tensor's values are.
    """
    import torch

    def parse_to(*args: Any, **kwargs: Any) -> Any:
        other = args[0] if args else kwargs.get("tensor")
        if isinstance(other, torch.Tensor):
            rest = {key: value for key, value in kwargs.items() if key != "tensor"}
            return real(other.device, other.dtype, *args[1:], **rest)
        if args and is_ordinal(args[0]):
            args = (torch.device("cuda", args[0]), *args[1:])
        if is_ordinal(kwargs.get("device")):
            kwargs = kwargs | {"device": torch.device("cuda", kwargs["device"])}
        return real(*args, **kwargs)

    return parse_to
