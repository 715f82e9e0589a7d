"""torch.cuda.Stream and torch.cuda.Event for a device that is the CPU: everything is done at once."""

import time
from dataclasses import dataclass
from itertools import count
from typing import Any, ClassVar

from snapconv.recorder.program.own_frames import for_program
from snapconv.simulation.devices.machine import Machine

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
