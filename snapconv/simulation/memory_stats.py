"""Counters of the simulated allocators, as ``torch.cuda.memory_stats()`` has them."""

from copy import deepcopy
from typing import Any

from snapconv.allocator.allocator_settings import SMALL_REQUEST_BYTES, SMALL_SEGMENT_BYTES
from snapconv.allocator.allocator_trace import RecordedEvent

# The metrics and their figures under their keys in torch's nested dict (DeviceStats in
# c10/core/CachingDeviceAllocator.h): the value, the highest since the last reset, all that went in
# and out.
_METRICS = (
    "allocation segment active allocated_bytes reserved_bytes active_bytes requested_bytes"
).split()
_POOLS = ("all", "small_pool", "large_pool")
_FIGURES = ("current", "peak", "allocated", "freed")
# What an event does to a block: the sign, what counts blocks, and what adds their bytes.
_OF_BLOCKS = {
    "alloc": (1, ("allocation", "active"), ("allocated_bytes", "active_bytes")),
    "free_requested": (-1, ("allocation",), ("allocated_bytes",)),
    "free_completed": (-1, ("active",), ("active_bytes",)),
}
_OF_SEGMENTS = {
    "segment_alloc": 1,
    "segment_map": 1,
    "segment_free": -1,
    "segment_unmap": -1,
}


# The figures of one metric, by pool.
_Counters = dict[str, dict[str, int]]


def _counters() -> _Counters:
    return {pool: dict.fromkeys(_FIGURES, 0) for pool in _POOLS}


def _add(counter: dict[str, int], amount: int) -> None:
    counter["current"] += amount
    counter["allocated" if amount > 0 else "freed"] += abs(amount)
    counter["peak"] = max(counter["peak"], counter["current"])


class Statistics:
    """One device's counters, kept up by listening to its allocator."""

    def __init__(self) -> None:
        self._counters = {metric: _counters() for metric in _METRICS}
        self._every = [
            counter for pools in self._counters.values() for counter in pools.values()
        ]
        self.n_ooms = self.n_retries = self.n_segments_freed = self.n_segments_got = 0

    def listen(self, event: RecordedEvent) -> None:
        """Count one event."""
        if event.action in _OF_BLOCKS:
            sign, counts, sizes = _OF_BLOCKS[event.action]
            block_bytes = event.block_bytes or 0
            amounts = dict.fromkeys(counts, 1) | dict.fromkeys(sizes, block_bytes)
            if "active" in counts:  # CUDACachingAllocator.cpp: malloc, free_block
                amounts["requested_bytes"] = event.size
            is_small = block_bytes <= SMALL_REQUEST_BYTES
        elif event.action in _OF_SEGMENTS:
            sign = _OF_SEGMENTS[event.action]
            self.n_segments_got += sign > 0
            self.n_segments_freed += sign < 0
            amounts = {"segment": 1, "reserved_bytes": event.size}
            is_small = event.size <= SMALL_SEGMENT_BYTES
        else:
            self.n_ooms += event.action == "oom"
            return
        for name, amount in amounts.items():
            pools = self._counters[name]
            _add(pools["all"], sign * amount)
            _add(pools["small_pool" if is_small else "large_pool"], sign * amount)

    def reset_peaks(self) -> None:
        """Let every peak start from the present value."""
        for counter in self._every:
            counter["peak"] = counter["current"]

    def reset_accumulated(self) -> None:
        """Forget what went in and out so far, and the counts of failures."""
        for counter in self._every:
            counter["allocated"] = counter["freed"] = 0
        self.n_ooms = self.n_retries = self.n_segments_freed = self.n_segments_got = 0

    def as_nested_dict(
        self, segments: list[dict[str, Any]], *, max_split_size: int
    ) -> dict[str, Any]:
        """Write what ``torch._C._cuda_memoryStats`` returns, given the allocator's segments."""
        return {
            **deepcopy(self._counters),
            **_inactive_splits(segments),
            "oversize_allocations": dict.fromkeys(_FIGURES, 0),
            "oversize_segments": dict.fromkeys(_FIGURES, 0),
            "num_alloc_retries": self.n_retries,
            "num_ooms": self.n_ooms,
            "num_sync_all_streams": 0,
            "num_device_alloc": self.n_segments_got,
            "num_device_free": self.n_segments_freed,
            "max_split_size": max_split_size,
        }


def _inactive_splits(segments: list[dict[str, Any]]) -> dict[str, _Counters]:
    """Count the free blocks in segments that are split, by pool: present values alone are known."""
    counts = _counters()
    sizes = _counters()
    for segment in segments:
        blocks = segment["blocks"]
        if len(blocks) > 1:
            free = [block["size"] for block in blocks if block["state"] == "inactive"]
            for pool in ("all", f"{segment['segment_type']}_pool"):
                _add(counts[pool], len(free))
                _add(sizes[pool], sum(free))
    return {"inactive_split": counts, "inactive_split_bytes": sizes}
