"""What a file is that is no snapshot of an allocator."""

from dataclasses import dataclass

from snapconv.units import counted


@dataclass(frozen=True, slots=True)
class Form:
    """What was written, and what it ``lacks``, which a reader of its answers should know.

    ``kinds`` are those of its devices, in the order of its traces: one that the file does not name
    is called ``device``. ``earlier`` says of each what of its memory is from before the first
    event, empty where nothing is.
    """

    title: str
    lacks: str
    writer: str = "torch.profiler"
    kinds: tuple[str, ...] = ("device",)
    earlier: tuple[str, ...] = ("",)

    def earlier_of(self, device: int) -> str:
        """Return what of a device's memory is from before its first event."""
        return self.earlier[min(device, len(self.earlier) - 1)]


def earlier_allocations(n: int) -> str:
    """Say that a profile has so many allocations from before it, and of those not all."""
    if not n:
        return ""
    allocations = f"{counted(n, 'allocation')} from before its first event"
    return f"the file has {allocations}, and only what was used or freed later"
