"""CUDA graphs without CUDA: what a program captures runs once, as it is written, and is not replayed."""

from typing import Any

from snapconv.notes import Note
from snapconv.simulation.devices.machine import Machine
from snapconv.simulation.not_modelled import GRAPHS
from snapconv.simulation.patches import Patches

_NOTE = Note(
    "graphs-as-eager",
    "what CUDA graphs capture ran once, as it is written: their own memory pool is not in the capture, and "
    "a replay does nothing, so that what it would compute stays as it was",
)
# What names a pool in torch: a pair of numbers.
_POOL = (0, 1)


def patch_graphs(machine: Machine, patches: Patches) -> None:
    """Let torch.cuda.graph and what is built on it run without graphs."""
    import torch

    def meet() -> None:
        machine.meet(GRAPHS)
        machine.note(_NOTE)

    class CUDAGraph:
        """A graph of nothing. A class, since libraries annotate ``CUDAGraph | None``."""

        def __new__(cls, *args: Any, **kwargs: Any) -> Any:
            meet()
            return super().__new__(cls)

        def pool(self) -> tuple[int, int]:
            """Name the graph's memory pool."""
            return _POOL

    for name in (
        "capture_begin",
        "capture_end",
        "instantiate",
        "replay",
        "reset",
        "enable_debug_mode",
        "debug_dump",
    ):
        setattr(CUDAGraph, name, _nothing)
    CUDAGraph.__module__ = "torch.cuda.graphs"

    def make_graphed_callables(callables: Any, *args: Any, **kwargs: Any) -> Any:
        meet()
        return callables

    graphs = torch.cuda.graphs
    for owner in (torch.cuda, graphs):
        patches.set_existing(owner, "CUDAGraph", CUDAGraph)
        patches.set_existing(owner, "make_graphed_callables", make_graphed_callables)
    patches.set_existing(graphs, "_graph_pool_handle", lambda: _POOL, otherwise=_POOL)
    patches.set(torch._C, "_host_emptyCache", lambda: None)
    # A stream of the simulation must not outlive it.
    patches.set(graphs.graph, "default_capture_stream", None)


def _nothing(*_args: Any, **_kwargs: Any) -> None:
    """Do nothing."""
