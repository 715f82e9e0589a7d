"""A trial of the allocator model, and its outcome."""

from dataclasses import dataclass, field

from snapconv.allocator.allocator_settings import AllocatorSettings
from snapconv.allocator.allocator_trace import Ledger


@dataclass(frozen=True, slots=True)
class Trial:
    """The settings that are tried, and the memory that torch can have.

    ``capacity`` None never runs out. A ``memory_fraction`` below 1 is of ``device_bytes``, or of
    the capacity where that is not given; garbage collection needs it. ``is_placed_anew``: the
    blocks of before the trace are placed anew, also where the settings would let them stay where
    they were. ``is_check``: the device is full where it was in the trace, and what is reserved is
    compared with the trace after every request.
    """

    settings: AllocatorSettings
    capacity: int | None = None
    device_bytes: int | None = None
    is_placed_anew: bool = False
    is_check: bool = False

    @property
    def limit(self) -> int | None:
        """The bytes that set_per_process_memory_fraction leaves; None: no such limit."""
        total = self.capacity if self.device_bytes is None else self.device_bytes
        fraction = self.settings.memory_fraction
        return int(fraction * total) if total is not None and fraction < 1 else None


@dataclass(frozen=True, slots=True)
class FailedRequest:
    """A request that found no memory: at which event, for how much, and the memory then.

    ``event`` is -1 where the memory before the first event does not fit, ``row`` the allocation, -1
    for a request that failed in the trace too. ``pool_free_bytes``, the largest block of
    ``pool_largest_bytes``, are what could have served it if it were in one piece: of its pool and
    stream. ``short_bytes`` is what the device, or the limit, lacked for the segment that the
    request needed.
    """

    event: int
    row: int
    requested_bytes: int
    short_bytes: int
    pool_free_bytes: int
    pool_largest_bytes: int
    reserved_bytes: int
    allocated_bytes: int


@dataclass(slots=True)
class Outcome:
    """The outcome of a trial; ``ledger`` has the peaks and the counts of segments.

    ``ran_out`` is the first request that failed; one that failed in the trace too is in
    ``failed_again`` (events) and the replay goes on as the trace does, after another it ends.
    ``served`` are events of requests that failed in the trace and now do not. ``is_placed_anew``:
    the blocks of before the trace were allocated anew, and do not lie where they lay.
    ``differs_at`` is the event of a check at which the trace went on otherwise, None for none.
    """

    trial: Trial
    ledger: Ledger
    ran_out: FailedRequest | None = None
    failed_again: list[int] = field(default_factory=list)
    served: list[int] = field(default_factory=list)
    is_placed_anew: bool = False
    assumptions: tuple[str, ...] = ()
    differs_at: int | None = None

    @property
    def fits(self) -> bool:
        """Whether every request found memory."""
        return self.ran_out is None

    @property
    def reserved_bytes(self) -> int:
        """The most bytes that were reserved."""
        return self.ledger.max_reserved_bytes

    @property
    def n_driver_calls(self) -> int:
        """The number of calls that got segments, or pages of them, from the driver."""
        return self.ledger.n_segment_allocs + self.ledger.n_segment_maps
