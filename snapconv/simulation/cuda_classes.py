"""CUDA's streams, events, graphs and compiled functions: everything is done at once, as it is written."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from itertools import count
from types import FunctionType
from typing import Any, ClassVar

from snapconv.notes import Note
from snapconv.recorder.observe.tensors import named_tensors
from snapconv.recorder.program.own_frames import for_program, stands_in
from snapconv.simulation.machine import Machine
from snapconv.simulation.patches import Patches

CUDA_DEVICE_TYPE = 1
# What a stream made by the user looks like in a snapshot: a pointer, never 0.
_FIRST_POINTER = 0x5500_0000_0000
_POINTER_STEP = 0x40


class SimulatedStream:
    """A stream is a number; its work is done on demand."""

    machine: ClassVar[Machine]
    numbers: ClassVar["count[int]"] = count(_FIRST_POINTER, _POINTER_STEP)
    device_type: int
    priority: int
    stream_id: int
    device_index: int

    # torch's own classes do this in __new__ too: subclasses override either.
    def __new__(cls, device: Any = None, priority: int = 0, **given: Any) -> "SimulatedStream":
        """Make a stream of a device, or describe one that there is."""
        self = super().__new__(cls)
        self.priority = priority
        self.device_type = CUDA_DEVICE_TYPE
        if "stream_id" in given:
            self.stream_id = given["stream_id"]
            self.device_index = given["device_index"]
        else:
            self.device_index = _device_index(cls.machine, device)
            self.stream_id = given.get("stream_ptr") or next(cls.numbers)
        return self

    @property
    def cuda_stream(self) -> int:
        """The stream's pointer, which snapshots show."""
        return self.stream_id

    @property
    def device(self) -> Any:
        """The stream's device."""
        import torch

        return torch.device("cuda", self.device_index)

    def query(self) -> bool:
        """Say that all work is done."""
        return True

    def is_capturing(self) -> bool:
        """Say that no graph is captured."""
        return False

    def synchronize(self) -> None:
        """Let what waits for this device's streams complete."""
        self.machine.synchronize(self.device_index)

    def wait_event(self, event: Any) -> None:
        """Wait for nothing."""

    def wait_stream(self, stream: Any) -> None:
        """Wait for nothing."""

    def record_event(self, event: Any = None) -> Any:
        """Record an event now."""
        import torch

        event = torch.cuda.Event() if event is None else event
        event.record(self)
        return event

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SimulatedStream) and (self.stream_id, self.device_index) == (
            other.stream_id,
            other.device_index,
        )

    def __hash__(self) -> int:
        return hash((self.stream_id, self.device_index))

    def __repr__(self) -> str:
        return f"<torch.cuda.Stream device={self.device} cuda_stream={self.cuda_stream:#x}>"

    def __enter__(self) -> "SimulatedStream":
        device = self.machine.device(self.device_index)
        self._before = device.stream
        device.stream = self.stream_id
        return self

    def __exit__(self, *error: object) -> None:
        self.machine.device(self.device_index).stream = self._before


class SimulatedEvent:
    """A moment of the CPU's clock."""

    enable_timing: bool
    time_ns: int | None

    def __new__(
        cls,
        enable_timing: bool = False,  # noqa: FBT001, FBT002  # torch's signature
        blocking: bool = False,  # noqa: FBT001, FBT002
        interprocess: bool = False,  # noqa: FBT001, FBT002
        external: bool = False,  # noqa: FBT001, FBT002
    ) -> "SimulatedEvent":
        """Make an event that has not happened yet."""
        self = super().__new__(cls)
        self.enable_timing = enable_timing
        self.time_ns = None
        return self

    def record(self, stream: Any = None) -> None:
        """Note the time."""
        self.time_ns = time.perf_counter_ns()

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from this event to another."""
        if not (self.enable_timing and end_event.enable_timing):
            raise for_program(ValueError("Both events must be created with argument 'enable_timing=True'."))
        if self.time_ns is None or end_event.time_ns is None:
            raise for_program(ValueError("Both events must be recorded before calculating elapsed time."))
        return float(end_event.time_ns - self.time_ns) / 1e6

    def wait(self, stream: Any = None) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Say that all work is done."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""


@dataclass(frozen=True, slots=True)
class StreamClasses:
    """What stands for torch's classes of streams and events; subclasses of each other as torch's are."""

    stream: type
    cuda_stream: type
    external_stream: type
    event: type
    cuda_event: type


def stream_classes(machine: Machine) -> StreamClasses:
    """Make the classes that stand for torch.Stream, torch.cuda.Stream and the others."""
    stream = type("Stream", (SimulatedStream,), {"machine": machine, "__module__": "torch"})
    event = type("Event", (SimulatedEvent,), {"__new__": _event_on, "__module__": "torch"})
    in_cuda = {"__module__": "torch.cuda.streams"}
    cuda_stream = type("Stream", (stream,), in_cuda)
    return StreamClasses(
        stream=stream,
        cuda_stream=cuda_stream,
        external_stream=type("ExternalStream", (_External, cuda_stream), in_cuda),
        event=event,
        cuda_event=type("Event", (event,), in_cuda | {"__new__": SimulatedEvent.__new__}),
    )


def _event_on(cls: type[SimulatedEvent], device: Any = None, **options: bool) -> SimulatedEvent:
    """Make a torch.Event, which names a device first."""
    return SimulatedEvent.__new__(cls, **options)


class _External(SimulatedStream):
    """torch.cuda.ExternalStream, which names a pointer first."""

    def __new__(cls, stream_ptr: int, device: Any = None, **given: Any) -> Any:
        return super().__new__(cls, device, stream_ptr=stream_ptr, **given)


def _device_index(machine: Machine, device: Any) -> int:
    if device is None:
        return machine.current_device
    if isinstance(device, int):
        return device if device >= 0 else machine.current_device
    import torch

    index = torch.device(device).index
    return machine.current_device if index is None else int(index)


_GRAPHS_AS_EAGER = Note(
    "graphs-as-eager",
    "what CUDA graphs capture ran once, as it is written: their own memory pool is not in the capture, and "
    "a replay does nothing, so that what it would compute stays as it was",
)
_OF_GRAPHS = (
    *("capture_begin", "capture_end", "instantiate", "replay", "reset"),
    *("enable_debug_mode", "debug_dump"),
)
# What names a pool in torch: a pair of numbers.
_POOL = (0, 1)


def patch_graphs(machine: Machine, patches: Patches) -> None:
    """Let torch.cuda.graph and what is built on it run without graphs."""
    import torch

    def meet() -> None:
        machine.meet("CUDA graphs")
        machine.note(_GRAPHS_AS_EAGER)

    class CUDAGraph:
        """A graph of nothing. A class, since libraries annotate ``CUDAGraph | None``."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            meet()
            return super().__new__(cls)

        def pool(self) -> tuple[int, int]:
            """Name the graph's memory pool."""
            return _POOL

    for name in _OF_GRAPHS:
        setattr(CUDAGraph, name, _nothing)
    CUDAGraph.__module__ = "torch.cuda.graphs"

    def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
        meet()
        return callables

    graphs = torch.cuda.graphs
    for owner in (torch.cuda, graphs):
        patches.set_existing(owner, "CUDAGraph", CUDAGraph)
        patches.set_existing(owner, "make_graphed_callables", make_graphed_callables)
    patches.set_existing(graphs, "_graph_pool_handle", lambda: _POOL, fallback=_POOL)
    patches.set(torch._C, "_host_emptyCache", lambda: None)
    # A stream of the simulation must not outlive it.
    patches.set(graphs.graph, "default_capture_stream", None)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing."""


IsPlaced = Callable[[Any], bool]

_COMPILED = "compiled code"
_AS_EAGER = Note(
    "compiled-as-eager",
    "what torch.compile was to compile ran as it is written, with the memory of eager mode; compiled, it has "
    "less on a GPU as a rule",
)
# Backends that run a graph as it was written.
_EAGER_BACKENDS = ("eager", "eager_debug", "eager_noexcept")


@contextmanager
def compiled_as_eager(machine: Machine, is_placed: IsPlaced) -> Iterator[None]:
    """Let compiled functions run as they are written; note those that work on the device.

    Their memory is then that of eager mode. That of the code that Inductor makes for a CPU would be no better
    bound: what is fused is the CPU's choice. It was the same for a transformer, and took 15 times as long.
    """
    import torch
    from torch._dynamo.eval_frame import _TorchDynamoContext

    with Patches() as patches:
        patches.wrap(_TorchDynamoContext, "__call__", lambda real: _noting(torch, machine, is_placed, real))
        set_stance = getattr(torch.compiler, "set_stance", None)  # torch 2.6
        if set_stance is None:
            # Not a patch of ours: what torch.compile's settings lose is gone for good.
            run_eagerly = torch._dynamo.config.patch(disable=True)
        else:
            run_eagerly = set_stance("force_eager")
        with run_eagerly:
            yield


def _noting(torch: Any, machine: Machine, is_placed: IsPlaced, real: Callable[..., Any]) -> Any:
    """Note the first call of a compiled function that works on the device."""

    @wraps(real)
    def decorate(context: Any, function: Any) -> Any:
        made = real(context, function)
        if not isinstance(made, FunctionType) or _backend(context) in _EAGER_BACKENDS:
            return made

        @stands_in
        @wraps(made)
        def call(*args: Any, **kwargs: Any) -> Any:
            if _COMPILED not in machine.met and any(
                map(is_placed, _tensors_within_reach(torch, function, (args, kwargs)))
            ):
                machine.meet(_COMPILED)
                machine.note(_AS_EAGER)
            return made(*args, **kwargs)

        return call

    return decorate


def _backend(context: Any) -> str:
    """Find the name of what is to compile; torch wraps it several times."""
    compiler: Any = getattr(context, "callback", None)
    while (inner := _within(compiler)) is not None:
        compiler = inner
    return str(getattr(compiler, "compiler_name", ""))


def _within(compiler: Any) -> Any:
    older = getattr(compiler, "_torchdynamo_orig_callable", None)  # up to torch 2.7
    return getattr(compiler, "_torchdynamo_orig_backend", older)


def _tensors_within_reach(torch: Any, function: Any, arguments: Any) -> Iterator[Any]:
    """List the tensors that a function is given, and those that it references itself."""
    yield from (tensor for _, tensor in named_tensors(arguments))
    inner = getattr(function, "__func__", function)
    cells = getattr(inner, "__closure__", None) or ()
    known = [getattr(function, "__self__", None), *(_content(cell) for cell in cells)]
    names = getattr(getattr(inner, "__code__", None), "co_names", ())
    known += [getattr(inner, "__globals__", {}).get(name) for name in names]
    for value in known:
        if isinstance(value, torch.nn.Module):
            yield from value.parameters()
            yield from value.buffers()
        elif isinstance(value, torch.optim.Optimizer):
            yield from (tensor for _, tensor in named_tensors(value.param_groups))
        else:
            yield from (tensor for _, tensor in named_tensors(value))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return None
