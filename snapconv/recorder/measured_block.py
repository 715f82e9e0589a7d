"""A block of code whose memory on the GPU is measured and recorded; on a simulated GPU where there is none.

The pytest plugin uses it. The figures are the allocator's own counters; the capture has what they are of.
"""

from contextlib import ExitStack
from pathlib import Path
from types import TracebackType

from snapconv.recorder import environment
from snapconv.recorder.production import Recording
from snapconv.simulation import SimulationOptions, simulated


class MeasuredBlock:
    """A context; while it lasts and afterwards it has the figures of the block.

    ``simulate`` None: where torch finds no GPU. A process can have one simulation at a time. ``captures`` are
    the folders that were written when the block ended.
    """

    def __init__(self, folder: Path, *, simulate: bool | None = None) -> None:
        self.is_simulated = False
        self._simulate = simulate
        self._recording = Recording(folder)
        self._parts = ExitStack()
        self._at_start: dict[int, int] = {}
        self._peaks: dict[int, int] | None = None

    def __enter__(self) -> "MeasuredBlock":
        environment.require_torch()
        import torch

        self.is_simulated = not torch.cuda.is_available() if self._simulate is None else self._simulate
        with ExitStack() as parts:
            if self.is_simulated:
                parts.enter_context(simulated(SimulationOptions()))
            torch.cuda.init()
            for device in range(torch.cuda.device_count()):
                torch.cuda.reset_peak_memory_stats(device)
                self._at_start[device] = torch.cuda.memory_allocated(device)
            parts.enter_context(self._recording)
            self._parts = parts.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._peaks is None:
            self._peaks = self._measured()
            self._parts.__exit__(kind, error, trace)

    def end(self) -> None:
        """End the block before its context does."""
        self.__exit__(None, None, None)

    @property
    def captures(self) -> list[Path]:
        """The captures of the block, once it has ended."""
        return self._recording.captures

    @property
    def peaks(self) -> dict[int, int]:
        """For every device how far its allocated bytes rose over those at the block's start, up to now."""
        return self._measured() if self._peaks is None else self._peaks

    @property
    def peak_bytes(self) -> int:
        """The most of all devices."""
        return max(self.peaks.values(), default=0)

    def _measured(self) -> dict[int, int]:
        import torch

        return {
            device: torch.cuda.max_memory_allocated(device) - before
            for device, before in self._at_start.items()
        }
