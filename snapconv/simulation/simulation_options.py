"""The options of a simulated GPU. Imports nothing but the standard library."""

from dataclasses import dataclass

GIB = 1 << 30

# The memory of the simulated device by default: an 80 GB card.
DEFAULT_TOTAL_BYTES = 80 * GIB


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """How the simulated GPU behaves.

    ``compute`` False evaluates shapes only: no values, next to no memory or time. ``capacity_bytes``
    None reports 80 GiB and never runs out; a number makes the allocator run out there, as a GPU of
    that much usable memory would. ``cublas_workspace`` adds the workspace that cuBLAS gets at its first
    use per device and stream. ``random_weights`` builds a library's model from its configuration where its
    weights are not at hand. ``n_devices`` is how many devices the script sees.
    """

    compute: bool = True
    capacity_bytes: int | None = None
    cublas_workspace: bool = False
    random_weights: bool = False
    n_devices: int = 1

    @property
    def total_bytes(self) -> int:
        """The memory of each simulated device."""
        return DEFAULT_TOTAL_BYTES if self.capacity_bytes is None else self.capacity_bytes
