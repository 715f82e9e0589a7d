"""The functions of torch._C that torch.cuda calls, answered by the simulated machine.

torch.cuda's own Python code stays as it is and calls, on a build without CUDA, what stands here:
everything is done at once, as it is written. The names are those of torch 2.6 to 2.15.
"""

import ctypes
import os
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from snapconv.notes import Note
from snapconv.simulation.kernels import group_tensors
from snapconv.simulation.machine import Machine
from snapconv.simulation.memory_pools import patch_pools, segments_of_pool
from snapconv.simulation.not_modelled import refusal
from snapconv.simulation.patches import (
    Patches,
    answer,
    answer_no,
    answer_yes,
    do_nothing,
    is_ordinal,
)
from snapconv.simulation.streams import DEVICE_TYPE, patch_streams

# The simulated device is an H100 where a script queries its abilities (bf16, tf32, flash
# attention).
_PROPERTIES = {
    "name": "simulated GPU (snapconv)",
    "major": 9,
    "minor": 0,
    "multi_processor_count": 132,
    "warp_size": 32,
    "max_threads_per_multi_processor": 2048,
    "regs_per_multiprocessor": 65536,
    "max_threads_per_block": 1024,
    "shared_memory_per_block": 49152,
    "shared_memory_per_block_optin": 232448,
    "shared_memory_per_multiprocessor": 233472,
    "clock_rate": 1980000,
    "memory_clock_rate": 2619000,
    "memory_bus_width": 5120,
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
    "gcnArchName": "",
    "L2_cache_size": 50 << 20,
    "uuid": "00000000-0000-0000-0000-000000000000",
}
# Texts of cudaGetErrorString (driver_types.h of CUDA 12).
_ERRORS = {
    0: "no error",
    1: "invalid argument",
    2: "out of memory",
    3: "initialization error",
    100: "no CUDA-capable device is detected",
    101: "invalid device ordinal",
    700: "an illegal memory access was encountered",
}
# What torch.cuda.nvtx calls.
_NVTX = (
    "rangePushA",
    "rangePop",
    "rangeStartA",
    "rangeEnd",
    "markA",
    "deviceRangeStart",
    "deviceRangeEnd",
)


def patch_cuda(machine: Machine, patches: Patches) -> None:
    """Give torch what a CUDA build has, on a machine with such devices."""
    for name, function in _functions(machine).items():
        patches.set(torch._C, f"_cuda_{name}", function)
    for name, function in _accelerator(machine).items():
        patches.set_existing(torch._C, f"_accelerator_{name}", function)
    # DeviceMesh, barriers and torch.get_device_module() ask here which kind of device there is.
    patches.set_existing(
        torch._C, "_get_accelerator", lambda check=False: torch.device("cuda")
    )
    patches.set_existing(torch._C, "_group_tensors_by_device_and_dtype", group_tensors)
    patches.wrap(torch._C._nn, "_parse_to", _parse_to)
    patches.set(torch.accelerator, "is_available", answer_yes)
    patches.set(torch.accelerator, "device_count", machine.device_count)
    _patch_module(machine, patches)
    # It would keep the number of another simulation (torch.manual_seed counts by it).
    patches.set_existing(torch.cuda, "_cached_device_count", None)
    patch_streams(machine, patches)
    patch_pools(machine, patches)
    with suppress(ValueError):  # Windows has other names
        _patch_device_guard(patches)


def _patch_device_guard(patches: Patches) -> None:
    """Let autograd's C++ code ask the CPU's guard which stream a CUDA device has.

    It asks that of each leaf that requires a gradient and says by itself that it is on such a
    device, as the fake tensors of torch.export do; where there is no CUDA it aborts the process
    (torch 2.6 to 2.15).
    """
    name = "_ZN3c104impl26device_guard_impl_registryE"
    table_type = ctypes.c_void_p * (DEVICE_TYPE + 1)
    guards = table_type.in_dll(ctypes.CDLL(torch._C.__file__), name)
    patches.callback(guards.__setitem__, DEVICE_TYPE, guards[DEVICE_TYPE])
    guards[DEVICE_TYPE] = guards[0]


def _functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    """List what torch._C has for CUDA, by name without ``_cuda_``."""
    return {
        **_device_functions(machine),
        **_stream_functions(machine),
        **_memory_functions(machine),
        **_history_functions(machine),
    }


def _device_functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    def current_device() -> int:
        return machine.current_device

    def can_access(device: int, peer: int) -> bool:
        return device != peer

    def synchronize() -> None:
        machine.synchronize()

    def set_sync_debug_mode(mode: int) -> None:
        machine.sync_debug_mode = mode

    def get_sync_debug_mode() -> int:
        return machine.sync_debug_mode

    return {
        "init": do_nothing,
        "getArchFlags": answer("sm_90"),
        "sleep": do_nothing,
        "ipc_collect": do_nothing,
        "set_sync_debug_mode": set_sync_debug_mode,
        "get_sync_debug_mode": get_sync_debug_mode,
        "getCompiledVersion": answer(0),
        "getCurrentBlasHandle": answer(1),
        "getCurrentSolverHandle": answer(1),
        "getDeviceCount": machine.device_count,
        "getDevice": current_device,
        "setDevice": machine.exchange_device,
        "canDeviceAccessPeer": can_access,
        "synchronize": synchronize,
    }


def _stream_functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    def stream(stream_id: int, index: int | None) -> tuple[int, int, int]:
        return stream_id, machine.device(index).index, DEVICE_TYPE

    def raw_stream(index: int | None) -> int:
        return machine.device(index).stream

    def current_stream(index: int | None) -> tuple[int, int, int]:
        return stream(raw_stream(index), index)

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        machine.current_device = device_index
        machine.device(device_index).stream = stream_id

    return {
        "isCurrentStreamCapturing": answer_no,
        "getCurrentStream": current_stream,
        "getDefaultStream": partial(stream, 0),
        "getStreamFromExternal": stream,
        "getCurrentRawStream": raw_stream,
        "setStream": set_stream,
    }


def _memory_functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    def allocate(n_bytes: int, stream: int) -> int:
        device = machine.device(None)
        before = device.stream
        device.stream = stream
        try:
            return machine.malloc(device.index, n_bytes)
        finally:
            device.stream = before

    def enable(value: bool) -> None:  # noqa: FBT001
        if not value:
            refusal("torch.cuda.caching_allocator_enable(False)")()

    return {
        "memoryStats": machine.memory_stats,
        "cudaCachingAllocator_raw_alloc": allocate,
        "cudaCachingAllocator_raw_delete": machine.free_addr,
        "cudaCachingAllocator_enable": enable,
        "resetPeakMemoryStats": machine.reset_peaks,
        "resetPeakHostMemoryStats": do_nothing,
        "resetAccumulatedMemoryStats": machine.reset_accumulated,
        "resetAccumulatedHostMemoryStats": do_nothing,
        "emptyCache": machine.empty_cache,
        "cudaCachingAllocator_is_enabled": answer_yes,
        "cudaCachingAllocator_set_allocator_settings": machine.set_settings,
        "setMemoryFraction": machine.set_fraction,
        "getMemoryFraction": machine.fraction,
        "getAllocatorBackend": answer("native"),
        "attach_out_of_memory_observer": machine.observers.append,
    }


def _history_functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    history = machine.history

    def record_as_before(is_on: bool, _: Any, max_entries: int, *__: Any) -> None:  # noqa: FBT001
        # torch still accepts the arguments of 2.0; those about stacks are ignored: Python frames
        # are kept.
        context = "all" if is_on else None
        machine.record_history(context, "all", "python", max_entries)

    def snapshot(request: Any = None) -> dict[str, Any]:
        # torch.cuda.memory_snapshot() passes the two numbers of a pool and whether it wants traces
        # (torch 2.13); others pass the pool or None, and want them.
        has_traces = request[2] if isinstance(request, tuple) and len(request) > 2 else True
        result = machine.snapshot(include_traces=has_traces)
        pool = tuple(request[:2]) if isinstance(request, tuple) else None
        result["segments"] = segments_of_pool(result["segments"], pool)
        if torch.__version__ >= (2, 14):
            # Pinned host memory has no model; torch has the keys also where none is recorded.
            result |= {"host_segments": [], "host_traces": []}
        return result

    return {
        "record_memory_history": machine.record_history,
        "record_memory_history_legacy": record_as_before,
        "memorySnapshot": snapshot,
        "setMemoryMetadata": history.set_user_metadata,
        "getMemoryMetadata": history.user_metadata,
        "memoryMetadataSupported": answer_yes,
        "annotateMemory": machine.annotate_block,
        "isHistoryEnabled": lambda: history.is_on,
    }


def _accelerator(machine: Machine) -> dict[str, Callable[..., Any]]:
    """List what torch._C has for the current accelerator, by name without ``_accelerator_``."""
    return {
        "getAccelerator": lambda: torch.device("cuda"),
        "getDefaultGenerator": lambda index: torch.cuda.default_generators[index],
        "getDeviceIndex": lambda: machine.current_device,
        "setDeviceIndex": machine.exchange_device,
        "exchangeDevice": machine.exchange_device,
        "maybeExchangeDevice": machine.exchange_device,
        "synchronizeDevice": machine.synchronize,
        "getStream": torch.cuda.current_stream,
        "setStream": torch.cuda.set_stream,
        "isAllocatorInitialized": answer_yes,
        "emptyCache": machine.empty_cache,
        "emptyHostCache": do_nothing,
        "getDeviceStats": machine.memory_stats,
        "getMemoryInfo": machine.free_and_total,
        "resetPeakStats": machine.reset_peaks,
        "resetAccumulatedStats": machine.reset_accumulated,
        "setAllocatorSettings": machine.set_settings,
        "getAllocatorSettings": answer(""),
    }


def _patch_module(machine: Machine, patches: Patches) -> None:
    """Replace what torch.cuda decided when it was imported without CUDA."""
    cuda = torch.cuda
    pid = os.getpid()
    properties = SimpleNamespace(**_PROPERTIES, total_memory=machine.options.total_bytes)
    answers = {
        "_initialized": True,
        "_queued_calls": [],
        "_cudart": _runtime(machine),
        "_is_in_bad_fork": lambda: os.getpid() != pid,
        "_exchange_device": machine.exchange_device,
        # Another function: torch.compile keeps a table of both and wants none of them twice.
        "_maybe_exchange_device": lambda index: machine.exchange_device(index),
        "device_count": machine.device_count,
        "_get_device_properties": answer(properties),
        "device_memory_used": partial(_used_bytes, machine),
        "list_gpu_processes": partial(_list_processes, machine),
    }
    for name, value in answers.items():
        patches.set(cuda, name, value)
    patches.set(cuda.memory, "list_gpu_processes", cuda.list_gpu_processes)
    for name, function in _COPIES.items():
        patches.set(torch._C, name, function)
    patches.set(torch._C, "_has_cuda", value=True)
    patches.set_existing(torch.backends.cuda, "is_built", answer_yes)
    # cuDNN's own operations do not exist here: torch takes its native ones.
    patches.set_existing(torch.backends.cudnn, "is_acceptable", answer_no)
    # As without a profiler attached.
    nvtx_functions = dict.fromkeys(_NVTX, answer(0))
    patches.set(cuda.nvtx, "_nvtx", SimpleNamespace(**nvtx_functions))
    patches.set_existing(cuda.graphs, "_cuda_isCurrentStreamCapturing", answer_no)
    # As with a build without NCCL: torch copies and adds instead.
    patches.set(cuda.nccl, "is_available", answer_no)
    patches.set_existing(cuda.gds, "is_available", answer_no)


def _runtime(machine: Machine) -> SimpleNamespace:
    """Make what torch.cuda.cudart() returns: functions of CUDA's runtime that torch binds."""

    class CudaError(int):
        success = 0

    return SimpleNamespace(
        cudaMemGetInfo=machine.free_and_total,
        cudaError=CudaError,
        cudaGetErrorString=lambda code: _ERRORS.get(int(code), "unrecognized error code"),
        cudaProfilerStart=answer(0),
        cudaProfilerStop=answer(0),
        # Pinning changes nothing that is modelled.
        cudaHostRegister=answer(0),
        cudaHostUnregister=answer(0),
        cudaStreamCreate=refusal("torch.cuda.cudart().cudaStreamCreate"),
        cudaStreamDestroy=refusal("torch.cuda.cudart().cudaStreamDestroy"),
    )


def _used_bytes(machine: Machine, device: Any = None) -> int:
    index = machine.ordinal("cuda" if device is None else device)
    free_bytes, total_bytes = machine.free_and_total(index)
    return total_bytes - free_bytes


def _list_processes(machine: Machine, device: Any = None) -> str:
    """Write what torch.cuda.list_gpu_processes does where this process is the only one."""
    index = machine.ordinal("cuda" if device is None else device)
    mebibytes = _used_bytes(machine, index) / (1 << 20)
    return f"GPU:{index}\nprocess {os.getpid():>10d} uses {mebibytes:>12.3f} MB GPU memory"


def _scatter(
    tensor: Any, devices: Any, chunk_sizes: Any, dim: int, streams: Any
) -> tuple[Any, ...]:
    """Do what DataParallel's C++ does: one chunk to each device."""
    if chunk_sizes is None:
        chunks = tensor.chunk(len(devices), dim)
    else:
        chunks = tensor.split(chunk_sizes, dim)
    pairs = zip(chunks, devices, strict=False)
    return tuple(chunk.to(f"cuda:{index}") for chunk, index in pairs)


def _broadcast(tensor: Any, devices: Any) -> list[Any]:
    return [tensor.to(f"cuda:{index}") for index in devices]


def _broadcast_coalesced(tensors: Any, devices: Any, buffer_size: int) -> list[Any]:
    copies = [_broadcast(tensor, devices) for tensor in tensors]
    return list(map(list, zip(*copies, strict=True)))


def _gather(tensors: Any, dim: int, destination: int | None) -> Any:
    """Concatenate on a device; -1 is the CPU, None the current device."""
    index = torch.cuda.current_device() if destination is None else destination
    device = "cpu" if index < 0 else f"cuda:{index}"
    return torch.cat([tensor.to(device) for tensor in tensors], dim)


# torch/csrc/cuda/comm.cpp, without buffers of its own.
_COPIES = {
    "_scatter": _scatter,
    "_broadcast": _broadcast,
    "_broadcast_coalesced": _broadcast_coalesced,
    "_gather": _gather,
}


def _parse_to(real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Let ``.to(0)`` and ``.to(tensor)`` mean simulated devices: C++ code sees the CPU's values."""
    model = args[0] if args else kwargs.get("tensor")
    if isinstance(model, torch.Tensor):
        options = {key: value for key, value in kwargs.items() if key != "tensor"}
        return real(model.device, model.dtype, *args[1:], **options)
    if args and is_ordinal(args[0]):
        args = (torch.device("cuda", args[0]), *args[1:])
    if is_ordinal(kwargs.get("device")):
        kwargs = kwargs | {"device": torch.device("cuda", kwargs["device"])}
    return real(*args, **kwargs)


_GRAPHS_AS_EAGER = Note(
    "graphs-as-eager",
    "what CUDA graphs capture ran once, as it is written: their own memory pool is not in the "
    "capture, and a replay does nothing, so that what it would compute stays as it was",
)
# What names a pool in torch: a pair of numbers.
_POOL = (0, 1)


def patch_graphs(machine: Machine, patches: Patches) -> None:
    """Let torch.cuda.graph and what is built on it run without graphs.

    A program that makes a graph gets a note: the pool of its graphs is not modelled.
    """
    note_graphs = partial(machine.note_not_modelled, "CUDA graphs", _GRAPHS_AS_EAGER)

    class CUDAGraph:
        """A graph of nothing. A class, since libraries annotate ``CUDAGraph | None``."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            note_graphs()
            return super().__new__(cls)

        pool = answer(_POOL)
        pools = answer([_POOL])
        capture_begin = capture_end = instantiate = replay = reset = do_nothing
        enable_debug_mode = debug_dump = do_nothing

    class Graph(CUDAGraph):
        """The graph of torch.accelerator, which captures as a context."""

        __enter__ = __exit__ = do_nothing

    CUDAGraph.__module__ = "torch.cuda.graphs"
    for name in vars(torch.cuda.CUDAGraph):
        if not (name.startswith("_") or hasattr(CUDAGraph, name)):
            setattr(CUDAGraph, name, refusal(f"torch.cuda.CUDAGraph.{name}"))
    for owner in (torch.accelerator, getattr(torch.accelerator, "graphs", None)):
        patches.set_existing(owner, "Graph", Graph)

    def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
        note_graphs()
        return callables

    graphs = torch.cuda.graphs
    for owner in (torch.cuda, graphs):
        patches.set_existing(owner, "CUDAGraph", CUDAGraph)
        patches.set_existing(owner, "make_graphed_callables", make_graphed_callables)
    patches.set_existing(graphs, "_graph_pool_handle", answer(_POOL))
    patches.set(torch._C, "_host_emptyCache", do_nothing)
    # A stream of the simulation must not outlive it.
    patches.set(graphs.graph, "default_capture_stream", None)


def patch_annotations(machine: Machine, patches: Patches) -> None:
    """Note the begin and the end of every range, also of torch's optimizers and loaders."""

    def enter(real: Callable[..., Any], span: Any) -> Any:
        result = real(span)
        machine.annotate(span.name, "START")
        return result

    def leave(real: Callable[..., Any], span: Any, *error: Any) -> Any:
        machine.annotate(span.name, "END")
        return real(span, *error)

    patches.wrap(torch.autograd.profiler.record_function, "__enter__", enter)
    patches.wrap(torch.autograd.profiler.record_function, "__exit__", leave)
