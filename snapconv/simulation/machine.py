"""The simulated devices: an allocator, counters and streams each, one clock and one history for all.

Everything that torch's C++ side would answer about memory is answered here. Knows no tensors, and imports no
torch before it has to raise torch's own error.
"""

import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.allocator.allocator_trace import Frames, RecordedEvent
from snapconv.allocator.caching_allocator import CachingAllocator, ModelOutOfMemory
from snapconv.errors import RecorderError, SettingError
from snapconv.notes import Note
from snapconv.recorder.program.own_frames import for_program
from snapconv.simulation.history import History, Statistics
from snapconv.simulation.stacks import Stacks
from snapconv.units import counted

GIB = 1 << 30

# The memory of the simulated device by default: an 80 GB card.
DEFAULT_TOTAL_BYTES = 80 * GIB


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How the simulated GPU behaves.

    ``compute`` False evaluates shapes only: no values, next to no memory or time. ``capacity_bytes``
    None reports 80 GiB and never runs out; a number makes the allocator run out there, as a GPU of
    that much usable memory would. ``cublas_workspace`` adds the workspace that cuBLAS gets at its first
    use per device and stream. ``n_devices`` is how many devices the script sees.
    ``routing`` is how indices that are not computed are assumed: "balanced" or "worst".
    """

    compute: bool = True
    capacity_bytes: int | None = None
    cublas_workspace: bool = False
    n_devices: int = 1
    routing: Literal["balanced", "worst"] = "balanced"

    @property
    def total_bytes(self) -> int:
        """The memory of each simulated device."""
        return DEFAULT_TOTAL_BYTES if self.capacity_bytes is None else self.capacity_bytes


class Clock:
    """Epoch microseconds. Successive readings never decrease, whatever happens to the system's clock."""

    def __init__(self) -> None:
        # The trace's clock is the epoch's; perf_counter makes it steady.
        self._start_us = time.time_ns() // 1000
        self._start_counter = time.perf_counter_ns()

    def __call__(self) -> int:
        """Return now."""
        return self._start_us + (time.perf_counter_ns() - self._start_counter) // 1000


Observer = Callable[[int, int, int, int], object]

_FIRST_ADDR = 0x7F00_0000_0000
_ADDRS_PER_DEVICE = 1 << 40


def settings_from_environment() -> AllocatorSettings:
    """Read the allocator's settings as torch does: the general variable wins over CUDA's own."""
    conf = os.environ.get("PYTORCH_ALLOC_CONF") or os.environ.get("PYTORCH_CUDA_ALLOC_CONF") or ""
    return _settings(conf)


def _settings(conf: str) -> AllocatorSettings:
    try:
        return AllocatorSettings.from_conf(conf)
    except SettingError as error:
        raise RecorderError(str(error)) from error


@dataclass(slots=True)
class Device:
    """One simulated device."""

    index: int
    allocator: CachingAllocator
    statistics: Statistics
    stream: int = 0


class Machine:
    """All simulated devices, used by one thread at a time.

    A garbage collection may free tensors in the middle of an allocation, which the allocator must not
    see: such frees wait until it is done.
    """

    def __init__(self, options: SimulationOptions) -> None:
        self.options = options
        self.settings = settings_from_environment()
        # The program may set them itself, until the first allocation.
        self._reads_environment = True
        self.clock = Clock()
        self.history = History(options.n_devices)
        self.stacks = Stacks()
        self.devices = [self._device(index) for index in range(options.n_devices)]
        self.current_device = 0
        self.observers: list[Observer] = []
        # Called before any figure is read: an allocation may still be undecided.
        self.settle: Callable[[], None] = lambda: None
        # Called with a device and its allocated bytes, now and at most, after each allocation.
        self.sample: Callable[[int, int, int], None] | None = None
        # What the user should know of this run, by slug.
        self.notes: dict[str, Note] = {}
        # What of torch has changed, so that the simulation does without.
        self.changes: list[Note] = []
        # What is not modelled and the program came upon, in that order.
        self.met: dict[str, None] = {}
        self._lock = threading.RLock()
        self._is_busy = False
        self._late_frees: deque[tuple[int, int]] = deque()

    def _device(self, index: int) -> Device:
        statistics = Statistics()

        def listen(event: RecordedEvent) -> None:
            statistics.listen(event)
            self.history.listen(index, event)

        allocator = CachingAllocator(
            device=index,
            settings=self.settings,
            capacity=self.options.capacity_bytes,
            clock=self.clock,
            base_addr=_FIRST_ADDR + index * _ADDRS_PER_DEVICE,
            listener=listen,
        )
        return Device(index, allocator, statistics)

    def note(self, note: Note) -> None:
        """Keep a note on this run; once is enough."""
        self.notes.setdefault(note.slug, note)

    def meet(self, what: str) -> None:
        """Remember that the program does what a GPU needs memory for that is not modelled."""
        self.met.setdefault(what)

    def device(self, index: int | None) -> Device:
        """Return a device by ordinal; None or a negative number for the current one."""
        return self.devices[self.current_device if index is None or index < 0 else index]

    def checked(self, index: int) -> int:
        """Return a device ordinal; refuse one that no device has, as CUDA does."""
        if not 0 <= index < len(self.devices):
            error = RuntimeError(
                f"CUDA error: invalid device ordinal (cuda:{index}; the simulation has "
                f"{counted(len(self.devices), 'device')}; `--device {index}` gives it more)"
            )
            raise for_program(error)
        return index

    def allocation_frames(self, within: tuple[str, ...] = ()) -> Frames | None:
        """Capture the stack if allocations are to have one."""
        if not self.history.wants_allocation_frames:
            return None
        return self.stacks.capture(has_cpp=self.history.has_cpp, within=within)

    def malloc(self, index: int, n_bytes: int, frames: Frames | None = None) -> int:
        """Allocate on the device's current stream; raise torch's OutOfMemoryError where that fails."""
        if self._reads_environment:
            self._use(settings_from_environment())
            self._limit()
        device = self.devices[index]
        frames = frames or self.allocation_frames()
        try:
            addr = int(self._alone(self._malloc, device, n_bytes, frames))
            if self.sample is not None:
                self.sample(index, device.allocator.allocated_bytes, device.allocator.max_allocated_bytes)
            return addr
        except ModelOutOfMemory as error:
            # As in torch, the observers run with the allocator unlocked and the event recorded.
            for observer in self.observers:
                observer(index, error.segment_bytes, error.capacity, error.free_bytes)
            import torch

            raised: Exception = torch.cuda.OutOfMemoryError(out_of_memory_message(error, device=index))
            raise for_program(raised) from None

    def _malloc(self, device: Device, n_bytes: int, frames: Frames | None) -> int:
        statistics = device.statistics
        n_freed = statistics.n_segments_freed
        try:
            addr = device.allocator.malloc(n_bytes, stream=device.stream, frames=frames)
        except ModelOutOfMemory:
            statistics.n_retries += 1
            raise
        # A malloc that gave segments back had failed once (malloc's retries with alloc_block).
        statistics.n_retries += statistics.n_segments_freed > n_freed
        return addr

    def free(self, index: int, addr: int) -> None:
        """Free an address, now or, inside an allocation, right after it."""
        with self._lock:
            if self._is_busy:
                self._late_frees.append((index, addr))
                return
        frames = None
        if self.history.wants_free_frames:
            frames = self.stacks.capture(has_cpp=self.history.has_cpp)
        self._alone(self.devices[index].allocator.free, addr, frames=frames)

    def _alone(self, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Call an allocator's function exclusively; then do the frees that had to wait."""
        with self._lock:
            self._is_busy = True
            try:
                result = function(*args, **kwargs)
            finally:
                self._is_busy = False
        while self._late_frees:
            try:
                late = self._late_frees.popleft()
            except IndexError:  # another thread has done it just now
                break
            self.free(*late)
        return result

    def record_stream(self, index: int, addr: int, stream: int) -> None:
        """Let a block's free wait for a stream, if there is a block."""
        if addr:
            self._alone(self.devices[index].allocator.record_stream, addr, stream)

    def synchronize(self, index: int | None = None) -> None:
        """Let all work of a device end: the next allocation completes what waited for it."""
        self.settle()
        allocator = self.device(index).allocator
        self._alone(allocator.process_events, None)

    def empty_cache(self) -> None:
        """Give cached segments of all devices back."""
        self.settle()
        frames = self.allocation_frames() if self.history.wants_free_frames else None
        for device in self.devices:
            self._alone(device.allocator.empty_cache, frames=frames)

    def memory_stats(self, index: int | None) -> dict[str, Any]:
        """Write a device's counters as torch's nested dict."""
        self.settle()
        device = self.device(index)
        segments = self._alone(device.allocator.segments)
        limit = self.settings.max_split_size_bytes
        return device.statistics.as_nested_dict(segments, max_split_size=-1 if limit is None else limit)

    def reset_peaks(self, index: int | None) -> None:
        """Let a device's peaks start from the present."""
        self.settle()
        self.device(index).statistics.reset_peaks()

    def set_settings(self, conf: str) -> None:
        """Replace the allocator's settings from here on."""
        self._use(_settings(conf))

    def _use(self, settings: AllocatorSettings) -> None:
        self._reads_environment = False
        self.settings = settings
        for device in self.devices:
            device.allocator.settings = self.settings

    def _limit(self) -> None:
        """Leave the process its fraction of the devices, unless the program has set another itself."""
        fraction = self.settings.memory_fraction
        for device in self.devices:
            if fraction < 1 and device.allocator.capacity == self.options.capacity_bytes:
                self._set_fraction(device, fraction)

    def set_fraction(self, index: int, fraction: float) -> None:
        """Let a device run out at a part of its memory (set_per_process_memory_fraction)."""
        self._set_fraction(self.device(index), fraction)

    def _set_fraction(self, device: Device, fraction: float) -> None:
        allocator = device.allocator
        allocator.capacity = int(fraction * self.options.total_bytes)
        allocator.limit = allocator.capacity if fraction < 1 else None

    def free_and_total(self, index: int | None) -> tuple[int, int]:
        """Say what cudaMemGetInfo would: the device's memory outside its segments, and all of it."""
        self.settle()
        total = self.options.total_bytes
        return max(total - self.device(index).allocator.reserved_bytes, 0), total

    def snapshot(self, *, include_traces: bool = True) -> dict[str, Any]:
        """Build what ``torch._C._cuda_memorySnapshot`` returns in torch 2.13."""
        self.settle()
        segments, traces, annotations = self._alone(self._read)
        self.stacks.symbolise(_stacks(segments, traces))
        return {
            "segments": segments,
            "device_traces": traces if include_traces else [[] for _ in self.devices],
            "allocator_settings": self.settings.as_snapshot() | _SETTINGS_OF_2_13,
            "external_annotations": annotations if include_traces else [],
        }

    def _read(self) -> tuple[list[dict[str, Any]], list[list[dict[str, object]]], list[dict[str, Any]]]:
        """Read segments, traces and annotations at one moment, and let the next snapshot know of it."""
        traces, annotations = self.history.traces(), self.history.annotations()
        segments = [segment for device in self.devices for segment in device.allocator.segments()]
        for device in self.devices:
            device.allocator.note_snapshot()
        return segments, traces, annotations

    def switch_history(self, switch: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Turn recording on or off with nothing happening meanwhile."""
        self.settle()
        self._alone(switch, *args, **kwargs)

    def annotate(self, name: str, stage: str) -> None:
        """Keep the begin or the end of a ``record_function`` range."""
        with self._lock:  # a snapshot reads them
            self.history.annotate(name, stage, device=self.current_device, time_us=self.clock())

    def traceback_of(self, addr: int) -> Frames | None:
        """Return the allocation stack of a live block, by its address."""
        self.settle()
        every = [self._alone(device.allocator.segments) for device in self.devices]
        for block in (block for segments in every for segment in segments for block in segment["blocks"]):
            if block["address"] == addr and block["state"] != "inactive" and block["frames"]:
                self.stacks.symbolise([block["frames"]])
                return list(block["frames"])
        return None


# Keys of allocator_settings that came with torch 2.13, at their defaults.
_SETTINGS_OF_2_13 = {"max_round_threshold": 0, "max_cached_size": 0}


def _stacks(segments: list[dict[str, Any]], traces: list[list[dict[str, Any]]]) -> list[list[Any]]:
    """List the stacks of segments, blocks and events."""
    holders = [*segments, *(block for segment in segments for block in segment["blocks"])]
    holders += [entry for trace in traces for entry in trace if "frames" in entry]
    return [holder["frames"] for holder in holders]


def out_of_memory_message(error: ModelOutOfMemory, *, device: int) -> str:
    """Write torch's message for the model's figures (malloc in CUDACachingAllocator.cpp, 2.13)."""
    in_use = error.capacity - error.free_bytes
    unallocated = error.reserved_bytes - error.allocated_bytes
    return (
        f"CUDA out of memory. Tried to allocate {_format(error.segment_bytes)}. "
        f"GPU {device} has a total capacity of {_format(error.capacity)} of which "
        f"{_format(error.free_bytes)} is free. "
        f"Process {os.getpid()} has {_format(in_use)} memory in use. "
        f"Of the allocated memory {_format(error.allocated_bytes)} is allocated by PyTorch, and "
        f"{_format(unallocated)} is reserved by PyTorch but unallocated. "
        "If reserved but unallocated memory is large try setting "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  "
        "See documentation for Memory Management  "
        "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)"
    )


def _format(n_bytes: int) -> str:
    """Write bytes as torch's format_size does, which has no unit above GiB."""
    if n_bytes <= 1024:
        return f"{n_bytes} bytes"
    for power, unit in ((1, "KiB"), (2, "MiB")):
        if n_bytes <= 1024 ** (power + 1):
            return f"{n_bytes / 1024**power:.2f} {unit}"
    return f"{n_bytes / 1024**3:.2f} GiB"
