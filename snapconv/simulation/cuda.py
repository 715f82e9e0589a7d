"""The functions of torch._C that torch.cuda calls, answered by the simulated machine.

torch.cuda's own Python code stays as it is and calls, on a build without CUDA, what stands here:
everything is done at once, as it is written. The names are those of torch 2.6 to 2.15.
"""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial, wraps
from itertools import count
from types import FunctionType, SimpleNamespace
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from snapconv.errors import RecorderError
from snapconv.guest.own_frames import for_program, stands_in
from snapconv.notes import Note
from snapconv.simulation.kernels import group_tensors
from snapconv.simulation.machine import Machine
from snapconv.simulation.patches import Patches, is_ordinal

_DEVICE_TYPE = 1
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
    "shared_memory_per_block": 49152,
    "is_integrated": 0,
    "is_multi_gpu_board": 0,
    "gcnArchName": "",
    "L2_cache_size": 50 << 20,
    "uuid": "00000000-0000-0000-0000-000000000000",
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


def _answer(value: Any) -> Callable[..., Any]:
    """Make a function that returns one value for any arguments."""
    return lambda *_, **__: value


_do_nothing = _answer(None)
_answer_yes = _answer(value=True)
_answer_no = _answer(value=False)


def patch_cuda(machine: Machine, patches: Patches) -> None:
    """Give torch what a CUDA build has, on a machine with such devices."""
    for name, function in _functions(machine).items():
        patches.set(torch._C, f"_cuda_{name}", function)
    for name, function in _accelerator(machine).items():
        patches.set_existing(torch._C, f"_accelerator_{name}", function)
    # DeviceMesh, barriers and torch.get_device_module() ask here which kind of device there is.
    patches.set_existing(torch._C, "_get_accelerator", lambda check=False: torch.device("cuda"))
    patches.set_existing(torch._C, "_group_tensors_by_device_and_dtype", group_tensors)
    patches.wrap(torch._C._nn, "_parse_to", _parse_to)
    patches.set(torch.accelerator, "is_available", _answer_yes)
    patches.set(torch.accelerator, "device_count", machine.device_count)
    _patch_module(machine, patches)
    _patch_streams(machine, patches)
    with suppress(ValueError):  # Windows has other names
        _patch_device_guard(patches)


def _patch_device_guard(patches: Patches) -> None:
    """Let autograd's C++ code ask the CPU's guard which stream a CUDA device has.

    It asks that of each leaf that requires a gradient and says by itself that it is on such a
    device, as the fake tensors of torch.export do; where there is no CUDA it aborts the process
    (torch 2.6 to 2.15).
    """
    name = "_ZN3c104impl26device_guard_impl_registryE"
    table_type = ctypes.c_void_p * (_DEVICE_TYPE + 1)
    guards = table_type.in_dll(ctypes.CDLL(torch._C.__file__), name)
    patches.callback(guards.__setitem__, _DEVICE_TYPE, guards[_DEVICE_TYPE])
    guards[_DEVICE_TYPE] = guards[0]


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

    return {
        "init": _do_nothing,
        "getArchFlags": _do_nothing,
        "sleep": _do_nothing,
        "ipc_collect": _do_nothing,
        "set_sync_debug_mode": _do_nothing,
        "get_sync_debug_mode": _answer(0),
        "getCompiledVersion": _answer(0),
        "getCurrentBlasHandle": _answer(1),
        "getCurrentSolverHandle": _answer(1),
        "getDeviceCount": machine.device_count,
        "getDevice": current_device,
        "setDevice": machine.exchange_device,
        "canDeviceAccessPeer": can_access,
        "synchronize": synchronize,
    }


def _stream_functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    def stream(stream_id: int, index: int | None) -> tuple[int, int, int]:
        return stream_id, machine.device(index).index, _DEVICE_TYPE

    def raw_stream(index: int | None) -> int:
        return machine.device(index).stream

    def current_stream(index: int | None) -> tuple[int, int, int]:
        return stream(raw_stream(index), index)

    def set_stream(stream_id: int, device_index: int, device_type: int) -> None:
        machine.current_device = device_index
        machine.device(device_index).stream = stream_id

    return {
        "isCurrentStreamCapturing": _answer_no,
        "getCurrentStream": current_stream,
        "getDefaultStream": partial(stream, 0),
        "getStreamFromExternal": stream,
        "getCurrentRawStream": raw_stream,
        "setStream": set_stream,
    }


def _memory_functions(machine: Machine) -> dict[str, Callable[..., Any]]:
    return {
        "memoryStats": machine.memory_stats,
        "hostMemoryStats": dict,
        "resetPeakMemoryStats": machine.reset_peaks,
        "resetPeakHostMemoryStats": _do_nothing,
        "resetAccumulatedMemoryStats": machine.reset_accumulated,
        "resetAccumulatedHostMemoryStats": _do_nothing,
        "emptyCache": machine.empty_cache,
        "cudaCachingAllocator_is_enabled": _answer_yes,
        "cudaCachingAllocator_set_allocator_settings": machine.set_settings,
        "setMemoryFraction": machine.set_fraction,
        "getMemoryFraction": _answer(1.0),
        "getAllocatorBackend": _answer("native"),
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
        has_traces = request[2] if isinstance(request, tuple) and len(request) > 2 else True
        return machine.snapshot(include_traces=has_traces)

    def set_metadata(text: str) -> None:
        history.user_metadata = text

    return {
        "record_memory_history": machine.record_history,
        "record_memory_history_legacy": record_as_before,
        "memorySnapshot": snapshot,
        "setMemoryMetadata": set_metadata,
        "getMemoryMetadata": lambda: history.user_metadata,
        "isHistoryEnabled": lambda: history.is_on,
    }


def _accelerator(machine: Machine) -> dict[str, Callable[..., Any]]:
    """List what torch._C has for the current accelerator, by name without ``_accelerator_``."""
    return {
        "getAccelerator": lambda: torch.device("cuda"),
        "getDeviceIndex": lambda: machine.current_device,
        "setDeviceIndex": machine.exchange_device,
        "exchangeDevice": machine.exchange_device,
        "maybeExchangeDevice": machine.exchange_device,
        "synchronizeDevice": machine.synchronize,
        "getStream": torch.cuda.current_stream,
        "setStream": torch.cuda.set_stream,
        "isAllocatorInitialized": _answer_yes,
        "emptyCache": machine.empty_cache,
        "emptyHostCache": _do_nothing,
        "getDeviceStats": machine.memory_stats,
        "getMemoryInfo": machine.free_and_total,
        "resetPeakStats": machine.reset_peaks,
        "resetAccumulatedStats": machine.reset_accumulated,
        "setAllocatorSettings": machine.set_settings,
        "getAllocatorSettings": _answer(""),
    }


def _patch_module(machine: Machine, patches: Patches) -> None:
    """Replace what torch.cuda decided when it was imported without CUDA."""
    cuda = torch.cuda
    pid = os.getpid()
    runtime = SimpleNamespace(
        cudaMemGetInfo=machine.free_and_total,
        cudaError=SimpleNamespace(success=0),
        cudaGetErrorString=_answer("no error"),
        cudaProfilerStart=_answer(0),
        cudaProfilerStop=_answer(0),
    )
    properties = SimpleNamespace(**_PROPERTIES, total_memory=machine.options.total_bytes)
    answers = {
        "_initialized": True,
        "_queued_calls": [],
        "_cudart": runtime,
        "_is_in_bad_fork": lambda: os.getpid() != pid,
        "_exchange_device": machine.exchange_device,
        # Another function: torch.compile keeps a table of both and wants none of them twice.
        "_maybe_exchange_device": lambda index: machine.exchange_device(index),
        "device_count": machine.device_count,
        "_get_device_properties": _answer(properties),
        # They drive nothing: the CPU's generator does.
        "default_generators": tuple(torch.Generator() for _ in machine.devices),
    }
    for name, value in answers.items():
        patches.set(cuda, name, value)
    patches.set(torch._C, "_scatter", _scatter)
    patches.set(torch._C, "_has_cuda", value=True)
    patches.set_existing(torch.backends.cuda, "is_built", _answer_yes)
    # cuDNN's own operations do not exist here: torch takes its native ones.
    patches.set_existing(torch.backends.cudnn, "is_acceptable", _answer_no)
    # As without a profiler attached.
    nvtx_functions = dict.fromkeys(_NVTX, _answer(0))
    patches.set(cuda.nvtx, "_nvtx", SimpleNamespace(**nvtx_functions))
    patches.set_existing(cuda.graphs, "_cuda_isCurrentStreamCapturing", _answer_no)


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


class _Stream:
    """A number, whose work is done on demand. Stands for torch.Stream and torch.cuda.Stream."""

    machine: Machine
    numbers: Iterator[int]
    stream_id: int
    device_index: int
    device_type = _DEVICE_TYPE
    query = _answer_yes
    is_capturing = _answer_no
    wait_event = wait_stream = _do_nothing
    cuda_stream = property(lambda self: self.stream_id)
    device = property(lambda self: torch.device("cuda", self.device_index))

    # torch's own classes do this in __new__ too: subclasses override either.
    def __new__(cls, device: Any = None, priority: int = 0, **numbers: Any) -> Any:
        self: Any = super().__new__(cls)
        self.priority = priority
        if "stream_id" in numbers:
            self.stream_id = numbers["stream_id"]
            self.device_index = numbers["device_index"]
        else:
            self.stream_id = numbers.get("stream_ptr") or next(self.numbers)
            self.device_index = self.machine.ordinal("cuda" if device is None else device) or 0
        return self

    def synchronize(self) -> None:
        self.machine.synchronize(self.device_index)

    def record_event(self, event: Any = None) -> Any:
        event = torch.cuda.Event() if event is None else event
        event.record(self)
        return event

    def __eq__(self, other: Any) -> bool:
        if not isinstance(other, _Stream):
            return False
        return (self.stream_id, self.device_index) == (other.stream_id, other.device_index)

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def __enter__(self: Any) -> Any:
        device = self.machine.device(self.device_index)
        self.before = device.stream
        device.stream = self.stream_id
        return self

    def __exit__(self: Any, *error: object) -> None:
        self.machine.device(self.device_index).stream = self.before


class _Event:
    """A moment of the CPU's clock. Stands for torch.cuda.Event and torch.Event."""

    enable_timing: bool
    time_ns: int | None = None
    wait = synchronize = _do_nothing
    query = _answer_yes

    # The first argument of torch.Event is a device.
    def __new__(cls, *args: Any, enable_timing: bool = False, **_: Any) -> Any:
        self = super().__new__(cls)
        self.enable_timing = enable_timing or args[:1] == (True,)
        return self

    def record(self, stream: Any = None) -> None:
        self.time_ns = time.perf_counter_ns()

    def elapsed_time(self, end_event: Any) -> float:
        if not (self.enable_timing and end_event.enable_timing):
            raise for_program(
                ValueError("Both events must be created with argument 'enable_timing=True'.")
            )
        if self.time_ns is None or end_event.time_ns is None:
            raise for_program(
                ValueError("Both events must be recorded before calculating elapsed time.")
            )
        return float(end_event.time_ns - self.time_ns) / 1e6


def _patch_streams(machine: Machine, patches: Patches) -> None:
    """Replace torch.Stream, torch.cuda.Stream and the others, on a machine with such devices."""

    class Stream(_Stream):
        # What a stream made by the user looks like in a snapshot: a pointer, never 0.
        numbers = count(0x5500_0000_0000, 0x40)

    Stream.machine = machine

    class ExternalStream(Stream):
        def __new__(cls, stream_ptr: int, device: Any = None, **numbers: Any) -> Any:
            return super().__new__(cls, device, stream_ptr=stream_ptr, **numbers)

    for owner in (torch, torch.cuda, torch.cuda.streams):
        patches.set_existing(owner, "Stream", Stream)
        patches.set_existing(owner, "ExternalStream", ExternalStream)
        patches.set_existing(owner, "Event", _Event)


_GRAPHS_AS_EAGER = Note(
    "graphs-as-eager",
    "what CUDA graphs capture ran once, as it is written: their own memory pool is not in the "
    "capture, and a replay does nothing, so that what it would compute stays as it was",
)
# What names a pool in torch: a pair of numbers.
_POOL = (0, 1)


def patch_graphs(machine: Machine, patches: Patches) -> None:
    """Let torch.cuda.graph and what is built on it run without graphs."""
    meet = partial(machine.meet, "CUDA graphs", _GRAPHS_AS_EAGER)

    class CUDAGraph:
        """A graph of nothing. A class, since libraries annotate ``CUDAGraph | None``."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            meet()
            return super().__new__(cls)

        pool = _answer(_POOL)
        capture_begin = capture_end = instantiate = replay = reset = _do_nothing
        enable_debug_mode = debug_dump = _do_nothing

    CUDAGraph.__module__ = "torch.cuda.graphs"

    def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
        meet()
        return callables

    graphs = torch.cuda.graphs
    for owner in (torch.cuda, graphs):
        patches.set_existing(owner, "CUDAGraph", CUDAGraph)
        patches.set_existing(owner, "make_graphed_callables", make_graphed_callables)
    patches.set_existing(graphs, "_graph_pool_handle", _answer(_POOL))
    patches.set(torch._C, "_host_emptyCache", _do_nothing)
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


_AS_EAGER = Note(
    "compiled-as-eager",
    "what torch.compile was to compile ran as it is written, with the memory of eager mode; "
    "compiled, it has less on a GPU as a rule",
)


def patch_compilation(machine: Machine, patches: Patches) -> None:
    """Let compiled functions run as they are written, and note that on a first call.

    Their memory is then that of eager mode. That of the code that Inductor makes for a CPU would be
    no better bound: what is fused is the CPU's choice. It was the same for a transformer, and took
    15 times as long.
    """
    from torch._dynamo.eval_frame import _TorchDynamoContext

    def noting(real: Callable[..., Any], context: Any, function: Any) -> Any:
        compiled = real(context, function)
        if not isinstance(compiled, FunctionType):
            return compiled

        @stands_in
        @wraps(compiled)
        def call(*args: Any, **kwargs: Any) -> Any:
            if any(device.allocator.ledger.allocated_bytes for device in machine.devices):
                machine.meet("compiled code", _AS_EAGER)
            return compiled(*args, **kwargs)

        return call

    for name in ("trace", "trace_module"):
        trace = getattr(torch.jit, name)
        patches.set(torch.jit, name, wraps(trace)(partial(_trace, machine, trace)))
    patches.wrap(_TorchDynamoContext, "__call__", noting)
    patches.enter_context(torch.compiler.set_stance("force_eager"))


@stands_in
def _trace(machine: Machine, real: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Run torch.jit.trace unseen by our mode of operations: under any mode torch fails (2.13)."""
    machine.meet("what torch.jit.trace runs")
    try:
        with _disable_current_modes():
            return real(*args, **kwargs)
    except (AssertionError, RuntimeError) as error:
        if not any(word in str(error).lower() for word in ("cuda", "nvidia")):
            raise
        raise RecorderError(
            "torch.jit.trace: a simulation traces no function that makes tensors on the device "
            "itself"
        ) from error
