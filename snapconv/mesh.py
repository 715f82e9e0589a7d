"""The device mesh of a job: its axes, and the coordinates of every rank on them.

Ranks are numbered as torch's ``init_device_mesh`` and Megatron number them: the last axis changes
with each.
"""

from dataclasses import dataclass
from math import prod

# How names of the axis of pipeline stages begin.
STAGES = ("pp", "pipe", "stage")
_MAX_RANKS = 1 << 20


@dataclass(frozen=True, slots=True)
class Mesh:
    """The axes of a mesh with their sizes, the outermost first."""

    axes: tuple[tuple[str, int], ...]

    @classmethod
    def parse(cls, text: str) -> "Mesh":
        """Read ``pp=4,dp=8,tp=2``; raises ValueError for anything else."""
        axes = []
        for part in text.split(","):
            name, _, size = part.strip().partition("=")
            is_size = size.isdecimal() and 0 < int(size) <= _MAX_RANKS
            if not name.isidentifier() or not is_size:
                raise ValueError(
                    f"expected axes and their sizes, such as pp=4,dp=8,tp=2, got {text!r}"
                )
            axes.append((name.lower(), int(size)))
        if len(dict(axes)) < len(axes):
            raise ValueError(
                f"expected axes that differ, such as pp=4,dp=8,tp=2, got {text!r}"
            )
        if prod(size for _, size in axes) > _MAX_RANKS:
            raise ValueError(f"expected at most {_MAX_RANKS} ranks, got {text!r}")
        return cls(tuple(axes))

    @property
    def n_ranks(self) -> int:
        """The number of ranks in the mesh."""
        return prod(size for _, size in self.axes)

    def coordinates(self, rank: int) -> dict[str, int]:
        """Return the coordinate of a rank on every axis."""
        coordinates = {}
        for name, size in reversed(self.axes):
            rank, coordinates[name] = divmod(rank, size)
        return dict(reversed(coordinates.items()))

    def first_of_stages(self) -> frozenset[int]:
        """Return the first rank of every pipeline stage."""
        return frozenset(filter(self._is_first_of_stage, range(self.n_ranks)))

    def _is_first_of_stage(self, rank: int) -> bool:
        for name, coordinate in self.coordinates(rank).items():
            if coordinate and not name.startswith(STAGES):
                return False
        return True
