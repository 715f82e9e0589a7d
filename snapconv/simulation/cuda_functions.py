"""torch._C's functions for CUDA and for accelerators, answered by the simulated machine.

torch.cuda's own Python code stays as it is and finds, on a build without CUDA, the functions that it calls.
The names are those of torch 2.5 to 2.15; torch.accelerator came with 2.6.
"""

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from snapconv.simulation.cuda_classes import CUDA_DEVICE_TYPE, stream_classes
from snapconv.simulation.history import Statistics
from snapconv.simulation.machine import DEFAULT_TOTAL_BYTES, Machine
from snapconv.simulation.patches import KEEP_ORIGINAL, Patches, is_ordinal

DEVICE_NAME = "simulated GPU (snapconv)"
# The simulated device is an H100 where a script queries its abilities (bf16, tf32, flash attention).
_CAPABILITY = (9, 0)
_N_MULTIPROCESSORS = 132

# What a function answers where ours fails and None would not do: as a device with nothing on it would.
# Never what torch has there: that of a build with CUDA would look for a driver.
_FALLBACKS: dict[str, Any] = {
    "getDeviceCount": 1,
    "getDevice": 0,
    "memoryStats": Statistics().as_nested_dict([], max_split_size=-1),
    "memorySnapshot": {"segments": [], "device_traces": []},
    "getMemoryFraction": 1.0,
    "getAllocatorBackend": "native",
    "cudaCachingAllocator_is_enabled": True,
    "getCurrentStream": (0, 0, CUDA_DEVICE_TYPE),
    "getDefaultStream": (0, 0, CUDA_DEVICE_TYPE),
    "getStreamFromExternal": (0, 0, CUDA_DEVICE_TYPE),
    "getCurrentRawStream": 0,
    "isCurrentStreamCapturing": False,
    "isHistoryEnabled": True,
    "canDeviceAccessPeer": True,
    "getCompiledVersion": 0,
    "hostMemoryStats": {},
}


def bind(machine: Machine, patches: Patches) -> None:
    """Give torch._C and torch.cuda what a CUDA build has."""
    import torch

    for group in (_devices, _memory, _recording, _history, _streams, _others):
        for name, function in group(machine).items():
            patches.set(torch._C, f"_cuda_{name}", function, fallback=_FALLBACKS.get(name))
    _patch_cuda(machine, patches, torch)
    _patch_streams(machine, patches, torch)


def _devices(machine: Machine) -> dict[str, Callable[..., Any]]:
    def set_device(index: int) -> None:
        machine.current_device = machine.checked(index)

    return {
        "init": lambda: None,
        "getDeviceCount": lambda: len(machine.devices),
        "getDevice": lambda: machine.current_device,
        "setDevice": set_device,
        "canDeviceAccessPeer": lambda device, peer: device != peer,
        "synchronize": lambda: machine.synchronize(),
        "getArchFlags": lambda: None,
        "getCompiledVersion": lambda: 0,
    }


def _memory(machine: Machine) -> dict[str, Callable[..., Any]]:
    def set_fraction(fraction: float, index: int) -> None:
        machine.set_fraction(index, fraction)

    return {
        "memoryStats": machine.memory_stats,
        "resetPeakMemoryStats": lambda index: machine.reset_peaks(index),
        "resetAccumulatedMemoryStats": lambda index: machine.device(index).statistics.reset_accumulated(),
        "emptyCache": machine.empty_cache,
        "cudaCachingAllocator_is_enabled": lambda: True,
        "cudaCachingAllocator_set_allocator_settings": machine.set_settings,
        "setMemoryFraction": set_fraction,
        "getMemoryFraction": lambda index: 1.0,
        "getAllocatorBackend": lambda: "native",
        "attach_out_of_memory_observer": machine.observers.append,
        "ipc_collect": lambda: None,
    }


def _recording(machine: Machine) -> dict[str, Callable[..., Any]]:
    history = machine.history

    def record(  # torch's signature
        enabled: str | None,
        context: str | None,
        stacks: str,
        max_entries: int,
        clear_history: bool = False,  # noqa: FBT001, FBT002
        compile_context: bool = False,  # noqa: FBT001, FBT002
        global_record_annotations: bool = False,  # noqa: FBT001, FBT002
        skip_actions: Any = (),
        *_: Any,
    ) -> None:
        # What follows since torch 2.14 requests the history of pinned host memory, which is not simulated.
        machine.switch_history(
            history.switch,
            enabled,
            context,
            stacks,
            max_entries,
            clear_history=clear_history,
            skip_actions=skip_actions,
        )

    def record_legacy(
        enabled: bool,  # noqa: FBT001
        record_context: bool,  # noqa: FBT001
        max_entries: int,
        trace_context: bool,  # noqa: FBT001
        has_cpp: bool,  # noqa: FBT001
        *_: Any,
    ) -> None:
        machine.switch_history(
            history.switch_legacy, enabled, record_context, max_entries, trace_context, has_cpp
        )

    return {"record_memory_history": record, "record_memory_history_legacy": record_legacy}


def _history(machine: Machine) -> dict[str, Callable[..., Any]]:
    history = machine.history

    def snapshot(request: Any = None) -> dict[str, Any]:
        has_traces = request[2] if isinstance(request, tuple) and len(request) > 2 else True
        return machine.snapshot(include_traces=has_traces)

    def set_metadata(text: str) -> None:
        history.user_metadata = text

    return {
        "memorySnapshot": snapshot,
        "setMemoryMetadata": set_metadata,
        "getMemoryMetadata": lambda: history.user_metadata,
        "allocationTraceback": machine.traceback_of,
        "isHistoryEnabled": lambda: history.is_on,
    }


def _streams(machine: Machine) -> dict[str, Callable[..., Any]]:
    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        machine.current_device = device_index
        machine.device(device_index).stream = stream_id

    def current(index: int) -> tuple[int, int, int]:
        device = machine.device(index)
        return device.stream, device.index, CUDA_DEVICE_TYPE

    return {
        "getCurrentStream": current,
        "getDefaultStream": lambda index: (0, machine.device(index).index, CUDA_DEVICE_TYPE),
        "getStreamFromExternal": lambda pointer, index: (
            pointer,
            machine.device(index).index,
            CUDA_DEVICE_TYPE,
        ),
        "setStream": set_stream,
        "getCurrentRawStream": lambda index: machine.device(index).stream,
        "isCurrentStreamCapturing": lambda: False,
    }


def _others(machine: Machine) -> dict[str, Callable[..., Any]]:
    mode = [0]
    return {
        "sleep": lambda cycles: None,
        "getCurrentBlasHandle": lambda: 1,
        "getCurrentSolverHandle": lambda: 1,
        "set_sync_debug_mode": lambda value: mode.__setitem__(0, value),
        "get_sync_debug_mode": lambda: mode[0],
        "hostMemoryStats": dict,
        "resetPeakHostMemoryStats": lambda: None,
        "resetAccumulatedHostMemoryStats": lambda: None,
    }


def _patch_cuda(machine: Machine, patches: Patches, torch: Any) -> None:
    """Replace what torch.cuda decided when it was imported without CUDA."""
    cuda = torch.cuda
    pid = os.getpid()

    def exchange(index: int | None) -> int:
        before = machine.current_device
        if index is not None and index >= 0:
            machine.current_device = machine.checked(index)
        return before

    patches.set(cuda, "_initialized", True)
    patches.set(cuda, "_queued_calls", [])
    patches.set(cuda, "_cudart", _runtime(machine, patches))
    patches.set(cuda, "_is_in_bad_fork", lambda: os.getpid() != pid, fallback=False)
    patches.set(cuda, "_exchange_device", exchange, fallback=0)
    # Another function: torch.compile keeps a table of both and wants none of them twice.
    patches.set(cuda, "_maybe_exchange_device", lambda index: exchange(index), fallback=0)
    patches.set(cuda, "device_count", lambda: len(machine.devices), fallback=1)
    properties = _properties(machine)
    patches.set(cuda, "_get_device_properties", lambda index: properties, fallback=properties)
    patches.set(
        cuda, "default_generators", tuple(torch.Generator() for _ in machine.devices)
    )  # they drive nothing: the CPU's generator does
    patches.set(torch._C, "_scatter", _scatter)
    patches.set(torch._C, "_has_cuda", True)
    patches.set_existing(torch.backends.cuda, "is_built", lambda: True)
    # cuDNN's own operations do not exist here: torch takes its native ones.
    patches.set_existing(torch.backends.cudnn, "is_acceptable", lambda tensor: False)
    patches.set_existing(cuda, "nvtx", _nvtx())
    # Optimizers of torch 2.5 ask for it, in a build for CUDA of the driver.
    patches.set_existing(cuda.graphs, "_cuda_isCurrentStreamCapturing", lambda: False, fallback=False)


def _runtime(machine: Machine, patches: Patches) -> SimpleNamespace:
    """Make what torch.cuda.cudart() returns."""
    total_bytes = machine.options.total_bytes
    error = SimpleNamespace(success=0)
    return SimpleNamespace(
        cudaMemGetInfo=patches.with_fallback(machine.free_and_total, lambda *_: (total_bytes, total_bytes)),
        cudaError=error,
        cudaGetErrorString=lambda code: "no error",
        cudaProfilerStart=lambda: error.success,
        cudaProfilerStop=lambda: error.success,
    )


def _patch_streams(machine: Machine, patches: Patches, torch: Any) -> None:
    made = stream_classes(machine)
    patches.set_existing(torch, "Stream", made.stream)
    patches.set_existing(torch, "Event", made.event)
    for owner in (torch.cuda, torch.cuda.streams):
        patches.set_existing(owner, "Stream", made.cuda_stream)
        patches.set_existing(owner, "Event", made.cuda_event)
        patches.set_existing(owner, "ExternalStream", made.external_stream)


def _properties(machine: Machine) -> SimpleNamespace:
    major, minor = _CAPABILITY
    return SimpleNamespace(
        name=DEVICE_NAME,
        major=major,
        minor=minor,
        total_memory=machine.options.total_bytes,
        multi_processor_count=_N_MULTIPROCESSORS,
        warp_size=32,
        max_threads_per_multi_processor=2048,
        regs_per_multiprocessor=65536,
        shared_memory_per_block=49152,
        is_integrated=0,
        is_multi_gpu_board=0,
        gcnArchName="",
        L2_cache_size=50 << 20,
        uuid="00000000-0000-0000-0000-000000000000",
    )


def _nvtx() -> SimpleNamespace:
    """Make torch.cuda.nvtx do nothing, as without a profiler attached."""
    from contextlib import contextmanager

    @contextmanager
    def in_range(*args: object, **kwargs: object) -> Any:
        yield

    nothing = lambda *args, **kwargs: 0  # noqa: E731
    return SimpleNamespace(
        range=in_range,
        range_push=nothing,
        range_pop=nothing,
        range_start=nothing,
        range_end=nothing,
        mark=nothing,
    )


def _scatter(tensor: Any, devices: Any, chunk_sizes: Any, dim: int, streams: Any) -> tuple[Any, ...]:
    """Do what DataParallel's C++ does: one chunk to each device."""
    chunks = tensor.chunk(len(devices), dim) if chunk_sizes is None else tensor.split(chunk_sizes, dim)
    return tuple(chunk.to(f"cuda:{index}") for chunk, index in zip(chunks, devices, strict=False))


# The same for accelerators. Only which one there is must be torch's own answer.
_ACCELERATOR_FALLBACKS: dict[str, Any] = {
    "getAccelerator": KEEP_ORIGINAL,
    "getDeviceIndex": 0,
    "exchangeDevice": 0,
    "maybeExchangeDevice": 0,
    "isAllocatorInitialized": True,
    "getDeviceStats": Statistics().as_nested_dict([], max_split_size=-1),
    "getMemoryInfo": (DEFAULT_TOTAL_BYTES, DEFAULT_TOTAL_BYTES),
    "getAllocatorSettings": "",
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
        fallback = _ACCELERATOR_FALLBACKS.get(name)
        patches.set_existing(torch._C, f"_accelerator_{name}", answer, fallback=fallback)
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
