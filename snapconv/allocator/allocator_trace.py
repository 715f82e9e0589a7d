"""Events of the allocator as torch's trace entries, and the ledger of its counters."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

Frames: TypeAlias = list[dict[str, object]]
PoolId: TypeAlias = tuple[int, int]

DEFAULT_POOL: PoolId = (0, 0)


@dataclass(frozen=True, slots=True)
class RecordedEvent:
    """One trace entry.

    ``size`` is torch's (the request for block actions), ``block_bytes`` the block's true size, or
    None where the action is not about a block.
    """

    action: str
    addr: int
    size: int
    stream: int
    pool: PoolId
    time_us: int
    frames: Frames | None
    block_bytes: int | None

    def as_entry(self) -> dict[str, object]:
        """Write the trace entry as torch 2.12 does; ``frames`` is absent where there were none."""
        addr_key = "device_free" if self.action == "oom" else "addr"
        entry: dict[str, object] = {
            "action": self.action,
            addr_key: self.addr,
            "size": self.size,
            "stream": self.stream,
            "time_us": self.time_us,
            "compile_context": "N/A",
            "user_metadata": "",
            "pool_id": self.pool,
        }
        if self.frames is not None:
            entry["frames"] = self.frames
        return entry


@dataclass(slots=True, eq=False)
class Ledger:
    """The counters of one device; a ``listener`` gets every event.

    ``requested_bytes`` are of active blocks, and so fall at ``free_completed``, as torch's counter
    does. ``capacity`` is the device's memory for this process; None never runs out. What takes
    memory goes through methods, since it also moves a peak or a count; the allocator subtracts what
    it gives back from the bytes directly, which moves nothing else.
    """

    clock: Callable[[], int]
    listener: Callable[[RecordedEvent], None] | None = None
    capacity: int | None = None
    requested_bytes: int = 0
    allocated_bytes: int = 0
    active_bytes: int = 0
    reserved_bytes: int = 0
    max_allocated_bytes: int = 0
    max_reserved_bytes: int = 0
    n_segment_allocs: int = 0
    n_segment_maps: int = 0

    def has_room(self, n_bytes: int) -> bool:
        """Return whether the device has so much memory left."""
        return self.capacity is None or self.reserved_bytes + n_bytes <= self.capacity

    def memory_taken(self, n_bytes: int, *, is_mapped: bool = False) -> None:
        """Count a segment or pages that the device has given."""
        self.reserved_bytes += n_bytes
        self.max_reserved_bytes = max(self.max_reserved_bytes, self.reserved_bytes)
        if is_mapped:
            self.n_segment_maps += 1
        else:
            self.n_segment_allocs += 1

    def block_taken(self, block_bytes: int, requested_bytes: int) -> None:
        """Count a block that was given out."""
        self.requested_bytes += requested_bytes
        self.allocated_bytes += block_bytes
        self.active_bytes += block_bytes
        if self.allocated_bytes > self.max_allocated_bytes:
            self.max_allocated_bytes = self.allocated_bytes

    def record(
        self,
        action: str,
        *,
        addr: int,
        size: int,
        stream: int = 0,
        pool: PoolId = DEFAULT_POOL,
        frames: Frames | None = None,
        block_bytes: int | None = None,
    ) -> None:
        """Pass an event on, with the counters as they stand now: change them first."""
        if self.listener is None:
            return
        time_us = self.clock()
        self.listener(
            RecordedEvent(action, addr, size, stream, pool, time_us, frames, block_bytes)
        )
