"""What listens to the allocators: the rings of ``_snapshot()``, and the counters of ``memory_stats()``.

Knows the arguments of ``_record_memory_history`` in both its signatures, and what each keeps. Counts events
and block sizes; what needs the blocks themselves (inactive splits) is passed to each query.
"""

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import wraps
from typing import Any

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES
from snapconv.allocator.allocator_trace import RecordedEvent
from snapconv.recorder.program.own_frames import for_program
from snapconv.simulation.patches import Patches

_CONTEXTS = {None: 0, "state": 1, "alloc": 2, "all": 3}


@dataclass(frozen=True, slots=True)
class _Kept:
    event: RecordedEvent
    user_metadata: str
    has_frames: bool

    def as_entry(self) -> dict[str, object]:
        entry = self.event.as_entry()
        entry["user_metadata"] = self.user_metadata
        if not self.has_frames:
            entry.pop("frames", None)
        return entry


class History:
    """What is recorded of all devices, from ``_record_memory_history`` on."""

    def __init__(self, n_devices: int) -> None:
        self.is_on = False
        self.has_cpp = False
        self.user_metadata = ""
        self._context = 0
        self._skipped: Collection[str] = ()
        self._rings: list[deque[_Kept]] = [deque() for _ in range(n_devices)]
        self._annotations: deque[dict[str, object]] = deque()

    @property
    def wants_allocation_frames(self) -> bool:
        """Whether an allocation's stack is kept, be it with the block only."""
        return self.is_on and self._context >= _CONTEXTS["state"]

    @property
    def wants_free_frames(self) -> bool:
        """Whether the stack of a free is kept."""
        return self.is_on and self._context >= _CONTEXTS["all"]

    def switch(
        self,
        enabled: str | None,
        context: str | None,
        stacks: str,
        max_entries: int,
        *,
        clear_history: bool = False,
        skip_actions: Collection[str] = (),
    ) -> None:
        """Turn recording on or off, as torch 2.1 and later do.

        Off forgets the trace; "state" keeps a ring of one entry (torch/csrc/cuda/memory_snapshot.cpp).
        """
        if enabled not in (None, "state", "all"):
            raise for_program(RuntimeError("expected state to be 'state', 'all', or None"))
        if context not in _CONTEXTS:
            raise for_program(RuntimeError("expected context to be 'state', 'alloc', 'all', or None"))
        if stacks not in ("python", "all"):
            raise for_program(RuntimeError("expected stacks to be 'python', or 'all'"))
        self._start(
            is_on=enabled is not None,
            context=_CONTEXTS[context],
            has_cpp=stacks == "all",
            max_entries=max_entries if enabled == "all" else 1,
        )
        self._skipped = frozenset(skip_actions)
        if enabled is None or clear_history:
            self.clear()

    def switch_legacy(
        self,
        enabled: bool,  # noqa: FBT001  # torch's own positional signature
        record_context: bool,  # noqa: FBT001
        max_entries: int,
        trace_context: bool,  # noqa: FBT001
        has_cpp: bool,  # noqa: FBT001
    ) -> None:
        """Turn recording on or off with the arguments of torch 2.0, which are still accepted."""
        context = 0
        if record_context:
            context = _CONTEXTS["alloc"] if trace_context else _CONTEXTS["state"]
        self._start(is_on=bool(enabled), context=context, has_cpp=has_cpp, max_entries=max_entries)
        if not enabled:
            self.clear()

    def _start(self, *, is_on: bool, context: int, has_cpp: bool, max_entries: int) -> None:
        self.is_on, self.has_cpp = is_on, has_cpp
        self._context = context if is_on else 0
        size = max(min(max_entries, _LONGEST_RING), 1)
        self._rings = [deque(ring, maxlen=size) for ring in self._rings]
        self._annotations = deque(self._annotations, maxlen=size)

    def clear(self) -> None:
        """Forget every event and annotation."""
        for ring in self._rings:
            ring.clear()
        self._annotations.clear()

    def listen(self, device: int, event: RecordedEvent) -> None:
        """Keep one event if recording is on."""
        if self.is_on and event.action not in self._skipped:
            has_frames = self._context >= _CONTEXTS["alloc"]
            self._rings[device].append(_Kept(event, self.user_metadata, has_frames))

    def annotate(self, name: str, stage: str, *, device: int, time_us: int) -> None:
        """Keep the begin or the end of a ``record_function`` range."""
        if self.is_on:
            self._annotations.append({"name": name, "stage": stage, "device": device, "time_us": time_us})

    def traces(self) -> list[list[dict[str, object]]]:
        """List every device's events as torch's trace entries, oldest first."""
        return [[kept.as_entry() for kept in ring] for ring in self._rings]

    def annotations(self) -> list[dict[str, Any]]:
        """List the begins and ends of the ranges, oldest first."""
        return [dict(annotation) for annotation in list(self._annotations)]


# sys.maxsize, torch's default, is more than a deque takes on some platforms.
_LONGEST_RING = 1 << 31


def patch_annotations(annotate: Callable[[str, str], None], patches: Patches) -> None:
    """Note every range's begin and end; torch's optimizers and loaders make ranges of their own accord."""
    from torch.autograd.profiler import record_function

    def make_enter(real: Any) -> Any:
        @wraps(real)
        def enter(self: Any) -> Any:
            result = real(self)
            annotate(self.name, "START")
            return result

        return enter

    def make_exit(real: Any) -> Any:
        @wraps(real)
        def leave(self: Any, *error: Any) -> Any:
            annotate(self.name, "END")
            return real(self, *error)

        return leave

    patches.wrap(record_function, "__enter__", make_enter)
    patches.wrap(record_function, "__exit__", make_exit)


# The metrics that events change, under their keys in torch's nested dict (DeviceStats in
# c10/core/CachingDeviceAllocator.h).
_METRICS = (
    "allocation",
    "segment",
    "active",
    "allocated_bytes",
    "reserved_bytes",
    "active_bytes",
    "requested_bytes",
)
_INACTIVE = ("inactive_split", "inactive_split_bytes")
_POOLS = ("all", "small_pool", "large_pool")


class Counter:
    """One metric of one pool: its value, the highest since the last reset, all that went in and out."""

    __slots__ = ("allocated", "current", "freed", "peak")

    def __init__(self) -> None:
        self.current = self.peak = self.allocated = self.freed = 0

    def add(self, amount: int) -> None:
        """Increase, or decrease by a negative amount."""
        self.current += amount
        if amount > 0:
            self.allocated += amount
            self.peak = max(self.peak, self.current)
        else:
            self.freed -= amount

    def as_dict(self) -> dict[str, int]:
        """Write the four figures under torch's names."""
        return {
            "current": self.current,
            "peak": self.peak,
            "allocated": self.allocated,
            "freed": self.freed,
        }


class Statistics:
    """One device's counters, kept up by listening to its allocator."""

    def __init__(self) -> None:
        self._counters = {name: {pool: Counter() for pool in _POOLS} for name in (*_METRICS, *_INACTIVE)}
        self.n_ooms = 0
        self.n_retries = 0
        self.n_segments_freed = 0
        self.n_segments_got = 0

    @property
    def peak_allocated_bytes(self) -> int:
        """What ``torch.cuda.max_memory_allocated()`` returns."""
        return self._counters["allocated_bytes"]["all"].peak

    def listen(self, event: RecordedEvent) -> None:
        """Count one event."""
        if event.action == "alloc":
            self._count_block(event, 1, "allocation", "active", "allocated_bytes", "active_bytes")
        elif event.action == "free_requested":
            self._count_block(event, -1, "allocation", None, "allocated_bytes", None)
        elif event.action == "free_completed":
            self._count_block(event, -1, None, "active", None, "active_bytes")
        elif event.action in ("segment_alloc", "segment_map"):
            self.n_segments_got += 1
            self._count_segment(event, 1)
        elif event.action in ("segment_free", "segment_unmap"):
            self.n_segments_freed += 1
            self._count_segment(event, -1)
        elif event.action == "oom":
            self.n_ooms += 1

    def _count_block(
        self, event: RecordedEvent, sign: int, count: str | None, active: str | None, *sizes: str | None
    ) -> None:
        block_bytes = event.block_bytes or 0
        pool = "small_pool" if block_bytes <= SMALL_REQUEST_BYTES else "large_pool"
        for name in (count, active):
            if name is not None:
                self._add(name, pool, sign)
        for name in sizes:
            if name is not None:
                self._add(name, pool, sign * block_bytes)
        # requested_bytes follows the active blocks (CUDACachingAllocator.cpp: malloc, free_block).
        if active is not None:
            self._add("requested_bytes", pool, sign * event.size)

    def _count_segment(self, event: RecordedEvent, sign: int) -> None:
        pool = "small_pool" if event.size <= SMALL_SEGMENT_BYTES else "large_pool"
        self._add("segment", pool, sign)
        self._add("reserved_bytes", pool, sign * event.size)

    def _add(self, name: str, pool: str, amount: int) -> None:
        pools = self._counters[name]
        pools["all"].add(amount)
        pools[pool].add(amount)

    def reset_peaks(self) -> None:
        """Let every peak start from the present value."""
        for counter in self._all():
            counter.peak = counter.current

    def reset_accumulated(self) -> None:
        """Forget what went in and out so far, and the counts of failures."""
        for counter in self._all():
            counter.allocated = counter.freed = 0
        self.n_ooms = self.n_retries = self.n_segments_freed = self.n_segments_got = 0

    def _all(self) -> list[Counter]:
        return [counter for pools in self._counters.values() for counter in pools.values()]

    def as_nested_dict(self, segments: list[dict[str, Any]], *, max_split_size: int) -> dict[str, Any]:
        """Write what ``torch._C._cuda_memoryStats`` returns, given the allocator's segments.

        Inactive splits are counted here: their present value is exact, their peak is the highest that
        was ever requested.
        """
        self._count_inactive(segments)
        nested: dict[str, Any] = {
            name: {pool: counter.as_dict() for pool, counter in pools.items()}
            for name, pools in self._counters.items()
        }
        nested["oversize_allocations"] = Counter().as_dict()
        nested["oversize_segments"] = Counter().as_dict()
        return nested | {
            "num_alloc_retries": self.n_retries,
            "num_ooms": self.n_ooms,
            "num_sync_all_streams": 0,
            "num_device_alloc": self.n_segments_got,
            "num_device_free": self.n_segments_freed,
            "max_split_size": max_split_size,
        }

    def _count_inactive(self, segments: list[dict[str, Any]]) -> None:
        for segment in segments:
            segment_pool = f"{segment['segment_type']}_pool"
            if len(segment["blocks"]) > 1:
                for block in segment["blocks"]:
                    if block["state"] == "inactive":
                        self._add("inactive_split", segment_pool, 1)
                        self._add("inactive_split_bytes", segment_pool, block["size"])
