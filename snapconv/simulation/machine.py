"""The simulated devices: an allocator, counters and streams each, a clock and a history for all.

Everything that torch's C++ side would answer about memory is answered here. Knows no tensors, and
imports no torch before it has to raise torch's own error.
"""

import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.allocator.allocator_trace import (
    DEFAULT_POOL,
    Frames,
    PoolId,
    RecordedEvent,
)
from snapconv.allocator.blocks import AddressSpace
from snapconv.allocator.caching_allocator import CachingAllocator, ModelOutOfMemory
from snapconv.errors import RecorderError, SettingError
from snapconv.guest.own_frames import for_program, holders
from snapconv.guest.torch_surface import OutOfMemoryObserver
from snapconv.notes import Note
from snapconv.simulation.history import EventRings, current_thread
from snapconv.simulation.memory_stats import Statistics
from snapconv.simulation.simulated_job import RankOfJob
from snapconv.simulation.stacks import Stacks
from snapconv.torch_knowledge.allocator_options import (
    NEWEST_RELEASE,
    release_key,
)
from snapconv.units import counted

# What --cublas-workspace models, by the name that a capture has for it.
BLAS = "workspaces of cuBLAS"
# Freed blocks that another stream has not passed yet: only a GPU's times say how long they wait.
_LAGGING_STREAMS = "freed blocks that wait for another stream"
# The memory of the simulated device by default: an 80 GB card.
_DEFAULT_TOTAL_BYTES = 80 << 30


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How the simulated GPU behaves.

    ``compute`` False evaluates shapes only: no values, next to no memory or time.
    ``capacity_bytes`` None reports 80 GiB and never runs out; a number makes the allocator run out
    there, as a GPU of that much usable memory would. ``cublas_workspace`` adds the workspace that
    cuBLAS gets at its first use per device and stream. ``n_devices`` is how many devices the script
    sees. ``is_routing_worst``: indices that are not computed are the same in most rows, and not
    evenly spread. ``job`` is the job of several ranks of which the process plays one, None for the
    launcher's own.
    """

    compute: bool = True
    capacity_bytes: int | None = None
    cublas_workspace: bool = False
    n_devices: int = 1
    is_routing_worst: bool = False
    job: RankOfJob | None = None

    @property
    def total_bytes(self) -> int:
        """The memory of each simulated device."""
        return _DEFAULT_TOTAL_BYTES if self.capacity_bytes is None else self.capacity_bytes


def _clock() -> Callable[[], int]:
    """Make a clock of epoch microseconds that never goes back, even if the system's clock does."""
    start_ns = time.time_ns() - time.perf_counter_ns()

    def time_us() -> int:
        return (start_ns + time.perf_counter_ns()) // 1000

    return time_us


_FIRST_ADDR = 0x7F00_0000_0000
_ADDRS_PER_DEVICE = 1 << 40


def _release() -> str:
    return str(getattr(sys.modules.get("torch"), "__version__", NEWEST_RELEASE))


def _settings() -> AllocatorSettings:
    """Read the settings of the allocator in the environment."""
    try:
        return AllocatorSettings.from_environment(os.environ, _release())
    except SettingError as error:
        raise RecorderError(str(error)) from error


def torch_error(
    error: SettingError, release: str, *, is_runtime: bool = False
) -> Exception:
    """Return the error that a release of torch raises for a text of settings."""
    error_type = error.runtime_type if is_runtime else error.error_type
    # Older releases raise RuntimeError for all: ValueError came with torch 2.10, and IndexError,
    # for numbers that are too large, with 2.15.
    since = (2, 15) if error_type is IndexError else (2, 10)
    has_own_type = release_key(release) >= since
    return error_type(str(error)) if has_own_type else RuntimeError(str(error))


@dataclass(slots=True)
class Device:
    """One simulated device."""

    index: int
    allocator: CachingAllocator
    statistics: Statistics
    stream: int = 0
    # Which pool a thread's allocations come from, the oldest first; how often each pool is in use.
    routes: list[tuple[int, PoolId]] = field(default_factory=list)
    n_pool_uses: Counter[PoolId] = field(default_factory=Counter)

    def pool(self) -> PoolId:
        """Return the pool that the present thread allocates from."""
        thread = current_thread() if self.routes else 0
        return next((pool for key, pool in self.routes if key == thread), DEFAULT_POOL)


def _do_nothing() -> None:
    pass


class Machine:
    """All simulated devices, used by one thread at a time.

    A garbage collection may free tensors during an allocation: such frees wait until the allocator
    is done.
    """

    def __init__(self, options: SimulationOptions) -> None:
        self.options = options
        self.settings = _settings()
        # The program may change the environment until the first allocation, or until it sets or
        # asks for a memory fraction: torch reads it when CUDA starts.
        self._reads_environment = True
        self.clock = _clock()
        self.history = EventRings(options.n_devices)
        self.stacks = Stacks()
        self.devices = [self._device(index) for index in range(options.n_devices)]
        self.current_device = 0
        # As the program set it. Nothing is warned of: no operation of a simulated device waits.
        self.sync_debug_mode = 0
        self.observers: list[OutOfMemoryObserver] = []
        # Called before any figure is read: transfers.py may have deferred an allocation.
        self.allocate_all_deferred: Callable[[], None] = _do_nothing
        # What the user should know of this run, by slug.
        self.notes: dict[str, Note] = {}
        # The features without a model that the program used: a set in the order of first use.
        self.not_modelled: dict[str, None] = {}
        # The lines that receive objects of other ranks: a set in the order of first use.
        self.objects_of_others: dict[str, None] = {}
        self._lock = threading.RLock()
        self._is_busy = False
        self._late_frees: deque[Callable[[], None]] = deque()

    @property
    def has_started(self) -> bool:
        """Say whether the program has used a device: its settings are read then."""
        return not self._reads_environment

    def _device(self, index: int) -> Device:
        statistics = Statistics()
        addresses = AddressSpace(_FIRST_ADDR + index * _ADDRS_PER_DEVICE)

        def listen(event: RecordedEvent) -> None:
            statistics.listen(event)
            self.history.listen(index, event)

        allocator = CachingAllocator(
            device=index,
            settings=self.settings,
            capacity=self.options.capacity_bytes,
            clock=self.clock,
            addresses=addresses,
            listener=listen,
        )
        return Device(index, allocator, statistics)

    def note_not_modelled(self, feature: str, note: Note | None = None) -> None:
        """Remember that the program uses a feature whose memory on a GPU is not modelled.

        The capture lists these features, and has ``note``, which says what differs, once.
        """
        self.not_modelled.setdefault(feature)
        if note is not None:
            self.notes.setdefault(note.slug, note)

    def device_count(self) -> int:
        """Return how many devices there are."""
        return len(self.devices)

    def device(self, index: int | None) -> Device:
        """Return a device by ordinal; None or a negative number for the current one."""
        if index is None or index < 0:
            index = self.current_device
        return self.devices[index]

    def checked(self, index: int) -> int:
        """Return a device ordinal; refuse one that no device has, as CUDA does."""
        n_devices = len(self.devices)
        if not 0 <= index < n_devices:
            error = RuntimeError(
                f"CUDA error: invalid device ordinal (cuda:{index}; the simulation has "
                f"{counted(n_devices, 'device')}; `--device {index}` gives it more)"
            )
            raise for_program(error)
        return index

    def ordinal(self, device: Any) -> int | None:
        """Read a device argument: the ordinal of a CUDA device, None for one of another kind."""
        if isinstance(device, int):
            return self.checked(device)
        import torch

        device = torch.device(device)
        if device.type != "cuda":
            return None
        return self.checked(self.current_device if device.index is None else device.index)

    def exchange_device(self, index: int | None) -> int:
        """Make a device the current one, unless it is None or negative; return the former one."""
        before = self.current_device
        if index is not None and index >= 0:
            self.current_device = self.checked(index)
        return before

    def frames(self, context: str = "state", within: tuple[str, ...] = ()) -> Frames | None:
        """Capture the stack if the history keeps those of a context; None otherwise.

        Allocations ask for "state", frees and returned segments for "all" (history.py). ``within``
        are C++ functions that only a GPU's operation calls (stacks.py).
        """
        if not self.history.wants(context):
            return None
        return self.stacks.capture(has_cpp=self.history.has_cpp, within=within)

    def malloc(self, index: int, n_bytes: int, frames: Frames | None = None) -> int:
        """Allocate on the device's current stream; raise torch's OutOfMemoryError if that fails."""
        if self._reads_environment:
            self._start()
        device = self.devices[index]
        frames = frames or self.frames()
        try:
            return int(self._alone(self._malloc, device, n_bytes, frames))
        except ModelOutOfMemory as error:
            # As in torch, the observers run with the allocator unlocked and the event recorded.
            for observer in self.observers:
                observer(index, error.segment_bytes, error.capacity, error.free_bytes)
            import torch

            raised: Exception = torch.cuda.OutOfMemoryError(str(error))
            raise for_program(raised) from None

    def _malloc(self, device: Device, n_bytes: int, frames: Frames | None) -> int:
        statistics = device.statistics
        n_freed = statistics.n_segments_freed
        # All work is done at once here: streams have passed what was freed before (process_events
        # in malloc). A GPU that lags behind reserves more. While a thread allocates from a pool of
        # its own, torch completes no such free, and gives nothing back for a second attempt.
        is_plain = device.allocator.gives_back = not device.routes
        if is_plain:
            device.allocator.process_events(frames)
        try:
            addr = device.allocator.malloc(
                n_bytes, stream=device.stream, pool=device.pool(), frames=frames
            )
        except ModelOutOfMemory:
            statistics.n_retries += is_plain
            raise
        # A malloc that gave segments back had failed once (malloc's retries with alloc_block).
        statistics.n_retries += statistics.n_segments_freed > n_freed
        return addr

    def free(self, index: int, addr: int) -> None:
        """Free an address, now or, inside an allocation, right after it."""
        with self._lock:
            if self._is_busy:
                self._late_frees.append(partial(self.free, index, addr))
                return
        frames = self.frames("all")
        self._alone(self.devices[index].allocator.free, addr, frames=frames)

    def free_addr(self, addr: int) -> None:
        """Free an address of whichever device has it."""
        self.free((addr - _FIRST_ADDR) // _ADDRS_PER_DEVICE, addr)

    def annotate_block(self, addr: int, text: str) -> None:
        """Record a text about an allocation that exists, as ``_annotate_tensor`` does (2.15)."""
        index = (addr - _FIRST_ADDR) // _ADDRS_PER_DEVICE
        if addr and 0 <= index < len(self.devices):
            stream = self.devices[index].stream
            event = RecordedEvent(
                "annotate", addr, 0, stream, DEFAULT_POOL, self.clock(), self.frames(), None
            )
            self._alone(self.history.annotate_block, index, event, text)

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
                free = self._late_frees.popleft()
            except IndexError:  # another thread has done it just now
                break
            free()
        return result

    def record_stream(self, index: int, addr: int, stream: int) -> None:
        """Let a block's free wait for a stream, if there is a block."""
        if addr:
            self.note_not_modelled(_LAGGING_STREAMS)
            self._alone(self.devices[index].allocator.record_stream, addr, stream)

    def synchronize(self, index: int | None = None) -> None:
        """Let all work of a device end: the next allocation completes what waited for it."""
        self.allocate_all_deferred()
        allocator = self.device(index).allocator
        self._alone(allocator.process_events, None)

    def empty_cache(self) -> None:
        """Give cached segments of all devices back."""
        self.allocate_all_deferred()
        frames = self.frames("all")
        for device in self.devices:
            self._alone(device.allocator.empty_cache, frames=frames)

    def keep_pool(self, index: int, pool: PoolId) -> None:
        """Count one more use of a pool: its free memory stays while there is any."""
        device = self.devices[index]
        device.n_pool_uses[pool] += 1
        device.allocator.unused_pools.discard(pool)

    def release_pool(self, index: int, pool: PoolId) -> None:
        """End a use of a pool; the last one lets ``empty_cache`` give its memory back."""
        device = self.devices[index]
        device.n_pool_uses[pool] -= 1
        if not device.n_pool_uses[pool]:
            device.allocator.unused_pools.add(pool)

    def n_uses(self, index: int, pool: PoolId) -> int:
        """Count the uses of a pool."""
        return self.devices[index].n_pool_uses[pool]

    def delete_pool(self, index: int, pool: PoolId) -> None:
        """End the program's use of a pool, and give its free memory back; late, as ``free``."""
        with self._lock:
            if self._is_busy:
                self._late_frees.append(partial(self.delete_pool, index, pool))
                return
        self.allocate_all_deferred()
        self.release_pool(index, pool)
        if not self.n_uses(index, pool):
            allocator = self.devices[index].allocator
            self._alone(allocator.empty_pool, pool, frames=self.frames("all"))

    def route(self, index: int, pool: PoolId) -> None:
        """Let the present thread's allocations on a device come from a pool."""
        self.allocate_all_deferred()
        routes = self.devices[index].routes
        if any(in_use == pool for _, in_use in routes):
            message = "beginAllocateToPool: already recording to mempool_id"
            raise for_program(RuntimeError(message))
        self.keep_pool(index, pool)
        routes.append((current_thread(), pool))

    def end_route(self, index: int, pool: PoolId) -> None:
        """End what ``route`` began."""
        self.allocate_all_deferred()
        self.devices[index].routes.remove((current_thread(), pool))
        self.release_pool(index, pool)

    def memory_stats(self, index: int | None) -> dict[str, Any]:
        """Write a device's counters as torch's nested dict."""
        self.allocate_all_deferred()
        device = self.device(index)
        segments = self._alone(device.allocator.segments)
        limit = self.settings.max_split_size_bytes
        return device.statistics.as_nested_dict(
            segments, max_split_size=-1 if limit is None else limit
        )

    def reset_peaks(self, index: int | None) -> None:
        """Let a device's peaks start from the present."""
        self.allocate_all_deferred()
        self.device(index).statistics.reset_peaks()

    def reset_accumulated(self, index: int | None) -> None:
        """Let a device's sums start from zero."""
        self.device(index).statistics.reset_accumulated()

    def _start(self) -> None:
        """Take the environment's settings and its fraction, as torch does when CUDA starts."""
        self.set_settings()
        fraction = self.settings.memory_fraction
        if fraction < 1:
            for device in self.devices:
                self.set_fraction(fraction, device.index)

    def set_settings(self, conf: str | None = None) -> None:
        """Replace the allocator's settings from here on; a refused text changes some too."""
        self._reads_environment = False
        error = None
        if conf is None:
            self.settings = _settings()
        else:
            self.settings, error = self.settings.reconfigured(conf, _release())
        for device in self.devices:
            device.allocator.settings = self.settings
        if error:
            raise torch_error(error, _release(), is_runtime=True)

    def set_fraction(self, fraction: float, index: int | None) -> None:
        """Let a device run out at a part of its memory (set_per_process_memory_fraction)."""
        if self._reads_environment:
            # The environment's fraction comes first: this one replaces it.
            self._start()
        allocator = self.device(index).allocator
        total_bytes = allocator.total_bytes = self.options.total_bytes
        capacity = allocator.ledger.capacity = int(fraction * total_bytes)
        # Only a limit below the whole device makes torch collect garbage.
        allocator.limit = capacity if fraction < 1 else None

    def fraction(self, index: int | None) -> float:
        """Return the part of its memory at which a device runs out, 1.0 where none is set.

        As in torch, it is a quotient of whole bytes, and may differ a little from the fraction that
        was set. The environment's counts until the program sets one.
        """
        if self._reads_environment:
            self._start()
        capacity = self.device(index).allocator.ledger.capacity
        return 1.0 if capacity is None else capacity / self.options.total_bytes

    def free_and_total(self, index: int | None) -> tuple[int, int]:
        """Answer cudaMemGetInfo: the device's memory outside its segments, and all of it."""
        self.allocate_all_deferred()
        total_bytes = self.options.total_bytes
        free_bytes = total_bytes - self.device(index).allocator.ledger.reserved_bytes
        return max(free_bytes, 0), total_bytes

    def snapshot(self, *, include_traces: bool = True) -> dict[str, Any]:
        """Build what ``torch._C._cuda_memorySnapshot`` returns in torch 2.13."""
        self.allocate_all_deferred()
        snapshot: dict[str, Any] = self._alone(self._read)
        if not include_traces:
            snapshot["device_traces"] = [[] for _ in self.devices]
            snapshot["external_annotations"] = []
        self.stacks.symbolise(
            holder["frames"] for holder in holders(snapshot) if "frames" in holder
        )
        return snapshot

    def _read(self) -> dict[str, Any]:
        """Read segments and traces at one moment, and add this snapshot's event to the trace.

        As torch does: the next snapshot has it, this one does not.
        """
        traces = self.history.traces()
        annotations = self.history.annotations()
        segments: list[dict[str, Any]] = []
        for device in self.devices:
            segments += device.allocator.segments()
            device.allocator.note_snapshot()
        return {
            "segments": segments,
            "device_traces": traces,
            "allocator_settings": self.settings.as_snapshot(),
            "external_annotations": annotations,
        }

    def record_history(self, *arguments: Any, **options: Any) -> None:
        """Turn recording on or off with nothing happening meanwhile."""
        self.allocate_all_deferred()
        self._alone(self.history.switch, *arguments, **options)

    def annotate(self, name: str, stage: str) -> None:
        """Keep the begin or the end of a ``record_function`` range."""
        with self._lock:  # a snapshot reads them
            self.history.annotate(
                name, stage, device=self.current_device, time_us=self.clock()
            )
