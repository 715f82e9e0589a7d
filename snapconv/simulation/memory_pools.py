"""torch.cuda.MemPool on simulated devices: pools whose memory serves no other allocation.

As MemPool.cpp and CUDACachingAllocator.cpp of torch 2.13 do, for pools without options.
"""

import inspect
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any

from snapconv.guest.own_frames import for_program
from snapconv.simulation.machine import Machine
from snapconv.simulation.not_modelled import refusal
from snapconv.simulation.patches import Patches


def patch_pools(machine: Machine, patches: Patches) -> None:
    """Give torch.cuda pools of the machine's devices."""
    memory = sys.modules["torch.cuda.memory"]
    real = getattr(memory, "MemPool", None)
    if real is None:
        return
    kind = _pool_class(machine, inspect.signature(real.__init__))

    @contextmanager
    def use_mem_pool(pool: Any, device: Any = None) -> Iterator[None]:
        """Let this thread's allocations on a device come from a pool."""
        index = machine.ordinal("cuda" if device is None else device)
        if index is None:
            raise for_program(ValueError(f"Expected a cuda device, but got: {device}"))
        machine.route(index, pool.id)
        try:
            yield
        finally:
            machine.end_route(index, pool.id)

    for owner in (memory, sys.modules["torch.cuda"]):
        patches.set_existing(owner, "MemPool", kind)
        patches.set_existing(owner, "use_mem_pool", use_mem_pool)


def _pool_class(machine: Machine, signature: inspect.Signature) -> Any:
    # The user's pools are (0, 1), (0, 2), …; (0, 0) is the default one.
    numbers = count(1)

    class MemPool:
        """A pool, whose free memory goes back to the device when it is deleted."""

        __module__ = "torch.cuda.memory"

        def __init__(self, *args: Any, **options: Any) -> None:
            for name, value in signature.bind(self, *args, **options).arguments.items():
                if value and name != "self":
                    refusal(f"the argument {name} of torch.cuda.MemPool")()
            self.id = (0, next(numbers))
            self._device = machine.current_device
            machine.keep_pool(self._device, self.id)
            close = weakref.finalize(self, machine.delete_pool, self._device, self.id)
            close.atexit = False

        @property
        def allocator(self) -> None:
            """The program's own allocator: there is none."""

        def use_count(self) -> int:
            """Count the pool itself, and the contexts that allocate from it."""
            return machine.n_uses(self._device, self.id)

        def snapshot(self, include_traces: bool = True) -> Any:  # noqa: FBT001, FBT002
            """List the segments of the pool, of all devices."""
            segments = machine.snapshot(include_traces=include_traces)["segments"]
            return segments_of_pool(segments, self.id)

    return MemPool


def segments_of_pool(segments: list[dict[str, Any]], pool: Any) -> list[dict[str, Any]]:
    """Choose the segments of a pool; (0, 0) and None stand for all pools, as in torch."""
    if pool in (None, (0, 0)):
        return segments
    return [segment for segment in segments if segment["segment_pool_id"] == pool]
