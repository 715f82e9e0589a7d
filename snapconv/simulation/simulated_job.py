"""A job of several ranks of which this one process is one: its place, and a launcher's variables.

Imports no torch: the command line reads the place before anything runs.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

# As many ranks as a node has by default: a server's usual number of GPUs.
RANKS_PER_NODE = 8


@dataclass(frozen=True, slots=True)
class RankOfJob:
    """The rank that is simulated, of ``n_ranks`` on nodes with ``n_ranks_per_node`` each.

    Raises ValueError where such a job cannot be.
    """

    rank: int
    n_ranks: int
    n_ranks_per_node: int

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.n_ranks:
            raise ValueError(
                f"a job of {self.n_ranks} has the ranks 0 to {self.n_ranks - 1}, not {self.rank}"
            )
        if self.n_ranks % self.n_ranks_per_node:
            raise ValueError(
                f"{self.n_ranks} ranks do not fill nodes of {self.n_ranks_per_node}: give the "
                "number of each node with --nproc-per-node"
            )

    @classmethod
    def create(cls, rank: int, n_ranks: int, n_ranks_per_node: int | None) -> "RankOfJob":
        """Place a rank; None for nodes of 8, or for a smaller job on one node."""
        return cls(rank, n_ranks, n_ranks_per_node or min(n_ranks, RANKS_PER_NODE))

    @property
    def local_rank(self) -> int:
        """The rank within its node, which is the number of its device by custom."""
        return self.rank % self.n_ranks_per_node

    @property
    def node_rank(self) -> int:
        """The number of its node."""
        return self.rank // self.n_ranks_per_node

    def variables(self) -> dict[str, str]:
        """Return the environment variables that torchrun sets (torch/distributed/run.py)."""
        numbers = {
            "LOCAL_RANK": self.local_rank,
            "RANK": self.rank,
            "GROUP_RANK": self.node_rank,
            "ROLE_RANK": self.rank,
            "LOCAL_WORLD_SIZE": self.n_ranks_per_node,
            "WORLD_SIZE": self.n_ranks,
            "GROUP_WORLD_SIZE": self.n_ranks // self.n_ranks_per_node,
            "ROLE_WORLD_SIZE": self.n_ranks,
            "MASTER_PORT": 29500,
            "TORCHELASTIC_RESTART_COUNT": 0,
            "TORCHELASTIC_MAX_RESTARTS": 0,
        }
        return {
            **{name: str(number) for name, number in numbers.items()},
            "ROLE_NAME": "default",
            "MASTER_ADDR": "127.0.0.1",
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        }

    @contextmanager
    def environment(self) -> Iterator[None]:
        """Set the variables within the context."""
        with set_variables(self.variables()):
            yield


@contextmanager
def set_variables(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables within the context."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value
