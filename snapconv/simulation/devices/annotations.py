"""record_function ranges -> the snapshot's ``external_annotations``."""

from functools import wraps
from typing import Any

from snapconv.simulation.devices.machine import Machine
from snapconv.simulation.patches import Patches


def patch_annotations(machine: Machine, patches: Patches) -> None:
    """Note every range's begin and end; torch's optimizers and loaders make ranges of their own accord."""
    from torch.autograd.profiler import record_function

    def note(name: str, stage: str) -> None:
        machine.history.annotate(name, stage, device=machine.current_device, time_us=machine.clock())

    def make_enter(real: Any) -> Any:
        @wraps(real)
        def enter(self: Any) -> Any:
            result = real(self)
            note(self.name, "START")
            return result

        return enter

    def make_exit(real: Any) -> Any:
        @wraps(real)
        def leave(self: Any, *error: Any) -> Any:
            note(self.name, "END")
            return real(self, *error)

        return leave

    patches.wrap(record_function, "__enter__", make_enter)
    patches.wrap(record_function, "__exit__", make_exit)
