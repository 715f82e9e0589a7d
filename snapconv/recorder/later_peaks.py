"""The most memory that a program has allocated, beyond the end of its recording.

Asked of the allocator after every step, so that the iteration is known in which it came.
"""

import shlex
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from typing import Any

from snapconv.guest.own_frames import stands_in
from snapconv.guest.replacement import replaced
from snapconv.notes import Note
from snapconv.recorder.options import RecordingOptions
from snapconv.units import device_name, format_bytes

# A recording of more iterations than these loses its oldest events, as a rule.
_MANY_ITERATIONS = 100
# Both lower the counter that is asked.
_RESETS = ("_cuda_resetPeakMemoryStats", "_accelerator_resetPeakStats")


class Peaks:
    """The highest peak of every device in bytes, with the iteration that reached it first.

    ``recorded`` are those of when the snapshot was taken: what is higher came later.
    """

    iteration = 0

    def __init__(self) -> None:
        self.recorded: dict[int, tuple[int, int]] = {}
        self._highest: dict[int, tuple[int, int]] = {}

    def watch(self, parts: ExitStack) -> None:
        """Look before the program resets a peak, for as long as the context lasts."""
        import torch

        @stands_in
        def reset(real: Callable[..., None], *arguments: Any) -> None:
            self.look()
            real(*arguments)

        for name in _RESETS:
            if hasattr(torch._C, name):
                wrapper = partial(reset, getattr(torch._C, name))
                parts.enter_context(replaced(torch._C, name, wrapper))

    def look(self) -> dict[int, tuple[int, int]]:
        """Return the peaks up to now; never raises."""
        import torch

        with suppress(Exception):
            for device in range(torch.cuda.device_count()):
                n_bytes = torch.cuda.max_memory_allocated(device)
                if n_bytes > self._highest.get(device, (-1, 0))[0]:
                    self._highest[device] = n_bytes, self.iteration
        return dict(self._highest)

    def step_ended(self) -> None:
        """Go on to the next iteration."""
        self.look()
        self.iteration += 1

    def ending(self, options: RecordingOptions) -> tuple[list[dict[str, int]], list[Note]]:
        """Return the peaks as a capture has them; note each that came after the snapshot."""
        rows = []
        notes = []
        for device, (n_bytes, iteration) in self.look().items():
            rows.append(
                {"device": device, "max_memory_allocated": n_bytes, "iteration": iteration}
            )
            recorded, _ = self.recorded.get(device, (0, 0))
            if n_bytes > recorded:
                moment = f"in iteration {iteration}"
                if iteration == self.iteration:
                    moment = "after the last step"
                message = (
                    f"the program's peak on {device_name(device)} came later, {moment}: "
                    f"{format_bytes(n_bytes)}; in what is recorded it is {format_bytes(recorded)}; "
                )
                notes.append(
                    Note("later-peak", message + _how_to_record(iteration, options))
                )
        return rows, notes


def _how_to_record(iteration: int, options: RecordingOptions) -> str:
    """Return the command that records up to an iteration: its warm-up is one iteration more."""
    if iteration > _MANY_ITERATIONS:
        return (
            f'to record it, wrap the training in `snapconv.recording("captures", '
            f"steps=[{iteration}])`"
        )
    simulate = "--simulate " if options.simulation else ""
    output = f"{options.output.stem}-whole{options.output.suffix}"
    program = shlex.join(("-o", output, *options.program.command))
    return f"record it with `snapconv record {simulate}--iterations {iteration or 1} {program}`"
