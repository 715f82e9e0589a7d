"""What the calls inside each module took in one iteration of a capture."""

from dataclasses import dataclass

import numpy as np

from snapconv.snapshot.recorded.timing_file import PHASES, Timing

_FORWARD = PHASES.index("forward")


@dataclass(frozen=True, slots=True)
class ModuleTime:
    """One module's calls; ``module`` is empty for calls outside any."""

    module: str
    n_calls: int
    forward_ms: float
    backward_ms: float


def module_times(timing: Timing, iteration: int) -> tuple[ModuleTime, ...]:
    """Add up the calls of every module, most time first; a call counts for the innermost one alone."""
    calls = timing.calls
    is_forward = calls.phase == _FORWARD
    rows = np.flatnonzero((calls.iteration == iteration) & (is_forward | ~np.isnan(calls.backward_ms)))
    modules, group = np.unique(calls.module_id[rows], return_inverse=True)
    forward = np.where(is_forward[rows], np.nan_to_num(calls.forward_ms[rows]), 0.0)
    backward = np.nan_to_num(calls.backward_ms[rows])
    found = [
        ModuleTime(
            timing.texts[module] if module >= 0 else "",
            int(np.count_nonzero(group == number)),
            float(forward[group == number].sum()),
            float(backward[group == number].sum()),
        )
        for number, module in enumerate(modules.tolist())
    ]
    return tuple(sorted(found, key=lambda row: (-row.forward_ms - row.backward_ms, row.module)))
