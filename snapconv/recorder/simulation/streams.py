"""torch.cuda.Stream and torch.cuda.Event for a device that is the CPU: everything is done at once."""

import time
from itertools import count
from typing import Any, ClassVar

from snapconv.recorder.simulation.machine import Machine

CUDA_DEVICE_TYPE = 1
# What a stream made by the user looks like in a snapshot: a pointer, never 0.
_FIRST_POINTER = 0x5500_0000_0000
_POINTER_STEP = 0x40


class SimulatedStream:
    """A stream is a number; its work is done when it is asked for."""

    machine: ClassVar[Machine]
    numbers: ClassVar["count[int]"] = count(_FIRST_POINTER, _POINTER_STEP)

    def __init__(self, device: Any = None, priority: int = 0, **given: Any) -> None:
        self.priority = priority
        self.device_type = CUDA_DEVICE_TYPE
        if "stream_id" in given:
            self.stream_id: int = given["stream_id"]
            self.device_index: int = given["device_index"]
        else:
            self.device_index = _device_index(self.machine, device)
            self.stream_id = given.get("stream_ptr") or next(self.numbers)

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

    def __init__(
        self,
        enable_timing: bool = False,  # noqa: FBT001, FBT002  # torch's signature
        blocking: bool = False,  # noqa: FBT001, FBT002
        interprocess: bool = False,  # noqa: FBT001, FBT002
        external: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        self.enable_timing = enable_timing
        self.time_ns: int | None = None

    def record(self, stream: Any = None) -> None:
        """Note the time."""
        self.time_ns = time.perf_counter_ns()

    def elapsed_time(self, end_event: Any) -> float:
        """Return the milliseconds from this event to another."""
        if not (self.enable_timing and end_event.enable_timing):
            raise ValueError("Both events must be created with argument 'enable_timing=True'.")
        if self.time_ns is None or end_event.time_ns is None:
            raise ValueError("Both events must be recorded before calculating elapsed time.")
        return float(end_event.time_ns - self.time_ns) / 1e6

    def wait(self, stream: Any = None) -> None:
        """Wait for nothing."""

    def query(self) -> bool:
        """Say that all work is done."""
        return True

    def synchronize(self) -> None:
        """Wait for nothing."""


def stream_classes(machine: Machine) -> tuple[type, type]:
    """Make the classes that stand in for torch.cuda.Stream and torch.cuda.Event."""
    stream = type("Stream", (SimulatedStream,), {"machine": machine, "__module__": "torch.cuda.streams"})
    event = type("Event", (SimulatedEvent,), {"__module__": "torch.cuda.streams"})
    return stream, event


def _device_index(machine: Machine, device: Any) -> int:
    if device is None:
        return machine.current_device
    if isinstance(device, int):
        return device if device >= 0 else machine.current_device
    import torch

    index = torch.device(device).index
    return machine.current_device if index is None else int(index)
