"""Allocator events -> the counters of ``torch.cuda.memory_stats()``.

Uses events and block sizes, no blocks: what needs the blocks (inactive splits) is passed to each query.
"""

from typing import Any

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES
from snapconv.allocator.allocator_trace import RecordedEvent

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
