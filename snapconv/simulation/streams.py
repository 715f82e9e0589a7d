"""Streams and events: on the simulated devices all work is done at once."""

import time
from collections.abc import Iterator
from itertools import count
from typing import Any

import torch

from snapconv.guest.own_frames import for_program
from snapconv.simulation.machine import Machine
from snapconv.simulation.patches import Patches, answer_no, answer_yes, do_nothing

# CUDA's, in torch.
DEVICE_TYPE = 1


class _Stream:
    """A number, whose work is done on demand. Stands for torch.Stream and torch.cuda.Stream."""

    machine: Machine
    numbers: Iterator[int]
    stream_id: int
    device_index: int
    device_type = DEVICE_TYPE
    query = answer_yes
    is_capturing = answer_no
    wait_event = wait_stream = do_nothing
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
            self.device_index = (
                self.machine.ordinal("cuda" if device is None else device) or 0
            )
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
    wait = synchronize = do_nothing
    query = answer_yes

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
                ValueError(
                    "Both events must be created with argument 'enable_timing=True'."
                )
            )
        if self.time_ns is None or end_event.time_ns is None:
            raise for_program(
                ValueError("Both events must be recorded before calculating elapsed time.")
            )
        return float(end_event.time_ns - self.time_ns) / 1e6


def patch_streams(machine: Machine, patches: Patches) -> None:
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
