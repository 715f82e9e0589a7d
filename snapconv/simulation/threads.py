"""Threads that the user's program starts see the simulated devices too: torch's modes are per thread."""

import os
import threading
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from snapconv.simulation.patches import Patches


def patch_threads(enter_modes: Callable[[], ExitStack], patches: Patches) -> None:
    """Let every new thread of this process enter the modes before its own code."""
    pid = os.getpid()

    def make(real: Callable[[Any], None]) -> Callable[[Any], None]:
        def bootstrap(thread: Any) -> None:
            if os.getpid() != pid:  # a forked worker computes on the CPU
                real(thread)
                return
            with enter_modes():
                real(thread)

        return bootstrap

    # Not `run`, which subclasses override.
    patches.wrap(threading.Thread, "_bootstrap_inner", make)
