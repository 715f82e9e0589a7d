"""torch.accelerator (2.6 and later), whose answers come from C++, for the simulated devices."""

from typing import Any

from snapconv.recorder.simulation.machine import Machine
from snapconv.recorder.simulation.patches import Patches


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
        "getStream": lambda index: torch.cuda.current_stream(index),
        "setStream": lambda stream: torch.cuda.set_stream(stream),
        "synchronizeDevice": machine.synchronize,
        "isAllocatorInitialized": lambda: True,
        "emptyCache": machine.empty_cache,
        "getDeviceStats": machine.memory_stats,
        "getMemoryInfo": machine.free_and_total,
        "resetPeakStats": machine.reset_peaks,
        "setAllocatorSettings": machine.set_settings,
        "resetAccumulatedStats": lambda index: machine.device(index).statistics.reset_accumulated(),
    }
    for name, answer in answers.items():
        patches.set_existing(torch._C, f"_accelerator_{name}", answer)
    if hasattr(torch, "accelerator"):
        patches.set_existing(torch.accelerator, "is_available", lambda: True)
        patches.set_existing(torch.accelerator, "device_count", lambda: len(machine.devices))
